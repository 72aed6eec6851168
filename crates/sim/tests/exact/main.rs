//! Worlds: runs that can be had again, and what they find.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod messages;
mod order;
mod planted;
mod waits;
mod world;
