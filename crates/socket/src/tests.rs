//! The socket over the model: situations that a test with a real server cannot produce reliably.

#[path = "../../fuse/tests/common/gate.rs"]
#[allow(dead_code, missing_docs)]
mod gate;

use crate::conn;
use crate::{Options, Shared, stats::Stats};
use gate::Gate;
use hither_client::wire::{
    self, APPEND_AT, Entry, FLAG_ERROR, FLAG_MORE, HEADER_BYTES, Header, Opened, Part, Piece, Reader,
    Request, Stated, decode_error,
};
use hither_vfs::model::Model;
use hither_vfs::{
    Create, Cred, Data, Env, File, Name, OpenAccess, OpenHow, PathRef, RequestContext, SetAttr, Stability,
    Vfs,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

fn root() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

async fn shared() -> (Arc<Model>, Arc<Shared>) {
    let model = model(64 << 20);
    (model.clone(), over(model))
}

fn model(capacity_bytes: u64) -> Arc<Model> {
    let wall = || std::time::SystemTime::UNIX_EPOCH;
    let env = Env { random: Arc::new(|| 4), wall: Arc::new(wall) };
    Arc::new(Model::new(env, Duration::from_secs(1), capacity_bytes))
}

fn over(vfs: Arc<dyn Vfs>) -> Arc<Shared> {
    let options = Options {
        dir: "/mnt".into(),
        source: "model:/".into(),
        read_only: false,
        close_to_open: true,
        max_io_bytes: 4096,
        lends: false,
    };
    let shared = Shared {
        vfs,
        invalidator: None,
        options,
        root: Default::default(),
        appending: Default::default(),
        stats: Stats::default(),
        users: Default::default(),
        ending: Default::default(),
        tasks: Default::default(),
    };
    Arc::new(shared)
}

/// A directory of the superuser with a file `f` of three bytes.
async fn directory(model: &Model, name: &str, mode: u32) {
    directory_with(model, name, mode, b"abc".to_vec()).await;
}

async fn directory_with(model: &Model, name: &str, mode: u32, body: Vec<u8>) {
    let (cx, top) = (root(), model.root(&root()).await.unwrap().fh);
    let name = Name::new(name.to_string()).unwrap();
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    let dir = model.mkdir(&cx, &top, &name, &set).await.unwrap().node.fh;
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let how = OpenHow {
        access: OpenAccess::WRITE,
        create: Create::Exclusive(set),
        truncate: false,
        execute: false,
        first_bytes: 0,
        known: None,
    };
    let file = Name::new("f").unwrap();
    let opened = model.open(&cx, PathRef::name(&dir, &file), &how).await.unwrap();
    let at = File { fh: &opened.node.fh, open: Some(opened.open) };
    model.write(&cx, at, 0, Data::from(bytes::Bytes::from(body)), Stability::Stable).await.unwrap();
    model.close(&cx, &opened.node.fh, opened.open).await.unwrap();
}

/// A program of user `uid`.
struct Program {
    stream: UnixStream,
    server: tokio::task::JoinHandle<()>,
    next: u32,
}

impl Program {
    async fn new(shared: &Arc<Shared>, uid: u32) -> Self {
        let (stream, other) = UnixStream::pair().unwrap();
        let cred = Arc::new(Cred { uid, gid: uid, groups: Default::default() });
        let server = tokio::spawn(conn::serve(shared.clone(), other, cred));
        let mut program = Self { stream, server, next: 1 };
        program.call(&Request::Hello(1)).await.unwrap();
        program
    }

    async fn send(&mut self, request: &Request<'_>) -> u32 {
        let mut out = Vec::new();
        self.next += 1;
        request.encode(self.next, &mut out);
        self.stream.write_all(&out).await.unwrap();
        self.next
    }

    async fn frame(&mut self) -> (Header, Vec<u8>) {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).await.unwrap();
        let header = Header::decode(&header).unwrap();
        let mut body = vec![0; header.len as usize];
        self.stream.read_exact(&mut body).await.unwrap();
        (header, body)
    }

    /// Returns all frames of a reply, joined, or the errno.
    async fn call(&mut self, request: &Request<'_>) -> Result<Vec<u8>, i32> {
        let id = self.send(request).await;
        let mut all = Vec::new();
        loop {
            let (header, body) = self.frame().await;
            assert_eq!(header.id, id);
            if header.flags & FLAG_ERROR != 0 {
                return Err(decode_error(&body).unwrap().0);
            }
            all.extend(body);
            if header.flags & FLAG_MORE == 0 {
                return Ok(all);
            }
        }
    }

    async fn read_many(&mut self, paths: &[&'static str]) -> Vec<Result<Vec<u8>, i32>> {
        let part = |path: &&'static str| Part { path: path.as_bytes(), offset: 0, len: 100 };
        let body = self.call(&Request::ReadMany(paths.iter().map(part).collect())).await.unwrap();
        let (mut r, mut out) = (Reader(&body), BTreeMap::new());
        while !r.is_empty() {
            let piece = Piece::decode(&mut r).unwrap();
            out.insert(piece.index, piece.read.map(|(_, data)| data.to_vec()));
        }
        out.into_values().collect()
    }
}

/// A caller with the right to list a directory, and without the right to look up names, gets only
/// names from every request.
#[tokio::test]
async fn listing_right_is_not_lookup_right() {
    let (model, shared) = shared().await;
    directory(&model, "d", 0o744).await;
    for (uid, attr) in [(0, Ok(3)), (7, Err(libc::EACCES))] {
        let mut program = Program::new(&shared, uid).await;
        for request in [Request::List(b"d"), Request::Walk(b"d", 9)] {
            let body = program.call(&request).await.unwrap();
            let entry = Entry::decode(&mut Reader(&body)).unwrap();
            assert_eq!((entry.name, entry.attr.map(|a| a.size)), (&b"f"[..], attr), "{uid} {request:?}");
        }
        // One name and many names use different code.
        for n in [1, 10] {
            let body = program.call(&Request::StatMany(0, vec![b"d/f"; n])).await.unwrap();
            let mut r = Reader(&body);
            for _ in 0..n {
                assert_eq!(Stated::decode(&mut r).unwrap().attr.map(|a| a.size), attr, "{uid}, {n}");
            }
            let bytes = attr.map(|_| b"abc".to_vec());
            assert_eq!(program.read_many(&vec!["d/f"; n]).await, vec![bytes; n], "{uid}, {n}");
        }
        assert_eq!(program.call(&Request::Open(b"d/f", wire::OPEN_READ, 0)).await.err(), attr.err());
    }
}

/// Open files belong to one connection, are bounded, and are closed at its end.
#[tokio::test]
async fn connection_end_closes_files() {
    let (model, shared) = shared().await;
    directory(&model, "d", 0o755).await;
    let mut program = Program::new(&shared, 0).await;
    let open = Request::Open(b"d/f", wire::OPEN_READ, 0);
    let mut last = 0;
    for _ in 0..1024 {
        last = Opened::decode(&program.call(&open).await.unwrap()).unwrap().file;
    }
    assert_eq!(program.call(&open).await, Err(libc::EMFILE));
    let mut other = Program::new(&shared, 0).await;
    assert_eq!(other.call(&Request::Read(last, 0, 3)).await, Err(libc::EBADF), "not its file");
    assert_eq!(other.call(&Request::Close(last)).await, Err(libc::EBADF));
    assert_eq!(program.call(&Request::Read(last, 1, 9)).await.unwrap(), b"\x01bc");
    assert_eq!(program.call(&Request::Write(last, 0, 0, b"x")).await, Err(libc::EBADF), "opened for reading");
    program.call(&Request::Close(last)).await.unwrap();
    assert_eq!(program.call(&Request::Close(last)).await, Err(libc::EBADF));
    program.call(&open).await.unwrap();
    soon("the close of one file", async {
        while model.open_count() != 1024 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let Program { stream, server, .. } = program;
    drop(stream);
    server.await.unwrap();
    assert_eq!(model.open_count(), 0);
}

/// Requests beyond the limit fail singly. A cancelled request frees its resources.
#[tokio::test]
async fn running_requests_are_bounded() {
    let (model, shared) = shared().await;
    directory(&model, "d", 0o755).await;
    let mut program = Program::new(&shared, 0).await;
    let watch = Request::Watch(vec![b"d/f"]);
    let first = program.send(&watch).await;
    program.frame().await;
    for _ in 1..256 {
        program.send(&watch).await;
        assert_eq!(program.frame().await.0.flags, FLAG_MORE);
    }
    assert_eq!(program.call(&Request::List(b"")).await, Err(libc::EAGAIN));
    program.send(&Request::Cancel(first)).await;
    let (header, _) = program.frame().await;
    assert_eq!((header.id, header.flags & FLAG_MORE), (first, 0));
    program.call(&Request::List(b"")).await.unwrap();
    let many = Request::Watch(vec![b"d/f"; 1024]);
    assert_eq!(program.call(&many).await, Err(libc::EAGAIN), "together with the watched paths");
}

/// A path that is too long fails alone, also in a request with many paths. A request with too many
/// paths fails alone. The connection continues.
#[tokio::test]
async fn oversized_request_keeps_connection() {
    let (model, shared) = shared().await;
    directory(&model, "d", 0o755).await;
    let mut program = Program::new(&shared, 0).await;
    let long = [&b"d/"[..], &[b'/'; 4095]].concat();
    let fits = [&b"d/"[..], &[b'/'; 4094]].concat();
    for (path, errno) in [(&long[..], libc::ENAMETOOLONG), (b"d/a\0b", libc::EINVAL)] {
        for request in [
            Request::Open(path, wire::OPEN_READ, 0),
            Request::ReadLink(path),
            Request::List(path),
            Request::Walk(path, 1),
            Request::Watch(vec![b"d", path]),
            Request::Mkdir(path, 0o755),
            Request::Remove(path, 0),
            Request::Rename(path, b"d/new", 0),
            Request::Rename(b"d/f", path, 0),
            Request::Symlink(b"f", path),
            Request::Symlink(path, b"d/link"),
        ] {
            assert_eq!(program.call(&request).await, Err(errno), "{request:?}");
        }
        let body = program.call(&Request::StatMany(0, vec![b"d/f", path, b"d"])).await.unwrap();
        let mut r = Reader(&body);
        let mut stated = BTreeMap::new();
        while !r.is_empty() {
            let one = Stated::decode(&mut r).unwrap();
            stated.insert(one.index, one.attr.map(|_| ()));
        }
        assert_eq!(stated.into_values().collect::<Vec<_>>(), [Ok(()), Err(errno), Ok(())]);
        let part = |path| Part { path, offset: 0, len: 9 };
        let body = program.call(&Request::ReadMany(vec![part(path), part(b"d/f")])).await.unwrap();
        let (mut r, mut read) = (Reader(&body), BTreeMap::new());
        while !r.is_empty() {
            let piece = Piece::decode(&mut r).unwrap();
            read.insert(piece.index, piece.read.map(|(_, data)| data.to_vec()));
        }
        assert_eq!(read.into_values().collect::<Vec<_>>(), [Err(errno), Ok(b"abc".to_vec())]);
    }
    program.call(&Request::List(&fits)).await.unwrap();
    let most = wire::ITEMS_MAX;
    for request in [
        Request::Watch(vec![b"d"; 1025]),
        Request::Watch(vec![b"d"; most + 1]),
        Request::StatMany(0, vec![b"d/f"; most + 1]),
        Request::ReadMany(vec![Part { path: b"d/f", offset: 0, len: 1 }; most + 1]),
    ] {
        let op = request.op();
        assert_eq!(program.call(&request).await, Err(libc::E2BIG), "operation {op}");
    }
    // The maximum is served, and refused requests are not counted.
    program.send(&Request::Watch(vec![b"d"; 1024])).await;
    assert_eq!(program.frame().await.0.flags, FLAG_MORE);
}

/// Waits for an event that must happen soon.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.unwrap_or_else(|_| panic!("{what}"))
}

/// Sends frames until none is accepted any more, or `most` frames.
async fn pour(stream: &mut UnixStream, frame: impl Fn(u32) -> Vec<u8>, most: u32) -> u32 {
    for i in 0..most {
        let sent = tokio::time::timeout(Duration::from_millis(500), stream.write_all(&frame(1000 + i))).await;
        if !matches!(sent, Ok(Ok(()))) {
            return i;
        }
    }
    most
}

/// A program that does not read replies is not served without limit: its waiting data is bounded.
#[tokio::test]
async fn unread_replies_stop_requests() {
    let (_, shared) = shared().await;
    let mut program = Program::new(&shared, 0).await;
    let close = |id| {
        let mut out = Vec::new();
        Request::Close(99).encode(id, &mut out);
        out
    };
    let sent = pour(&mut program.stream, close, 50_000).await;
    assert!((256..5000).contains(&sent), "{sent} requests were taken");
    // After the program reads, all requests are answered.
    for _ in 0..sent {
        assert_eq!(soon("a reply", program.frame()).await.0.flags, FLAG_ERROR);
    }
}

/// A program that closes its connection ends all its requests: watches, and replies with frames
/// that it did not request.
#[tokio::test]
async fn hangup_ends_requests() {
    let (model, shared) = shared().await;
    directory(&model, "d", 0o755).await;
    let mut program = Program::new(&shared, 0).await;
    program.call(&Request::Open(b"d/f", wire::OPEN_READ | wire::OPEN_WRITE, 0)).await.unwrap();
    program.send(&Request::Watch(vec![b"d/f"])).await;
    assert_eq!(program.frame().await.0.flags, FLAG_MORE);
    let part = Part { path: b"d/f", offset: 0, len: 1 << 20 };
    program.send(&Request::ReadMany(vec![part; 40])).await;
    let Program { stream, server, .. } = program;
    drop(stream);
    soon("the end of the connection", server).await.unwrap();
    assert_eq!(model.open_count(), 0);
    // A malformed message is reported, and ends the connection as well.
    let mut program = Program::new(&shared, 0).await;
    program.send(&Request::Watch(vec![b"d/f"])).await;
    assert_eq!(program.frame().await.0.flags, FLAG_MORE);
    program.send(&Request::Hello(1)).await;
    let (header, body) = program.frame().await;
    assert_eq!((header.flags, decode_error(&body).unwrap().0), (FLAG_ERROR, libc::EPROTO));
    soon("the end of the connection", program.server).await.unwrap();
}

/// A program that stops in the middle of a request or a reply does not delay the end of the mount.
#[tokio::test]
async fn stopped_program_delays_no_unmount() {
    let (model, shared) = shared().await;
    directory_with(&model, "d", 0o755, vec![1; 1 << 20]).await;
    let mut sends = Program::new(&shared, 0).await;
    sends.stream.write_all(&Header { len: 100, id: 5, op: 2, flags: 0 }.encode()).await.unwrap();
    let mut reads = Program::new(&shared, 0).await;
    let opened = reads.call(&Request::Open(b"d/f", wire::OPEN_READ, 0)).await.unwrap();
    let file = Opened::decode(&opened).unwrap().file;
    for _ in 0..100 {
        reads.send(&Request::Read(file, 0, 1 << 20)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    shared.ending.cancel();
    soon("the end of the program that stopped sending", sends.server).await.unwrap();
    soon("the end of the program that stopped reading", reads.server).await.unwrap();
    assert_eq!(model.open_count(), 0);
}

/// Files that are being read are closed when their program has closed its connection.
#[tokio::test]
async fn hangup_closes_files_being_read() {
    let model = model(64 << 20);
    directory_with(&model, "d", 0o755, vec![1; 1 << 20]).await;
    let gate = Gate::new(model.clone());
    let shared = over(gate.clone());
    let mut program = Program::new(&shared, 0).await;
    let part = Part { path: b"d/f", offset: 0, len: 1 << 20 };
    gate.shut("read");
    // The two requests need more than the allowance: some reads wait for it, the others for the
    // server.
    program.send(&Request::ReadMany(vec![part; 10])).await;
    let second = program.send(&Request::ReadMany(vec![part; 16])).await;
    soon("open files", async {
        while gate.waiting("read") < 15 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    program.send(&Request::Cancel(second)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    gate.open_all();
    let Program { stream, server, .. } = program;
    drop(stream);
    soon("the end of the connection", server).await.unwrap();
    assert_eq!(model.open_count(), 0);
}

/// An unread reply does not block other replies.
#[tokio::test]
async fn unread_reply_blocks_no_other() {
    let (model, shared) = shared().await;
    directory_with(&model, "d", 0o755, vec![1; 1 << 20]).await;
    let mut program = Program::new(&shared, 0).await;
    let opened = program.call(&Request::Open(b"d/f", wire::OPEN_READ, 0)).await.unwrap();
    let file = Opened::decode(&opened).unwrap().file;
    let part = Part { path: b"d/f", offset: 0, len: 1 << 20 };
    let many = program.send(&Request::ReadMany(vec![part; 60])).await;
    for _ in 0..wire::FRAMES_AHEAD {
        assert_eq!(soon("a frame", program.frame()).await.0.id, many);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let read = Request::Read(file, 1, 2);
    assert_eq!(soon("another reply", program.call(&read)).await.unwrap(), b"\x00\x01\x01");
    // The reply continues on request.
    let frames = 60 - wire::FRAMES_AHEAD;
    program.send(&Request::More(many, frames)).await;
    for _ in 0..frames {
        assert_eq!(soon("a frame", program.frame()).await.0.id, many);
    }
    assert_eq!(soon("the end", program.frame()).await.0.flags, 0);
}

/// The socket starts without a call to the server. The first request fetches the root.
#[tokio::test]
async fn first_request_fetches_root() {
    let model = model(64 << 20);
    directory(&model, "d", 0o755).await;
    let gate = Gate::new(model.clone());
    let path = std::env::temp_dir().join(format!("hither-socket-{}", std::process::id()));
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    gate.shut("root");
    let shared = over(gate.clone());
    let options = shared.options.clone();
    let start = crate::Programs::start(listener, gate.clone(), None, options);
    soon("the start", start).await.unwrap();
    let mut program = soon("the greeting", Program::new(&shared, 0)).await;
    assert_eq!(gate.calls("root"), 0);
    gate.open_all();
    for _ in 0..3 {
        program.call(&Request::List(b"d")).await.unwrap();
    }
    assert_eq!(gate.calls("root"), 1);
}

/// A program does not wait for the server when it closes a file that it only read. The end of the
/// connection waits.
#[tokio::test]
async fn close_after_reading_returns_early() {
    let model = model(64 << 20);
    directory(&model, "d", 0o755).await;
    let gate = Gate::new(model.clone());
    let mut program = Program::new(&over(gate.clone()), 0).await;
    gate.shut("close");
    let opened = program.call(&Request::Open(b"d/f", wire::OPEN_READ, 0)).await.unwrap();
    let file = Opened::decode(&opened).unwrap().file;
    soon("a close", program.call(&Request::Close(file))).await.unwrap();
    let Program { stream, server, .. } = program;
    drop(stream);
    soon("the close at the server", async {
        while gate.waiting("close") == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!server.is_finished() && model.open_count() == 1);
    gate.open_all();
    soon("the end of the connection", server).await.unwrap();
    assert_eq!(model.open_count(), 0);
}

/// Requests about many files are limited by their number of paths.
#[tokio::test]
async fn bulk_requests_are_bounded() {
    let model = model(64 << 20);
    directory(&model, "d", 0o755).await;
    let gate = Gate::new(model.clone());
    let mut program = Program::new(&over(gate.clone()), 0).await;
    gate.shut("walk");
    let many = Request::StatMany(0, vec![b"d/f"; 16_000]);
    for _ in 0..8 {
        program.send(&many).await;
    }
    assert_eq!(soon("a refusal", program.call(&many)).await, Err(libc::EAGAIN));
    gate.open_all();
}

/// Concurrent appends of several programs do not overlap: each is in one piece at the current end
/// of the file. That also holds after another client's append.
#[tokio::test]
async fn concurrent_appends_do_not_overlap() {
    let model = model(64 << 20);
    directory(&model, "d", 0o755).await;
    let gate = Gate::new(model.clone());
    let shared = over(gate.clone());
    let mut programs = Vec::new();
    for _ in 0..4 {
        let mut program = Program::new(&shared, 0).await;
        let opened = program.call(&Request::Open(b"d/f", wire::OPEN_WRITE, 0)).await.unwrap();
        programs.push((program, Opened::decode(&opened).unwrap().file));
    }
    // Longer than the model's largest write, so that a second append could start in between.
    let body = |p: usize, round: u8| vec![b'a' + p as u8 * 8 + round; 10_000];
    gate.shut_answers("write");
    for round in 0..5 {
        for (p, (program, file)) in programs.iter_mut().enumerate() {
            program.send(&Request::Write(*file, APPEND_AT, wire::WRITE_APPEND, &body(p, round))).await;
        }
    }
    soon("the first piece of an append", async {
        while gate.answers_waiting("write") == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Time for the other appends to find the end of the file.
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.open_all();
    let mut begun = Vec::new();
    for (program, _) in &mut programs {
        for _ in 0..5 {
            let (header, reply) = soon("an append", program.frame()).await;
            assert_eq!((header.flags, &reply[..4]), (0, &10_000_u32.to_le_bytes()[..]));
            begun.push(u64::from_le_bytes(reply[4..].try_into().unwrap()));
        }
    }
    begun.sort_unstable();
    let expected: Vec<u64> = (0..20).map(|n| 3 + n * 10_000).collect();
    assert_eq!(begun, expected);
    let (program, file) = &mut programs[0];
    let opened = program.call(&Request::Open(b"d/f", wire::OPEN_READ, 0)).await.unwrap();
    let reading = Opened::decode(&opened).unwrap().file;
    let all = program.call(&Request::Read(reading, 3, 1 << 20)).await.unwrap().split_off(1);
    let mut pieces: Vec<&[u8]> = all.chunks(10_000).collect();
    pieces.sort_unstable();
    let whole: Vec<Vec<u8>> = (0..4).flat_map(|p| (0..5).map(move |r| body(p, r))).collect();
    assert_eq!(pieces, whole);
    for refused in [Request::Write(*file, 3, wire::WRITE_APPEND, b"x"), Request::Write(*file, 3, 4, b"x")] {
        assert_eq!(program.call(&refused).await, Err(libc::EINVAL));
    }
}

/// The next call reports an error in the middle of a write.
#[tokio::test]
async fn next_call_reports_write_error() {
    let model = model(64 << 20);
    directory(&model, "d", 0o755).await;
    let gate = Gate::new(model.clone());
    let mut program = Program::new(&over(gate.clone()), 0).await;
    let body = vec![7; 3 * 4096];
    for next in 0..3 {
        let opened = program.call(&Request::Open(b"d/f", wire::OPEN_WRITE, 0)).await.unwrap();
        let file = Opened::decode(&opened).unwrap().file;
        gate.shut_answers("write");
        let id = program.send(&Request::Write(file, 0, 0, &body)).await;
        soon("the first part", async {
            while gate.answers_waiting("write") == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        gate.fail("write", libc::EIO);
        gate.open_all();
        let (header, taken) = soon("a short write", program.frame()).await;
        assert_eq!((header.id, header.flags, &taken[..]), (id, 0, &4096_u32.to_le_bytes()[..]));
        gate.fail("write", 0);
        let after = match next {
            0 => Request::Write(file, 4096, 0, b"x"),
            1 => Request::Sync(file),
            _ => Request::Close(file),
        };
        assert_eq!(program.call(&after).await, Err(libc::EIO), "{after:?}");
        // The error is reported once.
        let closed = program.call(&Request::Close(file)).await;
        assert_eq!(closed.err(), (next == 2).then_some(libc::EBADF));
    }
    assert_eq!(model.open_count(), 0);
}

/// A path that ends with a slash, or with a slash and a dot, is the path of a directory, as in
/// system calls. The number of slashes does not count.
#[tokio::test]
async fn trailing_slash_means_directory() {
    let (model, shared) = shared().await;
    directory(&model, "d", 0o755).await;
    let mut program = Program::new(&shared, 0).await;
    for path in ["d/s", "d/s2//", "/d///s3/"] {
        program.call(&Request::Mkdir(path.as_bytes(), 0o755)).await.unwrap();
    }
    program.call(&Request::Symlink(b"s", b"d/l")).await.unwrap();
    let wrong = [
        (Request::Remove(b"d/f/", 0), libc::ENOTDIR),
        (Request::Remove(b"d/l/", 0), libc::ENOTDIR),
        (Request::Remove(b"d/l/", 1), libc::ENOTDIR),
        (Request::Rename(b"d/f/", b"d/g", 0), libc::ENOTDIR),
        (Request::Rename(b"d/f", b"d/g/", 0), libc::ENOTDIR),
        (Request::Symlink(b"x", b"d/none/"), libc::ENOENT),
        (Request::Symlink(b"x", b"d/f/"), libc::EEXIST),
        (Request::Open(b"d/none/", wire::OPEN_WRITE | wire::OPEN_CREATE, 0o644), libc::EISDIR),
        (Request::Open(b"d/f/.", wire::OPEN_READ, 0), libc::ENOTDIR),
    ];
    for (request, errno) in wrong {
        assert_eq!(program.call(&request).await, Err(errno), "{request:?}");
    }
    for (path, kind) in [
        ("d/l", Ok(wire::Kind::Symlink)),
        ("d/l/.", Ok(wire::Kind::Directory)),
        ("d/f/.", Err(libc::ENOTDIR)),
    ] {
        let body = program.call(&Request::StatMany(wire::NO_FOLLOW, vec![path.as_bytes()])).await.unwrap();
        assert_eq!(Stated::decode(&mut Reader(&body)).unwrap().attr.map(|a| a.kind), kind, "{path}");
    }
    program.call(&Request::Rename(b"d/s/", b"d/t//", 0)).await.unwrap();
    program.call(&Request::Remove(b"d/t//", 1)).await.unwrap();
    let body = program.call(&Request::List(b"d//")).await.unwrap();
    let (mut r, mut names) = (Reader(&body), Vec::new());
    while !r.is_empty() {
        names.push(String::from_utf8(Entry::decode(&mut r).unwrap().name.to_vec()).unwrap());
    }
    names.sort();
    assert_eq!(names, ["f", "l", "s2", "s3"]);
}

/// A request with an offset or flag that no system call accepts is refused before a layer below
/// gets it.
#[tokio::test]
async fn impossible_offsets_are_refused() {
    let (model, shared) = shared().await;
    directory(&model, "d", 0o755).await;
    let mut program = Program::new(&shared, 0).await;
    let opened = program.call(&Request::Open(b"d/f", wire::OPEN_READ | wire::OPEN_WRITE, 0)).await.unwrap();
    let file = Opened::decode(&opened).unwrap().file;
    let last = i64::MAX as u64;
    for (request, errno) in [
        (Request::Read(file, last + 1, 1 << 20), libc::EINVAL),
        (Request::Read(file, u64::MAX, 1 << 20), libc::EINVAL),
        (Request::Write(file, last - 1, 0, b"xyz"), libc::EFBIG),
        (Request::SetLen(file, last + 1), libc::EFBIG),
        (Request::SetLen(file, u64::MAX), libc::EFBIG),
        // Flag 2 is RENAME_EXCHANGE in the kernel and is not supported.
        (Request::Rename(b"d/f", b"d/g", 2), libc::EINVAL),
    ] {
        assert_eq!(program.call(&request).await, Err(errno), "{request:?}");
    }
    assert_eq!(program.call(&Request::Read(file, last - 1, 1 << 20)).await.unwrap(), b"\x01");
    assert_eq!(program.call(&Request::Read(file, 0, 9)).await.unwrap(), b"\x01abc");
}
