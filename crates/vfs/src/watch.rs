//! How a layer says that files are changed by others than its callers.

use crate::{BoxFuture, Fh};
use std::any::Any;
use std::sync::Arc;

/// Watches files that others may change behind a [`Vfs`](crate::Vfs): local programs, where it
/// stands for a directory.
pub trait Watch: Send + Sync + 'static {
    /// Watches a regular file or a directory until the result is dropped. From the moment this
    /// ends, every other program that wants to change the contents is held up, where the system can
    /// do that, until it is dropped; other changes (attributes, names) are reported as they happen.
    /// `None` when that cannot be promised, also for the moment: a program has the file open for
    /// writing. Of a directory, whose contents are its names, all changes are reported as they
    /// happen. Changes that are made through the `Vfs` count as well: the caller stops watching
    /// before it makes one.
    ///
    /// `alone`: every other program that wants to look at the contents is held up and reported,
    /// too. The caller may change the contents through the `Vfs` while it watches. Other changes of
    /// its own are reported as if they were another program's. `None` also when another program has
    /// the file open.
    fn watch(&self, fh: &Fh, alone: bool) -> BoxFuture<Option<Watched>>;

    /// Watches a file alone that was watched in company, for a caller that is about to change it
    /// through the `Vfs`. The error has the file as it was watched before; or nothing, when
    /// somebody else opened or changed it meanwhile.
    fn watch_alone(&self, fh: &Fh, watched: Watched) -> BoxFuture<WatchedAlone>;

    /// Names the listener for handles of files that others want to change or have changed. The last
    /// one named counts.
    fn tell(&self, told: Arc<Told>);
}

/// See [`Watch::tell`]. Returns at once and does not wait.
pub type Told = dyn Fn(&Fh) + Send + Sync;

/// A file is watched as long as this is not dropped.
pub type Watched = Box<dyn Any + Send + Sync>;

/// See [`Watch::watch_alone`].
pub type WatchedAlone = Result<Watched, Option<Watched>>;
