//! Reads: local bytes merged over the server's bytes.
//!
//! The module does not know how bytes are sent. The local bytes are copied before the layer below
//! is called. Bytes that are sent meanwhile are then in both parts, and never in neither. A range
//! needs no call if it is completely local, or certainly lies beyond the server's end. All gaps
//! together need one call.

use super::WriteBack;
use bytes::Bytes;
use hither_vfs::{Data, File, Read, RequestContext, Result};
use tokio::time::Instant;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The local part of a range to be read.
struct Here {
    pieces: Vec<(u64, Bytes)>,
    /// One past the last local byte.
    end_bytes: u64,
    /// The server's length, if it is certain.
    server_size: Option<u64>,
}

impl WriteBack {
    /// Reads like [`hither_vfs::Vfs::read`].
    pub(super) async fn read_merged(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        let end = offset_bytes.saturating_add(u64::from(len_bytes));
        let here = self.known(file.fh).and_then(|f| {
            let s = f.state.lock();
            let end_bytes = s.extents.end_bytes();
            let concerned = offset_bytes < end_bytes && len_bytes > 0;
            concerned.then(|| Here {
                pieces: s.extents.overlay(offset_bytes, end),
                end_bytes,
                server_size: s.view.server_size(Instant::now()),
            })
        });
        match here {
            Some(here) => self.read_over(cx, file, offset_bytes, end, here).await,
            None => self.below.read(cx, file, offset_bytes, len_bytes).await,
        }
    }

    /// Reads the gaps from the server and merges the local bytes over them.
    async fn read_over(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        start: u64,
        end: u64,
        here: Here,
    ) -> Result<Read> {
        let Here { pieces, end_bytes, server_size } = here;
        let (mut gaps, mut at) = (Vec::new(), start);
        for (from, bytes) in &pieces {
            gaps.extend((at < *from).then_some((at, *from)));
            at = from + bytes.len() as u64;
        }
        gaps.extend((at < end).then_some((at, end)));
        let hull = (gaps.first().map_or(end, |g| g.0), gaps.last().map_or(end, |g| g.1));
        // The server has no bytes beyond its end.
        let hull = (hull.0, hull.1.min(server_size.unwrap_or(u64::MAX)));
        let (theirs, their_eof) = self.read_all(cx, file, hull.0, hull.1).await?;
        let their_end = hull.0 + theirs.len() as u64;
        // Bytes between the server's end and the last local byte are zero.
        let last = end.min(end_bytes.max(if hull.0 < hull.1 { their_end } else { 0 }));
        let mut out = Data::default();
        let mut pieces = pieces.into_iter();
        let fill = |out: &mut Data, from: u64, to: u64| {
            let to = to.min(last.max(from));
            let (a, b) = (from.clamp(hull.0, their_end.max(hull.0)), to.clamp(hull.0, their_end.max(hull.0)));
            if a < b {
                let part = slice(&theirs, (a - hull.0) as usize, (b - a) as usize);
                part.parts().iter().for_each(|p| out.push(p.clone()));
            }
            zeros(out, to - from - (b - a));
        };
        at = start;
        for (from, bytes) in pieces.by_ref() {
            fill(&mut out, at, from);
            at = from + bytes.len() as u64;
            out.push(bytes);
        }
        fill(&mut out, at, end);
        let got = start + out.len() as u64;
        let eof =
            got >= end_bytes && (server_size.is_some_and(|s| s <= got) || their_eof && their_end <= got);
        Ok(Read { data: out, eof })
    }

    /// All bytes of a range. Fewer bytes only at the end of the file.
    async fn read_all(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        start: u64,
        end: u64,
    ) -> Result<(Data, bool)> {
        let (mut data, mut eof) = (Data::default(), false);
        let cx = &RequestContext { takes_slice: false, ..cx.clone() };
        while start + (data.len() as u64) < end && !eof {
            let at = start + data.len() as u64;
            let read = self.below.read(cx, file, at, (end - at) as u32).await?;
            eof = read.eof || read.data.is_empty();
            read.data.parts().iter().for_each(|p| data.push(p.clone()));
        }
        Ok((data, eof))
    }
}

fn zeros(out: &mut Data, mut len: u64) {
    while len > 0 {
        let some = len.min(ZEROS.len() as u64);
        out.push(Bytes::from_static(&ZEROS[..some as usize]));
        len -= some;
    }
}

/// A part of `data`, without a copy.
fn slice(data: &Data, start: usize, len: usize) -> Data {
    let (mut skip, mut left, mut out) = (start, len, Data::default());
    for part in data.parts() {
        let from = skip.min(part.len());
        let to = part.len().min(from + left);
        out.push(part.slice(from..to));
        skip -= from;
        left -= to - from;
    }
    out
}
