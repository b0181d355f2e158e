//! Tests with a scripted server on virtual time: lost messages, busy servers, malformed replies.

mod round_trips;
pub(super) mod server;

use super::V3;
use bytes::Bytes;
use hither_proto::nfs3::*;
use hither_proto::xdr::{Chain, Opaque};
use hither_rpc::{Mode, sim};
use hither_vfs::{
    Create, Cred, Data, DirPage, File, OpenAccess, OpenHow, Opened, PathRef, RenameFlags, RequestContext,
    Result, SetAttr, Stability, Vfs, WalkRequest,
};
use server::{Act, Server, cx, mount, name, root, wire};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const RW: OpenHow = OpenHow {
    access: OpenAccess::all(),
    create: Create::No,
    truncate: false,
    execute: false,
    first_bytes: 0,
    known: None,
};

async fn hard(server: &Arc<Server>) -> V3 {
    mount(server, Mode::Hard, |_| {}).await
}

async fn open(fs: &V3, file: &str) -> Result<Opened> {
    fs.open(&cx(), PathRef::name(&root(), &name(file)), &RW).await
}

fn at(o: &Opened) -> File<'_> {
    File { fh: &o.node.fh, open: Some(o.open) }
}

fn data(b: &[u8]) -> Data {
    Bytes::copy_from_slice(b).into()
}

fn errno<T>(r: Result<T>) -> i32 {
    r.err().expect("this must fail").errno
}

/// A lost call or reply is sent again after `timeo`, with the same xid.
/// Promise: 15
#[tokio::test(start_paused = true)]
async fn retransmission_keeps_xid() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", b"");
    server.script(|_, n| if n == 1 { Act::Ignore } else { Act::Serve });
    let start = Instant::now();
    fs.unlink(&cx(), &root(), &name("a"), None).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(10));
    let got = server.received();
    assert_eq!(got.len(), 2);
    assert_eq!(got[0].xid, got[1].xid);
}

/// A server without a reply cache executes a retransmitted REMOVE twice. The program sees its
/// ENOENT, as with the Linux client.
/// Promise: 15
#[tokio::test(start_paused = true)]
async fn retransmitted_remove_returns_enoent() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", b"");
    server.script(|_, n| if n == 1 { Act::ServeAndLose } else { Act::Serve });
    assert_eq!(errno(fs.unlink(&cx(), &root(), &name("a"), None).await), libc::ENOENT);
}

/// After a cut the client reconnects and repeats the call, without waiting for a timeout.
#[tokio::test(start_paused = true)]
async fn calls_survive_a_cut_connection() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.script(|_, n| if n == 1 { Act::Ignore } else { Act::Serve });
    let net = server.net.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        net.cut(sim::Cut::Reset);
    });
    let start = Instant::now();
    fs.mkdir(&cx(), &root(), &name("d"), &SetAttr::default()).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
}

/// After JUKEBOX the client repeats the call with growing intervals.
#[tokio::test(start_paused = true)]
async fn a_busy_server_is_asked_again() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.script(|_, n| match n {
        ..8 => Act::Say(Reply3::Getattr(Res::Err(Nfsstat3::JUKEBOX, ()))),
        _ => Act::Serve,
    });
    let start = Instant::now();
    fs.root(&cx()).await.unwrap();
    assert_eq!(server.called().len(), 8);
    assert!((10..20).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

/// Ctrl-C ends the wait for a busy or dead server at once. A call that changes something continues.
#[tokio::test(start_paused = true)]
async fn interrupted_callers_leave_at_once() {
    let server = Server::new();
    let fs = hard(&server).await;
    let interrupted = || {
        let cx = cx();
        let token = cx.cancel.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            token.cancel();
        });
        cx
    };
    server.script(|_, _| Act::Say(Reply3::Getattr(Res::Err(Nfsstat3::JUKEBOX, ()))));
    assert_eq!(errno(fs.root(&interrupted()).await), libc::EINTR);
    server.script(|_, _| Act::Ignore);
    let start = Instant::now();
    assert_eq!(errno(fs.root(&interrupted()).await), libc::EINTR);
    assert_eq!(errno(fs.mkdir(&interrupted(), &root(), &name("d"), &SetAttr::default()).await), libc::EINTR);
    assert_eq!(start.elapsed().as_secs(), 4);
    server.script(|_, _| Act::Serve);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(server.content("d").is_some(), "the directory is made all the same");
}

