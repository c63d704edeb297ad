//! Servers that speak TLS alone, with certificates of a private authority, and a folder in which
//! tests find what they need to reach and to believe them:
//!
//! | file | holds |
//! |---|---|
//! | `authority.pem` | who has signed the servers' certificates, for `localhost` and `db.example` |
//! | `other.pem` | an authority that has signed nothing |
//! | `client.pem`, `client-key.pem` | a certificate for PostgreSQL's user `semel_client` |
//! | `postgres` | port, password of the user `semel`, the address over the Unix socket |
//! | `redis` | port and password |

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

use super::Postgres;
use super::find::PostgresPrograms;
use super::postgres::Doors;
use super::redis::Redis;

/// What the servers are called.
const NAMES: [&str; 2] = ["localhost", "db.example"];

/// The running servers.
pub(super) struct Secure {
    _postgres: Postgres,
    _redis: Redis,
    folder: String,
}

impl Secure {
    pub(super) fn start(postgres: &PostgresPrograms, redis: &Path, parent: &Path) -> Result<Self> {
        let folder = parent.join("tls");
        fs::create_dir(&folder)?;
        let [authority, certificate, key] = certificates(&folder)?;
        let doors = Doors::Tls([&certificate, &key, &authority]);
        let postgres = Postgres::start_with(postgres, parent.join("postgres-tls"), doors)?;
        let redis = Redis::start_with_tls(redis, parent, [&certificate, &key, &authority])?;
        let (port, password) = (postgres.port(), postgres.password());
        let socket = postgres.socket_url();
        write(&folder, "postgres", &format!("{port}\n{password}\n{socket}\n"))?;
        write(&folder, "redis", &format!("{}\n{}\n", redis.port(), redis.password()))?;
        let folder = folder.to_str().context("a folder's name is text")?.to_owned();
        Ok(Self { _postgres: postgres, _redis: redis, folder })
    }

    /// Where tests find everything.
    pub(super) fn folder(&self) -> &str {
        &self.folder
    }
}

/// The files of the authority, the servers' certificate and its key.
fn certificates(folder: &Path) -> Result<[PathBuf; 3]> {
    let (authority, other) = (authority("semel test")?, authority("somebody else")?);
    write(folder, "other.pem", &other.pem())?;
    let (certificate, key) = signed(&authority, NAMES.map(str::to_owned).to_vec(), None)?;
    let (client, client_key) = signed(&authority, Vec::new(), Some("semel_client"))?;
    write(folder, "client.pem", &client)?;
    write(folder, "client-key.pem", &client_key)?;
    Ok([
        write(folder, "authority.pem", &authority.pem())?,
        write(folder, "server.pem", &certificate)?,
        write(folder, "server-key.pem", &key)?,
    ])
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn signed(
    authority: &CertifiedIssuer<'static, KeyPair>,
    names: Vec<String>,
    whose: Option<&str>,
) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    if let Some(whose) = whose {
        params.distinguished_name.push(DnType::CommonName, whose);
    }
    let certificate = params.signed_by(&key, authority)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    Ok(path)
}
