//! Parts of a mount with separate consistency rules.

use crate::Fh;

/// The consistency domain of an object ([`ConsistencyDomains`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsistencyDomain {
    /// Number of the consistency domain. Every layer treats objects of consistency domains with
    /// different numbers as different objects, even when the server gives them equal numbers.
    /// Cached state of one consistency domain is not used in another.
    pub number: u8,
    /// When the server is asked to confirm cached state; `None`: as in the rest of the mount.
    pub asks: Option<Asks>,
}

/// When the server is asked to confirm cached state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// When the validity of the state is over, and at each open.
    AtOpens,
    /// When the validity of the state is over.
    WhenOver,
    /// At each call.
    Always,
}

/// Knows the consistency domains of a file system with several of them.
pub trait ConsistencyDomains: Send + Sync + 'static {
    /// The consistency domain that an object belongs to. Never waits.
    fn consistency_domain(&self, fh: &Fh) -> ConsistencyDomain;
}
