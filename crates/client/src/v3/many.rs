//! Calls about many objects: side by side, a bounded number at a time, because NFSv3 has no compounds.

use super::V3;
use hither_vfs::{Attrs, Cx, DirPage, Fetched, Fh, File, Result};
use tokio::task::JoinSet;

/// Calls in flight for one question about many objects.
const AT_ONCE: usize = 16;

impl V3 {
    pub(super) async fn attributes_of_many(&self, cx: &Cx, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let one = |this: V3, cx: Cx, fh: Fh| async move { Ok(this.node(&cx, fh, None).await?.attrs) };
        self.each(cx, objects, one).await
    }

    pub(super) async fn starts_of_many(&self, cx: &Cx, files: &[Fh], max_bytes: u32) -> Vec<Result<Fetched>> {
        let one = move |this: V3, cx: Cx, fh: Fh| async move {
            let read = this.read_range(&cx, File { fh: &fh, open: None }, 0, max_bytes).await?;
            let attrs = this.node(&cx, fh, None).await?.attrs;
            Ok(Fetched { attrs, read })
        };
        self.each(cx, files, one).await
    }

    pub(super) async fn listings_of_many(
        &self,
        cx: &Cx,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        let one = move |this: V3, cx: Cx, fh: Fh| async move {
            let attrs = this.node(&cx, fh.clone(), None).await?.attrs;
            Ok((attrs, this.list(&cx, &fh, 0, [0; 8], max_bytes, true).await?))
        };
        self.each(cx, dirs, one).await
    }

    /// The outcome of `one` for each object, in order.
    async fn each<T, F, W>(&self, cx: &Cx, objects: &[Fh], one: F) -> Vec<Result<T>>
    where
        T: Send + 'static,
        F: Fn(V3, Cx, Fh) -> W,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let mut out: Vec<Result<T>> = Vec::with_capacity(objects.len());
        for some in objects.chunks(AT_ONCE) {
            let mut calls = JoinSet::new();
            for (i, fh) in some.iter().enumerate() {
                let call = one(self.clone(), cx.clone(), fh.clone());
                calls.spawn(async move { (i, call.await) });
            }
            let mut done = calls.join_all().await;
            done.sort_by_key(|(i, _)| *i);
            out.extend(done.into_iter().map(|(_, outcome)| outcome));
        }
        out
    }
}
