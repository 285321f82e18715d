//! Whole stacks against the oracle: one test program, so that long tests run beside each other.

mod canary;
mod cuts;
mod oracle;
mod rest;
mod rules;
mod swarm;
mod threads;
mod torture;
