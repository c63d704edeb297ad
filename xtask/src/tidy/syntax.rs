//! A Rust file as tokens and as a tree, with the lines that only tests compile.
//!
//! Most rules look at the tokens: unlike the tree they include the inside of macros, and unlike
//! the text they leave out comments. Documentation is a comment here.

use std::ops::RangeInclusive;
use std::str::FromStr;

use proc_macro2::{Delimiter, Group, Literal, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::source::SourceFile;

pub(crate) struct Syntax {
    pub(crate) tokens: Vec<Token>,
    pub(crate) functions: Vec<Function>,
    /// Bodies of `#[cfg(test)] mod …`, attributes included.
    pub(crate) test_modules: Vec<RangeInclusive<usize>>,
}

pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) line: usize,
    /// Compiled for tests only.
    pub(crate) in_test: bool,
}

pub(crate) enum Kind {
    Word(String),
    Sign(char),
    Literal(Literal),
    Open(Delimiter),
    Close,
}

pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// Lines between the braces.
    pub(crate) body_lines: usize,
    pub(crate) in_test: bool,
}

impl Syntax {
    /// The error is a line and a message.
    pub(crate) fn parse(file: &SourceFile) -> Result<Self, (usize, String)> {
        let stream = TokenStream::from_str(&file.text)
            .map_err(|error| (error.span().start().line, error.to_string()))?;
        let tree: syn::File = syn::parse2(stream.clone())
            .map_err(|error| (error.span().start().line, error.to_string()))?;
        let mut finder = Finder::default();
        finder.visit_file(&tree);
        let mut syntax = Self {
            tokens: Vec::new(),
            functions: finder.functions,
            test_modules: finder.test_modules,
        };
        flatten(stream, &mut syntax.tokens);
        let in_test =
            |line| file.is_test() || finder.test_items.iter().any(|item| item.contains(&line));
        for token in &mut syntax.tokens {
            token.in_test = in_test(token.line);
        }
        for function in &mut syntax.functions {
            function.in_test = in_test(function.line);
        }
        Ok(syntax)
    }

    pub(crate) fn word(&self, index: usize) -> Option<&str> {
        match &self.tokens.get(index)?.kind {
            Kind::Word(word) => Some(word),
            Kind::Sign(_) | Kind::Literal(_) | Kind::Open(_) | Kind::Close => None,
        }
    }

    pub(crate) fn is_sign(&self, index: usize, sign: char) -> bool {
        matches!(self.tokens.get(index), Some(Token { kind: Kind::Sign(c), .. }) if *c == sign)
    }

    pub(crate) fn is_open(&self, index: usize, delimiter: Delimiter) -> bool {
        matches!(self.tokens.get(index), Some(Token { kind: Kind::Open(d), .. }) if *d == delimiter)
    }

    /// The words inside the group that opens at `index`, at any depth.
    pub(crate) fn words_in_group(&self, index: usize) -> Vec<(usize, &str)> {
        let mut depth = 0_usize;
        let mut words = Vec::new();
        for (at, token) in self.tokens.iter().enumerate().skip(index) {
            match &token.kind {
                Kind::Open(_) => depth += 1,
                Kind::Close => depth = depth.saturating_sub(1),
                Kind::Word(word) => words.push((at, word.as_str())),
                Kind::Sign(_) | Kind::Literal(_) => {}
            }
            if depth == 0 {
                break;
            }
        }
        words
    }

    /// What follows `word::` at `index`: one name, or all the names in `word::{…}`.
    pub(crate) fn names_in(&self, index: usize, word: &str) -> Vec<(usize, &str)> {
        let path = self.word(index) == Some(word)
            && self.is_sign(index + 1, ':')
            && self.is_sign(index + 2, ':');
        if !path {
            Vec::new()
        } else if self.is_open(index + 3, Delimiter::Brace) {
            self.words_in_group(index + 3)
        } else {
            self.word(index + 3).map(|name| (index + 3, name)).into_iter().collect()
        }
    }
}

fn flatten(stream: TokenStream, into: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let kind = match tree {
            TokenTree::Ident(ident) => Kind::Word(ident.to_string()),
            TokenTree::Literal(literal) => Kind::Literal(literal),
            TokenTree::Punct(punct) => Kind::Sign(punct.as_char()),
            TokenTree::Group(group) => {
                flatten_group(&group, into);
                continue;
            }
        };
        into.push(Token { kind, line, in_test: false });
    }
}

