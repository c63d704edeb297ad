//! How a server is reached: what its address says, what is assumed where it says nothing, and what
//! is refused (decision 052).
//!
//! | `sslmode` | this machine | another machine |
//! |---|---|---|
//! | none | `prefer`; `verify-full` with `sslrootcert` | `verify-full` |
//! | `disable` | plain text | refused |
//! | `allow`, `prefer` | TLS if the server has it | `require` |
//! | `require` | TLS with anybody; `verify-ca` with `sslrootcert` | the same |
//! | `verify-ca`, `verify-full` | TLS with whom it is for | the same |
//!
//! With `insecure_allow_plain=true` another machine is as good as this one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, SslNegotiation};

use super::encrypted::Encryption;
use super::password::Passwords;
use crate::error::chain;
use crate::parameters::Parameters;
use crate::tls::{self, Check, Trust};
use crate::{OpenError, limits};

/// What every connection to one server is made with.
#[derive(Clone)]
pub(super) struct Reach {
    pub(super) config: Config,
    pub(super) encryption: Encryption,
}

/// `sslmode`, in the words of libpq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Mode {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "disable" => Self::Disable,
            // The driver cannot begin in plain text and change its mind.
            "allow" | "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => return None,
        })
    }
}

impl Reach {
    /// Reads the address and the files that it names.
    pub(super) fn of(
        address: &str,
        passwords: &Passwords,
        statement_timeout: Duration,
        answer_timeout: Duration,
    ) -> Result<Self, OpenError> {
        let refused = |why: &str| OpenError::Address(why.into());
        if !["postgres://", "postgresql://"].iter().any(|scheme| address.starts_with(scheme)) {
            return Err(refused("is not like postgres://USER@HOST:PORT/DATABASE"));
        }
        if address.matches('@').count() > 1 {
            return Err(refused("has two @; in a user or password it is written %40"));
        }
        let parameters = Parameters::of(address).map_err(refused)?;
        let config: Result<Config, _> = parameters.address.parse();
        let mut config =
            config.map_err(|error| refused(&format!("cannot be read: {}", chain(&error))))?;
        passwords.complete(&mut config).map_err(refused)?;
        let asked = match &parameters.mode {
            None => None,
            Some(mode) => Some(Mode::parse(mode).ok_or_else(|| {
                refused(
                    "has an sslmode that is none of disable, prefer, require, verify-ca and \
                     verify-full",
                )
            })?),
        };
        name_all(&mut config);
        let elsewhere = elsewhere(&config).filter(|_| !parameters.allow_plain);
        let trust = parameters.pem.trust.as_ref();
        let (mode, check) = decide(asked, trust, elsewhere.is_some());
        if let (SslMode::Disable, Some(host)) = (mode, elsewhere) {
            return Err(OpenError::PlainText { host });
        }
        // The driver shakes no hands over a Unix socket, and nobody else can hear it.
        config.ssl_mode(if is_socket(&config) { SslMode::Disable } else { mode });
        let client = tls::client(check, &parameters.pem);
        let client = client.map_err(|error| OpenError::Tls(Box::new(error)))?;
        let mut client = Arc::unwrap_or_clone(client);
        if config.get_ssl_negotiation() == SslNegotiation::Direct {
            // A server that is not asked first wants to hear it so.
            client.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        let encryption = Encryption(Arc::new(client));
        settle(&mut config, statement_timeout, answer_timeout);
        Ok(Self { config, encryption })
    }
}

/// The table above. `sslrootcert=system` says who everybody trusts: without the name, anybody who
/// has a certificate for anything would do.
fn decide(asked: Option<Mode>, trust: Option<&Trust>, is_elsewhere: bool) -> (SslMode, Check) {
    let named = match trust {
        None => Check::Nothing,
        Some(Trust::File(_)) => Check::Chain,
        Some(Trust::System) => Check::ChainAndName,
    };
    let usual = match (is_elsewhere, trust) {
        (true, _) | (false, Some(_)) => Mode::VerifyFull,
        (false, None) => Mode::Prefer,
    };
    match asked.unwrap_or(usual) {
        Mode::Disable => (SslMode::Disable, Check::Nothing),
        Mode::Prefer if is_elsewhere => (SslMode::Require, named),
        Mode::Prefer => (SslMode::Prefer, named),
        Mode::Require => (SslMode::Require, named),
        Mode::VerifyCa if named == Check::ChainAndName => (SslMode::Require, Check::ChainAndName),
        Mode::VerifyCa => (SslMode::Require, Check::Chain),
        Mode::VerifyFull => (SslMode::Require, Check::ChainAndName),
    }
}

/// A server that has only an address is called by it.
fn name_all(config: &mut Config) {
    if config.get_hosts().is_empty() {
        for address in config.get_hostaddrs().to_vec() {
            config.host(address.to_string());
        }
    }
}

/// The first server that is not known to be on this machine. A name other than `localhost` is not,
/// wherever it leads today.
fn elsewhere(config: &Config) -> Option<String> {
    let hosts = config.get_hosts().iter().enumerate();
    let mut others = hosts.filter_map(|(at, host)| {
        let Host::Tcp(name) = host else { return None };
        let is_here = match config.get_hostaddrs().get(at) {
            Some(address) => is_loopback(*address),
            None => name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback),
        };
        (!is_here).then(|| name.clone())
    });
    others.next()
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn is_socket(config: &Config) -> bool {
    !config.get_hosts().is_empty()
        && config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)))
}

