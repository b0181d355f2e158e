//! Creation of pending objects: the conditions, and the first state.

use super::PendingCreates;
use super::table::{Body, Object, Open, Status};
use crate::pending_writes::patient;
use crate::wal::{Begun, Event, Record, What};
use hither_vfs::{
    Access, Attr, Attrs, ChangeInfo, Cred, Data, Error, Fh, File, FileKind, Name, Node, OpenAccess, OpenId,
    PathRef, RequestContext, Result, SetAttr, Stop, Time, Vfs, WalkRequest,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::watch;
use tokio::time::Instant;

/// Mode bits that the server may clear, and the sticky bit.
const SPECIAL_BITS: u32 = 0o7000;
const SETGID: u32 = 0o2000;
/// The permission bits that an owner needs to create an object in a directory.
const MAY_MAKE: u32 = 0o300;
/// Free space that the journal must have for a new object, in bytes.
const ROOM_BYTES: u64 = 64 << 10;
/// The shown length of a pending directory. The space of its names is not added.
const DIRECTORY_BYTES: u64 = 4096;

/// A newly created pending object.
pub(super) struct Began {
    pub node: Node,
    pub open: Option<OpenId>,
    pub dir: ChangeInfo,
}

/// The result of a creation.
pub(super) enum Making {
    /// The object is pending.
    Here(Box<Began>),
    /// The server must create the object, in the directory with this server handle.
    Below(Fh),
}

/// An object that may become a pending one.
struct NewObject<'a> {
    cred: &'a Arc<Cred>,
    dir: &'a Fh,
    name: &'a Name,
    /// The attributes of the directory.
    parent: Attr,
    body: Body,
    /// The requested permission bits.
    mode: u32,
    /// The access of the creator's open.
    open: Option<OpenAccess>,
}

impl NewObject<'_> {
    /// The first attributes.
    fn attr(&self, fileid: u64, change: u64, now: Time) -> Attr {
        let group = self.parent.mode & SETGID != 0;
        let (kind, mode, nlink) = match &self.body {
            Body::File(_) => (FileKind::Regular, self.mode, 1),
            Body::Directory => (FileKind::Directory, self.mode | if group { SETGID } else { 0 }, 2),
            Body::Link(_) => (FileKind::Symlink, 0o777, 1),
        };
        let size_bytes = match &self.body {
            Body::File(data) => data.len() as u64,
            Body::Directory => DIRECTORY_BYTES,
            Body::Link(target) => target.len() as u64,
        };
        Attr {
            kind,
            mode,
            nlink,
            uid: self.cred.uid,
            gid: if group { self.parent.gid } else { self.cred.gid },
            rdev: (0, 0),
            size_bytes,
            used_bytes: 0,
            fsid: self.parent.fsid,
            fileid,
            atime: now,
            mtime: now,
            ctime: now,
            change,
        }
    }

    fn what(&self) -> What {
        match &self.body {
            Body::File(_) => What::File,
            Body::Directory => What::Directory,
            Body::Link(target) => What::Link(target.to_vec()),
        }
    }
}

impl PendingCreates {
    /// Creates a pending object, if the conditions hold. `open` also opens the object.
    pub(super) async fn begin(
        &self,
        cx: &RequestContext,
        (dir, name): (&Fh, &Name),
        body: Body,
        set: &SetAttr,
        open: Option<OpenAccess>,
    ) -> Result<Making> {
        if self.table().child(dir, name).is_some() {
            return Err(Error::new(libc::EEXIST));
        }
        let plain = SetAttr { mode: set.mode, unmasked: set.unmasked, ..SetAttr::default() } == *set;
        let mode = set.mode.unwrap_or(0) & 0o7777;
        let may = plain && mode & SPECIAL_BITS == 0 && self.takes();
        let parent = if may { self.parent(cx, dir).await? } else { None };
        let Some(parent) = parent else { return self.at_server(cx, dir).await.map(Making::Below) };
        match self.exists(cx, dir, name).await? {
            Some(false) => {}
            Some(true) => return Err(Error::new(libc::EEXIST)),
            None => return self.at_server(cx, dir).await.map(Making::Below),
        }
        self.wait_for_room(cx).await?;
        let (began, seq) = self.insert(NewObject { cred: &cx.cred, dir, name, parent, body, mode, open })?;
        self.counters.made.fetch_add(1, Relaxed);
        if self.wal.log().written(seq).await.is_err() {
            // The journal has just failed. The server creates the object before the caller gets an
            // answer.
            self.send(&began.node.fh).await?;
        }
        Ok(Making::Here(Box::new(began)))
    }

