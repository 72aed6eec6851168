//! The mscclrs command.

mod harness;
mod rival;
mod stats;

fn main() {}
