//! Paths in one compound, requests about many objects, their further data, and delegations as
//! leases.

pub mod directories;

use super::*;
use hither_vfs::{BoxFuture, FileKind, Stop, Unsent, Validity};
use parking_lot::Mutex;
use server::delegation;

const WANT: WalkRequest =
    WalkRequest { listing_bytes: 16384, read_bytes: 4096, access: Access::READ, target: false };

/// A mount of a server with the directories `dirs` and the files `files`.
async fn tree(prepare: impl Fn(&mut server::State), dirs: &[&str], files: &[&str]) -> Test {
    let t = Test::with(options(), Conditions::default(), |s| prepare(&mut s.lock())).await;
    {
        let mut s = t.server.lock();
        let file = |dir| server::File { dir, change: 1, ..server::File::default() };
        s.files.extend(dirs.iter().map(|n| ((*n).to_owned(), file(true))));
        let data = |n: &&str| format!("data of {n}").into_bytes();
        s.files
            .extend(files.iter().map(|n| ((*n).to_owned(), server::File { data: data(n), ..file(false) })));
        s.compounds.clear();
    }
    t
}

impl Test {
    async fn walk(&self, path: &[&str], want: WalkRequest) -> WalkResult {
        let path: Vec<_> = path.iter().map(|n| name(n)).collect();
        self.v4.walk(&cx(), PathRef { base: &self.root, path: &path }, want).await.unwrap()
    }

    /// The lengths of all compounds since the last call of this function.
    fn sent(&self) -> Vec<usize> {
        self.server.lock().compounds.drain(..).map(|ops| ops.len()).collect()
    }
}

fn fh(file: &str) -> Fh {
    Fh(Bytes::copy_from_slice(&server::handle(file)))
}

fn bytes(read: &Read) -> &[u8] {
    &read.data.parts()[0]
}

/// A path with all further data of its last object is one compound. No open is left.
#[tokio::test(start_paused = true)]
async fn walk_sends_one_compound() {
    let t = tree(|_| {}, &["a", "b"], &["f"]).await;
    let trail = t.walk(&["a", "b", "f"], WANT).await;
    assert!(matches!(trail.stop, Stop::Complete));
    assert_eq!(trail.steps.iter().map(|n| n.fh.clone()).collect::<Vec<_>>(), [fh("a"), fh("b"), fh("f")]);
    let first = trail.along.first.unwrap();
    assert_eq!((bytes(&first), first.eof), (&b"data of f"[..], true));
    assert_eq!(trail.along.access, Some(Access::READ));
    assert_eq!(trail.along.base.unwrap().attr.kind, hither_vfs::FileKind::Directory);
    assert_eq!(trail.along.listing.unwrap().entries.len(), 3);
    // PUTFH GETATTR, three names, READDIR, ACCESS, OPEN GETATTR READ CLOSE.
    assert_eq!(t.sent(), [2 + 6 + 1 + 1 + 4]);
    assert_eq!(t.server.lock().opens.len(), 0);
    // Without further data only the names are sent. With an empty path the base is sent with its
    // further data.
    assert!(t.walk(&["a", "b", "f"], WalkRequest::default()).await.along.listing.is_none());
    let f = fh("f");
    let base = t.v4.walk(&cx(), PathRef::fh(&f), WANT).await.unwrap();
    assert_eq!((base.steps.len(), bytes(&base.along.first.unwrap())), (1, &b"data of f"[..]));
    assert_eq!(t.sent(), [8, 7]);
    t.check();
}

