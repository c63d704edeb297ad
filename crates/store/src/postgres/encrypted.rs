//! A connection to PostgreSQL inside TLS: what the driver wants of one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use sha2::{Digest, Sha256, Sha384, Sha512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as Stream;

use crate::tls::{TlsError, of_handshake};

/// Speaks TLS with whoever the driver has connected to.
#[derive(Clone)]
pub(super) struct Encryption(pub(super) Arc<ClientConfig>);

/// The same, and as whom the server has to show itself.
pub(super) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// What is said inside TLS.
pub(super) struct Encrypted<S>(Stream<S>);

type Error = Box<dyn std::error::Error + Send + Sync>;

impl<S> MakeTlsConnect<S> for Encryption
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = TlsError;

    /// Without a name it is a Unix socket, and the driver shakes no hands there.
    fn make_tls_connect(&mut self, domain: &str) -> Result<Handshake, TlsError> {
        let domain = if domain.is_empty() { "localhost" } else { domain };
        let name = ServerName::try_from(domain.to_owned()).map_err(|_| TlsError::Name)?;
        Ok(Handshake { connector: TlsConnector::from(Arc::clone(&self.0)), name })
    }
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Encrypted<S>, Error>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            match self.connector.connect(self.name, stream).await {
                Ok(stream) => Ok(Encrypted(stream)),
                Err(error) => match of_handshake(error) {
                    Ok(refused) => Err(refused.into()),
                    Err(error) => Err(error.into()),
                },
            }
        })
    }
}

impl<S> TlsStream for Encrypted<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// The password is proved for this certificate alone: whoever stands between with one of its
    /// own cannot pass the proof on.
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let shown = session.peer_certificates().and_then(<[_]>::first);
        match shown.and_then(end_point) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

/// The hash of a certificate, by the function that its signature was made with; SHA-256 for those
/// that are too old (RFC 5929, §4.1). Nothing where the signature names none.
fn end_point(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    const MD5_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 4];
    const SHA1_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 5];
    const SHA256_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11];
    const SHA384_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 12];
    const SHA512_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 13];
    const SHA256_ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    const SHA384_ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
    const SHA512_ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4];
    let bytes = certificate.as_ref();
    match signed_with(bytes)? {
        MD5_RSA | SHA1_RSA | SHA256_RSA | SHA256_ECDSA => Some(Sha256::digest(bytes).to_vec()),
        SHA384_RSA | SHA384_ECDSA => Some(Sha384::digest(bytes).to_vec()),
        SHA512_RSA | SHA512_ECDSA => Some(Sha512::digest(bytes).to_vec()),
        _ => None,
    }
}

/// `SEQUENCE { tbsCertificate SEQUENCE, signatureAlgorithm SEQUENCE { OBJECT IDENTIFIER, … }, … }`
fn signed_with(certificate: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    const OBJECT_IDENTIFIER: u8 = 6;
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (_, behind) = element(certificate, SEQUENCE)?;
    let (algorithm, _) = element(behind, SEQUENCE)?;
    Some(element(algorithm, OBJECT_IDENTIFIER)?.0)
}

/// What is in an element of DER, and what is behind it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| (length << 8) | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    if found == tag { rest.split_at_checked(length) } else { None }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use semel_testkit::servers::{self, tls_file};
    use tokio_postgres::error::SqlState;

    use super::super::password::Passwords;
    use super::super::reach::Reach;
    use super::*;

    /// Whoever asks that a statement is given up asks inside TLS, too: this server hears nobody
    /// else.
    #[tokio::test]
    async fn a_statement_is_cancelled_over_tls() {
        let database = servers::fresh_secure_postgres().await;
        let query = format!("sslmode=verify-full&sslrootcert={}", tls_file("authority.pem"));
        let (address, minute) = (database.at("localhost", &query), Duration::from_secs(60));
        let reach = Reach::of(&address, &Passwords::default(), minute, minute).unwrap();
        let encryption = reach.encryption.clone();
        let (client, connection) = reach.config.connect(encryption.clone()).await.unwrap();
        tokio::spawn(connection);
        let cancel = client.cancel_token();
        // One that comes before the statement cancels nothing.
        let cancelling = async {
            loop {
                cancel.cancel_query(encryption.clone()).await.unwrap();
            }
        };
        let ended = tokio::select! {
            ended = client.batch_execute("SELECT pg_sleep(50)") => ended,
            () = cancelling => unreachable!("it has no end"),
        };
        assert_eq!(ended.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
    }

    proptest! {
        #[test]
        fn no_certificate_makes_it_panic(bytes in prop::collection::vec(
            prop_oneof![Just(0x30u8), Just(6), Just(0x81), Just(0x84), Just(2), any::<u8>()],
            0..40,
        )) {
            let _ = signed_with(&bytes);
        }
    }
}
