//! The matrix of faults: one rank of three comes to its end in one of several ways at one of several
//! points, and the others end as docs/src/architecture.md says ("Losing a rank").
//!
//! Every rank is a process: this binary, started again. The victim says when it is at its point; the
//! watching test does it harm only then, and nothing waits for time to pass. Each cell of the matrix
//! is a test of its own.
//!
//! With `FAULTS_DEVICE=cuda` the ranks of the matrix run on GPUs; then run one cell at a time, since
//! processes that open GPUs side by side are slow. `in_destroy` is about the CPU device only, where a
//! drop waits for kernels.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fork;
mod interrupt;
mod kernel;
mod limits;
mod matrix;
mod process;
mod proxy;
mod rank;
mod traces;

use matrix::{End, Point, lose};

/// What a process of a test does; without a role, as among the tests, nothing.
#[test]
fn started_process() {
    process::be();
}

macro_rules! matrix {
    ($($name:ident: $point:ident;)*) => {
        $(mod $name {
            #[test]
            fn killed() {
                super::lose(super::Point::$point, super::End::Killed);
            }
            #[test]
            fn stopped() {
                super::lose(super::Point::$point, super::End::Stopped);
            }
            #[test]
            fn exits() {
                super::lose(super::Point::$point, super::End::Exits);
            }
        })*
    };
}

matrix! {
    before_rendezvous: BeforeRendezvous;
    in_rendezvous: InRendezvous;
    after_rendezvous: AfterRendezvous;
    registering: Registering;
    in_kernel: InKernel;
    in_replay: InReplay;
    others_ahead: OthersAhead;
    elsewhere: Elsewhere;
    in_destroy: InDestroy;
}
