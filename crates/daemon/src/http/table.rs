//! Every call of the local API, once.

use semel_api::events::{AFTER, LAST_EVENT_ID};
use semel_api::field::{Field, Kind, NUMBER_MAX};
use semel_api::limits::PAGE_MAX;
use semel_api::route::{Answer, Handler, Route};
use semel_core::code::Code;
use semel_core::limits::{BODY_BYTES_MAX, REF_BYTES_MAX};
use semel_wire::limits::{LEASE_MS_MAX, QUEUE_ACK_SEQS_MAX, QUEUE_TAKE_MAX};
use serde_json::Value;

use super::mesh::REFUSALS;
use super::{Daemon, about, events, inbox, mesh, metrics, outbox, queue, schema, send};
use crate::limits::{MENTIONS_MAX, SEARCH_BYTES_MAX};

const NAME: Kind = Kind::Name { bytes_max: REF_BYTES_MAX };
/// A sign or `queue:` before the name.
const TO: Kind = Kind::Name { bytes_max: REF_BYTES_MAX + 6 };
const TEXT: Kind = Kind::Text { bytes_max: BODY_BYTES_MAX };
const SHORT: Kind = Kind::Text { bytes_max: 1024 };
const PRIORITY: Kind = Kind::Word(&["now", "next", "low"]);
const COUNT: Kind = Kind::Number { min: 0, max: NUMBER_MAX };
const MENTIONS: Kind = Kind::Names { items_max: MENTIONS_MAX, bytes_max: REF_BYTES_MAX + 1 };

const LIMIT: Field =
    Field::new("limit", Kind::Number { min: 1, max: PAGE_MAX }, "items at the most");
const MESSAGE: Field = Field::new("message", TEXT, "the body, as text");
const BODY: Field = Field::new("body_base64", Kind::Base64, "the body, in base64");
const CLIENT_MESSAGE_ID: Field =
    Field::new("client_message_id", Kind::Id, "the id under which it happens once");
const IDEMPOTENCY_KEY: Field = Field::new(
    "idempotency-key",
    Kind::Id,
    "the id under which it happens once; goes before the body's",
);
const PRIORITY_FIELD: Field = Field::new("priority", PRIORITY, "how urgent it is");
const META: Field = Field::new("meta", Kind::Object, "anything, up to 16 KiB");
const REPLY_TO: Field =
    Field::new("reply_to_id", NAME, "the broker_message_id of what it replies to");
const MENTIONS_FIELD: Field =
    Field::new("mentions", MENTIONS, "public keys or @names; kept sorted in meta.mentions");
const TOPIC: Field = Field::needed("topic", TO, "the topic's name, with or without #");
const QUEUE: Field = Field::needed("queue", NAME, "the queue's name");
const BY_NAME: &[Field] = &[Field::new("after", NAME, "the name before the first item"), LIMIT];

/// A body of the largest size as base64, and what surrounds it.
const SEND_BYTES_MAX: usize = BODY_BYTES_MAX.div_ceil(3) * 4 + 64 * 1024;

const fn json(status: u16, about: &'static str, schema: fn() -> Value) -> Answer {
    Answer::json(status, about, schema)
}

const SENT: &[Answer] = &[
    json(202, "it is on disk and waits, or is on the wire", schema::queued),
    json(200, "the broker has it already", schema::duplicate),
];
const SEND_PROBLEMS: &[Code] = &[
    Code::IdempotencyKeyReused,
    Code::RecipientNotFound,
    Code::PayloadTooLarge,
    Code::InsufficientStorage,
];

const fn get(path: &'static str, about: &'static str, handle: Handler<Daemon>) -> Route<Daemon> {
    Route::get(path, about, handle)
}

const fn post(path: &'static str, about: &'static str, handle: Handler<Daemon>) -> Route<Daemon> {
    Route::post(path, about, handle)
}

