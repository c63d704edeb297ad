//! Every limit of the job engine in one place.

use std::time::Duration;

/// Bytes of a plan, of parameters, of a result, of a gear's line (jobs.md §11).
pub const DOCUMENT_BYTES_MAX: usize = 1024 * 1024;
/// Lists and objects inside each other in a result: with what stands around it, it can be read by
/// whoever reads no more than 128, as most do.
pub const RESULT_DEPTH_MAX: usize = 64;
/// Bytes of the results of all steps of a job together: they are held while it is under way.
pub const RESULTS_BYTES_MAX: usize = 32 * DOCUMENT_BYTES_MAX;
/// Bytes from which a document is worth a warning.
pub const DOCUMENT_BYTES_WARN: usize = 100 * 1024;
/// Containers inside each other in a plan.
pub const DOCUMENT_DEPTH_MAX: usize = 32;
/// Steps of a plan.
pub const STEPS_MAX: usize = 256;
/// Resources that a step names.
pub const RESOURCES_MAX: usize = 64;
/// Bytes of a name: of a step, a gear, an action, a group, a conversation.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of a request in words.
pub const REQUEST_BYTES_MAX: usize = 100 * 1024;

/// Better plans asked of a planner, for each plan (jobs.md §3).
pub const REVISIONS_MAX: u32 = 3;
/// New plans after a step failed for good.
pub const REPLANS_MAX: u32 = 2;
/// Attempts of a step in one plan.
pub const ATTEMPTS_MAX: u32 = 3;
/// Workers that may die over a job.
pub const DEATHS_MAX: u32 = 3;

/// How long a job may take that says nothing else (jobs.md §6).
pub const JOB_TIMEOUT: Duration = Duration::from_secs(300);
/// How long any job may take.
pub const JOB_TIMEOUT_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How long an action may take that says nothing else (jobs.md §5).
pub const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a person may take to answer.
pub const APPROVAL_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// Between the signal to stop and the end of patience.
pub const GRACE: Duration = Duration::from_secs(5);
/// How long a stop waits for running jobs.
pub const SHUTDOWN_MAX: Duration = Duration::from_secs(30);

/// How long a gear's way out waits when it could not take a connection for want of descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Folders of jobs that are looked at every night, should their jobs be gone.
pub const FOLDERS_MAX: usize = 1_000_000;

/// How long what a killed program has left is kept.
pub const LEFTOVER_KEPT: Duration = Duration::from_secs(60 * 60);

/// Jobs that are cancelled between two looks at what is left, when a backup is restored.
pub const RESTORE_PAGE: u32 = 200;

/// How long no engine may have been heard of before the jobs of a restored database are cancelled.
/// One with the longest lease is heard of every 100 s.
pub const RESTORED_QUIET: Duration = Duration::from_secs(120);

/// How long a claim lasts without news of its worker. Long enough for a server that restarts: what
/// runs is stopped [`LEAVE_BEFORE`] its end, after a renewal or two were not answered in time.
pub const LEASE: Duration = Duration::from_secs(30);
/// Renewals of a claim in the time that it lasts.
pub const RENEWALS: u32 = 6;
/// How long before the end of its claims an engine that cannot renew them stops what it runs: so
/// that nothing of it is left when another engine begins.
pub const LEAVE_BEFORE: Duration = Duration::from_secs(12);
/// How long jobs wait for an engine of which nothing is heard, when it alone can run them.
pub const HOME_REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a step waits that may have been done as somebody, until it is known as whom it would be
/// done here.
pub const ORIGIN_PAUSE: Duration = Duration::from_millis(500);
/// How long an engine leaves a job alone that needs a gear which others have.
pub const PASSED_OVER: Duration = Duration::from_secs(10);
/// Jobs that an engine leaves alone at once, and so how many that wait for another it looks past;
/// should there be more, it looks at some again.
pub const PASSED_OVER_MAX: usize = 10_000;
/// Leases after which an engine of which nothing was heard is taken for gone, and its jobs' files.
pub const HOME_GONE_AFTER: u32 = 4;
/// A difference between two clocks that comes bit by bit; more is a step.
pub const CLOCK_SLEW_MAX: Duration = Duration::from_secs(1);
/// How often the calendar is compared with the time that has passed.
pub const CLOCK_LOOK: Duration = Duration::from_secs(5);
/// How long the gears of an engine may outlive it: the kernel kills them as soon as it is gone.
pub const GEARS_OUTLIVE: Duration = Duration::from_secs(1);
/// The safety net below the signals: how often an engine looks for what nobody told it of.
pub const POLL: Duration = Duration::from_secs(5);
/// How long a claimer waits for the next signal before it asks the store when a job is due.
pub const SIGNAL_PATIENCE: Duration = Duration::from_millis(100);
/// How often the end of a sub-job is looked for that another engine may be working on.
pub const SUB_JOB_LOOK: Duration = Duration::from_millis(500);
/// Jobs that one claim takes.
pub const CLAIM_MAX: u32 = 64;
/// Jobs under way in one engine.
pub const WORKERS: usize = 64;
/// How often what is over is looked for: approvals, old jobs.
pub const UPKEEP: Duration = Duration::from_secs(30);
/// How long an ended job is kept.
pub const RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Jobs that one transaction of upkeep removes.
pub const SWEEP_MAX: u32 = 500;
/// The same when they have very much to tell: their lines fit into one transaction.
pub const SWEEP_LONG_MAX: u32 = 3;
/// Transactions of one pass.
pub const SWEEP_ROUNDS_MAX: u32 = 1000;
/// Lines in a job's ledger above which gears are not heard any more.
pub const LEDGER_LINES_MAX: i64 = 20_000;

