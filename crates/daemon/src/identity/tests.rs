//! Identities with real files: made once, kept, completed after a crash, refused when wrong.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use semel_core::id::{MemberId, MeshId};
use semel_testkit::clock::SimClock;
use semel_testkit::crash;
use semel_wire::place::Plain;

use super::*;
use crate::home::MeshSlug;

const NOW: UnixMs = UnixMs(1_700_000_000_000);

/// Runs `f` with sources that never give the same twice.
fn with_sources<T>(first: u8, f: impl FnOnce(Sources<'_>) -> T) -> T {
    let mint = IdMint::new(Arc::new(SimClock::at_ms(NOW.0)), Box::new(move || u128::from(first)));
    let next = AtomicU8::new(first);
    let random = move || Zeroizing::new([next.fetch_add(1, Ordering::SeqCst); 32]);
    f(Sources { mint: &mint, random: &random, now: NOW })
}

fn home(root: &Path) -> Home {
    Home::at(root, &MeshSlug::parse("local").unwrap())
}

fn open(root: &Path, first: u8) -> Result<Identity, IdentityError> {
    with_sources(first, |sources| Identity::open(&home(root).lock()?, sources))
}

fn membership() -> Membership {
    Membership {
        broker: "wss://broker.example:7117/v1/mesh".to_owned(),
        mesh_id: MeshId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap(),
        member_id: MemberId::parse("01890a5d-ac96-774b-bcce-b302099a8058").unwrap(),
        name: "ada \"the first\"".to_owned(),
        joined_at: NOW,
        plain: Plain::LoopbackOnly,
    }
}

/// Everything that must stay the same from start to start.
fn shown(identity: &Identity) -> [String; 5] {
    [
        identity.keys.key_id.clone(),
        identity.keys.pair.public().to_string(),
        identity.instance_id.to_string(),
        Hex(*identity.fingerprint_secret.expose()).to_string(),
        identity.local_token.expose().to_owned(),
    ]
}

const MADE: [HomeFile; 4] =
    [HomeFile::Keypair, HomeFile::InstanceId, HomeFile::FingerprintSecret, HomeFile::LocalToken];

#[test]
fn the_first_start_makes_an_identity_and_the_next_one_keeps_it() {
    let root = tempfile::tempdir().unwrap();
    let made = open(root.path(), 1).unwrap();
    assert_eq!(made.instance_id.as_uuid().get_version_num(), 7);
    assert_eq!(made.keys.created_at, NOW);
    let kept = open(root.path(), 100).unwrap();
    assert_eq!(shown(&kept), shown(&made));
    assert_eq!(kept.keys.created_at, NOW);
    // No two of its secrets are the same.
    let secrets = shown(&made).into_iter().chain([Hex(*made.keys.pair.secret()).to_string()]);
    assert_eq!(secrets.collect::<std::collections::BTreeSet<_>>().len(), 6);
}

#[test]
fn a_start_that_was_cut_off_is_completed() {
    for (missing, parts) in MADE.into_iter().zip([0..2, 2..3, 3..4, 4..5]) {
        let root = tempfile::tempdir().unwrap();
        let before = shown(&open(root.path(), 1).unwrap());
        fs::remove_file(home(root.path()).path(missing)).unwrap();
        let after = shown(&open(root.path(), 100).unwrap());
        for part in 0..5 {
            let changed = before[part] != after[part];
            assert_eq!(changed, parts.contains(&part), "{missing}: part {part}");
        }
        assert_eq!(shown(&open(root.path(), 200).unwrap()), after, "{missing}");
    }
}

/// A process that is killed at every step of its first start: what it has told anybody is what the
/// next start is.
#[test]
fn a_start_that_was_killed_anywhere_is_completed() {
    let points = crash::every_point(
        "identity::tests::a_start_that_was_killed_anywhere_is_completed",
        |child| {
            let locked = crate::home::crashing(&child.folder, "local").lock().unwrap();
            let made = with_sources(1, |sources| Identity::open(&locked, sources)).unwrap();
            child.acknowledge(&shown(&made).join(" "));
            membership().write(&locked).unwrap();
            child.acknowledge("joined");
        },
        |left| {
            let next = open(&left.folder, 100).unwrap_or_else(|error| panic!("{error}"));
            if let Some(told) = left.acknowledged.first() {
                assert_eq!(&shown(&next).join(" "), told, "{:?}", left.point);
            }
            let joined = Membership::read(&home(&left.folder)).unwrap();
            if left.acknowledged.len() == 2 {
                assert_eq!(joined, Some(membership()));
            }
            assert!(joined.is_none() || !left.acknowledged.is_empty());
            assert_eq!(shown(&open(&left.folder, 200).unwrap()), shown(&next));
        },
    );
    // Three folders and five files, before and after each of their steps.
    assert_eq!(points, 2 * (3 + 5 * 5));
}

#[test]
fn a_member_that_lost_its_secrets_is_not_given_new_ones() {
    for (missing, is_lost) in MADE.into_iter().zip([true, false, true, false]) {
        let root = tempfile::tempdir().unwrap();
        drop(open(root.path(), 1).unwrap());
        membership().write(&home(root.path()).lock().unwrap()).unwrap();
        fs::remove_file(home(root.path()).path(missing)).unwrap();
        match open(root.path(), 100) {
            Ok(_) => assert!(!is_lost, "{missing}"),
            Err(error) => {
                assert!(is_lost && matches!(error, IdentityError::Lost { .. }), "{missing}");
                let said = error.to_string();
                assert!(said.contains(missing.as_str()) && said.contains("ada"), "{said}");
                assert!(!home(root.path()).path(missing).exists());
            }
        }
    }
}

#[test]
fn an_ephemeral_identity_leaves_only_its_token() {
    let root = tempfile::tempdir().unwrap();
    let locked = home(root.path()).lock().unwrap();
    let made = with_sources(1, |sources| Identity::ephemeral(&locked, sources)).unwrap();
    let again = with_sources(100, |sources| Identity::ephemeral(&locked, sources)).unwrap();
    let (made, again) = (shown(&made), shown(&again));
    assert!((0..4).all(|part| made[part] != again[part]) && made[4] == again[4]);
    for file in MADE {
        let there = locked.home().path(file).exists();
        assert_eq!(there, file == HomeFile::LocalToken, "{file}");
    }
}

/// Changes a file's text and says what the next start thinks of it.
fn refused(file: HomeFile, change: impl Fn(&str) -> String) -> String {
    let root = tempfile::tempdir().unwrap();
    let secret = Hex(*open(root.path(), 1).unwrap().keys.pair.secret()).to_string();
    membership().write(&home(root.path()).lock().unwrap()).unwrap();
    let path = home(root.path()).path(file);
    let before = fs::read_to_string(&path).unwrap();
    let after = change(&before);
    assert_ne!(after, before, "the change changes something");
    fs::write(&path, &after).unwrap();
    let said = match open(root.path(), 100) {
        Ok(_) => panic!("accepted: {after}"),
        Err(error) => format!("{error} {error:?}"),
    };
    assert!(said.contains(file.as_str()), "{said}");
    assert!(!said.contains(&secret[..16]), "a secret is in {said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), after, "what is refused is left as it is");
    said
}

#[test]
fn a_key_file_is_read_strictly() {
    type Change = fn(&str) -> String;
    let changes: &[(Change, &str)] = &[
        (|text| text.replace("{\n", "{\n  \"x25519\": 1,\n"), "unknown field `x25519`"),
        (|text| text.replace("{\n", "{\n  \"version\": 1,\n"), "duplicate field `version`"),
        (|text| text.replace("  \"version\": 1,\n", ""), "missing field `version`"),
        (|text| text.replace("\"version\": 1", "\"version\": 2"), "version 2 is not known"),
        (|text| text.replace("\"version\": 1", "\"version\": \"1\""), "not of its type"),
        (|text| text.replace("\"ed25519_secret\": \"01", "\"ed25519_secret\": \""), "64 lower"),
        (|text| text.replace("\"ed25519_secret\": \"01", "\"ed25519_secret\": \"02"), "half"),
        (|text| text.replace("\"ed25519_secret\": \"", "\"ed25519_secret\": \"\\u0030"), "type"),
        (|text| text.replace("\"ed25519_secret\"", "\"version\""), "duplicate field"),
        (|text| text.replace("\"key_id\": \"", "\"key_id\": \"/"), "key_id must be"),
        (|text| text.replace("\"key_id\": \"", "\"key_id\": \"X"), "not what was written"),
        (|text| text.replace(&"01".repeat(32), &"0A".repeat(32)), "64 lower-case"),
        (|text| text[..text.len() / 2].to_owned(), "is not a JSON document"),
        (|_| String::new(), "is not a JSON document"),
        (|text| format!("{text}{text}"), "is not a JSON document"),
    ];
    for (change, expected) in changes {
        let said = refused(HomeFile::Keypair, change);
        assert!(said.contains(expected), "expected {expected:?}: {said}");
    }
}

#[test]
fn the_other_files_are_read_strictly() {
    for (file, bad) in [
        (HomeFile::InstanceId, "x"),
        (HomeFile::InstanceId, "01890A5D-AC96-774B-BCCE-B302099A8057"),
        (HomeFile::InstanceId, "01890a5d-ac96-774b-bcce-b302099a8057\n\n"),
        (HomeFile::FingerprintSecret, "abcd"),
        (HomeFile::FingerprintSecret, ""),
        (HomeFile::LocalToken, "abcd"),
        (HomeFile::LocalToken, ""),
    ] {
        refused(file, |_| bad.to_owned());
    }
}

#[test]
fn a_membership_is_kept_and_read_strictly() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(Membership::read(&home(root.path())).unwrap(), None);
    let locked = home(root.path()).lock().unwrap();
    membership().write(&locked).unwrap();
    assert_eq!(Membership::read(locked.home()).unwrap(), Some(membership()));
    for broker in ["", "http://x", "ws://", "ws:///v1", "wss://a:b@host/", "ws://a b", "wss://a/x"]
    {
        let wrong = Membership { broker: broker.to_owned(), ..membership() };
        assert!(wrong.write(&locked).is_err(), "{broker:?}");
    }
    let open = Membership { plain: Plain::Allowed, ..membership() };
    open.write(&locked).unwrap();
    assert_eq!(Membership::read(locked.home()).unwrap(), Some(open));
    let allowed = "{\n  \"insecure_allow_plain\": true,\n";
    let said = refused(HomeFile::Mesh, |text| text.replace("{\n", allowed));
    assert!(said.contains("delete the line sha256"), "{said}");
    membership().write(&locked).unwrap();
    let nameless = Membership { name: String::new(), ..membership() };
    assert!(nameless.write(&locked).is_err());
    assert_eq!(Membership::read(locked.home()).unwrap(), Some(membership()), "left as it was");
    let said = refused(HomeFile::Mesh, |text| text.replace("\"local\"", "\"other\""));
    assert!(said.contains("\"other\"") && said.contains("local"), "{said}");
    let said = refused(HomeFile::Mesh, |text| text.replace("{\n", "{\n  \"extra\": 1,\n"));
    assert!(said.contains("unknown field `extra`"), "{said}");
    let said = refused(HomeFile::Mesh, |text| text.replace("01890a5d", "01890A5D"));
    assert!(said.contains("mesh_id is not a UUID"), "{said}");
    for (from, to) in [("wss://", "ws://"), ("\"joined_at\": 1", "\"joined_at\": 2")] {
        let said = refused(HomeFile::Mesh, |text| text.replace(from, to));
        assert!(said.contains("delete the line sha256"), "{said}");
    }
    let said = refused(HomeFile::Mesh, |text| text.replace("wss://", "wss://u:pw@"));
    assert!(said.contains("names a user") && !said.contains("pw@"), "{said}");
}

#[test]
fn debug_output_holds_no_secret() {
    let root = tempfile::tempdir().unwrap();
    let identity = open(root.path(), 1).unwrap();
    let text = format!("{identity:?} {identity:#?}");
    let parts = shown(&identity);
    assert!(text.contains(&parts[1]) && text.contains(&parts[2]));
    let secret = Hex(*identity.keys.pair.secret()).to_string();
    for secret in [&secret, &parts[3], &parts[4]] {
        assert!(!text.contains(secret.as_str()), "{text}");
    }
}
