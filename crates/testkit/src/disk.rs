//! A small disk of its own for a test that fills it: a tmpfs in a mount namespace, in which the
//! test runs itself again.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER_VARIABLE: &str = "SEMEL_LIMITED_FOLDER";

/// Runs this very test again under `shell`, which must end in `exec "$@"`; its folder comes by
/// environment. Gives the folder in that second run, and nothing when it has passed.
pub fn under(test: &str, shell: &str) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return Some(folder.into());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-euc", shell, "limited"])
        .arg(std::env::current_exe().expect("a name"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER_VARIABLE, folder.path())
        .output()
        .expect("util-linux's unshare starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
    None
}

/// The same with a disk of so many bytes.
pub fn with_a_small_disk(test: &str, bytes: usize) -> Option<PathBuf> {
    let mount = format!(r#"mount -t tmpfs -o size={bytes} none "${FOLDER_VARIABLE}""#);
    under(test, &format!(r#"{mount}; exec "$@""#))
}

/// Writes until nothing more fits.
pub fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).expect("a file");
    for size in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}
