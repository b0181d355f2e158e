//! The pending objects, and the translation of handles.
//!
//! The module knows nothing of the journal and of the server.

use crate::clock::next;
use crate::shown::ShownTimes;
use crate::wal::{Attributes, Ticket};
use bytes::Bytes;
use hither_vfs::{
    Attr, Attrs, Cred, DirPage, Error, Fh, FileKind, Name, Node, OpenAccess, OpenId, Time, Validity,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The first bytes of this layer's handles.
const MARK: &[u8; 8] = b"\xf1hahead\0";
/// The bit that marks an open of this layer.
const OPEN_BIT: u64 = 1 << 62;
/// File numbers of this layer have these high bits. Numbers of a server do not.
const FILEID_BITS: u64 = 0x7fa0 << 48;

/// The content of an object.
#[derive(Debug, Clone)]
pub(super) enum Body {
    File(Vec<u8>),
    Directory,
    Link(Bytes),
}

/// A pending object.
#[derive(Debug)]
pub(super) struct Object {
    pub cred: Arc<Cred>,
    pub dir: Fh,
    pub name: Name,
    pub body: Body,
    pub attr: Attr,
    /// Access and modification time that a program has set.
    pub times: (Option<Time>, Option<Time>),
    pub opens: u32,
    pub born: Instant,
    /// The object is being sent. Nothing changes it meanwhile.
    pub sending: bool,
    /// After a failed attempt: the time of the next one, and the present pause.
    pub retry: Option<(Instant, Duration)>,
    /// The error for the next close, sync or write.
    pub error: Option<Error>,
    /// Live records in the journal, by segment. `last` is the number of the last record.
    pub held: BTreeMap<u64, u64>,
    pub last: u64,
    /// Changes at the end of each attempt.
    pub ended: watch::Sender<u32>,
}

impl Object {
    /// Notes a record of the object.
    pub fn noted(&mut self, ticket: Ticket, lives: bool) {
        self.last = ticket.seq;
        if lives {
            *self.held.entry(ticket.segment).or_default() += 1;
        }
    }

    pub fn len_bytes(&self) -> u64 {
        match &self.body {
            Body::File(data) => data.len() as u64,
            _ => 0,
        }
    }

    pub fn attrs(&self) -> Attrs {
        Attrs { attr: self.attr.clone(), valid: Validity::Once, asked: Instant::now() }
    }
}

/// An object that was pending. The server has it or refused it.
#[derive(Debug, Clone)]
pub(super) struct SentObject {
    pub real: Result<Fh, i32>,
    pub fileid: u64,
    pub real_fileid: u64,
}

/// An open of an object that was created as pending.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub fh: Fh,
    pub access: OpenAccess,
    pub cred: Arc<Cred>,
    /// The open below, after the server has the object.
    pub below: Option<Result<OpenId, i32>>,
}

/// Delayed times of a directory.
#[derive(Debug, Clone)]
pub(super) struct Deferred {
    pub set: Attributes,
    pub ticket: Ticket,
}

/// The part of an object that a call changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Names of a directory.
    Names,
    /// Data, length or times.
    Data,
    /// Other attributes.
    Attributes,
}

/// The present state of an object.
pub(super) enum Status<'a> {
    /// Pending.
    Here(&'a mut Object),
    /// Being sent, with a signal of the end.
    Sending(watch::Receiver<u32>),
    /// At the server, with this handle.
    There(Fh),
    /// Refused by the server, with this errno.
    Refused(i32),
}

pub(super) struct Table {
    pub here: HashMap<Fh, Object>,
    /// Pending names, by directory, with the handles of the layers above.
    pub names: HashMap<Fh, HashMap<Name, Fh>>,
    known: HashMap<Fh, SentObject>,
    ours: HashMap<Fh, Fh>,
    fileids: HashMap<u64, u64>,
    pub opens: HashMap<OpenId, Open>,
    /// Objects in the order of creation.
    pub queue: VecDeque<Fh>,
    /// Bytes of the pending objects.
    pub bytes: u64,
    /// Changes when an object arrives at the server, and when one is created, moved or removed in
    /// this mount.
    pub generation: u64,
    pub deferred: HashMap<Fh, Deferred>,
    /// Times that programs saw before an object, or the last one of a directory, was sent.
    shown: RefCell<ShownTimes>,
    /// Users and groups whose objects get the expected owner and group from the server.
    pub trusted: HashSet<(u32, u32)>,
    /// Objects whose last attempt failed.
    pub stuck: usize,
    random: u64,
    next: u64,
    change: u64,
}

