//! The same checks on every back end, as one program.
fn main() {}
