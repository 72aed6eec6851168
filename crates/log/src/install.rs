//! The log as the program's subscriber.

use tracing_subscriber::layer::SubscriberExt;

use crate::{OpenError, Settings, layer};

/// Makes a log the program's subscriber for the rest of its life, unless the program has one already,
/// which stays. Whether it did so. Opens the file only then; an error if that is not possible.
pub fn install(settings: Settings) -> Result<bool, OpenError> {
    if tracing::dispatcher::has_been_set() {
        return Ok(false);
    }
    let subscriber = tracing_subscriber::registry().with(layer(settings)?);
    // Another thread may have been first.
    Ok(tracing::subscriber::set_global_default(subscriber).is_ok())
}
