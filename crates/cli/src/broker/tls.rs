//! Whether a broker speaks TLS, and with which certificate.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use semel_broker::limits::PEM_BYTES_MAX;

use crate::exit::{Exit, Failure};

#[derive(Debug, clap::Args)]
pub(super) struct Tls {
    /// Speak TLS with this certificate, its chain after it (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Serve without TLS on an address that others can reach
    #[arg(long, conflicts_with = "tls_cert")]
    insecure_allow_plain: bool,
}

impl Tls {
    /// What to speak on this address; `None` is plain text, which only this machine may hear.
    pub(super) fn open(&self, listen: SocketAddr) -> Result<Option<Arc<ServerConfig>>, Failure> {
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            return configuration(certificate, key).map(Some);
        }
        if listen.ip().is_loopback() || self.insecure_allow_plain {
            return Ok(None);
        }
        let text = format!(
            "error: {listen} can be reached from other machines, and this broker would speak plain \
             text\npass --tls-cert and --tls-key, or put a proxy with TLS before it and pass \
             --insecure-allow-plain"
        );
        Err(Failure::new(Exit::Refused, text))
    }
}

fn configuration(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, Failure> {
    let chain = CertificateDer::pem_reader_iter(open(certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| refused(certificate, error))?;
    if chain.is_empty() {
        return Err(refused(certificate, "there is no certificate in it"));
    }
    // What is in the file is nobody's business, not even when it is no key.
    let secret = PrivateKeyDer::from_pem_reader(open(key)?)
        .map_err(|_| refused(key, "there is no private key in it that can be read"))?;
    // Named here and not taken from the process: nobody else can have chosen another one.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut configuration = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(certificate, error))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| {
            refused(certificate, format_args!("with the key {}: {error}", key.display()))
        })?;
    configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(configuration))
}

fn open(path: &Path) -> Result<BufReader<std::io::Take<File>>, Failure> {
    let file = File::open(path).map_err(|error| refused(path, error))?;
    Ok(BufReader::new(file.take(PEM_BYTES_MAX)))
}

fn refused(path: &Path, why: impl Display) -> Failure {
    let text = format!("error: {} cannot be used for TLS: {why}", path.display());
    Failure::new(Exit::Refused, text)
}
