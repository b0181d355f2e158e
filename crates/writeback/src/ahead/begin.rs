//! Making objects: whether one may wait here, and how it begins.

use super::Ahead;
use super::table::{Body, Object, Open, Status};
use crate::dirty::patient;
use crate::wal::{Begun, Event, Record, What};
use hither_vfs::{
    Access, Attr, Attrs, ChangeInfo, Cx, Data, Error, Fh, File, FileKind, Name, Node, OpenAccess, OpenId,
    Result, SetAttr, Stop, Vfs, Want, Where,
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::watch;
use tokio::time::Instant;

/// Bits that the server may take away, and sticky ones.
const SPECIAL_BITS: u32 = 0o7000;
const SETGID: u32 = 0o2000;
/// What the owner needs to make something in a directory.
const MAY_MAKE: u32 = 0o300;
/// What a journal must still take, in bytes, so that an object may begin in it.
const ROOM_BYTES: u64 = 64 << 10;
/// Further bytes that a name costs in a directory's length are not shown; a directory's own length
/// is this.
const DIRECTORY_BYTES: u64 = 4096;

/// An object that was made here.
pub(super) struct Began {
    pub node: Node,
    pub open: Option<OpenId>,
    pub dir: ChangeInfo,
}

/// What is to be made of a name.
pub(super) enum Making {
    /// It was made here.
    Here(Box<Began>),
    /// It is the server's to make, in the directory with this handle there.
    Below(Fh),
}

impl Ahead {
    /// Makes an object here when that may be; `open`: and opens it.
    pub(super) async fn begin(
        &self,
        cx: &Cx,
        (dir, name): (&Fh, &Name),
        body: Body,
        set: &SetAttr,
        open: Option<OpenAccess>,
    ) -> Result<Making> {
        if self.table().child(dir, name).is_some() {
            return Err(Error::new(libc::EEXIST));
        }
        let plain = SetAttr { mode: set.mode, ..SetAttr::default() } == *set;
        let mode = set.mode.unwrap_or(0) & 0o7777;
        let may = plain && mode & SPECIAL_BITS == 0 && self.takes();
        let parent = match may {
            true => self.parent(cx, dir).await?,
            false => None,
        };
        let Some(parent) = parent else { return self.at_server(cx, dir).await.map(Making::Below) };
        match self.exists(cx, dir, name).await? {
            Some(false) => {}
            Some(true) => return Err(Error::new(libc::EEXIST)),
            None => return self.at_server(cx, dir).await.map(Making::Below),
        }
        self.wait_for_room(cx).await?;
        let (fh, began, seq) = {
            let mut t = self.table();
            if t.child(dir, name).is_some() {
                return Err(Error::new(libc::EEXIST));
            }
            if let Status::Refused(errno) = t.status(dir) {
                return Err(Error::new(errno));
            }
            let now = self.now(&t);
            let (fh, fileid) = t.fresh();
            let change = t.next_change();
            let group = parent.mode & SETGID != 0;
            let (kind, mode, nlink, what) = match &body {
                Body::File(_) => (FileKind::Regular, mode, 1, What::File),
                Body::Directory => {
                    (FileKind::Directory, mode | if group { SETGID } else { 0 }, 2, What::Directory)
                }
                Body::Link(target) => (FileKind::Symlink, 0o777, 1, What::Link(target.to_vec())),
            };
            let size_bytes = match &body {
                Body::File(data) => data.len() as u64,
                Body::Directory => DIRECTORY_BYTES,
                Body::Link(target) => target.len() as u64,
            };
            let attr = Attr {
                kind,
                mode,
                nlink,
                uid: cx.cred.uid,
                gid: if group { parent.gid } else { cx.cred.gid },
                rdev: (0, 0),
                size_bytes,
                used_bytes: 0,
                fsid: parent.fsid,
                fileid,
                atime: now,
                mtime: now,
                ctime: now,
                change,
            };
            let new = Begun { dir: t.as_recorded(dir), what, mode, cred: cx.cred.clone(), time: now };
            let record =
                Record { fh: fh.clone(), event: Event::Made(new), data: Data::from(name.bytes().clone()) };
            let ticket = self.wal.log().append(record);
            self.wal.named(&fh, dir, name);
            let object = Object {
                cred: cx.cred.clone(),
                dir: dir.clone(),
                name: name.clone(),
                body,
                attr,
                times: (None, None),
                opens: u32::from(open.is_some()),
                born: Instant::now(),
                sending: false,
                retry: None,
                error: None,
                held: BTreeMap::from([(ticket.segment, 1)]),
                last: ticket.seq,
                ended: watch::Sender::new(0),
            };
            let attrs = object.attrs();
            t.here.insert(fh.clone(), object);
            t.bind(dir, name, &fh);
            t.touch(dir, now);
            self.owes_nothing(&mut t, dir);
            t.queue.push_back(fh.clone());
            let open = open.map(|access| {
                t.next_open(Open { fh: fh.clone(), access, cred: cx.cred.clone(), below: None })
            });
            let info = ChangeInfo { atomic: false, before: change, after: t.next_change(), attrs: None };
            (fh.clone(), Began { node: Node { fh, attrs }, open, dir: info }, ticket.seq)
        };
        self.counters.made.fetch_add(1, Relaxed);
        if self.wal.log().written(seq).await.is_err() {
            // The journal has just failed: the server has it before anybody is told.
            self.send(&fh).await?;
        }
        Ok(Making::Here(Box::new(began)))
    }

    /// Whether new objects may wait at all.
    fn takes(&self) -> bool {
        let t = self.table();
        t.stuck == 0 && t.known_count() + t.here.len() < self.options.most_known && self.wal.takes(ROOM_BYTES)
    }

    /// The attributes of a directory in which the caller may make something that waits.
    async fn parent(&self, cx: &Cx, dir: &Fh) -> Result<Option<Attr>> {
        let real = {
            let mut t = self.table();
            if !t.trusted.contains(&(cx.cred.uid, cx.cred.gid)) {
                return Ok(None);
            }
            match t.status(dir) {
                Status::Here(o) => {
                    let may = o.cred.uid == cx.cred.uid && o.attr.mode & MAY_MAKE == MAY_MAKE;
                    return match o.attr.kind {
                        FileKind::Directory => Ok(may.then(|| o.attr.clone())),
                        _ => Err(Error::new(libc::ENOTDIR)),
                    };
                }
                Status::Sending(_) => None,
                Status::There(real) => Some(real),
                Status::Refused(errno) => return Err(Error::new(errno)),
            }
        };
        let real = match real {
            Some(real) => real,
            None => patient(cx, self.send(dir)).await?,
        };
        let need = Access::EXTEND | Access::LOOKUP;
        if self.below.access(cx, &real, need).await? != need {
            return Ok(None);
        }
        let attrs = self.below.getattr(cx, File { fh: &real, open: None }).await?;
        if attrs.attr.kind != FileKind::Directory {
            return Err(Error::new(libc::ENOTDIR));
        }
        Ok(Some(attrs.attr))
    }

    /// Whether a name exists; `None` when that cannot be told.
    pub(super) async fn exists(&self, cx: &Cx, dir: &Fh, name: &Name) -> Result<Option<bool>> {
        let trail = self.walk(cx, Where::name(dir, name), Want::default()).await?;
        Ok(match trail.stop {
            Stop::Missing(_) => Some(false),
            Stop::Failed(_) => None,
            _ if trail.steps.is_empty() => None,
            _ => Some(true),
        })
    }

    /// The handle at the server of a directory in which something is to be made there.
    pub(super) async fn at_server(&self, cx: &Cx, fh: &Fh) -> Result<Fh> {
        {
            if let Status::There(real) = self.table().status(fh) {
                return Ok(real);
            }
        }
        patient(cx, self.send(fh)).await
    }

    async fn wait_for_room(&self, cx: &Cx) -> Result<()> {
        let wait = async {
            loop {
                let mut room = std::pin::pin!(self.room.notified());
                room.as_mut().enable();
                {
                    let t = self.table();
                    let bytes = t.bytes < self.options.max_bytes;
                    // What cannot be sent makes no room.
                    if t.here.len() < self.options.most && bytes || t.stuck > 0 {
                        return Ok(());
                    }
                }
                self.work.notify_one();
                room.await;
            }
        };
        patient(cx, wait).await
    }

    /// The server has made an object: whether its owner and group are as expected, and what its
    /// clock says.
    pub(super) async fn learn(&self, cx: &Cx, dir: &Fh, made: &Attrs) {
        let key = (cx.cred.uid, cx.cred.gid);
        if self.table().trusted.contains(&key) {
            return;
        }
        let Ok(parent) = self.below.getattr(cx, File { fh: dir, open: None }).await else { return };
        let group = if parent.attr.mode & SETGID != 0 { parent.attr.gid } else { cx.cred.gid };
        if (made.attr.uid, made.attr.gid) != (cx.cred.uid, group) {
            return;
        }
        let mut t = self.table();
        let since = (self.env.wall)().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
        let theirs = i128::from(made.attr.ctime.secs) * 1_000_000_000 + i128::from(made.attr.ctime.nanos);
        // The reply is some time on its way, and their clock ticks: what is less than that is no
        // difference.
        let took = made.asked.elapsed().as_nanos() as i128;
        let ahead = theirs - (since.as_nanos() as i128 - took / 2);
        if t.trusted.is_empty() && ahead.abs() > took.max(20_000_000) {
            t.offset_nanos = i64::try_from(ahead).unwrap_or(0);
        }
        t.trusted.insert(key);
    }
}
