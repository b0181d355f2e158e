//! Cost of each call: procedures and round trips on virtual time. Data belongs to the attributes
//! returned with it, even with concurrent changes by other clients.

use super::server::{Act, Server, cx, mount, name, root};
use super::{V3, hard};
use hither_proto::nfs3::*;
use hither_proto::xdr::Opaque;
use hither_rpc::Mode;
use hither_vfs::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The simulated network needs 1 ms each way.
const ROUND_TRIP: Duration = Duration::from_millis(2);

const READ: OpenHow = OpenHow {
    access: OpenAccess::READ,
    create: Create::No,
    truncate: false,
    execute: false,
    first_bytes: 1000,
    known: None,
};

const ALL: WalkRequest =
    WalkRequest { listing_bytes: 32 << 10, read_bytes: 1000, access: Access::all(), target: false };

/// The result of `call`, its procedures in order, and the number of round trips.
async fn cost<T>(server: &Arc<Server>, call: impl Future<Output = T>) -> (T, Vec<&'static str>, u32) {
    server.script(|_, _| Act::Serve);
    cost_as_scripted(server, call).await
}

async fn cost_as_scripted<T>(
    server: &Arc<Server>,
    call: impl Future<Output = T>,
) -> (T, Vec<&'static str>, u32) {
    let start = Instant::now();
    let answer = call.await;
    let trips = start.elapsed().as_micros() as f64 / ROUND_TRIP.as_micros() as f64;
    (answer, server.called(), trips.round() as u32)
}

fn names(path: &str) -> Vec<Name> {
    path.split('/').map(name).collect()
}

async fn walk(fs: &V3, path: &str, want: WalkRequest) -> WalkResult {
    fs.walk(&cx(), PathRef { base: &root(), path: &names(path) }, want).await.unwrap()
}

fn bytes(read: Option<Read>) -> Option<(Vec<u8>, bool)> {
    read.map(|r| (r.data.into_bytes().to_vec(), r.eof))
}

/// A server with `d/e/f`, `d/e/empty` and `d/e/link`.
fn tree() -> Arc<Server> {
    let server = Server::new();
    server.put_kind("d", Ftype3::DIR);
    server.put_kind("d/e", Ftype3::DIR);
    server.put("d/e/f", b"content");
    server.put("d/e/empty", b"");
    server.put_kind("d/e/link", Ftype3::LNK);
    server
}

/// A walk without further data is one LOOKUP and one round trip per name. It stops where the path
/// cannot continue.
#[tokio::test(start_paused = true)]
async fn walk_sends_lookup_per_name() {
    let server = tree();
    let fs = hard(&server).await;
    let (trail, calls, trips) = cost(&server, walk(&fs, "d/e/f", WalkRequest::default())).await;
    assert!(matches!(trail.stop, Stop::Complete) && trail.steps.len() == 3);
    assert_eq!((calls, trips), (vec!["LOOKUP"; 3], 3));
    assert!(trail.along.listing.is_none() && trail.along.first.is_none() && trail.along.access.is_none());
    for (path, steps, wanted) in [
        ("d/no/f", 1, "Missing"),
        ("d/e/f/x", 3, "NotDirectory"),
        ("d/e/link/x", 3, "Symlink"),
        ("d/e/no", 2, "Missing"),
    ] {
        let (trail, calls, _) = cost(&server, walk(&fs, path, WalkRequest::default())).await;
        assert!(format!("{:?}", trail.stop).starts_with(wanted), "{path}: {:?}", trail.stop);
        assert_eq!((trail.steps.len(), calls.iter().all(|c| *c == "LOOKUP")), (steps, true), "{path}");
    }
}

/// The walk returns the base's attributes when they were the same before. Its results are valid as
/// long as these attributes.
#[tokio::test(start_paused = true)]
async fn walk_returns_base_attributes() {
    let server = tree();
    let fs = hard(&server).await;
    let change = async || fs.root(&cx()).await.unwrap().attrs.attr.change;
    assert!(walk(&fs, "d", ALL).await.along.base.is_none(), "nothing was known before");
    for path in ["d/e/f", "d", "no/such"] {
        let base = walk(&fs, path, ALL).await.along.base.unwrap();
        assert_eq!(base.attr.change, change().await, "{path}");
    }
    server.put("new", b"");
    for path in ["d/e/f", "no"] {
        assert!(walk(&fs, path, ALL).await.along.base.is_none(), "{path}: changed, who knows when");
        assert!(walk(&fs, path, ALL).await.along.base.is_some(), "{path}");
        server.put(&format!("newer than {}", path.len()), b"");
    }
}