fn flatten_group(group: &Group, into: &mut Vec<Token>) {
    if is_documentation(group.stream()) {
        return;
    }
    let open = Kind::Open(group.delimiter());
    into.push(Token { kind: open, line: group.span_open().start().line, in_test: false });
    flatten(group.stream(), into);
    let line = group.span_close().start().line;
    into.push(Token { kind: Kind::Close, line, in_test: false });
}

/// The inside of `#[doc = "…"]`, which is what the parser makes of `///`.
fn is_documentation(inside: TokenStream) -> bool {
    let mut trees = inside.into_iter();
    matches!(
        (trees.next(), trees.next(), trees.next(), trees.next()),
        (Some(TokenTree::Ident(name)), Some(TokenTree::Punct(sign)), Some(_), None)
            if name == "doc" && sign.as_char() == '='
    )
}

#[derive(Default)]
struct Finder {
    functions: Vec<Function>,
    test_modules: Vec<RangeInclusive<usize>>,
    test_items: Vec<RangeInclusive<usize>>,
}

impl Finder {
    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let braces = body.brace_token.span;
        let (open, close) = (braces.open().start().line, braces.close().start().line);
        self.functions.push(Function {
            name: signature.ident.to_string(),
            line: signature.ident.span().start().line,
            body_lines: close.saturating_sub(open + 1),
            in_test: false,
        });
    }

    fn item(&mut self, attributes: &[syn::Attribute], item: &impl Spanned) {
        if attributes.iter().any(is_for_tests) {
            self.test_items.push(lines_of(item));
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.attrs.iter().any(is_for_tests) && item.content.is_some() {
            self.test_modules.push(lines_of(item));
        }
        self.item(&item.attrs, item);
        visit::visit_item_mod(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.item(&item.attrs, item);
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.item(&item.attrs, item);
        visit::visit_item_impl(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.item(&item.attrs, item);
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.item(&item.attrs, item);
    }
}

fn lines_of(item: &impl Spanned) -> RangeInclusive<usize> {
    let span = item.span();
    span.start().line..=span.end().line
}

/// `#[test]`, `#[tokio::test]`, `#[cfg(test)]` and `#[cfg(all(test, …))]`; not `any`, which also
/// compiles without tests.
fn is_for_tests(attribute: &syn::Attribute) -> bool {
    if attribute.path().segments.last().is_some_and(|segment| segment.ident == "test") {
        return true;
    }
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let mut trees = list.tokens.clone().into_iter();
    let is_word = |tree: &TokenTree, word| matches!(tree, TokenTree::Ident(name) if name == word);
    list.path.is_ident("cfg")
        && match (trees.next(), trees.next()) {
            (Some(tree), None) => is_word(&tree, "test"),
            (Some(tree), Some(TokenTree::Group(group))) => {
                is_word(&tree, "all") && group.stream().into_iter().any(|t| is_word(&t, "test"))
            }
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syntax(text: &str) -> Syntax {
        Syntax::parse(&SourceFile::new("crates/core/src/a.rs", text)).ok().unwrap()
    }

    fn words(syntax: &Syntax, in_test: bool) -> Vec<&str> {
        let wanted = |index: &usize| syntax.tokens[*index].in_test == in_test;
        let indices = (0..syntax.tokens.len()).filter(wanted);
        indices.filter_map(|index| syntax.word(index)).collect()
    }

    #[test]
    fn comments_are_no_tokens() {
        let syntax = syntax("//! One.\n/// Two.\n// Three.\n#[doc = \"four\"]\nstruct A;\n");
        assert_eq!(words(&syntax, false), ["struct", "A"]);
    }

    #[test]
    fn what_only_tests_compile_is_marked() {
        for attribute in ["cfg(test)", "cfg(all(test, unix))", "test", "tokio::test"] {
            let syntax = syntax(&format!("fn a() {{}}\n#[{attribute}]\nfn b() {{}}\n"));
            assert_eq!(words(&syntax, false), ["fn", "a"], "{attribute}");
        }
        for attribute in ["cfg(not(test))", "cfg(any(test, unix))", "inline"] {
            let syntax = syntax(&format!("#[{attribute}]\nfn b() {{}}\n"));
            assert!(words(&syntax, true).is_empty(), "{attribute}");
        }
    }

    #[test]
    fn names_after_a_path() {
        let syntax = syntax("use a::b;\nuse a::{c, d::e};\nfn f() { a.b }\n");
        let all = (0..syntax.tokens.len()).flat_map(|index| syntax.names_in(index, "a"));
        assert_eq!(all.map(|(_, name)| name).collect::<Vec<_>>(), ["b", "c", "d", "e"]);
    }
}
