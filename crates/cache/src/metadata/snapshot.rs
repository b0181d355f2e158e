//! Metadata over a restart: names, attributes and rights, written as pieces of bytes and read back.
//!
//! This module knows nothing of the storage of the pieces. Restored metadata counts as very old.
//! Attributes are expired. Names hold again when their directory's attributes arrive with the same
//! `change`. Rights only select requests ([`revalidate_restored`](super::revalidate_restored)). So
//! a wrong or outdated piece costs requests, and gives no wrong answer. Integers are little-endian.
//! A piece that does not parse is dropped from that position on.

use super::names::{Bound, Id};
use super::objects::{Listing, Object};
use super::{MetadataCache, stats};
use bytes::Bytes;
use hither_vfs::{Access, Attr, Cred, Fh, FileKind, Name, Time};
use std::collections::HashMap;
use std::sync::Arc;

/// Length from which on a piece is closed, in bytes.
const PIECE_BYTES: usize = 64 << 10;
/// Directories with more names are written without their names.
const NAMES_MAX: usize = 100_000;
/// Longest filehandle, in bytes (RFC 8881 section 3.2).
const FH_MAX: usize = 128;
/// Most supplementary groups of a credential that is written.
const GROUPS_MAX: usize = 64;

/// First byte of a piece: its kind.
const CREDS: u8 = 1;
const OBJECTS: u8 = 2;

/// Flags of an object: used lately, has a link target, has names, the names are complete.
const USED: u8 = 1;
const TARGET: u8 = 2;
const NAMES: u8 = 4;
const COMPLETE: u8 = 8;

const KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::BlockDevice,
    FileKind::CharDevice,
    FileKind::Socket,
    FileKind::Fifo,
];

/// Whether the names of a directory are complete, and each name with its object; `None`: absent.
type Lasting = (bool, Vec<(Vec<u8>, Option<Id>)>);

impl MetadataCache {
    /// Writes the metadata as pieces for [`MetadataCache::restore_snapshot`], the last used objects
    /// first, in about `most_bytes` bytes. Takes a while, but blocks no other call for long.
    pub fn take_snapshot(&self, most_bytes: usize) -> Vec<Vec<u8>> {
        let mut used: Vec<(u32, Id)> = Vec::new();
        for id in self.table.ids() {
            used.extend(self.table.peek_id(id, |o| o.used).map(|at| (at, id)));
        }
        used.sort_unstable_by_key(|u| std::cmp::Reverse(u.0));
        let creds = { self.creds.lock().0.iter().map(|(cred, n)| (*n, cred.clone())).collect() };
        let mut writer = Writer { creds, numbers: HashMap::new(), list: Vec::new() };
        let (mut pieces, mut piece, mut total) = (Vec::new(), vec![OBJECTS], 0);
        for (_, id) in used {
            self.write_object(id, &mut writer, &mut piece);
            if piece.len() >= PIECE_BYTES {
                total += piece.len();
                pieces.push(std::mem::replace(&mut piece, vec![OBJECTS]));
                if total >= most_bytes {
                    break;
                }
            }
        }
        pieces.push(piece);
        pieces.insert(0, writer.creds_piece());
        pieces
    }

    fn write_object(&self, id: Id, writer: &mut Writer, out: &mut Vec<u8>) {
        let now = self.clock.now();
        let mut children: Option<Lasting> = None;
        let written = self.table.peek_id(id, |o| {
            let unsettled = o.extra.as_ref().is_some_and(|e| now < e.unsettled_until);
            if o.asked == 0 || o.modifying > 0 || unsettled {
                return false;
            }
            children = o.dir().filter(|d| d.label == Some(o.attr.change)).and_then(|d| d.lasting());
            let target = o.extra.as_ref().and_then(|e| e.target.as_ref()).filter(|t| t.0 == o.attr.change);
            let mut flags = if o.used != 0 { USED } else { 0 };
            flags |= if target.is_some() { TARGET } else { 0 };
            flags |= match &children {
                Some((complete, _)) => NAMES | if *complete { COMPLETE } else { 0 },
                None => 0,
            };
            out.push(flags);
            put_bytes(out, o.fh.raw());
            put_attr(out, &self.table.unpack(&o.attr));
            writer.put_rights(out, o);
            if let Some((_, target)) = target {
                out.extend((target.len() as u32).to_le_bytes());
                out.extend_from_slice(target);
            }
            true
        });
        let Some((_, names)) = children.filter(|_| written == Some(true)) else { return };
        out.extend((names.len() as u32).to_le_bytes());
        for (name, child) in names {
            let fh = child.map(|id| self.table.peek_id(id, |o| o.fh.raw().to_vec()));
            put_bytes(out, &name);
            match fh {
                // Absent.
                None => out.push(0),
                // The object was dropped meanwhile: nothing is known of it.
                Some(None) => out.push(u8::MAX),
                Some(Some(fh)) => put_bytes(out, &fh),
            }
        }
    }

