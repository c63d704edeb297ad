//! Whom a daemon trusts to be its broker.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::exit::{Exit, Failure};

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
    /// Trust the authorities in this file (PEM) instead of the system's
    #[arg(long, value_name = "FILE")]
    broker_ca: Option<PathBuf>,
}

impl Trust {
    /// What to speak TLS with; nothing for a broker in plain text.
    pub(crate) fn open(&self, url: &str) -> Result<Option<Arc<ClientConfig>>, Failure> {
        if !url.starts_with("wss://") && !url.starts_with("https://") {
            return Ok(None);
        }
        let path = match &self.broker_ca {
            Some(path) => path.clone(),
            None => {
                let found = SYSTEM.iter().map(PathBuf::from).find(|path| path.exists());
                found.ok_or_else(|| {
                    refused(Path::new(SYSTEM[0]), "there are none; say --broker-ca FILE")
                })?
            }
        };
        let mut roots = RootCertStore::empty();
        let file = File::open(&path).map_err(|error| refused(&path, &error.to_string()))?;
        let reader = BufReader::new(file.take(BYTES_MAX));
        for certificate in CertificateDer::pem_reader_iter(reader) {
            let certificate = certificate.map_err(|error| refused(&path, &error.to_string()))?;
            // One that this library does not understand cannot vouch for anybody.
            let _ = roots.add(certificate);
        }
        if roots.is_empty() {
            return Err(refused(&path, "there is no authority in it"));
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(&path, &error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Some(Arc::new(config)))
    }
}

fn refused(path: &Path, why: &str) -> Failure {
    let text = format!("error: the authorities in {} cannot be used: {why}", path.display());
    Failure::new(Exit::Refused, text)
}
