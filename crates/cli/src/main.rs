//! The mscclrs command.
fn main() {}
