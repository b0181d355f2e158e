//! First bytes of a file in another compound: OPEN, GETATTR, READ and CLOSE.
//!
//! READ and CLOSE use the current stateid, which OPEN sets (RFC 8881 section 16.2.3.1.2). The open
//! has a separate owner. Opens of one owner and file share a stateid. With a shared owner a CLOSE
//! could end a program's open, or be refused because of it. Owners are reused after their compound.
//! Their number is the largest number of such compounds in flight at one time.
//!
//! GETATTR is between OPEN and READ: the bytes may be newer than the attributes, never older. With
//! newer bytes the next comparison shows a different `change`, and the cache drops both. The
//! reverse order would keep old bytes under a new `change` permanently. Bytes that do not match the
//! size are dropped.

use super::attrs::NODE_ATTRS;
use super::call::{Answer, Compound};
use super::core::Core;
use super::fail::Answered;
use super::state::wire_fh;
use bytes::Bytes;
use hither_proto::nfs4::{Attrs as WireAttrs, Op, OpenArgs, OpenClaim, ReadOk, StateOwner, Stateid, open};
use hither_vfs::{Data, Error, Fetched, Fh, Read};
use parking_lot::Mutex;
use std::sync::Arc;

/// Operations of [`bring_ops`].
pub(crate) const BRING_OPS: usize = 4;
/// Operations of [`open_ops`].
pub(crate) const OPEN_OPS: usize = 3;

/// The separate owners.
#[derive(Default)]
pub(crate) struct Owners {
    /// The unused owners, and the number of all owners.
    free: Mutex<(Vec<u32>, u32)>,
}

impl Owners {
    /// Whether an open with a separate owner may be in progress.
    pub fn in_use(&self) -> bool {
        let free = self.free.lock();
        free.0.len() < free.1 as usize
    }
}

/// The use of an owner. Drop ends it.
pub(crate) struct Turn {
    owners: Arc<Owners>,
    number: u32,
    /// `open_owner4`.
    owner: Bytes,
    /// `OPEN4_SHARE_ACCESS_WANT_*`.
    want: u32,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.owners.free.lock().0.push(self.number);
    }
}

impl Turn {
    /// `open_owner4`.
    pub fn owner(&self) -> &Bytes {
        &self.owner
    }
}

/// Opens the current file for reading, reads at most `max_bytes` and closes it.
pub(crate) fn bring_ops(turn: &Turn, max_bytes: u32) -> [Op; BRING_OPS] {
    let [open, attrs, close] = open_ops(turn);
    [open, attrs, Op::read(Stateid::CURRENT, 0, max_bytes), close]
}

/// Opens the current file for reading and closes it.
pub(crate) fn open_ops(turn: &Turn) -> [Op; OPEN_OPS] {
    let open = OpenArgs {
        seqid: 0,
        share_access: open::SHARE_ACCESS_READ | turn.want,
        share_deny: open::SHARE_DENY_NONE,
        owner: StateOwner { clientid: 0, owner: turn.owner.clone().into() },
        how: None,
        claim: OpenClaim::Fh,
    };
    [Op::Open(open), Op::Getattr(NODE_ATTRS), Op::close(Stateid::CURRENT)]
}

impl Core {
    /// An owner for the opens of one compound.
    pub fn turn(&self) -> Arc<Turn> {
        let number = {
            let mut free = self.owners.free.lock();
            let (free, next) = &mut *free;
            free.pop().unwrap_or_else(|| {
                *next += 1;
                *next
            })
        };
        let owner = self.files.bring_owner(number);
        let want = self.wanted_delegation();
        Arc::new(Turn { owners: self.owners.clone(), number, owner, want })
    }

    /// Reads the results of [`bring_ops`] for `fh`; with 0 bytes, of [`open_ops`].
    pub async fn brought(
        self: &Arc<Self>,
        fh: &Fh,
        turn: &Arc<Turn>,
        max_bytes: u32,
        answer: &mut Answer,
    ) -> Answered<Fetched> {
        let ok = answer.results.open()?;
        let granted = self.note_delegation(fh, &ok);
        let read = |answer: &mut Answer| {
            let attrs = answer.results.getattr()?;
            let read = if max_bytes > 0 { Some(answer.results.read()?) } else { None };
            Ok((attrs, read))
        };
        let got: Answered<(WireAttrs, Option<ReadOk>)> = read(answer);
        if got.is_err() || answer.results.close().is_err() {
            self.close_brought(fh, ok.stateid, turn);
        }
        let (wire, read) = got?;
        let attrs = self.leased_by(fh, self.attrs(fh, &wire, answer.asked).await?, granted);
        let size = wire.size.unwrap_or(0);
        let read = match read {
            Some(read) => self.first_bytes(fh, size, max_bytes, read)?,
            None => Read { data: Data::default(), eof: size == 0 },
        };
        Ok(Fetched { attrs, read })
    }

    /// First bytes of a file of `size_bytes`, with this client's uncommitted writes.
    pub fn first_bytes(
        self: &Arc<Self>,
        fh: &Fh,
        size_bytes: u64,
        max_bytes: u32,
        read: ReadOk,
    ) -> Answered<Read> {
        let got = read.data.len();
        if got as u64 != size_bytes.min(u64::from(max_bytes)) {
            // The reply has more bytes than requested, or does not match the size in the
            // attributes. The file was changed in between.
            return Err(Error::new(libc::EAGAIN).into());
        }
        // A copy, so that the bytes do not keep the whole reply alive.
        let data = Bytes::copy_from_slice(&read.data.0).into();
        let read = Read { data, eof: got as u64 == size_bytes };
        Ok(self.writes().overlay(fh, 0, max_bytes, read))
    }

    /// Sends the CLOSE when the compound ended between OPEN and CLOSE.
    pub(crate) fn close_brought(self: &Arc<Self>, fh: &Fh, stateid: Stateid, turn: &Arc<Turn>) {
        let (core, fh, turn) = (self.clone(), fh.clone(), turn.clone());
        tokio::spawn(async move {
            let ops = [Op::Putfh(wire_fh(&fh)), Op::close(stateid.any_seqid())];
            if let Err(f) = core.compound(&core.own_cx(), Compound::new("CLOSE", ops)).await {
                tracing::debug!(?fh, "CLOSE: {}", Error::from(f));
            }
            drop(turn);
        });
    }
}
