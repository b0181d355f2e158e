//! How one frontend of a stack reports its changes to another.
//!
//! Two frontends over one stack see each other's changes by asking it. State that one of them has
//! given away for longer (a kernel's caches) has to be taken back when the other changes it.

use crate::{Fh, Name};
use async_trait::async_trait;
use std::future::Future;
use std::pin::Pin;

/// The object that a call changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// The contents of a file.
    Contents(Fh),
    /// The target of a name in a directory, and the directory. The object as far as it is known.
    Name(Fh, Name, Option<Fh>),
}

/// Work whose outcome its maker takes out of itself.
pub type Work<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A frontend that has given answers away.
#[async_trait]
pub trait Beside: Send + Sync + 'static {
    /// Runs a call of another frontend that changes something. When this returns, nothing older
    /// than the end of `work` is shown by this frontend. Dropped before, it is as if `work` were
    /// still under way.
    async fn around<'a>(&self, touched: &[Touched], work: Work<'a>);
}
