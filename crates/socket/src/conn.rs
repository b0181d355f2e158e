//! One connection: greets, reads requests, gives each a task, and closes all open files in the end.
//!
//! Everything that a program can make this side keep is bounded: requests under way, open files,
//! watched paths, bytes. Beyond, a request fails with `EAGAIN` (`EMFILE` for files; `E2BIG` for a
//! request that is always too large). Bytes wait, as do unread replies, which stops the reading of
//! further requests. Anything malformed ends the connection, after an error that says so. A program
//! that hangs up ends all its requests, except changes: a change runs to its end, or the mount
//! could not be shown it.

use crate::file::OpenFile;
use crate::frames::{self, ALLOWANCE_BYTES, QUEUE_FRAMES, Reply, gone};
use crate::stats::add;
use crate::{Shared, watch};
use bytes::Bytes;
use hither_client::wire::{
    self, FRAMES_AHEAD, Hello, ITEMS_MAX, Malformed, OPEN_CREATE, OPEN_TRUNCATE, Request, WRITE_APPEND, op,
};
use hither_vfs::{Attr, Cred, Cx, Error, FileKind, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Requests under way.
const REQUESTS_MAX: usize = 256;
/// Bytes of requests that wait for their turn; further ones are not read until then.
const INBOUND_BYTES: usize = 16 << 20;
/// Bytes of requests whose replies have many frames, each path in them counted with so many more.
const LISTS_BYTES: usize = 64 << 20;
const PATH_BYTES: usize = 512;
/// Bytes of directories that wait to be listed.
const WAITING_BYTES: usize = 64 << 20;
/// Frames that a program may allow ahead in one reply.
const CREDIT_MAX: usize = 1 << 16;

/// A connection.
pub(crate) struct Connection {
    pub shared: Arc<Shared>,
    pub cred: Arc<Cred>,
    pub files: Mutex<HashMap<u64, Arc<OpenFile>>>,
    pub next_file: AtomicU64,
    /// Paths that are watched.
    pub watched: AtomicUsize,
    /// Room for directories that wait to be listed, in bytes.
    pub waiting: Arc<Semaphore>,
    running: Mutex<HashMap<u32, Running>>,
    /// Requests until their replies are on their way.
    slots: Arc<Semaphore>,
    inbound: Arc<Semaphore>,
    lists: Arc<Semaphore>,
    /// Ends of opens for reading without a waiting program.
    pub closing: TaskTracker,
    over: CancellationToken,
}

/// A request under way.
struct Running {
    credit: Arc<Semaphore>,
    over: CancellationToken,
}

/// The last frame of a reply.
enum Last {
    /// These bytes, which were allowed where they are many.
    Body(Vec<Bytes>, Option<OwnedSemaphorePermit>),
    /// A descriptor.
    Lent(std::fs::File),
    /// There is no reply.
    None,
}

/// The resources of a request: until it is done, and until its reply is on its way.
struct Admitted {
    taken: OwnedSemaphorePermit,
    slot: OwnedSemaphorePermit,
}

/// Serves a connection to its end.
pub(crate) async fn serve(shared: Arc<Shared>, stream: UnixStream, cred: Arc<Cred>) {
    let over = shared.ending.child_token();
    let conn = Arc::new(Connection {
        shared,
        cred,
        files: Mutex::default(),
        next_file: AtomicU64::new(1),
        watched: AtomicUsize::new(0),
        waiting: Arc::new(Semaphore::new(WAITING_BYTES)),
        running: Mutex::default(),
        slots: Arc::new(Semaphore::new(REQUESTS_MAX)),
        inbound: Arc::new(Semaphore::new(INBOUND_BYTES)),
        lists: Arc::new(Semaphore::new(LISTS_BYTES)),
        closing: TaskTracker::new(),
        over: over.clone(),
    });
    let (out, queue) = mpsc::channel(QUEUE_FRAMES);
    let calls = TaskTracker::new();
    let reading = async {
        let allowance = Arc::new(Semaphore::new(ALLOWANCE_BYTES));
        let reading = Reading { conn: &conn, stream: &stream, calls: &calls, out, allowance, greeted: false };
        let ended = reading.run().await;
        // The program does not read the answers, or the end was reported.
        over.cancel();
        ended
    };
    let writing = async {
        let ended = frames::write_all(&stream, queue, &over).await;
        over.cancel();
        ended
    };
    let (read, written) = tokio::join!(reading, writing);
    for ended in [read, written] {
        if let Err(error) = ended {
            tracing::debug!(uid = conn.cred.uid, %error, "a program's connection ended");
        }
    }
    over.cancel();
    calls.close();
    // Calls that change something run to their end.
    calls.wait().await;
    conn.close_all().await;
}

/// The side of a connection that reads.
struct Reading<'a> {
    conn: &'a Arc<Connection>,
    stream: &'a UnixStream,
    calls: &'a TaskTracker,
    out: mpsc::Sender<frames::Frame>,
    allowance: Arc<Semaphore>,
    greeted: bool,
}

