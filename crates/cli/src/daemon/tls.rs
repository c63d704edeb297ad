//! Whom a daemon trusts to be its broker, and whether it may speak plain text.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use semel_core::refusal::Refusal;
use semel_daemon::home::{Home, HomeFile};
use semel_wire::place::{BrokerPlace, Plain};

use crate::exit::{Exit, Failure, Form};

/// Where systems keep the authorities that they trust.
const SYSTEM: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Bytes of a file of authorities.
const BYTES_MAX: u64 = 16 << 20;

/// Which authorities may speak for a broker.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Trust {
    /// Trust the certificate authorities in this file (PEM) instead of the system's
    #[arg(long, value_name = "FILE")]
    broker_ca: Option<PathBuf>,
}

/// Whether plain text may go to other machines.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct PlainText {
    /// Allow plain text to a broker on another machine; others on the network can read and change
    /// everything. The home remembers this choice
    #[arg(long)]
    insecure_allow_plain: bool,
}

impl PlainText {
    pub(crate) fn plain(&self) -> Plain {
        if self.insecure_allow_plain { Plain::Allowed } else { Plain::LoopbackOnly }
    }
}

impl Trust {
    /// What to speak TLS with; nothing for a broker in plain text. The authorities are those of the
    /// command line, else those that this home has kept, else the system's.
    pub(crate) fn open(
        &self,
        place: &BrokerPlace,
        home: Option<&Home>,
    ) -> Result<Option<Arc<ClientConfig>>, Failure> {
        if !place.is_secure() {
            return Ok(None);
        }
        let kept = || home.map(|home| home.path(HomeFile::BrokerCa)).filter(|path| path.exists());
        match self.broker_ca.clone().or_else(kept) {
            Some(path) => configuration(&read(&path)?, &path).map(Some),
            None => system().map(Some),
        }
    }

    /// The file that was named, to be kept in a home.
    pub(crate) fn named(&self) -> Result<Option<Vec<u8>>, Failure> {
        self.broker_ca.as_deref().map(read).transpose()
    }

    /// Where that file is.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.broker_ca.as_deref()
    }
}

/// TLS with the authorities of the system.
pub(crate) fn system() -> Result<Arc<ClientConfig>, Failure> {
    let found = SYSTEM.iter().map(PathBuf::from).find(|path| path.exists());
    let path = found.ok_or_else(|| {
        refused(Path::new(SYSTEM[0]), "the system has none; give --broker-ca FILE")
    })?;
    configuration(&read(&path)?, &path)
}

/// Plain text where it may not be: nothing was sent.
pub(crate) fn in_plain_text(refusal: &Refusal, form: Form) -> Failure {
    Failure { exit: Exit::Refused, ..Failure::refused(refusal, form) }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: std::io::Error| refused(path, &error.to_string());
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn configuration(pem: &[u8], path: &Path) -> Result<Arc<ClientConfig>, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| refused(path, &error.to_string()))?;
        // One that this library does not understand cannot vouch for anybody.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(refused(path, "it has no certificate authority"));
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(path, &error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn refused(path: &Path, why: &str) -> Failure {
    let text = format!("error: the authorities in {} cannot be used: {why}", path.display());
    Failure::new(Exit::Refused, text)
}