/// An absent last name returns the listing. An object that is no file, or not readable, has no
/// bytes. There is no second compound.
#[tokio::test(start_paused = true)]
async fn unavailable_data_costs_no_compound() {
    let t = tree(|_| {}, &["a"], &["f"]).await;
    let trail = t.walk(&["a", "none"], WANT).await;
    assert!(matches!(trail.stop, Stop::Missing(_)));
    assert_eq!((trail.steps.len(), trail.along.listing.unwrap().entries.len()), (1, 2));
    let trail = t.walk(&["a"], WANT).await;
    assert!(matches!(trail.stop, Stop::Complete) && trail.along.first.is_none());
    for (op, status) in [
        (NfsOpnum4::OPEN, Nfsstat4::ACCESS),
        (NfsOpnum4::OPEN, Nfsstat4::DELAY),
        (NfsOpnum4::OPEN, Nfsstat4::GRACE),
        (NfsOpnum4::ACCESS, Nfsstat4::SERVERFAULT),
    ] {
        t.server.lock().fail = vec![(op, status)];
        let trail = t.walk(&["a", "f"], WANT).await;
        assert!(matches!(trail.stop, Stop::Complete) && trail.along.first.is_none());
        assert_eq!(trail.steps.len(), 2);
    }
    // For a name in a file READDIR already fails.
    let trail = t.walk(&["f", "x"], WANT).await;
    assert!(matches!(trail.stop, Stop::NotDirectory) && trail.steps.len() == 1);
    assert_eq!(t.sent().len(), 7);
    // Only a directory that may not be listed costs a second compound.
    t.server.lock().fail = vec![(NfsOpnum4::READDIR, Nfsstat4::ACCESS)];
    let trail = t.walk(&["a", "f"], WANT).await;
    assert!(matches!(trail.stop, Stop::Complete) && trail.along.listing.is_none());
    assert_eq!(bytes(&trail.along.first.unwrap()), b"data of f");
    assert_eq!(t.sent().len(), 2);
    t.check();
}

/// A READ that fails after its OPEN leaves no open behind.
#[tokio::test(start_paused = true)]
async fn failed_read_closes_open() {
    let t = tree(|_| {}, &[], &["f", "g"]).await;
    t.server.lock().fail = vec![(NfsOpnum4::READ, Nfsstat4::IO), (NfsOpnum4::READ, Nfsstat4::IO)];
    assert!(t.walk(&["f"], WANT).await.along.first.is_none());
    let reads = t.v4.read_many(&cx(), &[fh("f"), fh("g")], None, 100).await.files;
    assert!(reads[0].is_err());
    assert_eq!(bytes(&reads[1].as_ref().unwrap().read), b"data of g");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(t.server.lock().opens.len(), 0);
    t.check();
}

/// Paths are split at the limits of the session, at unannounced limits of the server, and at
/// `chain-max` and `nochain`. The client learns from refusals.
#[tokio::test(start_paused = true)]
async fn chains_split_at_limits() {
    let names: Vec<String> = (0..40).map(|i| format!("d{i}")).collect();
    let path: Vec<&str> = names.iter().map(String::as_str).collect();
    let t = tree(|s| s.max_ops = 50, &path, &["f"]).await;
    // Without SEQUENCE: 23 names, then 17 with the further data.
    let all = [&path[..39], &["f"]].concat();
    let trail = t.walk(&all, WANT).await;
    assert!(matches!(trail.stop, Stop::Complete) && trail.steps.len() == 40);
    assert!(trail.along.first.is_some() && trail.along.listing.is_some());
    assert_eq!(t.sent(), [48, 1 + 34 + 6]);

    let t = tree(|s| s.really_takes = 20, &path, &[]).await;
    let trail = t.walk(&path, WalkRequest::default()).await;
    assert!(matches!(trail.stop, Stop::Complete) && trail.steps.len() == 40, "{:?}", trail.stop);
    let first = t.sent();
    assert_eq!(first[0], 2 + 80);
    assert!(first[1..].iter().all(|&ops| ops < 20), "{first:?}");
    t.walk(&path, WalkRequest::default()).await;
    let second = t.sent();
    assert!(second.len() <= first.len() && second.iter().all(|&ops| ops < 20), "{second:?}");

    let t = tree(|_| {}, &path, &[]).await;
    t.server.lock().fail = vec![(NfsOpnum4::PUTFH, Nfsstat4::TOO_MANY_OPS)];
    assert_eq!(t.walk(&path, WalkRequest::default()).await.steps.len(), 40);
    // Half as many operations as were refused: 19 names each.
    assert_eq!(t.sent(), [82, 40, 1 + 38, 1 + 4]);

    for (chains, chain_max, compounds) in [(true, Some(10), 4), (false, None, 40)] {
        let t = Test::with(Options { chains, chain_max, ..options() }, Conditions::default(), |_| {}).await;
        let dir = server::File { dir: true, ..server::File::default() };
        t.server.lock().files.extend(names.iter().map(|n| (n.clone(), dir.clone())));
        t.sent();
        let trail = t.walk(&path, WANT).await;
        assert_eq!((trail.steps.len(), t.sent().len()), (40, compounds));
        assert_eq!(trail.along.listing.is_some(), chains);
    }
}

