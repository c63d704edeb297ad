//! `semel completions`.

use crate::program::{semel, stderr, stdout};

#[test]
fn every_shell_is_told_every_command_and_nothing_that_is_hidden() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = semel(home.path(), &["completions", shell]);
        assert!(output.status.success(), "{shell}: {}", stderr(&output));
        let script = stdout(&output);
        for word in ["fingerprint", "requeue", "api-listen"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        assert!(!script.contains("gear-shim"), "{shell} offers what is hidden");
    }
    assert_eq!(semel(home.path(), &["completions", "tcsh"]).status.code(), Some(2));
}

/// The script is one that its shell can read.
#[test]
fn bash_reads_what_it_is_given() {
    let home = tempfile::tempdir().unwrap();
    let script = home.path().join("semel.bash");
    std::fs::write(&script, semel(home.path(), &["completions", "bash"]).stdout).unwrap();
    let words = "source \"$1\"; COMP_WORDS=(semel exp); COMP_CWORD=1; \
                 _semel semel exp semel; echo \"${COMPREPLY[*]}\"";
    let bash = std::process::Command::new("bash").args(["-c", words, "bash"]).arg(&script).output();
    assert_eq!(stdout(&bash.unwrap()), "explain\n");
}
