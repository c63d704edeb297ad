-- Differs from sqlite: a schema of its own, native UUID and BOOLEAN, and epochs from a sequence,
-- which never repeats and which no transaction holds up.
CREATE SCHEMA mesh;

CREATE SEQUENCE mesh.session_epoch;

-- The time by which leases and heartbeats are given and compared: brokers' clocks differ, and step.
CREATE FUNCTION mesh.now_ms() RETURNS BIGINT LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT (EXTRACT(EPOCH FROM statement_timestamp()) * 1000)::bigint $$;

-- One row: what this store is.
CREATE TABLE mesh.store (
    one         BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    store_epoch TEXT   NOT NULL
);

CREATE TABLE mesh.mesh (
    mesh_id                  UUID    NOT NULL PRIMARY KEY,
    slug                     TEXT    NOT NULL UNIQUE,
    created_at               BIGINT NOT NULL,
    clone_concurrency_policy TEXT    NOT NULL DEFAULT 'prefer_newest'
        CHECK (clone_concurrency_policy IN ('prefer_newest', 'prefer_oldest', 'allow_concurrent')),
    dedupe_mode              TEXT    NOT NULL DEFAULT 'retention_scoped'
        CHECK (dedupe_mode IN ('retention_scoped', 'permanent')),
    dedupe_retention_days    BIGINT NOT NULL DEFAULT 365 CHECK (dedupe_retention_days >= 3),
    -- Ids of sends that were queued before this may be forgotten: raising the retention does not
    -- bring back what was swept while it was lower.
    dedupe_known_since       BIGINT NOT NULL DEFAULT 0,
    message_retention_days   BIGINT NOT NULL DEFAULT 90 CHECK (message_retention_days >= 1),
    rate_limit               BIGINT NOT NULL DEFAULT 6000 CHECK (rate_limit >= 1),
    rate_window_ms           BIGINT NOT NULL DEFAULT 60000 CHECK (rate_window_ms >= 1),
    inline_bytes             BIGINT NOT NULL DEFAULT 65536 CHECK (inline_bytes >= 1024),
    blob_bytes               BIGINT NOT NULL DEFAULT 524288000 CHECK (blob_bytes >= 1024),
    -- The next history number. Taken last in every accept.
    next_seq                 BIGINT NOT NULL DEFAULT 1
);

CREATE TABLE mesh.member (
    mesh_id   UUID    NOT NULL,
    member_id UUID    NOT NULL,
    name      TEXT    NOT NULL,
    role      TEXT    NOT NULL CHECK (role IN ('owner', 'member')),
    status    TEXT    NOT NULL CHECK (status IN ('active', 'revoked', 'left')),
    joined_at BIGINT NOT NULL,
    -- What it says of itself: a JSON object of at most 4096 bytes.
    profile   TEXT    NOT NULL DEFAULT '{}' CHECK (length(profile) <= 4096),
    -- The invite that let it in, so that the same join again is the same member.
    joined_by BYTEA   CHECK (length(joined_by) = 32),
    PRIMARY KEY (mesh_id, member_id)
);

CREATE TABLE mesh.member_key (
    mesh_id    UUID    NOT NULL,
    key_id     TEXT    NOT NULL,
    member_id  UUID    NOT NULL,
    -- 64 lower-case hexadecimal digits, as a dm names it.
    pubkey     TEXT    NOT NULL,
    status     TEXT    NOT NULL CHECK (status IN ('current', 'rotated_out', 'revoked')),
    created_at BIGINT NOT NULL,
    PRIMARY KEY (mesh_id, key_id),
    -- A dm's recipient, and the member behind a hello.
    UNIQUE (mesh_id, pubkey)
);

-- A member has one key that is not rotated out: the sender of a delivery is shown by it, also when
-- the sender was revoked since.
CREATE UNIQUE INDEX member_key_shown
    ON mesh.member_key (mesh_id, member_id) WHERE status <> 'rotated_out';

-- A member that ends must leave an owner behind.
CREATE INDEX member_owner
    ON mesh.member (mesh_id, member_id) WHERE role = 'owner' AND status = 'active';

-- Nobody who comes later is called like somebody who is there. Who has left gives its name back.
-- Differs from sqlite: said so that no plan reads members by it, who are looked for by their keys.
CREATE UNIQUE INDEX member_name
    ON mesh.member (mesh_id, name) WHERE status || '' = 'active';

-- Only the hash of a token is here: who reads the store cannot join with it.
CREATE TABLE mesh.invite (
    mesh_id    UUID    NOT NULL,
    token_hash BYTEA   NOT NULL CHECK (length(token_hash) = 32),
    role       TEXT    NOT NULL CHECK (role IN ('owner', 'member')),
    uses_left  BIGINT NOT NULL CHECK (uses_left >= 0),
    expires_at BIGINT NOT NULL,
    -- NULL for the broker's operator.
    created_by UUID   ,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (mesh_id, token_hash)
);

-- The sweep of invites that have ended.
CREATE INDEX invite_expires
    ON mesh.invite (expires_at);

