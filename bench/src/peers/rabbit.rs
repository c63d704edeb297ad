//! RabbitMQ with a quorum queue, which is synced before a message is confirmed, and publisher
//! confirms. It knows no ids and recognises no repeats, so it does less than ours. A node of its
//! own, on free ports, in a temporary folder. AMQP 0-9-1 is a few frames, so the client is written
//! here; it has several connections with many publishes under way on each.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::report::Measured;

const CONNECTIONS_MAX: usize = 4;
const START_MAX: Duration = Duration::from_secs(90);
const ANSWER_MAX: Duration = Duration::from_secs(20);
const QUEUE: &str = "bench";

/// A frame's type, and the class and method of what is in it.
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const FRAME_END: u8 = 0xCE;
const ACK: (u16, u16) = (60, 80);
/// Persistent, and with an id.
const PROPERTIES: u16 = 0x1080;

/// A node and the name server that it needs; killed when it is dropped.
pub(crate) struct Rabbit {
    node: Group,
    _names: Group,
    port: u16,
}

/// A process and everything that it has started.
struct Group(Child);

impl Group {
    fn spawn(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Self(command.spawn().with_context(|| format!("{name} does not start"))?))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        // It may have ended already.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Rabbit {
    pub(crate) fn start(program: &Path, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let (port, distribution, names) = (free_port()?, free_port()?, free_port()?);
        let mut epmd = Command::new("epmd");
        epmd.args(["-port", &names.to_string(), "-address", "127.0.0.1"]);
        let _names = Group::spawn(&mut epmd)?;
        let plugins = folder.join("plugins");
        std::fs::write(&plugins, "[].\n")?;
        let mut command = Command::new(program);
        command
            .env("HOME", folder)
            .env("ERL_EPMD_PORT", names.to_string())
            .env("RABBITMQ_NODENAME", format!("bench{port}@localhost"))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", port.to_string())
            .env("RABBITMQ_DIST_PORT", distribution.to_string())
            .env("RABBITMQ_MNESIA_BASE", folder.join("data"))
            .env("RABBITMQ_LOG_BASE", folder.join("log"))
            .env("RABBITMQ_PID_FILE", folder.join("pid"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins)
            .env("RABBITMQ_CONF_ENV_FILE", folder.join("none"))
            .env("RABBITMQ_CONFIG_FILE", folder.join("none"));
        let mut rabbit = Self { node: Group::spawn(&mut command)?, _names, port };
        let start = Instant::now();
        loop {
            match Client::connect(rabbit.port).and_then(|mut client| client.declare()) {
                Ok(()) => return Ok(rabbit),
                Err(error) if start.elapsed() > START_MAX => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
            if let Some(status) = rabbit.node.0.try_wait()? {
                bail!("the node ended with {status}");
            }
        }
    }

    /// Publishes for so long, with so many under way.
    pub(crate) fn publishes(&self, in_flight: usize, round: Duration) -> Result<Measured> {
        let connections = in_flight.min(CONNECTIONS_MAX);
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(Client::connect(self.port)?);
        }
        let start = Instant::now();
        let mut threads = Vec::new();
        for mut client in clients {
            let window = in_flight / connections;
            threads.push(std::thread::spawn(move || client.publish(window, start, round)));
        }
        let mut latencies = Vec::new();
        for thread in threads {
            let done = thread.join().map_err(|_| anyhow::anyhow!("a publisher has panicked"))?;
            latencies.extend(done?);
        }
        Ok(Measured::since(start, latencies))
    }
}

struct Client {
    out: TcpStream,
    input: BufReader<TcpStream>,
}

impl Client {
    /// A connection with one channel that confirms.
    fn connect(port: u16) -> Result<Self> {
        let out = TcpStream::connect(("127.0.0.1", port))?;
        out.set_nodelay(true)?;
        out.set_read_timeout(Some(ANSWER_MAX))?;
        let input = BufReader::new(out.try_clone()?);
        let mut client = Self { out, input };
        client.out.write_all(b"AMQP\0\0\x09\x01")?;
        client.expect((10, 10))?;
        let mut login = 0_u32.to_be_bytes().to_vec();
        login.extend(short("PLAIN"));
        login.extend(long(b"\0guest\0guest"));
        login.extend(short("en_US"));
        client.say(0, (10, 11), &login)?;
        let tune = client.expect((10, 30))?;
        // The server's limits, and no heartbeats.
        let limits = tune.get(..6).context("limits")?;
        client.say(0, (10, 31), &[limits, &[0, 0]].concat())?;
        client.say(0, (10, 40), &[short("/"), vec![0, 0]].concat())?;
        client.expect((10, 41))?;
        client.say(1, (20, 10), &[0])?;
        client.expect((20, 11))?;
        client.say(1, (85, 10), &[0])?;
        client.expect((85, 11))?;
        Ok(client)
    }

