//! Wasmill: a stream processor whose user functions are WebAssembly components.
//!
//! The rooms, in the order of their layers. A room may use those above it, never those below; a test holds this.
#![warn(missing_docs)]

pub mod disk;
pub mod key;
pub mod record;
pub mod time;

pub mod graph;
pub mod manifest;

pub mod cli;
pub mod connector;
pub mod epoch;
pub mod job;
pub mod plugin;
pub mod state;
pub mod task;