impl Table {
    pub fn new(random: u64) -> Self {
        Self {
            here: HashMap::new(),
            names: HashMap::new(),
            known: HashMap::new(),
            ours: HashMap::new(),
            fileids: HashMap::new(),
            opens: HashMap::new(),
            queue: VecDeque::new(),
            bytes: 0,
            generation: 0,
            deferred: HashMap::new(),
            shown: RefCell::default(),
            trusted: HashSet::new(),
            stuck: 0,
            random,
            next: 0,
            change: random,
        }
    }

    /// A new handle and file number.
    pub fn fresh(&mut self) -> (Fh, u64) {
        self.next += 1;
        let mut fh = Vec::with_capacity(24);
        fh.extend_from_slice(MARK);
        fh.extend_from_slice(&self.random.to_le_bytes());
        fh.extend_from_slice(&self.next.to_le_bytes());
        let fileid = FILEID_BITS ^ (self.random >> 32 << 24) ^ self.next;
        (Fh(fh.into()), fileid)
    }

    pub fn next_open(&mut self, open: Open) -> OpenId {
        self.next += 1;
        let id = OpenId(OPEN_BIT | self.next);
        self.opens.insert(id, open);
        id
    }

    /// Whether an open belongs to this layer.
    pub fn is_own(open: OpenId) -> bool {
        open.0 & OPEN_BIT != 0
    }

    pub fn next_change(&mut self) -> u64 {
        self.change = self.change.wrapping_add(1);
        self.change
    }

