//! What arrived: pages, search, and how far a reader has read.

use semel_api::json::Object;
use semel_api::limits::PAGE_DEFAULT;
use semel_api::page::{Next, Page};
use semel_api::problem::Problem;
use semel_api::route::{Call, Reply};
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_core::rfc3339;
use serde_json::{Value, json};

use super::Daemon;
use crate::limits::MENTIONS_LOOKED_MAX;
use crate::store::aside::{Aside, AsideSource, NewAside};
use crate::store::inbox::{Filter, Message};
use crate::store::reader::Read;

/// `GET /v1/inbox`.
pub(super) async fn list(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let (inbox, query) = (&call.state.engine.inbox, &mut call.query);
    let reader = query.text("reader");
    let read_to = match &reader {
        Some(reader) => inbox.reader(reader).await?.unwrap_or(0),
        None => 0,
    };
    let limit = query.number("limit").unwrap_or(PAGE_DEFAULT);
    let mut filter = Filter {
        after: query.number("after").unwrap_or(0).max(read_to),
        since: query.time("since"),
        topic: query.text("topic").map(|topic| topic.trim_start_matches('#').to_owned()),
        from: query.text("from"),
    };
    let mentions = query.text("mentions");
    let mentioned = mentions.as_ref().map(|who| match who.as_str() {
        "me" => call.state.member.pubkey.clone(),
        key => key.to_owned(),
    });
    let mut page = Page::new(limit, call.api().response_bytes_max());
    let mut looked = 0;
    'reading: loop {
        let ask = page.ask();
        let messages = inbox.list(filter.clone(), ask).await?;
        let full = i64::try_from(messages.len()).is_ok_and(|found| found == ask);
        looked += messages.len();
        for message in messages {
            if mentioned.as_ref().is_some_and(|key| !is_mentioned(&message, key)) {
                filter.after = message.id;
                continue;
            }
            if !page.add(|out| write_message(&message, out)) {
                break 'reading;
            }
            filter.after = message.id;
        }
        if !full {
            break;
        }
        if mentioned.is_some() && looked >= MENTIONS_LOOKED_MAX {
            page.break_off();
            break;
        }
    }
    let next = || {
        Next::new("/v1/inbox", &filter.after.to_string())
            .with("mentions", mentions.as_deref())
            .with("limit", Some(&limit.to_string()))
            .with("since", filter.since.map(rfc3339::format).as_deref())
            .with("topic", filter.topic.as_deref())
            .with("from", filter.from.as_deref())
            .with("reader", reader.as_deref())
            .address()
    };
    Ok(page.finish(next))
}

/// Whether somebody is among those whom the sender has named.
fn is_mentioned(message: &Message, key: &str) -> bool {
    let meta: Option<Value> = serde_json::from_str(&message.arrived.meta).ok();
    let named = meta.as_ref().and_then(|meta| meta.get("mentions")?.as_array());
    named.is_some_and(|named| named.iter().any(|one| one == key))
}

/// `GET /v1/inbox/search`.
pub(super) async fn search(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let (inbox, query) = (&call.state.engine.inbox, &mut call.query);
    let words = query.text("q").unwrap_or_default();
    let limit = query.number("limit").unwrap_or(PAGE_DEFAULT);
    let mut after = query.number("after").unwrap_or(0);
    let mut page = Page::new(limit, call.api().response_bytes_max());
    'reading: loop {
        let ask = page.ask();
        let messages = inbox.search(&words, after, ask).await?;
        let full = i64::try_from(messages.len()).is_ok_and(|found| found == ask);
        for message in messages {
            if !page.add(|out| write_message(&message, out)) {
                break 'reading;
            }
            after = message.id;
        }
        if !full {
            break;
        }
    }
    let next = || {
        Next::new("/v1/inbox/search", &after.to_string())
            .with("q", Some(&words))
            .with("limit", Some(&limit.to_string()))
            .address()
    };
    Ok(page.finish(next))
}

