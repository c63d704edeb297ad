-- Lists of words are written with OR: for IN with more than two, SQLite makes a table of its own each
-- time that it checks one row.

-- A job. The columns up to `created_at` never change; the others are its state, written as a whole by
-- whoever holds its fence.
CREATE TABLE job (
    no              INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id              BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
    -- Whose name is in the ids of its executions: its own, or that of the job it repeats.
    root_id         BLOB    NOT NULL CHECK (length(root_id) = 16),
    retry_of        BLOB    CHECK (length(retry_of) = 16),
    parent_id       BLOB    CHECK (length(parent_id) = 16),
    depth           INTEGER NOT NULL,
    source          TEXT    NOT NULL CHECK (source = 'api' OR source = 'mesh' OR source = 'sub_job'
                                OR source = 'retry'),
    priority        INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    conversation    TEXT,
    request         TEXT,
    carries_plan    INTEGER NOT NULL CHECK (carries_plan IN (0, 1)),
    key             TEXT,
    fingerprint     BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    dedup_hash      BLOB    CHECK (length(dedup_hash) = 32),
    created_at      INTEGER NOT NULL,

    plan            TEXT    CHECK (plan IS NULL OR json_valid(plan)),
    plan_no         INTEGER NOT NULL DEFAULT 0,
    status          TEXT    NOT NULL CHECK (status = 'pending' OR status = 'planning'
                                OR status = 'validating' OR status = 'awaiting_approval'
                                OR status = 'executing' OR status = 'completed'
                                OR status = 'failed' OR status = 'cancelled'),
    step_index      INTEGER NOT NULL DEFAULT 0,
    revision_count  INTEGER NOT NULL DEFAULT 0,
    replan_count    INTEGER NOT NULL DEFAULT 0,
    fence           INTEGER NOT NULL DEFAULT 0,
    worker          TEXT,
    deaths          INTEGER NOT NULL DEFAULT 0,
    -- Waits to be claimed for the first time: pending, and the head of its conversation.
    ready           INTEGER NOT NULL CHECK (ready IN (0, 1)),
    -- When it may be claimed again: the end of a lease, of a pause, of a hold.
    due_at          INTEGER,
    -- The breaker that it waits for: `gear.action`, or `gear.action host`.
    held_by         TEXT,
    budget_ms       INTEGER NOT NULL,
    deadline_at     INTEGER,
    question        TEXT    CHECK (question IS NULL OR json_valid(question)),
    expires_at      INTEGER,
    answer          TEXT    CHECK (answer IS NULL OR json_valid(answer)),
    error           TEXT    CHECK (error IS NULL OR json_valid(error)),
    failure_class   TEXT    CHECK (failure_class = 'transient' OR failure_class = 'gear_bug'
                                OR failure_class = 'plan_rejected' OR failure_class = 'user_error'
                                OR failure_class = 'resource_limit'),
    failed_action   TEXT,
    -- Lines in its ledger.
    entries         INTEGER NOT NULL,
    started_at      INTEGER,
    completed_at    INTEGER,
    -- The home in which its files are: only an engine there goes on with it while it lives.
    home            TEXT,
    -- The gear that asked for it, for a step of another job; nothing when a person or a program did.
    asker           TEXT,
    -- The strictest verdict that its plan may go by: the policy's own, or that of a person who was asked.
    consent         TEXT    CHECK (consent = 'approve' OR consent = 'ask'),
    -- What that gear might have done by others, when it asked.
    grants          TEXT    CHECK (grants IS NULL OR json_valid(grants)),

    CONSTRAINT asker_is_a_gear
        CHECK (source = 'retry' OR (source = 'sub_job') = (asker IS NOT NULL)),
    CONSTRAINT grants_are_an_askers CHECK ((asker IS NULL) = (grants IS NULL)),
    CONSTRAINT ready_only_pending CHECK (ready = 0 OR status = 'pending'),
    CONSTRAINT asked_iff_waiting CHECK ((status = 'awaiting_approval') = (question IS NOT NULL)),
    CONSTRAINT expires_iff_waiting CHECK ((status = 'awaiting_approval') = (expires_at IS NOT NULL)),
    CONSTRAINT class_iff_failed CHECK ((status = 'failed') = (failure_class IS NOT NULL)),
    CONSTRAINT ended_iff_terminal
        CHECK ((status = 'completed' OR status = 'failed' OR status = 'cancelled')
               = (completed_at IS NOT NULL)),
    CONSTRAINT ended_has_no_worker CHECK (completed_at IS NULL OR (worker IS NULL AND due_at IS NULL))
) STRICT;

-- READY: flat whatever waits.
CREATE INDEX job_ready ON job (priority, no) WHERE ready = 1;
-- DUE.
CREATE INDEX job_due ON job (due_at) WHERE due_at IS NOT NULL;
-- LIST of what is under way.
CREATE INDEX job_live ON job (no) WHERE completed_at IS NULL;
-- HEAD: the next one of a conversation.
CREATE INDEX job_conversation ON job (conversation, no)
 WHERE conversation IS NOT NULL AND completed_at IS NULL;
