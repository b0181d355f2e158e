//! Reading and writing: concurrent READs and WRITEs of at most rsize and wsize.

use super::V3;
use super::convert;
use super::open::Open;
use super::wire::Patience;
use crate::error;
use bytes::Bytes;
use hither_proto::nfs3::ReadArgs;
use hither_vfs::{Cred, Data, Error, Fh, File, OpenId, Read, RequestContext, Result, Stability, Wrote};
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Bytes of one part of a read, and whether the file ends after them.
type Part = (Data, bool);

impl V3 {
    /// Reads with the credential of the open. A file stays readable when its mode changes while it
    /// is open.
    pub(super) async fn read_range(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        let cred = self.acting(cx, file.open);
        let patience = Patience::of(cx);
        let rsize = self.caller.sizes.rsize_bytes;
        let (data, eof) = if len_bytes <= rsize {
            self.read_part(&cred, &patience, file.fh, offset_bytes, len_bytes).await?
        } else {
            self.read_parts(cred, patience, file.fh, offset_bytes, len_bytes).await?
        };
        Ok(self.writes.overlay(file.fh, offset_bytes, len_bytes, Read { data, eof }))
    }

    async fn read_parts(
        &self,
        cred: Arc<Cred>,
        patience: Patience,
        fh: &Fh,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Part> {
        let rsize = self.caller.sizes.rsize_bytes;
        let mut parts = JoinSet::new();
        for (i, start) in (0..len_bytes).step_by(rsize as usize).enumerate() {
            let (this, cred, patience, fh) = (self.clone(), cred.clone(), patience.clone(), fh.clone());
            let at = offset_bytes.saturating_add(u64::from(start));
            let len = rsize.min(len_bytes - start);
            parts.spawn(async move { (i, this.read_part(&cred, &patience, &fh, at, len).await) });
        }
        let mut parts = parts.join_all().await;
        parts.sort_by_key(|(i, _)| *i);
        let mut all = Data::default();
        for (_, part) in parts {
            let (data, eof) = match part {
                Ok(part) => part,
                // The parts before the failure are the result. The next read meets the failure.
                Err(_) if !all.is_empty() => return Ok((all, false)),
                Err(e) => return Err(e),
            };
            data.parts().iter().for_each(|b| all.push(b.clone()));
            if eof {
                return Ok((all, true));
            }
        }
        Ok((all, false))
    }

    /// Reads one part completely, because a server may return fewer bytes than requested. An empty
    /// reply is the end of the file, even without the EOF flag.
    async fn read_part(
        &self,
        cred: &Cred,
        patience: &Patience,
        fh: &Fh,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Part> {
        let mut all = Data::default();
        loop {
            let done = all.len() as u32;
            let left = len_bytes - done;
            if left == 0 {
                return Ok((all, false));
            }
            let offset = offset_bytes.saturating_add(u64::from(done));
            let args = ReadArgs { file: convert::fh3(fh)?, offset, count: left };
            let ok = match self.caller.ask(cred, patience, &args).await.map_err(|e| error::call(&e)) {
                Ok(Ok(ok)) => ok,
                Ok(Err((status, _))) if done == 0 => return Err(error::nfs3(status)),
                Err(e) if done == 0 => return Err(e),
                _ => return Ok((all, false)),
            };
            let bytes: Bytes = ok.data.0;
            if bytes.len() > left as usize {
                return Err(Error::because(libc::EIO, "the server sends more bytes than requested"));
            }
            let end = ok.eof || bytes.is_empty();
            all.push(bytes);
            if end {
                return Ok((all, true));
            }
        }
    }

    pub(super) async fn write_range(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        let end = offset_bytes.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > self.caller.sizes.file_max_bytes) {
            return Err(Error::new(libc::EFBIG));
        }
        let stability = if self.opts.sync { Stability::Stable } else { stability };
        let writer = RequestContext { cred: self.acting(cx, file.open), ..cx.clone() };
        let asked = Instant::now();
        let (bytes, attr) =
            self.writes.write(&writer, file.fh, file.open, offset_bytes, data, stability).await?;
        let attrs = attr.map(|attr| self.stamp(file.fh, attr, asked));
        Ok(Wrote { bytes, attrs })
    }

    fn acting(&self, cx: &RequestContext, open: Option<OpenId>) -> Arc<Cred> {
        let open: Option<Arc<Open>> = open.and_then(|id| self.opens.find(id));
        open.map_or_else(|| cx.cred.clone(), |open| open.cred.clone())
    }
}
