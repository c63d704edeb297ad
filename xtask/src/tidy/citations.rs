//! `citations`: what code and documents refer to is there. That is a page (`jobs.md`), a section of
//! it (`mesh.md §7`) or one of its titles (`broker.md, "Push"`), a trap, a decision, a path under
//! `docs/`, and what a relative Markdown link leads to. A page is found by its name at the root, in
//! `docs/` or in `docs/design/`; where there are two, one of them must have the section.

mod library;
mod prose;

use super::Violation;
use super::source::SourceFile;
use library::Library;
use prose::Prose;

const RULE: &str = "citations";
const EXTENSIONS: [&str; 7] = ["rs", "md", "sql", "py", "toml", "sh", "json"];
const PAGE: &str = ".md";

pub(crate) fn check(files: &[SourceFile], found: &mut Vec<Violation>) {
    let library = Library::of(files);
    for file in files.iter().filter(|file| is_read(file)) {
        let prose = Prose::of(file);
        let mut reader = Reader { file, prose: &prose, library: &library, found: &mut *found };
        let mut sections = reader.pages();
        sections.sort_unstable();
        reader.own_sections(&sections);
        reader.traps();
        reader.decisions();
        if file.extension() == Some("md") {
            reader.links();
        }
    }
}

fn is_read(file: &SourceFile) -> bool {
    let known = file.extension().is_some_and(|extension| EXTENSIONS.contains(&extension));
    known && !file.is_golden() && !file.is_tidy_itself() && !file.text.contains('\0')
}

struct Reader<'a> {
    file: &'a SourceFile,
    prose: &'a Prose,
    library: &'a Library<'a>,
    found: &'a mut Vec<Violation>,
}

impl Reader<'_> {
    fn report(&mut self, at: usize, message: String) {
        self.found.push(Violation::new(self.file, self.prose.line(at), RULE, message));
    }

    /// Every `NAME.md`. Gives back where the signs `§` are that belong to one.
    fn pages(&mut self) -> Vec<usize> {
        let mut consumed = Vec::new();
        let prose = self.prose;
        let text = prose.text.as_str();
        for (at, _) in text.match_indices(PAGE) {
            let end = at + PAGE.len();
            let path = prose::path_before(text, at);
            if path.is_empty() || text[end..].starts_with(prose::is_word) {
                continue;
            }
            let name = format!("{path}{PAGE}");
            let rest = text[end..].trim_start_matches('`');
            let after = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            // A quotation mark without a space before it ends a string of code.
            let title = if after.len() < rest.len() { prose::quoted(after) } else { None };
            let from = text.len() - after.len();
            let sections = prose::sections(text, from);
            consumed.extend(sections.iter().map(|(at, _)| *at));
            let numbers: Vec<_> = sections.into_iter().map(|(_, number)| number).collect();
            self.page(at, &name, &numbers, title);
        }
        consumed
    }

    fn page(&mut self, at: usize, name: &str, sections: &[String], title: Option<&str>) {
        let pages = self.library.pages(name, self.file);
        if pages.is_empty() {
            return self.report(at, format!("there is no page `{name}`"));
        }
        for number in sections {
            if !pages.iter().any(|page| page.has_section(number)) {
                self.report(at, format!("`{name}` has no section {number}"));
            }
        }
        if let Some(title) = title
            && !pages.iter().any(|page| page.has_title(title))
        {
            self.report(at, format!("`{name}` has no heading \"{title}\""));
        }
    }

    /// A section without a page is one of the page's own, where its sections have numbers.
    fn own_sections(&mut self, of_others: &[usize]) {
        let prose = self.prose;
        let Some(own) = self.library.design_page(&self.file.path) else { return };
        for (at, _) in prose.text.match_indices('§') {
            let number = prose::section_number(&prose.text[at + '§'.len_utf8()..]);
            if of_others.binary_search(&at).is_err() && !own.has_section(&number) {
                self.report(at, format!("this page has no section {number}"));
            }
        }
    }

    fn traps(&mut self) {
        let prose = self.prose;
        for word in ["trap ", "traps ", "traps.md "] {
            for (at, number) in prose::numbers_after(&prose.text, word) {
                if !self.library.has_trap(&number) {
                    self.report(at, format!("there is no trap {number}"));
                }
            }
        }
    }

    fn decisions(&mut self) {
        let prose = self.prose;
        for word in ["decision ", "decisions ", "decisions/"] {
            for (at, number) in prose::numbers_after(&prose.text, word) {
                if number.len() == 3 && !self.library.has_decision(&number) {
                    self.report(at, format!("there is no decision {number}"));
                }
            }
        }
    }

    fn links(&mut self) {
        for (line, target) in prose::links(self.file) {
            if let Err(why) = self.library.follow(self.file, target) {
                let message = format!("the link to `{target}` leads nowhere: {why}");
                self.found.push(Violation::new(self.file, line, RULE, message));
            }
        }
    }
}

#[cfg(test)]
mod tests;