-- LIST of a conversation.
CREATE INDEX job_of_conversation ON job (conversation, no) WHERE conversation IS NOT NULL;
-- BY_KEY.
CREATE UNIQUE INDEX job_key ON job (key) WHERE key IS NOT NULL;
-- BY_HASH: at most one under way for equal requests.
CREATE UNIQUE INDEX job_dedup ON job (dedup_hash) WHERE dedup_hash IS NOT NULL AND completed_at IS NULL;
-- One at a time repeats a job: two would run the same executions.
CREATE UNIQUE INDEX job_retry ON job (root_id) WHERE retry_of IS NOT NULL AND completed_at IS NULL;
-- ORPHANS: what gears have asked for, while it is under way.
CREATE INDEX job_parent ON job (parent_id) WHERE parent_id IS NOT NULL AND completed_at IS NULL;
-- OLD: what repeats a job. NEWEST_REPEAT: the last of them.
CREATE INDEX job_root ON job (root_id) WHERE retry_of IS NOT NULL;
-- FAILED: the dead letters of a class.
CREATE INDEX job_failed ON job (failure_class, no) WHERE failure_class IS NOT NULL;
-- PATTERNS: what failed lately.
CREATE INDEX job_failed_lately ON job (completed_at) WHERE failure_class IS NOT NULL;
-- EXPIRED.
CREATE INDEX job_expires ON job (expires_at) WHERE expires_at IS NOT NULL;
-- RELEASE: what waits for a breaker.
CREATE INDEX job_held ON job (held_by) WHERE held_by IS NOT NULL;
-- SWEEP.
CREATE INDEX job_ended ON job (completed_at) WHERE completed_at IS NOT NULL;

-- The execution log: one line per effect, under the id `root_id:step_id`.
CREATE TABLE execution_log (
    root_id          BLOB    NOT NULL,
    step_id          TEXT    NOT NULL,
    -- Who has begun it last.
    job_no           INTEGER NOT NULL,
    plan_no          INTEGER NOT NULL,
    gear             TEXT    NOT NULL,
    action           TEXT    NOT NULL,
    step_fingerprint BLOB    NOT NULL CHECK (length(step_fingerprint) = 32),
    status           TEXT    NOT NULL CHECK (status = 'started' OR status = 'completed'
                                 OR status = 'failed'),
    -- Attempts in this job and plan.
    attempts         INTEGER NOT NULL,
    -- Whether a failure is the gear's own word.
    certain          INTEGER NOT NULL CHECK (certain IN (0, 1)),
    result           TEXT    CHECK (result IS NULL OR json_valid(result)),
    artifact_sha256  BLOB,
    error            TEXT    CHECK (error IS NULL OR json_valid(error)),
    started_at       INTEGER NOT NULL,
    completed_at     INTEGER,
    -- As whom its last attempt acts. Repeated as somebody else it would be another effect.
    via              TEXT,
    PRIMARY KEY (root_id, step_id),
    CONSTRAINT result_iff_completed CHECK ((status = 'completed') = (result IS NOT NULL)),
    CONSTRAINT error_iff_failed CHECK ((status = 'failed') = (error IS NOT NULL)),
    CONSTRAINT ended_iff_not_started CHECK ((status = 'started') = (completed_at IS NULL))
) STRICT, WITHOUT ROWID;

-- What happened to a job, line by line: every attempt, every move, what gears said. Lines are only
-- ever added, under the job's own numbering, so that a reader who comes back misses none. Those of
-- one move share a row; the first line of all is the job itself.
CREATE TABLE ledger (
    job_no  INTEGER NOT NULL,
    -- The number of the last of its lines.
    entry   INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    -- [[event, step_id, detail], …]
    lines   TEXT    NOT NULL CHECK (json_valid(lines)),
    PRIMARY KEY (job_no, entry)
) STRICT, WITHOUT ROWID;

-- What was written stays as it was written, and goes only after its job.
CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger
 BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER ledger_no_replace BEFORE INSERT ON ledger
  WHEN EXISTS (SELECT 1 FROM ledger AS old WHERE old.job_no = NEW.job_no AND old.entry = NEW.entry)
 BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger
  WHEN EXISTS (SELECT 1 FROM job WHERE job.no = OLD.job_no)
 BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;

-- Keys outlive the jobs that were made under them: the same request under the same key is the same job for
-- ever, and another request is refused for ever.
CREATE TABLE spent_key (
    -- What the key is for: names of one kind do not meet those of another.
    scope       TEXT    NOT NULL CHECK (scope = 'job'),
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    job_id      BLOB    NOT NULL CHECK (length(job_id) = 16),
    status      TEXT    NOT NULL
                        CHECK (status = 'completed' OR status = 'failed' OR status = 'cancelled'),
    ended_at    INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

-- One breaker per action, or per action and host, for every engine.
CREATE TABLE breaker (
    action      TEXT    NOT NULL PRIMARY KEY,
    state       TEXT    NOT NULL CHECK (state = 'closed' OR state = 'open' OR state = 'half_open'),
    run_window  TEXT    NOT NULL,
    until       INTEGER NOT NULL,
    open_for_ms INTEGER NOT NULL,
    -- The number of the last probe: only the one that is under way decides.
    probe       INTEGER NOT NULL,
    changed_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The clock by which times that lie ahead were written: how far the calendar was ahead of it when
-- that was last seen to step, and what it said when this machine was started. The next engine begins
-- by setting these times right.
CREATE TABLE clock (
    one      INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    ahead_ms INTEGER NOT NULL,
    -- Which start of which machine; NULL where nobody can say.
    boot     TEXT,
    booted   INTEGER NOT NULL,
    -- How often somebody has asked whether anything can be written: what does not change is not written.
    probed   INTEGER NOT NULL DEFAULT 0
) STRICT;

-- A backup was put in the place of this file. Jobs up to this number may have been repeated after it was made.
CREATE TABLE restored (
    one      INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    until_no INTEGER NOT NULL
) STRICT;
