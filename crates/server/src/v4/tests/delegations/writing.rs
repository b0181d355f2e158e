//! Write delegations: no client sees older data than the holder's delayed writes.

use super::*;
use hither_vfs::{Cred, Data, File, RequestContext, Stability, Vfs};
use std::collections::HashMap;

/// Opens for writing. Returns the write delegation, when there is one.
async fn to_write(c: &mut Client, name: &str) -> Option<Stateid> {
    match c.open_as(name, RW, None).await.unwrap().delegation {
        OpenDelegation::Write(d) => Some(d.stateid),
        OpenDelegation::None | OpenDelegation::NoneExt(_) => None,
        other => panic!("{other:?}"),
    }
}

fn write(id: Stateid, bytes: &'static [u8]) -> Op {
    Op::write(id, 0, StableHow::FILE_SYNC, Bytes::from_static(bytes))
}

/// Only a client that is alone with a file gets a write delegation. The holder uses the file
/// freely, and keeps the delegation after the close.
/// Promise: S10a
#[tokio::test(start_paused = true)]
async fn sole_client_gets_write_delegation() {
    let (lab, fh) = lab().await;
    let (mut a, mut b) = (callable(&lab, "a").await, callable(&lab, "b").await);
    let open = b.open_as("f", READ | bits::WANT_NO_DELEG, None).await.unwrap().stateid;
    assert_eq!(to_write(&mut a, "f").await, None, "another client has it open for reading");
    b.run(vec![Op::putfh(&fh), Op::Close(CloseArgs { seqid: 0, stateid: open })]).await;
    let opened = a.open_as("f", RW, None).await.unwrap();
    let OpenDelegation::Write(d) = &opened.delegation else { panic!("{:?}", opened.delegation) };
    assert!(matches!(d.space_limit, SpaceLimit::Size(n) if n > 8), "{:?}", d.space_limit);
    assert!(!d.recall);
    let id = d.stateid;
    assert_eq!(to_write(&mut a, "f").await, None, "it has one");
    let size =
        |n| Op::Setattr(SetattrArgs { stateid: id, attrs: Attrs { size: Some(n), ..Attrs::default() } });
    let mode = Attrs { mode: Some(0o640), ..Attrs::default() };
    let mode = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attrs: mode });
    let ops = vec![
        Op::putfh(&fh),
        write(id, b"delayed"),
        size(3),
        mode,
        Op::read(id, 0, 9),
        Op::Getattr(Bitmap4::of(&[attr::SIZE])),
        Op::Close(CloseArgs { seqid: 0, stateid: opened.stateid.any_seqid() }),
        write(id, b"again"),
    ];
    assert_eq!(a.status(ops).await, Nfsstat4::OK);
    for claim in [OpenClaim::DelegCurFh(id), OpenClaim::Fh] {
        let open = Op::Open(open_args("o2", RW, 0, claim, false));
        assert_eq!(a.status(vec![Op::putfh(&fh), open]).await, Nfsstat4::OK);
    }
    a.wire.listening(Duration::from_secs(1)).await;
    assert_eq!(a.wire.recalls(), [], "its own operations recall nothing");
    assert_eq!(b.status(vec![Op::putfh(&fh), write(id, b"x")]).await, Nfsstat4::BAD_STATEID);
    assert_eq!(a.give_back(&fh, id).await, Ok(()));
    assert_eq!(a.status(vec![Op::putfh(&fh), write(id, b"x")]).await, Nfsstat4::BAD_STATEID);
}

