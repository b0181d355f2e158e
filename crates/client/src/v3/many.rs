//! Calls about many objects: concurrent calls in bounded number, because NFSv3 has no compounds.
//!
//! The replies of READ and READDIRPLUS have the attributes of GETATTR. A server reads the
//! attributes after the data. The new attributes would then hide a change by another client in
//! between. The caller must not keep such an answer longer than its validity. The comment on each
//! call describes how the call ensures that.

use super::V3;
use super::convert;
use super::readdir::Listed;
use super::walk::Start;
use super::wire::Patience;
use hither_vfs::{Access, Attrs, Data, DirPage, Error, Fetched, Fh, File, Read, RequestContext, Result};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Most concurrent calls for one request about many objects.
const CALLS_MAX: usize = 64;
/// Most bytes of their replies together.
const REPLIES_MAX_BYTES: usize = 8 << 20;

/// A bit that no `change` of this version has (62 bits of ctime). Attributes with it can be used
/// for their validity. They differ from all later attributes of the server.
const NEVER_AGAIN: u64 = 1 << 63;

impl V3 {
    pub(super) async fn attributes_of_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let one =
            |this: V3, cx: RequestContext, fh: Fh| async move { Ok(this.node(&cx, fh, None).await?.attrs) };
        self.each(cx, objects, CALLS_MAX, one).await
    }

    pub(super) async fn proofs_of_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        let one =
            move |this: V3, cx: RequestContext, fh: Fh| async move { this.revalidate(&cx, &fh, want).await };
        self.each(cx, objects, CALLS_MAX, one).await
    }

    /// Rights with attributes that are not newer than the rights. The attributes of the reply are
    /// newer, unless the client saw the same attributes before.
    async fn revalidate(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<(Attrs, Access)> {
        let mut before = self.caller.rules.known_change(fh);
        for _ in 0..2 {
            let asked = Instant::now();
            let (have, attr) = self.rights(cx, fh, want).await?;
            let attr = attr.as_ref().and_then(convert::attr);
            match attr {
                Some(attr) if before == Some(attr.change) => return Ok((self.stamp(fh, attr, asked), have)),
                Some(attr) => before = Some(attr.change),
                None => break,
            }
        }
        let attrs = self.node(cx, fh.clone(), None).await?.attrs;
        Ok((attrs, self.rights(cx, fh, want).await?.0))
    }

    pub(super) async fn starts_of_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<Fetched>> {
        let one =
            move |this: V3, cx: RequestContext, fh: Fh| async move { this.fetch(&cx, &fh, max_bytes).await };
        self.each(cx, files, side_by_side(max_bytes), one).await
    }

    pub(super) async fn listings_of_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        let one = move |this: V3, cx: RequestContext, fh: Fh| async move {
            this.listing(&cx, &fh, max_bytes).await
        };
        self.each(cx, dirs, side_by_side(max_bytes), one).await
    }

    /// The start of a file. Its attributes must equal the attributes known before, so that the file
    /// did not change during the read. Otherwise the file is read again.
    async fn fetch(&self, cx: &RequestContext, fh: &Fh, max_bytes: u32) -> Result<Fetched> {
        if max_bytes == 0 {
            let (attrs, have) = self.revalidate(cx, fh, Access::READ).await?;
            if !have.contains(Access::READ) {
                return Err(Error::new(libc::EACCES));
            }
            let eof = attrs.attr.size_bytes == 0;
            return Ok(Fetched { attrs, read: Read { data: Data::default(), eof } });
        }
        let mut before = self.caller.rules.known_change(fh);
        for _ in 0..2 {
            let asked = Instant::now();
            let Start { attr, read } = self.start(&cx.cred, &Patience::of(cx), fh, max_bytes).await?;
            let attr = match attr {
                Some(attr) => attr,
                None => {
                    // Attributes first, so that they are not newer than the bytes.
                    let attrs = self.node(cx, fh.clone(), None).await?.attrs;
                    let Start { read, .. } = self.start(&cx.cred, &Patience::of(cx), fh, max_bytes).await?;
                    return Ok(Fetched { attrs, read });
                }
            };
            let changed = before.is_some_and(|b| b != attr.change);
            before = Some(attr.change);
            if !changed {
                let attrs = self.stamp(fh, attr, asked);
                return self.fetch_rest(cx, fh, max_bytes, Fetched { attrs, read }).await;
            }
        }
        Err(Error::new(libc::EAGAIN))
    }

    /// Adds the bytes beyond the first READ of `rsize`, when the file stays unchanged.
    async fn fetch_rest(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        max_bytes: u32,
        mut got: Fetched,
    ) -> Result<Fetched> {
        let have = got.read.data.len() as u32;
        if got.read.eof || have >= max_bytes {
            return Ok(got);
        }
        let file = File { fh, open: None };
        let Ok(rest) = self.read_range(cx, file, u64::from(have), max_bytes - have).await else {
            return Ok(got);
        };
        let again = self.caller.getattr(&cx.cred, &Patience::of(cx), fh).await;
        if again.is_ok_and(|attr| attr.change == got.attrs.attr.change) {
            let Read { data, eof } = rest;
            data.parts().iter().for_each(|part| got.read.data.push(part.clone()));
            got.read.eof = eof;
        }
        Ok(got)
    }

    /// A listing. Its attributes can match later attributes only when they were the same before the
    /// listing.
    async fn listing(&self, cx: &RequestContext, dir: &Fh, max_bytes: u32) -> Result<(Attrs, DirPage)> {
        let before = self.caller.rules.known_change(dir);
        let Listed { page, dir: came } = self.list_from_start(cx, dir, max_bytes).await?;
        let mut attrs = match came {
            Some(attrs) => attrs,
            None => self.node(cx, dir.clone(), None).await?.attrs,
        };
        if before != Some(attrs.attr.change) {
            attrs.attr.change |= NEVER_AGAIN;
        }
        Ok((attrs, page))
    }

    /// Runs `one` for each object, at most `at_once` concurrently. Returns the outcomes in order.
    async fn each<T, F, W>(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        at_once: usize,
        one: F,
    ) -> Vec<Result<T>>
    where
        T: Send + 'static,
        F: Fn(V3, RequestContext, Fh) -> W,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let lost = || Err(Error::because(libc::EIO, "a call ended without a result"));
        let mut out: Vec<Result<T>> = objects.iter().map(|_| lost()).collect();
        let mut waiting = objects.iter().enumerate();
        let mut calls = JoinSet::new();
        loop {
            while calls.len() < at_once
                && let Some((i, fh)) = waiting.next()
            {
                let call = one(self.clone(), cx.clone(), fh.clone());
                calls.spawn(async move { (i, call.await) });
            }
            match calls.join_next().await {
                Some(Ok((i, outcome))) => out[i] = outcome,
                Some(Err(_)) => {}
                None => return out,
            }
        }
    }
}

/// Number of concurrent calls with replies of up to `reply_bytes` each.
fn side_by_side(reply_bytes: u32) -> usize {
    (REPLIES_MAX_BYTES / (reply_bytes as usize).max(1)).clamp(1, CALLS_MAX)
}