    /// Journals a new object and adds it to the table. Returns it with the number of its record.
    fn insert(&self, new: NewObject<'_>) -> Result<(Began, u64)> {
        let (dir, name) = (new.dir, new.name);
        let mut t = self.table();
        if t.child(dir, name).is_some() {
            return Err(Error::new(libc::EEXIST));
        }
        if let Status::Refused(errno) = t.status(dir) {
            return Err(Error::new(errno));
        }
        let now = self.clock.after(new.parent.ctime);
        let (fh, fileid) = t.fresh();
        let change = t.next_change();
        let attr = new.attr(fileid, change, now);
        let begun = Begun {
            dir: t.as_recorded(dir),
            what: new.what(),
            mode: attr.mode,
            cred: new.cred.clone(),
            time: now,
        };
        let record =
            Record { fh: fh.clone(), event: Event::Made(begun), data: Data::from(name.bytes().clone()) };
        let ticket = self.wal.log().append(record);
        self.wal.named(&fh, dir, name);
        let object = Object {
            cred: new.cred.clone(),
            dir: dir.clone(),
            name: name.clone(),
            body: new.body,
            attr,
            times: (None, None),
            opens: u32::from(new.open.is_some()),
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
        self.drop_deferred(&mut t, dir);
        t.queue.push_back(fh.clone());
        let open = new
            .open
            .map(|access| t.next_open(Open { fh: fh.clone(), access, cred: new.cred.clone(), below: None }));
        let info = ChangeInfo { atomic: false, before: change, after: t.next_change(), attrs: None };
        Ok((Began { node: Node { fh, attrs }, open, dir: info }, ticket.seq))
    }

    /// Whether new objects may be pending at present.
    fn takes(&self) -> bool {
        let t = self.table();
        t.stuck == 0 && t.known_count() + t.here.len() < self.options.most_known && self.wal.takes(ROOM_BYTES)
    }

    /// The attributes of a directory, if the caller may create pending objects there.
    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Option<Attr>> {
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

    /// Whether a name exists. `None` when that is not known.
    pub(super) async fn exists(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<Option<bool>> {
        let trail = self.walk(cx, PathRef::name(dir, name), WalkRequest::default()).await?;
        Ok(match trail.stop {
            Stop::Missing(_) => Some(false),
            Stop::Failed(_) => None,
            _ if trail.steps.is_empty() => None,
            _ => Some(true),
        })
    }

    /// The server's handle of an object. A pending object is sent first.
    pub(super) async fn at_server(&self, cx: &RequestContext, fh: &Fh) -> Result<Fh> {
        {
            if let Status::There(real) = self.table().status(fh) {
                return Ok(real);
            }
        }
        patient(cx, self.send(fh)).await
    }

    async fn wait_for_room(&self, cx: &RequestContext) -> Result<()> {
        let wait = async {
            loop {
                let mut room = std::pin::pin!(self.room.notified());
                room.as_mut().enable();
                {
                    let t = self.table();
                    let bytes = t.bytes < self.options.max_bytes;
                    // Objects that cannot be sent make no room.
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

    /// Learns from an object that the server created: whether owner and group are as expected, and
    /// the difference of the clocks.
    pub(super) async fn learn(&self, cx: &RequestContext, dir: &Fh, made: &Attrs) {
        self.clock.heard(made.attr.ctime, made.asked);
        let key = (cx.cred.uid, cx.cred.gid);
        if self.table().trusted.contains(&key) {
            return;
        }
        let Ok(parent) = self.below.getattr(cx, File { fh: dir, open: None }).await else { return };
        let group = if parent.attr.mode & SETGID != 0 { parent.attr.gid } else { cx.cred.gid };
        if (made.attr.uid, made.attr.gid) != (cx.cred.uid, group) {
            return;
        }
        self.table().trusted.insert(key);
    }
}
