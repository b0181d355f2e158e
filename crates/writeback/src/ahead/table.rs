//! What is here, and which handle stands for which.
//!
//! It knows nothing of the journal and of the server.

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

/// What handles of this layer begin with.
const MARK: &[u8; 8] = b"\xf1hahead\0";
/// The bit of an open's number that says that it is of this layer.
const OPEN_BIT: u64 = 1 << 62;
/// Numbers of objects of this layer have the highest bits but one set, which servers' do not.
const FILEID_BITS: u64 = 0x7fa0 << 48;

/// Objects whose times are shown as before they were sent, at most.
const SHOWN_MOST: usize = 64 << 10;

/// What an object is made of.
#[derive(Debug, Clone)]
pub(super) enum Body {
    File(Vec<u8>),
    Directory,
    Link(Bytes),
}

/// An object that the server does not have.
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
    /// It is on its way: nothing is done to it meanwhile.
    pub sending: bool,
    /// Not before that it is tried again by itself, and the pause after that.
    pub retry: Option<(Instant, Duration)>,
    /// To be told.
    pub error: Option<Error>,
    /// Live records in the journal, by segment, and the last record.
    pub held: BTreeMap<u64, u64>,
    pub last: u64,
    /// Changes when it is not on its way any more.
    pub ended: watch::Sender<u32>,
}

impl Object {
    /// A record of it.
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

/// An object that was made here and is at the server, or was refused there.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub real: Result<Fh, i32>,
    pub fileid: u64,
    pub real_fileid: u64,
}

/// An open of an object that was made here.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub fh: Fh,
    pub access: OpenAccess,
    pub cred: Arc<Cred>,
    /// The same below, since the server has the object.
    pub below: Option<Result<OpenId, i32>>,
}

/// Times that programs were shown before an object, or the last one in a directory, was sent. They
/// stay until a program changes something.
#[derive(Debug, Clone, Copy)]
struct Shown {
    /// Of a directory or link: that of a file is set at the server.
    mtime: Option<Time>,
    ctime: Time,
    /// Answers to questions from before tell other times.
    sent: Instant,
    /// The server's change time that stands for the same state, once it is known.
    theirs: Option<Time>,
}

/// Times of a directory that wait for what is in it.
#[derive(Debug, Clone)]
pub(super) struct Owed {
    pub set: Attributes,
    pub ticket: Ticket,
}

/// Where an object is.
pub(super) enum Status<'a> {
    /// Here.
    Here(&'a mut Object),
    /// On its way; what to wait for.
    Sending(watch::Receiver<u32>),
    /// At the server, under this handle.
    There(Fh),
    /// The server refused it.
    Refused(i32),
}

