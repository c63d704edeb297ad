//! Records what a process does to the files of a folder: the calling test is run again as a child
//! under `strace`, and what that prints is read.

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER_VARIABLE: &str = "SEMEL_POWERLOSS_FOLDER";
const ACKS: &str = "acknowledged";
const CALLS: &str = "trace=openat,lseek,write,pwrite64,ftruncate,fsync,fdatasync,unlink,unlinkat,\
                     rename,renameat,renameat2,fallocate,pwritev,pwritev2,writev";

/// Something that happened, in the order in which it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A file was made.
    Make {
        /// Its name.
        file: String,
    },
    /// A file's name was removed.
    Remove {
        /// Its name.
        file: String,
    },
    /// Something was written.
    Write {
        /// To which file.
        file: String,
        /// Where in it.
        offset: usize,
        /// What.
        data: Vec<u8>,
    },
    /// A file was cut or made longer.
    Truncate {
        /// Which.
        file: String,
        /// How long it is now.
        length: usize,
    },
    /// Everything before the event `began` of this file is on disk.
    Sync {
        /// Its name.
        file: String,
        /// When the call began.
        began: usize,
    },
    /// Which files there were before the event `began` is on disk.
    SyncFolder {
        /// When the call began.
        began: usize,
    },
    /// Somebody was told that this is done.
    Acknowledge(String),
}

/// Everything that a workload did.
pub struct Record {
    /// In order.
    pub events: Vec<Event>,
}

/// For a workload: tells the record that something was acknowledged.
pub fn acknowledge(folder: &Path, what: &str) {
    let acks = OpenOptions::new().create(true).append(true).open(folder.join(ACKS));
    let written = acks.and_then(|mut acks| acks.write_all(what.as_bytes()));
    written.expect("the record of acknowledgements");
}

impl Record {
    /// Runs `workload` in a child and gives what it did. `test` is the full path of the calling
    /// test, by which the child finds its way back here.
    pub fn of(test: &str, workload: impl FnOnce(&Path)) -> Self {
        if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
            workload(Path::new(&folder));
            // The child must not go on as if it were the parent.
            std::process::exit(0);
        }
        let parent = tempfile::tempdir().expect("a folder");
        // As the trace names it.
        let parent_path = parent.path().canonicalize().expect("its name");
        let (folder, trace) = (parent_path.join("files"), parent_path.join("trace"));
        fs::create_dir(&folder).expect("a folder");
        let output = Command::new("strace")
            // Only the calls that matter stop the process.
            .args(["--seccomp-bpf", "-f", "-y", "-xx", "-s", "1000000"])
            .args(["-e", CALLS, "-e", "signal=none", "-o"])
            .arg(&trace)
            .arg(std::env::current_exe().expect("our own program"))
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(FOLDER_VARIABLE, &folder)
            .output()
            .unwrap_or_else(|error| panic!("strace: {error}; cargo xtask test installs it"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the recorded process failed: {errors}");
        let mut reader = Reader { folder, ..Reader::default() };
        let text = fs::read_to_string(&trace).expect("a trace");
        text.lines().for_each(|line| reader.line(line));
        Self { events: reader.events }
    }
}

#[derive(Default)]
struct Reader {
    folder: PathBuf,
    events: Vec<Event>,
    files: HashSet<String>,
    /// Where a descriptor's next write goes.
    positions: HashMap<String, usize>,
    /// By process: the sync that has begun, the file or nothing for the folder, and when.
    syncing: HashMap<String, (Option<String>, usize)>,
}

impl Reader {
    /// `123 pwrite64(5</path>, "data", 4, 0) = 4`, every text in hexadecimal. A call that another
    /// thread interrupts is printed in two parts; its arguments are in the first.
    fn line(&mut self, line: &str) {
        let (process, call) = line.split_once(' ').expect("a process and a call");
        let call = call.trim_start();
        if let Some(resumed) = call.strip_prefix("<... ") {
            if resumed.starts_with("fsync") || resumed.starts_with("fdatasync") {
                assert!(resumed.ends_with("= 0"), "{line:.200}");
                self.synced(process);
            }
            return;
        }
        let Some((name, arguments)) = call.split_once('(') else { return };
        if arguments.contains(") = -1 ") {
            return;
        }
        match name {
            "openat" if arguments.contains("O_CREAT") => self.made(arguments),
            "openat" => {}
            "unlink" | "unlinkat" => {
                if let Some(file) = self.ours(&quoted(arguments))
                    && self.files.remove(&file)
                {
                    self.events.push(Event::Remove { file });
                }
            }
            "rename" | "renameat" | "renameat2" => {
                let ours = self.ours(&quoted(arguments));
                assert_eq!(ours, None, "a rename is not understood: {line:.200}");
            }
            _ => self.on_descriptor(process, name, arguments),
        }
    }

    fn made(&mut self, arguments: &str) {
        if let Some(file) = self.ours(&quoted(arguments))
            && file != ACKS
            && self.files.insert(file.clone())
        {
            self.events.push(Event::Make { file });
        }
    }

