//! Memory that ranks share.
//!
//! Whatever a kernel may still be using is never freed: what is dropped goes to the communicator's
//! [`Retired`](retired::Retired) list and is freed when its kernels have ended.

mod export;
mod import;
mod region;
mod registered;
mod registration;
mod retired;
mod symmetric;

pub(crate) use export::{Export, Offered};
pub(crate) use import::{Import, Imports};
pub use region::Region;
pub(crate) use region::{Arena, layout};
pub use registered::RegisteredMemory;
#[cfg(any(test, fuzzing))]
pub(crate) use registered::{Serialized, head};
pub(crate) use registration::Registered;
pub use registration::{Registration, WeakRegistration};
pub(crate) use retired::{Held, Kept, Retired};
pub use symmetric::SymmetricBuffer;
