//! What ranks need before kernels can talk: bootstrap, communicator, liveness, registered memory,
//! connections, semaphores and channels.

pub mod bootstrap;
mod communicator;
pub mod env;
mod error;
pub mod launch;
mod memory;
mod watcher;

pub use bootstrap::{Bootstrap, LocalBootstrap, RendezvousError, TcpBootstrap, UniqueId};
pub use communicator::Communicator;
pub use error::{Error, Result};
pub use launch::LaunchEnvironment;
pub use memory::{Region, Registration, SymmetricBuffer};
