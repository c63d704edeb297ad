//! Whether a broker speaks TLS, and with which certificate.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use semel_broker::limits::PEM_BYTES_MAX;
use semel_wire::place::{Plain, may_be_plain};

use crate::exit::{Exit, Failure};
use crate::started::Started;

#[derive(Debug, clap::Args)]
pub(crate) struct Tls {
    /// Serve TLS with this certificate, followed by its chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Serve without TLS on an address that other machines can reach
    #[arg(long, conflicts_with = "tls_cert")]
    insecure_allow_plain: bool,
}

impl Tls {
    /// What to speak on this address; `None` is plain text, which only this machine may hear.
    pub(crate) fn open(&self, listen: SocketAddr) -> Result<Option<Certificate>, Failure> {
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            return Certificate::open(certificate, key).map(Some);
        }
        let plain = if self.insecure_allow_plain { Plain::Allowed } else { Plain::LoopbackOnly };
        if may_be_plain(listen.ip(), plain) {
            return Ok(None);
        }
        let text = format!(
            "error: {listen} can be reached from other machines, and this broker would speak plain \
             text\n\
             pass --tls-cert and --tls-key, or put a proxy with TLS in front of it and pass \
             --insecure-allow-plain"
        );
        Err(Failure::new(Exit::Refused, text))
    }
}

impl Tls {
    pub(crate) fn add_to(&self, started: Started) -> Started {
        started
            .file("--tls-cert", self.tls_cert.as_deref())
            .file("--tls-key", self.tls_key.as_deref())
            .flag("--insecure-allow-plain", self.insecure_allow_plain)
    }
}

/// Who this broker is: a certificate that can be renewed while it serves.
pub(crate) struct Certificate {
    pub(crate) config: Arc<ServerConfig>,
    shown: Arc<Shown>,
    provider: Arc<CryptoProvider>,
    certificate: PathBuf,
    key: PathBuf,
}

/// What the next handshake shows.
#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Certificate {
    fn open(certificate: &Path, key: &Path) -> Result<Self, Failure> {
        // Named here and not taken from the process: nobody else can have chosen another one.
        let provider = Arc::new(aws_lc_rs::default_provider());
        let shown = Arc::new(Shown(RwLock::new(certified(&provider, certificate, key)?)));
        let resolver = Arc::clone(&shown);
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(certificate, error))?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Self { config: Arc::new(config), shown, provider, certificate, key })
    }

    /// Reads both files again. Connections that live go on; what cannot be used changes nothing.
    pub(crate) fn reload(&self) -> Result<(), Failure> {
        let renewed = certified(&self.provider, &self.certificate, &self.key)?;
        *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(())
    }
}

fn certified(
    provider: &CryptoProvider,
    certificate: &Path,
    key: &Path,
) -> Result<Arc<CertifiedKey>, Failure> {
    let chain = CertificateDer::pem_reader_iter(open(certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| refused(certificate, error))?;
    if chain.is_empty() {
        return Err(refused(certificate, "it has no certificate"));
    }
    // What is in the file is nobody's business, not even when it is no key.
    let secret = PrivateKeyDer::from_pem_reader(open(key)?)
        .map_err(|_| refused(key, "it has no readable private key"))?;
    let certified = CertifiedKey::from_der(chain, secret, provider).map_err(|error| {
        refused(certificate, format_args!("with the key {}: {error}", key.display()))
    })?;
    Ok(Arc::new(certified))
}

fn open(path: &Path) -> Result<BufReader<std::io::Take<File>>, Failure> {
    let file = File::open(path).map_err(|error| refused(path, error))?;
    Ok(BufReader::new(file.take(PEM_BYTES_MAX)))
}

fn refused(path: &Path, why: impl Display) -> Failure {
    let text = format!("error: {} cannot be used for TLS: {why}", path.display());
    Failure::new(Exit::Refused, text)
}