/// The deadline of a caller ends its calls.
#[tokio::test(start_paused = true)]
async fn deadlines_end_calls() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.script(|_, _| Act::Ignore);
    let cx = RequestContext { deadline: Some(Instant::now() + Duration::from_secs(3)), ..cx() };
    assert_eq!(errno(fs.root(&cx).await), libc::ETIMEDOUT);
}

/// nfs(5): after `retrans` retries `soft` gives EIO, `softerr` ETIMEDOUT, `hard` nothing.
#[tokio::test(start_paused = true)]
async fn soft_mounts_give_up() {
    for (mode, wanted) in [(Mode::Soft, libc::EIO), (Mode::Softerr, libc::ETIMEDOUT)] {
        let server = Server::new();
        let fs = mount(&server, mode, |_| {}).await;
        server.script(|_, _| Act::Ignore);
        let start = Instant::now();
        assert_eq!(errno(fs.root(&cx()).await), wanted);
        assert_eq!(start.elapsed().as_secs(), 30);
    }
    let server = Server::new();
    let fs = hard(&server).await;
    server.script(|_, _| Act::Ignore);
    assert!(tokio::time::timeout(Duration::from_secs(100_000), fs.root(&cx())).await.is_err());
}

/// Calls carry the caller's uid, gid and first 16 groups.
/// Promise: 21
#[tokio::test(start_paused = true)]
async fn callers_are_named_in_their_calls() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.script(|_, _| Act::Serve);
    let groups = (100..120).collect();
    fs.root(&RequestContext::new(Arc::new(Cred { uid: 7, gid: 8, groups }))).await.unwrap();
    let auth = server.received()[0].auth.clone().unwrap();
    assert_eq!((auth.uid, auth.gid, &auth.machinename[..]), (7, 8, &b"client"[..]));
    assert_eq!(auth.gids.0, (100..116).collect::<Vec<_>>());
}

/// Number of calls. Opening a known name: LOOKUP and ACCESS. Writing and closing: WRITE and COMMIT.
/// Reading needs no check. A server that writes through needs no COMMIT.
#[tokio::test(start_paused = true)]
async fn no_call_is_needless() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", b"hello");
    server.script(|_, _| Act::Serve);
    let o = open(&fs, "a").await.unwrap();
    assert_eq!(server.called(), ["LOOKUP", "ACCESS"]);
    fs.read(&cx(), at(&o), 0, 100).await.unwrap();
    fs.write(&cx(), at(&o), 0, data(b"world"), Stability::Unstable).await.unwrap();
    fs.commit(&cx(), at(&o)).await.unwrap();
    fs.close(&cx(), &o.node.fh, o.open).await.unwrap();
    assert_eq!(server.called()[2..], ["READ", "WRITE", "COMMIT"]);
    server.write_through();
    server.script(|_, _| Act::Serve);
    let o = open(&fs, "a").await.unwrap();
    fs.write(&cx(), at(&o), 0, data(b"World"), Stability::Unstable).await.unwrap();
    fs.close(&cx(), &o.node.fh, o.open).await.unwrap();
    assert_eq!(server.called(), ["LOOKUP", "ACCESS", "WRITE"]);
}

/// The client requests optional attributes and filehandles that the server omits.
#[tokio::test(start_paused = true)]
async fn omitted_attributes_are_requested() {
    let server = Server::new();
    server.bare();
    let fs = hard(&server).await;
    let how = OpenHow { create: Create::IfMissing(SetAttr::default()), ..RW };
    let o = fs.open(&cx(), PathRef::name(&root(), &name("new")), &how).await.unwrap();
    assert!(o.created);
    fs.write(&cx(), at(&o), 0, data(b"1234"), Stability::Unstable).await.unwrap();
    assert_eq!(fs.getattr(&cx(), at(&o)).await.unwrap().attr.size_bytes, 4);
    let exclusive = OpenHow { create: Create::Exclusive(SetAttr::default()), ..RW };
    let x = fs.open(&cx(), PathRef::name(&root(), &name("x")), &exclusive).await.unwrap();
    assert_eq!(x.node.attrs.attr.size_bytes, 0);
    let change = fs.unlink(&cx(), &root(), &name("x"), None).await.unwrap();
    assert!(!change.atomic);
}