pub(super) struct Table {
    pub here: HashMap<Fh, Object>,
    /// Names that are here only, by directory, with the handles that those above know.
    pub names: HashMap<Fh, HashMap<Name, Fh>>,
    known: HashMap<Fh, Known>,
    ours: HashMap<Fh, Fh>,
    fileids: HashMap<u64, u64>,
    pub opens: HashMap<OpenId, Open>,
    /// In the order of making.
    pub queue: VecDeque<Fh>,
    /// Bytes of what is here.
    pub bytes: u64,
    /// Moves when an object arrives at the server, or is made, moved or removed here.
    pub generation: u64,
    /// When something was last made, moved or removed here in a directory that is at the server,
    /// and how often.
    touched: HashMap<Fh, (Time, u64)>,
    pub owed: HashMap<Fh, Owed>,
    /// Never longer than [`SHOWN_MOST`]; the oldest go first.
    shown: RefCell<HashMap<Fh, Shown>>,
    shown_order: VecDeque<Fh>,
    /// Users and groups whose objects have the owner and group that they expect.
    pub trusted: HashSet<(u32, u32)>,
    /// By what the server's clock is ahead of this machine's.
    pub offset_nanos: i64,
    /// Objects that cannot be sent for now.
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
            touched: HashMap::new(),
            owed: HashMap::new(),
            shown: RefCell::default(),
            shown_order: VecDeque::new(),
            trusted: HashSet::new(),
            offset_nanos: 0,
            stuck: 0,
            random,
            next: 0,
            change: random,
        }
    }

    /// A handle and a number that were not used before.
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

    /// Whether an open is one of this layer's.
    pub fn is_own(open: OpenId) -> bool {
        open.0 & OPEN_BIT != 0
    }

    pub fn next_change(&mut self) -> u64 {
        self.change = self.change.wrapping_add(1);
        self.change
    }

    /// Where an object is.
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

    /// The handle that those above know an object of the server by.
    pub fn as_seen(&self, fh: &Fh) -> Fh {
        self.ours.get(fh).unwrap_or(fh).clone()
    }

    /// The handle by which the journal is to know a directory: that of the server when it has one,
    /// because what says which that is may have left the journal.
    pub fn as_recorded(&self, seen: &Fh) -> Fh {
        match self.known.get(seen) {
            Some(Known { real: Ok(real), .. }) => real.clone(),
            _ => seen.clone(),
        }
    }

    /// The number under which those above know an object of the server.
    pub fn fileid_as_seen(&self, fileid: u64) -> u64 {
        self.fileids.get(&fileid).copied().unwrap_or(fileid)
    }

    /// Objects that are remembered.
    pub fn known_count(&self) -> usize {
        self.known.len()
    }

    /// The name in a directory that is here only.
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
                if let Some((time, _)) = self.touched.remove(dir) {
                    self.keep_shown(dir, Some(time), time, None);
                } else if let Some(shown) = self.shown.get_mut().get_mut(dir) {
                    (shown.sent, shown.theirs) = (Instant::now(), None);
                }
            }
        }
        self.generation += 1;
    }

    fn keep_shown(&mut self, seen: &Fh, mtime: Option<Time>, ctime: Time, theirs: Option<Time>) {
        let shown = Shown { mtime, ctime, sent: Instant::now(), theirs };
        if self.shown.get_mut().insert(seen.clone(), shown).is_none() {
            self.shown_order.push_back(seen.clone());
        }
        while self.shown_order.len() > SHOWN_MOST {
            if let Some(oldest) = self.shown_order.pop_front() {
                self.shown.get_mut().remove(&oldest);
            }
        }
    }

    /// A program changes the object at the server: its times are the server's.
    pub fn changed_there(&mut self, seen: &Fh) {
        self.shown.get_mut().remove(seen);
        self.touched.remove(seen);
    }

    /// The server has the times of a directory that a program set.
    pub fn times_are_there(&mut self, dir: &Fh, set: &Attributes) {
        if let Some(shown) = self.shown.get_mut().get_mut(dir) {
            (shown.sent, shown.theirs) = (Instant::now(), None);
            shown.mtime = set.mtime.or(shown.mtime);
        }
    }

    fn show_times(&self, seen: &Fh, attrs: &mut Attrs) {
        let mut all = self.shown.borrow_mut();
        let Some(shown) = all.get_mut(seen) else { return };
        if attrs.asked > shown.sent && !self.has_names(seen) {
            let theirs = *shown.theirs.get_or_insert(attrs.attr.ctime);
            if theirs != attrs.attr.ctime {
                all.remove(seen);
                return;
            }
        }
        attrs.attr.ctime = shown.ctime;
        attrs.attr.mtime = shown.mtime.unwrap_or(attrs.attr.mtime);
    }

    pub fn has_names(&self, dir: &Fh) -> bool {
        self.names.contains_key(dir)
    }

    /// Something was made, moved or removed in a directory.
    pub fn touch(&mut self, dir: &Fh, now: Time) {
        let change = self.next_change();
        if let Some(object) = self.here.get_mut(dir) {
            (object.attr.mtime, object.attr.ctime, object.attr.change) = (now, now, change);
            object.times.1 = None;
        } else if self.has_names(dir) {
            self.touched.insert(dir.clone(), (now, change));
            self.shown.get_mut().remove(dir);
        }
    }

    /// An object that was here is at the server, or was refused there. `as_made`: as its attributes
    /// tell, nothing was done to it there since.
    pub fn ended(&mut self, fh: &Fh, real: Result<&Node, i32>, as_made: bool) -> Option<Object> {
        let theirs = real.ok().filter(|_| as_made).map(|node| node.attrs.attr.ctime);
        let real = real.map(|node| (Fh(Bytes::copy_from_slice(&node.fh.0)), node.attrs.attr.fileid));
        let object = self.here.remove(fh)?;
        self.bytes -= object.len_bytes();
        self.stuck -= usize::from(object.retry.is_some());
        self.unbind(&object.dir, &object.name);
        let known = Known {
            fileid: object.attr.fileid,
            real_fileid: real.as_ref().map_or(0, |(_, fileid)| *fileid),
            real: real.map(|(fh, _)| fh),
        };
        if let Ok(real) = &known.real {
            let is_file = matches!(object.body, Body::File(_));
            let mtime = (!is_file).then_some(object.attr.mtime);
            self.keep_shown(fh, mtime, object.attr.ctime, theirs);
            self.ours.insert(real.clone(), fh.clone());
            self.fileids.insert(known.real_fileid, known.fileid);
        }
        self.known.insert(fh.clone(), known);
        Some(object)
    }

    /// Attributes of an object as those above are to see them.
    pub fn show(&self, seen: &Fh, attrs: &mut Attrs) {
        if let Some(known) = self.known.get(seen) {
            attrs.attr.fileid = known.fileid;
        }
        self.show_times(seen, attrs);
        if attrs.attr.kind != FileKind::Directory {
            return;
        }
        if let Some(names) = self.names.get(seen) {
            let is_dir = |fh: &&Fh| self.here.get(*fh).is_some_and(|o| matches!(o.body, Body::Directory));
            attrs.attr.nlink += names.values().filter(is_dir).count() as u32;
            if let Some((time, change)) = self.touched.get(seen) {
                // The server's are later when a part of it was sent.
                (attrs.attr.mtime, attrs.attr.ctime, attrs.attr.change) = (*time, *time, *change);
            }
            attrs.valid = Validity::Once;
        }
        if let Some(Owed { set, .. }) = self.owed.get(seen) {
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

    /// Attributes that those above know as the layers below know them.
    pub fn as_below(&self, seen: &Fh, attrs: &Attrs) -> Attrs {
        let mut attrs = attrs.clone();
        if let Some(known) = self.known.get(seen) {
            attrs.attr.fileid = known.real_fileid;
        }
        attrs
    }

    /// Whether nothing was ever made here.
    pub fn is_unused(&self) -> bool {
        self.here.is_empty() && self.known.is_empty()
    }
}
