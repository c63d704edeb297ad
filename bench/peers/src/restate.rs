//! Restate: a server of its own with its defaults, and a service here whose steps are `run` blocks.
//! Callers use its HTTP ingress, one request at a time on each connection, each with an idempotency
//! key, and are answered when the service has ended.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use restate_sdk::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::load::{Shown, closed};
use crate::task::Task;

const START_MAX: Duration = Duration::from_secs(60);

struct Bench;

#[service]
impl Bench {
    #[handler]
    async fn noop(&self, ctx: Context<'_>, steps: u32) -> Result<u32, HandlerError> {
        for number in 0..steps {
            ctx.run(|| async { Ok(()) }).name(format!("s{number}")).await?;
        }
        Ok(steps)
    }
}

/// Killed when it is dropped.
struct Server {
    child: Child,
    ingress: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Server {
    async fn start(program: &str, folder: &Path, service: u16) -> Result<Self> {
        let (ingress, admin, node) = (free_port()?, free_port()?, free_port()?);
        let mut command = Command::new(program);
        command
            .env("RESTATE_BASE_DIR", folder)
            .env("RESTATE_LISTEN_MODE", "tcp")
            .env("RESTATE_BIND_ADDRESS", format!("127.0.0.1:{node}"))
            .env("RESTATE_ADVERTISED_ADDRESS", format!("http://127.0.0.1:{node}/"))
            .env("RESTATE_INGRESS__BIND_ADDRESS", format!("127.0.0.1:{ingress}"))
            .env("RESTATE_ADMIN__BIND_ADDRESS", format!("127.0.0.1:{admin}"))
            .env("RESTATE_DISABLE_TELEMETRY", "true")
            .arg("--no-logo")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let server = Self { child: command.spawn().context("it does not start")?, ingress };
        let body = format!(r#"{{"uri":"http://127.0.0.1:{service}"}}"#);
        let start = Instant::now();
        loop {
            match once(admin, "/deployments", &body).await {
                Ok(201) => break,
                other if start.elapsed() > START_MAX => bail!("no service registered: {other:?}"),
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        // The service is known some time after it was registered.
        while once(ingress, "/Bench/noop", "1").await.ok() != Some(200) {
            ensure!(start.elapsed() < START_MAX, "the service does not answer");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(server)
    }
}

async fn once(port: u16, path: &str, body: &str) -> Result<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    post(&mut stream, path, "", body).await
}

/// One request over a connection that stays; the status of its answer.
async fn post(stream: &mut TcpStream, path: &str, headers: &str, body: &str) -> Result<u16> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::with_capacity(1024);
    loop {
        ensure!(stream.read_buf(&mut answer).await? > 0, "the connection was closed");
        let text = String::from_utf8_lossy(&answer);
        let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let is_whole = match length {
            Some(length) => rest.len() >= length.trim().parse::<usize>()?,
            None => rest.ends_with("0\r\n\r\n"),
        };
        if is_whole {
            return Ok(head.split_whitespace().nth(1).context("a status")?.parse()?);
        }
    }
}

pub(crate) async fn jobs(task: &Task) -> Result<Shown> {
    let service = free_port()?;
    let address = format!("127.0.0.1:{service}").parse()?;
    let endpoint = Endpoint::builder().bind(Bench).build();
    tokio::spawn(HttpServer::new(endpoint).listen_and_serve(address));
    let server = Server::start(task.server()?, &task.folder, service).await?;
    let mut streams = Vec::new();
    for _ in 0..task.in_flight {
        let stream = TcpStream::connect(("127.0.0.1", server.ingress)).await?;
        stream.set_nodelay(true)?;
        streams.push(tokio::sync::Mutex::new(stream));
    }
    let (streams, next) = (Arc::new(streams), Arc::new(AtomicU64::new(0)));
    let body = task.steps.to_string();
    let shown = closed(task, move |caller| {
        let (streams, body) = (Arc::clone(&streams), body.clone());
        let number = next.fetch_add(1, Ordering::Relaxed);
        async move {
            let key = format!("idempotency-key: deploy-{number:019}\r\n");
            let mut stream = streams[caller].lock().await;
            let status = post(&mut stream, "/Bench/noop", &key, &body).await?;
            ensure!(status == 200, "it was answered with {status}");
            Ok(())
        }
    })
    .await;
    drop(server);
    shown
}