/// `nochain` is one name without further data; `chain-max=` bounds the names.
#[tokio::test(start_paused = true)]
async fn chains_are_bounded_by_options() {
    let server = tree();
    for (chains, chain_max, steps) in [(false, None, 1), (true, Some(2), 2), (true, Some(0), 1)] {
        let fs = mount(&server, Mode::Hard, |o| (o.chains, o.chain_max) = (chains, chain_max)).await;
        let (trail, calls, _) = cost(&server, walk(&fs, "d/e/f", ALL)).await;
        assert!(matches!(trail.stop, Stop::Limit));
        assert_eq!((trail.steps.len(), calls.len()), (steps, steps));
        let (trail, calls, _) = cost(&server, walk(&fs, "d", ALL)).await;
        assert!(matches!(trail.stop, Stop::Complete));
        assert_eq!(calls == ["LOOKUP"], !chains, "{calls:?}");
        // An open by name still works.
        let path = names("d/e/f");
        let o = fs.open(&cx(), PathRef { base: &root(), path: &path }, &READ).await.unwrap();
        assert_eq!(o.node.fh.0, "d/e/f");
    }
}

/// READ and ACCESS are sent together once the filehandle is known: one more round trip for any
/// further data.
#[tokio::test(start_paused = true)]
async fn read_and_access_share_round_trip() {
    let server = tree();
    let fs = hard(&server).await;
    let want = WalkRequest { listing_bytes: 0, ..ALL };
    let (trail, calls, trips) = cost(&server, walk(&fs, "d/e/f", want)).await;
    assert_eq!((calls, trips), (vec!["LOOKUP", "LOOKUP", "LOOKUP", "ACCESS", "READ"], 4));
    assert_eq!(bytes(trail.along.first), Some((b"content".to_vec(), true)));
    assert_eq!(trail.along.access, Some(Access::all()));
    // A directory has no bytes. An empty file needs no READ, but ACCESS for the right to read.
    let (trail, calls, _) = cost(&server, walk(&fs, "d", want)).await;
    assert_eq!(calls, ["LOOKUP", "ACCESS"]);
    assert!(trail.along.first.is_none());
    let (trail, calls, _) = cost(&server, walk(&fs, "d/e/empty", want)).await;
    assert_eq!(calls[3..], ["ACCESS"]);
    assert_eq!(bytes(trail.along.first), Some((vec![], true)));
    let want = WalkRequest { access: Access::empty(), ..want };
    let (trail, calls, trips) = cost(&server, walk(&fs, "d/e/empty", want)).await;
    assert_eq!((calls.len(), trips, trail.along.first.is_none()), (3, 3, true));
    // Bytes without the right to read are omitted, and the rest of the result is complete.
    server.script(|call, _| match call {
        Call3::Read(_) => Act::Say(Reply3::Read(Res::Err(Nfsstat3::ACCES, None))),
        _ => Act::Serve,
    });
    let trail = walk(&fs, "d/e/f", ALL).await;
    assert!(matches!(trail.stop, Stop::Complete) && trail.along.first.is_none());
    assert_eq!(trail.along.access, Some(Access::all()));
}

/// A listing that will be whole replaces the last LOOKUP, for present and absent names.
#[tokio::test(start_paused = true)]
async fn a_whole_listing_replaces_a_lookup() {
    let server = tree();
    let fs = hard(&server).await;
    let (trail, calls, trips) = cost(&server, walk(&fs, "d/e/f", ALL)).await;
    assert_eq!((calls, trips), (vec!["LOOKUP", "LOOKUP", "READDIRPLUS", "ACCESS", "READ"], 4));
    assert_eq!(trail.along.listing.as_ref().map(|l| (l.entries.len(), l.eof)), Some((3, true)));
    assert_eq!(bytes(trail.along.first), Some((b"content".to_vec(), true)));
    assert_eq!(trail.steps[2].fh.0, "d/e/f");
    let (trail, calls, trips) = cost(&server, walk(&fs, "d/e/absent", ALL)).await;
    assert_eq!((calls, trips), (vec!["LOOKUP", "LOOKUP", "READDIRPLUS"], 3));
    assert!(matches!(trail.stop, Stop::Missing(Validity::Until(_))) && trail.steps.len() == 2);
    assert!(trail.along.listing.is_some_and(|l| l.eof));
    // The same from a known base.
    let base = trail.steps[1].fh.clone();
    let path = names("absent");
    let at = PathRef { base: &base, path: &path };
    let (trail, calls, trips) = cost(&server, fs.walk(&cx(), at, ALL)).await;
    assert_eq!((calls, trips), (vec!["READDIRPLUS"], 1));
    assert!(matches!(trail.unwrap().stop, Stop::Missing(_)));
}

