//! Enums of which something is known by variant: names, words, bounds.
//!
//! Owns: [`listed!`](crate::listed!). Promises: a variant and all that is known of it stand in one line, so
//! a new one can't be left out of a list. Never: formats.

/// Declares an enum with a row of values for each variant: `ALL` are the variants in their order, `row` is
/// what is known of one.
///
/// ```
/// flashlane_base::listed! {
///     /// What a door can be.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Door: (&'static str, u32) {
///         /// Nobody gets in.
///         Shut: "shut", 0;
///         /// Two at a time.
///         Open: "open", 2;
///     }
/// }
/// assert_eq!(Door::ALL, [Door::Shut, Door::Open]);
/// assert_eq!(Door::Open.row(), &("open", 2));
/// ```
#[macro_export]
macro_rules! listed {
    (
        $(#[$attr:meta])*
        $vis:vis enum $name:ident: ($($column:ty),+) {
            $($(#[$doc:meta])* $variant:ident: $($value:expr),+;)*
        }
    ) => {
        $(#[$attr])*
        $vis enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// All of them, in order.
            pub const ALL: [$name; [$(stringify!($variant)),*].len()] = [$($name::$variant),*];

            /// What is known of it.
            pub fn row(self) -> &'static ($($column),+) {
                const ROWS: &[($($column),+)] = &[$(($($value),+)),*];
                &ROWS[self as usize]
            }
        }
    };
}
