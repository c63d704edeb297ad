//! Topics and work queues, which are names.

use semel_core::code::Code;
use semel_wire::http::{Body, List, NameItem, NewName, Problem, Role, TopicItem};

use super::answer::{Answer, failed};
use super::query::Page;
use super::{Call, auth};
use crate::store::{Audited, Deleted, Deleter, InUse, Made, Mesh};

pub(super) async fn topics(call: &Call) -> Result<Answer, Problem> {
    let asking = auth::member(call).await?;
    let page = Page::of(&call.query)?;
    let (after, limit) = (page.after.as_deref(), page.limit + 1);
    let (mesh_id, member_id, store) = (asking.mesh.mesh_id, asking.member_id, &call.broker.store);
    let found = store.topic_list_of(mesh_id, member_id, after, limit).await;
    let mut found = found.map_err(failed)?;
    let next = page.cut(call, &mut found, |(name, _)| name.clone());
    let item = |(name, subscribed)| TopicItem { name, subscribed };
    Ok(Answer::ok(&List { items: found.into_iter().map(item).collect(), next }))
}

pub(super) async fn topic_create(call: &Call) -> Result<Answer, Problem> {
    let asking = auth::member(call).await?;
    let NewName { name } = NewName::decode(&call.body).map_err(Problem::of)?;
    let (by, now) = (Some(asking.member_id), call.broker.clock.wall());
    let made = call.broker.store.topic_create(asking.mesh.mesh_id, &name, by, now).await;
    created(made.map_err(failed)?, name, "the mesh has too many topics, or you made too many")
}

pub(super) async fn subscribe(call: &Call) -> Result<Answer, Problem> {
    let asking = auth::member(call).await?;
    let (mesh_id, topic, store) = (asking.mesh.mesh_id, topic(call), &call.broker.store);
    let found = store.topic_subscribe(mesh_id, topic, asking.member_id).await;
    done(found.map_err(failed)?)
}

pub(super) async fn unsubscribe(call: &Call) -> Result<Answer, Problem> {
    let asking = auth::member(call).await?;
    let (mesh_id, topic, store) = (asking.mesh.mesh_id, topic(call), &call.broker.store);
    let found = store.topic_unsubscribe(mesh_id, topic, asking.member_id).await;
    done(found.map_err(failed)?)
}

pub(super) async fn queues(call: &Call) -> Result<Answer, Problem> {
    let mesh = auth::member(call).await?.mesh;
    let page = Page::of(&call.query)?;
    let (after, limit) = (page.after.as_deref(), page.limit + 1);
    let found = call.broker.store.queue_list(mesh.mesh_id, after, limit).await;
    Ok(listed(call, &page, found.map_err(failed)?))
}

pub(super) async fn queue_create(call: &Call) -> Result<Answer, Problem> {
    let asking = auth::member(call).await?;
    let NewName { name } = NewName::decode(&call.body).map_err(Problem::of)?;
    let (queue_id, now) = (call.broker.mint.uuid(), call.broker.clock.wall());
    let (named, by) = ((name.as_str(), queue_id), Some(asking.member_id));
    let made = call.broker.store.queue_create(asking.mesh.mesh_id, named, by, now).await;
    created(made.map_err(failed)?, name, "the mesh has too many queues, or you made too many")
}

pub(super) async fn topic_delete(call: &Call) -> Result<Answer, Problem> {
    let (mesh, by) = deleter(call).await?;
    let deleted = call.broker.store.topic_delete(mesh.mesh_id, topic(call), by, audited(call));
    let missing = (Code::TopicNotFound, "there is no topic of that name");
    gone(deleted.await.map_err(failed)?, missing, "other members subscribe to it")
}

/// Goes on until nothing is left, also once nobody waits for the answer.
pub(super) async fn queue_delete(call: &Call) -> Result<Answer, Problem> {
    let (mesh, by) = deleter(call).await?;
    let (name, store) = (topic(call), &call.broker.store);
    let mut deleted = Deleted::More;
    while deleted == Deleted::More {
        let part = store.queue_delete(mesh.mesh_id, name, by, audited(call)).await;
        deleted = part.map_err(failed)?;
    }
    gone(deleted, (Code::QueueNotFound, "there is no queue of that name"), "work waits in it")
}

async fn deleter(call: &Call) -> Result<(Mesh, (Deleter, InUse)), Problem> {
    let (mesh, member) = auth::anybody(call).await?;
    let in_use = match call.query.as_str() {
        "" => InUse::Refuse,
        "anyway=true" => InUse::End,
        _ => {
            let detail = "the query must be anyway=true or empty";
            return Err(Problem::new(Code::UnknownField, detail));
        }
    };
    let (member_id, role) = member.unzip();
    let may_all = role.is_none_or(|role| role == Role::Owner);
    Ok((mesh, (Deleter { member_id, may_all }, in_use)))
}

fn audited(call: &Call) -> Audited {
    Audited { id: call.broker.mint.uuid(), at: call.broker.clock.wall() }
}

fn gone(deleted: Deleted, missing: (Code, &str), why: &str) -> Result<Answer, Problem> {
    match deleted {
        Deleted::Done => Ok(Answer::done()),
        Deleted::NotFound => Err(Problem::new(missing.0, missing.1)),
        Deleted::NotYours => {
            let detail = "only its maker and owners of the mesh may do this";
            Err(Problem::new(Code::OwnerNeeded, detail))
        }
        Deleted::InUse | Deleted::More => Err(Problem::new(Code::InUse, why)),
    }
}

fn listed(call: &Call, page: &Page, mut found: Vec<String>) -> Answer {
    let next = page.cut(call, &mut found, String::clone);
    let items = found.into_iter().map(|name| NameItem { name }).collect();
    Answer::ok(&List { items, next })
}

fn created(made: Made, name: String, too_many: &str) -> Result<Answer, Problem> {
    match made {
        Made::New => Ok(Answer::created(&NameItem { name })),
        Made::There => Ok(Answer::ok(&NameItem { name })),
        Made::TooMany => Err(Problem::new(Code::TooMany, too_many)),
    }
}

fn done(found: bool) -> Result<Answer, Problem> {
    if found {
        return Ok(Answer::done());
    }
    Err(Problem::new(Code::TopicNotFound, "there is no topic of that name"))
}

fn topic(call: &Call) -> &str {
    call.names.get(1).map_or("", String::as_str)
}
