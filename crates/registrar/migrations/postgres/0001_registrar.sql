-- Differs from sqlite: a schema of its own, and a function that the triggers share.
CREATE SCHEMA registrar;

-- The effect axis: a logical request that has a row here has happened, and never can again. There is
-- no column by which a row could expire, and no row is ever deleted.
CREATE TABLE registrar.effect_key (
    logical_request_key BYTEA  NOT NULL PRIMARY KEY CHECK (length(logical_request_key) = 32),
    replay_key          BYTEA  NOT NULL UNIQUE CHECK (length(replay_key) = 32),
    protocol_version    BIGINT NOT NULL,
    domain              TEXT NOT NULL,
    operation           TEXT NOT NULL,
    canonical_target    TEXT NOT NULL,
    artifact_hash       BYTEA  NOT NULL CHECK (length(artifact_hash) = 32),
    owner_binding       TEXT NOT NULL,
    run_id              TEXT NOT NULL,
    authorization_nonce BYTEA  NOT NULL,
    consumed_at         BIGINT NOT NULL,
    -- Of a compensation, what it undoes: once, whoever asks for it and with whatever.
    compensates         TEXT UNIQUE,
    CONSTRAINT compensates_iff_compensation
        CHECK ((operation = 'compensate') = (compensates IS NOT NULL)),
    CONSTRAINT compensates_its_target CHECK (compensates = canonical_target)
);

-- The authorisation axis, of its own: a nonce that has a row here was used.
CREATE TABLE registrar.nonce_use (
    authorization_nonce BYTEA  NOT NULL PRIMARY KEY CHECK (length(authorization_nonce) = 16),
    logical_request_key BYTEA  NOT NULL,
    issuer              BYTEA  NOT NULL,
    used_at             BIGINT NOT NULL
);

-- What an exact retry is told, byte for byte. Inert: nothing here makes anything happen.
CREATE TABLE registrar.registration (
    logical_request_key BYTEA  NOT NULL PRIMARY KEY,
    attempt_id          TEXT NOT NULL,
    result              BYTEA  NOT NULL,
    registered_at       BIGINT NOT NULL
);

-- Whose grants count where.
CREATE TABLE registrar.authority (
    domain     TEXT NOT NULL,
    pubkey     BYTEA  NOT NULL CHECK (length(pubkey) = 32),
    trusted_at BIGINT NOT NULL,
    PRIMARY KEY (domain, pubkey)
);

-- What the local authority has issued, so that an operator can list and revoke it.
CREATE TABLE registrar.grant_issued (
    authorization_nonce BYTEA  NOT NULL PRIMARY KEY,
    domain              TEXT NOT NULL,
    logical_request_key BYTEA  NOT NULL,
    not_before          BIGINT NOT NULL,
    not_after           BIGINT NOT NULL,
    issuer              BYTEA  NOT NULL,
    issued_at           BIGINT NOT NULL
);

-- GRANT_LIST.
CREATE INDEX grant_issued_domain ON registrar.grant_issued (domain, authorization_nonce);

-- SWEEP_GRANTS.
CREATE INDEX grant_issued_end ON registrar.grant_issued (not_after);

CREATE TABLE registrar.grant_revoked (
    authorization_nonce BYTEA  NOT NULL PRIMARY KEY,
    revoked_at          BIGINT NOT NULL
);

-- The last line of a domain is its state; all of them are its audit.
CREATE TABLE registrar.gate (
    entry  BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    domain TEXT NOT NULL,
    action TEXT NOT NULL CHECK (action IN ('open', 'hold')),
    at     BIGINT NOT NULL
);

-- FACTS, GATE_SHOW.
CREATE INDEX gate_domain ON registrar.gate (domain, entry);

-- The ledger of attempts. An attempt that was begun is open until another line closes it.
CREATE TABLE registrar.attempt (
    entry               BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event               TEXT NOT NULL CHECK (event IN ('started', 'closed', 'answered')),
    logical_request_key BYTEA  NOT NULL,
    attempt_id          TEXT NOT NULL,
    closes              BIGINT UNIQUE,
    outcome             TEXT,
    at                  BIGINT NOT NULL,
    CONSTRAINT closes_iff_closed CHECK ((event = 'closed') = (closes IS NOT NULL)),
    CONSTRAINT outcome_iff_ended CHECK ((event = 'started') = (outcome IS NULL))
);

-- FACTS, RESOLVE: the open attempts of a key.
CREATE INDEX attempt_started ON registrar.attempt (logical_request_key, entry) WHERE event = 'started';

-- What was refused, written outside the transaction that was rolled back.
CREATE TABLE registrar.failure_audit (
    entry               BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    domain              TEXT NOT NULL,
    logical_request_key BYTEA  NOT NULL,
    authorization_nonce BYTEA  NOT NULL,
    attempt_id          TEXT NOT NULL,
    outcome             TEXT NOT NULL,
    at                  BIGINT NOT NULL
);

