//! Allgather, one file an algorithm. Elements have no type here: bytes are moved.

pub mod direct;
pub mod mesh;
pub mod packet;
