//! Hints from the system call to the record, with this process as the caller.

use super::*;
use hither_vfs::{Attr, Attrs, Fh, FileKind, Node, Stop, Time, Validity};

fn node(fileid: u64) -> Node {
    let kind = if fileid == 9 { FileKind::Regular } else { FileKind::Directory };
    let attr = Attr {
        kind,
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size_bytes: 10,
        used_bytes: 0,
        fsid: (1, 1),
        fileid,
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
        change: fileid,
    };
    let fh = Fh(Bytes::copy_from_slice(&fileid.to_be_bytes()));
    Node { fh, attrs: Attrs { attr, valid: Validity::Lease, asked: Instant::now() } }
}

fn name(n: &str) -> Name {
    Name::new(n.as_bytes().to_vec()).unwrap()
}

fn root() -> Arc<Cred> {
    Arc::new(Cred::root())
}

/// A thread that waits in an open of a FIFO, which is a system call with a path.
struct Waiting {
    tid: u32,
    fifo: std::path::PathBuf,
    thread: std::thread::JoinHandle<()>,
}

impl Waiting {
    fn in_open(n: u32) -> Self {
        let dir = std::env::temp_dir().join(format!("hither-hint-{}-{n}/b", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let fifo = dir.join("f");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let path = fifo.clone();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            drop(std::fs::File::open(path).unwrap());
        });
        let tid = told.recv().unwrap();
        let opens = |call: SystemCall| calls::shape(call.number).is_some_and(|s| s.purpose != Purpose::Other);
        while !SystemCall::of(tid).is_ok_and(opens) {
            std::thread::yield_now();
        }
        Self { tid, fifo, thread }
    }

    fn end(self) {
        drop(std::fs::File::options().write(true).open(&self.fifo).unwrap());
        self.thread.join().unwrap();
        std::fs::remove_dir_all(self.fifo.parent().unwrap().parent().unwrap()).unwrap();
    }
}

fn hints_for(w: &Waiting) -> (Hints, Inodes, Name) {
    let above = w.fifo.parent().unwrap().parent().unwrap();
    let dir = name(above.file_name().unwrap().to_str().unwrap());
    (Hints::new(true, 2, above.parent().unwrap()), Inodes::new(&node(1), None), dir)
}

/// All names of a path are walked at once, and the lookups and the open of the call use the record.
#[test]
fn record_follows_call_to_open() {
    let w = Waiting::in_open(1);
    let (hints, inodes, dir) = hints_for(&w);
    let (began, cred, asked) = (Instant::now(), root(), inodes.clock.now());
    let hint = hints.read(w.tid, 1, &dir, &inodes, began).unwrap();
    assert_eq!(hint.names, [dir.clone(), name("b"), name("f")]);
    assert!(hint.whole && hint.intent.reads && hint.intent.opens);
    let want = hint.want(100);
    assert_eq!((want.read_bytes, want.listing_bytes, want.access), (100, 0, Access::empty()));
    let mut trail = WalkResult::new(vec![node(7), node(8), node(9)], Stop::Complete);
    trail.along.first = Some(hither_vfs::Read { data: Default::default(), eof: true });
    hints.walked(w.tid, 1, &cred, hint, &trail, asked);
    hints.advance(w.tid, 1, &dir, 70);
    // A lookup in another directory, of another name, or with another identity is not the next one.
    let other = Cred { uid: 5, ..Cred::root() };
    assert!(hints.expected(w.tid, 1, &name("b"), &cred).is_none());
    assert!(hints.expected(w.tid, 70, &name("f"), &cred).is_none());
    assert!(hints.expected(w.tid, 70, &name("b"), &other).is_none());
    for (at, part, found, fileid) in [(70, "b", 80, 8), (80, "f", 90, 9)] {
        let hint = hints.expected(w.tid, at, &name(part), &cred).unwrap();
        assert_eq!(hint.began, began);
        let Some((WalkedObject::Node(known), _)) = &hint.known else { panic!("{part} is known") };
        assert_eq!(known.attrs.attr.fileid, fileid);
        assert_eq!(known.attrs.valid, Validity::Once, "a lease may be withdrawn meanwhile");
        hints.advance(w.tid, at, &name(part), found);
    }
    let file = inodes.remember(None, &node(9)).unwrap();
    // The inode at the end of the track has the number of the answer.
    hints.with(w.tid, |record| {
        assert!(!record.tracks[0].ends_at(&file) && record.tracks[0].is_at(90));
        true
    });
    let stats = hints.stats();
    assert_eq!((stats.used, stats.ahead, stats.answered, stats.wrong), (1, 2, 2, 0));
    assert!(hints.opening(w.tid, &file, &cred).is_none(), "another inode");
    assert!(hints.expected(w.tid, 80, &name("f"), &cred).is_none(), "the record ended");
    w.end();
}