-- A verdict flags an effect; it never frees its key.
CREATE TABLE registrar.verification (
    logical_request_key BYTEA  NOT NULL PRIMARY KEY,
    verdict             TEXT NOT NULL CHECK (verdict IN ('passed', 'failed')),
    note                TEXT NOT NULL,
    at                  BIGINT NOT NULL
);

-- What may be forgotten: lines of the ledgers that are older than the last line here says, which is a
-- day and more ago. Nothing that was used is in a ledger.
CREATE TABLE registrar.sweep (
    entry  BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    before BIGINT NOT NULL,
    at     BIGINT NOT NULL,
    CONSTRAINT a_day_and_more_ago CHECK (before <= at - 86400000)
);

-- Append-only: what was written stays as it was written.
CREATE FUNCTION registrar.refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the registrar''s rows are never changed'; END $$;

CREATE TRIGGER effect_key_no_change BEFORE UPDATE OR DELETE ON registrar.effect_key
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER effect_key_no_truncate BEFORE TRUNCATE ON registrar.effect_key
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER nonce_use_no_change BEFORE UPDATE OR DELETE ON registrar.nonce_use
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER nonce_use_no_truncate BEFORE TRUNCATE ON registrar.nonce_use
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER registration_no_change BEFORE UPDATE OR DELETE ON registrar.registration
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER registration_no_truncate BEFORE TRUNCATE ON registrar.registration
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER authority_no_change BEFORE UPDATE OR DELETE ON registrar.authority
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER authority_no_truncate BEFORE TRUNCATE ON registrar.authority
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER grant_issued_no_change BEFORE UPDATE ON registrar.grant_issued
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER grant_issued_no_truncate BEFORE TRUNCATE ON registrar.grant_issued
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER grant_revoked_no_change BEFORE UPDATE OR DELETE ON registrar.grant_revoked
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER grant_revoked_no_truncate BEFORE TRUNCATE ON registrar.grant_revoked
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER gate_no_change BEFORE UPDATE OR DELETE ON registrar.gate
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER gate_no_truncate BEFORE TRUNCATE ON registrar.gate
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER attempt_no_change BEFORE UPDATE ON registrar.attempt
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER attempt_no_truncate BEFORE TRUNCATE ON registrar.attempt
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER failure_audit_no_change BEFORE UPDATE ON registrar.failure_audit
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER failure_audit_no_truncate BEFORE TRUNCATE ON registrar.failure_audit
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER verification_no_change BEFORE UPDATE OR DELETE ON registrar.verification
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER verification_no_truncate BEFORE TRUNCATE ON registrar.verification
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER sweep_no_change BEFORE UPDATE OR DELETE ON registrar.sweep
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
CREATE TRIGGER sweep_no_truncate BEFORE TRUNCATE ON registrar.sweep
   FOR EACH STATEMENT EXECUTE FUNCTION registrar.refuse_change();

-- The ledgers: what is too young, and what still says something, stays. An attempt that is open stays,
-- and its end stays for as long as its beginning does. Without a sweep the comparison is with NULL.
CREATE FUNCTION registrar.refuse_unswept_attempt() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    IF OLD.at < (SELECT sweep.before FROM registrar.sweep ORDER BY sweep.entry DESC LIMIT 1)
       AND NOT (OLD.event = 'started'
                AND NOT EXISTS (SELECT 1 FROM registrar.attempt AS closing
                                 WHERE closing.closes = OLD.entry))
       AND NOT (OLD.event = 'closed'
                AND EXISTS (SELECT 1 FROM registrar.attempt AS started
                             WHERE started.entry = OLD.closes)) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the registrar''s rows are never changed';
END $$;
CREATE TRIGGER attempt_no_delete BEFORE DELETE ON registrar.attempt
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_unswept_attempt();

CREATE FUNCTION registrar.refuse_unswept_failure_audit() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    IF OLD.at < (SELECT sweep.before FROM registrar.sweep ORDER BY sweep.entry DESC LIMIT 1) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the registrar''s rows are never changed';
END $$;
CREATE TRIGGER failure_audit_no_delete BEFORE DELETE ON registrar.failure_audit
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_unswept_failure_audit();

CREATE FUNCTION registrar.refuse_unswept_grant_issued() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    IF greatest(OLD.issued_at, OLD.not_after)
       < (SELECT sweep.before FROM registrar.sweep ORDER BY sweep.entry DESC LIMIT 1) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the registrar''s rows are never changed';
END $$;
CREATE TRIGGER grant_issued_no_delete BEFORE DELETE ON registrar.grant_issued
   FOR EACH ROW EXECUTE FUNCTION registrar.refuse_unswept_grant_issued();
