//! The one way to a broker: resolve, judge each address, connect to that very address, and speak
//! TLS where the place says so. Nothing is said in plain text where others could hear it, and not
//! a byte before the handshake has shown who is there.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use semel_core::refusal::Refusal;
use semel_wire::place::{BrokerPlace, Plain, in_plain_text, may_be_plain};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::limits::DIAL_ADDRESSES_MAX;

/// Plain or over TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// How a broker is reached. Clones share whom they trust.
#[derive(Clone)]
pub struct Dialler {
    place: BrokerPlace,
    plain: Plain,
    tls: Arc<RwLock<Option<Arc<ClientConfig>>>>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum DialError {
    /// It would be heard by others. `always` when the address itself says so, and no name that may
    /// mean another address later.
    PlainText { refusal: Refusal, always: bool },
    /// The place and what is known of it do not go together.
    Unfit(String),
    /// Nobody answers there.
    Silent(String),
    /// Somebody answers, but not as a broker.
    Away(String),
}

impl Dialler {
    /// `tls` is needed for a place that speaks TLS.
    pub fn new(place: BrokerPlace, plain: Plain, tls: Option<Arc<ClientConfig>>) -> Self {
        Self { place, plain, tls: Arc::new(RwLock::new(tls)) }
    }

    /// Where it is.
    pub fn place(&self) -> &BrokerPlace {
        &self.place
    }

    /// From the next connection on, others are trusted.
    pub fn trust(&self, tls: Option<Arc<ClientConfig>>) {
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
    }

    /// A connection on which nothing has been said but TLS; `over` is put between the two.
    pub(crate) async fn dial<S: Stream + 'static>(
        &self,
        over: impl FnOnce(TcpStream) -> S,
    ) -> Result<Box<dyn Stream>, DialError> {
        let stream = over(self.connect().await?);
        if !self.place.is_secure() {
            return Ok(Box::new(stream));
        }
        let config = self.tls.read().unwrap_or_else(PoisonError::into_inner).clone();
        let config = config.ok_or_else(|| DialError::Unfit("TLS is not set up".to_owned()))?;
        let host = self.place.host();
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| DialError::Unfit(format!("{host}: {error}")))?;
        let stream = TlsConnector::from(config).connect(name, stream).await;
        Ok(Box::new(stream.map_err(|error| DialError::Away(error.to_string()))?))
    }

    /// The first of the host's addresses that answers.
    async fn connect(&self) -> Result<TcpStream, DialError> {
        let silent = |error: std::io::Error| DialError::Silent(error.to_string());
        // Without a resolver, and before anything leaves this machine.
        let addresses: Vec<SocketAddr> = match self.place.literal() {
            Some(ip) => vec![SocketAddr::new(ip, self.place.port())],
            None => {
                let host = (self.place.host(), self.place.port());
                lookup_host(host).await.map_err(silent)?.take(DIAL_ADDRESSES_MAX).collect()
            }
        };
        let mut last = DialError::Silent("no such host".to_owned());
        for address in addresses {
            self.judge(address.ip())?;
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    // What is said is small, and somebody waits for each.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(error) => last = unreachable(&error),
            }
        }
        Err(last)
    }

    fn judge(&self, ip: IpAddr) -> Result<(), DialError> {
        if self.place.is_secure() || may_be_plain(ip, self.plain) {
            return Ok(());
        }
        Err(DialError::PlainText {
            refusal: in_plain_text(ip),
            always: self.place.literal().is_some(),
        })
    }
}

/// Somebody has said so, or nobody has said anything.
fn unreachable(error: &std::io::Error) -> DialError {
    let kinds = [ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset];
    match kinds.contains(&error.kind()) {
        true => DialError::Away(error.to_string()),
        false => DialError::Silent(error.to_string()),
    }
}
