//! Reports of changes to files by other programs.

use crate::{BoxFuture, Fh};
use std::any::Any;
use std::sync::Arc;

/// Watches files that other programs may change without the [`Vfs`](crate::Vfs): local programs,
/// when the `Vfs` is a local directory.
pub trait Watch: Send + Sync + 'static {
    /// Watches a regular file or a directory until the result is dropped. Where the system supports
    /// it, another program that wants to change the contents is blocked until the result is
    /// dropped. Other changes (attributes, names) are reported when they happen. `None` when the
    /// system cannot watch the file, or when a program has it open for writing. Of a directory,
    /// whose contents are its names, all changes are reported when they happen. Changes through the
    /// `Vfs` count as changes by other programs. The caller stops watching before it makes one.
    ///
    /// `alone`: another program that wants to read the contents is also blocked and reported. The
    /// caller may change the contents through the `Vfs` while it watches. Other changes by the
    /// caller are reported like those of another program. `None` also when another program has the
    /// file open.
    fn watch(&self, fh: &Fh, alone: bool) -> BoxFuture<Option<Watched>>;

    /// Changes a watch to `alone`, for a caller that is about to change the file through the `Vfs`.
    /// The error contains the old watch. It contains `None` when another program opened or changed
    /// the file meanwhile.
    fn watch_alone(&self, fh: &Fh, watched: Watched) -> BoxFuture<WatchedAlone>;

    /// Sets the listener. It gets the filehandles of files that other programs want to change or
    /// have changed. A later listener replaces an earlier one.
    fn tell(&self, told: Arc<ChangeListener>);
}

/// The listener of [`Watch::tell`]. It returns at once and does not wait.
pub type ChangeListener = dyn Fn(&Fh) + Send + Sync;

/// A watch of a file. It ends when the value is dropped.
pub type Watched = Box<dyn Any + Send + Sync>;

/// The result of [`Watch::watch_alone`].
pub type WatchedAlone = Result<Watched, Option<Watched>>;
