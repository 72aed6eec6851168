//! What ranks need before kernels can talk: bootstrap, communicator, liveness, registered memory,
//! connections, semaphores and channels.

pub mod bootstrap;
mod channel;
mod communicator;
mod connection;
mod control;
mod endpoint;
mod error;
mod fd_service;
mod future;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod launch;
mod liveness;
pub mod logging;
mod loss;
mod memory;
mod preflight;
mod semaphore;
mod starved;
mod tree;
mod watcher;
mod wire;

pub use bootstrap::{Bootstrap, LocalBootstrap, RendezvousError, TcpBootstrap, UniqueId};
pub use channel::MemoryChannel;
pub use communicator::{Communicator, Turn};
pub use connection::Connection;
pub use control::register_launch_tag;
pub use endpoint::{Endpoint, EndpointConfig, Transport};
pub use error::{Error, Result};
pub use fd_service::{FdOffer, FdService, FdTicket};
pub use future::Future;
pub use launch::LaunchEnvironment;
pub use liveness::{Liveness, Loss, LossCause};
pub use loss::{EarlyWait, LostRank, WaitCause};
pub use memory::{Region, RegisteredMemory, Registration, SymmetricBuffer, WeakRegistration};
pub use mscclrs_env as env;
pub use preflight::check_environment;
pub use semaphore::Semaphore;
