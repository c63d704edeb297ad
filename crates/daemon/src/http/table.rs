//! Every call of the local API, once.

use semel_api::events::{AFTER, LAST_EVENT_ID};
use semel_api::field::{Field, Kind, NUMBER_MAX};
use semel_api::limits::PAGE_MAX;
use semel_api::route::{Answer, Handler, Route};
use semel_core::code::Code;
use semel_core::limits::{BODY_BYTES_MAX, REF_BYTES_MAX};
use semel_wire::limits::{
    INVITE_TTL_SECONDS_MAX, INVITE_USES_MAX, LEASE_MS_MAX, QUEUE_ACK_SEQS_MAX, QUEUE_TAKE_MAX,
};
use serde_json::Value;

use super::mesh::{REFUSALS, REFUSALS_OR_FULL};
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

const INVITE_USES: Kind = Kind::Number { min: 1, max: INVITE_USES_MAX.cast_signed() };
const INVITE_TTL: Kind = Kind::Number { min: 1, max: INVITE_TTL_SECONDS_MAX.cast_signed() };

const LIMIT: Field =
    Field::new("limit", Kind::Number { min: 1, max: PAGE_MAX }, "at most this many items");
const MESSAGE: Field = Field::new("message", TEXT, "the body, as text");
const BODY: Field = Field::new("body_base64", Kind::Base64, "the body, in base64");
const CLIENT_MESSAGE_ID: Field =
    Field::new("client_message_id", Kind::Id, "the id under which the message is sent once");
