//! One text file of the repository, and what its path says about it.

#[derive(Debug, Clone)]
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    pub(crate) fn new(path: &str, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), text: text.into() }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.extension() == Some("rs")
    }

    /// A file of nothing but tests: `foo/tests.rs`, or anything in a `tests` folder.
    pub(crate) fn is_test(&self) -> bool {
        self.name() == "tests.rs" || self.in_folder("tests")
    }

    /// Data that a test compares with, not code that somebody reads.
    pub(crate) fn is_golden(&self) -> bool {
        self.in_folder("tests") && self.in_folder("golden")
    }

    /// Programs and helpers of developers, which may read clocks and variables as they like.
    pub(crate) fn is_tool(&self) -> bool {
        ["xtask/", "bench/", "crates/testkit/"].iter().any(|folder| self.path.starts_with(folder))
    }

    /// These files must spell out what they forbid.
    pub(crate) fn is_tidy_itself(&self) -> bool {
        self.path.starts_with("xtask/src/tidy/")
    }

    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    pub(crate) fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    pub(crate) fn in_folder(&self, name: &str) -> bool {
        self.folder().split('/').any(|folder| folder == name)
    }

    pub(crate) fn extension(&self) -> Option<&str> {
        self.name().rsplit_once('.').map(|(_, extension)| extension)
    }

    /// Line numbers start at 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> SourceFile {
        SourceFile::new(path, "")
    }

    #[test]
    fn a_path_says_what_a_file_is() {
        assert!(file("crates/core/src/a/tests.rs").is_test());
        assert!(file("crates/core/tests/a.rs").is_test());
        assert!(!file("crates/core/src/my_tests.rs").is_test());
        assert!(!file("crates/testkit/src/lib.rs").is_test());
        assert!(file("crates/testkit/src/lib.rs").is_tool());
        assert!(!file("crates/cli/src/bench/a.rs").is_tool());
        assert!(file("crates/cli/tests/golden/a.rs").is_golden());
        assert!(file("xtask/src/tidy/words.rs").is_tidy_itself());
    }

    #[test]
    fn a_path_has_parts() {
        let file = file("crates/store/src/lib.rs");
        assert_eq!((file.name(), file.folder()), ("lib.rs", "crates/store/src"));
        assert_eq!(file.extension(), Some("rs"));
        assert!(file.in_folder("store") && !file.in_folder("lib.rs") && !file.in_folder("tor"));
        assert_eq!(SourceFile::new("README", "").folder(), "");
    }
}
