-- Lists of words are written with OR: for IN with more than two, SQLite makes a table of its own each
-- time that it checks one row.
--
-- A table without row ids keeps whole rows in every page of its tree. Long rows under random keys have
-- row ids instead: they are appended, and the tree of their keys is small and flat.

-- The effect axis: a logical request that has a row here has happened, and never can again. There is
-- no column by which a row could expire, and no row is ever deleted.
CREATE TABLE effect_key (
    logical_request_key BLOB  NOT NULL PRIMARY KEY CHECK (length(logical_request_key) = 32),
    replay_key          BLOB  NOT NULL UNIQUE CHECK (length(replay_key) = 32),
    protocol_version    INTEGER NOT NULL,
    domain              TEXT NOT NULL,
    operation           TEXT NOT NULL,
    canonical_target    TEXT NOT NULL,
    artifact_hash       BLOB  NOT NULL CHECK (length(artifact_hash) = 32),
    owner_binding       TEXT NOT NULL,
    run_id              TEXT NOT NULL,
    authorization_nonce BLOB  NOT NULL,
    consumed_at         INTEGER NOT NULL,
    -- Of a compensation, what it undoes: once, whoever asks for it and with whatever.
    compensates         TEXT UNIQUE,
    CONSTRAINT compensates_iff_compensation
        CHECK ((operation = 'compensate') = (compensates IS NOT NULL)),
    CONSTRAINT compensates_its_target CHECK (compensates = canonical_target)
) STRICT;

