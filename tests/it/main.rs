//! The integration tests: the built `wasmill` as its users meet it, and the rules that the sources keep.

mod cli;
mod graphs;
mod guests;
mod harness;
mod inputs;
mod kill;
mod layers;
mod new_guest;
mod plain;
mod readme;
