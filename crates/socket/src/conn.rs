//! One connection. It greets, reads requests, runs a task for each, and closes all open files at
//! its end.
//!
//! All resources of a program are bounded: running requests, open files, watched paths and bytes.
//! Beyond a limit a request fails with `EAGAIN`, with `EMFILE` for files, or with `E2BIG` when it
//! is too large even alone. When the limit of request bytes or of unread replies is reached, the
//! connection reads no further requests. A malformed message ends the connection after an error
//! reply. When a program closes the connection, all its requests end. Only changes run to their
//! end, so that the mount can show them.

use crate::file::OpenFile;
use crate::frames::{self, ALLOWANCE_BYTES, QUEUE_FRAMES, Reply, gone};
use crate::stats::add;
use crate::{Shared, watch};
use bytes::Bytes;
use hither_client::wire::{
    self, FRAMES_AHEAD, Hello, ITEMS_MAX, Malformed, OPEN_CREATE, OPEN_TRUNCATE, Request, WRITE_APPEND, op,
};
use hither_vfs::{Attr, Cred, Error, FileKind, RequestContext, Result};
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

/// Maximum number of running requests.
const REQUESTS_MAX: usize = 256;
/// Maximum size in bytes of waiting requests. Further requests are not read until then.
const INBOUND_BYTES: usize = 16 << 20;
/// Maximum size in bytes of requests with replies of many frames. `PATH_BYTES` are added for each
/// path.
const LISTS_BYTES: usize = 64 << 20;
const PATH_BYTES: usize = 512;
/// Maximum size in bytes of directories that wait for their listing.
const WAITING_BYTES: usize = 64 << 20;
/// Maximum number of frames that a program may request in advance for one reply.
const CREDIT_MAX: usize = 1 << 16;

/// A connection.
pub(crate) struct Connection {
    pub shared: Arc<Shared>,
    pub cred: Arc<Cred>,
    pub files: Mutex<HashMap<u64, Arc<OpenFile>>>,
    pub next_file: AtomicU64,
    /// Number of watched paths.
    pub watched: AtomicUsize,
    /// Free bytes for directories that wait for their listing.
    pub waiting: Arc<Semaphore>,
    running: Mutex<HashMap<u32, Running>>,
    /// Requests until their replies are queued.
    slots: Arc<Semaphore>,
    inbound: Arc<Semaphore>,
    lists: Arc<Semaphore>,
    /// Running closes of read opens, which no program waits for.
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
    /// A body, with the permit for a large one.
    Body(Vec<Bytes>, Option<OwnedSemaphorePermit>),
    /// A descriptor.
    Lent(std::fs::File),
    /// No reply.
    None,
}

/// The permits of a request: one until the call ends, one until its reply is queued.
struct Admitted {
    taken: OwnedSemaphorePermit,
    slot: OwnedSemaphorePermit,
}

/// Serves a connection until its end.
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
        // The program has closed the connection, or the error was reported.
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
    // Changes run to their end.
    calls.wait().await;
    conn.close_all().await;
}

/// The reading side of a connection.
struct Reading<'a> {
    conn: &'a Arc<Connection>,
    stream: &'a UnixStream,
    calls: &'a TaskTracker,
    out: mpsc::Sender<frames::Frame>,
    allowance: Arc<Semaphore>,
    greeted: bool,
}

impl Reading<'_> {
    /// Reads requests until the program closes the connection or the daemon ends.
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

    /// Reads a request and starts it. Returns false at the end of the connection. Errors contain
    /// the number and operation of the request.
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
    /// Starts a request.
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
            // Before the last frame, because a program that has read the last frame may reuse the
            // number.
            conn.running.lock().remove(&reply.id);
            match outcome {
                Ok(Last::Body(parts, allowance)) => reply.answer(parts, allowance).await,
                Ok(Last::Lent(fd)) => reply.lend(fd).await,
                Ok(Last::None) => {}
                // The layers below report a cancellation as EINTR.
                Err(e) if e.errno == libc::EINTR && reply.over.is_cancelled() => reply.fail(&gone()).await,
                Err(e) => reply.fail(&e).await,
            }
            drop(slot);
        });
        Ok(())
    }

    /// Reserves the resources of a request; `None` when there are too many requests.
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
        // A request that waits for [`Request::More`] must not prevent the connection from reading
        // it.
        let many = matches!(reply.op, op::READ_MANY | op::STAT_MANY | op::LIST | op::WALK | op::WATCH);
        let taken = if many {
            self.lists.clone().try_acquire_many_owned(n).ok()
        } else {
            self.inbound.clone().acquire_many_owned(n).await.ok()
        };
        let Some(taken) = taken else {
            self.running.lock().remove(&reply.id);
            return Ok(None);
        };
        // Fewer requests are running. Without a free slot, a finished reply waits for the program
        // to read.
        let slot = self.slots.clone().acquire_owned().await.ok();
        Ok(slot.map(|slot| Admitted { taken, slot }))
    }

    /// Refuses a number that is in use, because the program could not distinguish the two replies.
    fn unused(&self, reply: &Reply) -> std::result::Result<(), Malformed> {
        if self.running.lock().contains_key(&reply.id) {
            Err(Malformed("a request number that is in use"))
        } else {
            Ok(())
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

    /// Serves one request. Returns the last frame of its reply.
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

    /// The context of a request. Only the end of the mount cancels a change, because the mount's
    /// kernel caches are invalid until the change has ended.
    fn cx(&self, reply: &Reply, changes: bool) -> RequestContext {
        let cancel = if changes { self.shared.ending.clone() } else { reply.over.clone() };
        RequestContext { cancel, ..RequestContext::new(self.cred.clone()) }
    }

    /// The context for an open. With close-to-open it accepts only answers from now on.
    pub fn opening(&self, cx: &RequestContext) -> RequestContext {
        if self.shared.options.close_to_open { cx.fresh(Instant::now()) } else { cx.clone() }
    }

    /// # Errors
    /// `EROFS` where nothing can be changed.
    pub fn writable(&self) -> Result<()> {
        if self.shared.options.read_only { Err(Error::new(libc::EROFS)) } else { Ok(()) }
    }
}

/// Whether a request changes the file system, or ends an open.
fn changes(request: &Request<'_>) -> bool {
    match request {
        Request::Open(_, flags, _) => flags & (OPEN_CREATE | OPEN_TRUNCATE) != 0,
        Request::Close(_) | Request::Write(..) | Request::Sync(_) | Request::SetLen(..) => true,
        Request::Mkdir(..) | Request::Remove(..) | Request::Rename(..) | Request::Symlink(..) => true,
        _ => false,
    }
}

/// Attributes in the wire format.
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
