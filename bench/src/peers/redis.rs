//! Redis with an append-only file that is synced before every answer, and a script that does what
//! an accept does: a known id with the same fingerprint is a duplicate, with another one refused, a
//! new one is kept together with its message. Over a Unix socket, one request at a time on each
//! connection, as ours are asked.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::report::Measured;

const START_MAX: Duration = Duration::from_secs(10);

const SCRIPT: &str = "\
local known = redis.call('GET', KEYS[1]) \
if known then return known == ARGV[1] and 'duplicate' or 'reused' end \
redis.call('SET', KEYS[1], ARGV[1], 'EX', 86400) \
redis.call('XADD', KEYS[2], '*', 'body', ARGV[2]) \
return 'queued'";

/// A server of its own; killed when it is dropped.
pub(crate) struct Redis {
    child: Child,
    socket: PathBuf,
}

impl Redis {
    pub(crate) async fn start(program: &Path, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let socket = folder.join("sock");
        let settings = format!(
            "port 0\nunixsocket \"{}\"\ndir \"{}\"\ndaemonize no\nsave \"\"\n\
             appendonly yes\nappendfsync always\nauto-aof-rewrite-percentage 0\n",
            socket.display(),
            folder.display()
        );
        let file = folder.join("redis.conf");
        std::fs::write(&file, settings)?;
        let mut command = Command::new(program);
        command.arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("it does not start")?;
        let redis = Self { child, socket };
        let start = Instant::now();
        while UnixStream::connect(&redis.socket).await.is_err() {
            if start.elapsed() > START_MAX {
                bail!("it does not answer");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(redis)
    }

    /// Sends for so long on so many connections.
    pub(crate) async fn sends(&self, connections: usize, round: Duration) -> Result<Measured> {
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(BufReader::new(UnixStream::connect(&self.socket).await?));
        }
        let next = Arc::new(AtomicU64::new(0));
        let mut first = BufReader::new(UnixStream::connect(&self.socket).await?);
        let script = ask(&mut first, &["SCRIPT", "LOAD", SCRIPT]).await?;
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for mut client in clients {
            let (next, script) = (Arc::clone(&next), script.clone());
            tasks.spawn(async move {
                let (print, body, mut latencies) = ("5a".repeat(32), "Z".repeat(200), Vec::new());
                while start.elapsed() < round {
                    let key = format!("deploy-{:019}", next.fetch_add(1, Ordering::Relaxed));
                    let sent_at = Instant::now();
                    let words = ["EVALSHA", &script, "2", &key, "outbox", &print, &body];
                    let answer = ask(&mut client, &words).await?;
                    if answer != "queued" {
                        bail!("{answer}");
                    }
                    latencies.push(u32::try_from(sent_at.elapsed().as_micros())?);
                }
                Ok(latencies)
            });
        }
        let mut latencies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            latencies.extend(done??);
        }
        Ok(Measured::since(start, latencies))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One command and its answer, which is a bulk string.
async fn ask(client: &mut BufReader<UnixStream>, words: &[&str]) -> Result<String> {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    client.get_mut().write_all(text.as_bytes()).await?;
    let mut line = String::new();
    client.read_line(&mut line).await?;
    let Some(length) = line.strip_prefix('$') else { bail!("{}", line.trim_end()) };
    let mut body = vec![0; length.trim_end().parse::<usize>()? + 2];
    client.read_exact(&mut body).await?;
    Ok(String::from_utf8_lossy(&body).trim_end().to_owned())
}
