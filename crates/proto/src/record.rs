//! Record marking (RFC 5531 section 11): the boundaries of messages on a byte stream.
//!
//! This module knows neither sockets nor the content of a record. [`Reader`] offers spare space in
//! the buffer of the record. A socket reads into that space, and [`Reader::next_record`] splits off
//! complete records. While a long fragment arrives, the space ends where the fragment ends, so its
//! payload is received in place. When the buffer grows, only bytes from the same read as the mark
//! move (at most [`READ_AHEAD_BYTES`]). The buffer contains the present record and then unparsed
//! bytes. The mark of a further fragment leaves a gap, which the reader closes. Several fragments
//! therefore become one slice.
//!
//! A peer is not trusted. The length of a record and the number of its fragments are limited.
//! Beyond [`TRUST_BYTES`] the buffer grows only as data arrives.

use crate::xdr::Enc;
use bytes::{Buf, BufMut, Bytes, BytesMut, buf::Limit};

/// Space offered while no long fragment arrives. It holds dozens of small replies in one read.
/// Moving it over a mark costs a microsecond.
pub const READ_AHEAD_BYTES: usize = 16 << 10;

/// A record's buffer is allocated at once up to this length. Untouched memory of this size costs
/// only address space, and the usual largest READ (1 MiB) then never moves. Beyond this length the
/// buffer doubles as data arrives.
pub const TRUST_BYTES: usize = (1 << 20) + (64 << 10);

/// Longest fragment that a mark can announce.
pub const FRAGMENT_MAX_BYTES: usize = (1 << 31) - 1;

const LAST: u32 = 1 << 31;
const MARK_BYTES: usize = 4;

/// The limits of a peer's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest record in bytes, without marks, in all fragments.
    pub record_max_bytes: usize,
    /// Most fragments of a record, including empty ones.
    pub fragments_max: usize,
}

impl Default for Limits {
    /// 4 MiB in 1024 fragments. That exceeds the largest READ of any NFS server. Old RPC libraries
    /// send fragments of 4000 bytes, which also reach 4 MiB.
    fn default() -> Self {
        Self { record_max_bytes: 4 << 20, fragments_max: 1024 }
    }
}

/// Why the stream cannot be read further. The caller must close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is longer than the limit.
    #[error("record of at least {len} bytes exceeds the maximum of {max}")]
    TooLong {
        /// Bytes announced so far.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The record has more fragments than the limit.
    #[error("record has more than {max} fragments")]
    TooManyFragments {
        /// The limit.
        max: usize,
    },
}

/// Reassembles records from a byte stream.
#[derive(Debug)]
pub struct Reader {
    limits: Limits,
    /// `done` bytes of the record, a gap left by marks, and unparsed bytes from `next` on.
    buf: BytesMut,
    /// Bytes of the current record in complete fragments.
    done: usize,
    /// Start of the unparsed bytes.
    next: usize,
    /// The incoming fragment.
    fragment: Option<Fragment>,
    /// Number of fragments of the present record, including the incoming one.
    fragments: usize,
}

#[derive(Debug, Clone, Copy)]
struct Fragment {
    len: usize,
    last: bool,
}

impl Reader {
    /// A reader at the beginning of a stream. It allocates its buffer later.
    pub fn new(limits: Limits) -> Self {
        Self { limits, buf: BytesMut::new(), done: 0, next: 0, fragment: None, fragments: 0 }
    }

    /// Space for the next bytes of the stream, at least one byte. Call [`Reader::next_record`]
    /// until it returns `None` before each call. Only then does the space fit the expected bytes.
    ///
    /// The space is an uninitialised `BufMut` and not a slice. A socket's `read_buf` fills it
    /// without clearing it first.
    pub fn space(&mut self) -> Limit<&mut BytesMut> {
        let missing = self.missing();
        let (least, offer) = if missing > READ_AHEAD_BYTES {
            let believable = TRUST_BYTES.saturating_sub(self.buf.len()).max(self.buf.len());
            let offer = missing.min(believable.max(READ_AHEAD_BYTES));
            (offer, offer)
        } else {
            // The next record may be a small write. In the short rest of a buffer it would arrive
            // in two pieces and be copied.
            let least = if self.buf.is_empty() { READ_AHEAD_BYTES / 4 * 3 } else { READ_AHEAD_BYTES / 4 };
            (missing.max(least), READ_AHEAD_BYTES)
        };
        // An empty buffer starts again at its beginning when its records are dropped.
        let reused = self.buf.is_empty() && self.buf.try_reclaim(offer);
        if !reused && self.buf.capacity() - self.buf.len() < least {
            self.grow(offer);
        }
        let room = (self.buf.capacity() - self.buf.len()).min(offer);
        (&mut self.buf).limit(room)
    }

    /// The next complete record without its marks, or `None` when more bytes are needed. The record
    /// shares its buffer with other records. Copy the parts that are kept for long.
    ///
    /// # Errors
    /// The record exceeds a limit.
    pub fn next_record(&mut self) -> Result<Option<Bytes>, RecordError> {
        loop {
            let Some(fragment) = self.fragment else {
                if self.unparsed() < MARK_BYTES {
                    self.close_gap();
                    return Ok(None);
                }
                self.take_mark()?;
                continue;
            };
            if self.unparsed() < fragment.len {
                self.close_gap();
                return Ok(None);
            }
            if self.next > self.done {
                self.buf.copy_within(self.next..self.next + fragment.len, self.done);
            }
            self.done += fragment.len;
            self.next += fragment.len;
            self.fragment = None;
            if fragment.last {
                return Ok(Some(self.take_record()));
            }
        }
    }