/// A read or open of the file by another client waits until the holder's delayed writes have
/// arrived.
/// Promise: S10a
#[tokio::test(start_paused = true)]
async fn conflicting_use_recalls_write_delegation() {
    let (lab, fh) = lab().await;
    let mut holder = callable(&lab, "holder").await;
    let mut other = lab.client("other").await;
    other.reclaim_complete().await;
    let open = |access, claim| Op::Open(open_args("x", access, 0, claim, false));
    let null = || OpenClaim::Null(b"f"[..].into());
    let list = Op::Readdir(ReaddirArgs {
        cookie: 0,
        cookieverf: [0; 8],
        dircount: 1000,
        maxcount: 4000,
        attr_request: Bitmap4::of(&[attr::SIZE]),
    });
    let lockt = Op::Lockt(LocktArgs {
        locktype: LockType::WRITE,
        offset: 0,
        length: 1,
        owner: StateOwner { clientid: 0, owner: b"o"[..].into() },
    });
    let close = Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT });
    let looks: Vec<(&str, Vec<Op>)> = vec![
        ("read", vec![Op::putfh(&fh), Op::read(Stateid::ANONYMOUS, 0, 9)]),
        ("getattr", vec![Op::putfh(&fh), Op::Getattr(Bitmap4::of(&[attr::SIZE]))]),
        ("lookup", vec![Op::Putrootfh, Op::lookup(b"f"), Op::Getattr(Bitmap4::of(&[attr::CHANGE]))]),
        ("access", vec![Op::putfh(&fh), Op::Access(1)]),
        ("list", vec![Op::Putrootfh, list]),
        ("lockt", vec![Op::putfh(&fh), lockt]),
        ("open by name", vec![Op::Putrootfh, open(READ, null()), close.clone()]),
        ("open", vec![Op::putfh(&fh), open(READ, OpenClaim::Fh), close.clone()]),
        ("open to write", vec![Op::putfh(&fh), open(bits::SHARE_ACCESS_WRITE, OpenClaim::Fh), close]),
        ("write", vec![Op::putfh(&fh), write(Stateid::ANONYMOUS, b"data")]),
    ];
    for (what, ops) in looks {
        // The time without delegations grows with each recall.
        tokio::time::sleep(Duration::from_secs(100)).await;
        for c in [&mut holder, &mut other] {
            c.run(vec![]).await;
        }
        let opened = holder.open_as("f", RW, None).await.unwrap();
        let id = opened.delegation.stateid().unwrap_or_else(|| panic!("{what}: no delegation"));
        let shut = Op::Close(CloseArgs { seqid: 0, stateid: opened.stateid });
        assert_eq!(holder.status(vec![Op::putfh(&fh), shut]).await, Nfsstat4::OK);
        let turn = tokio::time::timeout(Duration::from_secs(60), other.status(ops.clone()));
        assert_eq!(turn.await.unwrap(), Nfsstat4::DELAY, "{what}");
        holder.wire.listening(Duration::from_secs(2)).await;
        assert!(holder.wire.recalls().contains(&id), "{what}");
        assert_eq!(holder.status(vec![Op::putfh(&fh), write(id, b"delayed")]).await, Nfsstat4::OK, "{what}");
        assert_eq!(other.status(ops.clone()).await, Nfsstat4::DELAY, "{what}");
        holder.give_back(&fh, id).await.unwrap();
        assert_eq!(other.status(ops).await, Nfsstat4::OK, "{what}");
    }
}

/// READ, GETATTR and ACCESS of NFSv3 recall the delegation. LOOKUP and listings return no
/// attributes of the file and wait for no holder.
/// Promise: S10a
#[tokio::test(start_paused = true)]
async fn nfsv3_reads_recall_delegation() {
    let (lab, fh) = lab().await;
    let mut holder = callable(&lab, "holder").await;
    let mut wire = lab.connect();
    let root = wire.root3("/").await;
    let file = || nfs3::Fh3::from(&fh[..]);
    for round in 0..3 {
        tokio::time::sleep(Duration::from_secs(100)).await;
        holder.run(vec![]).await;
        let id = to_write(&mut holder, "f").await.unwrap();
        let what = nfs3::Diropargs3 { dir: root.clone(), name: b"f"[..].into() };
        let found = wire.call(&nfs3::LookupArgs { what }).await.into_result().unwrap();
        assert_eq!(found.obj_attributes, None);
        let plus = nfs3::ReaddirplusArgs {
            dir: root.clone(),
            cookie: 0,
            cookieverf: [0; 8],
            dircount: 4000,
            maxcount: 8000,
        };
        let list = wire.call(&plus).await.into_result().unwrap();
        let entry = list.entries.0.iter().find(|e| &e.name[..] == b"f").unwrap();
        assert_eq!(entry.name_attributes, None);
        let mut look = async || match round {
            0 => wire.call(&nfs3::ReadArgs { file: file(), offset: 0, count: 9 }).await.status(),
            1 => wire.call(&nfs3::GetattrArgs { object: file() }).await.status(),
            _ => wire.call(&nfs3::AccessArgs { object: file(), access: 1 }).await.status(),
        };
        assert_eq!(look().await, nfs3::Nfsstat3::JUKEBOX);
        holder.wire.listening(Duration::from_secs(1)).await;
        assert!(holder.wire.recalls().contains(&id));
        holder.give_back(&fh, id).await.unwrap();
        assert_eq!(look().await, nfs3::Nfsstat3::OK);
    }
}

