-- Differs from sqlite: a schema of its own, native UUID, BOOLEAN and JSON (which is checked when it
-- is written and kept byte for byte), and text that is sorted by its bytes.
CREATE SCHEMA jobs;

-- The time by which leases, pauses and deadlines are judged. Differs from sqlite: engines on many hosts
-- share the tables, and their clocks need not agree; the server's is one.
CREATE FUNCTION jobs.now_ms() RETURNS BIGINT LANGUAGE plpgsql STABLE AS
$$ BEGIN
    RETURN (EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint;
END $$;

-- A job. The columns up to `created_at` never change; the others are its state, written as a whole by
-- whoever holds its fence.
CREATE TABLE jobs.job (
    no              BIGINT  NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    id              UUID    NOT NULL UNIQUE,
    -- Whose name is in the ids of its executions: its own, or that of the job it repeats.
    root_id         UUID    NOT NULL,
    retry_of        UUID,
    parent_id       UUID,
    depth           BIGINT  NOT NULL,
    source          TEXT    NOT NULL CHECK (source IN ('api', 'mesh', 'sub_job', 'retry')),
    priority        BIGINT  NOT NULL CHECK (priority BETWEEN 0 AND 3),
    conversation    TEXT,
    request         TEXT,
    carries_plan    BOOLEAN NOT NULL,
    key             TEXT,
    fingerprint     BYTEA   NOT NULL CHECK (length(fingerprint) = 32),
    dedup_hash      BYTEA   CHECK (length(dedup_hash) = 32),
    created_at      BIGINT  NOT NULL,

    plan            JSON,
    plan_no         BIGINT  NOT NULL DEFAULT 0,
    status          TEXT    NOT NULL CHECK (status IN ('pending', 'planning', 'validating',
                                'awaiting_approval', 'executing', 'completed', 'failed',
                                'cancelled')),
    step_index      BIGINT  NOT NULL DEFAULT 0,
    revision_count  BIGINT  NOT NULL DEFAULT 0,
    replan_count    BIGINT  NOT NULL DEFAULT 0,
    fence           BIGINT  NOT NULL DEFAULT 0,
    worker          TEXT,
    deaths          BIGINT  NOT NULL DEFAULT 0,
    -- Waits to be claimed for the first time: pending, and the head of its conversation.
    ready           BOOLEAN NOT NULL,
    -- When it may be claimed again: the end of a lease, of a pause, of a hold.
    due_at          BIGINT,
    -- The breaker that it waits for: `gear.action`, or `gear.action host`.
    held_by         TEXT,
    budget_ms       BIGINT  NOT NULL,
    deadline_at     BIGINT,
    question        JSON,
    expires_at      BIGINT,
    answer          JSON,
    error           JSON,
    failure_class   TEXT    COLLATE "C" CHECK (failure_class IN ('transient', 'gear_bug',
                                'plan_rejected', 'user_error', 'resource_limit')),
    failed_action   TEXT    COLLATE "C",
    -- Lines in its ledger.
    entries         BIGINT  NOT NULL,
    started_at      BIGINT,
    completed_at    BIGINT,
    -- The home in which its files are: only an engine there goes on with it while it lives.
    home            TEXT,
    -- The gear that asked for it, for a step of another job; nothing when a person or a program did.
    asker           TEXT,
    -- The strictest verdict that its plan may go by: the policy's own, or that of a person who was asked.
    consent         TEXT    COLLATE "C" CHECK (consent IN ('approve', 'ask')),
    -- What that gear might have done by others, when it asked.
    grants          JSON,

    CONSTRAINT asker_is_a_gear
        CHECK (source = 'retry' OR (source = 'sub_job') = (asker IS NOT NULL)),
    CONSTRAINT grants_are_an_askers CHECK ((asker IS NULL) = (grants IS NULL)),
    CONSTRAINT ready_only_pending CHECK (NOT ready OR status = 'pending'),
    CONSTRAINT asked_iff_waiting CHECK ((status = 'awaiting_approval') = (question IS NOT NULL)),
    CONSTRAINT expires_iff_waiting CHECK ((status = 'awaiting_approval') = (expires_at IS NOT NULL)),
    CONSTRAINT class_iff_failed CHECK ((status = 'failed') = (failure_class IS NOT NULL)),
    CONSTRAINT ended_iff_terminal
        CHECK ((status IN ('completed', 'failed', 'cancelled')) = (completed_at IS NOT NULL)),
    CONSTRAINT ended_has_no_worker CHECK (completed_at IS NULL OR (worker IS NULL AND due_at IS NULL))
)
-- Room for the next version of a row beside it: a step's move touches no index then.
WITH (fillfactor = 70);

-- CLAIMABLE: flat whatever waits, here or for engines in other homes.
CREATE INDEX job_ready ON jobs.job (COALESCE(home, ''), priority, no) WHERE ready;
CREATE INDEX job_due ON jobs.job (COALESCE(home, ''), due_at, no) WHERE due_at IS NOT NULL;
-- LIST of what is under way. Differs from sqlite: said in other words than in the next one, and the
-- list of a conversation by another collation than its head, so that no plan that was made while the
-- tables were small mistakes one of these indexes for another.
CREATE INDEX job_live ON jobs.job (no)
 WHERE status IN ('pending', 'planning', 'validating', 'awaiting_approval', 'executing');
-- HEAD: the next one of a conversation.
CREATE INDEX job_conversation ON jobs.job (conversation, no)
 WHERE conversation IS NOT NULL AND completed_at IS NULL;
-- LIST of a conversation.
CREATE INDEX job_of_conversation ON jobs.job (conversation COLLATE "C", no) WHERE conversation IS NOT NULL;
-- FACTS: by key.
CREATE UNIQUE INDEX job_key ON jobs.job (key) WHERE key IS NOT NULL;
-- FACTS: at most one under way for equal requests.
CREATE UNIQUE INDEX job_dedup ON jobs.job (dedup_hash)
 WHERE dedup_hash IS NOT NULL AND completed_at IS NULL;
-- One at a time repeats a job: two would run the same executions.
CREATE UNIQUE INDEX job_retry ON jobs.job (root_id) WHERE retry_of IS NOT NULL AND completed_at IS NULL;
-- ORPHANS: what gears have asked for, while it is under way.
CREATE INDEX job_parent ON jobs.job (parent_id) WHERE parent_id IS NOT NULL AND completed_at IS NULL;
-- OLD: what repeats a job. NEWEST_REPEAT: the last of them.
CREATE INDEX job_root ON jobs.job (root_id, no) WHERE retry_of IS NOT NULL;
-- FAILED: the dead letters of a class.
CREATE INDEX job_failed ON jobs.job (failure_class, no) WHERE failure_class IS NOT NULL;
-- PATTERNS: what failed lately.
CREATE INDEX job_failed_lately ON jobs.job (completed_at) WHERE failure_class IS NOT NULL;
-- EXPIRED.
CREATE INDEX job_expires ON jobs.job (expires_at, no) WHERE expires_at IS NOT NULL;
-- RELEASE: what waits for a breaker.
CREATE INDEX job_held ON jobs.job (held_by) WHERE held_by IS NOT NULL;
-- OLD.
CREATE INDEX job_ended ON jobs.job (completed_at, no) WHERE completed_at IS NOT NULL;

-- The execution log: one line per effect, under the id `root_id:step_id`.
CREATE TABLE jobs.execution_log (
    root_id          UUID    NOT NULL,
    step_id          TEXT    COLLATE "C" NOT NULL,
    -- Who has begun it last.
    job_no           BIGINT  NOT NULL,
    plan_no          BIGINT  NOT NULL,
    gear             TEXT    NOT NULL,
    action           TEXT    NOT NULL,
    step_fingerprint BYTEA   NOT NULL CHECK (length(step_fingerprint) = 32),
    status           TEXT    NOT NULL CHECK (status IN ('started', 'completed', 'failed')),
    -- Attempts in this job and plan.
    attempts         BIGINT  NOT NULL,
    -- Whether a failure is the gear's own word.
    certain          BOOLEAN NOT NULL,
    result           JSON,
    artifact_sha256  BYTEA,
    error            JSON,
    started_at       BIGINT  NOT NULL,
    completed_at     BIGINT,
    -- As whom its last attempt acts. Repeated as somebody else it would be another effect.
    via              TEXT,
    PRIMARY KEY (root_id, step_id),
    CONSTRAINT result_iff_completed CHECK ((status = 'completed') = (result IS NOT NULL)),
    CONSTRAINT error_iff_failed CHECK ((status = 'failed') = (error IS NOT NULL)),
    CONSTRAINT ended_iff_not_started CHECK ((status = 'started') = (completed_at IS NULL))
)
WITH (fillfactor = 80);

-- What happened to a job, line by line: every attempt, every move, what gears said. Lines are only
-- ever added, under the job's own numbering, so that a reader who comes back misses none. Those of
-- one move share a row; the first line of all is the job itself.
CREATE TABLE jobs.ledger (
    job_no  BIGINT NOT NULL,
    -- The number of the last of its lines.
    entry   BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    -- [[event, step_id, detail], …]
    lines   JSON   NOT NULL,
    -- The job's fence after the move that they tell of, which nobody else has drawn: whether a move
    -- whose COMMIT got no answer is there is known by it, whatever came later. Differs from sqlite:
    -- there such a commit ends the process.
    fence   BIGINT NOT NULL,
    PRIMARY KEY (job_no, entry)
);

-- What was written stays as it was written, and goes only after its job.
CREATE FUNCTION jobs.refuse_ledger_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    IF TG_OP = 'DELETE' AND NOT EXISTS (SELECT 1 FROM jobs.job WHERE job.no = OLD.job_no) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'a ledger is only added to';
END $$;
CREATE TRIGGER ledger_no_change BEFORE UPDATE OR DELETE ON jobs.ledger
   FOR EACH ROW EXECUTE FUNCTION jobs.refuse_ledger_change();
CREATE TRIGGER ledger_no_truncate BEFORE TRUNCATE ON jobs.ledger
   FOR EACH STATEMENT EXECUTE FUNCTION jobs.refuse_ledger_change();

-- Keys outlive the jobs that were made under them: the same request under the same key is the same job for
-- ever, and another request is refused for ever.
CREATE TABLE jobs.spent_key (
    -- What the key is for: names of one kind do not meet those of another.
    scope       TEXT   NOT NULL CHECK (scope IN ('job')),
    key         TEXT   NOT NULL,
    fingerprint BYTEA  NOT NULL CHECK (length(fingerprint) = 32),
    job_id      UUID   NOT NULL,
    status      TEXT   NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled')),
    ended_at    BIGINT NOT NULL,
    PRIMARY KEY (scope, key)
);

-- One breaker per action, or per action and host, for every engine.
CREATE TABLE jobs.breaker (
    action      TEXT   COLLATE "C" NOT NULL PRIMARY KEY,
    state       TEXT   NOT NULL CHECK (state IN ('closed', 'open', 'half_open')),
    run_window  TEXT   NOT NULL,
    until       BIGINT NOT NULL,
    open_for_ms BIGINT NOT NULL,
    -- The number of the last probe: only the one that is under way decides.
    probe       BIGINT NOT NULL,
    changed_at  BIGINT NOT NULL
);

-- Homes whose engines live or lived lately. Differs from sqlite: there is one.
CREATE TABLE jobs.home (
    id      TEXT   NOT NULL PRIMARY KEY,
    seen_at BIGINT NOT NULL,
    -- What its engine can run: gear.action.
    actions TEXT[] NOT NULL
);
-- OTHERS.
CREATE INDEX home_seen ON jobs.home (seen_at);

-- A backup was put in the place of this database. Jobs up to this number may have been repeated after it was made.
CREATE TABLE jobs.restored (
    one      BOOLEAN NOT NULL PRIMARY KEY CHECK (one),
    until_no BIGINT  NOT NULL
);

-- Ends a transaction that touches other rows than its writer knows of. Differs from sqlite: the
-- server counts, so that the COMMIT may follow in the same round trip.
CREATE FUNCTION jobs.touched(rows BIGINT, told BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS
$$ BEGIN
    IF rows <> told THEN
        RAISE EXCEPTION 'touched % rows, the holder of the fence knows of %', rows, told
              USING ERRCODE = 'data_corrupted';
    END IF;
    RETURN rows;
END $$;
