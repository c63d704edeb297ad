//! Who may call: the matrix of doors, tokens, hosts and origins.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use semel_api::Api;
use semel_api::access::Tokens;
use semel_api::door::{Listener, bind_socket, serve};
use semel_core::clock::Clock;
use semel_testkit::http::{request, say};
use tokio::net::{TcpListener, TcpStream};

use super::support::{TOKEN, member, options, served, served_with};
use crate::http::part;
use crate::http::table::ROUTES;

fn bearer() -> (&'static str, String) {
    ("Authorization", format!("Bearer {TOKEN}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_needs_a_token_over_tcp_and_none_over_the_socket() {
    let served = served().await;
    let (name, token) = bearer();
    for route in ROUTES.iter().filter(|route| route.path != "/v1/events") {
        let path = route.path.replace("{id}", "x");
        let verb = route.verb.as_str();
        let path = if route.path == "/v1/inbox/search" { format!("{path}?q=a") } else { path };
        for bad in [None, Some("Bearer wrong"), Some("Basic abc"), Some("Bearer"), Some("")] {
            let headers: Vec<_> = bad.iter().map(|value| (name, *value)).collect();
            let said = served.tcp(verb, &path, &headers).await;
            assert_eq!(said.problem(), (401, "unauthorised".to_owned()), "{path} {bad:?}");
            assert_eq!(said.header("www-authenticate"), Some("Bearer"));
        }
        let two = [(name, token.as_str()), (name, token.as_str())];
        assert_eq!(served.tcp(verb, &path, &two).await.status, 401);
        let said = served.tcp(verb, &path, &[(name, &token)]).await;
        assert_ne!(said.status, 401, "{path}: {said:?}");
        let said = say(served.connect().await, &request(verb, &path, &[], b"")).await;
        assert_ne!(said.status, 401, "{path}: {said:?}");
        assert!(said.headers.iter().all(|(name, _)| !name.starts_with("access-control")));
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_health_and_metrics_can_be_public() {
    let mut options = options();
    options.public_health_check = true;
    let served = served_with(options, None).await;
    assert_eq!(served.tcp("GET", "/v1/health", &[]).await.status, 200);
    assert_eq!(served.tcp("GET", "/v1/version", &[]).await.status, 401);
    assert_eq!(served.tcp("GET", "/v1/metrics", &[]).await.status, 200);
    assert_eq!(served.tcp("GET", "/v1/metrics/", &[]).await.status, 401);
    let evil = [("Host", "evil.example")];
    assert_eq!(served.tcp("GET", "/v1/health", &evil).await.status, 403);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_origins_and_preflights() {
    let mut options = options();
    options.origin_allowlist = vec!["http://127.0.0.1:7118".to_owned()];
    let served = served_with(options, None).await;
    let (name, token) = bearer();
    let ask = async |method: &str, path: &str, more: &[(&str, &str)]| {
        let mut headers = vec![(name, token.as_str())];
        headers.extend_from_slice(more);
        let over_tcp = served.tcp(method, path, &headers).await;
        let over_socket = say(served.connect().await, &request(method, path, more, b"")).await;
        assert_eq!(over_tcp.status, over_socket.status, "{more:?}");
        assert!(over_tcp.headers.iter().all(|(name, _)| !name.starts_with("access-control")));
        over_tcp
    };
    for host in ["localhost", "localhost:7118", "127.0.0.1:1", "[::1]:7118", ""] {
        let said = ask("GET", "/v1/health", &[("Host", host)]).await;
        assert_eq!(said.status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example:80", "169.254.169.254", "[::2]:80"] {
        let said = ask("GET", "/v1/health", &[("Host", host)]).await;
        assert_eq!(said.problem(), (403, "host_not_allowed".to_owned()), "{host}");
    }
    let said = ask("GET", "http://evil.example/v1/health", &[]).await;
    assert_eq!(said.problem(), (403, "host_not_allowed".to_owned()));
    for origin in ["http://evil.example", "null", "http://127.0.0.1:7119"] {
        let said = ask("GET", "/v1/health", &[("Origin", origin)]).await;
        assert_eq!(said.problem(), (403, "origin_not_allowed".to_owned()), "{origin}");
    }
    let ours = [("Origin", "http://127.0.0.1:7118")];
    assert_eq!(ask("GET", "/v1/health", &ours).await.status, 200);
    let said = ask("OPTIONS", "/v1/send", &ours).await;
    assert_eq!(said.problem(), (403, "preflight_refused".to_owned()));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_an_address_is_refused_whatever_it_is_called() {
    let served = served().await;
    let (name, token) = bearer();
    for query in [
        format!("token={TOKEN}"),
        "access_token=guess".to_owned(),
        format!("x={TOKEN}"),
        TOKEN.to_owned(),
        "TOKEN=".to_owned(),
        "%74oken=x".to_owned(),
    ] {
        let path = format!("/v1/health?{query}");
        for headers in [vec![], vec![(name, token.as_str())]] {
            let said = served.tcp("GET", &path, &headers).await;
            assert_eq!(said.problem(), (400, "token_in_query".to_owned()), "{query}");
            assert!(!String::from_utf8_lossy(&said.body).contains(TOKEN));
        }
        assert_eq!(served.get(&path).await.status, 400);
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_is_its_owners_alone_and_tcp_is_loopback_only() {
    let served = served().await;
    let path = served.folder.join("sock");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // A socket that a dead daemon left is replaced.
    let other = served.folder.join("other");
    drop(bind_socket(&other).unwrap());
    drop(bind_socket(&other).unwrap());
    assert!(!served.folder.join("other.new").exists());

    let open = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let address = open.local_addr().unwrap();
    let engine = Arc::clone(&served.engine);
    let clock: Arc<dyn Clock> = Arc::new(served.clock.clone());
    struct NoTokens;
    impl Tokens for NoTokens {
        fn number_of(&self, _: &str) -> Option<u64> {
            None
        }
    }
    let part = part(engine, member(), None, Arc::clone(&clock));
    let api = Api::new(options(), Arc::new(NoTokens), clock, vec![part]);
    let refused = serve(api, Listener::Tcp(open), std::future::pending()).await;
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    assert!(TcpStream::connect(("127.0.0.1", address.port())).await.is_err());
    served.stop().await;
}
