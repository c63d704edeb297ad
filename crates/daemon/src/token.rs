//! The bearer token of the local API over TCP (daemon.md, "Access"): checked in constant time,
//! rotated with a minute of grace for those who still hold the last one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use semel_core::clock::Clock;
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

use crate::home::{HomeError, HomeFile, LockedHome};
use crate::limits::TOKEN_GRACE;

/// 32 random bytes as base64url text: the spelling that a caller sends. In no `Debug` output.
#[derive(Clone)]
pub struct LocalToken(Zeroizing<String>);

impl LocalToken {
    /// The token of these random bytes.
    pub fn new(random: &[u8; 32]) -> Self {
        Self(Zeroizing::new(URL_SAFE_NO_PAD.encode(random)))
    }

    /// Reads a token's text; `None` when it is not 32 bytes in their one spelling.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(text).ok()?);
        (bytes.len() == 32).then(|| Self(Zeroizing::new(text.to_owned())))
    }

    /// The text, for the file and for the caller's header.
    pub fn expose(&self) -> &str {
        &self.0
    }

    fn fits(&self, presented: &[u8]) -> Choice {
        self.0.as_bytes().ct_eq(presented)
    }

    pub(crate) fn write(&self, home: &LockedHome) -> Result<(), HomeError> {
        let text = Zeroizing::new([self.expose(), "\n"].concat());
        home.write(HomeFile::LocalToken, text.as_bytes())
    }
}

impl fmt::Debug for LocalToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalToken(…)")
    }
}

/// The tokens that are accepted now.
pub struct Tokens {
    clock: Arc<dyn Clock>,
    accepted: Mutex<Accepted>,
    /// One rotation at a time: the file and `accepted` must end with the same token.
    rotating: Mutex<()>,
}

struct Accepted {
    current: LocalToken,
    /// On its way to the file. Accepted before it is there, so that who reads the file the moment
    /// it changes is let in; nobody else can know it.
    next: Option<LocalToken>,
    last: Option<Last>,
}

struct Last {
    token: LocalToken,
    /// On the monotonic clock: a calendar that is set back must not make it live longer.
    until: Duration,
}

impl semel_api::access::Tokens for Tokens {
    /// They are one caller's: a rotation does not give it a second budget.
    fn number_of(&self, presented: &str) -> Option<u64> {
        self.accepts(presented.as_bytes()).then_some(0)
    }
}

impl Tokens {
    /// Accepts `current`.
    pub fn new(current: LocalToken, clock: Arc<dyn Clock>) -> Self {
        let accepted = Mutex::new(Accepted { current, next: None, last: None });
        Self { clock, accepted, rotating: Mutex::new(()) }
    }

    /// Whether this is a token that is accepted now. How long it takes does not depend on how much
    /// of it is right, nor on which of the tokens it is.
    pub fn accepts(&self, presented: &[u8]) -> bool {
        let now = self.clock.monotonic();
        let accepted = lock(&self.accepted);
        let current = accepted.current.fits(presented);
        let next = accepted.next.as_ref().map_or(Choice::from(0), |next| next.fits(presented));
        let last = accepted.last.as_ref().map_or(Choice::from(0), |last| {
            last.token.fits(presented) & Choice::from(u8::from(now < last.until))
        });
        (current | next | last).into()
    }

    /// Whether an `Authorization` header carries a token that is accepted now.
    pub fn accepts_header(&self, header: &[u8]) -> bool {
        let scheme = header.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
        scheme && self.accepts(&header[7..])
    }