/// The list.
pub(super) const ROUTES: &[Route<Daemon>] = &[
    Route {
        headers: &[IDEMPOTENCY_KEY],
        body: &[
            Field::needed("to", TO, "#topic, @name, queue:name or a public key in hex"),
            MESSAGE,
            BODY,
            PRIORITY_FIELD,
            META,
            REPLY_TO,
            CLIENT_MESSAGE_ID,
            MENTIONS_FIELD,
        ],
        body_bytes_max: Some(SEND_BYTES_MAX),
        answers: SENT,
        problems: SEND_PROBLEMS,
        ..post("/v1/send", "Accepts a message", |call| Box::pin(send::send(call)))
    },
    Route {
        headers: &[IDEMPOTENCY_KEY],
        body: &[
            TOPIC,
            MESSAGE,
            BODY,
            PRIORITY_FIELD,
            META,
            REPLY_TO,
            CLIENT_MESSAGE_ID,
            MENTIONS_FIELD,
        ],
        body_bytes_max: Some(SEND_BYTES_MAX),
        answers: SENT,
        problems: SEND_PROBLEMS,
        ..post("/v1/topic/post", "Accepts a message to a topic", |call| Box::pin(send::post(call)))
    },
    Route {
        query: &[
            Field::new("since", Kind::Time, "received at or after this time"),
            Field::new("topic", TO, "of this topic"),
            Field::new("from", NAME, "of the sender with this public key"),
            Field::new("after", COUNT, "after the item with this id"),
            LIMIT,
            Field::new("reader", NAME, "after what this reader has acknowledged"),
            Field::new("mentions", NAME, "that mention this public key, or me"),
        ],
        answers: &[json(200, "messages in the order of arrival", schema::messages)],
        ..get("/v1/inbox", "Lists what arrived", |call| Box::pin(inbox::list(call)))
    },
    Route {
        body: &[
            Field::needed("reader", NAME, "who has read"),
            Field::needed("id", COUNT, "up to the item with this id"),
            Field::new("topic", TO, "and of this topic alone"),
        ],
        answers: &[json(200, "how far the reader has read now", schema::reader)],
        problems: &[Code::InsufficientStorage],
        ..post("/v1/inbox/ack", "Remembers how far a reader has read", |call| {
            Box::pin(inbox::ack(call))
        })
    },
    Route {
        query: &[Field::new("after", COUNT, "after the item with this id"), LIMIT],
        answers: &[json(200, "oldest first", schema::asides)],
        ..get("/v1/inbox/aside", "Lists what arrived and could not be taken", |call| {
            Box::pin(inbox::aside(call))
        })
    },
    Route {
        body: &[
            Field::needed("reason", SHORT, "why it could not be taken"),
            Field::needed("message", TEXT, "what came"),
            Field::new("seq", COUNT, "its number in the mesh's history"),
        ],
        answers: &[json(200, "it is kept, once", schema::done)],
        problems: &[Code::InsufficientStorage],
        ..post("/v1/inbox/aside", "Keeps a message that its reader could not take", |call| {
            Box::pin(inbox::set_aside(call))
        })
    },
    Route {
        answers: &[json(200, "whether it was there", schema::dropped)],
        problems: &[Code::InsufficientStorage],
        ..post("/v1/inbox/aside/{id}/drop", "Deletes what somebody has looked at", |call| {
            Box::pin(inbox::drop_aside(call))
        })
    },
    Route {
        query: &[
            Field::needed("q", Kind::Name { bytes_max: SEARCH_BYTES_MAX }, "words, all of them"),
            Field::new("after", COUNT, "after the item with this id"),
            LIMIT,
        ],
        answers: &[json(200, "messages in the order of arrival", schema::messages)],
        ..get("/v1/inbox/search", "Finds messages by their words", |call| {
            Box::pin(inbox::search(call))
        })
    },
    Route {
        query: &[
            Field::new("failed", Kind::Flag, "only what was given up"),
            Field::new("after", NAME, "after the row with this outbox_id"),
            LIMIT,
        ],
        answers: &[json(200, "rows in the order of accept", schema::rows)],
        ..get("/v1/outbox", "Lists what was accepted here", |call| Box::pin(outbox::list(call)))
    },
    Route {
        answers: &[json(200, "the row, and those that took its place", schema::row)],
        problems: &[Code::OutboxRowNotFound],
        ..get("/v1/outbox/{id}", "Shows a row by its outbox_id or client_message_id", |call| {
            Box::pin(outbox::inspect(call))
        })
    },
    Route {
        body: &[
            Field::new("client_message_id", Kind::Id, "the id of the new row"),
            MESSAGE,
            BODY,
            Field::new("even_if_delivered", Kind::Flag, "also if nobody knows what became of it"),
        ],
        body_bytes_max: Some(SEND_BYTES_MAX),
        answers: &[
            json(202, "a new row waits in its place", schema::requeued),
            json(200, "the broker had it after all: nothing is sent again", schema::delivered),
        ],
        problems: &[
            Code::OutboxRowNotFound,
            Code::RequeueNotPossible,
            Code::PayloadTooLarge,
            Code::InsufficientStorage,
        ],
        ..post("/v1/outbox/{id}/requeue", "Retires a row in favour of a new one", |call| {
            Box::pin(outbox::requeue(call))
        })
    },
    Route {
        body: &[Field::needed(
            "older_than_days",
            Kind::Number { min: 0, max: 36_500 },
            "payloads of done rows accepted before that",
        )],
        answers: &[json(200, "how many payloads are gone", schema::pruned)],
        problems: &[Code::InsufficientStorage],
        ..post("/v1/outbox/prune", "Drops payloads; ids and fingerprints stay", |call| {
            Box::pin(outbox::prune(call))
        })
    },
    Route {
        query: &[Field::new("after", NAME, "after the member with this member_id"), LIMIT],
        answers: &[json(200, "members, and whether they are online", schema::peers)],
        ..get("/v1/peers", "Lists who is in the mesh", |call| Box::pin(mesh::peers(call)))
    },
    Route {
        answers: &[json(200, "how many members there are", schema::refreshed)],
        problems: REFUSALS,
        ..post("/v1/peers/refresh", "Asks the broker who is in the mesh", |call| {
            Box::pin(mesh::peers_refresh(call))
        })
    },
    Route {
        body: &[
            Field::new("summary", SHORT, "what this member does"),
            Field::new("status", SHORT, "how it is"),
        ],
        answers: &[json(200, "the mesh knows", schema::done)],
        problems: REFUSALS,
        ..post("/v1/profile", "Says something else of this member", |call| {
            Box::pin(mesh::profile(call))
        })
    },
    Route {
        body: &[TOPIC],
        answers: &[json(200, "the topic", schema::topic)],
        problems: REFUSALS,
        ..post("/v1/topic/create", "Makes a topic", |call| Box::pin(mesh::topic_create(call)))
    },
    Route {
        body: &[TOPIC],
        answers: &[json(200, "the topic", schema::topic)],
        problems: REFUSALS,
        ..post("/v1/topic/subscribe", "Subscribes to a topic", |call| {
            Box::pin(mesh::topic_subscribe(call))
        })
    },
    Route {
        body: &[TOPIC],
        answers: &[json(200, "the topic", schema::topic)],
        problems: REFUSALS,
        ..post("/v1/topic/unsubscribe", "Unsubscribes from a topic", |call| {
            Box::pin(mesh::topic_unsubscribe(call))
        })
    },
    Route {
        body: &[
            TOPIC,
            Field::new("confirm", Kind::Flag, "also while other members subscribe to it"),
        ],
        answers: &[json(200, "it is gone", schema::done)],
        problems: REFUSALS,
        ..post("/v1/topic/delete", "Deletes a topic", |call| Box::pin(mesh::topic_delete(call)))
    },
    Route {
        query: BY_NAME,
        answers: &[json(200, "topics by name", schema::topics)],
        problems: REFUSALS,
        ..get("/v1/topic/list", "Lists topics", |call| Box::pin(mesh::topic_list(call)))
    },
    Route {
        body: &[QUEUE],
        answers: &[json(200, "the queue", schema::queue)],
        problems: REFUSALS,
        ..post("/v1/queue/create", "Makes a queue", |call| Box::pin(mesh::queue_create(call)))
    },
    Route {
        body: &[QUEUE, Field::new("discard", Kind::Flag, "throw the work away that waits in it")],
        answers: &[json(200, "it is gone", schema::done)],
        problems: REFUSALS,
        ..post("/v1/queue/delete", "Deletes a queue", |call| Box::pin(mesh::queue_delete(call)))
    },
    Route {
        query: BY_NAME,
        answers: &[json(200, "queues by name", schema::queues)],
        problems: REFUSALS,
        ..get("/v1/queue/list", "Lists queues", |call| Box::pin(mesh::queue_list(call)))
    },
    Route {
        body: &[
            QUEUE,
            Field::new(
                "max",
                Kind::Number { min: 1, max: QUEUE_TAKE_MAX.cast_signed() },
                "messages at the most; one if it is not given",
            ),
            Field::new(
                "lease_ms",
                Kind::Number { min: 1, max: LEASE_MS_MAX.cast_signed() },
                "how long nobody else gets them",
            ),
        ],
        answers: &[json(200, "work, leased", schema::taken)],
        problems: REFUSALS,
        ..post("/v1/queue/take", "Takes work from a queue", |call| Box::pin(queue::take(call)))
    },
    Route {
        body: &[
            QUEUE,
            Field::needed(
                "seqs",
                Kind::Numbers { items_max: QUEUE_ACK_SEQS_MAX },
                "numbers of messages that are done",
            ),
        ],
        answers: &[json(200, "those that are off the queue", schema::acked)],
        problems: REFUSALS,
        ..post("/v1/queue/ack", "Acknowledges work", |call| Box::pin(queue::ack(call)))
    },
    Route {
        body: &[
            Field::new("uses", Kind::Number { min: 1, max: 10_000 }, "how often it can be used"),
            Field::new("ttl_s", Kind::Number { min: 1, max: 31_536_000 }, "for how long"),
        ],
        answers: &[json(200, "a way into the mesh", schema::invite)],
        problems: REFUSALS,
        ..post("/v1/mesh/invite", "Makes an invitation", |call| Box::pin(mesh::invite(call)))
    },
    Route {
        answers: &[json(200, "this member has left", schema::done)],
        problems: REFUSALS,
        ..post("/v1/mesh/leave", "Leaves the mesh for good", |call| Box::pin(mesh::leave(call)))
    },
    Route {
        body: &[Field::needed("pubkey", NAME, "of the member that may no longer take part")],
        answers: &[json(200, "it may not", schema::done)],
        problems: REFUSALS,
        ..post("/v1/member/revoke", "Revokes a member", |call| Box::pin(mesh::revoke(call)))
    },
    Route {
        headers: &[LAST_EVENT_ID],
        query: &[
            AFTER,
            Field::new("kinds", SHORT, "only these kinds of events, with commas between them"),
        ],
        answers: &[Answer::events("events from now on, or after the one named")],
        problems: &[Code::TooManyStreams, Code::InsufficientStorage],
        ..get("/v1/events", "Streams what happens", |call| Box::pin(events::stream(call)))
    },
    Route {
        answers: &[json(200, "how it is", schema::health)],
        ..get("/v1/health", "Says how the daemon is", |call| Box::pin(about::health(call)))
    },
    Route {
        answers: &[json(200, "what it is", schema::version)],
        ..get("/v1/version", "Says what the daemon is", |call| Box::pin(about::version(call)))
    },
    Route {
        answers: &[json(200, "what it goes together with", schema::compat)],
        ..get("/v1/compat", "Says what it goes together with", |call| Box::pin(about::compat(call)))
    },
    Route {
        answers: &[Answer {
            status: 200,
            content: metrics::CONTENT,
            about: "OpenMetrics",
            schema: schema::plain,
        }],
        ..get("/v1/metrics", "Counts and measures", |call| Box::pin(about::metrics(call)))
    },
    Route {
        answers: &[json(200, "OpenAPI 3.1", schema::openapi)],
        ..get("/v1/openapi.json", "This document", |call| Box::pin(about::openapi_json(call)))
    },
    Route {
        answers: &[json(200, "how long the old one is still accepted", schema::rotated)],
        problems: &[Code::SocketOnly],
        ..post("/v1/token/rotate", "Replaces the token for TCP; over the socket only", |call| {
            Box::pin(about::rotate_token(call))
        })
    },
    Route {
        answers: &[json(200, "it is there", schema::heartbeat)],
        ..post("/v1/heartbeat", "Is the daemon there?", |call| Box::pin(about::heartbeat(call)))
    },
];
