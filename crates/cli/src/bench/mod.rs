//! `mscclrs bench`.

pub(crate) mod data;
pub(crate) mod plot;
pub(crate) mod row;
pub(crate) mod sizes;
pub(crate) mod table;
pub(crate) mod types;
