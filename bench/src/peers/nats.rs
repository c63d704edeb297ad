//! NATS JetStream with a file per stream that is synced for every message, and its
//! duplicate window. The protocol is a few lines of text, so the client is written here; it has
//! several connections with many publishes under way on each, as a NATS client does.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::report::Measured;

const CONNECTIONS_MAX: usize = 4;
const START_MAX: Duration = Duration::from_secs(10);

/// A server of its own; killed when it is dropped.
pub(crate) struct Nats {
    child: Child,
    port: u16,
}

impl Nats {
    pub(crate) fn start(program: &Path, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let store = folder.join("store");
        let settings = format!(
            "listen: \"127.0.0.1:{port}\"\n\
             jetstream {{ store_dir: {store:?}, sync_interval: always }}\n"
        );
        let file = folder.join("nats.conf");
        std::fs::write(&file, settings)?;
        let mut command = Command::new(program);
        command.arg("-c").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("nats-server does not start")?;
        let nats = Self { child, port };
        let start = Instant::now();
        loop {
            match nats.stream_made() {
                Ok(()) => return Ok(nats),
                Err(error) if start.elapsed() > START_MAX => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn stream_made(&self) -> Result<()> {
        let mut client = Client::connect(self.port, 0)?;
        let stream = r#"{"name":"bench","subjects":["bench"],"storage":"file","num_replicas":1,"#
            .to_owned()
            + r#""retention":"limits","discard":"old","max_consumers":-1,"max_msgs":-1,"#
            + r#""max_bytes":-1,"duplicate_window":120000000000}"#;
        let (inbox, length) = (client.inbox(0), stream.len());
        write!(client.out, "PUB $JS.API.STREAM.CREATE.bench {inbox} {length}\r\n{stream}\r\n")?;
        let (_, answer) = client.next()?;
        if answer.contains("\"error\"") { bail!("{answer}") } else { Ok(()) }
    }

    /// Publishes for so long, with so many under way.
    pub(crate) fn publishes(&self, in_flight: usize, round: Duration) -> Result<Measured> {
        let connections = in_flight.min(CONNECTIONS_MAX);
        let next = Arc::new(AtomicU64::new(0));
        let start = Instant::now();
        let mut threads = Vec::new();
        for number in 0..connections {
            let mut client = Client::connect(self.port, number + 1)?;
            let (next, window) = (Arc::clone(&next), in_flight / connections);
            threads.push(std::thread::spawn(move || client.publish(&next, window, start, round)));
        }
        let mut latencies = Vec::new();
        for thread in threads {
            let done = thread.join().map_err(|_| anyhow::anyhow!("a publisher has panicked"))?;
            latencies.extend(done?);
        }
        Ok(Measured::since(start, latencies))
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Client {
    number: usize,
    out: TcpStream,
    input: BufReader<TcpStream>,
}

impl Client {
    fn connect(port: u16, number: usize) -> Result<Self> {
        let out = TcpStream::connect(("127.0.0.1", port))?;
        out.set_nodelay(true)?;
        out.set_read_timeout(Some(START_MAX))?;
        let input = BufReader::new(out.try_clone()?);
        let mut client = Self { number, out, input };
        let hello = r#"{"verbose":false,"pedantic":false,"headers":true,"protocol":1}"#;
        write!(client.out, "CONNECT {hello}\r\nSUB _INBOX.{number}.* 1\r\nPING\r\n")?;
        while client.line()? != "PONG" {}
        Ok(client)
    }

    fn inbox(&self, place: usize) -> String {
        format!("_INBOX.{}.{place}", self.number)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 {
            bail!("the server has closed the connection");
        }
        Ok(line.trim_end().to_owned())
    }

    /// The next message: the last part of its subject, and what it says.
    fn next(&mut self) -> Result<(usize, String)> {
        loop {
            let line = self.line()?;
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["MSG", subject, _, length] => {
                    let place = subject.rsplit('.').next().context("a subject")?.parse()?;
                    let mut body = vec![0; length.parse::<usize>()? + 2];
                    self.input.read_exact(&mut body)?;
                    return Ok((place, String::from_utf8_lossy(&body).into_owned()));
                }
                ["PING"] => self.out.write_all(b"PONG\r\n")?,
                ["-ERR", ..] | ["HMSG", ..] => bail!("{line}"),
                _ => {}
            }
        }
    }

    /// Keeps `window` publishes under way; gives what each took, in microseconds.
    fn publish(
        &mut self,
        next: &AtomicU64,
        window: usize,
        start: Instant,
        round: Duration,
    ) -> Result<Vec<u32>> {
        let body = "Z".repeat(256);
        let mut sent_at = vec![start; window];
        let (mut under_way, mut latencies) = (0, Vec::new());
        let mut free: Vec<usize> = (0..window).collect();
        loop {
            let mut text = String::new();
            while let Some(place) = free.pop().filter(|_| start.elapsed() < round) {
                let id = next.fetch_add(1, Ordering::Relaxed);
                let head = format!("NATS/1.0\r\nNats-Msg-Id: deploy-{id:019}\r\n\r\n");
                let (inbox, length) = (self.inbox(place), head.len());
                let whole = length + body.len();
                write!(text, "HPUB bench {inbox} {length} {whole}\r\n{head}{body}\r\n")?;
                sent_at[place] = Instant::now();
                under_way += 1;
            }
            self.out.write_all(text.as_bytes())?;
            if under_way == 0 {
                return Ok(latencies);
            }
            // One is waited for; those that have come with it are free at once, too.
            loop {
                let (place, answer) = self.next()?;
                if !answer.contains("\"seq\"") || answer.contains("\"duplicate\"") {
                    bail!("{answer}");
                }
                let took = sent_at[place].elapsed().as_micros();
                latencies.push(u32::try_from(took).unwrap_or(u32::MAX));
                under_way -= 1;
                free.push(place);
                if under_way == 0 || !self.input.buffer().contains(&b'\n') {
                    break;
                }
            }
        }
    }
}
