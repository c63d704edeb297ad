//! `semel fingerprint`: canonical form and fingerprint of an envelope, for people who hunt down
//! why two programs do not agree on them.

use std::io::Read;
use std::path::{Path, PathBuf};

use semel_core::envelope::Envelope;
use semel_core::fingerprint::{BodyHash, Fingerprint};
use semel_core::limits::ENVELOPE_JSON_BYTES_MAX;
use serde_json::json;

use crate::exit::{Exit, Failure, Form};
use crate::print;

const EXAMPLE: &str = r#"Examples:
  echo '{"destination_kind":"topic","destination_ref":"builds","message":"done","meta":{"n":1}}' |
    semel fingerprint
  semel fingerprint envelope.json --json"#;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Arguments {
    /// A JSON file with `destination_kind`, `destination_ref`, `message` or `body_base64`, and
    /// optionally `reply_to_id`, `priority`, `meta`; `-` reads stdin
    #[arg(default_value = "-")]
    file: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let form = Form::of_flag(arguments.json);
    let text = read(&arguments.file)?;
    let envelope =
        Envelope::from_json(&text).map_err(|refusal| Failure::refused(&refusal, form))?;
    let meta = envelope.meta().as_str();
    let body_hash = BodyHash::of(envelope.body()).to_hex();
    let fingerprint = Fingerprint::of(&envelope).to_hex();
    match form {
        Form::Json => {
            let document = json!({
                "canonical_meta": meta, "body_hash": body_hash, "fingerprint": fingerprint,
            });
            print(&format!("{document}\n"))
        }
        Form::Text => {
            let meta = if meta.is_empty() { "(none)" } else { meta };
            let lines = [("canonical meta", meta), ("body hash", &body_hash)];
            let lines = lines.into_iter().chain([("fingerprint", fingerprint.as_str())]);
            print(&lines.map(|(name, value)| format!("{name:<14}  {value}\n")).collect::<String>())
        }
    }
}

/// One byte past the limit is enough to know that the document is too large.
fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let limit = ENVELOPE_JSON_BYTES_MAX as u64 + 1;
    let done = if file == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(limit).read_to_end(&mut text))
    };
    match done {
        Ok(_) => Ok(text),
        Err(error) => {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let exit = if missing { Exit::NotFound } else { Exit::Failed };
            Err(Failure::new(exit, format!("error: {}: {error}", file.display())))
        }
    }
}
