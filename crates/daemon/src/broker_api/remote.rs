//! The broker's HTTP API as the local API asks it.

use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_wire::http::{self, Body, MemberItem, MemberStatus, NewInvite, Role};
use semel_wire::link::JoinLink;

use super::{ApiError, BrokerApi};
use crate::remote::{Anyway, Asking, Invite, Profile, Queue, Remote, RemoteError, Topic};
use crate::store::peer::Peer;

impl From<ApiError> for RemoteError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Away(why) => Self::Unavailable(why),
            ApiError::Refused(problem) => {
                Self::Refused(Refusal::new(problem.code, problem.detail.clone()))
            }
        }
    }
}

/// An active member, as names are resolved by it.
pub(crate) fn peer(member: MemberItem) -> Option<Peer> {
    let active = member.status == MemberStatus::Active;
    let pubkey = member.pubkey.filter(|_| active)?;
    Some(Peer {
        member_id: member.member_id,
        name: member.name,
        pubkey,
        role: member.role.as_str().to_owned(),
        profile: member.profile.encode(),
    })
}

/// A page of what was asked for whole.
fn page<Item>(
    items: Vec<Item>,
    after: Option<&str>,
    limit: i64,
    name: impl Fn(&Item) -> &str,
) -> impl Iterator<Item = Item> {
    let after = after.unwrap_or_default().to_owned();
    let limit = usize::try_from(limit).unwrap_or(0);
    items.into_iter().filter(move |item| name(item) > after.as_str()).take(limit)
}

impl Remote for BrokerApi {
    fn topic_create(&self, name: String) -> Asking<'_, Topic> {
        Box::pin(async move {
            self.topic_create(&name).await?;
            self.topic_subscribe(&name).await?;
            Ok(Topic { name, subscribed: Some(true), created_at: None })
        })
    }

    fn topic_subscribe(&self, name: String) -> Asking<'_, Topic> {
        Box::pin(async move {
            self.topic_subscribe(&name).await?;
            Ok(Topic { name, subscribed: Some(true), created_at: None })
        })
    }

    fn topic_unsubscribe(&self, name: String) -> Asking<'_, Topic> {
        Box::pin(async move {
            self.topic_unsubscribe(&name).await?;
            Ok(Topic { name, subscribed: Some(false), created_at: None })
        })
    }

    fn topic_list(&self, after: Option<String>, limit: i64) -> Asking<'_, Vec<Topic>> {
        Box::pin(async move {
            let topics = page(self.topic_list().await?, after.as_deref(), limit, |it| &it.name);
            let topic = |it: http::TopicItem| Topic {
                name: it.name,
                subscribed: Some(it.subscribed),
                created_at: None,
            };
            Ok(topics.map(topic).collect())
        })
    }

    fn topic_delete(&self, name: String, anyway: Anyway) -> Asking<'_, ()> {
        Box::pin(async move { Ok(self.topic_delete(&name, anyway).await?) })
    }

    fn queue_delete(&self, name: String, anyway: Anyway) -> Asking<'_, ()> {
        Box::pin(async move { Ok(self.queue_delete(&name, anyway).await?) })
    }

    fn queue_create(&self, name: String) -> Asking<'_, Queue> {
        Box::pin(async move {
            self.queue_create(&name).await?;
            Ok(Queue { name, waiting: None })
        })
    }

    fn queue_list(&self, after: Option<String>, limit: i64) -> Asking<'_, Vec<Queue>> {
        Box::pin(async move {
            let queues = page(self.queue_list().await?, after.as_deref(), limit, |it| &it.name);
            Ok(queues.map(|it| Queue { name: it.name, waiting: None }).collect())
        })
    }

    fn members(&self) -> Asking<'_, Vec<Peer>> {
        Box::pin(async move { Ok(self.members().await?.into_iter().filter_map(peer).collect()) })
    }

    fn profile_set(&self, profile: Profile) -> Asking<'_, ()> {
        Box::pin(async move {
            let Profile { summary, status } = profile;
            Ok(self.profile_set(&http::Profile { summary, status }).await?)
        })
    }

    fn invite_create(&self, uses: u64, ttl_s: u64) -> Asking<'_, Invite> {
        Box::pin(async move {
            let new = NewInvite { uses, ttl_seconds: ttl_s, role: Role::Member };
            let invite = self.invite_create(&new).await?;
            let link = JoinLink {
                broker_url: self.broker.place().http(),
                mesh: self.mesh.clone(),
                token: invite.token,
            };
            let (uses, expires_at) = (invite.uses, invite.expires_at);
            Ok(Invite { invite: link.encode(), uses, expires_at })
        })
    }

    fn member_revoke(&self, pubkey: String) -> Asking<'_, ()> {
        Box::pin(async move {
            let members = self.members().await?;
            let named = members.iter().find(|it| it.pubkey.as_deref() == Some(pubkey.as_str()));
            let member = named.ok_or_else(|| {
                RemoteError::Refused(Refusal::new(Code::MemberNotFound, "no member has this key"))
            })?;
            Ok(self.member_revoke(member.member_id).await?)
        })
    }

    fn leave(&self) -> Asking<'_, ()> {
        Box::pin(async move { Ok(self.leave().await?) })
    }
}