/// A directory that is unknown, or too large for the page, is listed and searched concurrently.
#[tokio::test(start_paused = true)]
async fn partial_listing_overlaps_lookup() {
    let server = tree();
    (0..500).for_each(|i| server.put(&format!("d/e/n{i:03}"), b"x"));
    let fs = hard(&server).await;
    let (trail, mut calls, trips) = cost(&server, walk(&fs, "d/e/n499", ALL)).await;
    calls.sort_unstable();
    assert_eq!((calls, trips), (vec!["ACCESS", "LOOKUP", "LOOKUP", "LOOKUP", "READ", "READDIRPLUS"], 4));
    assert_eq!(trail.steps[2].fh.0, "d/e/n499");
    assert!(trail.along.listing.is_some_and(|l| !l.eof && !l.entries.is_empty()));
    let (trail, _, trips) = cost(&server, walk(&fs, "d/e/absent", ALL)).await;
    assert!(matches!(trail.stop, Stop::Missing(_)) && trail.along.listing.is_some());
    assert_eq!(trips, 3);
    // A filehandle from before this mount.
    let (base, path) = (Fh("d".into()), names("e"));
    let unknown = hard(&server).await;
    let (trail, mut calls, trips) =
        cost(&server, unknown.walk(&cx(), PathRef { base: &base, path: &path }, ALL)).await;
    calls.sort_unstable();
    assert_eq!((calls, trips), (vec!["ACCESS", "LOOKUP", "READDIRPLUS"], 2));
    assert!(trail.unwrap().along.listing.is_some_and(|l| l.eof));
}

/// A wrong guess that a listing will be whole costs one LOOKUP, once. The outcome of the listing is
/// remembered until the directory changes.
#[tokio::test(start_paused = true)]
async fn wrong_listing_guess_costs_once() {
    let server = tree();
    let fs = hard(&server).await;
    // The directory fits by its size, but the server sends short pages.
    let partial = |call: &Call3| match call {
        Call3::Readdirplus(_) => {
            let entry = Entryplus3 {
                fileid: 1,
                name: Opaque::copy(b"empty"),
                cookie: 1,
                name_attributes: None,
                name_handle: None,
            };
            Act::Say(Reply3::Readdirplus(Res::Ok(ReaddirplusOk {
                dir_attributes: None,
                cookieverf: [0; 8],
                entries: hither_proto::xdr::Chain(vec![entry]),
                eof: false,
            })))
        }
        _ => Act::Serve,
    };
    let want = WalkRequest { listing_bytes: 32 << 10, ..WalkRequest::default() };
    for trips_wanted in [4, 3] {
        server.script(move |call, _| partial(call));
        let (trail, calls, trips) = cost_as_scripted(&server, walk(&fs, "d/e/f", want)).await;
        assert!(matches!(trail.stop, Stop::Complete) && trail.steps.len() == 3);
        assert_eq!((calls.len(), trips), (4, trips_wanted));
    }
    server.put("d/e/new", b"");
    let (_, calls, trips) = cost(&server, walk(&fs, "d/e/f", want)).await;
    assert_eq!((calls, trips), (vec!["LOOKUP", "LOOKUP", "READDIRPLUS"], 3));
}