/// How often it is measured how late tasks get their turn, while jobs are under way.
pub const WATCHDOG_INTERVAL: Duration = Duration::from_millis(100);
/// And while there are none.
pub const WATCHDOG_IDLE: Duration = Duration::from_secs(5);
/// What is worth a warning.
pub const WATCHDOG_WARN: Duration = Duration::from_millis(10);
/// What is worth everything that is known.
pub const WATCHDOG_DUMP: Duration = Duration::from_secs(10);
/// Between two warnings.
pub const WATCHDOG_QUIET: Duration = Duration::from_secs(10);

/// The first wait before a step is tried again; doubled each time (jobs.md §7).
pub const RETRY_BASE: Duration = Duration::from_secs(1);
/// The longest wait that we choose ourselves.
pub const RETRY_CAP: Duration = Duration::from_secs(30);

/// Runs that a breaker looks back on.
pub const BREAKER_WINDOW: usize = 10;
/// Runs below which it stays closed.
pub const BREAKER_RUNS_MIN: usize = 5;
/// How long it is open at first.
pub const BREAKER_OPEN: Duration = Duration::from_secs(30);
/// And at the most.
pub const BREAKER_OPEN_MAX: Duration = Duration::from_secs(15 * 60);

/// Breakers that an engine remembers beside those that are not well.
pub const BREAKERS_KNOWN_MAX: usize = 4096;
/// How long a breaker is kept that nobody has asked or told anything: longer than any step takes.
pub const BREAKER_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The width of a bucket in which equal requests are one (jobs.md §2).
pub const DEDUP_BUCKET_MS: i64 = 5_000;
/// Items of a page.
pub const PAGE_MAX: u32 = 500;
/// Rows that are looked at for one page.
pub const PAGE_SCAN_MAX: u32 = 10_000;
/// Jobs that one call repeats.
pub const RETRIES_MAX: usize = 5_000;
/// How long it goes on: callers do not wait for ever.
pub const RETRYING_MAX: Duration = Duration::from_secs(15);
/// Lines that a gear may report in one attempt; more are dropped, and the last one says so.
pub const REPORTS_MAX: u32 = 10_000;
/// The same in bytes.
pub const REPORTS_BYTES_MAX: usize = 4 << 20;
/// Bytes of the reports of all jobs that wait to be written, above which gears are not heard.
pub const REPORTS_WAITING_BYTES_MAX: usize = 16 << 20;
/// Jobs that one attempt of a step may ask for.
pub const SUB_JOBS_MAX: u32 = 100;
/// Jobs inside each other.
pub const SUB_JOB_DEPTH_MAX: u32 = 8;

/// Bytes of a body or a file that goes into a document; encoded, more might not fit into it.
pub const INLINE_BYTES_MAX: usize = 600 * 1024;

/// Bytes of that once it is escaped as text, or it is encoded instead.
pub const ESCAPED_BYTES_MAX: usize = 800 * 1024;

/// Bytes of a body that an answer of another server may have.
pub const HTTP_BODY_BYTES_MAX: usize = 64 << 20;

/// Bytes of an answer's head.
pub const HTTP_HEAD_BYTES_MAX: usize = 64 << 10;

/// How often a request is sent somewhere else.
pub const HTTP_REDIRECTS_MAX: usize = 5;

/// How long connecting to one address may take, TLS included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Addresses of one name that are tried.
pub const ADDRESSES_MAX: usize = 4;

/// Entries of a folder that are listed.
pub const FILES_LISTED_MAX: usize = 10_000;

/// How long a built-in action may take that says nothing else.
pub const SLEEP_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Bytes of one of the frames that the sandbox is set up with.
pub const FRAME_BYTES_MAX: usize = 256 << 10;

