//! What can be cited: the pages of the repository, their headings, the traps and the decisions.

use std::collections::{BTreeMap, BTreeSet};

use super::super::source::SourceFile;

const FOLDERS: [&str; 3] = ["", "docs/", "docs/design/"];
const DECISIONS: &str = "docs/decisions/";

/// A Markdown file.
#[derive(Debug, Default)]
pub(super) struct Page<'a> {
    sections: BTreeSet<&'a str>,
    titles: Vec<&'a str>,
}

impl<'a> Page<'a> {
    fn of(file: &'a SourceFile) -> Self {
        let mut page = Self::default();
        for (_, line) in outside_of_fences(file) {
            let title = line.trim_start_matches('#');
            if title.len() == line.len() || !title.starts_with(' ') {
                continue;
            }
            let title = title.trim();
            page.titles.push(title);
            if let Some((number, _)) = title.split_once(' ')
                && number.starts_with(|c: char| c.is_ascii_digit())
            {
                page.sections.insert(number.trim_end_matches('.'));
            }
        }
        page
    }

    pub(super) fn has_section(&self, number: &str) -> bool {
        self.sections.contains(number)
    }

    /// A heading that begins with these words, its number left out.
    pub(super) fn has_title(&self, words: &str) -> bool {
        self.titles.iter().any(|title| {
            let plain = title.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            title.starts_with(words) || plain.trim_start().starts_with(words)
        })
    }

    /// Whether a heading has this name in an address.
    fn has_anchor(&self, anchor: &str) -> bool {
        self.titles.iter().any(|title| slug(title) == anchor)
    }
}

/// Everything that can be cited.
#[derive(Debug, Default)]
pub(super) struct Library<'a> {
    paths: BTreeSet<&'a str>,
    names: BTreeSet<&'a str>,
    pages: BTreeMap<&'a str, Page<'a>>,
    traps: BTreeSet<&'a str>,
    decisions: BTreeSet<&'a str>,
}

impl<'a> Library<'a> {
    pub(super) fn of(files: &'a [SourceFile]) -> Self {
        let mut library = Self::default();
        for file in files {
            library.paths.insert(&file.path);
            library.names.insert(file.name());
            if file.extension() == Some("md") {
                library.pages.insert(&file.path, Page::of(file));
            }
            if file.path == "docs/design/traps.md" {
                let numbers = file.text.lines().filter_map(|line| line.split_once(". "));
                let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
                library.traps.extend(numbers.map(|(number, _)| number).filter(is_number));
            }
            if let Some(name) = file.path.strip_prefix(DECISIONS) {
                library.decisions.extend(name.split_once('-').map(|(number, _)| number));
            }
        }
        library
    }

    /// The pages that a text in `from` can mean by a name or a path.
    pub(super) fn pages(&self, name: &str, from: &SourceFile) -> Vec<&Page<'a>> {
        if name.contains('/') {
            let by_path = self.pages.get(name);
            let relative = resolve(from.folder(), name).and_then(|path| self.pages.get(&*path));
            return by_path.or(relative).into_iter().collect();
        }
        let beside = [from.folder(), "/", name].concat();
        let usual = FOLDERS.iter().map(|folder| [folder, name].concat());
        let paths: BTreeSet<String> = usual.chain([beside]).collect();
        paths.iter().filter_map(|path| self.pages.get(&**path)).collect()
    }

    /// A page of the design whose sections have numbers.
    pub(super) fn design_page(&self, path: &str) -> Option<&Page<'a>> {
        let page = self.pages.get(path).filter(|_| path.starts_with("docs/design/"))?;
        (!page.sections.is_empty()).then_some(page)
    }

    pub(super) fn has_trap(&self, number: &str) -> bool {
        self.traps.contains(number)
    }

    pub(super) fn has_decision(&self, number: &str) -> bool {
        self.decisions.contains(number)
    }

    /// Whether the target of a link is there; addresses of other places are not looked at.
    pub(super) fn follow(&self, from: &SourceFile, target: &str) -> Result<(), &'static str> {
        if target.contains("://") || target.starts_with("mailto:") {
            return Ok(());
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = match path {
            "" => from.path.clone(),
            _ => resolve(from.folder(), path).ok_or("it is outside of the repository")?,
        };
        let folder = [path.trim_end_matches('/'), "/"].concat();
        let is_file = self.paths.contains(&*path);
        let is_folder = || folder == "/" || self.paths.iter().any(|one| one.starts_with(&folder));
        if !is_file && !is_folder() {
            return Err("nothing is there");
        }
        match self.pages.get(&*path) {
            Some(page) if !anchor.is_empty() && !page.has_anchor(anchor) => Err("no such heading"),
            _ => Ok(()),
        }
    }
}

/// A path that is meant from a folder, from the root.
fn resolve(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The name that a heading has in an address.
fn slug(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The lines of a page that are no example.
pub(super) fn outside_of_fences(file: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    file.lines().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        inside ^= is_fence;
        !inside && !is_fence
    })
}
