//! Listeners that record what comes where a broker with TLS should be: not a byte of a token, of
//! an invite or of anything else is said before somebody has proven to be that broker.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use semel_wire::link::{self, JoinLink};

use crate::joined::{Mesh, Serving, connected, json, run};
use crate::tls::{Files, port};

/// What it does besides recording.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    /// Nothing, for as long as somebody waits.
    Never,
    /// As a server would that speaks plain HTTP.
    InPlainText,
}

/// It lives as long as the test's process.
struct Recorder {
    port: u16,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    fn at(address: SocketAddr, answers: Answers) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&heard);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let all = Arc::clone(&all);
                std::thread::spawn(move || hear(client, &all, answers));
            }
        });
        Self { port, heard }
    }

    fn heard(&self) -> Vec<Vec<u8>> {
        self.heard.lock().unwrap().clone()
    }

    /// Only beginnings of handshakes came, and none of these.
    fn has_heard_nothing_of(&self, secrets: &[&str]) {
        let heard = self.heard();
        assert!(!heard.is_empty(), "nobody came");
        for bytes in heard {
            let text = String::from_utf8_lossy(&bytes);
            for word in secrets.iter().chain(&["POST", "GET", "HTTP/1", "Bearer"]) {
                assert!(!text.contains(word), "{word}: {text:?}");
            }
            let mut rest = &bytes[..];
            // The last record may be cut off.
            while let [kind, 3, _, high, low, after @ ..] = rest {
                assert!([21, 22].contains(kind), "a handshake or an alert: {bytes:?}");
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest = after.get(length..).unwrap_or_default();
            }
            assert!(rest.len() < 5, "no record of TLS: {bytes:?}");
        }
    }
}

fn hear(mut client: TcpStream, all: &Mutex<Vec<Vec<u8>>>, answers: Answers) {
    let mut number = None;
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = client.read(&mut bytes) {
        let mut all = all.lock().unwrap();
        let number = *number.get_or_insert_with(|| {
            all.push(Vec::new());
            all.len() - 1
        });
        all[number].extend_from_slice(&bytes[..length]);
        drop(all);
        if answers == Answers::InPlainText {
            // Whoever has understood may be gone.
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        }
    }
}

const LOOPBACK: [(&str, &str); 2] = [("127.0.0.1:0", "localhost"), ("[::1]:0", "[::1]")];

/// All who begin a conversation with a broker, each with a listener of its own.
fn beginnings(answers: Answers) {
    let files = Files::new();
    let (ca, token, envelope) =
        (files.path("ca.pem"), files.path("token"), files.path("envelope.json"));
    let secret = link::token(&[5; 32]);
    std::fs::write(&token, &secret).unwrap();
    std::fs::write(&envelope, "{}").unwrap();
    let asks = |words: &[&str], address: &str, host: &str| {
        let recorder = Recorder::at(address.parse().unwrap(), answers);
        let url = format!("https://{host}:{}", recorder.port);
        let link = JoinLink { broker_url: url.clone(), mesh: "ops".into(), token: secret.clone() };
        let (invite, home) = (link.encode(), files.path(&format!("home-{}", recorder.port)));
        let words: Vec<&str> = words
            .iter()
            .map(|word| match *word {
                "INVITE" => invite.as_str(),
                "URL" => url.as_str(),
                word => word,
            })
            .collect();
        let output = run(&[&words[..], &["--broker-ca", &ca, "--home", &home]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{words:?}: {errors}");
        assert!(!errors.contains(&secret), "{errors}");
        recorder.has_heard_nothing_of(&[&secret]);
    };
    let as_admin = ["--broker", "URL", "--admin-token-file", &token];
    let beginnings: [&[&str]; 5] = [
        &["mesh", "join", "INVITE"],
        &["daemon", "up", "--ephemeral", "--no-tcp", "--invite", "INVITE"],
        &[&["grant", "issue", "--envelope", &envelope][..], &as_admin].concat(),
        &[&["registrar", "gate", "open", "deploys"][..], &as_admin].concat(),
        &[&["effect", "show", "key"][..], &as_admin].concat(),
    ];
    // All at once: those who get no answer wait for it, each as long as it does.
    std::thread::scope(|scope| {
        for words in beginnings {
            for (address, host) in LOOPBACK {
                scope.spawn(move || asks(words, address, host));
            }
        }
    });
}

#[test]
fn not_a_byte_of_a_token_to_somebody_who_never_answers() {
    beginnings(Answers::Never);
}

#[test]
fn not_a_byte_of_a_token_to_somebody_who_answers_in_plain_text() {
    beginnings(Answers::InPlainText);
}

/// A daemon whose broker is gone, and somebody else is in its place: its connection, the calls
/// that it makes for others, and the daemon that is started again.
fn a_daemon(answers: Answers, files: Files, (listen, host): (&str, &str)) {
    let mut mesh = Mesh::at(listen, files, host);
    let (home, ca) = (mesh.files.path("home"), mesh.files.path("ca.pem"));
    let invite = mesh.invite(&mesh.url);
    let token = JoinLink::parse(&invite).unwrap().token;
    let join = ["mesh", "join", &invite, "--name", "bob", "--home", &home, "--json"];
    let joined = json(&[&join[..], &["--broker-ca", &ca]].concat());
    let up = ["daemon", "up", "--persistent", "--no-tcp", "--json", "--home", &home];
    let mut daemon = Serving::start(&up);
    connected(&home);
    assert_eq!(mesh.broker.stop(), Some(0));
    let address = listen.replace(":0", &format!(":{}", port(&mesh.url)));
    let recorder = Recorder::at(address.parse().unwrap(), answers);
    let comes = || {
        let before = recorder.heard().len();
        while recorder.heard().len() == before {
            std::thread::yield_now();
        }
    };
    comes();
    let invited = run(&["mesh", "invite", "--home", &home]);
    assert_eq!(invited.status.code(), Some(5), "{invited:?}");
    assert_eq!(daemon.stop(), Some(0));
    let mut daemon = Serving::start(&up);
    comes();
    let restarted = run(&["daemon", "restart", "--home", &home]);
    assert!(restarted.status.success(), "{restarted:?}");
    comes();
    assert_eq!(daemon.stop_code(), Some(0), "it has made room for the next");
    let down = run(&["daemon", "down", "--home", &home]);
    assert!(down.status.success(), "{down:?}");
    let pubkey = joined["pubkey"].as_str().unwrap();
    recorder.has_heard_nothing_of(&[&token, pubkey, "semel"]);
}

#[test]
fn a_daemon_says_nothing_to_somebody_who_never_answers() {
    a_daemon(Answers::Never, Files::new(), LOOPBACK[0]);
}

#[test]
fn a_daemon_says_nothing_to_somebody_who_answers_in_plain_text() {
    a_daemon(Answers::InPlainText, Files::of("::1"), LOOPBACK[1]);
}
