-- Lists of words are written with OR: for IN with more than two, SQLite makes a table of its own each
-- time that it checks one row.

-- Numbered in the order of arrival, never reused: readers page and resume by it.
CREATE TABLE inbox (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    sender_member_id  BLOB    NOT NULL CHECK (length(sender_member_id) = 16),
    client_message_id TEXT    NOT NULL,
    broker_message_id TEXT    NOT NULL,
    seq               INTEGER NOT NULL,
    destination_kind  TEXT    NOT NULL
        CHECK (destination_kind = 'topic' OR destination_kind = 'dm'
               OR destination_kind = 'queue'),
    -- NULL for what was sent to this member alone.
    topic             TEXT,
    sender_pubkey     TEXT    NOT NULL,
    sender_name       TEXT    NOT NULL,
    priority          INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 2),
    reply_to_id       TEXT,
    meta              TEXT    NOT NULL,
    body              BLOB    NOT NULL,
    accepted_at       INTEGER NOT NULL,
    received_at       INTEGER NOT NULL,
    -- Of everything above but the number and when it was received, as it arrived: what differs from
    -- it was changed since, and is not shown.
    digest            BLOB    NOT NULL CHECK (length(digest) = 32)
) STRICT;

CREATE INDEX inbox_topic ON inbox (topic, id) WHERE topic IS NOT NULL;
CREATE INDEX inbox_sender ON inbox (sender_pubkey, id);

-- Those that somebody has read: nothing else is ever swept.
CREATE TABLE inbox_read (
    inbox_id    INTEGER NOT NULL PRIMARY KEY,
    received_at INTEGER NOT NULL
) STRICT;

-- SWEEP, OLDEST_SIZES.
CREATE INDEX inbox_read_received ON inbox_read (received_at);

-- What has arrived once. A row outlives its message: retention must not make it new again.
CREATE TABLE inbox_key (
    sender_member_id  BLOB    NOT NULL CHECK (length(sender_member_id) = 16),
    client_message_id TEXT    NOT NULL,
    received_at       INTEGER NOT NULL,
    PRIMARY KEY (sender_member_id, client_message_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX inbox_key_received ON inbox_key (received_at);

CREATE VIRTUAL TABLE inbox_fts USING fts5 (
    body, sender_name, topic, content = '', contentless_delete = 1
);

-- One row: messages up to here are in inbox_fts. They are put there many at a time, after they
-- were acknowledged: one at a time, each would be written to the index's own tables by itself.
CREATE TABLE inbox_indexed (
    one      INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    inbox_id INTEGER NOT NULL
) STRICT;

INSERT INTO inbox_indexed (one, inbox_id) VALUES (1, 0);

CREATE TRIGGER inbox_removed AFTER DELETE ON inbox BEGIN
    DELETE FROM inbox_fts WHERE rowid = old.id;
    DELETE FROM inbox_read WHERE inbox_id = old.id;
END;

-- One row, once something came: of that life of the broker's history, everything up to here is in
-- this file or was. It is written with the messages themselves, so that a file that is put back as
-- it was says what it lacks.
CREATE TABLE inbox_extent (
    one         INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    store_epoch TEXT    NOT NULL,
    seq         INTEGER NOT NULL
) STRICT;

-- What happened, in order, for streams that resume. A message is named, not copied.
CREATE TABLE event (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    inbox_id INTEGER,
    -- JSON.
    data     TEXT    NOT NULL
) STRICT;

CREATE INDEX event_at ON event (at);

-- What arrived and could not be taken: kept until somebody has looked at it.
CREATE TABLE set_aside (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    -- Who could not take it.
    source TEXT    NOT NULL CHECK (source = 'link' OR source = 'jobs' OR source = 'inbox'),
    reason TEXT    NOT NULL,
    -- Its number in the mesh's history, where that could be read.
    seq    INTEGER,
    frame  BLOB    NOT NULL,
    -- Of source and frame: what comes again is there already.
    digest BLOB    NOT NULL UNIQUE CHECK (length(digest) = 32)
) STRICT;

-- How far each reader that asked us to remember has read.
CREATE TABLE reader (
    name      TEXT    NOT NULL PRIMARY KEY,
    inbox_id  INTEGER NOT NULL,
    -- If it reads nothing but this topic.
    topic     TEXT,
    at        INTEGER NOT NULL,
    -- What it has read is in inbox_read up to here.
    marked_to INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- BEHIND.
CREATE INDEX reader_behind ON reader (name) WHERE marked_to < inbox_id;

-- READER_BOUND, SWEEP_READERS.
CREATE INDEX reader_at ON reader (at);
