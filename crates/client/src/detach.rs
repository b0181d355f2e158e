//! Calls that change something run to their end, even when the caller stops waiting.

use hither_vfs::Account;
use hither_vfs::{Error, RequestContext, Result};
use std::sync::Arc;
use tokio::time::sleep_until;

tokio::task_local! {
    /// Account of the call that this task serves.
    static ACCOUNT: Option<Arc<Account>>;
}

/// The account of the call that this task serves.
pub(crate) fn account() -> Option<Arc<Account>> {
    ACCOUNT.try_with(Clone::clone).ok().flatten()
}

/// Runs `call` in its own task and waits for the result as long as the caller does.
///
/// # Errors
/// The errors of `call`. `EINTR` when the caller is interrupted, `ETIMEDOUT` when its deadline
/// passes. In these two cases the call continues in its task.
pub(crate) async fn detached<T: Send + 'static>(
    cx: &RequestContext,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let task = tokio::spawn(ACCOUNT.scope(cx.account.clone(), call));
    patient(cx, async {
        match task.await {
            Ok(outcome) => outcome,
            Err(e) => Err(Error::because(libc::EIO, format!("a call ended without a result: {e}"))),
        }
    })
    .await
}

/// Waits for `call` as long as the caller does. A call is dropped when its caller stops waiting.
///
/// # Errors
/// As [`detached`].
pub(crate) async fn patient<T>(cx: &RequestContext, call: impl Future<Output = Result<T>>) -> Result<T> {
    let deadline = async {
        match cx.deadline {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        outcome = call => outcome,
        () = cx.cancel.cancelled() => Err(Error::new(libc::EINTR)),
        () = deadline => Err(Error::new(libc::ETIMEDOUT)),
    }
}