/// A server that fails long paths for reasons outside the path gets name by name. After a few
/// failures each walk starts that way.
#[tokio::test(start_paused = true)]
async fn refused_chain_walks_single_names() {
    let path = ["a", "b", "c"];
    let t = tree(|_| {}, &path, &["f"]).await;
    for refusals in 0..4 {
        let fails = if refusals < 3 { vec![(NfsOpnum4::PUTFH, Nfsstat4::SERVERFAULT)] } else { vec![] };
        t.server.lock().fail = fails;
        let trail = t.walk(&["a", "b", "c", "f"], WANT).await;
        assert!(matches!(trail.stop, Stop::Complete) && trail.steps.len() == 4, "{:?}", trail.stop);
        let sent = t.sent();
        match refusals {
            0..3 => assert_eq!(sent[1..], [4, 3, 3, 3]),
            _ => assert_eq!(sent[..4], [4, 3, 3, 3]),
        }
    }
    t.server.lock().fail = vec![(NfsOpnum4::PUTFH, Nfsstat4::SERVERFAULT)];
    let alone = t.v4.walk(&cx(), PathRef { base: &t.root, path: &[name("a")] }, WalkRequest::default()).await;
    assert!(alone.is_err(), "what fails by itself fails");
}

/// With a server that omits the filehandle from the attributes the client uses GETFH.
#[tokio::test(start_paused = true)]
async fn getfh_replaces_filehandle_attribute() {
    let t = tree(|s| s.no_fh_attr = true, &["a"], &["f"]).await;
    for compounds in [2, 1] {
        let trail = t.walk(&["a", "f"], WANT).await;
        assert_eq!(trail.steps.iter().map(|n| n.fh.clone()).collect::<Vec<_>>(), [fh("a"), fh("f")]);
        assert_eq!(t.sent().len(), compounds);
    }
}

/// After a lost reply that the server did not keep (RETRY_UNCACHED_REP) the request is sent again.
/// Its open is closed.
#[tokio::test(start_paused = true)]
async fn uncached_reply_repeats_request() {
    let t = tree(|_| {}, &["a"], &["f"]).await;
    for op in [NfsOpnum4::LOOKUP, NfsOpnum4::OPEN, NfsOpnum4::GETATTR] {
        t.server.lock().lose_uncached = Some(op);
        let net = t.net.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            net.cut(Cut::Reset);
        });
        match op {
            NfsOpnum4::LOOKUP => assert_eq!(t.walk(&["a", "f"], WANT).await.steps.len(), 2),
            NfsOpnum4::OPEN => assert!(t.v4.read_many(&cx(), &[fh("f")], None, 9).await.files[0].is_ok()),
            _ => drop(t.v4.getattr(&cx(), File { fh: &fh("f"), open: None }).await.unwrap()),
        }
        assert_eq!(t.server.lock().lose_uncached, None);
    }
    assert_eq!(t.server.lock().opens.len(), 0);
    t.check();
}

