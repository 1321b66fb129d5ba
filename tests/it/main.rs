//! The integration tests: the built `wasmill` as its users meet it, and the rules that the sources keep.

mod budget;
mod damage;
mod harness;
mod kill;
mod layers;
mod new_guest;
