//! Small programs over the façade: `cargo run --release -p mscclrs-examples --example allreduce`.