/// Many objects are few compounds. A failing object costs one more compound and does not affect the
/// others.
#[tokio::test(start_paused = true)]
async fn many_objects_in_few_compounds() {
    let names: Vec<String> = (0..60).map(|i| format!("f{i}")).collect();
    let files: Vec<&str> = names.iter().map(String::as_str).collect();
    let t = tree(|s| s.max_ops = 50, &["dir"], &files).await;
    let mut all: Vec<Fh> = names.iter().map(|n| fh(n)).collect();
    let attrs = t.v4.getattr_many(&cx(), &all).await;
    assert!(attrs.iter().all(|a| a.is_ok()));
    // 24 per compound.
    assert_eq!(t.sent().len(), 3);
    (all[3], all[40]) = (fh("gone"), fh("dir"));
    let attrs = t.v4.getattr_many(&cx(), &all).await;
    assert_eq!(attrs.iter().filter(|a| a.is_err()).count(), 1);
    assert_eq!((errno(attrs[3].clone()), t.sent().len()), (libc::ESTALE, 4));
    let reads = t.v4.read_many(&cx(), &all, None, 6).await.files;
    for (i, read) in reads.iter().enumerate() {
        match (i, read) {
            (3 | 40, read) => assert!(read.is_err()),
            (_, Ok(f)) => assert_eq!((bytes(&f.read), f.read.eof), (&b"data o"[..], false)),
            (_, Err(e)) => panic!("{i}: {e}"),
        }
    }
    // Nine per compound, and two that continue after a failure.
    assert_eq!(t.sent().len(), 7 + 2);
    assert_eq!(t.server.lock().opens.len(), 0);
    // The attributes of their directory are in the same compound, if it has room.
    for (files, compounds) in [(&all[4..12], 1), (&all[4..13], 1), (&all[4..14], 2)] {
        let starts = t.v4.read_many(&cx(), files, Some(&t.root), 6).await;
        assert!(starts.files.iter().all(|f| f.is_ok()));
        assert_eq!((starts.holder.is_some(), t.sent().len()), (compounds == 1, compounds));
    }
    let starts = t.v4.read_many(&cx(), &all[2..6], Some(&t.root), 6).await;
    assert!(starts.files[1].is_err() && starts.files[2].is_ok());
    assert_eq!((starts.holder.unwrap().attr.kind, t.sent().len()), (FileKind::Directory, 2));
    let lists = t.v4.list_many(&cx(), &[t.root.clone(), fh("f1"), fh("dir")], 65536).await;
    assert_eq!(lists[0].as_ref().unwrap().1.entries.len(), 61);
    assert!(lists[1].is_err() && lists[2].is_ok());
    // A busy object does not delay the others.
    t.server.lock().fail = vec![(NfsOpnum4::OPEN, Nfsstat4::DELAY)];
    let began = Instant::now();
    let reads = t.v4.read_many(&cx(), &all[..3], None, 6).await.files;
    assert!(reads.iter().filter(|r| r.is_err()).count() == 1 && began.elapsed() < Duration::from_millis(10));
    t.check();
}

/// Several listings share a compound only with a server that is known to answer them. Linux 6.1
/// corrupts such a reply.
#[tokio::test(start_paused = true)]
async fn known_servers_list_several() {
    let cases = [
        ("", None, 3),
        ("_NFS-Ganesha", None, 1),
        ("_NFS-Ganesha\0", None, 1),
        ("_NFS-Ganesha.example", None, 3),
        ("", Some("kernel.org"), 3),
        ("", Some("hither-fs.github.io"), 1),
    ];
    for (scope, domain, compounds) in cases {
        let t = tree(|s| (s.scope, s.domain) = (scope, domain), &["a", "b"], &["f"]).await;
        let lists = t.v4.list_many(&cx(), &[t.root.clone(), fh("a"), fh("b")], 8192).await;
        for list in lists {
            let page = list.unwrap().1;
            assert_eq!((page.entries.len(), page.access.is_some()), (3, true));
        }
        assert_eq!(t.sent().len(), compounds, "{scope:?} {domain:?}");
        // The rights are not requested for a single listing.
        let list = t.v4.list_many(&cx(), &[fh("a")], 8192).await.pop().unwrap();
        assert!(list.unwrap().1.access.is_none());
        assert_eq!(t.sent(), [3]);
        t.check();
    }
}

/// A server that is not known gets one READ in a compound, no listing before it, and at most five
/// names. Linux 6.12 returns stale memory for other READs.
#[tokio::test(start_paused = true)]
async fn unknown_server_gets_early_reads() {
    let files = ["f0", "f1", "f2", "f3"];
    let t = tree(|s| s.domain = None, &["a", "b", "c", "d", "e"], &files).await;
    let handles = files.map(fh);
    let reads = t.v4.read_many(&cx(), &handles, None, 6).await.files;
    assert!(reads.iter().all(Result::is_ok));
    let read = WalkRequest { listing_bytes: 0, ..WANT };
    for (path, want, brings) in [
        (&["a", "f0"][..], WANT, false),
        (&["a", "f0"], read, true),
        (&["a", "b", "c", "d", "f0"], read, true),
        (&["a", "b", "c", "d", "e", "f0"], read, false),
    ] {
        let trail = t.walk(path, want).await;
        assert_eq!(trail.along.first.is_some(), brings, "{path:?}");
        assert_eq!(trail.along.listing.is_some(), want.listing_bytes > 0, "{path:?}");
    }
    for ops in t.server.lock().compounds.drain(..) {
        let data = |op: &NfsOpnum4| matches!(*op, NfsOpnum4::READ | NfsOpnum4::READDIR);
        assert!(ops.iter().filter(|op| data(op)).count() <= 1, "{ops:?}");
    }
    t.check();
}