impl Reading<'_> {
    /// Reads requests until the program hangs up or the daemon ends.
    async fn run(mut self) -> io::Result<()> {
        let conn = self.conn;
        let ended = loop {
            let next = tokio::select! {
                next = self.next() => next,
                () = conn.over.cancelled() => break Ok(()),
            };
            match next {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        let Err((id, op, e)) = ended else { return Ok(()) };
        if e.kind() == io::ErrorKind::InvalidData {
            add(&conn.shared.stats.malformed, 1);
            self.reply(id, op).fail(&Error::because(libc::EPROTO, e.to_string())).await;
        }
        Err(e)
    }

    /// Reads a request and begins it; false when there is none. Errors with the request's number
    /// and operation.
    async fn next(&mut self) -> std::result::Result<bool, (u32, u16, io::Error)> {
        let header = frames::read_header(self.stream).await.map_err(|e| (0, 0, e))?;
        let Some(header) = header else { return Ok(false) };
        let (id, op) = (header.id, header.op);
        let body = frames::read_body(self.stream, header.len as usize).await.map_err(|e| (id, op, e))?;
        let reply = self.reply(id, op);
        let begun = self.conn.begin(reply, body, &mut self.greeted, self.calls).await;
        begun.map(|()| true).map_err(|e| (id, op, e.into()))
    }

    fn reply(&self, id: u32, op: u16) -> Reply {
        Reply {
            id,
            op,
            out: self.out.clone(),
            allowance: self.allowance.clone(),
            credit: Arc::new(Semaphore::new(FRAMES_AHEAD as usize)),
            over: self.conn.over.child_token(),
        }
    }
}

impl Connection {
    /// Begins a request.
    async fn begin(
        self: &Arc<Self>,
        reply: Reply,
        body: Bytes,
        greeted: &mut bool,
        calls: &TaskTracker,
    ) -> std::result::Result<(), Malformed> {
        let paths = match Request::decode(reply.op, &body)? {
            Request::Hello(version) if !*greeted => {
                *greeted = true;
                return self.greet(&reply, version).await;
            }
            _ if !*greeted => return Err(Malformed("a request before the greeting")),
            Request::Hello(_) => return Err(Malformed("a second greeting")),
            Request::More(id, frames) => {
                if let Some(running) = self.running.lock().get(&id) {
                    let room = CREDIT_MAX.saturating_sub(running.credit.available_permits());
                    running.credit.add_permits(room.min(frames as usize));
                }
                return Ok(());
            }
            Request::Cancel(id) => {
                if let Some(running) = self.running.lock().get(&id) {
                    running.over.cancel();
                }
                return Ok(());
            }
            Request::StatMany(_, paths) | Request::Watch(paths) => paths.len(),
            Request::ReadMany(parts) => parts.len(),
            _ => 0,
        };
        add(&self.shared.stats.requests, 1);
        if paths > ITEMS_MAX {
            self.unused(&reply)?;
            reply.fail(&Error::because(libc::E2BIG, "more paths than a request may have")).await;
            return Ok(());
        }
        let Some(Admitted { taken, slot }) = self.admit(&reply, body.len() + paths * PATH_BYTES).await?
        else {
            reply.fail(&Error::because(libc::EAGAIN, "too many requests at a time")).await;
            return Ok(());
        };
        let conn = self.clone();
        calls.spawn(async move {
            let outcome = conn.call(&reply, &body).await;
            drop((body, taken));
            // Before the last frame: a program that has read it may use the number again.
            conn.running.lock().remove(&reply.id);
            match outcome {
                Ok(Last::Body(parts, allowance)) => reply.answer(parts, allowance).await,
                Ok(Last::Lent(fd)) => reply.lend(fd).await,
                Ok(Last::None) => {}
                // The layers below say it so.
                Err(e) if e.errno == libc::EINTR && reply.over.is_cancelled() => reply.fail(&gone()).await,
                Err(e) => reply.fail(&e).await,
            }
            drop(slot);
        });
        Ok(())
    }

    /// Takes note of a request; `None` when there are too many.
    async fn admit(&self, reply: &Reply, bytes: usize) -> std::result::Result<Option<Admitted>, Malformed> {
        self.unused(reply)?;
        {
            let mut running = self.running.lock();
            if running.len() >= REQUESTS_MAX {
                return Ok(None);
            }
            let (credit, over) = (reply.credit.clone(), reply.over.clone());
            running.insert(reply.id, Running { credit, over });
        }
        let n = bytes as u32;
        // A request that waits for the program's word must not keep that word from being read.
        let many = matches!(reply.op, op::READ_MANY | op::STAT_MANY | op::LIST | op::WALK | op::WATCH);
        let taken = match many {
            true => self.lists.clone().try_acquire_many_owned(n).ok(),
            false => self.inbound.clone().acquire_many_owned(n).await.ok(),
        };
        let Some(taken) = taken else {
            self.running.lock().remove(&reply.id);
            return Ok(None);
        };
        // Fewer are under way, so when there is none left, another's reply waits for the program to
        // read.
        let slot = self.slots.clone().acquire_owned().await.ok();
        Ok(slot.map(|slot| Admitted { taken, slot }))
    }

    /// A program that uses a number twice could not tell the answers apart.
    fn unused(&self, reply: &Reply) -> std::result::Result<(), Malformed> {
        match self.running.lock().contains_key(&reply.id) {
            true => Err(Malformed("a request's number that is in use")),
            false => Ok(()),
        }
    }

    async fn greet(&self, reply: &Reply, version: u16) -> std::result::Result<(), Malformed> {
        if version == 0 {
            return Err(Malformed("a version that does not exist"));
        }
        let options = &self.shared.options;
        let hello = Hello {
            version: version.min(wire::VERSION),
            read_only: options.read_only,
            dir: options.dir.as_os_str().as_bytes().to_vec(),
            source: options.source.clone().into_bytes(),
        };
        let mut body = Vec::new();
        hello.encode(&mut body);
        reply.answer(vec![body.into()], None).await;
        Ok(())
    }

    /// Serves one request; returns the rest, to be sent as its last frame.
    async fn call(self: &Arc<Self>, reply: &Reply, body: &Bytes) -> Result<Last> {
        let request = Request::decode(reply.op, body).map_err(|e| Error::because(libc::EPROTO, e.0))?;
        let cx = self.cx(reply, changes(&request));
        let done = |()| Last::Body(Vec::new(), None);
        let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
            let mut body = Vec::new();
            encode(&mut body);
            Last::Body(vec![Bytes::from(body)], None)
        };
        Ok(match request {
            Request::Hello(_) | Request::More(..) | Request::Cancel(_) => Last::None,
            Request::Open(path, flags, mode) => {
                let opened = self.open(&cx, path, flags, mode).await?;
                encoded(&|out| opened.encode(out))
            }
            Request::Close(file) => self.close(&cx, file).await.map(done)?,
            Request::Read(file, offset, len) => {
                let (parts, allowance) = self.read(&cx, reply, file, offset, len).await?;
                Last::Body(parts, Some(allowance))
            }
            Request::Write(file, offset, flags, data) => {
                let data = body.slice_ref(data);
                let (n, at) = self.write(&cx, file, offset, flags, data).await?;
                encoded(&|out| {
                    out.extend(n.to_le_bytes());
                    if flags & WRITE_APPEND != 0 {
                        out.extend(at.to_le_bytes());
                    }
                })
            }
            Request::Sync(file) => self.sync(&cx, file).await.map(done)?,
            Request::SetLen(file, len) => self.set_len(&cx, file, len).await.map(done)?,
            Request::StatFile(file) => {
                let attr = self.stat_file(&cx, file).await?;
                encoded(&|out| attr.encode(out))
            }
            Request::StatMany(flags, paths) => self.stat_many(&cx, reply, flags, &paths).await.map(done)?,
            Request::ReadMany(parts) => self.read_many(&cx, reply, &parts).await.map(done)?,
            Request::ReadLink(path) => Last::Body(vec![self.read_link(&cx, path).await?], None),
            Request::List(path) => self.list(&cx, reply, path).await.map(done)?,
            Request::Walk(path, depth) => self.walk(&cx, reply, path, depth).await.map(done)?,
            Request::Watch(paths) => watch::watch(self, &cx, reply, &paths).await.map(done)?,
            Request::Mkdir(path, mode) => self.mkdir(&cx, path, mode).await.map(done)?,
            Request::Remove(path, dir) => self.remove(&cx, path, dir == 1).await.map(done)?,
            Request::Rename(from, to, flags) => self.rename(&cx, from, to, flags).await.map(done)?,
            Request::Symlink(target, path) => self.symlink(&cx, target, path).await.map(done)?,
            Request::Lend(file) => Last::Lent(self.lend(file)?),
        })
    }

    /// Only the end of the mount cancels a change: until it has ended, the mount's kernel may not
    /// keep its view.
    fn cx(&self, reply: &Reply, changes: bool) -> Cx {
        let cancel = if changes { self.shared.ending.clone() } else { reply.over.clone() };
        Cx { cancel, ..Cx::new(self.cred.clone()) }
    }

    /// The same call, as new as an open that begins now has to be.
    pub fn opening(&self, cx: &Cx) -> Cx {
        match self.shared.options.close_to_open {
            true => cx.fresh(Instant::now()),
            false => cx.clone(),
        }
    }

    /// # Errors
    /// `EROFS` where nothing can be changed.
    pub fn writable(&self) -> Result<()> {
        if self.shared.options.read_only { Err(Error::new(libc::EROFS)) } else { Ok(()) }
    }
}