const IDEMPOTENCY_KEY: Field = Field::new(
    "idempotency-key",
    Kind::Id,
    "the id under which the message is sent once; it takes precedence over the body's",
);
const PRIORITY_FIELD: Field = Field::new("priority", PRIORITY, "the priority of the message");
const META: Field = Field::new("meta", Kind::Object, "any JSON object, up to 16 KiB");
const REPLY_TO: Field = Field::new(
    "reply_to_id",
    NAME,
    "the broker_message_id of the message to which this one replies",
);
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
    json(202, "the message is on disk; it waits or is being sent", schema::queued),
    json(200, "the broker already has the message", schema::duplicate),
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
        name: "send",
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
        name: "topic_post",
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
        name: "inbox_list",
        query: &[
            Field::new("since", Kind::Time, "only messages received at or after this time"),
            Field::new("topic", TO, "only messages of this topic"),
            Field::new("from", NAME, "only messages from the sender with this public key"),
            Field::new("after", COUNT, "only items after the one with this id"),
            LIMIT,
            Field::new(
                "reader",
                NAME,
                "only messages after the last one that this reader has acknowledged",
            ),
            Field::new("mentions", NAME, "only messages that mention this public key, or me"),
        ],
        answers: &[json(200, "messages in the order of arrival", schema::messages)],
        ..get("/v1/inbox", "Lists messages that arrived", |call| Box::pin(inbox::list(call)))
    },
    Route {
        name: "inbox_ack",
        body: &[
            Field::needed("reader", NAME, "the name of the reader"),
            Field::needed("id", COUNT, "the last message that the reader has read"),
            Field::new("topic", TO, "only messages of this topic"),
        ],
        answers: &[json(200, "the last message that the reader has read", schema::reader)],
        problems: &[Code::InsufficientStorage],
        ..post("/v1/inbox/ack", "Remembers how far a reader has read", |call| {
            Box::pin(inbox::ack(call))
        })
    },
    Route {
        name: "aside_list",
        query: &[Field::new("after", COUNT, "only items after the one with this id"), LIMIT],
        answers: &[json(200, "oldest first", schema::asides)],
        ..get("/v1/inbox/aside", "Lists messages that arrived and could not be accepted", |call| {
            Box::pin(inbox::aside(call))
        })
    },
    Route {
        name: "aside_keep",
        body: &[
            Field::needed("reason", SHORT, "the reason why it could not be accepted"),
            Field::needed("message", TEXT, "the message, as it arrived"),
            Field::new("seq", COUNT, "its number in the mesh's history"),
        ],
        answers: &[json(200, "the message is kept, once", schema::done)],
        problems: &[Code::InsufficientStorage],
        ..post("/v1/inbox/aside", "Keeps a message that its reader could not accept", |call| {
            Box::pin(inbox::set_aside(call))
        })
    },
    Route {
        name: "aside_drop",
        answers: &[json(200, "whether the message existed", schema::dropped)],
        problems: &[Code::InsufficientStorage],
        ..post("/v1/inbox/aside/{id}/drop", "Deletes a message that was set aside", |call| {
            Box::pin(inbox::drop_aside(call))
        })
    },
    Route {
        name: "inbox_search",
        query: &[
            Field::needed(
                "q",
                Kind::Name { bytes_max: SEARCH_BYTES_MAX },
                "words that the messages contain, all of them",
            ),
            Field::new("after", COUNT, "only items after the one with this id"),
            LIMIT,
        ],
        answers: &[json(200, "messages in the order of arrival", schema::messages)],
        ..get("/v1/inbox/search", "Finds messages by their words", |call| {
            Box::pin(inbox::search(call))
        })
    },
    Route {
        name: "outbox_list",
        query: &[
            Field::new("failed", Kind::Flag, "only rows that were given up"),
            Field::new("after", NAME, "only rows after the one with this outbox_id"),
            LIMIT,
        ],
        answers: &[json(200, "rows in the order in which they were accepted", schema::rows)],
        ..get("/v1/outbox", "Lists messages that this host accepted", |call| {
            Box::pin(outbox::list(call))
        })
    },
    Route {
        name: "outbox_show",
        answers: &[json(200, "the row, and the rows that replaced it", schema::row)],
        problems: &[Code::OutboxRowNotFound],
        ..get("/v1/outbox/{id}", "Shows a row by its outbox_id or client_message_id", |call| {
            Box::pin(outbox::inspect(call))
        })
    },
    Route {
        name: "outbox_requeue",
        body: &[
            Field::new("client_message_id", Kind::Id, "the id of the new row"),
            MESSAGE,
            BODY,
            Field::new(
                "even_if_delivered",
                Kind::Flag,
                "also if it is unknown whether the old message was delivered",
            ),
        ],
        body_bytes_max: Some(SEND_BYTES_MAX),
        answers: &[
            json(202, "a new row has replaced it, and waits", schema::requeued),
            json(
                200,
                "the broker already had the message: nothing is sent again",
                schema::delivered,
            ),
        ],
        problems: &[
            Code::OutboxRowNotFound,
            Code::RequeueNotPossible,
            Code::PayloadTooLarge,
            Code::InsufficientStorage,
        ],
        ..post("/v1/outbox/{id}/requeue", "Replaces a row by a new one with a new id", |call| {
            Box::pin(outbox::requeue(call))
        })
    },
    Route {
        name: "outbox_prune",
        body: &[Field::needed(
            "older_than_days",
            Kind::Number { min: 0, max: 36_500 },
            "delete the payloads of done rows that are older than this many days",
        )],
        answers: &[json(200, "the number of deleted payloads", schema::pruned)],
        problems: &[Code::InsufficientStorage],
        ..post("/v1/outbox/prune", "Deletes payloads; ids and fingerprints stay", |call| {
            Box::pin(outbox::prune(call))
        })
    },
    Route {
        name: "peer_list",
        query: &[
            Field::new("after", NAME, "only members after the one with this member_id"),
            LIMIT,
        ],
        answers: &[json(200, "members, and whether they are online", schema::peers)],
        ..get("/v1/peers", "Lists the mesh's members", |call| Box::pin(mesh::peers(call)))
    },
    Route {
        name: "peer_refresh",
        answers: &[json(200, "the number of members", schema::refreshed)],
        problems: REFUSALS_OR_FULL,
        ..post("/v1/peers/refresh", "Refreshes the list of members from the broker", |call| {
            Box::pin(mesh::peers_refresh(call))
        })
    },
    Route {
        name: "profile_set",
        body: &[
            Field::new("summary", SHORT, "what this member does"),
            Field::new("status", SHORT, "this member's current state"),
        ],
        answers: &[json(200, "the broker has stored it", schema::done)],
        problems: REFUSALS,
        ..post("/v1/profile", "Changes this member's profile", |call| Box::pin(mesh::profile(call)))
    },
    Route {
        name: "topic_create",
        body: &[TOPIC],
        answers: &[json(200, "the topic", schema::topic)],
        problems: REFUSALS,
        ..post("/v1/topic/create", "Makes a topic", |call| Box::pin(mesh::topic_create(call)))
    },
    Route {
        name: "topic_subscribe",
        body: &[TOPIC],
        answers: &[json(200, "the topic", schema::topic)],
        problems: REFUSALS,
        ..post("/v1/topic/subscribe", "Subscribes to a topic", |call| {
            Box::pin(mesh::topic_subscribe(call))
        })
    },
    Route {
        name: "topic_unsubscribe",
        body: &[TOPIC],
        answers: &[json(200, "the topic", schema::topic)],
        problems: REFUSALS,
        ..post("/v1/topic/unsubscribe", "Unsubscribes from a topic", |call| {
            Box::pin(mesh::topic_unsubscribe(call))
        })
    },
    Route {
        name: "topic_delete",
        body: &[
            TOPIC,
            Field::new("confirm", Kind::Flag, "delete it even if other members subscribe to it"),
        ],
        answers: &[json(200, "it was deleted", schema::done)],
        problems: REFUSALS,
        ..post("/v1/topic/delete", "Deletes a topic", |call| Box::pin(mesh::topic_delete(call)))
    },
    Route {
        name: "topic_list",
        query: BY_NAME,
        answers: &[json(200, "topics by name", schema::topics)],
        problems: REFUSALS,
        ..get("/v1/topic/list", "Lists topics", |call| Box::pin(mesh::topic_list(call)))
    },
    Route {
        name: "queue_create",
        body: &[QUEUE],
        answers: &[json(200, "the queue", schema::queue)],
        problems: REFUSALS,
        ..post("/v1/queue/create", "Makes a queue", |call| Box::pin(mesh::queue_create(call)))
    },
    Route {
        name: "queue_delete",
        body: &[QUEUE, Field::new("discard", Kind::Flag, "discard the work in the queue")],
        answers: &[json(200, "it was deleted", schema::done)],
        problems: REFUSALS,
        ..post("/v1/queue/delete", "Deletes a queue", |call| Box::pin(mesh::queue_delete(call)))
    },
    Route {
        name: "queue_list",
        query: BY_NAME,
        answers: &[json(200, "queues by name", schema::queues)],
        problems: REFUSALS,
        ..get("/v1/queue/list", "Lists queues", |call| Box::pin(mesh::queue_list(call)))
    },
    Route {
        name: "queue_take",
        body: &[
            QUEUE,
            Field::new(
                "max",
                Kind::Number { min: 1, max: QUEUE_TAKE_MAX.cast_signed() },
                "at most this many messages; default: one",
            ),
            Field::new(
                "lease_ms",
                Kind::Number { min: 1, max: LEASE_MS_MAX.cast_signed() },
                "time in which the work must be acknowledged",
            ),
        ],
        answers: &[json(200, "the leased work", schema::taken)],
        problems: REFUSALS,
        ..post("/v1/queue/take", "Takes work from a queue", |call| Box::pin(queue::take(call)))
    },
    Route {
        name: "queue_ack",
        body: &[
            QUEUE,
            Field::needed(
                "seqs",
                Kind::Numbers { items_max: QUEUE_ACK_SEQS_MAX },
                "numbers of the messages that are done",
            ),
        ],
        answers: &[json(200, "numbers of the messages that left the queue", schema::acked)],
        problems: REFUSALS,
        ..post("/v1/queue/ack", "Acknowledges work", |call| Box::pin(queue::ack(call)))
    },
    Route {
        name: "mesh_invite",
        body: &[
            Field::new("uses", INVITE_USES, "how often the invite can be used (default: once)"),
            Field::new(
                "ttl_s",
                INVITE_TTL,
                "how many seconds the invite is valid (default: a day)",
            ),
        ],
        answers: &[json(200, "the invite", schema::invite)],
        problems: REFUSALS,
        ..post("/v1/mesh/invite", "Makes an invite", |call| Box::pin(mesh::invite(call)))
    },
    Route {
        name: "mesh_leave",
        answers: &[json(200, "this member has left", schema::done)],
        problems: REFUSALS,
        ..post("/v1/mesh/leave", "Leaves the mesh for good", |call| Box::pin(mesh::leave(call)))
    },
    Route {
        name: "member_revoke",
        body: &[Field::needed("pubkey", NAME, "public key of the member")],
        answers: &[json(200, "the member was revoked", schema::done)],
        problems: REFUSALS,
        ..post("/v1/member/revoke", "Revokes a member", |call| Box::pin(mesh::revoke(call)))
    },
    Route {
        name: "event_stream",
        headers: &[LAST_EVENT_ID],
        query: &[
            AFTER,
            Field::new("kinds", SHORT, "only these kinds of events, separated by commas"),
        ],
        answers: &[Answer::events("events from now on, or after the named event")],
        problems: &[Code::TooManyStreams, Code::InsufficientStorage],
        ..get("/v1/events", "Streams events", |call| Box::pin(events::stream(call)))
    },
    Route {
        name: "health",
        answers: &[json(200, "the daemon's state", schema::health)],
        ..get("/v1/health", "Shows the daemon's state", |call| Box::pin(about::health(call)))
    },
    Route {
        name: "version",
        answers: &[json(200, "the daemon's version and features", schema::version)],
        ..get("/v1/version", "Shows the daemon's version", |call| Box::pin(about::version(call)))
    },
    Route {
        name: "compat",
        answers: &[json(200, "the compatible versions", schema::compat)],
        ..get("/v1/compat", "Shows the versions that the daemon is compatible with", |call| {
            Box::pin(about::compat(call))
        })
    },
    Route {
        name: "metrics",
        answers: &[Answer {
            status: 200,
            content: metrics::CONTENT,
            about: "OpenMetrics",
            schema: schema::plain,
        }],
        ..get("/v1/metrics", "Shows metrics", |call| Box::pin(about::metrics(call)))
    },
    Route {
        name: "openapi",
        answers: &[json(200, "OpenAPI 3.1", semel_api::schema::openapi)],
        ..get("/v1/openapi.json", "This document", |call| Box::pin(about::openapi_json(call)))
    },
    Route {
        name: "token_rotate",
        answers: &[json(200, "how long the old token stays valid", schema::rotated)],
        problems: &[Code::SocketOnly],
        ..post("/v1/token/rotate", "Replaces the token for TCP; only over the socket", |call| {
            Box::pin(about::rotate_token(call))
        })
    },
    Route {
        name: "heartbeat",
        answers: &[json(200, "the daemon runs", schema::heartbeat)],
        ..post("/v1/heartbeat", "Checks that the daemon runs", |call| {
            Box::pin(about::heartbeat(call))
        })
    },
];