/// A request about one object waits for a busy server at any refused operation, as a single call
/// does. A program that lists a directory or opens a file waits for its result.
#[tokio::test(start_paused = true)]
async fn single_objects_are_waited_for() {
    let t = tree(|_| {}, &["d"], &["f"]).await;
    for status in [Nfsstat4::DELAY, Nfsstat4::GRACE] {
        for op in [
            NfsOpnum4::PUTFH,
            NfsOpnum4::GETATTR,
            NfsOpnum4::ACCESS,
            NfsOpnum4::READDIR,
            NfsOpnum4::OPEN,
            NfsOpnum4::READ,
        ] {
            let (d, f, want) = ([fh("d")], [fh("f")], Access::READ);
            let mut refused = 0;
            for kind in 0..4 {
                t.server.lock().fail = vec![(op, status); 3];
                let answer = match kind {
                    0 => t.v4.getattr_many(&cx(), &f).await.pop().unwrap().map(drop),
                    1 => t.v4.revalidate_many(&cx(), &f, want).await.pop().unwrap().map(drop),
                    2 => t.v4.list_many(&cx(), &d, 8192).await.pop().unwrap().map(drop),
                    _ => t.v4.read_many(&cx(), &f, None, 6).await.files.pop().unwrap().map(drop),
                };
                assert!(answer.is_ok(), "{op:?} {status:?} in question {kind}: {answer:?}");
                refused += usize::from(t.server.lock().fail.is_empty());
                t.server.lock().fail.clear();
            }
            assert!(refused > 0, "no question has {op:?}");
        }
    }
    // A waiting caller can be interrupted.
    t.server.lock().fail = vec![(NfsOpnum4::READDIR, Nfsstat4::DELAY); 1000];
    let cx = cx();
    let cancel = cx.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        cancel.cancel();
    });
    assert_eq!(errno(t.v4.list_many(&cx, &[fh("d")], 8192).await.pop().unwrap()), libc::EINTR);
    t.server.lock().fail.clear();
    t.check();
}

/// An open returns the first bytes, by name and by filehandle. The file stays open.
#[tokio::test(start_paused = true)]
async fn opens_bring_first_bytes() {
    let t = tree(|_| {}, &[], &["f"]).await;
    let (n, f) = (name("f"), fh("f"));
    let how = OpenHow { access: OpenAccess::READ, first_bytes: 100, ..how(Create::No) };
    for at in [PathRef::fh(&f), PathRef::name(&t.root, &n)] {
        let opened = t.v4.open(&cx(), at, &how).await.unwrap();
        let first = opened.first.clone().unwrap();
        assert_eq!((bytes(&first), first.eof), (&b"data of f"[..], true));
        assert_eq!((t.sent().len(), t.server.lock().opens.len()), (1, 1));
        t.close(&opened).await;
        t.sent();
        // Without bytes that cannot be read now the open still succeeds.
        t.server.lock().fail = vec![(NfsOpnum4::READ, Nfsstat4::IO)];
        let opened = t.v4.open(&cx(), at, &how).await.unwrap();
        assert!(opened.first.is_none());
        t.close(&opened).await;
        assert_eq!((t.sent().len(), t.server.lock().opens.len()), (2, 0));
    }
    t.check();
}

/// Upcalls from the client, with the number of DELEGRETURNs that the server had seen.
#[derive(Default)]
pub(super) struct UpcallLog {
    server: Server,
    revoked: Mutex<Vec<(Fh, usize)>>,
    all: AtomicU64,
    slowly: Duration,
    /// Delayed writes of the layer above.
    unsent: Mutex<Option<Unsent>>,
}

