//! `status!`: one list per status. Stores bind `as_str()` and read with `parse()`, so that no
//! second place lists the names (style.md §2).

/// Declares an enum whose variants each have one stable name, with `ALL`, `as_str` and `parse`.
#[macro_export]
macro_rules! status {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $text:literal ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant ),+
        }

        impl $name {
            /// Every variant, in the order of the list.
            pub const ALL: &'static [Self] = &[ $( Self::$variant ),+ ];

            /// The stable name: in databases, on the wire, in logs and documents.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $text ),+ }
            }

            /// The variant of that name, if there is one.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $( $text => Some(Self::$variant), )+ _ => None }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