/// The server restarts between WRITE and COMMIT and loses the bytes. The client writes them again,
/// and readers see them in between.
/// Promise: 2
#[tokio::test(start_paused = true)]
async fn lost_writes_are_written_again() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", b"");
    let o = open(&fs, "a").await.unwrap();
    fs.write(&cx(), at(&o), 2, data(&[7; 10_000]), Stability::Unstable).await.unwrap();
    server.restart(Vec::clear);
    // The restart is not visible on the same connection. A cut makes it visible.
    server.net.cut(sim::Cut::Reset);
    server.script(|call, _| if matches!(call, Call3::Commit(_)) { Act::Ignore } else { Act::Serve });
    let read = fs.read(&cx(), at(&o), 0, 20_000).await.unwrap();
    let read = read.data.into_bytes();
    assert!(read.len() == 10_002 && read[2..] == [7; 10_000], "{} bytes", read.len());
    assert_eq!(fs.getattr(&cx(), at(&o)).await.unwrap().attr.size_bytes, 10_002);
    server.script(|_, _| Act::Serve);
    fs.commit(&cx(), at(&o)).await.unwrap();
    assert!(server.content("a").unwrap()[2..] == [7; 10_000]);
    fs.close(&cx(), &o.node.fh, o.open).await.unwrap();
}

/// The server refuses the bytes for good between WRITE and COMMIT. fsync reports the error once,
/// then close succeeds.
/// Promise: 3
#[tokio::test(start_paused = true)]
async fn late_errors_reach_the_program_once() {
    let (server, fs, o) = refused_commit(Nfsstat3::ACCES).await;
    assert_eq!(errno(fs.commit(&cx(), at(&o)).await), libc::EACCES);
    fs.commit(&cx(), at(&o)).await.unwrap();
    fs.close(&cx(), &o.node.fh, o.open).await.unwrap();
    assert_eq!(server.called(), ["WRITE", "COMMIT"]);
}

/// The disk fills up between WRITE and COMMIT. Each fsync reports that. When the disk has room, the
/// next fsync sends the bytes again.
/// Promise: 3
#[tokio::test(start_paused = true)]
async fn full_disk_at_commit_loses_nothing() {
    let (server, fs, o) = refused_commit(Nfsstat3::NOSPC).await;
    for _ in 0..2 {
        assert_eq!(errno(fs.commit(&cx(), at(&o)).await), libc::ENOSPC);
    }
    server.script(|_, _| Act::Serve);
    fs.commit(&cx(), at(&o)).await.unwrap();
    fs.close(&cx(), &o.node.fh, o.open).await.unwrap();
    assert_eq!(server.called(), ["COMMIT", "WRITE", "COMMIT"]);
    assert_eq!(server.content("a").unwrap(), b"x");
}

/// An open file with one written byte, at a server that refuses each COMMIT.
async fn refused_commit(status: Nfsstat3) -> (Arc<Server>, V3, Opened) {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", b"");
    let o = open(&fs, "a").await.unwrap();
    let refused = move || Reply3::Commit(Res::Err(status, WccData::default()));
    server.script(move |call, _| match call {
        Call3::Commit(_) => Act::Say(refused()),
        _ => Act::Serve,
    });
    fs.write(&cx(), at(&o), 0, data(b"x"), Stability::Unstable).await.unwrap();
    (server, fs, o)
}

/// Times and modes are set after all writes are stable, because a later second write would need the
/// old mode and change the time. A change of length needs no COMMIT.
#[tokio::test(start_paused = true)]
async fn attributes_are_set_after_writes() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", b"");
    let o = open(&fs, "a").await.unwrap();
    server.script(|_, _| Act::Serve);
    fs.write(&cx(), at(&o), 0, data(b"12345"), Stability::Unstable).await.unwrap();
    let cut = SetAttr { size_bytes: Some(3), ..SetAttr::default() };
    fs.setattr(&cx(), at(&o), &cut).await.unwrap();
    fs.setattr(&cx(), at(&o), &SetAttr { mode: Some(0), ..SetAttr::default() }).await.unwrap();
    fs.close(&cx(), &o.node.fh, o.open).await.unwrap();
    assert_eq!(server.called(), ["WRITE", "SETATTR", "COMMIT", "SETATTR"]);
}

/// `sync` makes every WRITE stable.
/// Promise: 4
#[tokio::test(start_paused = true)]
async fn sync_mounts_write_through() {
    let server = Server::new();
    let fs = mount(&server, Mode::Hard, |o| o.sync = true).await;
    server.put("a", b"");
    let o = open(&fs, "a").await.unwrap();
    server.script(|call, _| {
        if let Call3::Write(w) = call {
            assert_eq!(w.stable, StableHow::FILE_SYNC);
        }
        Act::Serve
    });
    fs.write(&cx(), at(&o), 0, data(b"x"), Stability::Unstable).await.unwrap();
    fs.close(&cx(), &o.node.fh, o.open).await.unwrap();
    assert_eq!(server.called(), ["WRITE"]);
}