/// Bytes of what is handed over to a gear: its key and its secrets.
pub const HANDOVER_BYTES_MAX: usize = semel_gear::limits::HANDOVER_BYTES_MAX;

/// How often the first process of a sandbox looks after orphans.
pub const ORPHANS_INTERVAL: Duration = Duration::from_millis(200);

/// The least number of processes that a namespace can be held to.
pub const PIDS_MAX_LEAST: u64 = 301;

/// Connections that one gear may have at a time.
pub const PROXY_CONNECTIONS_MAX: usize = 32;

/// The same of all gears together: each takes two descriptors of the engine.
pub const PROXY_CONNECTIONS_ALL_MAX: usize = 128;

/// How long such a connection may be silent in both directions.
pub const PROXY_IDLE: Duration = Duration::from_secs(120);

/// How long it may take to find out what a host can enforce.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a gear's manifest.
pub const MANIFEST_BYTES_MAX: usize = 256 << 10;

/// Actions of one gear.
pub const GEAR_ACTIONS_MAX: usize = 64;

/// Words of a gear's command, and names of one kind in its permissions.
pub const GEAR_NAMES_MAX: usize = 64;

/// The longest time that an action may ask for.
pub const STEP_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Files and folders of a package.
pub const PACKAGE_FILES_MAX: usize = 4096;

/// Bytes of a package.
pub const PACKAGE_BYTES_MAX: u64 = 256 << 20;

/// Folders in folders of a package.
pub const PACKAGE_DEPTH_MAX: usize = 16;

/// Secrets of a home.
pub const SECRETS_MAX: usize = 256;

/// Bytes of a secret at the least: a shorter one could not be hidden in what gears say.
pub const SECRET_BYTES_MIN: usize = 4;

/// Bytes of a secret.
pub const SECRET_BYTES_MAX: usize = 16 << 10;

/// Bytes of the file of all secrets.
pub const SECRETS_FILE_BYTES_MAX: usize = 8 << 20;

/// How long a gear has from being told to stop until everything of it is killed (jobs.md §6).
pub const STOP_GRACE: Duration = Duration::from_secs(5);

/// How much of that it has before it is sent SIGTERM.
pub const STOP_MESSAGE_GRACE: Duration = Duration::from_millis(500);

/// How long a sandbox may take to end once it is told to, or it is killed itself.
pub const KILL_TIMEOUT: Duration = Duration::from_millis(800);

/// Lines that wait to be read by a gear.
pub const GEAR_QUEUE_MAX: usize = 64;

/// Bytes of these; one line always fits.
pub const GEAR_QUEUE_BYTES_MAX: usize = 4 << 20;

/// Lines of a gear in one execution.
pub const GEAR_LINES_MAX: u32 = 100_000;

/// Bytes that are kept of what a process says on stderr: the end.
pub const STDERR_BYTES_MAX: usize = 8 << 10;

/// Characters of that in the message of a failure.
pub const LAST_WORDS_CHARS_MAX: usize = 1000;

/// Bytes of a line in a job's log.
pub const REPORT_BYTES_MAX: usize = semel_gear::limits::REPORT_BYTES_MAX;

/// Processes of one gear that may wait for more.
pub const WARM_MAX: usize = 4;

/// Processes that may wait beside them for a moment, because as many were needed just now.
pub const WARM_SURPLUS_MAX: usize = 64;

/// How often is looked for those that have waited for too long.
pub const WARM_LOOK: Duration = Duration::from_secs(1);

/// Looks that they wait.
pub const WARM_IDLE_LOOKS: u64 = 60;

/// Looks that those beside them wait.
pub const WARM_SURPLUS_LOOKS: u64 = 2;

/// How long a call waits for a process that serves another: about what a start costs.
pub const WARM_WAIT: Duration = Duration::from_millis(20);

/// Processes of one gear that are being started at a time.
pub const WARM_STARTS_AT_ONCE: usize = 4;

/// How long one that says nothing counts as being started.
pub const WARM_START_MAX: Duration = Duration::from_millis(100);

/// How often one serves.
pub const WARM_EXECUTIONS_MAX: u32 = 1000;

/// Bytes of the head of a request to a gear's proxy.
pub const PROXY_HEAD_BYTES_MAX: usize = 64 << 10;

/// Bytes that are kept of what a shell's command writes; escaped they may be six times as many.
pub const SHELL_OUTPUT_BYTES_MAX: usize = 128 << 10;

