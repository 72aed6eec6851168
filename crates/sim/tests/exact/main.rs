//! Worlds: runs that can be had again, and what they find.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod branches;
#[path = "../common/mod.rs"]
mod common;
mod early_ends;
mod exploration;
mod fences;
mod holds;
mod host_memory;
mod host_order;
mod late_hosts;
mod listeners;
mod litmus;
mod mapped_twice;
mod messages;
mod moves;
mod order;
mod parts;
mod planted;
mod polls;
mod questions;
mod seeds;
mod shared;
mod stops;
mod waits;
mod warps;
mod world;
