//! The log with real files, and a disk that is full.

use std::os::unix::fs::PermissionsExt;

use semel_testkit::clock::SimClock;
use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::home::MeshSlug;

const SMALL: Rotation =
    Rotation { bytes_max: 100, age_max: Duration::from_secs(1000), earlier_max: 2 };

struct Fixture {
    _root: tempfile::TempDir,
    home: Home,
    clock: SimClock,
    log: Arc<LogFile>,
}

impl Fixture {
    fn new(rotation: Rotation) -> Self {
        let root = tempfile::tempdir().unwrap();
        let home = Home::at(root.path(), &MeshSlug::parse("local").unwrap());
        fs::create_dir_all(home.folder()).unwrap();
        // The simulated calendar shows what the file system's does: the log compares them.
        let marker = root.path().join("marker");
        let at = File::create(&marker).unwrap().metadata().unwrap().modified().unwrap();
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let clock = SimClock::at_ms(UnixMs(0).saturating_add(at).0);
        let log = Arc::new(LogFile::new(&home, rotation, Arc::new(clock.clone())));
        Self { _root: root, home, clock, log }
    }

    fn line(&self, text: &str) {
        (&*self.log).write_all(format!("{text}\n").as_bytes()).expect("a log never fails");
    }

    fn file(&self, number: u32) -> String {
        let path = self.home.path(HomeFile::Log);
        let path = if number == 0 { path } else { path.with_extension(format!("log.{number}")) };
        fs::read_to_string(path).unwrap_or_default()
    }
}

#[test]
fn a_file_that_would_be_too_long_is_set_aside() {
    let fixture = Fixture::new(SMALL);
    let line = |number: u32| format!("{number:039}");
    for number in 0..10 {
        fixture.line(&line(number));
    }
    // Two lines of 40 bytes a file, three files.
    let pair = |number| format!("{}\n{}\n", line(number), line(number + 1));
    assert_eq!([fixture.file(0), fixture.file(1), fixture.file(2)], [pair(8), pair(6), pair(4)]);
    assert_eq!(fs::read_dir(fixture.home.folder()).unwrap().count(), 3);
    let mode = fs::metadata(fixture.home.path(HomeFile::Log)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    // A line that is longer than a file may be is written all the same, alone.
    let long = "x".repeat(500);
    fixture.line(&long);
    fixture.line("after");
    assert_eq!([fixture.file(0), fixture.file(1)], ["after\n".to_owned(), format!("{long}\n")]);
}

#[test]
fn a_file_that_is_too_old_is_set_aside_also_after_a_restart() {
    let fixture = Fixture::new(SMALL);
    fixture.line("first");
    fixture.clock.advance(Duration::from_secs(900));
    fixture.line("second");
    let again = LogFile::new(&fixture.home, SMALL, Arc::new(fixture.clock.clone()));
    (&again).write_all(b"third\n").unwrap();
    fixture.clock.advance(Duration::from_secs(200));
    (&again).write_all(b"fourth\n").unwrap();
    assert_eq!([fixture.file(0), fixture.file(1)], ["fourth\n", "first\nsecond\nthird\n"]);
}

#[test]
fn the_default_is_100_mb_or_14_days() {
    let Rotation { bytes_max, age_max, earlier_max } = Rotation::default();
    assert_eq!((bytes_max, age_max.as_secs(), earlier_max), (100_000_000, 1_209_600, 4));
}

#[test]
fn what_cannot_be_written_is_counted_and_said_later() {
    let fixture = Fixture::new(SMALL);
    let path = fixture.home.path(HomeFile::Log);
    // A device that is always full, in the log's place.
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    for _ in 0..3 {
        fixture.line("lost");
    }
    assert_eq!(fixture.log.lines_lost(), 3);
    fs::remove_file(&path).unwrap();
    fixture.line("kept");
    let note = r#"{"level":"WARN","message":"log lines were lost","lost":3}"#;
    assert_eq!(fixture.file(0), format!("{note}\nkept\n"));
    assert_eq!(fixture.log.lines_lost(), 0);
}

#[test]
fn a_folder_that_is_gone_stops_nobody() {
    let fixture = Fixture::new(SMALL);
    fs::remove_dir_all(fixture.home.folder()).unwrap();
    fixture.line("lost");
    assert_eq!(fixture.log.lines_lost(), 1);
    fs::create_dir_all(fixture.home.folder()).unwrap();
    fixture.line("kept");
    assert!(fixture.file(0).ends_with("\"lost\":1}\nkept\n"));
}

#[test]
fn a_line_is_never_glued_to_half_a_line() {
    let fixture = Fixture::new(SMALL);
    fs::write(fixture.home.path(HomeFile::Log), "{\"half\":").unwrap();
    fixture.line("whole");
    fixture.line("next");
    assert_eq!(fixture.file(0), "{\"half\":\nwhole\nnext\n");
}

#[test]
fn tracing_takes_it_as_a_writer() {
    fn takes(_: &impl for<'a> MakeWriter<'a>) {}
    let fixture = Fixture::new(Rotation::default());
    takes(&fixture.log);
    let log = Arc::clone(&fixture.log);
    let subscriber = tracing_subscriber::fmt().json().with_writer(log).finish();
    tracing::subscriber::with_default(subscriber, || {
        tracing::warn!(path = "a\nb", "said");
        tracing::info!("and more");
    });
    let text = fixture.file(0);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["fields"]["path"], "a\nb");
}
