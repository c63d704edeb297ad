//! What is printed, byte for byte: files under `tests/golden`, rewritten by `cargo xtask gen`.

use std::path::{Path, PathBuf};
use std::process::Output;

use rustix::process::Signal;

use crate::program::{Up, semel, stderr, stdout};

/// Set by `cargo xtask gen`.
const REWRITE: &str = "SEMEL_GOLDEN_REWRITE";

/// Commands that only look.
const READS: [&str; 14] = [
    "audit",
    "check",
    "doctor",
    "events",
    "explain",
    "fingerprint",
    "inspect",
    "list",
    "patterns",
    "peers",
    "search",
    "show",
    "status",
    "watch",
];

/// Compares with the file of that name, or writes it.
fn golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os(REWRITE).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, found).unwrap();
        return;
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} is not current (cargo xtask gen rewrites it); now:\n{found}");
}

fn help(path: &[String]) -> String {
    let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let output = semel(Path::new("/nonexistent"), &words);
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    stdout(&output)
}

/// The names below `Commands:`.
fn commands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Every help text at or below a command.
fn texts(path: &[String]) -> Vec<(Vec<String>, String)> {
    let text = help(path);
    let below = commands(&text).into_iter().flat_map(|name| texts(&[path, &[name]].concat()));
    let below: Vec<_> = below.collect();
    [vec![(path.to_vec(), text)], below].concat()
}

#[test]
fn every_help_text_is_as_it_was_read_and_has_examples_that_exist() {
    let tops = commands(&help(&[]));
    golden("help/semel.txt", &help(&[]));
    assert!(tops.len() > 20, "{tops:?}");
    for top in tops {
        let all = texts(std::slice::from_ref(&top));
        let shown = |(path, text): &(Vec<String>, String)| {
            let text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
            format!("$ semel {} --help\n{text}\n", path.join(" "))
        };
        golden(&format!("help/{top}.txt"), &all.iter().map(shown).collect::<String>());
        assert!(all[0].1.contains("\nExamples:\n"), "semel {top} has no examples");
        for (path, text) in &all {
            let reads = path.last().is_some_and(|name| READS.contains(&name.as_str()));
            assert!(!reads || text.contains("--json"), "semel {} has no --json", path.join(" "));
            text.lines().filter(|line| line.starts_with("  semel ")).for_each(|line| {
                check_example(path, line);
            });
        }
    }
}

/// The commands and the options of an example are there.
fn check_example(path: &[String], line: &str) {
    for one in line.split([';', '|', '&']).map(str::trim).filter(|one| one.starts_with("semel ")) {
        let words: Vec<String> = one.split_whitespace().skip(1).map(str::to_owned).collect();
        let mut depth = 0;
        while words.get(depth).is_some_and(|word| commands(&help(&words[..depth])).contains(word)) {
            depth += 1;
        }
        let text = help(&words[..depth]);
        let takes_command = text.contains("Usage: ") && text.contains("<COMMAND>");
        assert!(depth > 0 && !takes_command, "{path:?}: {one}");
        for option in words[depth..].iter().filter(|word| word.starts_with("--")) {
            let name = option.split('=').next().unwrap();
            assert!(text.contains(name), "{path:?}: {one}: there is no {name}");
        }
    }
}

/// The home, times, ids and ports are others each time; what replaces them is as long.
fn masked(text: &str, home: &Path) -> String {
    let text = text.replace(&home.display().to_string(), "HOME");
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-:.".contains(c);
    let mut masked = String::new();
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if end == 0 {
            masked.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            masked.push_str(&mask(&rest[..end]));
            rest = &rest[end..];
        }
    }
    masked
}

fn mask(word: &str) -> String {
    let shape: String = word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let is_time = shape == "0000-00-00T00:00:00.000Z";
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f' | '-');
    let is_hex_id = [16, 32, 36, 64].contains(&word.len()) && word.chars().all(is_hex);
    let is_upper = |c: char| c.is_ascii_digit() || c.is_ascii_uppercase();
    let is_ulid = word.len() == 26 && word.chars().all(is_upper);
    let port = word.strip_prefix("127.0.0.1:").filter(|_| word.len() > "127.0.0.1:".len());
    match port {
        Some(_) => "127.0.0.1:PORT".to_owned(),
        None if is_time || is_hex_id || is_ulid => "#".repeat(word.len()),
        None => word.to_owned(),
    }
}