-- How many of a mesh have not.
CREATE INDEX invite_open
    ON mesh.invite (mesh_id, expires_at);

-- Nonces of signed requests, for as long as their time could pass.
CREATE TABLE mesh.request_nonce (
    mesh_id    UUID    NOT NULL,
    pubkey     TEXT    NOT NULL,
    nonce      BYTEA   NOT NULL CHECK (length(nonce) = 16),
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (mesh_id, pubkey, nonce)
);

-- The sweep of nonces that are over.
CREATE INDEX request_nonce_expires
    ON mesh.request_nonce (expires_at);

-- Heartbeats are in another table: they must not touch the row that accepts lock. A row stays when
-- its connection ends: members and their daemons are few.
CREATE TABLE mesh.session (
    mesh_id       UUID    NOT NULL,
    member_id     UUID    NOT NULL,
    instance_id   UUID    NOT NULL,
    session_epoch BIGINT  NOT NULL,
    broker_id     UUID    NOT NULL,
    -- Of the hello that raised the epoch: whoever it replaced is told.
    hello_nonce   BYTEA   NOT NULL CHECK (length(hello_nonce) = 16),
    PRIMARY KEY (mesh_id, member_id, instance_id)
);

-- Who is connected to any broker: the row goes when the connection ends, or when its heartbeat is
-- too old.
CREATE TABLE mesh.presence (
    mesh_id          UUID    NOT NULL,
    member_id        UUID    NOT NULL,
    instance_id      UUID    NOT NULL,
    session_epoch    BIGINT  NOT NULL,
    broker_id        UUID    NOT NULL,
    host_fingerprint BYTEA   CHECK (length(host_fingerprint) = 32),
    heartbeat_at     BIGINT  NOT NULL,
    -- Where several daemons of a member get every delivery: what this one has.
    acked_seq        BIGINT  NOT NULL DEFAULT 0,
    PRIMARY KEY (mesh_id, member_id, instance_id)
);

-- GHOSTS: rows of brokers that have died.
CREATE INDEX presence_heartbeat
    ON mesh.presence (heartbeat_at);

-- Daemons that must never be heard again, for ever. Only moving a folder to another host makes one.
CREATE TABLE mesh.retired_instance (
    mesh_id     UUID    NOT NULL,
    member_id   UUID    NOT NULL,
    instance_id UUID    NOT NULL,
    retired_at  BIGINT  NOT NULL,
    PRIMARY KEY (mesh_id, member_id, instance_id)
);

CREATE TABLE mesh.topic (
    mesh_id    UUID    NOT NULL,
    name       TEXT    NOT NULL,
    created_at BIGINT NOT NULL,
    -- Who may delete it besides owners; NULL for the broker's operator.
    created_by UUID,
    PRIMARY KEY (mesh_id, name)
);

-- TOPICS_OF_MEMBER_FULL: how many a member has made.
CREATE INDEX topic_created_by
    ON mesh.topic (mesh_id, created_by) WHERE created_by IS NOT NULL;

CREATE TABLE mesh.topic_subscription (
    mesh_id   UUID NOT NULL,
    topic     TEXT NOT NULL,
    member_id UUID NOT NULL,
    -- What history had next when it began: what was before is not for this member.
    from_seq  BIGINT NOT NULL,
    PRIMARY KEY (mesh_id, topic, member_id)
);

CREATE TABLE mesh.queue (
    mesh_id    UUID    NOT NULL,
    name       TEXT    NOT NULL,
    -- Stands for the queue where a member would stand as a recipient.
    queue_id   UUID    NOT NULL,
    created_at BIGINT NOT NULL,
    -- Who may delete it besides owners; NULL for the broker's operator.
    created_by UUID,
    PRIMARY KEY (mesh_id, name)
);

-- QUEUES_OF_MEMBER_FULL: how many a member has made.
CREATE INDEX queue_created_by
    ON mesh.queue (mesh_id, created_by) WHERE created_by IS NOT NULL;

CREATE TABLE mesh.client_message_dedupe (
    mesh_id             UUID    NOT NULL,
    sender_member_id    UUID    NOT NULL,
    client_message_id   TEXT    NOT NULL,
    broker_message_id   UUID    NOT NULL,
    request_fingerprint BYTEA    NOT NULL CHECK (length(request_fingerprint) = 32),
    destination_kind    TEXT    NOT NULL CHECK (destination_kind IN ('topic', 'dm', 'queue')),
    destination_ref     TEXT    NOT NULL,
    first_seen_at       BIGINT NOT NULL,
    -- NULL for ever.
    expires_at          BIGINT,
    history_available   BOOLEAN NOT NULL DEFAULT TRUE,
    PRIMARY KEY (mesh_id, sender_member_id, client_message_id)
);

