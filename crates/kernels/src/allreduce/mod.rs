//! Allreduce, one file an algorithm.

pub mod direct;
pub mod mesh;
pub mod one_shot;
pub mod push;
pub mod two_shot;
