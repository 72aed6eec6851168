//! The litmus tests: programs of which one outcome tells what order there is.
//!
//! An outcome is the values that the reads see, lane after lane.

use super::program::{Kind, Lanes, Operation, Order};

pub(super) struct Litmus {
    pub(super) name: &'static str,
    pub(super) form: &'static str,
    pub(super) lanes: Lanes<'static>,
    /// The outcome that would show missing order.
    pub(super) weak: &'static [u64],
}

const X: u8 = 0;
const Y: u8 = 1;
const Z: u8 = 2;

const fn op(kind: Kind, order: Order) -> Operation {
    Operation { kind, order }
}
/// A plain write and a plain read.
const fn w(at: u8, value: u64) -> Operation {
    op(Kind::Write(at, value), Order::Plain)
}
const fn r(at: u8) -> Operation {
    op(Kind::Read(at), Order::Plain)
}
/// Relaxed ones.
const fn wx(at: u8, value: u64) -> Operation {
    op(Kind::Write(at, value), Order::Relaxed)
}
const fn rx(at: u8) -> Operation {
    op(Kind::Read(at), Order::Relaxed)
}
const fn rel(at: u8, value: u64) -> Operation {
    op(Kind::Write(at, value), Order::Release)
}
const fn acq(at: u8) -> Operation {
    op(Kind::Read(at), Order::Acquire)
}
const fn add(at: u8, order: Order) -> Operation {
    op(Kind::Add(at, 1), order)
}
const F: Operation = op(Kind::Fence, Order::AcqRel);

macro_rules! litmus {
    ($($name:literal $form:literal [$([$($op:expr),*]),*] $weak:tt;)*) => {
        &[$(Litmus { name: $name, form: $form, lanes: &[$(&[$($op),*]),*], weak: &$weak }),*]
    };
}

pub(super) const TESTS: &[Litmus] = litmus! {
    "Message passing" "plain" [[w(X, 1), w(Y, 1)], [r(Y), r(X)]] [1, 0];
    "Message passing" "relaxed" [[w(X, 1), wx(Y, 1)], [rx(Y), r(X)]] [1, 0];
    "Message passing" "release only" [[w(X, 1), rel(Y, 1)], [rx(Y), r(X)]] [1, 0];
    "Message passing" "acquire only" [[w(X, 1), wx(Y, 1)], [acq(Y), r(X)]] [1, 0];
    "Message passing" "release, acquire" [[w(X, 1), rel(Y, 1)], [acq(Y), r(X)]] [1, 0];
    "Message passing" "fences" [[w(X, 1), F, wx(Y, 1)], [rx(Y), F, r(X)]] [1, 0];
    "Message passing" "fence, acquire" [[w(X, 1), F, wx(Y, 1)], [acq(Y), r(X)]] [1, 0];
    "Message passing" "release, fence" [[w(X, 1), rel(Y, 1)], [rx(Y), F, r(X)]] [1, 0];
    "Message passing" "fence after the flag" [[w(X, 1), wx(Y, 1), F], [acq(Y), r(X)]] [1, 0];
    "Message passing" "two flags, fence"
        [[rel(Z, 1), w(X, 1), rel(Y, 1)], [rx(Y), rx(Z), F, r(X)]] [1, 1, 0];
    "Store buffering" "relaxed" [[wx(X, 1), rx(Y)], [wx(Y, 1), rx(X)]] [0, 0];
    "Store buffering" "release, acquire" [[rel(X, 1), acq(Y)], [rel(Y, 1), acq(X)]] [0, 0];
    "Store buffering" "fences" [[wx(X, 1), F, rx(Y)], [wx(Y, 1), F, rx(X)]] [0, 0];
    "Load buffering" "relaxed" [[rx(X), wx(Y, 1)], [rx(Y), wx(X, 1)]] [1, 1];
    "Load buffering" "release, acquire" [[acq(X), rel(Y, 1)], [acq(Y), rel(X, 1)]] [1, 1];
    "Load buffering" "fences" [[rx(X), F, wx(Y, 1)], [rx(Y), F, wx(X, 1)]] [1, 1];
    "Independent reads of independent writes" "relaxed"
        [[wx(X, 1)], [wx(Y, 1)], [rx(X), rx(Y)], [rx(Y), rx(X)]] [1, 0, 1, 0];
    "Independent reads of independent writes" "release, acquire"
        [[rel(X, 1)], [rel(Y, 1)], [acq(X), acq(Y)], [acq(Y), acq(X)]] [1, 0, 1, 0];
    "Independent reads of independent writes" "fences"
        [[wx(X, 1)], [wx(Y, 1)], [rx(X), F, rx(Y)], [rx(Y), F, rx(X)]] [1, 0, 1, 0];
    "Write to read" "relaxed" [[wx(X, 1)], [rx(X), wx(Y, 1)], [rx(Y), rx(X)]] [1, 1, 0];
    "Write to read" "release, acquire" [[wx(X, 1)], [rx(X), rel(Y, 1)], [acq(Y), rx(X)]] [1, 1, 0];
    "Write to read" "fences" [[wx(X, 1)], [rx(X), F, wx(Y, 1)], [rx(Y), F, rx(X)]] [1, 1, 0];
    "Coherence of reads" "plain" [[w(X, 1)], [r(X), r(X)]] [1, 0];
    "Coherence of reads" "relaxed" [[wx(X, 1)], [rx(X), rx(X)]] [1, 0];
    "Coherence of writes" "plain" [[w(X, 1), w(X, 2)], [r(X), r(X)]] [2, 1];
    "Coherence of writes" "relaxed" [[wx(X, 1), wx(X, 2)], [rx(X), rx(X)]] [2, 1];
    "Coherence of a write and a read" "relaxed" [[wx(X, 1), rx(X)], [wx(X, 2)]] [0];
    "Order of writes" "one before a message" [[wx(X, 2), wx(Y, 1)], [rx(Y), wx(X, 1), rx(X)]] [1, 2];
    "Order of writes" "one before a message with release and acquire"
        [[wx(X, 2), rel(Y, 1)], [acq(Y), wx(X, 1), rx(X)]] [1, 2];
    "Two read-modify-writes" "relaxed" [[add(X, Order::Relaxed)], [add(X, Order::Relaxed)]] [0, 0];
    "Release sequence" "a read-modify-write between"
        [[w(X, 1), rel(Y, 1)], [add(Y, Order::Relaxed)], [acq(Y), r(X)]] [1, 2, 0];
    "Release sequence" "a store of another lane between"
        [[w(X, 1), rel(Y, 1)], [rx(Y), wx(Y, 2)], [acq(Y), r(X)]] [1, 2, 0];
    "Release sequence" "a store of the same lane after it"
        [[w(X, 1), rel(Y, 1), wx(Y, 2)], [acq(Y), r(X)]] [2, 0];
    "Release sequence" "a relaxed read before the acquire"
        [[w(X, 1), rel(Y, 1)], [rx(Y), wx(Y, 2)], [rx(Y), acq(Y), r(X)]] [1, 1, 2, 0];
    "Release sequence" "a read-modify-write that releases between"
        [[w(X, 1), rel(Y, 1)], [add(Y, Order::Release)], [acq(Y), r(X)]] [1, 2, 0];
    "Release sequence" "the reader's own read-modify-write"
        [[w(X, 1), rel(Y, 1)], [add(Y, Order::Relaxed), acq(Y), r(X)]] [1, 2, 0];
};