    /// The present state of an object.
    pub fn status(&mut self, fh: &Fh) -> Status<'_> {
        if !fh.0.starts_with(MARK) {
            return Status::There(fh.clone());
        }
        if let Some(known) = self.known.get(fh) {
            return match &known.real {
                Ok(real) => Status::There(real.clone()),
                Err(errno) => Status::Refused(*errno),
            };
        }
        match self.here.get_mut(fh) {
            Some(object) if object.sending => Status::Sending(object.ended.subscribe()),
            Some(object) => Status::Here(object),
            None => Status::Refused(libc::ESTALE),
        }
    }

    /// The handle that the layers above use for an object of the server.
    pub fn as_seen(&self, fh: &Fh) -> Fh {
        self.ours.get(fh).unwrap_or(fh).clone()
    }

    /// The handle of a directory in journal records: the server's handle if there is one. The
    /// record that translates a handle of this layer may have left the journal.
    pub fn as_recorded(&self, seen: &Fh) -> Fh {
        match self.known.get(seen) {
            Some(SentObject { real: Ok(real), .. }) => real.clone(),
            _ => seen.clone(),
        }
    }

    /// The file number that the layers above use for an object of the server.
    pub fn fileid_as_seen(&self, fileid: u64) -> u64 {
        self.fileids.get(&fileid).copied().unwrap_or(fileid)
    }

    /// The number of remembered objects.
    pub fn known_count(&self) -> usize {
        self.known.len()
    }

    /// The pending object of a name.
    pub fn child(&self, dir: &Fh, name: &Name) -> Option<&Fh> {
        self.names.get(dir)?.get(name)
    }

    pub fn bind(&mut self, dir: &Fh, name: &Name, fh: &Fh) {
        self.names.entry(dir.clone()).or_default().insert(name.clone(), fh.clone());
        self.generation += 1;
    }

    pub fn unbind(&mut self, dir: &Fh, name: &Name) {
        if let Some(names) = self.names.get_mut(dir) {
            names.remove(name);
            if names.is_empty() {
                self.names.remove(dir);
                self.shown.get_mut().settle(dir);
            }
        }
        self.generation += 1;
    }

    /// Notes a call of a program that changes an object at the server, before the call. The
    /// server's times apply to the change. A directory with pending names shows this layer's times.
    pub fn changes_there(&mut self, seen: &Fh, what: Change) {
        if self.has_names(seen) {
            return;
        }
        match what {
            Change::Attributes => self.shown.get_mut().set_attributes(seen),
            Change::Names | Change::Data => self.shown.get_mut().forget(seen),
        }
    }

    /// Notes the success of such a call. Replies during the call may have either change time.
    pub fn changed_there(&mut self, seen: &Fh, what: Change, now: Time) {
        self.changes_there(seen, what);
        if what == Change::Names {
            return self.touch(seen, now);
        }
        let change = self.next_change();
        self.shown.get_mut().touch_attributes(seen, now, change);
    }

    /// The server has the delayed times of a directory.
    pub fn times_are_there(&mut self, dir: &Fh, set: &Attributes) {
        self.shown.get_mut().sent_again(dir, set.mtime);
    }

    pub fn has_names(&self, dir: &Fh) -> bool {
        self.names.contains_key(dir)
    }

    /// Notes a creation, move or removal in a directory.
    pub fn touch(&mut self, dir: &Fh, now: Time) {
        let change = self.next_change();
        if let Some(object) = self.here.get_mut(dir) {
            let now = now.max(next(object.attr.ctime));
            (object.attr.mtime, object.attr.ctime, object.attr.change) = (now, now, change);
            object.times.1 = None;
        } else if self.has_names(dir) {
            self.shown.get_mut().touch(dir, now, change);
        }
    }

    /// Ends a pending object: the server has it, or refused it. `as_made`: the object was not
    /// changed at the server after its creation, so its change time belongs to the same state.
    pub fn ended(&mut self, fh: &Fh, real: Result<&Node, i32>, as_made: bool) -> Option<Object> {
        let theirs = real.ok().filter(|_| as_made).map(|node| node.attrs.attr.ctime);
        let real = real.map(|node| (Fh(Bytes::copy_from_slice(&node.fh.0)), node.attrs.attr.fileid));
        let object = self.here.remove(fh)?;
        self.bytes -= object.len_bytes();
        self.stuck -= usize::from(object.retry.is_some());
        self.unbind(&object.dir, &object.name);
        let known = SentObject {
            fileid: object.attr.fileid,
            real_fileid: real.as_ref().map_or(0, |(_, fileid)| *fileid),
            real: real.map(|(fh, _)| fh),
        };
        if let Ok(real) = &known.real {
            let is_file = matches!(object.body, Body::File(_));
            // The modification time of a file is set at the server.
            let mtime = (!is_file).then_some(object.attr.mtime);
            if self.has_names(fh) {
                let attr = &object.attr;
                self.shown.get_mut().keep_waiting(fh, (attr.mtime, attr.ctime), attr.change);
            } else {
                self.shown.get_mut().keep(fh, mtime, object.attr.ctime, theirs);
            }
            self.ours.insert(real.clone(), fh.clone());
            self.fileids.insert(known.real_fileid, known.fileid);
        }
        self.known.insert(fh.clone(), known);
        Some(object)
    }

    /// Adjusts attributes for the layers above.
    pub fn show(&self, seen: &Fh, attrs: &mut Attrs) {
        if let Some(known) = self.known.get(seen) {
            attrs.attr.fileid = known.fileid;
        }
        self.shown.borrow_mut().show(seen, attrs, !self.has_names(seen));
        if attrs.attr.kind != FileKind::Directory {
            return;
        }
        if let Some(names) = self.names.get(seen) {
            let is_dir = |fh: &&Fh| self.here.get(*fh).is_some_and(|o| matches!(o.body, Body::Directory));
            attrs.attr.nlink += names.values().filter(is_dir).count() as u32;
            attrs.valid = Validity::Once;
        }
        if let Some(Deferred { set, .. }) = self.deferred.get(seen) {
            attrs.attr.atime = set.atime.unwrap_or(attrs.attr.atime);
            attrs.attr.mtime = set.mtime.unwrap_or(attrs.attr.mtime);
            attrs.valid = Validity::Once;
        }
    }

    pub fn show_node(&self, node: &mut Node) {
        if let Some(ours) = self.ours.get(&node.fh) {
            node.fh = ours.clone();
        }
        self.show(&node.fh, &mut node.attrs);
    }

    pub fn show_page(&self, page: &mut DirPage) {
        for entry in &mut page.entries {
            entry.fileid = self.fileid_as_seen(entry.fileid);
            if let Some(node) = &mut entry.node {
                self.show_node(node);
            }
        }
    }

    /// Translates attributes of the layers above for the layers below.
    pub fn as_below(&self, seen: &Fh, attrs: &Attrs) -> Attrs {
        let mut attrs = attrs.clone();
        if let Some(known) = self.known.get(seen) {
            attrs.attr.fileid = known.real_fileid;
        }
        attrs
    }

    /// Whether no object was ever pending.
    pub fn is_unused(&self) -> bool {
        self.here.is_empty() && self.known.is_empty()
    }
}
