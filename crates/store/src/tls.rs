//! TLS with a server that keeps things for us: whom it is believed to be, and who we are to it. The
//! words are those of libpq, because operators know them (decision 052).

mod verify;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::limits::PEM_BYTES_MAX;
use verify::{AnyName, Anybody};

/// Where systems keep the authorities that they trust.
pub const SYSTEM_AUTHORITIES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// How much of a server's certificate is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Nothing: what is said is encrypted, for whoever answers.
    Nothing,
    /// Whether somebody who is trusted has signed it.
    Chain,
    /// That, and whether it is for the name that was asked for.
    ChainAndName,
}

/// Which authorities may speak for a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Those that the system trusts.
    System,
    /// Those in this file.
    File(PathBuf),
}

/// The files that an address names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pem {
    /// Who may speak for the server; without it those whom the system trusts.
    pub trust: Option<Trust>,
    /// Our certificate, its chain after it.
    pub certificate: Option<PathBuf>,
    /// Its key, readable by its owner alone.
    pub key: Option<PathBuf>,
}

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that the address names cannot be used.
    #[error("{} cannot be used for TLS: {why}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        why: String,
    },

    /// Our certificate or its key is named alone.
    #[error("sslcert and sslkey must be given together")]
    Alone,

    /// The handshake failed, and will another time: the certificate is not what is asked for.
    #[error("it is not trusted: {0}")]
    Untrusted(#[source] rustls::Error),

    /// Nobody could have a certificate for this name.
    #[error("the server's name cannot be in a certificate")]
    Name,
}

/// What to speak TLS with. The files are read now, and not again.
pub fn client(check: Check, pem: &Pem) -> Result<Arc<ClientConfig>, TlsError> {
    // Named here and not taken from the process: nobody else can have chosen another one.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Untrusted)?;
    let builder = match check {
        Check::ChainAndName => builder.with_root_certificates(authorities(&pem.trust)?),
        Check::Chain => {
            let verifier = AnyName::new(authorities(&pem.trust)?, provider);
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        Check::Nothing => {
            let verifier = Anybody::new(provider);
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    let config = match (&pem.certificate, &pem.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate)?;
            let secret = secret(key)?;
            let config = builder.with_client_auth_cert(chain, secret);
            config.map_err(|error| file(certificate, &error))?
        }
        (Some(_), None) | (None, Some(_)) => return Err(TlsError::Alone),
    };
    Ok(Arc::new(config))
}

/// Whom to believe.
fn authorities(trust: &Option<Trust>) -> Result<RootCertStore, TlsError> {
    let system = || SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    let path = match trust {
        Some(Trust::File(path)) => path.clone(),
        Some(Trust::System) | None => system().ok_or_else(|| {
            let path = Path::new(SYSTEM_AUTHORITIES[0]);
            file(path, &"the system trusts no authorities; give sslrootcert=FILE")
        })?,
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        // One that this library does not understand cannot vouch for anybody.
        let _ = roots.add(certificate);
    }
    match roots.is_empty() {
        true => Err(file(&path, &"it has no certificate authority")),
        false => Ok(roots),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(open(path)?, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| file(path, &error))?;
    match found.is_empty() {
        true => Err(file(path, &"it has no certificate")),
        false => Ok(found),
    }
}

/// What is in the file is nobody's business, not even when it is no key.
fn secret(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let opened = open(path)?;
    let metadata = opened.metadata().map_err(|error| file(path, &error))?;
    // As libpq: the group may read what belongs to root.
    let others = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & others != 0 {
        let why = format!(
            "others can read or change it (mode {:03o}); to keep it: chmod 600 {}",
            metadata.mode() & 0o777,
            path.display()
        );
        return Err(file(path, &why));
    }
    let bytes = read(opened, path)?;
    let key = PrivateKeyDer::from_pem_slice(&bytes);
    key.map_err(|_| file(path, &"it has no readable private key"))
}

fn open(path: &Path) -> Result<File, TlsError> {
    File::open(path).map_err(|error| file(path, &error))
}

fn read(opened: File, path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = opened.take(PEM_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| file(path, &error))?;
    Ok(bytes)
}

fn file(path: &Path, why: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { path: path.to_owned(), why: why.to_string() }
}

/// What a handshake that failed says: whether it is the network that failed, or the server.
pub fn of_handshake(error: std::io::Error) -> Result<TlsError, std::io::Error> {
    let refused = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).cloned();
    refused.map(TlsError::Untrusted).ok_or(error)
}