/// Whether a request changes something, or ends an open.
fn changes(request: &Request<'_>) -> bool {
    match request {
        Request::Open(_, flags, _) => flags & (OPEN_CREATE | OPEN_TRUNCATE) != 0,
        Request::Close(_) | Request::Write(..) | Request::Sync(_) | Request::SetLen(..) => true,
        Request::Mkdir(..) | Request::Remove(..) | Request::Rename(..) | Request::Symlink(..) => true,
        _ => false,
    }
}

/// Attributes as programs get them.
pub(crate) fn told(attr: &Attr) -> wire::Attr {
    let time = |t: hither_vfs::Time| (t.secs, t.nanos);
    wire::Attr {
        kind: match attr.kind {
            FileKind::Regular => wire::Kind::File,
            FileKind::Directory => wire::Kind::Directory,
            FileKind::Symlink => wire::Kind::Symlink,
            FileKind::BlockDevice => wire::Kind::BlockDevice,
            FileKind::CharDevice => wire::Kind::CharDevice,
            FileKind::Socket => wire::Kind::Socket,
            FileKind::Fifo => wire::Kind::Fifo,
        },
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size_bytes,
        used: attr.used_bytes,
        fsid: attr.fsid,
        fileid: attr.fileid,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        change: attr.change,
    }
}