impl UpcallLog {
    /// Sets the delayed writes of the layer above.
    pub fn hold(&self, unsent: Unsent) {
        *self.unsent.lock() = Some(unsent);
    }
}

impl Upcalls for UpcallLog {
    fn unsent(&self, _fh: &Fh) -> Unsent {
        self.unsent.lock().unwrap_or(Unsent::More)
    }

    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        self.revoked.lock().push((fh.clone(), self.server.count("DELEGRETURN")));
        let slowly = self.slowly;
        Box::pin(async move { tokio::time::sleep(slowly).await })
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        self.all.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {})
    }
}

pub(super) async fn leased(files: &[&str], slowly: Duration) -> (Test, Arc<UpcallLog>) {
    leased_with(files, slowly, |_| ()).await
}

/// As [`leased`], of a server that `prepare` sets up.
pub(super) async fn leased_with(
    files: &[&str],
    slowly: Duration,
    prepare: impl Fn(&mut server::State),
) -> (Test, Arc<UpcallLog>) {
    let prepare = |s: &mut server::State| {
        s.delegate = true;
        prepare(s);
    };
    let t = tree(prepare, &["dir"], files).await;
    let told = Arc::new(UpcallLog { server: t.server.clone(), slowly, ..UpcallLog::default() });
    t.v4.subscribe(told.clone());
    (t, told)
}

impl Test {
    async fn validity(&self, file: &str) -> Validity {
        self.v4.getattr(&cx(), File { fh: &fh(file), open: None }).await.unwrap().valid
    }
}

/// A delegation is a lease on attributes until its recall. The recall is answered at once. The
/// layer above drops its data first, then the delegation is returned.
/// Promise: 8a
#[tokio::test(start_paused = true)]
async fn recall_drops_cache_before_delegreturn() {
    for slowly in [Duration::from_millis(500), Duration::from_secs(100)] {
        let (t, told) = leased(&["f"], slowly).await;
        assert!(matches!(t.validity("f").await, Validity::Until(_)));
        let trail = t.walk(&["f"], WANT).await;
        assert_eq!(trail.steps[0].attrs.valid, Validity::Lease);
        assert_eq!(t.validity("f").await, Validity::Lease);
        t.server.recall(delegation("f"), "f");
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(t.server.lock().callbacks_answered, [Nfsstat4::OK]);
        assert_eq!(*told.revoked.lock(), [(fh("f"), 0)]);
        assert!(matches!(t.validity("f").await, Validity::Until(_)));
        assert_eq!(t.server.count("DELEGRETURN"), 0);
        // The client waits at most two seconds for the layer above.
        tokio::time::sleep(slowly.min(Duration::from_secs(2))).await;
        assert_eq!(t.server.count("DELEGRETURN"), 1);
        t.check();
    }
}

