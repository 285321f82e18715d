//! Experiments as `flashlane run` executes them: one test program, so that long tests run beside each other.

mod care;
mod costs;
mod files;
mod prepared;
mod programs;
mod recorded;
