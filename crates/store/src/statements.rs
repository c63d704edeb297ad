//! `statements!`: SQL stands beside the function that binds it, and one list lets a test prepare
//! every statement of a file (style.md §4).

/// Declares SQL constants and `ALL`, the list of them by name.
#[macro_export]
macro_rules! statements {
    ( $( $(#[$meta:meta])* $name:ident = $sql:literal; )+ ) => {
        $( $(#[$meta])* const $name: &str = $sql; )+

        /// Every statement of this file, for the tests that prepare and explain them.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, &str)] = &[ $( (stringify!($name), $name) ),+ ];
    };
}
