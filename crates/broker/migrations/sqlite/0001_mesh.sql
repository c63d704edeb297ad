-- Lists of words are written with OR: for IN with more than two, SQLite makes a table of its own each
-- time that it checks one row.

-- One row: what this store is, and the one series that session epochs come from.
CREATE TABLE store (
    one                INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    store_epoch        TEXT    NOT NULL,
    next_session_epoch INTEGER NOT NULL DEFAULT 1
) STRICT;

CREATE TABLE mesh (
    mesh_id                  BLOB    NOT NULL PRIMARY KEY,
    slug                     TEXT    NOT NULL UNIQUE,
    created_at               INTEGER NOT NULL,
    clone_concurrency_policy TEXT    NOT NULL DEFAULT 'prefer_newest'
        CHECK (clone_concurrency_policy = 'prefer_newest'
               OR clone_concurrency_policy = 'prefer_oldest'
               OR clone_concurrency_policy = 'allow_concurrent'),
    dedupe_mode              TEXT    NOT NULL DEFAULT 'retention_scoped'
        CHECK (dedupe_mode IN ('retention_scoped', 'permanent')),
    dedupe_retention_days    INTEGER NOT NULL DEFAULT 365 CHECK (dedupe_retention_days >= 3),
    -- Ids of sends that were queued before this may be forgotten: raising the retention does not
    -- bring back what was swept while it was lower.
    dedupe_known_since       INTEGER NOT NULL DEFAULT 0,
    message_retention_days   INTEGER NOT NULL DEFAULT 90 CHECK (message_retention_days >= 1),
    rate_limit               INTEGER NOT NULL DEFAULT 6000 CHECK (rate_limit >= 1),
    rate_window_ms           INTEGER NOT NULL DEFAULT 60000 CHECK (rate_window_ms >= 1),
    inline_bytes             INTEGER NOT NULL DEFAULT 65536 CHECK (inline_bytes >= 1024),
    blob_bytes               INTEGER NOT NULL DEFAULT 524288000 CHECK (blob_bytes >= 1024),
    -- The next history number. Taken last in every accept.
    next_seq                 INTEGER NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;

CREATE TABLE member (
    mesh_id   BLOB    NOT NULL,
    member_id BLOB    NOT NULL,
    name      TEXT    NOT NULL,
    role      TEXT    NOT NULL CHECK (role IN ('owner', 'member')),
    status    TEXT    NOT NULL CHECK (status = 'active' OR status = 'revoked' OR status = 'left'),
    joined_at INTEGER NOT NULL,
    -- What it says of itself: a JSON object of at most 4096 bytes.
    profile   TEXT    NOT NULL DEFAULT '{}' CHECK (length(profile) <= 4096),
    -- The invite that let it in, so that the same join again is the same member.
    joined_by BLOB    CHECK (length(joined_by) = 32),
    PRIMARY KEY (mesh_id, member_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE member_key (
    mesh_id    BLOB    NOT NULL,
    key_id     TEXT    NOT NULL,
    member_id  BLOB    NOT NULL,
    -- 64 lower-case hexadecimal digits, as a dm names it.
    pubkey     TEXT    NOT NULL,
    status     TEXT    NOT NULL
        CHECK (status = 'current' OR status = 'rotated_out' OR status = 'revoked'),
    created_at INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, key_id),
    -- A dm's recipient, and the member behind a hello.
    UNIQUE (mesh_id, pubkey)
) STRICT, WITHOUT ROWID;

-- A member has one key that is not rotated out: the sender of a delivery is shown by it, also when
-- the sender was revoked since.
CREATE UNIQUE INDEX member_key_shown
    ON member_key (mesh_id, member_id) WHERE status <> 'rotated_out';

-- A member that ends must leave an owner behind.
CREATE INDEX member_owner
    ON member (mesh_id, member_id) WHERE role = 'owner' AND status = 'active';

-- Nobody who comes later is called like somebody who is there. Who has left gives its name back.
CREATE UNIQUE INDEX member_name
    ON member (mesh_id, name) WHERE status = 'active';

-- Only the hash of a token is here: who reads the store cannot join with it.
CREATE TABLE invite (
    mesh_id    BLOB    NOT NULL,
    token_hash BLOB    NOT NULL CHECK (length(token_hash) = 32),
    role       TEXT    NOT NULL CHECK (role IN ('owner', 'member')),
    uses_left  INTEGER NOT NULL CHECK (uses_left >= 0),
    expires_at INTEGER NOT NULL,
    -- NULL for the broker's operator.
    created_by BLOB   ,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, token_hash)
) STRICT, WITHOUT ROWID;

-- The sweep of invites that have ended, and how many of a mesh have not.
CREATE INDEX invite_expires
    ON invite (expires_at);

-- Nonces of signed requests, for as long as their time could pass.
CREATE TABLE request_nonce (
    mesh_id    BLOB    NOT NULL,
    pubkey     TEXT    NOT NULL,
    nonce      BLOB    NOT NULL CHECK (length(nonce) = 16),
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, pubkey, nonce)
) STRICT, WITHOUT ROWID;