-- The sweep of what has expired.
CREATE INDEX client_message_dedupe_expires
    ON mesh.client_message_dedupe (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE mesh.topic_message (
    mesh_id           UUID    NOT NULL,
    broker_message_id UUID    NOT NULL,
    sender_member_id  UUID    NOT NULL,
    client_message_id TEXT    NOT NULL,
    topic             TEXT    NOT NULL,
    reply_to_id       TEXT,
    priority          SMALLINT NOT NULL CHECK (priority BETWEEN 0 AND 2),
    meta              TEXT    NOT NULL,
    body              BYTEA    NOT NULL,
    -- Of the accepted request: by it is known that nothing else was changed since.
    request_fingerprint BYTEA NOT NULL CHECK (length(request_fingerprint) = 32),
    body_commitment   BYTEA    CHECK (length(body_commitment) = 32),
    accepted_at       BIGINT NOT NULL,
    PRIMARY KEY (mesh_id, broker_message_id)
);

CREATE TABLE mesh.message_queue (
    mesh_id           UUID    NOT NULL,
    broker_message_id UUID    NOT NULL,
    sender_member_id  UUID    NOT NULL,
    client_message_id TEXT    NOT NULL,
    destination_kind  TEXT    NOT NULL CHECK (destination_kind IN ('dm', 'queue')),
    destination_ref   TEXT    NOT NULL,
    reply_to_id       TEXT,
    priority          SMALLINT NOT NULL CHECK (priority BETWEEN 0 AND 2),
    meta              TEXT    NOT NULL,
    body              BYTEA    NOT NULL,
    -- Of the accepted request: by it is known that nothing else was changed since.
    request_fingerprint BYTEA NOT NULL CHECK (length(request_fingerprint) = 32),
    body_commitment   BYTEA    CHECK (length(body_commitment) = 32),
    accepted_at       BIGINT NOT NULL,
    PRIMARY KEY (mesh_id, broker_message_id)
);

CREATE TABLE mesh.message_history (
    mesh_id           UUID    NOT NULL,
    seq               BIGINT NOT NULL,
    broker_message_id UUID    NOT NULL,
    sender_member_id  UUID    NOT NULL,
    destination_kind  TEXT    NOT NULL CHECK (destination_kind IN ('topic', 'dm', 'queue')),
    PRIMARY KEY (mesh_id, seq),
    -- A duplicate's answer names its history number.
    UNIQUE (mesh_id, broker_message_id)
);

CREATE TABLE mesh.delivery_queue (
    mesh_id     UUID    NOT NULL,
    -- A member, or a queue by its queue_id.
    recipient   UUID    NOT NULL,
    seq         BIGINT NOT NULL,
    leased_by   UUID,
    -- NULL for a member's; of a queue 0 until it is taken, then the end of the last lease.
    lease_until BIGINT,
    attempts    BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (mesh_id, recipient, seq),
    CONSTRAINT lease_is_whole CHECK ((leased_by IS NULL) = (COALESCE(lease_until, 0) = 0))
);

-- A take finds what is over, and what was never taken, without reading what is leased. Only the
-- rows of queues are in it: a member's deliveries are many more, and must not pay for it.
CREATE INDEX delivery_queue_lease
    ON mesh.delivery_queue (mesh_id, recipient, lease_until, seq) WHERE lease_until IS NOT NULL;

-- Deliveries that could not be said to their recipient: kept for a person to look at, for as long
-- as their message. An acknowledgement of later ones must not end them.
CREATE TABLE mesh.delivery_set_aside (
    mesh_id   UUID    NOT NULL,
    recipient UUID    NOT NULL,
    seq       BIGINT  NOT NULL,
    reason    TEXT    NOT NULL,
    at        BIGINT  NOT NULL,
    PRIMARY KEY (mesh_id, recipient, seq)
);

CREATE TABLE mesh.mention_index (
    mesh_id   UUID    NOT NULL,
    member_id UUID    NOT NULL,
    seq       BIGINT NOT NULL,
    PRIMARY KEY (mesh_id, member_id, seq)
);

CREATE TABLE mesh.audit_event (
    mesh_id UUID    NOT NULL,
    id      UUID    NOT NULL,
    at      BIGINT NOT NULL,
    kind    TEXT    NOT NULL,
    detail  TEXT    NOT NULL,
    PRIMARY KEY (mesh_id, id)
);

-- AUDIT_EXPIRED: the oldest first.
CREATE INDEX audit_event_at
    ON mesh.audit_event (at);

-- A statement is planned for any mesh, and the largest one pays for a wrong guess: with a large mesh
-- among many small ones the mean says that a mesh has few rows, and a plan would read all rows of a
-- mesh to find one. This says that a mesh may have them all.
ALTER TABLE mesh.member ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.member_key ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.invite ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.request_nonce ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.session ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.presence ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.retired_instance ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.topic ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.topic_subscription ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.queue ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.client_message_dedupe ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.topic_message ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.message_queue ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.message_history ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.delivery_queue ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.delivery_set_aside ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.mention_index ALTER COLUMN mesh_id SET (n_distinct = 1);
ALTER TABLE mesh.audit_event ALTER COLUMN mesh_id SET (n_distinct = 1);