    /// Makes the queue, durable.
    fn declare(&mut self) -> Result<()> {
        let kind = [short("x-queue-type"), vec![b'S'], long(b"quorum")].concat();
        let arguments = [vec![0, 0], short(QUEUE), vec![0b10], long(&kind)].concat();
        self.say(1, (50, 10), &arguments)?;
        self.expect((50, 11))?;
        Ok(())
    }

    fn say(&mut self, channel: u16, method: (u16, u16), arguments: &[u8]) -> Result<()> {
        let mut frames = Vec::new();
        put(&mut frames, METHOD, channel, &[&of(method), arguments].concat())?;
        Ok(self.out.write_all(&frames)?)
    }

    /// The next method: which, and its arguments.
    fn hear(&mut self) -> Result<((u16, u16), Vec<u8>)> {
        loop {
            let mut head = [0; 7];
            self.input.read_exact(&mut head)?;
            let [kind, _, _, length @ ..] = head;
            let mut payload = vec![0; usize::try_from(u32::from_be_bytes(length))? + 1];
            self.input.read_exact(&mut payload)?;
            ensure!(payload.pop() == Some(FRAME_END), "a frame without an end");
            match (kind, payload.as_slice()) {
                (HEARTBEAT, _) => {}
                (METHOD, &[a, b, c, d, ref arguments @ ..]) => {
                    let method = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                    return Ok((method, arguments.to_vec()));
                }
                _ => bail!("a frame of kind {kind}"),
            }
        }
    }

    fn expect(&mut self, wanted: (u16, u16)) -> Result<Vec<u8>> {
        let (method, arguments) = self.hear()?;
        let text = || String::from_utf8_lossy(&arguments).into_owned();
        ensure!(method == wanted, "{method:?} instead of {wanted:?}: {}", text());
        Ok(arguments)
    }

    /// Keeps `window` publishes under way; gives what each took, in microseconds.
    fn publish(&mut self, window: usize, start: Instant, round: Duration) -> Result<Vec<u32>> {
        let (mut next, mut latencies) = (1_u64, Vec::new());
        let mut under_way: BTreeMap<u64, Instant> = BTreeMap::new();
        loop {
            let mut frames = Vec::new();
            while under_way.len() < window && start.elapsed() < round {
                message(&mut frames, next)?;
                under_way.insert(next, Instant::now());
                next += 1;
            }
            self.out.write_all(&frames)?;
            // One is waited for; those that have come with it are free at once, too.
            while !under_way.is_empty() {
                let (number, and_before) = confirmed(&self.expect(ACK)?)?;
                let first = if and_before { 0 } else { number };
                let done: Vec<u64> = under_way.range(first..=number).map(|(n, _)| *n).collect();
                for number in done {
                    let sent_at = under_way.remove(&number).context("it was sent")?;
                    latencies.push(u32::try_from(sent_at.elapsed().as_micros())?);
                }
                if self.input.buffer().is_empty() {
                    break;
                }
            }
            if under_way.is_empty() && start.elapsed() >= round {
                return Ok(latencies);
            }
        }
    }
}

/// The number of a confirmed message, and whether it stands for all before it.
fn confirmed(arguments: &[u8]) -> Result<(u64, bool)> {
    let (number, rest) = arguments.split_first_chunk().context("a number")?;
    Ok((u64::from_be_bytes(*number), rest.first().is_some_and(|bits| bits & 1 == 1)))
}

/// A message of 200 bytes for the queue, kept on disk.
fn message(frames: &mut Vec<u8>, number: u64) -> Result<()> {
    let body = [b'Z'; 200];
    let route = [vec![0, 0], short(""), short(QUEUE), vec![0]].concat();
    put(frames, METHOD, 1, &[&of((60, 40)), route.as_slice()].concat())?;
    let mut header = of((60, 0)).to_vec();
    header.extend((body.len() as u64).to_be_bytes());
    header.extend(PROPERTIES.to_be_bytes());
    header.push(2);
    header.extend(short(&format!("deploy-{number:019}")));
    put(frames, HEADER, 1, &header)?;
    put(frames, BODY, 1, &body)
}

fn put(frames: &mut Vec<u8>, kind: u8, channel: u16, payload: &[u8]) -> Result<()> {
    frames.push(kind);
    frames.extend(channel.to_be_bytes());
    frames.extend(u32::try_from(payload.len())?.to_be_bytes());
    frames.extend(payload);
    frames.push(FRAME_END);
    Ok(())
}

fn of((class, method): (u16, u16)) -> [u8; 4] {
    let ([a, b], [c, d]) = (class.to_be_bytes(), method.to_be_bytes());
    [a, b, c, d]
}

/// A text of at most 255 bytes; ours are all shorter.
fn short(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
    [&[length], text.as_bytes()].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), bytes].concat()
}
