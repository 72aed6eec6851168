//! How events are made: `info!(CONN, rank, peer, "connected")`. First the subsystem, then fields as
//! tracing has them, then the message.

/// Something is lost or ended that should not be.
#[macro_export]
macro_rules! error {
    ($subsystem:ident, $($rest:tt)+) => {
        $crate::tracing::error!(target: $crate::target::$subsystem, $($rest)+)
    };
}

/// Something that a user should look at; the command shows it where no log is asked for, too.
#[macro_export]
macro_rules! warn {
    ($subsystem:ident, $($rest:tt)+) => {
        $crate::tracing::warn!(target: $crate::target::$subsystem, $($rest)+)
    };
}

/// A choice or a step of set-up; some ten a rank and communicator.
#[macro_export]
macro_rules! info {
    ($subsystem:ident, $($rest:tt)+) => {
        $crate::tracing::info!(target: $crate::target::$subsystem, $($rest)+)
    };
}

/// What a step was made of: each allocation, mapping, connection.
#[macro_export]
macro_rules! debug {
    ($subsystem:ident, $($rest:tt)+) => {
        $crate::tracing::debug!(target: $crate::target::$subsystem, $($rest)+)
    };
}

/// Each message of set-up.
#[macro_export]
macro_rules! trace {
    ($subsystem:ident, $($rest:tt)+) => {
        $crate::tracing::trace!(target: $crate::target::$subsystem, $($rest)+)
    };
}

/// A span whose fields, such as `rank`, all events of this thread have until the result is dropped.
#[macro_export]
macro_rules! during {
    ($name:literal, $($fields:tt)+) => {
        $crate::tracing::error_span!(target: $crate::target::SPAN, $name, $($fields)+).entered()
    };
}