/// A holder that does not return its delegation loses it when its lease has certainly expired. Its
/// delayed writes then come too late.
/// Promise: S10a
#[tokio::test(start_paused = true)]
async fn unreturned_write_delegation_is_revoked() {
    for silent in [true, false] {
        let (lab, fh) = lab().await;
        let mut holder = callable(&lab, "holder").await;
        let mut wire = lab.connect();
        let id = to_write(&mut holder, "f").await.unwrap();
        holder.wire.deaf = silent;
        let begun = Instant::now();
        let read = nfs3::ReadArgs { file: fh[..].into(), offset: 0, count: 9 };
        loop {
            match wire.call(&read).await.status() {
                nfs3::Nfsstat3::OK => break,
                status => assert_eq!(status, nfs3::Nfsstat3::JUKEBOX),
            }
            if !silent {
                holder.run(vec![]).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let took = begun.elapsed();
        assert!(took >= LEASE, "{silent}: {took:?}");
        assert!(took < 2 * LEASE + Duration::from_secs(25), "{silent}: {took:?}");
        assert_ne!(holder.flags().await & seq4_status::RECALLABLE_STATE_REVOKED, 0);
        assert_eq!(holder.status(vec![Op::putfh(&fh), write(id, b"late")]).await, Nfsstat4::DELEG_REVOKED);
        assert_eq!(holder.status(vec![Op::FreeStateid(id)]).await, Nfsstat4::OK);
        assert!(!lab.server.v4.leases.may_be_delayed());
    }
}

/// After a restart no client reads a file before the clients with delayed writes are back, or can
/// no longer have any.
/// Promise: S10a
#[tokio::test(start_paused = true)]
async fn restart_waits_for_delayed_writes() {
    for comes_back in [true, false] {
        let (model, dir) = (model(), tempfile::tempdir().unwrap());
        let state = Some(dir.path().to_path_buf());
        let lab = Lab::new(&model, "/", 2, state.clone());
        let fh = begin(&lab).await;
        let mut holder = callable(&lab, "holder").await;
        to_write(&mut holder, "f").await.unwrap();
        drop(lab);
        let lab = Lab::new(&model, "/", 3, state.clone());
        tokio::spawn(lab.server.clone().tend());
        let mut wire = lab.connect();
        let root = wire.root3("/").await;
        let read = nfs3::ReadArgs { file: fh[..].into(), offset: 0, count: 9 };
        let mut other = lab.client("other").await;
        other.run(vec![Op::ReclaimComplete(false)]).await.reclaim_complete().unwrap();
        let size = || Op::Getattr(Bitmap4::of(&[attr::SIZE]));
        assert_eq!(wire.call(&read).await.status(), nfs3::Nfsstat3::JUKEBOX);
        assert_eq!(wire.call(&nfs3::GetattrArgs { object: root }).await.status(), nfs3::Nfsstat3::OK);
        assert_eq!(other.status(vec![Op::putfh(&fh), size()]).await, Nfsstat4::DELAY);
        assert_eq!(other.status(vec![Op::Putrootfh, size()]).await, Nfsstat4::OK);
        assert_eq!(other.open_as("f", READ, None).await.unwrap_err(), Nfsstat4::GRACE);
        if !comes_back {
            tokio::time::sleep(LEASE + Duration::from_secs(5)).await;
            let read = wire.call(&read).await.into_result().unwrap();
            assert_eq!(&read.data[..], b"original");
            continue;
        }
        let mut holder = Client::with(lab.connect(), "holder", 1, create_session::CONN_BACK_CHAN).await;
        let open = Op::Open(open_args("o", RW, 0, OpenClaim::Previous(DelegationType::WRITE), false));
        let mut r = holder.run(vec![Op::putfh(&fh), open, size()]).await;
        r.putfh().unwrap();
        let OpenDelegation::Write(d) = r.open().unwrap().delegation else { panic!("no delegation") };
        r.getattr().unwrap();
        assert_eq!(holder.status(vec![Op::putfh(&fh), write(d.stateid, b"delayed!")]).await, Nfsstat4::OK);
        holder.reclaim_complete().await;
        let mut maker = lab.client("maker").await;
        maker.reclaim_complete().await;
        assert_eq!(wire.call(&read).await.status(), nfs3::Nfsstat3::JUKEBOX, "the holder still has it");
        holder.give_back(&fh, d.stateid).await.unwrap();
        assert_eq!(&wire.call(&read).await.into_result().unwrap().data[..], b"delayed!");
    }
}

/// A client that delays its writes as long as it may.
struct Delayer {
    c: Client,
    /// The delegation, whether it is for writing, the client's data, and whether the server lacks
    /// that data.
    held: Option<(Stateid, bool, Bytes, bool)>,
    /// `change` at the grant of the write delegation.
    granted: u64,
}

/// One file, and the clients and local programs that use it.
struct World {
    random: Arc<dyn Fn() -> u64 + Send + Sync>,
    model: Arc<Model>,
    fh: Fh,
    file: VfsFh,
    watched: Arc<AtomicUsize>,
    told: Arc<ChangeListener>,
    clients: Vec<Delayer>,
    acknowledged: Bytes,
    /// Numbers of reads from memory and of delayed writes.
    counts: (usize, usize),
    /// The file's data under each `change` that clients have got.
    known: HashMap<u64, Bytes>,
    /// Number of GETATTRs of delayed data that recalled nothing.
    looks: usize,
}

impl World {
    fn pick(&self, n: usize) -> usize {
        (self.random)() as usize % n
    }

    /// The data of the next write, of random length.
    fn value(&self, step: usize) -> Bytes {
        Bytes::from(format!("{step:08}{}", "x".repeat(self.pick(9))))
    }

    /// Runs while an operation waits: holders receive recalls and return their delegations sooner
    /// or later.
    async fn meanwhile(&mut self) {
        for i in 0..self.clients.len() {
            self.clients[i].c.wire.listening(Duration::from_millis(1)).await;
            let recalls = self.clients[i].c.wire.recalls();
            if let Some((id, _, bytes, _)) = &self.clients[i].held {
                assert_eq!(*bytes, self.acknowledged, "as long as it is held");
                self.counts.0 += 1;
                if recalls.contains(id) {
                    self.give_back(i).await;
                    continue;
                }
            }
            self.clients[i].c.run(vec![]).await;
        }
    }

    async fn flush(&mut self, i: usize) {
        let fh = self.fh.clone();
        let Some((id, _, bytes, dirty)) = &mut self.clients[i].held else { return };
        if std::mem::take(dirty) {
            let attrs = Attrs { size: Some(bytes.len() as u64), ..Attrs::default() };
            let size = Op::Setattr(SetattrArgs { stateid: *id, attrs });
            let write = Op::write(*id, 0, StableHow::FILE_SYNC, bytes.clone());
            assert_eq!(self.clients[i].c.status(vec![Op::putfh(&fh), write, size]).await, Nfsstat4::OK);
        }
    }

    async fn give_back(&mut self, i: usize) {
        self.flush(i).await;
        let fh = self.fh.clone();
        if let Some((id, ..)) = self.clients[i].held.take() {
            self.clients[i].c.give_back(&fh, id).await.unwrap();
        }
    }

    /// Executes operations of a client, and repeats them after "try later".
    async fn run(&mut self, i: usize, ops: Vec<Op>) -> CompoundReply {
        loop {
            let c = &mut self.clients[i].c;
            c.seq += 1;
            let all = std::iter::once(c.sequence(true)).chain(ops.clone()).collect();
            let reply = c.wire.call(&Compound::new(2, all)).await;
            match reply.status {
                Nfsstat4::OK => return reply,
                status => assert_eq!(status, Nfsstat4::DELAY),
            }
            self.meanwhile().await;
        }
    }

    async fn read(&mut self, i: usize) {
        self.clients[i].c.wire.listening(Duration::from_millis(1)).await;
        if let Some((_, _, bytes, _)) = &self.clients[i].held {
            assert_eq!(*bytes, self.acknowledged);
            self.counts.0 += 1;
            return;
        }
        let open = Op::Open(open_args("o", READ, 0, OpenClaim::Null(b"f"[..].into()), false));
        let close = Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT });
        let size = Op::Getattr(Bitmap4::of(&[attr::SIZE, attr::CHANGE]));
        let ops = vec![Op::Putrootfh, open, Op::read(Stateid::CURRENT, 0, 100), size, close];
        let reply = self.run(i, ops).await;
        let mut r = reply.results();
        r.sequence().unwrap();
        r.putrootfh().unwrap();
        let delegation = r.open().unwrap().delegation;
        let bytes = Bytes::copy_from_slice(&r.read().unwrap().data);
        assert_eq!(bytes, self.acknowledged);
        let attrs = r.getattr().unwrap();
        assert_eq!(attrs.size, Some(bytes.len() as u64));
        self.is_known(attrs.change.unwrap());
        self.clients[i].held = delegation.stateid().map(|id| (id, false, bytes, false));
    }

    /// A GETATTR, which the holder may answer.
    async fn look(&mut self, i: usize) {
        let ops = vec![Op::putfh(&self.fh), Op::Getattr(Bitmap4::of(&[attr::SIZE, attr::CHANGE]))];
        let (shown, dirty) = loop {
            let holder = self.clients.iter().position(|c| matches!(c.held, Some((_, true, ..))));
            let Some(holder) = holder.filter(|h| *h != i) else {
                break (self.run(i, ops).await, false);
            };
            let [asker, holder] = self.clients.get_disjoint_mut([i, holder]).unwrap();
            let Some((_, _, bytes, dirty)) = &holder.held else { panic!("the holder has it") };
            let (bytes, dirty) = (bytes.len() as u64, *dirty);
            holder.c.wire.tells = vec![(holder.granted + u64::from(dirty), bytes)];
            asker.c.seq += 1;
            let all = std::iter::once(asker.c.sequence(true)).chain(ops.clone()).collect();
            let call = Compound::new(2, all);
            let reply = tokio::select! {
                biased;
                reply = asker.c.wire.call(&call) => reply,
                () = holder.c.wire.listen() => panic!("it listens forever"),
            };
            match reply.status {
                Nfsstat4::OK => break (reply, dirty),
                status => assert_eq!(status, Nfsstat4::DELAY),
            }
            self.meanwhile().await;
        };
        let mut r = shown.results();
        r.sequence().unwrap();
        r.putfh().unwrap();
        let shown = r.getattr().unwrap();
        assert_eq!(shown.size, Some(self.acknowledged.len() as u64));
        self.is_known(shown.change.unwrap());
        self.looks += usize::from(dirty);
    }

    /// Checks that this `change` belongs to the file's current data and to no other data.
    fn is_known(&mut self, change: u64) {
        let known = self.known.entry(change).or_insert_with(|| self.acknowledged.clone());
        assert_eq!(*known, self.acknowledged, "{change:x}");
    }

    async fn write(&mut self, i: usize, step: usize) {
        let value = self.value(step);
        if let Some((_, true, bytes, dirty)) = &mut self.clients[i].held {
            (*bytes, *dirty) = (value.clone(), true);
            self.acknowledged = value;
            self.counts.1 += 1;
            return;
        }
        // The client's own read delegation conflicts.
        self.give_back(i).await;
        let open = Op::Open(open_args("o", RW, 0, OpenClaim::Null(b"f"[..].into()), false));
        let attrs = Attrs { size: Some(value.len() as u64), ..Attrs::default() };
        let size = Op::Setattr(SetattrArgs { stateid: Stateid::CURRENT, attrs });
        let write = Op::write(Stateid::CURRENT, 0, StableHow::FILE_SYNC, value.clone());
        let close = Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT });
        let change = Op::Getattr(Bitmap4::of(&[attr::CHANGE]));
        let reply = self.run(i, vec![Op::Putrootfh, open, write, size, change, close]).await;
        let mut r = reply.results();
        r.sequence().unwrap();
        r.putrootfh().unwrap();
        let delegation = r.open().unwrap().delegation;
        r.write().unwrap();
        r.setattr().unwrap();
        self.acknowledged = value.clone();
        self.clients[i].granted = r.getattr().unwrap().change.unwrap();
        self.is_known(self.clients[i].granted);
        self.clients[i].held = delegation.stateid().map(|id| (id, true, value, false));
    }

    /// A local program opens the file. It waits until the watch ends.
    async fn opened_locally(&mut self) -> RequestContext {
        (self.told)(&self.file);
        while self.watched.load(SeqCst) > 0 {
            self.meanwhile().await;
        }
        RequestContext::new(Arc::new(Cred::root()))
    }

    async fn read_locally(&mut self) {
        let cx = self.opened_locally().await;
        let read = self.model.read(&cx, File { fh: &self.file, open: None }, 0, 100).await.unwrap();
        assert_eq!(read.data.into_bytes(), self.acknowledged);
    }

    async fn write_locally(&mut self, step: usize) {
        let cx = self.opened_locally().await;
        let (value, file) = (self.value(step), File { fh: &self.file, open: None });
        let size = hither_vfs::SetAttr { size_bytes: Some(value.len() as u64), ..Default::default() };
        self.model.write(&cx, file, 0, Data::from(value.clone()), Stability::Stable).await.unwrap();
        self.model.setattr(&cx, file, &size).await.unwrap();
        self.acknowledged = value;
    }
}