    /// Copies bytes from the front of `input` until a record is complete or `input` is empty.
    /// Returns the record. For transports that provide their own buffers.
    ///
    /// # Errors
    /// Those of [`Reader::next_record`].
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Bytes>, RecordError> {
        loop {
            if let Some(record) = self.next_record()? {
                return Ok(Some(record));
            }
            if input.is_empty() {
                return Ok(None);
            }
            let mut space = self.space();
            let n = space.remaining_mut().min(input.len());
            space.put_slice(&input[..n]);
            input.advance(n);
        }
    }

    /// True between records, where the stream may end.
    pub fn is_between_records(&self) -> bool {
        self.buf.is_empty() && self.fragments == 0
    }

    /// Announced length of the incoming record in bytes; 0 before its first mark.
    pub fn announced_bytes(&self) -> usize {
        self.done + self.fragment.map_or(0, |fragment| fragment.len)
    }

    fn unparsed(&self) -> usize {
        self.buf.len() - self.next
    }

    /// Missing bytes of the incoming fragment or mark, at least 1.
    fn missing(&self) -> usize {
        let wanted = self.fragment.map_or(MARK_BYTES, |f| f.len);
        wanted.saturating_sub(self.unparsed()).max(1)
    }

    fn take_mark(&mut self) -> Result<(), RecordError> {
        let mark = (&self.buf[self.next..]).get_u32();
        let len = (mark & !LAST) as usize;
        let total = self.done + len;
        if total > self.limits.record_max_bytes {
            return Err(RecordError::TooLong { len: total, max: self.limits.record_max_bytes });
        }
        self.fragments += 1;
        if self.fragments > self.limits.fragments_max {
            return Err(RecordError::TooManyFragments { max: self.limits.fragments_max });
        }
        if self.next == 0 {
            self.buf.advance(MARK_BYTES);
        } else {
            self.next += MARK_BYTES;
        }
        self.fragment = Some(Fragment { len, last: mark & LAST != 0 });
        Ok(())
    }

    fn take_record(&mut self) -> Bytes {
        let record = self.buf.split_to(self.done).freeze();
        self.buf.advance(self.next - self.done);
        (self.done, self.next, self.fragments) = (0, 0, 0);
        record
    }

    /// Moves the unparsed bytes to the end of the record, so that the next bytes arrive in place.
    /// This happens only after all received bytes are parsed. A read with many tiny fragments
    /// therefore moves its bytes once, not once per fragment.
    fn close_gap(&mut self) {
        if self.next > self.done {
            self.buf.copy_within(self.next.., self.done);
            self.buf.truncate(self.buf.len() - (self.next - self.done));
            self.next = self.done;
        }
    }

    /// Makes room for `more` bytes. The memory is reused when no record in it is alive. Otherwise
    /// it at least doubles, so that many fragments cost no more than one.
    fn grow(&mut self, more: usize) {
        if !self.buf.try_reclaim(more) {
            let mut new = BytesMut::with_capacity(self.buf.len() + more.max(self.buf.len()));
            new.extend_from_slice(&self.buf);
            self.buf = new;
        }
    }
}

/// Frames a message as one record, for a vectored write: its mark, then its segments.
pub fn frame(message: Enc) -> Vec<Bytes> {
    frame_in(message, FRAGMENT_MAX_BYTES)
}

/// Frames the beginning of a one-fragment record. `beyond_bytes` further bytes follow. `None` when
/// the record is longer than a fragment can be.
pub fn frame_beginning(message: Enc, beyond_bytes: usize) -> Option<Vec<Bytes>> {
    let len = message.len().checked_add(beyond_bytes).filter(|len| *len <= FRAGMENT_MAX_BYTES)?;
    let mut out = vec![Bytes::copy_from_slice(&(len as u32 | LAST).to_be_bytes())];
    out.extend(message.finish());
    Some(out)
}

/// Frames a message as a record in fragments of at most `fragment_max_bytes` (at least 1).
pub fn frame_in(message: Enc, fragment_max_bytes: usize) -> Vec<Bytes> {
    let fragment_max = fragment_max_bytes.clamp(1, FRAGMENT_MAX_BYTES);
    let mut left = message.len();
    let mut segments = message.finish();
    let mut out = Vec::with_capacity(segments.len() + 1);
    let mut segments = segments.drain(..).filter(|s| !s.is_empty());
    let mut segment = Bytes::new();
    loop {
        let len = left.min(fragment_max);
        left -= len;
        let last = if left == 0 { LAST } else { 0 };
        out.push(Bytes::copy_from_slice(&(len as u32 | last).to_be_bytes()));
        let mut missing = len;
        while missing > 0 {
            if segment.is_empty() {
                segment = segments.next().unwrap_or_default();
            }
            let part = segment.split_to(missing.min(segment.len()));
            missing -= part.len();
            out.push(part);
        }
        if left == 0 {
            return out;
        }
    }
}

#[cfg(test)]
mod tests;