/// Session settings travel in the start-up message, so that no connection is ever without. What
/// reads everything that fits before it gives the first row is cheap only while there is little
/// of it, and its plan is kept.
fn settle(config: &mut Config, statement_timeout: Duration, answer_timeout: Duration) {
    let ms = statement_timeout.as_millis();
    let ours = format!(
        "-c statement_timeout={ms} -c lock_timeout={ms} \
         -c idle_in_transaction_session_timeout={ms} \
         -c default_transaction_isolation=read\\ committed \
         -c plan_cache_mode=force_generic_plan -c jit=off -c enable_seqscan=off \
         -c enable_bitmapscan=off"
    );
    let options = match config.get_options() {
        Some(theirs) => format!("{theirs} {ours}"),
        None => ours,
    };
    config.options(options).connect_timeout(limits::CONNECT_TIMEOUT);
    config.keepalives(true).keepalives_idle(Duration::from_secs(30));
    config.tcp_user_timeout(answer_timeout).application_name("semel");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(address: &str) -> Result<SslMode, OpenError> {
        let second = Duration::from_secs(1);
        let reach = Reach::of(address, &Passwords::default(), second, second)?;
        Ok(reach.config.get_ssl_mode())
    }

    #[test]
    fn plain_text_stays_on_this_machine() {
        use SslMode::{Disable, Prefer, Require};
        for (address, expected) in [
            ("postgres://u@127.0.0.1/d", Some(Prefer)),
            ("postgres://u@[::1]/d", Some(Prefer)),
            ("postgres://u@localhost/d", Some(Prefer)),
            ("postgres://u@LOCALHOST/d?sslmode=disable", Some(Disable)),
            ("postgres://u@%2Frun%2Fpostgresql/d", Some(Disable)),
            ("postgres://u@%2Frun%2Fpostgresql/d?sslmode=verify-full", Some(Disable)),
            ("postgres://u@127.0.0.1/d?sslmode=require", Some(Require)),
            ("postgres://u@db.example/d?hostaddr=127.0.0.1&sslmode=prefer", Some(Prefer)),
            ("postgres:///d?hostaddr=127.0.0.1", Some(Prefer)),
            ("postgres://u@db.example/d", Some(Require)),
            ("postgres://u@192.0.2.1/d", Some(Require)),
            ("postgres://u@192.0.2.1/d?sslmode=prefer", Some(Require)),
            ("postgres://u@192.0.2.1/d?sslmode=allow", Some(Require)),
            ("postgres://u@192.0.2.1/d?sslmode=require", Some(Require)),
            ("postgres://u@127.0.0.1,192.0.2.1/d", Some(Require)),
            ("postgres://u@192.0.2.1/d?sslmode=disable", None),
            ("postgres://u@db.example/d?sslmode=disable", None),
            ("postgres://u@localhost/d?hostaddr=192.0.2.1&sslmode=disable", None),
            ("postgres://u@127.0.0.1,192.0.2.1/d?sslmode=disable", None),
            ("postgres:///d?hostaddr=192.0.2.1&sslmode=disable", None),
            ("postgres://u@192.0.2.1/d?insecure_allow_plain=true", Some(Prefer)),
            ("postgres://u@192.0.2.1/d?insecure_allow_plain=true&sslmode=disable", Some(Disable)),
        ] {
            match (reached(address), expected) {
                (Ok(mode), Some(expected)) => assert_eq!(mode, expected, "{address}"),
                (Err(OpenError::PlainText { .. }), None) => {}
                (found, _) => panic!("{address}: {found:?}"),
            }
        }
    }

    #[test]
    fn modes_are_those_of_libpq() {
        use Check::{Chain, ChainAndName, Nothing};
        use Mode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
        let file = Trust::File("ca.pem".into());
        for (asked, here, elsewhere, with_file, with_system) in [
            (None, Nothing, ChainAndName, ChainAndName, ChainAndName),
            (Some(Disable), Nothing, Nothing, Nothing, Nothing),
            (Some(Prefer), Nothing, Nothing, Chain, ChainAndName),
            (Some(Require), Nothing, Nothing, Chain, ChainAndName),
            (Some(VerifyCa), Chain, Chain, Chain, ChainAndName),
            (Some(VerifyFull), ChainAndName, ChainAndName, ChainAndName, ChainAndName),
        ] {
            assert_eq!(decide(asked, None, false).1, here, "{asked:?}");
            assert_eq!(decide(asked, None, true).1, elsewhere, "{asked:?}");
            for is_elsewhere in [false, true] {
                assert_eq!(decide(asked, Some(&file), is_elsewhere).1, with_file, "{asked:?}");
                let found = decide(asked, Some(&Trust::System), is_elsewhere).1;
                assert_eq!(found, with_system, "{asked:?}");
            }
        }
    }

    #[test]
    fn an_address_that_cannot_be_read_is_not_repeated() {
        for address in [
            "secret",
            "mysql://u:secret@h/d",
            "postgres://u:se?cret@h/d",
            "postgres://u:a@secret@h/d",
            "postgres://u:secret@h:x/d",
            "postgres://u:secret@h/d?sslmode=secret",
            "postgres://u:secret@h/d?port=secret",
            "postgres://u:secret@h/d?sslcert=/nowhere/cert.pem",
            "postgres://u:secret@h/d?sslrootcert=/nowhere/ca.pem",
        ] {
            let error = reached(address).unwrap_err();
            let said = chain(&error);
            assert!(!said.contains("secret"), "{address}: {said}");
        }
    }
}