/// A LOOKUP confirms an absent name when other spellings may match, when names are hidden, and when
/// PATHCONF is missing. The same holds in file systems other than the root's.
#[tokio::test(start_paused = true)]
async fn lookup_confirms_inferred_absence() {
    let want = WalkRequest { listing_bytes: 32 << 10, ..WalkRequest::default() };
    for insensitive in [Some(true), None] {
        let server = tree();
        server.case_insensitive(insensitive);
        let fs = hard(&server).await;
        let (_, calls, trips) = cost(&server, walk(&fs, "d/e/F", want)).await;
        assert_eq!((calls.iter().filter(|c| **c == "LOOKUP").count(), trips), (3, 3));
    }
    let server = tree();
    let fs = hard(&server).await;
    for odd in ["d/e/.snapshot", "d/e/.zfs", "d/e/\u{e9}"] {
        let (_, calls, trips) = cost(&server, walk(&fs, odd, want)).await;
        assert_eq!((calls.iter().filter(|c| **c == "LOOKUP").count(), trips), (3, 3), "{odd}");
    }
    server.script(|call, _| match call {
        Call3::Readdirplus(_) => Act::Say(Reply3::Readdirplus(Res::Ok(ReaddirplusOk {
            dir_attributes: Some(Fattr3 { ftype: Ftype3::DIR, fsid: 7, ..Fattr3::default() }),
            cookieverf: [0; 8],
            entries: hither_proto::xdr::Chain(Vec::new()),
            eof: true,
        }))),
        _ => Act::Serve,
    });
    let trail = walk(&fs, "d/e/f", want).await;
    assert!(matches!(trail.stop, Stop::Complete), "found by LOOKUP: {:?}", trail.stop);
}

/// A directory that may be searched but not listed, and a server without READDIRPLUS.
#[tokio::test(start_paused = true)]
async fn listings_that_fail_do_no_harm() {
    let server = tree();
    let fs = hard(&server).await;
    for status in [Nfsstat3::ACCES, Nfsstat3::IO] {
        server.script(move |call, _| match call {
            Call3::Readdirplus(_) => Act::Say(Reply3::Readdirplus(Res::Err(status, None))),
            _ => Act::Serve,
        });
        let trail = walk(&fs, "d/e/f", ALL).await;
        assert!(matches!(trail.stop, Stop::Complete) && trail.along.listing.is_none());
        assert_eq!(bytes(trail.along.first), Some((b"content".to_vec(), true)));
    }
    let plain = mount(&server, Mode::Hard, |o| o.readdirplus = false).await;
    let (trail, calls, _) = cost(&server, walk(&plain, "d/e/f", ALL)).await;
    assert!(trail.along.listing.is_none() && !calls.contains(&"READDIRPLUS") && !calls.contains(&"READDIR"));
}

/// Another client writes the file between LOOKUP and READ. The bytes are omitted, and the
/// attributes are new.
#[tokio::test(start_paused = true)]
async fn changed_file_returns_no_bytes() {
    let server = tree();
    let fs = hard(&server).await;
    // LOOKUP of the last name is the third.
    let writer = Arc::downgrade(&server);
    server.script(move |call, n| {
        if matches!(call, Call3::Lookup(_)) && n == 3 {
            let writer = writer.clone();
            tokio::spawn(async move { writer.upgrade().unwrap().put("d/e/f", b"longer content") });
        }
        Act::Serve
    });
    let want = WalkRequest { listing_bytes: 0, ..ALL };
    let trail = walk(&fs, "d/e/f", want).await;
    assert!(trail.along.first.is_none(), "{:?}", trail.along.first);
    assert_eq!(trail.steps[2].attrs.attr.size_bytes, 14);
    // A write around ACCESS and READ of an open by filehandle, served in either order. Then one
    // more round, since the change may be older than the bytes. Then all replies agree.
    for (proc, content) in [(Proc3::ACCESS, "one"), (Proc3::READ, "three")] {
        let writer = Arc::downgrade(&server);
        server.script(move |call, n| {
            if call.procedure() == proc && n == 1 {
                let writer = writer.clone();
                tokio::spawn(async move { writer.upgrade().unwrap().put("d/e/f", content.as_bytes()) });
            }
            Act::Serve
        });
        let fh = trail.steps[2].fh.clone();
        for round in 0..3 {
            let o = fs.open(&cx(), PathRef::fh(&fh), &READ).await.unwrap();
            let first = bytes(o.first);
            match first {
                Some((b, _)) => assert_eq!(b.len() as u64, o.node.attrs.attr.size_bytes, "round {round}"),
                None => assert!(round < 2, "nothing changes any more"),
            }
        }
    }
}