/// Writes under a write delegation may be delayed. The return after a recall waits until they are
/// sent. After a restart of the server the delegation is reclaimed and returned.
/// Promise: 6a', S10c
#[tokio::test(start_paused = true)]
async fn delegreturn_waits_for_delayed_writes() {
    let (t, told) = leased(&["f", "g"], Duration::from_secs(100)).await;
    assert_eq!(t.v4.delegated_bytes(&fh("f")), None);
    t.walk(&["f"], WANT).await;
    assert_eq!(t.v4.delegated_bytes(&fh("f")), None, "it is delegated for reading");
    t.server.lock().delegate_writers = true;
    let (f, g) = (t.create("f").await, t.create("g").await);
    assert_eq!([&f, &g].map(|o| t.v4.delegated_bytes(&o.node.fh)), [Some(1000); 2]);
    t.server.recall(delegation("f"), "f");
    tokio::time::sleep(Duration::from_secs(99)).await;
    assert_eq!((t.v4.delegated_bytes(&fh("f")), t.server.count("DELEGRETURN")), (None, 0));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(t.server.count("DELEGRETURN"), 1);

    t.restart();
    t.read(&g).await.unwrap();
    let log = t.server.lock().log.clone();
    let since = &log[log.iter().position(|l| l == "RESTART").unwrap()..];
    let count = |what: &str| since.iter().filter(|l| *l == what).count();
    assert_eq!((count("OPEN previous write"), count("OPEN previous")), (1, 1), "{since:?}");
    assert_eq!(t.v4.delegated_bytes(&g.node.fh), None);
    tokio::time::sleep(Duration::from_secs(101)).await;
    assert_eq!(t.server.count("DELEGRETURN"), 2);

    // The answer to CB_GETATTR includes all delayed writes. Otherwise the delegation is returned.
    let ask = async |waits| {
        *told.unsent.lock() = waits;
        t.server.ask_holder("g");
        tokio::time::sleep(Duration::from_secs(1)).await;
        t.server.lock().callbacks_answered.last().copied()
    };
    assert_eq!(ask(Some(Unsent::Nothing)).await, Some(Nfsstat4::BADHANDLE));
    let g = t.create("g").await;
    let attr = &g.node.attrs.attr;
    assert_eq!(ask(Some(Unsent::Nothing)).await, Some(Nfsstat4::OK));
    t.write(&g, 0, "moves `change`").await.unwrap();
    let bytes = |size_bytes| Some(Unsent::Bytes { size_bytes, mtime: None });
    assert_eq!(ask(bytes(500)).await, Some(Nfsstat4::OK));
    assert_eq!(ask(bytes(600)).await, Some(Nfsstat4::OK));
    assert_eq!(ask(Some(Unsent::Nothing)).await, Some(Nfsstat4::OK));
    let told_of = t.server.lock().told.clone();
    let (granted, more) = (Some(attr.change), Some(attr.change + 1));
    assert_eq!(told_of.iter().map(|(change, _)| *change).collect::<Vec<_>>(), [granted, more, more, granted]);
    assert_eq!(
        told_of[..3].iter().map(|(_, size)| *size).collect::<Vec<_>>(),
        [Some(attr.size_bytes), Some(500), Some(600)]
    );
    assert_eq!(t.v4.delegated_bytes(&g.node.fh), Some(1000));
    assert_eq!(ask(None).await, Some(Nfsstat4::DELAY));
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!((t.v4.delegated_bytes(&g.node.fh), t.server.count("DELEGRETURN")), (None, 3));
    let counts = t.v4.delegated().counts();
    assert_eq!((counts.getattrs, counts.recalls, counts.writing), (6, 1, 0));

    // The state of a server after the end of the lease is unknown.
    let g = t.create("g").await;
    assert_eq!(t.v4.delegated_bytes(&g.node.fh), Some(1000));
    t.net.cut(Cut::BlackHole);
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(t.v4.delegated_bytes(&g.node.fh), None);
}

/// Data that is correct only under exclusion of other clients is written under the delegation, to
/// stable storage. After the end of the delegation the WRITE is refused. The same holds after a
/// restart of the server and after the end of the lease. The open's stateid never replaces the
/// delegation's.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn only_held_write_needs_delegation() {
    let (t, _told) = leased(&["f", "g"], Duration::ZERO).await;
    t.server.lock().delegate_writers = true;
    let held = |o: &Opened, text: &'static str| {
        let (cx, o) = (RequestContext { only_held: true, ..cx() }, o.clone());
        let v4 = t.v4.clone();
        async move { v4.write(&cx, file(&o), 0, Bytes::from(text).into(), Stability::Unstable).await }
    };
    let f = t.create("f").await;
    held(&f, "one").await.unwrap();
    assert_eq!(t.server.lock().files["f"].stable[..3], *b"one");
    // Only the delegation has ended; the open remains.
    t.server.lock().delegations_end = true;
    assert_eq!(held(&f, "two").await.unwrap_err().errno, libc::EAGAIN);
    assert_eq!(t.read(&f).await.unwrap()[..3], *b"one");
    t.write(&f, 0, "own").await.unwrap();
    t.server.expire();
    assert_eq!(held(&f, "two").await.unwrap_err().errno, libc::EAGAIN);
    assert_eq!(t.read(&f).await.unwrap()[..3], *b"own");
}

