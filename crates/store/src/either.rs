//! `either!`: a crate's store is an enum of `Sqlite` and `Postgres`, and most of its methods do
//! nothing but call the method of the same name of whichever it is.

/// Calls the same method of whichever store `self` is. `boxed`: a transaction on PostgreSQL is a
/// large future, which its callers need not carry in theirs.
#[macro_export]
macro_rules! either {
    ($store:ident.$method:ident($($argument:expr),*)) => {
        match $store {
            Self::Sqlite(store) => store.$method($($argument),*).await,
            Self::Postgres(store) => store.$method($($argument),*).await,
        }
    };
    (boxed $store:ident.$method:ident($($argument:expr),*)) => {
        match $store {
            Self::Sqlite(store) => store.$method($($argument),*).await,
            Self::Postgres(store) => Box::pin(store.$method($($argument),*)).await,
        }
    };
}
