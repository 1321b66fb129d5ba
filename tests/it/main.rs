//! The integration tests: the built `wasmill` as its users meet it, and the rules that the sources keep.

mod asking;
mod budget;
mod cli;
mod cluster;
mod damage;
mod faults;
mod graphs;
mod guests;
mod harness;
mod inputs;
mod kill;
mod layers;
mod new_guest;
mod others;
mod plain;
mod plan;
mod readme;
mod reload;
mod relay;
mod rescale;
mod serializable;
mod serving;
mod soak;
mod stop;
mod tables;
mod versioned;
