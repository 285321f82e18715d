//! Chains and requests that no good guest makes.
