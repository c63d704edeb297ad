//! The door of the broker in `semel up`: for other hosts, and for the daemon of this process, which
//! never leaves this machine to reach it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use semel_broker::connection::Broker;
use semel_broker::server;
use semel_wire::place::{Plain, may_be_plain};
use tokio::net::TcpListener;

use crate::broker::tls::Certificate;
use crate::budget;
use crate::exit::{Exit, Failure};
use crate::system::loopback;

/// What is listened on, and what it is called.
pub(super) struct Door {
    /// The address for other hosts.
    pub(super) told: String,
    /// The address for the daemon of this process.
    pub(super) own: String,
    pub(super) certificate: Option<Arc<Certificate>>,
    listener: TcpListener,
    /// Where the daemon comes in, when the listener is none for it: it speaks TLS under a name that
    /// others use, or is on an address that other machines can reach.
    inner: Option<TcpListener>,
}

impl Door {
    pub(super) async fn open(
        listen: SocketAddr,
        certificate: Option<Certificate>,
    ) -> Result<Self, Failure> {
        let (listener, address) = bind(listen).await?;
        let certificate = certificate.map(Arc::new);
        let is_here = may_be_plain(address.ip(), Plain::LoopbackOnly);
        let inner = match certificate.is_none() && is_here {
            true => None,
            false => Some(bind(loopback(0)).await?),
        };
        let scheme = if certificate.is_some() { "wss" } else { "ws" };
        let told = format!("{scheme}://{address}/v1/mesh");
        let own = inner.as_ref().map_or(address, |(_, address)| *address);
        let own = format!("ws://{own}/v1/mesh");
        let inner = inner.map(|(inner, _)| inner);
        Ok(Self { told, own, certificate, listener, inner })
    }

    pub(super) async fn serve(
        self,
        routes: Router,
        broker: Arc<Broker>,
        stopping: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let tls = self.certificate.map(|certificate| Arc::clone(&certificate.config));
        let connections = server::room(budget::now().broker);
        let own = self.inner;
        let options =
            server::Options { tls, routes, own, connections, ..server::Options::default() };
        server::serve_with(options, broker, self.listener, stopping).await
    }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Unavailable, format!("error: {address}: {error}"))
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}
