//! Calls with side effects run to their end, even if the caller stops waiting.

use hither_vfs::{Error, RequestContext, Result};
use tokio::time::sleep_until;

/// Runs `call` in a task of its own and waits for it as long as the caller does.
///
/// # Errors
/// The error of the call. `EINTR` when the caller was interrupted and `ETIMEDOUT` when its deadline
/// passed. In both cases the call continues.
pub(super) async fn detached<T: Send + 'static>(
    cx: &RequestContext,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let task = tokio::spawn(call);
    patient(cx, async {
        match task.await {
            Ok(outcome) => outcome,
            Err(e) => Err(Error::because(libc::EIO, format!("a call ended without a result: {e}"))),
        }
    })
    .await
}

/// Waits for `call` as long as the caller does. A call that is no longer wanted is dropped.
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