/// An exclusive CREATE with a lost reply is repeated with the same verifier. A server without
/// exclusive creation gets a guarded one.
/// Promise: 12
#[tokio::test(start_paused = true)]
async fn exclusive_creation() {
    let server = Server::new();
    let fs = hard(&server).await;
    let exclusive = OpenHow { create: Create::Exclusive(SetAttr::default()), ..RW };
    let mut verifiers = Vec::new();
    server.script(move |call, n| match call {
        Call3::Create(c) => {
            let Createhow3::Exclusive(v) = c.how else { panic!("not exclusive: {:?}", c.how) };
            verifiers.push(v);
            assert!(verifiers.iter().all(|w| *w == v));
            if n == 1 { Act::Ignore } else { Act::Serve }
        }
        _ => Act::Serve,
    });
    fs.open(&cx(), PathRef::name(&root(), &name("a")), &exclusive).await.unwrap();
    assert_eq!(server.called(), ["CREATE", "CREATE", "SETATTR"]);
    server.script(|call, _| match call {
        Call3::Create(CreateArgs { how: Createhow3::Exclusive(_), .. }) => {
            Act::Say(Reply3::Create(Res::Err(Nfsstat3::NOTSUPP, WccData::default())))
        }
        _ => Act::Serve,
    });
    fs.open(&cx(), PathRef::name(&root(), &name("b")), &exclusive).await.unwrap();
    assert_eq!(errno(fs.open(&cx(), PathRef::name(&root(), &name("b")), &exclusive).await), libc::EEXIST);
}

/// An existing name is opened, not created, even where the caller may not create files.
#[tokio::test(start_paused = true)]
async fn failed_creation_opens_existing_file() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", b"theirs");
    let how = OpenHow { create: Create::IfMissing(SetAttr::default()), ..RW };
    let open = async |n: &str| fs.open(&cx(), PathRef::name(&root(), &name(n)), &how).await;
    server.script(|_, _| Act::Serve);
    let o = open("a").await.unwrap();
    assert!(!o.created);
    assert_eq!(o.node.attrs.attr.size_bytes, 6);
    assert_eq!(server.called(), ["CREATE", "LOOKUP", "ACCESS"]);
    for status in [Nfsstat3::ROFS, Nfsstat3::ACCES] {
        server.script(move |call, _| match call {
            Call3::Create(_) => Act::Say(Reply3::Create(Res::Err(status, WccData::default()))),
            _ => Act::Serve,
        });
        assert!(!open("a").await.unwrap().created);
        assert_eq!(errno(open("missing").await), crate::error::nfs3(status).errno);
    }
    // Another client repeatedly creates and removes the name.
    server.script(|call, _| match call {
        Call3::Create(_) => Act::Say(Reply3::Create(Res::Err(Nfsstat3::EXIST, WccData::default()))),
        _ => Act::Serve,
    });
    assert_eq!(errno(open("missing").await), libc::EEXIST);
    // The creation of an absent name takes one call.
    server.script(|_, _| Act::Serve);
    assert!(open("new").await.unwrap().created);
    assert_eq!(server.called(), ["CREATE"]);
}

/// Short replies are joined. An empty reply is the end of the file. A reply longer than requested
/// is an error.
#[tokio::test(start_paused = true)]
async fn odd_read_replies() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", &[5; 100]);
    let o = open(&fs, "a").await.unwrap();
    let say = |n: usize, eof| {
        let data = Opaque::copy(&vec![5; n]);
        Act::Say(Reply3::Read(Res::Ok(ReadOk { file_attributes: None, count: n as u32, eof, data })))
    };
    server.script(move |_, n| say(if n < 4 { 10 } else { 0 }, false));
    let read = fs.read(&cx(), at(&o), 0, 100).await.unwrap();
    assert_eq!((read.data.len(), read.eof), (30, true));
    server.script(move |_, _| say(11, false));
    assert_eq!(errno(fs.read(&cx(), at(&o), 0, 10).await), libc::EIO);
    // Several concurrent parts; the file ends in the second.
    server.put("a", &[6; 5000]);
    server.script(|_, _| Act::Serve);
    let read = fs.read(&cx(), at(&o), 0, 12_000).await.unwrap();
    assert_eq!((read.data.len(), read.eof), (5000, true));
}

