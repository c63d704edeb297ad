CREATE TABLE outbox (
    id                  TEXT    NOT NULL PRIMARY KEY,
    client_message_id   TEXT    NOT NULL UNIQUE,
    -- Frozen at accept: what the broker is sent, and what retries are compared with.
    request_fingerprint BLOB    NOT NULL CHECK (length(request_fingerprint) = 32),
    -- NULL once it was pruned; the id, the fingerprint and the status stay for ever.
    payload             BLOB,
    -- As the caller wrote it, beside what it was resolved to.
    to_given            TEXT    NOT NULL,
    destination_kind    TEXT    NOT NULL CHECK (destination_kind IN ('topic', 'dm', 'queue')),
    destination_ref     TEXT    NOT NULL,
    -- 0 now, 1 next, 2 low: as text they would sort wrongly.
    priority            INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 2),
    enqueued_at         INTEGER NOT NULL,
    attempts            INTEGER NOT NULL DEFAULT 0,
    next_attempt_at     INTEGER NOT NULL,
    status              TEXT    NOT NULL
        CHECK (status IN ('pending', 'inflight', 'done', 'dead', 'aborted')),
    -- 1 from the first claim on, and for every open row after a restart. Never cleared.
    maybe_sent          INTEGER NOT NULL DEFAULT 0 CHECK (maybe_sent IN (0, 1)),
    last_error          TEXT,
    delivered_at        INTEGER,
    outcome             TEXT    CHECK (outcome IN ('refused', 'never_sent', 'unknown')),
    broker_message_id   TEXT,
    history_id          INTEGER,
    aborted_at          INTEGER,
    aborted_by          TEXT    CHECK (aborted_by IN ('operator', 'auto')),
    superseded_by       TEXT    REFERENCES outbox (id),

    CONSTRAINT delivered_iff_done
        CHECK ((status = 'done') = (delivered_at IS NOT NULL)),
    CONSTRAINT broker_ids_iff_done
        CHECK ((status = 'done') = (broker_message_id IS NOT NULL)
           AND (status = 'done') = (history_id IS NOT NULL)),
    CONSTRAINT outcome_of_the_dead
        CHECK (CASE status WHEN 'dead'    THEN outcome IS NOT NULL
                           WHEN 'aborted' THEN 1
                           ELSE outcome IS NULL END),
    CONSTRAINT aborted_with_successor
        CHECK ((status = 'aborted') = (aborted_at IS NOT NULL)
           AND (status = 'aborted') = (aborted_by IS NOT NULL)
           AND (status = 'aborted') = (superseded_by IS NOT NULL))
) STRICT;

-- The sender's claim and the expiry of what grew too old.
CREATE INDEX outbox_due ON outbox (status, next_attempt_at);

-- The audit of what operators retired.
CREATE INDEX outbox_aborted ON outbox (aborted_at) WHERE status = 'aborted';
