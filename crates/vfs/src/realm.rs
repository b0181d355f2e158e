//! Parts of a mount with separate consistency rules.

/// The realm of an object ([`Vfs::realm`](crate::Vfs::realm)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Realm {
    /// Number of the realm. Every layer treats objects of realms with different numbers as
    /// different objects, even when the server gives them equal numbers. Cached state of one realm
    /// is not used in another.
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