/// The server claims to have written more bytes than sent, or none.
#[tokio::test(start_paused = true)]
async fn odd_write_replies() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", b"");
    let o = open(&fs, "a").await.unwrap();
    for (count, wanted) in [(u32::MAX, Ok(4)), (0, Err(libc::EIO))] {
        let ok =
            WriteOk { file_wcc: WccData::default(), count, committed: StableHow::FILE_SYNC, verf: [0; 8] };
        server.script(move |_, _| Act::Say(Reply3::Write(Res::Ok(ok))));
        let wrote = fs.write(&cx(), at(&o), 0, data(b"1234"), Stability::Unstable).await;
        assert_eq!(wrote.map(|w| w.bytes).map_err(|e| e.errno), wanted);
    }
}

type Entries = Vec<(&'static [u8], u64)>;

fn page(entries: Entries, eof: bool) -> Act {
    let entry = |(name, cookie): (&[u8], u64)| Entry3 { fileid: 1, name: Opaque::copy(name), cookie };
    Act::Say(Reply3::Readdir(Res::Ok(ReaddirOk {
        dir_attributes: None,
        cookieverf: [1; 8],
        entries: Chain(entries.into_iter().map(entry).collect()),
        eof,
    })))
}

async fn list(fs: &V3, cookie: u64) -> Result<DirPage> {
    fs.readdir(&cx(), &root(), cookie, [0; 8], 4096, false).await
}

/// A listing that would never end is an error, not a loop.
#[tokio::test(start_paused = true)]
async fn hostile_directories_end() {
    let server = Server::new();
    let fs = hard(&server).await;
    let hostile: [fn() -> Entries; 4] = [
        // No entries and no end.
        Vec::new,
        // The cookie that was sent.
        || vec![(b"a", 5), (b"b", 9)],
        // The same cookie twice.
        || vec![(b"a", 10), (b"b", 11), (b"c", 10)],
        // The last cookie is the sent cookie.
        || vec![(b"a", 10), (b"b", 5)],
    ];
    for entries in hostile {
        server.script(move |_, _| page(entries(), false));
        assert_eq!(errno(list(&fs, 5).await), libc::EIO);
        assert_eq!(server.called().len(), 1);
    }
    // Pages without a usable entry, with new cookies each time.
    server.script(move |_, n| page(vec![(b".", n as u64 * 2 + 10), (b"x/y", n as u64 * 2 + 11)], false));
    assert_eq!(errno(list(&fs, 5).await), libc::EIO);
    assert!(server.called().len() <= 64);
}

/// Invalid names are omitted, and the other entries are listed.
#[tokio::test(start_paused = true)]
async fn impossible_names_are_left_out() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.script(|_, _| {
        page(
            vec![
                (b".", 1),
                (b"..", 2),
                (b"", 3),
                (b"a/b", 4),
                (b"nul\0", 5),
                (b"good", 6),
                (&[b'x'; 300], 7),
            ],
            true,
        )
    });
    let got = list(&fs, 0).await.unwrap();
    assert!(got.eof);
    assert_eq!(got.entries.len(), 1);
    assert_eq!(got.entries[0].name, name("good"));
}

/// Without READDIRPLUS the client uses READDIR, and uses it directly the next time. Requests for
/// too small pages grow. A verifier that the server no longer accepts is omitted.
#[tokio::test(start_paused = true)]
async fn listings_adapt_to_the_server() {
    let server = Server::new();
    let fs = hard(&server).await;
    let unsupported = || Act::Say(Reply3::Readdirplus(Res::Err(Nfsstat3::NOTSUPP, None)));
    server.script(move |call, _| match call {
        Call3::Readdirplus(_) => unsupported(),
        _ => page(vec![(b"a", 1)], true),
    });
    for _ in 0..2 {
        let got = fs.readdir(&cx(), &root(), 0, [0; 8], 4096, true).await.unwrap();
        assert_eq!(got.entries.len(), 1);
    }
    assert_eq!(server.called(), ["READDIRPLUS", "READDIR", "READDIR"]);
    server.script(|call, _| match call {
        Call3::Readdir(r) if r.cookieverf != [0; 8] => {
            Act::Say(Reply3::Readdir(Res::Err(Nfsstat3::BAD_COOKIE, None)))
        }
        _ => page(vec![(b"a", 9)], true),
    });
    let got = fs.readdir(&cx(), &root(), 5, [3; 8], 4096, false).await.unwrap();
    assert_eq!(got.entries.len(), 1);
}

