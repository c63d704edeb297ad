//! A mesh's name, where it is also the name of a folder.

use std::fmt;

use crate::limits::MESH_SLUG_BYTES_MAX;

/// A name that means one folder below `daemon/`, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeshSlug(String);

/// Why a mesh cannot have that name on this host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{slug:?} cannot be a mesh's name: {why}")]
pub struct SlugInvalid {
    slug: String,
    why: &'static str,
}

impl MeshSlug {
    /// 1–64 ASCII letters, digits, `-`, `_` and `.`; the first is a letter or a digit, so that no
    /// name is hidden, an option, or a way out of the folder.
    pub fn parse(text: &str) -> Result<Self, SlugInvalid> {
        let refuse = |why| {
            // A name of any length may have been given; the answer is a line.
            let slug = text.chars().take(MESH_SLUG_BYTES_MAX).collect();
            Err(SlugInvalid { slug, why })
        };
        if text.is_empty() {
            return refuse("it is empty");
        }
        if text.len() > MESH_SLUG_BYTES_MAX {
            return refuse("it has more than 64 bytes");
        }
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !text.bytes().all(is_part) {
            return refuse("only letters, digits, '-', '_' and '.' may be in it");
        }
        if !text.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            return refuse("it must begin with a letter or a digit");
        }
        Ok(Self(text.to_owned()))
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MeshSlug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_folder_and_no_other() {
        for good in ["local", "a", "Team_7", "7", "a.b-c", "a..b", &"x".repeat(64)] {
            assert_eq!(MeshSlug::parse(good).unwrap().as_str(), good);
        }
        let long = "x".repeat(65);
        for (bad, why) in [
            ("", "empty"),
            (".", "begin"),
            ("..", "begin"),
            ("../../etc", "only letters"),
            ("a/b", "only letters"),
            ("/", "only letters"),
            ("-rf", "begin"),
            (".hidden", "begin"),
            ("a b", "only letters"),
            ("a\n", "only letters"),
            ("a\0", "only letters"),
            ("é", "only letters"),
            (&long, "64 bytes"),
        ] {
            let refused = MeshSlug::parse(bad).expect_err(bad).to_string();
            assert!(refused.contains(why), "{bad:?}: {refused}");
        }
        assert!(MeshSlug::parse(&"é".repeat(9000)).expect_err("long").to_string().len() < 300);
    }
}
