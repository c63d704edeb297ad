//! A private authority for one run: brokers and the proxy before them show certificates that it
//! has signed, and daemons trust nobody else. A broker's certificate can be renewed while it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// Everything in a run listens here.
const HOST: &str = "127.0.0.1";

/// Signs what the processes of a run show each other.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// Both sides of a connection that passes the proxy.
#[derive(Clone)]
pub(crate) struct Ends {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Authority {
    /// Its certificate and a first one for the brokers are in the folder afterwards.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let authority = Self { issuer, folder: folder.to_owned() };
        fs::write(authority.certificate(), authority.issuer.pem())?;
        authority.renew()?;
        Ok(authority)
    }

    /// Whom daemons trust.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.folder.join("authority.pem")
    }

    /// The files of a broker's certificate and of its key.
    pub(crate) fn broker(&self) -> [PathBuf; 2] {
        ["broker-cert.pem", "broker-key.pem"].map(|name| self.folder.join(name))
    }

    /// A new certificate with a new key, in the place of the last.
    pub(crate) fn renew(&self) -> Result<()> {
        let (certificate, key) = self.sign()?;
        let [certificate_file, key_file] = self.broker();
        fs::write(certificate_file, certificate)?;
        fs::write(key_file, key)?;
        Ok(())
    }

    /// The certificate of a server that brokers and engines keep what they have in, its key, and
    /// whom to trust.
    pub(crate) fn server(&self, name: &str) -> Result<[PathBuf; 3]> {
        let (certificate, key) = self.sign()?;
        let files = ["cert", "key"].map(|kind| self.folder.join(format!("{name}-{kind}.pem")));
        let [certificate_file, key_file] = files;
        fs::write(&certificate_file, certificate)?;
        fs::write(&key_file, key)?;
        Ok([certificate_file, key_file, self.certificate()])
    }

    /// What the proxy is to daemons and to brokers.
    pub(crate) fn ends(&self) -> Result<Ends> {
        let (certificate, key) = self.sign()?;
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone())?;
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let acceptor = TlsAcceptor::from(Arc::new(server));
        Ok(Ends { acceptor, connector: TlsConnector::from(Arc::new(client)) })
    }

    fn sign(&self) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new([HOST.to_owned()])?;
        let certificate = params.signed_by(&key, &self.issuer).context("no certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

impl Ends {
    pub(crate) async fn accept(&self, daemon: TcpStream) -> Result<server::TlsStream<TcpStream>> {
        Ok(self.acceptor.accept(daemon).await?)
    }

    pub(crate) async fn connect(&self, broker: TcpStream) -> Result<client::TlsStream<TcpStream>> {
        Ok(self.connector.connect(ServerName::try_from(HOST)?, broker).await?)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
