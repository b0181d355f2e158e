//! Watches whether a connected origin answers, for `stale-ok=`.
//!
//! This module knows no files. It asks the origin for one attribute past all caches. When the
//! origin does not answer, the caches answer with expired entries, for a limited time.

use super::origin::Live;
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Interval between two questions.
const EVERY: Duration = Duration::from_secs(1);
/// An origin that takes longer for an answer is away.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// Watches an origin as long as it is served. `away` becomes true when cached answers hold beyond
/// their time, which they do for `stale_ok` from the first question without an answer.
pub async fn watch_origin(live: Weak<Live>, name: String, stale_ok: Duration, away: watch::Sender<bool>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(live) = live.upgrade() else { return };
        let began = Instant::now();
        let tell = |now: bool| {
            live.client.answer_stale(now);
            away.send_if_modified(|before| std::mem::replace(before, now) != now)
        };
        let mut probe = Box::pin(live.client.probe());
        if matches!(tokio::time::timeout(ANSWERS_WITHIN, &mut probe).await, Ok(Ok(()))) {
            continue;
        }
        tracing::warn!(
            "origin {name} does not answer: its cached files are served for {} s",
            stale_ok.as_secs()
        );
        tell(true);
        let returned = async {
            loop {
                // A question of a hard mount has an answer when the origin returns.
                if probe.await.is_ok() {
                    return;
                }
                tokio::time::sleep(EVERY).await;
                probe = Box::pin(live.client.probe());
            }
        };
        let mut returned = Box::pin(returned);
        let until = began + stale_ok;
        if tokio::time::timeout_at(until, &mut returned).await.is_err() {
            tracing::warn!(
                "origin {name} is away for longer than stale-ok={}: calls wait",
                stale_ok.as_secs()
            );
            tell(false);
            returned.await;
        }
        tell(false);
        tracing::info!("origin {name} answers again after {} s", began.elapsed().as_secs());
    }
}