    /// Restores the pieces of [`MetadataCache::take_snapshot`], written before a restart over the
    /// same file system below. Returns the number of restored objects. Called once, before the
    /// first call or soon after: newer facts in memory stay.
    pub fn restore_snapshot(&self, pieces: &[Vec<u8>]) -> u64 {
        let mut creds = Vec::new();
        let (mut count, mut used) = (0, Vec::new());
        for piece in pieces {
            let mut reader = Reader(piece);
            match reader.u8() {
                Some(CREDS) => creds = reader.creds(),
                Some(OBJECTS) => {
                    while let Some(one) = reader.object() {
                        let was_used = one.used;
                        let id = self.take_back(one, &creds);
                        count += 1;
                        if was_used {
                            used.push(id);
                        }
                    }
                }
                _ => {}
            }
        }
        // The pieces begin with the last used object.
        used.iter().rev().for_each(|id| self.remember_use(*id));
        self.relieve();
        stats::add(&self.counters.recalled_objects, count);
        count
    }

    fn take_back(&self, one: One, creds: &[Arc<Cred>]) -> Id {
        let mut names = Vec::with_capacity(one.names.len());
        for (name, fh) in one.names {
            let child = fh.map(|fh| self.table.ensure(&fh, |id, _| id));
            names.push((name, child));
        }
        let packed = self.table.pack(&one.attr);
        let rights: Vec<(u32, Access)> = one
            .rights
            .iter()
            .filter_map(|(n, have)| Some((self.cred(creds.get(usize::from(*n))?), *have)))
            .collect();
        let id = self.table.ensure(&one.fh, |id, object| {
            let Some(packed) = packed.filter(|_| object.asked == 0 && object.modifying == 0) else {
                return id;
            };
            object.restore(packed);
            rights.iter().for_each(|(cred, have)| object.restore_right(*cred, *have));
            if let Some(target) = one.target {
                object.extra().target = Some((one.attr.change, target));
            }
            if let Some(complete) = one.complete.filter(|_| one.attr.kind == FileKind::Directory) {
                let dir = object.dir_mut();
                dir.restore(one.attr.change);
                for (name, child) in &names {
                    let bound = Bound { child: *child, asked: 0, valid_s: 0, labeled: true, cookie: None };
                    dir.put(&self.table.hasher, name.as_bytes(), bound);
                }
                if complete {
                    // The order is unknown to the server: cookies may not survive its restarts.
                    dir.listing = Some(Listing { verifier: [0; 8], eof: true, next: u64::MAX, asked: 0 });
                }
                dir.names.settle(&self.table.hasher);
            }
            id
        });
        for child in names.iter().filter_map(|(_, child)| *child) {
            self.table.with_id(child, |o| {
                if o.parent == u32::MAX {
                    o.parent = id.slot;
                }
            });
        }
        self.relieve();
        id
    }
}

/// Numbers the credentials in the order of their first use.
struct Writer {
    creds: HashMap<u32, Arc<Cred>>,
    numbers: HashMap<u32, u16>,
    list: Vec<Arc<Cred>>,
}

impl Writer {
    fn put_rights(&mut self, out: &mut Vec<u8>, object: &Object) {
        let at = out.len();
        out.push(0);
        for (cred, have) in object.granted() {
            let Some(number) = self.number(cred) else { continue };
            out.extend(number.to_le_bytes());
            out.push(have.bits() as u8);
            out[at] += 1;
        }
    }

    fn number(&mut self, cred: u32) -> Option<u16> {
        if let Some(n) = self.numbers.get(&cred) {
            return Some(*n);
        }
        let known = self.creds.get(&cred).filter(|c| c.groups.len() <= GROUPS_MAX)?;
        let n = u16::try_from(self.list.len()).ok()?;
        self.list.push(known.clone());
        self.numbers.insert(cred, n);
        Some(n)
    }

    fn creds_piece(&self) -> Vec<u8> {
        let mut out = vec![CREDS];
        for cred in &self.list {
            out.extend(cred.uid.to_le_bytes());
            out.extend(cred.gid.to_le_bytes());
            out.push(cred.groups.len() as u8);
            cred.groups.iter().for_each(|g| out.extend(g.to_le_bytes()));
        }
        out
    }
}

/// Writes a length byte, then at most 255 bytes.
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(255)];
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

fn put_attr(out: &mut Vec<u8>, attr: &Attr) {
    out.push(KINDS.iter().position(|k| *k == attr.kind).unwrap_or(0) as u8);
    out.extend(attr.mode.to_le_bytes());
    for n in [attr.nlink, attr.uid, attr.gid, attr.rdev.0, attr.rdev.1] {
        out.extend(n.to_le_bytes());
    }
    let (a, b) = attr.fsid;
    for n in [attr.size_bytes, attr.used_bytes, a, b, attr.fileid, attr.change] {
        out.extend(n.to_le_bytes());
    }
    for time in [attr.atime, attr.mtime, attr.ctime] {
        out.extend(time.secs.to_le_bytes());
        out.extend(time.nanos.to_le_bytes());
    }
}