    fn on_descriptor(&mut self, process: &str, name: &str, arguments: &str) {
        let Some((descriptor, rest)) = arguments.split_once('<') else { return };
        let Some((path, rest)) = rest.split_once('>') else { return };
        let path = PathBuf::from(String::from_utf8(unhex(path)).expect("a name"));
        let began = self.events.len();
        if path == self.folder && name == "fsync" {
            self.syncing.insert(process.to_owned(), (None, began));
            return self.synced_unless_unfinished(process, rest);
        }
        let Some(file) = self.ours(path.as_os_str().as_encoded_bytes()) else { return };
        if file == ACKS {
            let what = String::from_utf8(quoted(rest)).expect("a text");
            return self.events.push(Event::Acknowledge(what));
        }
        match name {
            "fsync" | "fdatasync" => {
                self.syncing.insert(process.to_owned(), (Some(file), began));
                self.synced_unless_unfinished(process, rest);
            }
            "lseek" => {
                assert!(rest.contains("SEEK_SET"), "{rest:.200}");
                self.positions.insert(descriptor.to_owned(), last_number(rest, 1));
            }
            "write" => {
                let data = quoted(rest);
                let position = self.positions.entry(descriptor.to_owned()).or_insert(0);
                let offset = *position;
                *position += data.len();
                self.events.push(Event::Write { file, offset, data });
            }
            "pwrite64" => {
                let (data, offset) = (quoted(rest), last_number(rest, 3));
                self.events.push(Event::Write { file, offset, data });
            }
            "ftruncate" => {
                self.events.push(Event::Truncate { file, length: last_number(rest, 1) });
            }
            _ => panic!("{name} on {file} is not understood"),
        }
    }

    fn synced_unless_unfinished(&mut self, process: &str, rest: &str) {
        if !rest.contains("<unfinished") {
            assert!(rest.ends_with("= 0"), "{rest}");
            self.synced(process);
        }
    }

    fn synced(&mut self, process: &str) {
        // One that was never noted is of somebody else's file.
        match self.syncing.remove(process) {
            Some((Some(file), began)) => self.events.push(Event::Sync { file, began }),
            Some((None, began)) => self.events.push(Event::SyncFolder { began }),
            None => {}
        }
    }

    /// The name of a file that matters: in the folder, and looked at after a crash.
    fn ours(&self, path: &[u8]) -> Option<String> {
        let path = Path::new(std::str::from_utf8(path).ok()?);
        let name = path.strip_prefix(&self.folder).ok()?.to_str()?;
        let passing = name.is_empty() || name.ends_with("-shm") || name.ends_with(".lock");
        (!passing).then(|| name.to_owned())
    }
}

/// The first text among the arguments.
fn quoted(arguments: &str) -> Vec<u8> {
    let text = arguments.split('"').nth(1).unwrap_or_default();
    assert!(!arguments.contains("\"..."), "a text was cut short");
    unhex(text)
}

/// `\x61\x62` is `ab`.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| {
        let digit = (byte as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        digit.expect("a hexadecimal digit")
    };
    let bytes = text.as_bytes().chunks(4);
    bytes.map(|byte| 16 * digit(byte[2]) + digit(byte[3])).collect()
}

/// The argument of this number, counted from the descriptor.
fn last_number(rest: &str, argument: usize) -> usize {
    let text = rest.split(", ").nth(argument).expect("an argument");
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn a_trace_is_read_in_the_order_in_which_calls_end() {
    let mut reader = Reader { folder: "/f".into(), ..Reader::default() };
    let db = r"\x2f\x66\x2f\x64";
    for line in [
        format!(r#"1 openat(AT_FDCWD</>, "{db}", O_RDWR|O_CREAT, 0644) = 3<{db}>"#),
        format!(r#"1 pwrite64(3<{db}>, "\x61\x62", 2, 4096) = 2"#),
        format!("1 fdatasync(3<{db}> <unfinished ...>"),
        format!(r#"2 lseek(4<{db}>, 8192, SEEK_SET) = 8192"#),
        format!(r#"2 write(4<{db}>, "\x63", 1) = 1"#),
        "1 <... fdatasync resumed>) = 0".to_owned(),
        r"2 fsync(5<\x2f\x66>) = 0".to_owned(),
        format!(r#"1 ftruncate(3<{db}>, 10) = 0"#),
        format!(r#"1 unlink("{db}") = 0"#),
    ] {
        reader.line(&line);
    }
    let file = || "d".to_owned();
    let expected = [
        Event::Make { file: file() },
        Event::Write { file: file(), offset: 4096, data: b"ab".to_vec() },
        Event::Write { file: file(), offset: 8192, data: b"c".to_vec() },
        Event::Sync { file: file(), began: 2 },
        Event::SyncFolder { began: 4 },
        Event::Truncate { file: file(), length: 10 },
        Event::Remove { file: file() },
    ];
    assert_eq!(reader.events, expected);
}
