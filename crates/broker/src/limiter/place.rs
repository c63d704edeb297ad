//! Where the limiter's server is, and how it is spoken to: `redis://`, `rediss://` (TLS), or a Unix
//! socket. As with the store (decision 052), plain text is for this machine unless the address says
//! `insecure_allow_plain=true`, and the server has to prove its name.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
};
use rustls::pki_types::ServerName;
use semel_store::parameters::Parameters;
use semel_store::tls::{self, Check, TlsError};
use semel_wire::place::{Plain, may_be_plain};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::LimiterAddressError;

pub(super) struct Place {
    way: Way,
    /// As whom, and what is kept there.
    settings: RedisConnectionInfo,
}

enum Way {
    Plain(String, u16),
    Tls { host: String, port: u16, connector: TlsConnector, name: ServerName<'static> },
    Socket(PathBuf),
}

impl Place {
    /// Reads the address and the files that it names.
    pub(super) fn of(address: &str) -> Result<Self, LimiterAddressError> {
        let parameters = Parameters::of(address).map_err(LimiterAddressError::Parameters)?;
        if parameters.mode.is_some() || parameters.address.contains('#') {
            let why = "has an sslmode or a #; rediss:// is TLS with a server that proves its name";
            return Err(LimiterAddressError::Parameters(why));
        }
        let secure = ["rediss://", "valkeys://"]
            .iter()
            .find_map(|scheme| parameters.address.strip_prefix(scheme));
        // The driver makes no TLS for us: it reads the rest as if there were none.
        let plain = secure.map(|rest| format!("redis://{rest}"));
        let read = plain.as_deref().unwrap_or(&parameters.address).into_connection_info();
        let read = read.map_err(LimiterAddressError::Url)?;
        let settings = read.redis_settings().clone();
        let way = match read.addr() {
            ConnectionAddr::Tcp(host, port) if secure.is_some() => {
                let config = tls::client(Check::ChainAndName, &parameters.pem);
                let config = config.map_err(LimiterAddressError::Tls)?;
                let name = ServerName::try_from(host.clone());
                let name = name.map_err(|_| LimiterAddressError::Tls(TlsError::Name))?;
                let connector = TlsConnector::from(config);
                Way::Tls { host: host.clone(), port: *port, connector, name }
            }
            ConnectionAddr::Tcp(host, _) if !parameters.allow_plain && !is_here(host) => {
                return Err(LimiterAddressError::PlainText { host: host.clone() });
            }
            ConnectionAddr::Tcp(host, port) => Way::Plain(host.clone(), *port),
            ConnectionAddr::Unix(path) => Way::Socket(path.clone()),
            // The first is never made without the driver's own TLS.
            ConnectionAddr::TcpTls { .. } | _ => {
                return Err(LimiterAddressError::Parameters("has an unknown scheme"));
            }
        };
        Ok(Self { way, settings })
    }

    /// A connection on which this server knows who we are.
    pub(super) async fn connect(
        &self,
        config: AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        match &self.way {
            Way::Plain(host, port) => self.greet(tcp(host, *port).await?, config).await,
            Way::Socket(path) => self.greet(UnixStream::connect(path).await?, config).await,
            Way::Tls { host, port, connector, name } => {
                let stream = tcp(host, *port).await?;
                self.greet(connector.connect(name.clone(), stream).await?, config).await
            }
        }
    }

    async fn greet(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        config: AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let greeted = MultiplexedConnection::new_with_config(&self.settings, stream, config);
        let (connection, driver) = greeted.await?;
        let driver: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(driver);
        // It ends with the last of those who hold the connection.
        drop(tokio::spawn(driver));
        Ok(connection)
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A name other than `localhost` is another machine, wherever it leads today.
fn is_here(host: &str) -> bool {
    let is_own = |ip: IpAddr| may_be_plain(ip, Plain::LoopbackOnly);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_own)
}
