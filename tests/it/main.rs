//! The integration tests: the built `wasmill` as its users meet it, and the rules that the sources keep.

mod graphs;
mod guests;
mod harness;
mod layers;
mod new_guest;
mod plain;