/// A removal while the server makes a page does not end the listing. The page is requested again,
/// finally without attributes.
#[tokio::test(start_paused = true)]
async fn removals_do_not_end_a_listing() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.script(|call, n| match call {
        Call3::Readdirplus(_) => Act::Say(Reply3::Readdirplus(Res::Err(Nfsstat3::NOENT, None))),
        Call3::Readdir(_) if n < 4 => Act::Say(Reply3::Readdir(Res::Err(Nfsstat3::NOENT, None))),
        _ => page(vec![(b"a", 1)], true),
    });
    let got = fs.readdir(&cx(), &root(), 0, [0; 8], 4096, true).await.unwrap();
    assert_eq!((got.entries.len(), got.eof), (1, true));
    server.script(|_, _| Act::Say(Reply3::Readdir(Res::Err(Nfsstat3::NOENT, None))));
    assert_eq!(errno(list(&fs, 0).await), libc::EIO, "never the end of a directory that has none");
    assert!(server.called().len() <= 9);
}

/// Malformed replies give errors.
#[tokio::test(start_paused = true)]
async fn garbage_is_an_error() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", b"content");
    let o = open(&fs, "a").await.unwrap();
    let garbage = [wire(&[]), wire(&[0]), wire(&[0, 1, 2, 3]), wire(&[u32::MAX; 40]), wire(&[0; 200])];
    for bytes in garbage {
        let b = bytes.clone();
        server.script(move |_, _| Act::Bytes(b.clone()));
        assert!(fs.root(&cx()).await.is_err(), "{bytes:?}");
        assert!(list(&fs, 0).await.is_err());
        assert!(fs.walk(&cx(), PathRef::name(&root(), &name("a")), WalkRequest::default()).await.is_err());
        assert!(fs.readlink(&cx(), &root()).await.is_err());
        assert!(fs.read(&cx(), at(&o), 0, 10).await.is_err());
        assert!(fs.write(&cx(), at(&o), 0, data(b"x"), Stability::Unstable).await.is_err());
        assert!(fs.mkdir(&cx(), &root(), &name("d"), &SetAttr::default()).await.is_err());
        assert!(fs.statfs(&cx(), &root()).await.is_err());
    }
}

/// A removed open file gets a hidden name, even when the caller does not know the object of the
/// name. Without an open file neither REMOVE nor RENAME needs a LOOKUP.
/// Promise: 13
#[tokio::test(start_paused = true)]
async fn unlink_hides_open_file() {
    let server = Server::new();
    let fs = hard(&server).await;
    server.put("a", b"alive");
    server.put("b", b"other");
    let o = open(&fs, "a").await.unwrap();
    fs.unlink(&cx(), &root(), &name("a"), None).await.unwrap();
    fs.unlink(&cx(), &root(), &name("b"), None).await.unwrap();
    assert!(server.content("a").is_none() && server.content("b").is_none());
    assert_eq!(server.called().iter().filter(|c| **c == "RENAME").count(), 1);
    fs.close(&cx(), &o.node.fh, o.open).await.unwrap();
    assert_eq!(server.called().last(), Some(&"REMOVE"));
    // No file is open, so no LOOKUP is needed.
    server.put("c", b"");
    server.script(|_, _| Act::Serve);
    let (c, d) = (name("c"), name("d"));
    fs.rename(&cx(), (&root(), &c), (&root(), &d), None, RenameFlags::empty()).await.unwrap();
    fs.unlink(&cx(), &root(), &d, None).await.unwrap();
    assert_eq!(server.called(), ["RENAME", "REMOVE"]);
}

/// An open file that is replaced gets its hidden name before it loses the other name. The other
/// name is never absent. When the server makes no second names, the file gets its name back only
/// when no other file has it.
/// Promise: 13
#[tokio::test(start_paused = true)]
async fn replaced_name_is_never_absent() {
    let server = Server::new();
    let fs = hard(&server).await;
    let rename = async || {
        fs.rename(&cx(), (&root(), &name("a")), (&root(), &name("b")), None, RenameFlags::empty()).await
    };
    server.put("a", b"new");
    server.put("b", b"old");
    let o = open(&fs, "b").await.unwrap();
    let linked = |link: Res<_, _>| Act::Say(Reply3::Link(link));
    let wcc = WccData::default();
    let (link_wcc, rename_wcc) =
        (LinkWcc { file_attributes: None, linkdir_wcc: wcc }, RenameWcc { fromdir_wcc: wcc, todir_wcc: wcc });
    server.script(move |call, n| match call {
        Call3::Link(_) if n == 1 => Act::Ignore,
        Call3::Link(_) => linked(Res::Ok(link_wcc)),
        _ => Act::Serve,
    });
    rename().await.unwrap();
    assert_eq!(server.called(), ["LOOKUP", "LOOKUP", "LINK", "LINK", "RENAME"]);
    assert_eq!(server.content("b").unwrap(), b"new");
    fs.close(&cx(), &o.node.fh, o.open).await.unwrap();
    assert_eq!(server.called().last(), Some(&"REMOVE"));

    for executed in [false, true] {
        server.script(|_, _| Act::Serve);
        server.put("a", b"newer");
        let o = open(&fs, "b").await.unwrap();
        server.script(move |call, n| match call {
            Call3::Link(_) => linked(Res::Err(Nfsstat3::NOTSUPP, link_wcc)),
            // A repetition that the server does not recognise.
            Call3::Rename(_) if n == 2 && executed => Act::ServeAndLose,
            Call3::Rename(_) if n == 2 => Act::Say(Reply3::Rename(Res::Err(Nfsstat3::IO, rename_wcc))),
            _ => Act::Serve,
        });
        assert!(rename().await.is_err());
        let newer = Some(b"newer".to_vec());
        let (from, to) = if executed { (None, newer) } else { (newer, Some(b"new".to_vec())) };
        assert_eq!((server.content("a"), server.content("b")), (from, to));
        fs.close(&cx(), &o.node.fh, o.open).await.unwrap();
    }
}

