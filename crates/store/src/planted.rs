//! Bugs that are built in on purpose, so that what looks for them can be seen to find them:
//! `cargo xtask chaos --plant NAME`. No other build has any.

/// Whether this bug is built in; with two more arguments, what is right without it and what is
/// wrong with it.
#[macro_export]
macro_rules! planted {
    ($bug:literal) => {
        cfg!(semel_plant = $bug)
    };
    ($bug:literal, $right:expr, $wrong:expr) => {
        if $crate::planted!($bug) { $wrong } else { $right }
    };
}
