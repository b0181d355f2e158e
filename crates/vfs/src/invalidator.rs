//! Reports of changes from one frontend of a stack to another.
//!
//! Each frontend sees the changes of the other when it calls the stack. A frontend may have passed
//! on state for a longer time, for example to the kernel's caches. That state has to be invalidated
//! when the other frontend changes the object.

use crate::{Fh, Name};
use async_trait::async_trait;
use std::future::Future;
use std::pin::Pin;

/// The object that a call changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// The contents of a file.
    Contents(Fh),
    /// A name in a directory: the directory, the name, and the target object when it is known.
    Name(Fh, Name, Option<Fh>),
}

/// A future that stores its outcome outside of itself.
pub type Work<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A frontend that has passed on cached state.
#[async_trait]
pub trait Invalidator: Send + Sync + 'static {
    /// Runs a change of another frontend. After this returns, this frontend shows no state that is
    /// older than the end of `work`. When the future is dropped early, the frontend acts as if
    /// `work` were still running.
    async fn around<'a>(&self, touched: &[Touched], work: Work<'a>);
}