/// Transactions of submissions under way at once.
pub const SUBMITS_AT_ONCE: usize = 2;
/// Transactions of moves under way at once.
pub const ADVANCES_AT_ONCE: usize = 2;
/// How often a write is made again that was found not to be there.
pub const SETTLE_ROUNDS_MAX: u32 = 5;
/// How long it is asked what became of a write whose answer was lost.
pub const SETTLE_PATIENCE: Duration = Duration::from_secs(20);
/// The pause before it is asked again; it grows with every round.
pub const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// The longest of these pauses.
pub const SETTLE_PAUSE_MAX: Duration = Duration::from_millis(500);
/// The pause between two signals to other engines.
pub const SIGNAL_INTERVAL: Duration = Duration::from_millis(5);
/// The pause after one that could not be sent.
pub const SIGNAL_RETRY: Duration = Duration::from_secs(1);
/// The same for one that stops a job: somebody was told that it is over.
pub const STOP_RETRY: Duration = Duration::from_millis(200);

/// Parts of all schemas of a manifest, with everything that they refer to, as often as they do.
/// That many take a tenth of a second to be compiled.
pub const SCHEMA_COST_MAX: usize = 20_000;

/// Bytes that are kept of them: each part knows the names of all that is above it.
pub const SCHEMA_BYTES_MAX: usize = 8 << 20;

/// What a pattern counts among these parts: it is compiled. Each of its bytes counts as well.
pub const SCHEMA_PATTERN_COST: usize = 100;

/// What a class of letters of all languages counts in a pattern.
pub const PATTERN_UNICODE_COST: usize = 200;

/// Bytes of a pattern as it is written.
pub const PATTERN_TEXT_BYTES_MAX: usize = 1000;

/// Bytes of a compiled pattern, and the steps that one of this size takes for each byte of a text:
/// as many as it has states, at the worst. A larger one than the last is refused.
pub const PATTERN_SIZES: [(usize, usize); 5] =
    [(1 << 10, 8), (2 << 10, 20), (8 << 10, 45), (32 << 10, 130), (64 << 10, 320)];

/// Steps for each byte of a text that is looked at as content of some kind.
pub const SCHEMA_CONTENT_STEPS: usize = 8;

/// Levels of a schema, with those of what it refers to.
pub const SCHEMA_DEPTH_MAX: usize = 128;

/// Steps of checking a document, and the documents of all steps of a plan: about two seconds.
pub const SCHEMA_WORK_MAX: usize = 200_000_000;

/// The same that may be done before other tasks get their turn elsewhere.
pub const SCHEMA_WORK_AT_ONCE: usize = 20_000;

/// The same after which it is not said any more what is wrong, but only that something is.
pub const SCHEMA_WORK_TOLD_MAX: usize = 200_000;

/// Checks under way at once that take longer.
pub const SCHEMA_CHECKS_AT_ONCE: usize = 4;

/// Processes of gears that live at once in one engine, and one more for each depth of sub-jobs; as
/// many as there are workers, if those are more.
pub const PROCESSES_AT_ONCE: usize = 64;

/// Jobs beside those under way that wait for sub-jobs or for room, above which an engine claims no
/// more at once.
pub const JOBS_WAITING_MAX: usize = 1024;

/// Bytes beside those of the gear in the memory of its control group: the stages of the sandbox.
pub const GROUP_MEMORY_BYTES: u64 = 32 << 20;

/// Tasks beside those of the gear in its control group, without a network.
pub const GROUP_TASKS: u64 = 4;

/// The share of a gear's control group of the processor; that of any other group is 100.
pub const GROUP_CPU_WEIGHT: u32 = 20;

/// Names that are tried for a new control group.
pub const GROUP_LEAVES_TRIED: u32 = 16;

/// How often it is looked how much a running gear has written.
pub const DISK_LOOK: Duration = Duration::from_secs(1);

/// Files of a folder that are looked at in one of these times: more are looked at less often.
pub const FILES_A_LOOK: usize = 10_000;

/// Looks at what gears have on disk under way at once in the whole engine.
pub const DISK_LOOKS_AT_ONCE: usize = 2;

/// Looks one after the other in which something was moved away before it was counted.
pub const DISK_MISSED_MAX: u32 = 20;

/// How long a store that took a commit is taken to do so still, by those who ask for health.
pub const FIT_KEPT: Duration = Duration::from_secs(3);

/// Folders that a look has open beside the one that it reads.
pub const LOOK_FOLDERS_OPEN: usize = 5;

/// Bytes of the names of folders that a look has still to visit.
pub const LOOK_NAMES_BYTES_MAX: usize = 8 << 20;

/// Bytes of a job's workspace and of the files that its steps gave, above which the engine writes
/// no more for it.
pub const JOB_FILES_BYTES_MAX: u64 = 4 << 30;

/// Files and folders of a workspace.
pub const WORKSPACE_FILES_MAX: usize = 200_000;

/// Folders in folders of a workspace.
pub const WORKSPACE_DEPTH_MAX: usize = 128;

/// Bytes of a file that a step gave, and that is kept with its job.
pub const ARTIFACT_BYTES_MAX: u64 = 1 << 30;
