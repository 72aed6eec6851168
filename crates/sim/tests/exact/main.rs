//! Worlds: runs that can be had again, and what they find.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod exploration;
mod holds;
mod litmus;
mod messages;
mod order;
mod planted;
mod seeds;
mod waits;
mod world;