/// An open file was hidden for a rename that failed, and cannot get its name back. Its close does
/// not remove it.
#[tokio::test(start_paused = true)]
async fn a_rename_that_fails_removes_nothing() {
    let server = Server::new();
    let fs = hard(&server).await;
    ["b", "x"].iter().for_each(|file| server.put(file, file.as_bytes()));
    let b = open(&fs, "b").await.unwrap();
    let mut renames = 0;
    server.script(move |call, _| {
        let wcc = WccData::default();
        match call {
            Call3::Link(_) => {
                let link = LinkWcc { file_attributes: None, linkdir_wcc: wcc };
                return Act::Say(Reply3::Link(Res::Err(Nfsstat3::NOSPC, link)));
            }
            Call3::Rename(_) => renames += 1,
            _ => return Act::Serve,
        }
        match renames {
            1 => Act::Serve,
            _ => {
                let refused = RenameWcc { fromdir_wcc: wcc, todir_wcc: wcc };
                Act::Say(Reply3::Rename(Res::Err(Nfsstat3::ACCES, refused)))
            }
        }
    });
    let (from, to) = (name("x"), name("b"));
    let renamed = fs.rename(&cx(), (&root(), &from), (&root(), &to), None, RenameFlags::empty()).await;
    assert_eq!(errno(renamed), libc::EACCES);
    assert!(server.content("b").is_none());
    fs.close(&cx(), &b.node.fh, b.open).await.unwrap();
    assert!(
        server.called().contains(&"RENAME") && !server.called().contains(&"REMOVE"),
        "{:?}",
        server.called()
    );
}

/// When the server keeps stamps, an exclusive creation is one CREATE. A repetition that finds its
/// own file succeeds.
/// Promise: 12
#[tokio::test(start_paused = true)]
async fn exclusive_creation_by_stamps() {
    let server = Server::new();
    let fs = hard(&server).await;
    let exclusive = OpenHow { create: Create::Exclusive(SetAttr::default()), ..RW };
    let create = async |file: &str| fs.open(&cx(), PathRef::name(&root(), &name(file)), &exclusive).await;
    server.script(|_, _| Act::Serve);
    create("first").await.unwrap();
    create("second").await.unwrap();
    assert_eq!(server.called(), ["CREATE", "SETATTR", "CREATE"]);
    // The call is executed, and the reply is lost.
    server.script(|call, n| match call {
        Call3::Create(_) if n == 1 => Act::ServeAndLose,
        _ => Act::Serve,
    });
    assert!(create("third").await.unwrap().created);
    assert_eq!(server.called(), ["CREATE", "CREATE", "LOOKUP"]);
    assert_eq!(errno(create("third").await), libc::EEXIST);
}