/// A server reads attributes after contents, and another client changes the file in between each
/// time. No answer pairs old contents with new attributes. Attributes that are compared later must
/// differ.
#[tokio::test(start_paused = true)]
async fn old_contents_never_have_new_attributes() {
    let server = tree();
    let fs = hard(&server).await;
    let want = WalkRequest { listing_bytes: 0, ..ALL };
    let f = walk(&fs, "d/e/f", want).await;
    assert!(f.along.first.is_some());
    let f = f.steps[2].fh.clone();
    server.torn(true);
    assert!(walk(&fs, "d/e/f", want).await.along.first.is_none());
    assert!(fs.open(&cx(), PathRef::fh(&f), &READ).await.unwrap().first.is_none());
    // The same for a client without knowledge of the file.
    let fresh = hard(&server).await;
    assert!(fresh.open(&cx(), PathRef::fh(&f), &READ).await.unwrap().first.is_none());
    let (top, long) = (root(), names("d/e/f"));
    let by_name = fs.open(&cx(), PathRef { base: &top, path: &long }, &READ).await.unwrap();
    assert!(by_name.first.is_none());
    assert_eq!(fs.read_many(&cx(), &[f], None, 1000).await.files.remove(0).unwrap_err().errno, libc::EAGAIN);
    let change = async |fh: &Fh| fs.getattr(&cx(), File { fh, open: None }).await.unwrap().attr.change;
    let e = Fh("d/e".into());
    let listed = fs.list_many(&cx(), std::slice::from_ref(&e), 32 << 10).await.remove(0).unwrap().0;
    assert_ne!(listed.attr.change, change(&e).await);
    // A walk returns the directory's attributes from before its listing.
    let trail = walk(&fs, "d/e/absent", ALL).await;
    assert!(matches!(trail.stop, Stop::Missing(_)));
    assert_ne!(trail.steps[1].attrs.attr.change, change(&e).await);
    let absent = names("absent");
    let trail = fs.walk(&cx(), PathRef { base: &e, path: &absent }, ALL).await.unwrap();
    assert!(trail.along.listing.is_some() && trail.along.base.is_none());
}

/// A mount sends all its calls concurrently.
#[tokio::test(start_paused = true)]
async fn a_mount_is_one_round_trip() {
    let server = tree();
    hard(&server).await;
    let (_, mut calls, trips) = cost(&server, hard(&server)).await;
    calls.sort_unstable();
    // One more round trip for the connection.
    assert_eq!((calls, trips), (vec!["FSINFO", "GETATTR", "PATHCONF"], 2));
}

/// An open with first bytes: READ also proves the right to read. ACCESS is sent for empty files and
/// for other rights, in the same round trip.
#[tokio::test(start_paused = true)]
async fn an_open_brings_the_first_bytes() {
    let server = tree();
    server.put("f", b"content");
    server.put("empty", b"");
    let fs = hard(&server).await;
    let open = async |at: PathRef<'_>, how: OpenHow| fs.open(&cx(), at, &how).await;
    let (top, f, empty, d) = (root(), name("f"), name("empty"), name("d"));
    let (o, calls, trips) = cost(&server, open(PathRef::name(&top, &f), READ)).await;
    assert_eq!((calls, trips), (vec!["LOOKUP", "READ"], 2));
    assert_eq!(bytes(o.unwrap().first), Some((b"content".to_vec(), true)));
    let fh = Fh("f".into());
    let (o, calls, trips) = cost(&server, open(PathRef::fh(&fh), READ)).await;
    assert_eq!((calls, trips), (vec!["READ"], 1));
    assert_eq!(bytes(o.unwrap().first), Some((b"content".to_vec(), true)));
    let (o, calls, trips) = cost(&server, open(PathRef::fh(&fh), OpenHow { first_bytes: 3, ..READ })).await;
    assert_eq!((calls, trips), (vec!["READ"], 1));
    assert_eq!(bytes(o.unwrap().first), Some((b"con".to_vec(), false)));
    let (o, calls, trips) = cost(&server, open(PathRef::fh(&fh), OpenHow { execute: true, ..READ })).await;
    assert_eq!((o.is_ok(), calls, trips), (true, vec!["ACCESS", "READ"], 1));
    let (o, calls, _) = cost(&server, open(PathRef::name(&top, &empty), READ)).await;
    assert_eq!(calls, ["LOOKUP", "ACCESS"]);
    assert_eq!(bytes(o.unwrap().first), Some((vec![], true)));
    let (o, calls, _) = cost(&server, open(PathRef::name(&top, &d), READ)).await;
    assert_eq!((o.unwrap_err().errno, calls), (libc::EISDIR, vec!["LOOKUP", "ACCESS"]));
    for how in [
        OpenHow { first_bytes: 0, ..READ },
        OpenHow { access: OpenAccess::WRITE, ..READ },
        OpenHow { access: OpenAccess::all(), truncate: true, ..READ },
    ] {
        let (o, calls, _) = cost(&server, open(PathRef::fh(&fh), how)).await;
        assert!(o.unwrap().first.is_none() && !calls.contains(&"READ"));
    }
}

