//! A test double of the disk (filled in below).