    /// Replaces the token by one of these random bytes: on disk first, then here. The one before
    /// is accepted for a minute more, the one before that no longer. On an error the current one
    /// stays, and the new one is accepted as well, because nobody can say which of them the file
    /// will hold.
    pub fn rotate(&self, home: &LockedHome, random: &[u8; 32]) -> Result<(), HomeError> {
        let _one_at_a_time = lock(&self.rotating);
        let token = LocalToken::new(random);
        lock(&self.accepted).next = Some(token.clone());
        token.write(home)?;
        let until = self.clock.monotonic().saturating_add(TOKEN_GRACE);
        let mut accepted = lock(&self.accepted);
        let token = std::mem::replace(&mut accepted.current, token);
        accepted.next = None;
        accepted.last = Some(Last { token, until });
        Ok(())
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

/// Each change is one assignment at a time that leaves a usable state, so a panic spoils nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::{Home, MeshSlug};
    use semel_testkit::clock::SimClock;
    use std::fs;

    fn tokens() -> (SimClock, Tokens) {
        let clock = SimClock::at_ms(1_700_000_000_000);
        (clock.clone(), Tokens::new(LocalToken::new(&[1; 32]), Arc::new(clock)))
    }

    fn text(fill: u8) -> String {
        LocalToken::new(&[fill; 32]).expose().to_owned()
    }

    fn locked(root: &std::path::Path) -> LockedHome {
        Home::at(root, &MeshSlug::parse("local").unwrap()).lock().unwrap()
    }

    #[test]
    fn only_the_token_itself_is_accepted() {
        let (_, tokens) = tokens();
        let good = text(1);
        assert_eq!(good.len(), 43);
        assert!(tokens.accepts(good.as_bytes()));
        for bad in ["", "x", &good[..42], &format!("{good}="), &format!(" {good}"), &text(2)] {
            assert!(!tokens.accepts(bad.as_bytes()), "{bad:?}");
        }
        for place in 0..good.len() {
            let mut changed = good.clone().into_bytes();
            changed[place] ^= 1;
            assert!(!tokens.accepts(&changed), "place {place}");
        }
    }

    #[test]
    fn a_header_names_the_scheme() {
        let (_, tokens) = tokens();
        for scheme in ["Bearer ", "bearer ", "BEARER "] {
            assert!(tokens.accepts_header(format!("{scheme}{}", text(1)).as_bytes()));
        }
        for header in ["", "Bearer", "Bearer ", &text(1), &format!("Basic {}", text(1))] {
            assert!(!tokens.accepts_header(header.as_bytes()), "{header:?}");
        }
        assert!(!tokens.accepts_header(format!("Bearer  {}", text(1)).as_bytes()));
    }

    #[test]
    fn a_token_has_one_spelling() {
        assert_eq!(LocalToken::parse(&text(7)).unwrap().expose(), text(7));
        let trailing_bits = format!("{}B", &text(0)[..42]);
        for bad in ["", "AAAA", &format!("{}=", text(7)), &trailing_bits, &"+".repeat(43)] {
            assert!(LocalToken::parse(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn the_last_token_lives_for_a_minute() {
        let (root, (clock, tokens)) = (tempfile::tempdir().unwrap(), tokens());
        let home = locked(root.path());
        tokens.rotate(&home, &[2; 32]).unwrap();
        let written = fs::read_to_string(home.home().path(HomeFile::LocalToken)).unwrap();
        assert_eq!(written, format!("{}\n", text(2)));
        let accepted = |fill| tokens.accepts(text(fill).as_bytes());
        assert!(accepted(1) && accepted(2));
        clock.advance(Duration::from_millis(59_999));
        // A calendar that is set is not time passing.
        clock.step_wall_ms(-86_400_000);
        assert!(accepted(1) && accepted(2));
        clock.step_wall_ms(86_400_000);
        clock.advance(Duration::from_millis(1));
        assert!(!accepted(1) && accepted(2));
    }

    #[test]
    fn a_second_rotation_ends_the_first_grace() {
        let (root, (_, tokens)) = (tempfile::tempdir().unwrap(), tokens());
        let home = locked(root.path());
        tokens.rotate(&home, &[2; 32]).unwrap();
        tokens.rotate(&home, &[3; 32]).unwrap();
        let accepted = |fill| tokens.accepts(text(fill).as_bytes());
        assert!(!accepted(1) && accepted(2) && accepted(3));
    }

    #[test]
    fn a_rotation_that_cannot_be_written_locks_nobody_out() {
        let (root, (_, tokens)) = (tempfile::tempdir().unwrap(), tokens());
        let home = locked(root.path());
        // A folder in the way of the rename.
        let path = home.home().path(HomeFile::LocalToken);
        fs::create_dir_all(path.join("x")).unwrap();
        assert!(tokens.rotate(&home, &[2; 32]).is_err());
        assert!(tokens.accepts(text(1).as_bytes()));
        fs::remove_dir_all(&path).unwrap();
        tokens.rotate(&home, &[3; 32]).unwrap();
        assert!(tokens.accepts(text(3).as_bytes()) && !tokens.accepts(text(2).as_bytes()));
    }

    #[test]
    fn debug_output_holds_no_token() {
        let (_, tokens) = tokens();
        let shown = format!("{tokens:?} {:?}", LocalToken::new(&[1; 32]));
        assert!(!shown.contains(&text(1)), "{shown}");
    }
}
