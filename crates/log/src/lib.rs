//! What the crates say of their work, and the log that shows it.
//!
//! Invariant: every event has a subsystem, since the macros here, the only way to make one, want it.
//! Nothing that runs for each launch makes one. Where nobody listens, an event is one comparison with
//! a static number.

mod install;
mod layer;
mod level;
mod line;
mod macros;
mod pattern;
mod settings;
mod sink;
mod subsystem;
mod values;

pub use install::install;
pub use layer::layer;
pub use level::Level;
pub use line::is_line;
pub use pattern::FilePattern;
pub use settings::{Format, Settings};
pub use sink::OpenError;
pub use subsystem::{Subsystem, Subsystems, target};

#[doc(hidden)]
pub use tracing;
