//! All short sequences of operations.