/// An open is as fresh as the first lookup of its call. It must have the same caller, call and
/// identity.
#[test]
fn open_is_fresh_as_first_lookup() {
    let w = Waiting::in_open(2);
    let (hints, inodes, dir) = hints_for(&w);
    let (began, cred, asked) = (Instant::now(), root(), inodes.clock.now());
    let file = inodes.remember(None, &node(9)).unwrap();
    let walk = |of: &Cred| {
        let hint = hints.read(w.tid, 1, &dir, &inodes, began).unwrap();
        let trail = WalkResult::new(vec![node(7), node(8), node(9)], Stop::Complete);
        hints.walked(w.tid, 1, &Arc::new(of.clone()), hint, &trail, asked);
        hints.advance(w.tid, 1, &dir, 70);
    };
    // The kernel had cached the other names.
    walk(&cred);
    assert_eq!(hints.opening(w.tid, &file, &cred).unwrap().began, began);
    assert!(hints.opening(w.tid, &file, &cred).is_none(), "once");
    assert_eq!(hints.stats().wrong, 1, "no name looked up in advance was used");
    walk(&Cred { uid: 5, ..Cred::root() });
    assert!(hints.opening(w.tid, &file, &cred).is_none(), "another identity");
    walk(&cred);
    hints.over(w.tid);
    assert!(hints.opening(w.tid, &file, &cred).is_none(), "another request came between");
    walk(&cred);
    let tid = w.tid;
    w.end();
    assert!(hints.opening(tid, &file, &cred).is_none(), "the caller is in no call any more");
}

/// Missed hints are counted by reason, and concurrent readers are limited.
#[test]
fn missed_hints_are_counted() {
    let w = Waiting::in_open(3);
    let (hints, inodes, dir) = hints_for(&w);
    let now = Instant::now();
    let missed = |why: &str| hints.stats().missed.get(why).copied().unwrap_or(0);
    assert!(hints.read(w.tid, 1, &name("elsewhere"), &inodes, now).is_none());
    assert!(hints.read(0, 1, &dir, &inodes, now).is_none());
    assert!(hints.read(i32::MAX as u32, 1, &dir, &inodes, now).is_none());
    for why in ["no-match", "unseen", "unreadable"] {
        assert_eq!(missed(why), 1, "{why}");
    }
    let readers = [hints.reading().unwrap(), hints.reading().unwrap()];
    assert!(hints.read(w.tid, 1, &dir, &inodes, now).is_none());
    assert_eq!(missed("busy"), 1);
    drop(readers);
    assert!(hints.read(w.tid, 1, &dir, &inodes, now).is_some());
    assert!(Hints::new(false, 2, std::path::Path::new("/")).read(w.tid, 1, &dir, &inodes, now).is_none());
    w.end();
}

/// A blocked reader is replaced once. A blocked thread that reads no requests is not replaced.
#[tokio::test(start_paused = true)]
async fn blocked_reader_is_replaced_once() {
    let hints = Hints::new(true, 2, std::path::Path::new("/"));
    let reading = hints.reading().unwrap();
    tokio::time::advance(2 * STUCK).await;
    assert_eq!(hints.write_off(), 0);
    drop(reading);
    reads_requests();
    let reading = hints.reading().unwrap();
    assert_eq!(hints.write_off(), 0);
    tokio::time::advance(2 * STUCK).await;
    assert_eq!((hints.write_off(), hints.write_off()), (1, 0));
    drop(reading);
    assert_eq!((written_off(), written_off()), (true, false));
    drop(hints.reading().unwrap());
    assert!(!written_off());
}

/// The flags of an open decide which data is fetched with its path.
#[test]
fn open_flags_select_prefetch() {
    let of = |flags: i32| Intent::of_open(flags as u64);
    let reads = Intent { reads: true, opens: true, ..Intent::default() };
    for flags in [0, libc::O_CLOEXEC, libc::O_NOFOLLOW, libc::O_NONBLOCK] {
        assert_eq!(of(flags), reads, "{flags:o}");
    }
    let makes = Intent { makes_last: true, ..reads };
    assert_eq!(of(libc::O_CREAT), makes);
    assert_eq!(of(libc::O_DIRECT), Intent { reads: false, ..reads });
    assert_eq!(of(libc::O_CREAT | libc::O_EXCL), Intent { reads: false, ..makes });
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_TRUNC, libc::O_PATH, libc::O_PATH | libc::O_DIRECTORY]
    {
        assert_eq!(of(flags), Intent::default(), "{flags:o}");
    }
    assert_eq!(of(libc::O_DIRECTORY), Intent { rights: Access::READ, ..Intent::default() });
    assert_eq!(of(libc::O_TMPFILE | libc::O_RDWR), Intent::default());
    assert_eq!(Intent::rights(libc::X_OK as u64), Access::LOOKUP | Access::EXECUTE);
    assert_eq!(
        Intent::rights((libc::R_OK | libc::W_OK) as u64),
        Access::READ | Access::MODIFY | Access::EXTEND
    );
    assert_eq!(Intent::rights(0), Access::empty());
}
