//! Parts of a mount with a consistency of their own.

/// Where an object belongs ([`Vfs::realm`](crate::Vfs::realm)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Realm {
    /// Objects of realms with different numbers are different objects to every layer that keeps
    /// state of them, whatever numbers the server gives them: cached state of one realm is not used
    /// in another.
    pub number: u8,
    /// When the server is asked; `None`: as everywhere in the mount.
    pub asks: Option<Asks>,
}

/// When the server is asked to confirm cached state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// When its time is over, and by each open.
    AtOpens,
    /// When its time is over.
    WhenOver,
    /// By each call.
    Always,
}