/// One object read from a piece.
struct One {
    fh: Fh,
    attr: Attr,
    used: bool,
    rights: Vec<(u16, Access)>,
    target: Option<Bytes>,
    /// Whether the names are complete; `None` for an object without names.
    complete: Option<bool>,
    names: Vec<(Name, Option<Fh>)>,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, n: usize) -> Option<&[u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[n]| n)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = self.u8()?;
        self.take(usize::from(len)).map(<[u8]>::to_vec)
    }

    fn fh(&mut self) -> Option<Fh> {
        let raw = self.bytes()?;
        (1..=FH_MAX).contains(&raw.len()).then(|| Fh(raw.into()))
    }

    fn creds(&mut self) -> Vec<Arc<Cred>> {
        let mut out = Vec::new();
        while let Some(cred) = self.cred() {
            out.push(Arc::new(cred));
        }
        out
    }

    fn cred(&mut self) -> Option<Cred> {
        let (uid, gid, count) = (self.u32()?, self.u32()?, self.u8()?);
        let groups = (0..count).map(|_| self.u32()).collect::<Option<_>>()?;
        Some(Cred { uid, gid, groups })
    }

    fn attr(&mut self) -> Option<Attr> {
        let kind = *KINDS.get(usize::from(self.u8()?))?;
        let (mode, nlink, uid, gid) = (self.u32()? & 0o7777, self.u32()?, self.u32()?, self.u32()?);
        let rdev = (self.u32()?, self.u32()?);
        let (size_bytes, used_bytes) = (self.u64()?, self.u64()?);
        let fsid = (self.u64()?, self.u64()?);
        let (fileid, change) = (self.u64()?, self.u64()?);
        let mut time = || Some(Time { secs: self.u64()? as i64, nanos: self.u32()? });
        let (atime, mtime, ctime) = (time()?, time()?, time()?);
        Some(Attr {
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size_bytes,
            used_bytes,
            fsid,
            fileid,
            atime,
            mtime,
            ctime,
            change,
        })
    }

    fn object(&mut self) -> Option<One> {
        let flags = self.u8()?;
        let (fh, attr) = (self.fh()?, self.attr()?);
        let count = self.u8()?;
        let right = |r: &mut Self| {
            let n = u16::from_le_bytes(r.array()?);
            Some((n, Access::from_bits_truncate(u32::from(r.u8()?))))
        };
        let rights = (0..count).map(|_| right(self)).collect::<Option<_>>()?;
        let target = match flags & TARGET {
            0 => None,
            _ => {
                let len = self.u32()? as usize;
                Some(Bytes::copy_from_slice(self.take(len)?))
            }
        };
        let mut names = Vec::new();
        let mut complete = None;
        if flags & NAMES != 0 {
            let mut all = flags & COMPLETE != 0;
            for _ in 0..self.u32()? {
                let name = Name::new(self.bytes()?).ok();
                match self.0.first() {
                    Some(&u8::MAX) => {
                        self.u8()?;
                        all = false;
                    }
                    Some(0) => {
                        self.u8()?;
                        names.extend(name.map(|name| (name, None)));
                    }
                    _ => {
                        let fh = self.fh()?;
                        all &= name.is_some();
                        names.extend(name.map(|name| (name, Some(fh))));
                    }
                }
            }
            complete = Some(all);
        }
        Some(One { fh, attr, used: flags & USED != 0, rights, target, complete, names })
    }
}

impl super::objects::Dir {
    /// The names that hold under the directory's label, and whether they are complete. `None` when
    /// they are not worth writing.
    fn lasting(&self) -> Option<Lasting> {
        let settled = !self.unproven && self.pending.is_empty() && self.in_flight.is_empty();
        if !settled || self.names.len() > NAMES_MAX {
            return None;
        }
        let complete = self.is_complete();
        let mut all = true;
        let mut names = Vec::new();
        for (name, bound) in self.names.all() {
            match bound.child {
                _ if !bound.labeled => all &= bound.child.is_none(),
                None if complete => {}
                child => names.push((name.to_vec(), child)),
            }
        }
        (complete || !names.is_empty()).then_some((complete && all, names))
    }

    /// Prepares for restored names, which hold if the directory still has the `change` of `label`.
    fn restore(&mut self, label: u64) {
        self.reset(Some(label), 0);
        // Equal attributes renew the names; until then they are expired.
        (self.until, self.asked) = (1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The reader of remembered objects and credentials returns on any input.
        #[test]
        fn recall_parser_survives_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut reader = Reader(&bytes);
            while reader.object().is_some() {}
            let _ = Reader(&bytes).creds();
        }
    }
}
