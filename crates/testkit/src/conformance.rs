//! One suite, two stores: each case is written once against what the stores have in common and
//! runs on SQLite and on PostgreSQL, each time on a fresh database.

use std::future::Future;
use std::pin::Pin;

/// A case's run.
pub type Run<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One thing that every store must do.
pub struct Case<Store> {
    /// What, in words.
    pub name: &'static str,
    /// Runs it, and panics where the store does not.
    pub run: for<'a> fn(&'a Store) -> Run<'a>,
}

/// Runs every case on a store of its own; names the case before it runs, so that a panic is told
/// apart. Returns how many ran.
pub async fn conforms<Store, Open, Opening>(cases: &[Case<Store>], open: Open) -> usize
where
    Open: Fn() -> Opening,
    Opening: Future<Output = Store>,
{
    assert!(!cases.is_empty(), "a suite without cases proves nothing");
    for case in cases {
        let store = open().await;
        let name = case.name;
        // Shown by the test runner when the case fails.
        #[expect(clippy::print_stderr, reason = "the runner shows it beside the panic")]
        {
            eprintln!("conformance case: {name}");
        }
        (case.run)(&store).await;
    }
    cases.len()
}
