//! Wasmill: a stream processor whose user functions are WebAssembly components.
//!
//! The rooms, in the order of their layers. A room may use those above it, never those below; a test holds this.
#![warn(missing_docs)]

pub mod record;
pub mod key;
pub mod time;
pub mod metrics;
mod thread;
pub mod disk;
#[cfg(test)]
mod dice;

pub mod manifest;
pub mod graph;

pub mod epoch;
pub mod state;
pub mod lookup;
pub mod cluster;
pub mod plugin;
pub mod connector;
pub mod task;
pub mod job;
pub mod admin;
pub mod cli;