-- The sweep of nonces that are over.
CREATE INDEX request_nonce_expires
    ON request_nonce (expires_at);

-- Heartbeats are in another table: they must not touch the row that accepts lock. A row stays when
-- its connection ends: members and their daemons are few.
CREATE TABLE session (
    mesh_id       BLOB    NOT NULL,
    member_id     BLOB    NOT NULL,
    instance_id   BLOB    NOT NULL,
    session_epoch INTEGER NOT NULL,
    broker_id     BLOB    NOT NULL,
    -- Of the hello that raised the epoch: whoever it replaced is told.
    hello_nonce   BLOB    NOT NULL CHECK (length(hello_nonce) = 16),
    PRIMARY KEY (mesh_id, member_id, instance_id)
) STRICT, WITHOUT ROWID;

-- Who is connected to any broker: the row goes when the connection ends, or when its heartbeat is
-- too old.
CREATE TABLE presence (
    mesh_id          BLOB    NOT NULL,
    member_id        BLOB    NOT NULL,
    instance_id      BLOB    NOT NULL,
    session_epoch    INTEGER NOT NULL,
    broker_id        BLOB    NOT NULL,
    host_fingerprint BLOB    CHECK (length(host_fingerprint) = 32),
    heartbeat_at     INTEGER NOT NULL,
    -- Where several daemons of a member get every delivery: what this one has.
    acked_seq        INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (mesh_id, member_id, instance_id)
) STRICT, WITHOUT ROWID;

-- GHOSTS: rows of brokers that have died.
CREATE INDEX presence_heartbeat
    ON presence (heartbeat_at);

-- Daemons that must never be heard again, for ever. Only moving a folder to another host makes one.
CREATE TABLE retired_instance (
    mesh_id     BLOB    NOT NULL,
    member_id   BLOB    NOT NULL,
    instance_id BLOB    NOT NULL,
    retired_at  INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, member_id, instance_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE topic (
    mesh_id    BLOB    NOT NULL,
    name       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    -- Who may delete it besides owners; NULL for the broker's operator.
    created_by BLOB,
    PRIMARY KEY (mesh_id, name)
) STRICT, WITHOUT ROWID;

-- TOPICS_OF_MEMBER_FULL: how many a member has made.
CREATE INDEX topic_created_by
    ON topic (mesh_id, created_by) WHERE created_by IS NOT NULL;

CREATE TABLE topic_subscription (
    mesh_id   BLOB NOT NULL,
    topic     TEXT NOT NULL,
    member_id BLOB NOT NULL,
    -- What history had next when it began: what was before is not for this member.
    from_seq  INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, topic, member_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE queue (
    mesh_id    BLOB    NOT NULL,
    name       TEXT    NOT NULL,
    -- Stands for the queue where a member would stand as a recipient.
    queue_id   BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    -- Who may delete it besides owners; NULL for the broker's operator.
    created_by BLOB,
    PRIMARY KEY (mesh_id, name)
) STRICT, WITHOUT ROWID;

-- QUEUES_OF_MEMBER_FULL: how many a member has made.
CREATE INDEX queue_created_by
    ON queue (mesh_id, created_by) WHERE created_by IS NOT NULL;

CREATE TABLE client_message_dedupe (
    mesh_id             BLOB    NOT NULL,
    sender_member_id    BLOB    NOT NULL,
    client_message_id   TEXT    NOT NULL,
    broker_message_id   BLOB    NOT NULL,
    request_fingerprint BLOB    NOT NULL CHECK (length(request_fingerprint) = 32),
    destination_kind    TEXT    NOT NULL
        CHECK (destination_kind = 'topic' OR destination_kind = 'dm'
               OR destination_kind = 'queue'),
    destination_ref     TEXT    NOT NULL,
    first_seen_at       INTEGER NOT NULL,
    -- NULL for ever.
    expires_at          INTEGER,
    history_available   INTEGER NOT NULL DEFAULT 1 CHECK (history_available IN (0, 1)),
    PRIMARY KEY (mesh_id, sender_member_id, client_message_id)
) STRICT, WITHOUT ROWID;

-- The sweep of what has expired.
CREATE INDEX client_message_dedupe_expires
    ON client_message_dedupe (expires_at) WHERE expires_at IS NOT NULL;

-- Messages have a rowid, unlike the rest: without one, SQLite keeps whole rows in the inner pages of
-- their tree, and bodies are too long for that.
CREATE TABLE topic_message (
    mesh_id           BLOB    NOT NULL,
    broker_message_id BLOB    NOT NULL,
    sender_member_id  BLOB    NOT NULL,
    client_message_id TEXT    NOT NULL,
    topic             TEXT    NOT NULL,
    reply_to_id       TEXT,
    priority          INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 2),
    meta              TEXT    NOT NULL,
    body              BLOB    NOT NULL,
    -- Of the accepted request: by it is known that nothing else was changed since.
    request_fingerprint BLOB NOT NULL CHECK (length(request_fingerprint) = 32),
    body_commitment   BLOB    CHECK (length(body_commitment) = 32),
    accepted_at       INTEGER NOT NULL,
    -- Its history number.
    seq               INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, broker_message_id)
) STRICT;

