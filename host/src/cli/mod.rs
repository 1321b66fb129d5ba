//! Being built.

pub mod check;
pub mod load;
pub mod schema;