#[test]
fn what_is_masked_is_what_changes() {
    assert_eq!(mask("2026-11-15T19:17:55.518Z"), "#".repeat(24));
    assert_eq!(mask("01a1e0a6-fbdd-7e88-975c-7d10a1b30105"), "#".repeat(36));
    assert_eq!(mask("127.0.0.1:43329"), "127.0.0.1:PORT");
    assert_eq!(mask("idempotency"), "idempotency");
}

fn transcript(home: &Path, commands: &[&[&str]]) -> String {
    let one = |arguments: &&[&str]| {
        let output: Output = semel(home, arguments);
        let quoted = |word: &&str| match word.contains(' ') {
            true => format!("'{word}'"),
            false => (*word).to_owned(),
        };
        let words: Vec<String> = arguments.iter().map(quoted).collect();
        let code = output.status.code().unwrap_or(-1);
        let errors: String = stderr(&output).lines().map(|line| format!("! {line}\n")).collect();
        let (words, text) = (words.join(" "), stdout(&output));
        format!("$ semel {words}\n{text}{errors}exit {code}\n\n")
    };
    masked(&commands.iter().map(one).collect::<String>(), home)
}

#[test]
fn the_main_read_commands_and_the_main_errors() {
    let folder = tempfile::tempdir().unwrap();
    let home: PathBuf = folder.path().to_owned();
    let plan = home.join("plan.json");
    let nobody = transcript(
        &home,
        &[
            &["send", "@me", "hello"],
            &["inbox", "list", "--mesh", "local"],
            &["mesh", "list"],
            &["mesh", "list", "--json"],
            &["explain", "no_such_code"],
            &["mesh", "join", "nonsense"],
            &["job", "submit", "--plan", "missing.json", "--mesh", "local"],
            &["broker", "mesh", "list", "--store", "nonsense"],
            &["sned"],
            &["completions", "tcsh"],
        ],
    );
    golden("errors.txt", &nobody);
    let mut up = Up::start(&home);
    let me = up.pubkey.clone();
    for (text, key) in [("hello", "first"), ("and again", "second")] {
        let sent = semel(&home, &["send", &me, text, "--key", key, "--wait"]);
        assert!(sent.status.success(), "{}", stderr(&sent));
    }
    std::fs::write(
        &plan,
        r#"{"steps": [{"id": "pause", "gear": "wait", "action": "sleep", "params": {"ms": 1}}]}"#,
    )
    .unwrap();
    let plan = plan.display().to_string();
    let job = semel(&home, &["job", "submit", "--plan", &plan, "--key", "one", "--wait"]);
    assert!(job.status.success(), "{}", stderr(&job));
    // What was sent is in the inbox when the broker has pushed it.
    while stdout(&semel(&home, &["inbox", "list", "--json"])).matches("seq").count() < 2 {
        std::thread::yield_now();
    }
    let running = transcript(
        &home,
        &[
            &["send", &me, "hello", "--key", "first"],
            &["send", &me, "goodbye", "--key", "first"],
            &["send", "@nobody", "hello", "--key", "third"],
            &["send", &me, "hello", "--meta", "nonsense"],
            &["inbox", "list"],
            &["inbox", "list", "--json"],
            &["inbox", "search", "again"],
            &["outbox", "list"],
            &["outbox", "list", "--json"],
            &["outbox", "inspect", "unknown"],
            &["peers"],
            &["peers", "--json"],
            &["topic", "list"],
            &["queue", "list"],
            &["mesh", "list"],
            &["job", "list"],
            &["job", "list", "--json"],
            &["job", "show", "unknown"],
            &["gear", "list"],
            &["secret", "list"],
            &["mesh", "leave"],
            &["gear", "enable", "unknown"],
        ],
    );
    golden("running.txt", &running);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    golden("stopped.txt", &transcript(&home, &[&["send", &me, "hello"], &["daemon", "status"]]));
}
