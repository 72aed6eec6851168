//! Orders and scopes as types: an atomic access cannot be written without both, and pairs that mean
//! nothing (a release load) do not compile.

/// Which threads an atomic access is ordered against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScopeKind {
    /// The threads of one block.
    Cta,
    /// The threads of one GPU.
    Gpu,
    /// Every thread of every GPU, the CPU and NICs.
    Sys,
}

/// How an atomic access is ordered against the accesses around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderKind {
    /// Acquire and release at once; read-modify-writes only.
    AcqRel,
    /// Later accesses stay after it.
    Acquire,
    /// No order.
    Relaxed,
    /// Earlier accesses stay before it.
    Release,
}

/// A scope, as a type.
pub trait Scope: Copy {
    /// The scope as a value.
    const KIND: ScopeKind;
}

/// An order, as a type.
pub trait Order: Copy {
    /// The order as a value.
    const KIND: OrderKind;
}

/// Orders a load may have.
pub trait LoadOrder: Order {}

/// Orders a store, or a reduction that returns nothing, may have.
pub trait StoreOrder: Order {}

macro_rules! kinds {
    ($trait:ident, $kind:ident: $($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name;
            impl $trait for $name {
                const KIND: $kind = $kind::$name;
            }
        )*
    };
}

kinds!(Scope, ScopeKind:
    /// The threads of one block.
    Cta,
    /// The threads of one GPU.
    Gpu,
    /// Every thread of every GPU, the CPU and NICs.
    Sys,
);
kinds!(Order, OrderKind:
    /// Acquire and release at once; read-modify-writes only.
    AcqRel,
    /// Later accesses stay after it.
    Acquire,
    /// No order.
    Relaxed,
    /// Earlier accesses stay before it.
    Release,
);
impl LoadOrder for Relaxed {}
impl LoadOrder for Acquire {}
impl StoreOrder for Relaxed {}
impl StoreOrder for Release {}