-- The authorisation axis, of its own: a nonce that has a row here was used.
CREATE TABLE nonce_use (
    authorization_nonce BLOB  NOT NULL PRIMARY KEY CHECK (length(authorization_nonce) = 16),
    logical_request_key BLOB  NOT NULL,
    issuer              BLOB  NOT NULL,
    used_at             INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What an exact retry is told, byte for byte. Inert: nothing here makes anything happen.
CREATE TABLE registration (
    logical_request_key BLOB  NOT NULL PRIMARY KEY,
    attempt_id          TEXT NOT NULL,
    result              BLOB  NOT NULL,
    registered_at       INTEGER NOT NULL
) STRICT;

-- Whose grants count where.
CREATE TABLE authority (
    domain     TEXT NOT NULL,
    pubkey     BLOB  NOT NULL CHECK (length(pubkey) = 32),
    trusted_at INTEGER NOT NULL,
    PRIMARY KEY (domain, pubkey)
) STRICT, WITHOUT ROWID;

-- What the local authority has issued, so that an operator can list and revoke it.
CREATE TABLE grant_issued (
    authorization_nonce BLOB  NOT NULL PRIMARY KEY,
    domain              TEXT NOT NULL,
    logical_request_key BLOB  NOT NULL,
    not_before          INTEGER NOT NULL,
    not_after           INTEGER NOT NULL,
    issuer              BLOB  NOT NULL,
    issued_at           INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- GRANT_LIST.
CREATE INDEX grant_issued_domain ON grant_issued (domain, authorization_nonce);

-- SWEEP_GRANTS.
CREATE INDEX grant_issued_end ON grant_issued (not_after);

CREATE TABLE grant_revoked (
    authorization_nonce BLOB  NOT NULL PRIMARY KEY,
    revoked_at          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The last line of a domain is its state; all of them are its audit.
CREATE TABLE gate (
    entry  INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    domain TEXT NOT NULL,
    action TEXT NOT NULL CHECK (action IN ('open', 'hold')),
    at     INTEGER NOT NULL
) STRICT;

-- FACTS, GATE_SHOW.
CREATE INDEX gate_domain ON gate (domain, entry);

-- The ledger of attempts. An attempt that was begun is open until another line closes it.
CREATE TABLE attempt (
    entry               INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    event               TEXT NOT NULL
        CHECK (event = 'started' OR event = 'closed' OR event = 'answered'),
    logical_request_key BLOB  NOT NULL,
    attempt_id          TEXT NOT NULL,
    closes              INTEGER UNIQUE,
    outcome             TEXT,
    at                  INTEGER NOT NULL,
    CONSTRAINT closes_iff_closed CHECK ((event = 'closed') = (closes IS NOT NULL)),
    CONSTRAINT outcome_iff_ended CHECK ((event = 'started') = (outcome IS NULL))
) STRICT;

-- FACTS, RESOLVE: the open attempts of a key.
CREATE INDEX attempt_started ON attempt (logical_request_key, entry) WHERE event = 'started';

-- What was refused, written outside the transaction that was rolled back.
CREATE TABLE failure_audit (
    entry               INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    domain              TEXT NOT NULL,
    logical_request_key BLOB  NOT NULL,
    authorization_nonce BLOB  NOT NULL,
    attempt_id          TEXT NOT NULL,
    outcome             TEXT NOT NULL,
    at                  INTEGER NOT NULL
) STRICT;

-- A verdict flags an effect; it never frees its key.
CREATE TABLE verification (
    logical_request_key BLOB  NOT NULL PRIMARY KEY,
    verdict             TEXT NOT NULL CHECK (verdict IN ('passed', 'failed')),
    note                TEXT NOT NULL,
    at                  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What may be forgotten: lines of the ledgers that are older than the last line here says, which is a
-- day and more ago. Nothing that was used is in a ledger.
CREATE TABLE sweep (
    entry  INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    before INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    CONSTRAINT a_day_and_more_ago CHECK (before <= at - 86400000)
) STRICT;

-- Append-only: what was written stays as it was written.
CREATE TRIGGER effect_key_no_update BEFORE UPDATE ON effect_key
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER effect_key_no_delete BEFORE DELETE ON effect_key
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER nonce_use_no_update BEFORE UPDATE ON nonce_use
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER nonce_use_no_delete BEFORE DELETE ON nonce_use
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER registration_no_update BEFORE UPDATE ON registration
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER registration_no_delete BEFORE DELETE ON registration
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER authority_no_update BEFORE UPDATE ON authority
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER authority_no_delete BEFORE DELETE ON authority
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER grant_issued_no_update BEFORE UPDATE ON grant_issued
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER grant_revoked_no_update BEFORE UPDATE ON grant_revoked
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER grant_revoked_no_delete BEFORE DELETE ON grant_revoked
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER gate_no_update BEFORE UPDATE ON gate
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER gate_no_delete BEFORE DELETE ON gate
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER attempt_no_update BEFORE UPDATE ON attempt
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER failure_audit_no_update BEFORE UPDATE ON failure_audit
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER verification_no_update BEFORE UPDATE ON verification
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER verification_no_delete BEFORE DELETE ON verification
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER sweep_no_update BEFORE UPDATE ON sweep
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER sweep_no_delete BEFORE DELETE ON sweep
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;

-- REPLACE deletes what is in its way without asking the triggers above, unless a connection wants it
-- to: whatever has a key that is there is refused before that.
CREATE TRIGGER effect_key_no_replace BEFORE INSERT ON effect_key
  WHEN EXISTS (SELECT 1 FROM effect_key AS old WHERE old.logical_request_key = NEW.logical_request_key)
    OR EXISTS (SELECT 1 FROM effect_key AS old WHERE old.replay_key = NEW.replay_key)
    OR EXISTS (SELECT 1 FROM effect_key AS old WHERE old.compensates = NEW.compensates)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER nonce_use_no_replace BEFORE INSERT ON nonce_use
  WHEN EXISTS (SELECT 1 FROM nonce_use AS old WHERE old.authorization_nonce = NEW.authorization_nonce)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER registration_no_replace BEFORE INSERT ON registration
  WHEN EXISTS (SELECT 1 FROM registration AS old WHERE old.logical_request_key = NEW.logical_request_key)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER authority_no_replace BEFORE INSERT ON authority
  WHEN EXISTS (SELECT 1 FROM authority AS old
                WHERE old.domain = NEW.domain AND old.pubkey = NEW.pubkey)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER grant_issued_no_replace BEFORE INSERT ON grant_issued
  WHEN EXISTS (SELECT 1 FROM grant_issued AS old WHERE old.authorization_nonce = NEW.authorization_nonce)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER grant_revoked_no_replace BEFORE INSERT ON grant_revoked
  WHEN EXISTS (SELECT 1 FROM grant_revoked AS old WHERE old.authorization_nonce = NEW.authorization_nonce)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER gate_no_replace BEFORE INSERT ON gate
  WHEN EXISTS (SELECT 1 FROM gate AS old WHERE old.entry = NEW.entry)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER attempt_no_replace BEFORE INSERT ON attempt
  WHEN EXISTS (SELECT 1 FROM attempt AS old WHERE old.entry = NEW.entry)
    OR EXISTS (SELECT 1 FROM attempt AS old WHERE old.closes = NEW.closes)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER failure_audit_no_replace BEFORE INSERT ON failure_audit
  WHEN EXISTS (SELECT 1 FROM failure_audit AS old WHERE old.entry = NEW.entry)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER verification_no_replace BEFORE INSERT ON verification
  WHEN EXISTS (SELECT 1 FROM verification AS old WHERE old.logical_request_key = NEW.logical_request_key)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER sweep_no_replace BEFORE INSERT ON sweep
  WHEN EXISTS (SELECT 1 FROM sweep AS old WHERE old.entry = NEW.entry)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;

-- The ledgers: what is too young, and what still says something, stays. An attempt that is open stays,
-- and its end stays for as long as its beginning does.
CREATE TRIGGER attempt_no_delete BEFORE DELETE ON attempt
  WHEN OLD.at >= coalesce((SELECT sweep.before FROM sweep ORDER BY sweep.entry DESC LIMIT 1), OLD.at)
    OR (OLD.event = 'started'
        AND NOT EXISTS (SELECT 1 FROM attempt AS closing WHERE closing.closes = OLD.entry))
    OR (OLD.event = 'closed'
        AND EXISTS (SELECT 1 FROM attempt AS started WHERE started.entry = OLD.closes))
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER failure_audit_no_delete BEFORE DELETE ON failure_audit
  WHEN OLD.at >= coalesce((SELECT sweep.before FROM sweep ORDER BY sweep.entry DESC LIMIT 1), OLD.at)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
CREATE TRIGGER grant_issued_no_delete BEFORE DELETE ON grant_issued
  WHEN max(OLD.issued_at, OLD.not_after)
       >= coalesce((SELECT sweep.before FROM sweep ORDER BY sweep.entry DESC LIMIT 1), OLD.not_after)
 BEGIN SELECT RAISE(ABORT, 'the registrar''s rows are never changed'); END;