/// A gateway passes on times of its client: a stamp, the two halves of a verifier, or the times of
/// another file. Only the same stamp or the same whole verifier finds its own file.
/// Promise: 12
#[tokio::test(start_paused = true)]
async fn given_times_identify_one_creation() {
    let server = Server::new();
    let fs = hard(&server).await;
    let create = async |file: &str, atime, mtime| {
        let set = SetAttr { atime, mtime, ..SetAttr::default() };
        let exclusive = OpenHow { create: Create::Exclusive(set), ..RW };
        fs.open(&cx(), PathRef::name(&root(), &name(file)), &exclusive).await.map(drop).map_err(|e| e.errno)
    };
    let to = |secs, nanos| Some(hither_vfs::SetTime::To(hither_vfs::Time { secs, nanos }));
    create("first", None, None).await.unwrap();
    let exists = Err(libc::EEXIST);
    for (n, (times, again, expected)) in [
        ((to(7, 123_456_789), None), (to(7, 123_456_789), None), Ok(())),
        ((to(7, 123_456_789), None), (to(7, 123_456_788), None), exists),
        ((to(7, 123_456_000), None), (to(7, 123_456_000), None), exists),
        ((to(7, 1), to(8, 1)), (to(7, 1), to(8, 1)), Ok(())),
        ((to(7, 1), to(8, 1)), (to(7, 1), to(9, 1)), exists),
        ((to(7, 1), to(8, 1)), (to(6, 1), to(8, 1)), exists),
        ((to(7, 123_456_789), to(8, 5)), (to(7, 123_456_789), to(8, 5)), exists),
        ((to(7, 0), to(8, 0)), (to(7, 0), to(8, 0)), exists),
    ]
    .into_iter()
    .enumerate()
    {
        let file = format!("f{n}");
        create(&file, times.0, times.1).await.unwrap();
        assert_eq!(create(&file, again.0, again.1).await, expected, "{times:?} {again:?}");
    }
}

/// An open with truncation does not truncate without the right to write.
/// Promise: 19
#[tokio::test(start_paused = true)]
async fn a_refused_open_cuts_nothing() {
    let server = Server::new();
    server.put("f", b"data");
    let fs = hard(&server).await;
    let (fh, n) = (open(&fs, "f").await.unwrap().node.fh, name("f"));
    for (access, lacking) in [
        (OpenAccess::all(), hither_proto::nfs3::access::READ),
        (OpenAccess::all(), hither_proto::nfs3::access::MODIFY),
        (OpenAccess::READ, hither_proto::nfs3::access::MODIFY),
        (OpenAccess::WRITE, hither_proto::nfs3::access::MODIFY),
    ] {
        server.script(move |call, _| match call {
            Call3::Access(a) => Act::Say(Reply3::Access(Res::Ok(AccessOk {
                obj_attributes: None,
                access: a.access & !lacking,
            }))),
            _ => Act::Serve,
        });
        for create in [Create::No, Create::IfMissing(SetAttr::default())] {
            for at in [PathRef::fh(&fh), PathRef::name(&root(), &n)] {
                if at.path.is_empty() && create != Create::No {
                    continue;
                }
                let how = OpenHow { access, create: create.clone(), truncate: true, ..RW };
                assert_eq!(errno(fs.open(&cx(), at, &how).await), libc::EACCES);
            }
        }
    }
    assert!(!server.called().contains(&"SETATTR"));
    assert_eq!(server.content("f").unwrap(), b"data");
}

/// The parent is one LOOKUP of `..`. The parent of the root needs no call.
#[tokio::test(start_paused = true)]
async fn parent_sends_dot_dot_lookup() {
    let server = Server::new();
    let fs = hard(&server).await;
    for dir in ["a", "a/b", "a/b/c"] {
        server.put_kind(dir, Ftype3::DIR);
    }
    let before = server.called().len();
    let at = |path: &'static str| hither_vfs::Fh(Bytes::from_static(path.as_bytes()));
    for (dir, above) in [("a/b/c", at("a/b")), ("a/b", at("a")), ("a", root())] {
        let node = fs.parent(&cx(), &at(dir)).await.unwrap();
        assert_eq!((node.fh, node.attrs.attr.kind), (above, hither_vfs::FileKind::Directory));
    }
    assert_eq!(errno(fs.parent(&cx(), &root()).await), libc::ENOENT);
    assert_eq!(server.called()[before..], ["LOOKUP"; 3]);
}

/// The layers above name the files in messages about lost data.
#[tokio::test(start_paused = true)]
async fn messages_have_paths() {
    struct Above;
    impl hither_vfs::Upcalls for Above {
        fn revoke(&self, _: &hither_vfs::Fh) -> hither_vfs::BoxFuture<()> {
            Box::pin(std::future::ready(()))
        }

        fn revoke_all(&self) -> hither_vfs::BoxFuture<()> {
            Box::pin(std::future::ready(()))
        }

        fn path(&self, fh: &hither_vfs::Fh) -> Option<String> {
            Some(format!("path/of/{}", fh.0.escape_ascii()))
        }
    }
    let fs = hard(&Server::new()).await;
    let path = || crate::writes::Wire::path(&*fs.caller, &root());
    assert_eq!(path(), None);
    fs.subscribe(Arc::new(Above));
    assert_eq!(path(), Some(format!("path/of/{}", root().0.escape_ascii())));
}