/// Clients that cache and delay writes, an NFSv3 client, and local programs. Every read returns the
/// last written data, whether from memory, from the server or from its disk.
/// Promise: S10a
#[tokio::test(start_paused = true)]
async fn every_read_sees_last_write() {
    let random = env(78).random;
    let (mut from_memory, mut delayed, mut looks) = (0, 0, 0);
    for _ in 0..12 {
        let model: Arc<Model> = model();
        let watched: Arc<AtomicUsize> = Arc::default();
        let watcher =
            Arc::new(Watcher { told: Mutex::default(), can: true, alone: true, watched: watched.clone() });
        let lab = Lab::beside(&model, "/", (random)(), None, Others::Watched(watcher.clone()));
        let fh = begin(&lab).await;
        let told = watcher.told.lock().clone().unwrap();
        let Some(crate::handle::Handle::Object(_, file)) = crate::handle::Handle::read(&fh) else {
            panic!("an object")
        };
        let mut clients = Vec::new();
        for name in ["a", "b", "c"] {
            clients.push(Delayer { c: callable(&lab, name).await, held: None, granted: 0 });
        }
        let mut wire = lab.connect();
        let acknowledged = Bytes::from_static(b"original");
        let random = random.clone();
        let (counts, known) = ((0, 0), HashMap::new());
        let mut w =
            World { random, model, fh, file, watched, told, clients, acknowledged, counts, known, looks: 0 };
        for step in 0..300 {
            // A file that is recalled again and again is not delegated for some seconds. After them
            // the first client to open it gets it.
            let rests = w.pick(6) == 0;
            if rests {
                for i in 0..3 {
                    w.give_back(i).await;
                }
            }
            let pause_ms = if rests { 15_000 } else { (w.random)() % 400 };
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            for client in &mut w.clients {
                client.c.run(vec![]).await;
            }
            let holder = w.clients.iter().position(|c| c.held.as_ref().is_some_and(|(_, write, ..)| *write));
            let i = holder.filter(|_| w.pick(4) > 0).unwrap_or_else(|| w.pick(3));
            let does = if rests { 8 } else { w.pick(40) };
            match does {
                0..8 => w.read(i).await,
                8..18 => w.write(i, step).await,
                18 => w.flush(i).await,
                19 => w.give_back(i).await,
                20 => w.read_locally().await,
                21 => w.write_locally(step).await,
                // Another client than the holder looks.
                24..40 => {
                    let other = w.pick(2);
                    w.look(holder.map_or(i, |h| (h + 1 + other) % 3)).await;
                }
                _ => {
                    let read = nfs3::ReadArgs { file: w.fh[..].into(), offset: 0, count: 100 };
                    let read = loop {
                        match wire.call(&read).await {
                            nfs3::Res::Ok(read) => break read,
                            nfs3::Res::Err(status, _) => assert_eq!(status, nfs3::Nfsstat3::JUKEBOX),
                        }
                        w.meanwhile().await;
                    };
                    assert_eq!(read.data[..], w.acknowledged[..]);
                }
            }
        }
        from_memory += w.counts.0;
        delayed += w.counts.1;
        looks += w.looks;
    }
    assert!(from_memory > 300, "{from_memory} reads from memory prove nothing");
    assert!(delayed > 100, "{delayed} delayed writes prove nothing");
    assert!(looks > 100, "{looks} looks at delayed writes prove nothing");
}