CREATE TABLE message_queue (
    mesh_id           BLOB    NOT NULL,
    broker_message_id BLOB    NOT NULL,
    sender_member_id  BLOB    NOT NULL,
    client_message_id TEXT    NOT NULL,
    destination_kind  TEXT    NOT NULL CHECK (destination_kind IN ('dm', 'queue')),
    destination_ref   TEXT    NOT NULL,
    reply_to_id       TEXT,
    priority          INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 2),
    meta              TEXT    NOT NULL,
    body              BLOB    NOT NULL,
    -- Of the accepted request: by it is known that nothing else was changed since.
    request_fingerprint BLOB NOT NULL CHECK (length(request_fingerprint) = 32),
    body_commitment   BLOB    CHECK (length(body_commitment) = 32),
    accepted_at       INTEGER NOT NULL,
    -- Its history number.
    seq               INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, broker_message_id)
) STRICT;

-- Differs from postgres: a message knows its number, because one writer gives them out before it
-- writes anything. So nothing has to find a number by a message's id, and no accept pays for an
-- index that could.
CREATE TABLE message_history (
    mesh_id           BLOB    NOT NULL,
    seq               INTEGER NOT NULL,
    broker_message_id BLOB    NOT NULL,
    sender_member_id  BLOB    NOT NULL,
    destination_kind  TEXT    NOT NULL
        CHECK (destination_kind = 'topic' OR destination_kind = 'dm'
               OR destination_kind = 'queue'),
    PRIMARY KEY (mesh_id, seq)
) STRICT, WITHOUT ROWID;

-- A number for each that something was ever sent to, as short as it can be: a message to a large
-- topic is a row for each of its subscribers, and costs as many pages as those rows take up.
CREATE TABLE recipient (
    no      INTEGER PRIMARY KEY,
    mesh_id BLOB    NOT NULL,
    -- A member, or a queue by its queue_id.
    id      BLOB    NOT NULL,
    UNIQUE (mesh_id, id)
) STRICT;

CREATE TABLE delivery_queue (
    recipient   INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    leased_by   BLOB,
    -- NULL for a member's; of a queue 0 until it is taken, then the end of the last lease.
    lease_until INTEGER,
    attempts    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (recipient, seq),
    CONSTRAINT lease_is_whole CHECK ((leased_by IS NULL) = (COALESCE(lease_until, 0) = 0))
) STRICT, WITHOUT ROWID;

-- A take finds what is over, and what was never taken, without reading what is leased. Only the
-- rows of queues are in it: a member's deliveries are many more, and must not pay for it.
CREATE INDEX delivery_queue_lease
    ON delivery_queue (recipient, lease_until, seq) WHERE lease_until IS NOT NULL;

-- Deliveries that could not be said to their recipient: kept for a person to look at, for as long
-- as their message. An acknowledgement of later ones must not end them.
CREATE TABLE delivery_set_aside (
    mesh_id   BLOB    NOT NULL,
    recipient BLOB    NOT NULL,
    seq       INTEGER NOT NULL,
    reason    TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, recipient, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE mention_index (
    mesh_id   BLOB    NOT NULL,
    member_id BLOB    NOT NULL,
    seq       INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, member_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_event (
    mesh_id BLOB    NOT NULL,
    id      BLOB    NOT NULL,
    at      INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    detail  TEXT    NOT NULL,
    PRIMARY KEY (mesh_id, id)
) STRICT, WITHOUT ROWID;

-- AUDIT_EXPIRED: the oldest first.
CREATE INDEX audit_event_at
    ON audit_event (at);
