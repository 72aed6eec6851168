//! What ranks need before kernels can talk: bootstrap, communicator, liveness, registered memory,
//! connections, semaphores and channels.

pub mod bootstrap;
mod communicator;
pub mod env;
mod error;
mod fd_service;
pub mod launch;
mod liveness;
mod memory;
mod watcher;

pub use bootstrap::{Bootstrap, LocalBootstrap, RendezvousError, TcpBootstrap, UniqueId};
pub use communicator::Communicator;
pub use error::{Error, Result};
pub use fd_service::{FdOffer, FdService, FdTicket};
pub use launch::LaunchEnvironment;
pub use liveness::{Liveness, Loss, LossCause};
pub use memory::{Region, Registration, SymmetricBuffer};