/// A READ does not prove the right to read in three cases. The mode gives the bytes to users with
/// execute access only, or to an owner without read access, or READ is refused. Then ACCESS
/// decides.
#[tokio::test(start_paused = true)]
async fn unproven_read_requires_access() {
    let server = tree();
    server.put("f", b"content");
    let fs = hard(&server).await;
    let refused = |call: &Call3| match call {
        Call3::Access(_) => Act::Say(Reply3::Access(Res::Ok(AccessOk { obj_attributes: None, access: 0 }))),
        _ => Act::Serve,
    };
    let (top, f, fh) = (root(), name("f"), Fh("f".into()));
    for (mode, by_name, by_handle) in [
        (0o244, vec!["LOOKUP", "ACCESS", "READ"], vec!["READ", "ACCESS"]),
        (0o711, vec!["LOOKUP", "ACCESS", "READ"], vec!["READ", "ACCESS"]),
    ] {
        server.mode(mode);
        for (at, wanted) in [(PathRef::name(&top, &f), by_name), (PathRef::fh(&fh), by_handle)] {
            server.script(|_, _| Act::Serve);
            let opened = fs.open(&cx(), at, &READ).await.unwrap();
            assert_eq!((bytes(opened.first).is_some(), server.called()), (true, wanted.clone()), "{mode:o}");
            server.script(move |call, _| refused(call));
            let errno = fs.open(&cx(), at, &READ).await.unwrap_err().errno;
            assert_eq!((errno, server.called()), (libc::EACCES, wanted), "{mode:o}");
        }
        let want = WalkRequest { access: Access::READ, read_bytes: 1000, ..WalkRequest::default() };
        let trail = walk(&fs, "f", want).await;
        assert_eq!(trail.along.access, Some(Access::empty()));
    }
    // ACCESS decides whether a program may be executed. Files without an execute bit need no
    // ACCESS.
    let want =
        WalkRequest { access: Access::READ | Access::EXECUTE, read_bytes: 1000, ..WalkRequest::default() };
    for (mode, calls) in [(0o755, vec!["LOOKUP", "ACCESS", "READ"]), (0o644, vec!["LOOKUP", "READ"])] {
        server.mode(mode);
        server.script(|_, _| Act::Serve);
        let trail = walk(&fs, "f", want).await;
        assert_eq!((trail.along.access.is_some(), server.called()), (mode == 0o755, calls));
        assert!(trail.along.first.is_some());
    }
    server.mode(0o640);
    server.script(move |call, _| match call {
        Call3::Read(_) => Act::Say(Reply3::Read(Res::Err(Nfsstat3::ACCES, None))),
        call => refused(call),
    });
    assert_eq!(fs.open(&cx(), PathRef::name(&top, &f), &READ).await.unwrap_err().errno, libc::EACCES);
    // The reply had no attributes.
    assert_eq!(server.called(), ["LOOKUP", "READ", "ACCESS", "GETATTR"]);
    let want = WalkRequest { access: Access::READ, read_bytes: 1000, ..WalkRequest::default() };
    let trail = walk(&fs, "f", want).await;
    assert!(trail.along.access == Some(Access::empty()) && trail.along.first.is_none());
    // Bytes without attributes do not show their version.
    server.script(|call, _| match call {
        Call3::Read(_) => Act::Say(Reply3::Read(Res::Ok(ReadOk {
            file_attributes: None,
            count: 7,
            eof: true,
            data: Opaque::copy(b"content"),
        }))),
        _ => Act::Serve,
    });
    let trail = walk(&fs, "f", want).await;
    assert!(trail.along.access == Some(Access::READ) && trail.along.first.is_none());
}