/// After a recall that overtakes the reply granting the delegation there is no lease.
#[tokio::test(start_paused = true)]
async fn a_recall_before_the_grant() {
    let (t, _told) = leased(&["f"], Duration::ZERO).await;
    t.server.lock().hold = Some(NfsOpnum4::OPEN);
    let server = t.server.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.recall(delegation("f"), "f");
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.lock().hold = None;
    });
    let trail = t.walk(&["f"], WANT).await;
    assert!(trail.along.first.is_some());
    assert!(matches!(trail.steps[0].attrs.valid, Validity::Until(_)));
    assert!(matches!(t.validity("f").await, Validity::Until(_)));
    assert_eq!(t.server.lock().callbacks_answered, [Nfsstat4::OK]);
    assert_eq!(t.server.count("DELEGRETURN"), 1);
    t.check();
}

/// Without a subscriber for its end there is no lease.
#[tokio::test(start_paused = true)]
async fn lease_needs_subscriber() {
    let t = tree(|s| s.delegate = true, &[], &["f"]).await;
    assert!(matches!(t.walk(&["f"], WANT).await.steps[0].attrs.valid, Validity::Until(_)));
}

/// Delegations stay after the last close. Surplus delegations are returned in batches. A removal
/// returns the delegation in its compound. The end of the mount returns all.
#[tokio::test(start_paused = true)]
async fn delegations_are_kept_and_bounded() {
    let names: Vec<String> = (0..130).map(|i| format!("f{i}")).collect();
    let files: Vec<&str> = names.iter().map(String::as_str).collect();
    let (t, told) = leased(&files, Duration::ZERO).await;
    t.v4.core.delegations.most.store(100, Ordering::Relaxed);
    let all: Vec<Fh> = names.iter().map(|n| fh(n)).collect();
    let opened = t.v4.open(&cx(), PathRef::fh(&all[0]), &how(Create::No)).await.unwrap();
    t.close(&opened).await;
    assert_eq!(t.validity("f0").await, Validity::Lease);
    for (fh, read) in all.iter().zip(t.v4.read_many(&cx(), &all, None, 5).await.files) {
        assert_eq!(read.unwrap().attrs.valid, Validity::Lease, "{fh:?}");
    }
    t.sent();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((told.revoked.lock().len(), t.server.count("DELEGRETURN")), (40, 40));
    assert_eq!(t.sent(), [80]);
    assert_eq!(t.validity("f129").await, Validity::Lease);
    t.v4.unlink(&cx(), &t.root, &name("f129"), Some(&all[129])).await.unwrap();
    assert_eq!(t.server.count("DELEGRETURN"), 41);
    // One GETATTR, and one compound that returns and removes.
    assert_eq!(t.sent(), [2, 8]);
    t.v4.shutdown(&cx()).await.unwrap();
    assert_eq!(t.server.count("DELEGRETURN"), 130);
    assert_eq!(t.sent().len(), 2);
    t.check();
}

/// Leases end with the client's lease during any absence of the server, and with the client itself.
/// Promise: 8a
#[tokio::test(start_paused = true)]
async fn leases_end_with_the_clients_lease() {
    let (t, told) = leased(&["f"], Duration::ZERO).await;
    t.walk(&["f"], WANT).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(told.all.load(Ordering::Relaxed), 0);
    t.net.cut(Cut::BlackHole);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(told.all.load(Ordering::Relaxed), 1);
    t.server.expire();
    t.net.heal();
    assert!(matches!(t.validity("f").await, Validity::Until(_)));
    assert!(told.all.load(Ordering::Relaxed) > 1);
    t.check();
}

/// The parent is one compound with LOOKUPP. The parent of the root needs no call.
#[tokio::test(start_paused = true)]
async fn parent_is_one_compound() {
    let t = tree(|_| {}, &["a"], &[]).await;
    let node = t.v4.parent(&cx(), &fh("a")).await.unwrap();
    assert_eq!((node.fh, node.attrs.attr.kind), (t.root.clone(), FileKind::Directory));
    // PUTFH LOOKUPP GETFH GETATTR.
    assert_eq!(t.sent(), [4]);
    assert_eq!(t.v4.parent(&cx(), &t.root).await.map_err(|e| e.errno).unwrap_err(), libc::ENOENT);
    assert!(t.sent().is_empty());
}
