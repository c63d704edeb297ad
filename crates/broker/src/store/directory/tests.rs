//! What a mesh knows of old ids when its memory is changed.

use super::*;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

fn mesh(dedupe: DedupeMode, known_since: i64) -> Mesh {
    Mesh {
        mesh_id: MeshId::new(Uuid::nil()),
        slug: "m".to_owned(),
        connection_policy: ConnectionPolicy::PreferNewest,
        dedupe,
        dedupe_known_since: UnixMs(known_since),
        rate_limit: 1,
        rate_window_ms: 1,
        inline_bytes: 1024,
        blob_bytes: 1024,
        message_retention_days: 1,
        next_seq: 1,
    }
}

#[test]
fn a_longer_memory_begins_with_what_the_shorter_one_has_kept() {
    let days = |days| DedupeMode::RetentionScoped { days };
    let now = UnixMs(100 * DAY_MS);
    let since = |old, known, new| mesh(old, known).known_since_with(new, now).0;
    assert_eq!(since(days(3), 0, days(30)), 97 * DAY_MS);
    assert_eq!(since(days(3), 0, DedupeMode::Permanent), 97 * DAY_MS);
    assert_eq!(since(days(3), 99 * DAY_MS, days(30)), 99 * DAY_MS);
    assert_eq!(since(days(30), 7, days(3)), 7);
    assert_eq!(since(DedupeMode::Permanent, 7, days(3)), 7);
    assert_eq!(since(DedupeMode::Permanent, 7, DedupeMode::Permanent), 7);
}

#[test]
fn what_was_queued_before_every_id_is_known_is_too_old() {
    let mesh = mesh(DedupeMode::RetentionScoped { days: 30 }, 97 * DAY_MS);
    let now = UnixMs(100 * DAY_MS);
    assert!(mesh.too_old(UnixMs(97 * DAY_MS - 1), now));
    assert!(!mesh.too_old(UnixMs(97 * DAY_MS), now));
    assert!(mesh.too_old(UnixMs(97 * DAY_MS), UnixMs(128 * DAY_MS)));
}
