//! SIGKILL at every statement of the writer: what was answered is there, and a group is there as
//! a whole or not at all.

use semel_store::StoreError;
use semel_store::sqlite::Sqlite;
use semel_testkit::crash;

use crate::support::{keys, open, options, put};

const ROUNDS: usize = 6;
const CALLERS: usize = 3;

#[test]
fn every_crash_point_leaves_what_was_acknowledged() {
    let mut seen_unacknowledged = false;
    let points = crash::every_point(
        "crash::every_crash_point_leaves_what_was_acknowledged",
        |child| {
            let (mut options, _) = options(&child.folder);
            options.instrument = Some(crash::instrument);
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
            runtime.unwrap().block_on(async {
                let store = Sqlite::open(&options).unwrap();
                for round in 0..ROUNDS {
                    let writes = (0..CALLERS).map(|caller| {
                        let store = &store;
                        async move {
                            let key = format!("{round}.{caller}");
                            let pair = (format!("{key}.one"), format!("{key}.two"));
                            // Two rows in one write: never one without the other.
                            let write = store.write(move |tx| {
                                put(tx, &pair.0, 1)?;
                                put(tx, &pair.1, 2)
                            });
                            assert!(write.await.unwrap());
                            child.acknowledge(&key);
                        }
                    });
                    // One that fails puts the rest of its group through savepoints.
                    let fails = store.write(|tx| {
                        put(tx, "never", 1)?;
                        Err::<(), _>(StoreError::Busy)
                    });
                    let (_, failed) =
                        futures_util::join!(futures_util::future::join_all(writes), fails);
                    assert!(failed.is_err());
                }
                store.close().await;
            });
        },
        |left| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let store = open(&left.folder);
                let found = keys(&store).await;
                let complete = |key: &str| {
                    let has = |part| found.iter().any(|row| *row == format!("{key}.{part}"));
                    assert_eq!(has("one"), has("two"), "{key} is half there at {:?}", left.point);
                    has("one")
                };
                for key in &left.acknowledged {
                    assert!(complete(key), "{key} was acknowledged, lost at {:?}", left.point);
                }
                assert!(!found.contains(&"never".to_owned()), "a failed write is there");
                let unacknowledged = found.len() / 2 - left.acknowledged.len();
                // Only the writes in flight may be there unasked: one per caller.
                assert!(unacknowledged <= CALLERS, "{found:?}");
                seen_unacknowledged |= unacknowledged > 0;
                assert_eq!(store.quick_check().await.unwrap(), [] as [&str; 0]);
                if left.point.is_none() {
                    assert_eq!(left.acknowledged.len(), ROUNDS * CALLERS);
                }
            });
        },
    );
    assert!(points > 100, "only {points} crash points");
    assert!(seen_unacknowledged, "no child died between commit and answer");
}
