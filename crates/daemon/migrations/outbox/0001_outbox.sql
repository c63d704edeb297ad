-- Lists of words are written with OR: for IN with more than two, SQLite makes a table of its own each
-- time that it checks one row.

-- It has a rowid, though it has a key: without one, SQLite keeps whole rows in the inner pages of
-- their tree, and payloads are too long for that.
CREATE TABLE outbox (
    id                  TEXT    NOT NULL PRIMARY KEY,
    client_message_id   TEXT    NOT NULL UNIQUE,
    -- Frozen at accept: what the broker is sent, and what retries are compared with.
    request_fingerprint BLOB    NOT NULL CHECK (length(request_fingerprint) = 32),
    -- NULL once it was pruned; the id, the fingerprint and the status stay for ever.
    payload             BLOB,
    meta                TEXT    NOT NULL,
    -- Those mentioned as the caller wrote them, if there were names among them; meta has their keys.
    mentions_given      TEXT,
    reply_to_id         TEXT,
    -- As the caller wrote it, beside what it was resolved to.
    to_given            TEXT    NOT NULL,
    destination_kind    TEXT    NOT NULL
        CHECK (destination_kind = 'topic' OR destination_kind = 'dm'
               OR destination_kind = 'queue'),
    destination_ref     TEXT    NOT NULL,
    -- 0 now, 1 next, 2 low: as text they would sort wrongly.
    priority            INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 2),
    enqueued_at         INTEGER NOT NULL,
    -- The life of the daemon in which it was accepted (table link): what an earlier life left open
    -- counts as sent, because the mark may have been lost.
    life                INTEGER NOT NULL,
    attempts            INTEGER NOT NULL DEFAULT 0,
    next_attempt_at     INTEGER NOT NULL,
    status              TEXT    NOT NULL
        CHECK (status = 'pending' OR status = 'inflight' OR status = 'done' OR status = 'dead'
               OR status = 'aborted'),
    -- 1 from the first claim on. Never cleared.
    maybe_sent          INTEGER NOT NULL DEFAULT 0 CHECK (maybe_sent IN (0, 1)),
    last_error          TEXT,
    delivered_at        INTEGER,
    outcome             TEXT
        CHECK (outcome = 'refused' OR outcome = 'never_sent' OR outcome = 'unknown'),
    -- The broker has said that it cannot tell any more: it is not asked again.
    too_old             INTEGER NOT NULL DEFAULT 0 CHECK (too_old IN (0, 1)),
    broker_message_id   TEXT,
    history_id          INTEGER,
    aborted_at          INTEGER,
    aborted_by          TEXT    CHECK (aborted_by IN ('operator')),
    superseded_by       TEXT    REFERENCES outbox (id),

    CONSTRAINT delivered_iff_done
        CHECK ((status = 'done') = (delivered_at IS NOT NULL)),
    -- A duplicate whose message retention has taken has no number in history.
    CONSTRAINT broker_ids_iff_done
        CHECK ((status = 'done') = (broker_message_id IS NOT NULL)
           AND (status = 'done' OR history_id IS NULL)),
    CONSTRAINT outcome_of_the_dead
        CHECK (CASE status WHEN 'dead'    THEN outcome IS NOT NULL
                           WHEN 'aborted' THEN 1
                           ELSE outcome IS NULL END),
    CONSTRAINT aborted_with_successor
        CHECK ((status = 'aborted') = (aborted_at IS NOT NULL)
           AND (status = 'aborted') = (aborted_by IS NOT NULL)
           AND (status = 'aborted') = (superseded_by IS NOT NULL))
) STRICT;

-- What is sent next, and what is too old to be sent: ids are in the order of accept.
CREATE INDEX outbox_claim ON outbox (priority, id) WHERE status = 'pending';

-- What a lost connection left on the wire.
CREATE INDEX outbox_inflight ON outbox (id) WHERE status = 'inflight';

-- What failed, for an operator; and what the broker is still to be asked about.
CREATE INDEX outbox_dead ON outbox (id) WHERE status = 'dead';
CREATE INDEX outbox_unknown ON outbox (id)
    WHERE status = 'dead' AND outcome = 'unknown' AND too_old = 0;

-- Payloads that can be pruned, and offered again to a broker that was restored.
CREATE INDEX outbox_kept ON outbox (id) WHERE status = 'done' AND payload IS NOT NULL;

-- The audit of what operators retired.
CREATE INDEX outbox_aborted ON outbox (aborted_at) WHERE status = 'aborted';

-- One row: whose outbox this is, and what is known of the broker's store.
CREATE TABLE link (
    one          INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    -- The daemon that may send these rows (mesh.md §10).
    instance_id  BLOB    NOT NULL CHECK (length(instance_id) = 16),
    -- Instances that owned this outbox before, and that the broker has not retired yet, 16 bytes each.
    retiring     BLOB    NOT NULL DEFAULT x'',
    -- Raised by every start after an unclean stop.
    life         INTEGER NOT NULL,
    -- Rows of lives before this one were accepted by another instance.
    adopted_life INTEGER NOT NULL DEFAULT 0,
    -- For how many days the broker remembers ids, as it said last; 0 is for ever.
    dedupe_days  INTEGER,
    -- On disk before the first send under it.
    store_epoch  TEXT,
    -- Rows before this id may have been sent under an earlier epoch of the broker's store.
    epoch_floor  TEXT    NOT NULL DEFAULT '',
    -- Done rows up to here were offered again after the epoch changed.
    offered_to   TEXT    NOT NULL DEFAULT '',
    -- Everything up to here was in the inbox, of that epoch's history: what an inbox lacks of it is
    -- no news. How far an inbox goes it says itself.
    history_epoch TEXT,
    history_seq  INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Who is in the mesh, as the broker said last: names are resolved also while it is away.
CREATE TABLE peer (
    member_id BLOB NOT NULL PRIMARY KEY CHECK (length(member_id) = 16),
    name      TEXT NOT NULL,
    pubkey    TEXT NOT NULL UNIQUE,
    role      TEXT NOT NULL,
    profile   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX peer_name ON peer (name);
