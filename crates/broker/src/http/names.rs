//! Topics and work queues, which are names.

use semel_core::code::Code;
use semel_wire::http::{Body, List, NameItem, NewName, Problem, TopicItem};

use super::answer::{Answer, failed};
use super::query::Page;
use super::{Call, auth};
use crate::store::Made;

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
    let mesh = auth::member(call).await?.mesh;
    let NewName { name } = NewName::decode(&call.body).map_err(Problem::of)?;
    let now = call.broker.clock.wall();
    let made = call.broker.store.topic_create(mesh.mesh_id, &name, now).await;
    created(made.map_err(failed)?, name, "the mesh has too many topics")
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
    let mesh = auth::member(call).await?.mesh;
    let NewName { name } = NewName::decode(&call.body).map_err(Problem::of)?;
    let (queue_id, now) = (call.broker.mint.uuid(), call.broker.clock.wall());
    let made = call.broker.store.queue_create(mesh.mesh_id, &name, queue_id, now).await;
    created(made.map_err(failed)?, name, "the mesh has too many queues")
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
