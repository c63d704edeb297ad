//! A gear to begin with.

use std::fs;
use std::path::Path;

use super::failed;
use crate::exit::{Exit, Failure};
use crate::print;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Language {
    Rust,
    Python,
}

type File = (&'static str, &'static str);

const PYTHON: &[File] = &[
    ("gear.toml", include_str!("template/python.toml")),
    ("main.py", include_str!("template/main.py")),
    ("semel_gear.py", include_str!("../../../../sdk/gear-python/semel_gear.py")),
];

const RUST: &[File] = &[
    ("Cargo.toml", include_str!("template/cargo.toml")),
    ("src/main.rs", include_str!("template/main.rs.txt")),
    ("package/gear.toml", include_str!("template/rust.toml")),
];

pub(super) fn run(folder: &Path, language: Language) -> Result<(), Failure> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || !name.bytes().all(plain) {
        let text = "error: the folder's name becomes the gear's name: use lower-case letters, \
                    digits and hyphens";
        return Err(Failure::new(Exit::Usage, text));
    }
    if folder.exists() {
        let text = format!("error: {} exists already", folder.display());
        return Err(Failure::new(Exit::Conflict, text));
    }
    let files = match language {
        Language::Rust => RUST,
        Language::Python => PYTHON,
    };
    for (path, text) in files {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(folder);
        let written = fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, text.replace("GEAR_NAME", name)));
        written.map_err(|error| failed(format!("{}: {error}", path.display())))?;
    }
    let folder = folder.display();
    let (build, package) = match language {
        Language::Rust => (
            format!(
                "cd {folder} && cargo build --release && \
                 install -D target/release/{name} package/bin/{name}\n"
            ),
            format!("{folder}/package"),
        ),
        Language::Python => (String::new(), folder.to_string()),
    };
    let params = r#"'{"name": "world"}'"#;
    print(&format!(
        "{build}semel gear test {package} --action greet --params {params}\n\
         semel gear install {package}\n"
    ))
}
