//! A network on virtual time, for tests.