/// `POST /v1/inbox/ack`.
pub(super) async fn ack(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let reader = call.body.text("reader").unwrap_or_default();
    let id = call.body.number("id").unwrap_or(0);
    let topic = call.body.text("topic");
    let topic = topic.as_deref().map(|topic| topic.trim_start_matches('#'));
    match call.state.engine.inbox.reader_set(&reader, id, topic).await? {
        Read::UpTo(id) => Ok(Reply::value(&json!({"reader": reader, "id": id}))),
        Read::Beyond(newest) => {
            let detail = format!("has not come yet: the newest message is {newest}");
            Err(Refusal::at(Code::InvalidField, "/id", detail).into())
        }
    }
}

/// `GET /v1/inbox/aside`.
pub(super) async fn aside(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let (inbox, query) = (&call.state.engine.inbox, &mut call.query);
    let limit = query.number("limit").unwrap_or(PAGE_DEFAULT);
    let mut after = query.number("after").unwrap_or(0);
    let mut page = Page::new(limit, call.api().response_bytes_max());
    'reading: loop {
        let ask = page.ask();
        let found = inbox.aside(after, ask).await?;
        let full = i64::try_from(found.len()).is_ok_and(|found| found == ask);
        for one in found {
            if !page.add(|out| write_aside(&one, out)) {
                break 'reading;
            }
            after = one.id;
        }
        if !full {
            break;
        }
    }
    let next = || {
        Next::new("/v1/inbox/aside", &after.to_string())
            .with("limit", Some(&limit.to_string()))
            .address()
    };
    Ok(page.finish(next))
}

/// `POST /v1/inbox/aside`: somebody else could not take what came.
pub(super) async fn set_aside(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let reason = call.body.text("reason").unwrap_or_default();
    let seq = call.body.number("seq");
    let frame = call.body.text("message").unwrap_or_default().into_bytes();
    let new = NewAside { source: AsideSource::Jobs, reason, seq, frame };
    call.state.engine.inbox.set_aside(new).await?;
    Ok(Reply::value(&json!({"status": "kept"})))
}

/// `POST /v1/inbox/aside/{id}/drop`.
pub(super) async fn drop_aside(call: Call<Daemon>) -> Result<Reply, Problem> {
    let dropped = match call.id.parse() {
        Ok(id) => call.state.engine.inbox.aside_drop(id).await?,
        Err(_) => false,
    };
    Ok(Reply::value(&json!({"dropped": dropped})))
}

fn write_aside(aside: &Aside, out: &mut Vec<u8>) {
    let mut object = Object::open(out);
    object.number("id", aside.id);
    object.time("at", aside.at);
    object.plain("source", aside.source.as_str());
    object.text("reason", &aside.reason);
    object.maybe_number("seq", aside.seq);
    object.body(&aside.frame);
    object.close();
}

/// An item of the inbox, as lists and events carry it.
pub(super) fn write_message(message: &Message, out: &mut Vec<u8>) {
    let arrived = &message.arrived;
    let mut object = Object::open(out);
    object.number("id", message.id);
    object.text("client_message_id", arrived.client_message_id.as_str());
    object.plain("broker_message_id", &arrived.broker_message_id.to_string());
    object.number("seq", arrived.seq);
    object.plain("destination_kind", arrived.destination_kind.as_str());
    object.maybe_text("topic", arrived.topic.as_deref());
    object.plain("sender_member_id", &arrived.sender_member_id.to_string());
    object.text("sender_pubkey", &arrived.sender_pubkey);
    object.text("sender_name", &arrived.sender_name);
    object.plain("priority", arrived.priority.as_str());
    object.body(&arrived.body);
    object.meta(&arrived.meta);
    object.time("accepted_at", arrived.accepted_at);
    object.time("received_at", message.received_at);
    object.maybe_text("reply_to_id", arrived.reply_to_id.as_deref());
    object.close();
}
