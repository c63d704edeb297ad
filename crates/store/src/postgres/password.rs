//! The password of a server where its address has none: from the environment, or from a file as
//! libpq keeps them, `HOST:PORT:DATABASE:USER:PASSWORD` line by line.

use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// What the environment says of passwords. The command line reads it; here it is only used.
#[derive(Clone, Default)]
pub struct Passwords {
    /// For whatever server (`PGPASSWORD`).
    pub word: Option<String>,
    /// The text of a file of passwords (`PGPASSFILE`, `~/.pgpass`).
    pub lines: Option<String>,
}

impl Passwords {
    /// Gives the address a password, if it needs one and there is one. The error says why there is
    /// none that could be used.
    pub(super) fn complete(&self, config: &mut Config) -> Result<(), &'static str> {
        if config.get_password().is_some() {
            return Ok(());
        }
        if let Some(word) = &self.word {
            config.password(word);
            return Ok(());
        }
        let Some(lines) = &self.lines else { return Ok(()) };
        let user = config.get_user().unwrap_or_default();
        let database = config.get_dbname().unwrap_or(user);
        let found: Vec<Option<String>> = places(config)
            .map(|(host, port)| find(lines, &[&host, &port, database, user]))
            .collect();
        let first = found.first().cloned().flatten();
        // The driver shows one password to all of them: the one of one host is not for another.
        if found.iter().any(|other| *other != first) {
            return Err("names servers with different passwords in the file of passwords");
        }
        if let Some(password) = first {
            config.password(password);
        }
        Ok(())
    }
}

/// As libpq calls the servers there.
fn places(config: &Config) -> impl Iterator<Item = (String, String)> {
    let ports = config.get_ports();
    let host = |host: &Host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(_) => "localhost".to_owned(),
    };
    config.get_hosts().iter().enumerate().map(move |(at, found)| {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        (host(found), port.to_string())
    })
}

/// The password of the first line that fits.
fn find(lines: &str, wanted: &[&str; 4]) -> Option<String> {
    lines.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut rest = line.trim_end_matches('\r');
        for wanted in wanted {
            let (field, behind) = field(rest)?;
            if field != "*" && unescaped(field) != *wanted {
                return None;
            }
            rest = behind;
        }
        let end = field(rest).map_or(rest, |(password, _)| password);
        Some(unescaped(end)).filter(|password| !password.is_empty())
    })
}

/// What stands before the next `:` that is not escaped, and what stands behind it.
fn field(line: &str) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b':' if !is_escaped => return Some((&line[..at], &line[at + 1..])),
            b'\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

/// `\:` is `:`, and `\\` is `\`.
fn unescaped(field: &str) -> String {
    let mut text = String::with_capacity(field.len());
    let mut characters = field.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next()),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "# db:5432:semel:me:comment\n\
        short:1\n\
        db:5432:semel:me:first\r\n\
        db:*:*:me:second\n\
        *:*:*:we\\:you:a\\:b\\\\c\n\
        localhost:*:*:*:local\n\
        :::*:none\n\
        last:*:*:*:p w";

    #[test]
    fn the_first_line_that_fits_counts() {
        for (host, port, database, user, expected) in [
            ("db", "5432", "semel", "me", Some("first")),
            ("db", "5433", "semel", "me", Some("second")),
            ("db", "5432", "other", "me", Some("second")),
            ("db", "5432", "semel", "you", None),
            ("any", "1", "x", "we:you", Some("a:b\\c")),
            ("localhost", "5432", "x", "y", Some("local")),
            ("last", "1", "2", "3", Some("p w")),
            ("short", "1", "x", "y", None),
        ] {
            let found = find(LINES, &[host, port, database, user]);
            assert_eq!(found.as_deref(), expected, "{host}:{port}:{database}:{user}");
        }
    }

    fn completed(address: &str, passwords: &Passwords) -> Result<Option<Vec<u8>>, &'static str> {
        let mut config: Config = address.parse().unwrap();
        passwords.complete(&mut config)?;
        Ok(config.get_password().map(<[u8]>::to_vec))
    }

    #[test]
    fn the_address_is_first_and_the_file_last() {
        let lines = Some(LINES.to_owned());
        let both = Passwords { word: Some("word".to_owned()), lines: lines.clone() };
        let file = Passwords { word: None, lines };
        let text = |found: Result<Option<Vec<u8>>, _>| {
            found.unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
        };
        let at = "postgres://me@db/semel";
        assert_eq!(text(completed("postgres://me:own@db/semel", &both)).as_deref(), Some("own"));
        assert_eq!(text(completed(at, &both)).as_deref(), Some("word"));
        assert_eq!(text(completed(at, &file)).as_deref(), Some("first"));
        assert_eq!(text(completed(at, &Passwords::default())), None);
        let socket = "postgres://me@%2Frun%2Fpostgresql/semel";
        assert_eq!(text(completed(socket, &file)).as_deref(), Some("local"));
        assert_eq!(
            text(completed("postgres://me@db,db:5433/other", &file)).as_deref(),
            Some("second")
        );
        assert!(completed("postgres://me@db,localhost/semel", &file).is_err());
        assert!(completed("postgres://me@db,elsewhere/semel", &file).is_err());
    }
}
