//! The fields of an event or span.

use std::fmt;

use tracing::field::{Field, Visit};

/// Fields in the order in which they are given, and the message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    pub(crate) message: String,
    pub(crate) rank: Option<u64>,
    pub(crate) fields: Vec<(&'static str, Value)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Bool(bool),
    Float(f64),
    Signed(i64),
    Text(String),
    Unsigned(u64),
}

impl Values {
    /// Takes in what a span around says: what is nearer to the event counts.
    pub(crate) fn under(&mut self, outer: &Values) {
        self.rank = self.rank.or(outer.rank);
        let new =
            outer.fields.iter().filter(|(name, _)| self.fields.iter().all(|(n, _)| n != name));
        let new: Vec<_> = new.cloned().collect();
        self.fields.extend(new);
    }

    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::Text(text)) => self.message = text,
            ("rank", Value::Unsigned(rank)) => self.rank = Some(rank),
            (name, value) => {
                self.fields.retain(|(known, _)| *known != name);
                self.fields.push((name, value));
            }
        }
    }
}

impl Visit for Values {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::Bool(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, Value::Text(format!("{value:?}")));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, Value::Float(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::Signed(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Value::Text(value.to_owned()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::Unsigned(value));
    }
}