/// Many objects: one call each, bounded in concurrency, results in order. READ and READDIRPLUS
/// return the attributes.
#[tokio::test(start_paused = true)]
async fn many_objects_need_one_call_each() {
    let server = Server::new();
    server.put_kind("d", Ftype3::DIR);
    (0..200).for_each(|i| server.put(&format!("d/{i:03}"), format!("file {i}").as_bytes()));
    let fs = hard(&server).await;
    let files: Vec<Fh> = (0..200).map(|i| Fh(format!("d/{i:03}").into())).collect();
    let (got, calls, trips) = cost(&server, fs.getattr_many(&cx(), &files)).await;
    assert_eq!((calls, trips), (vec!["GETATTR"; 200], 4));
    assert!(got.iter().all(|a| a.as_ref().is_ok_and(|a| a.attr.kind == FileKind::Regular)));
    let (got, calls, trips) = cost(&server, fs.read_many(&cx(), &files, None, 4096)).await;
    assert_eq!((calls, trips), (vec!["READ"; 200], 4));
    for (i, fetched) in got.files.into_iter().enumerate() {
        let Fetched { attrs, read } = fetched.unwrap();
        assert_eq!(attrs.attr.size_bytes, read.data.len() as u64);
        assert_eq!(bytes(Some(read)), Some((format!("file {i}").into_bytes(), true)));
    }
    // A removed object fails alone.
    let some = [files[0].clone(), Fh("gone".into()), files[1].clone()];
    let (got, _, trips) = cost(&server, fs.getattr_many(&cx(), &some)).await;
    assert_eq!(got.iter().map(|a| a.is_ok()).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(trips, 1);
}

/// A slow reply delays only its own object. The next call is sent as soon as any call has ended.
#[tokio::test(start_paused = true)]
async fn slow_reply_delays_one_object() {
    let server = Server::new();
    let fs = hard(&server).await;
    (0..129).for_each(|i| server.put(&format!("{i:03}"), b"x"));
    let files: Vec<Fh> = (0..129).map(|i| Fh(format!("{i:03}").into())).collect();
    // Busy for 100 ms, longer than all the other calls.
    server.script(|_, n| match n {
        1 => Act::Say(Reply3::Getattr(Res::Err(Nfsstat3::JUKEBOX, ()))),
        _ => Act::Serve,
    });
    let start = Instant::now();
    let got = fs.getattr_many(&cx(), &files).await;
    assert!(got.iter().all(|a| a.is_ok()));
    let took = start.elapsed();
    assert!(took < Duration::from_millis(100) + 3 * ROUND_TRIP, "{took:?}");
}

/// Bytes beyond the first READ are complete or absent, and always belong to the attributes.
#[tokio::test(start_paused = true)]
async fn long_reads_match_attributes() {
    let server = Server::new();
    server.put("long", &[7; 10_000]);
    server.put("f", b"old");
    let fs = hard(&server).await;
    let long = [Fh("long".into())];
    let got = fs.read_many(&cx(), &long, None, 1 << 20).await.files.remove(0).unwrap();
    assert_eq!(bytes(Some(got.read)), Some((vec![7; 10_000], true)));
    let got = fs.read_many(&cx(), &long, None, 4096).await.files.remove(0).unwrap();
    assert_eq!(bytes(Some(got.read)), Some((vec![7; 4096], false)));
    // The file changed after its attributes were seen. It is read again, because the bytes may be
    // from before.
    let f = [Fh("f".into())];
    fs.getattr_many(&cx(), &f).await.remove(0).unwrap();
    server.put("f", b"newer");
    let (got, calls, _) = cost(&server, fs.read_many(&cx(), &f, None, 4096)).await;
    assert_eq!(calls, ["READ", "READ"]);
    assert_eq!(
        bytes(Some(got.files.into_iter().next().unwrap().unwrap().read)),
        Some((b"newer".to_vec(), true))
    );
    server.bare();
    let (got, calls, _) = cost(&server, fs.read_many(&cx(), &f, None, 4096)).await;
    assert_eq!(calls, ["READ", "GETATTR", "READ"]);
    assert_eq!(got.files.into_iter().next().unwrap().unwrap().attrs.attr.size_bytes, 5);
}

/// Listings return the attributes of the directories. Attributes not seen before the listing are
/// made to differ from later ones. Otherwise a name that appears between the server's two steps
/// would stay hidden.
#[tokio::test(start_paused = true)]
async fn many_listings_need_one_call_each() {
    let server = tree();
    let fs = hard(&server).await;
    walk(&fs, "d/e", WalkRequest::default()).await;
    let dirs = [root(), Fh("d".into()), Fh("d/e".into())];
    let (got, calls, trips) = cost(&server, fs.list_many(&cx(), &dirs, 32 << 10)).await;
    assert_eq!((calls, trips), (vec!["READDIRPLUS"; 3], 1));
    let counts: Vec<_> = got.iter().map(|l| l.as_ref().unwrap().1.entries.len()).collect();
    assert_eq!(counts, [1, 1, 3]);
    let later = fs.getattr(&cx(), File { fh: &dirs[2], open: None }).await.unwrap();
    let listed = got[2].as_ref().unwrap().0.clone();
    assert_eq!(listed.attr.change, later.attr.change);
    server.put("d/e/new", b"");
    let listed = fs.list_many(&cx(), &dirs[2..], 32 << 10).await.remove(0).unwrap().0;
    let later = fs.getattr(&cx(), File { fh: &dirs[2], open: None }).await.unwrap();
    assert_ne!(listed.attr.change, later.attr.change, "it changed since it was last seen");
    let listed = fs.list_many(&cx(), &dirs[2..], 32 << 10).await.remove(0).unwrap().0;
    assert_eq!(listed.attr.change, later.attr.change);
}

/// The replies of writes and of attribute changes have the new attributes. No further call is
/// needed.
#[tokio::test(start_paused = true)]
async fn change_replies_carry_file_attributes() {
    let server = tree();
    let fs = hard(&server).await;
    let fh = Fh("d/e/f".into());
    let file = File { fh: &fh, open: None };
    let cx = cx();
    let more = Data::from(::bytes::Bytes::from_static(b" more"));
    let write = |stability| fs.write(&cx, file, 7, more.clone(), stability);
    for stability in [Stability::Unstable, Stability::Stable] {
        let (wrote, calls, trips) = cost(&server, write(stability)).await;
        assert_eq!((calls, trips), (vec!["WRITE"], 1));
        assert_eq!(wrote.unwrap().attrs.unwrap().attr.size_bytes, 12);
    }
    fs.commit(&cx, file).await.unwrap();
    let set = SetAttr { size_bytes: Some(3), ..SetAttr::default() };
    let (attrs, calls, trips) = cost(&server, fs.setattr(&cx, file, &set)).await;
    assert_eq!((calls, trips), (vec!["SETATTR"], 1));
    assert_eq!(attrs.unwrap().attr.size_bytes, 3);
}

/// Each reply of a call that changes a directory has the directory's attributes.
#[tokio::test(start_paused = true)]
async fn changes_bring_the_directory_attributes() {
    let server = tree();
    let fs = hard(&server).await;
    server.script(|_, _| Act::Serve);
    let (cx, top, set) = (cx(), root(), SetAttr::default());
    let now = async || fs.getattr(&cx, File { fh: &top, open: None }).await.unwrap().attr.change;
    let check = async |what: &str, dir: ChangeInfo| {
        let attrs = dir.attrs.unwrap_or_else(|| panic!("{what} brings no attributes"));
        assert_eq!((attrs.attr.change, dir.after), (now().await, now().await), "{what}");
        assert_eq!(attrs.attr.kind, FileKind::Directory);
    };
    let how = OpenHow { create: Create::IfMissing(set.clone()), first_bytes: 0, ..READ };
    let (a, b, c, d) = (name("a"), name("b"), name("c"), name("d2"));
    let made = fs.open(&cx, PathRef::name(&top, &a), &how).await.unwrap();
    check("CREATE", made.dir.unwrap()).await;
    fs.close(&cx, &made.node.fh, made.open).await.unwrap();
    let Moved { from, to, .. } =
        fs.rename(&cx, (&top, &a), (&top, &b), None, RenameFlags::empty()).await.unwrap();
    check("RENAME", from).await;
    check("RENAME", to).await;
    check("MKDIR", fs.mkdir(&cx, &top, &d, &set).await.unwrap().dir).await;
    check("MKNOD", fs.mknod(&cx, &top, &c, &Special::Regular, &set).await.unwrap().dir).await;
    check("REMOVE", fs.unlink(&cx, &top, &c, None).await.unwrap()).await;
    let calls: Vec<_> = server.called().into_iter().filter(|c| *c != "GETATTR").collect();
    assert_eq!(calls, ["CREATE", "RENAME", "MKDIR", "CREATE", "REMOVE"]);
}
