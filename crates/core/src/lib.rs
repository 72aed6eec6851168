//! What ranks need before kernels can talk: bootstrap, communicator, liveness, registered memory,
//! connections, semaphores and channels.

pub mod bootstrap;
mod communicator;
pub mod env;
mod error;
mod memory;

pub use bootstrap::{Bootstrap, LocalBootstrap, RendezvousError};
pub use communicator::Communicator;
pub use error::{Error, Result};
pub use memory::{Region, Registration, SymmetricBuffer};
