//! Counters that are declared once.
//!
//! Owns: [`counters!`](crate::counters!), which makes a struct of counters together with its schema, and
//! [`Counters`], by which outputs walk it. Promises: name, unit, meaning, how two values become one and
//! where a counter is shown stand in one line, so an output names no counter that it only lists.
//! Never: formats, and never counts.

use crate::Ns;

/// How two values of a counter become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Parts are added up; a span of time has the later value less the earlier one.
    Sum,
    /// The larger of two parts; a span of time has the later value.
    Max,
    /// A state: of parts and of times the later one.
    Last,
}

/// What is known of a counter beside its value.
#[derive(Debug)]
pub struct Counter {
    pub name: &'static str,
    pub unit: &'static str,
    /// What it counts, in words.
    pub doc: &'static str,
    /// How two values become one.
    pub combine: Combine,
    /// Where outputs show it: a part of an output, and what the counter is called there.
    pub shown: &'static [(&'static str, &'static str)],
}

impl Counter {
    /// What it is called in a part of an output; nothing where it is not shown there.
    pub fn called(&self, part: &str) -> Option<&'static str> {
        self.shown.iter().find(|(place, _)| *place == part).map(|(_, word)| *word)
    }
}

pub trait Value: Copy {
    /// Of two parts together.
    fn and(self, other: Self, how: Combine) -> Self;
    /// What came since an earlier look.
    fn since(self, earlier: Self, how: Combine) -> Self;
    /// In the counter's unit; of a list the sum.
    fn number(self) -> u64;
    /// Made of the next numbers, of a list as many as it has items.
    fn made(next: &mut dyn FnMut() -> u64) -> Self;
}

impl Value for u64 {
    fn and(self, other: u64, how: Combine) -> u64 {
        match how {
            Combine::Sum => self + other,
            Combine::Max => self.max(other),
            Combine::Last => other,
        }
    }

    fn since(self, earlier: u64, how: Combine) -> u64 {
        if how == Combine::Sum { self.saturating_sub(earlier) } else { self }
    }

    fn number(self) -> u64 {
        self
    }

    fn made(next: &mut dyn FnMut() -> u64) -> u64 {
        next()
    }
}

impl Value for Ns {
    fn and(self, other: Ns, how: Combine) -> Ns {
        Ns::from_ns(self.as_ns().and(other.as_ns(), how))
    }

    fn since(self, earlier: Ns, how: Combine) -> Ns {
        Ns::from_ns(self.as_ns().since(earlier.as_ns(), how))
    }

    fn number(self) -> u64 {
        self.as_ns()
    }

    fn made(next: &mut dyn FnMut() -> u64) -> Ns {
        Ns::from_ns(next())
    }
}

impl<const N: usize> Value for [u64; N] {
    fn and(self, other: [u64; N], how: Combine) -> [u64; N] {
        std::array::from_fn(|i| self[i].and(other[i], how))
    }

    fn since(self, earlier: [u64; N], how: Combine) -> [u64; N] {
        std::array::from_fn(|i| self[i].since(earlier[i], how))
    }

    fn number(self) -> u64 {
        self.iter().sum()
    }

    fn made(next: &mut dyn FnMut() -> u64) -> [u64; N] {
        std::array::from_fn(|_| next())
    }
}

pub trait Counters {
    /// One entry per field, in their order.
    const SCHEMA: &'static [Counter];
    /// The values, in the order of the schema.
    fn numbers(&self) -> Vec<u64>;

    /// What a part of an output shows: the names there, and the values.
    fn shown(&self, part: &str) -> Vec<(&'static str, u64)> {
        let named = Self::SCHEMA.iter().map(|counter| counter.called(part));
        named.zip(self.numbers()).filter_map(|(name, n)| Some((name?, n))).collect()
    }
}

/// Declares a struct of counters: each with its type, how two become one ([`Combine`]), its unit, and
/// where outputs show it.
///
/// ```
/// flashlane_base::counters! {
///     /// What a door counts.
///     pub struct Door {
///         /// Times it was opened.
///         opened: u64, Sum, "times", [results "opened", column "door_openings"];
///         /// People in it at once, at most.
///         widest: u64, Max, "people", [];
///     }
/// }
/// let (morning, evening) = (Door { opened: 2, widest: 3 }, Door { opened: 5, widest: 4 });
/// assert_eq!(evening.since(&morning), Door { opened: 3, widest: 4 });
/// assert_eq!(morning.and(&evening), Door { opened: 7, widest: 4 });
/// use flashlane_base::counters::Counters;
/// assert_eq!(evening.shown("column"), [("door_openings", 5)]);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$attr:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident: $type:ty, $how:ident, $unit:literal,
                [$($part:ident $word:literal),* $(,)?];
            )*
        }
    ) => {
        $(#[$attr])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl $name {
            /// Of two parts together.
            pub fn and(&self, other: &$name) -> $name {
                use $crate::counters::{Combine, Value};
                $name { $($field: Value::and(self.$field, other.$field, Combine::$how),)* }
            }

            /// What came since an earlier look.
            pub fn since(&self, earlier: &$name) -> $name {
                use $crate::counters::{Combine, Value};
                $name { $($field: Value::since(self.$field, earlier.$field, Combine::$how),)* }
            }
        }

        impl $crate::counters::Value for $name {
            fn and(self, other: $name, _: $crate::counters::Combine) -> $name {
                $name::and(&self, &other)
            }

            fn since(self, earlier: $name, _: $crate::counters::Combine) -> $name {
                $name::since(&self, &earlier)
            }

            fn number(self) -> u64 {
                $crate::counters::Counters::numbers(&self).iter().sum()
            }

            fn made(next: &mut dyn FnMut() -> u64) -> $name {
                $name { $($field: $crate::counters::Value::made(next),)* }
            }
        }

        /// By the names of the fields.
        impl $crate::serde::Serialize for $name {
            fn serialize<S: $crate::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                use $crate::counters::Counters;
                to.collect_map(Self::SCHEMA.iter().map(|c| c.name).zip(self.numbers()))
            }
        }

        impl $crate::counters::Counters for $name {
            const SCHEMA: &'static [$crate::counters::Counter] = &[$(
                $crate::counters::Counter {
                    name: stringify!($field),
                    unit: $unit,
                    doc: concat!($($doc),*),
                    combine: $crate::counters::Combine::$how,
                    shown: &[$((stringify!($part), $word)),*],
                },
            )*];

            fn numbers(&self) -> Vec<u64> {
                vec![$($crate::counters::Value::number(self.$field)),*]
            }
        }
    };
}
