//! Delegations of directories: the names stay the same until another client wants to change them.

use super::*;
use crate::Options;
use crate::tests::crossings;

fn ask() -> Op {
    Op::GetDirDelegation(GetDirDelegationArgs {
        signal_deleg_avail: false,
        notification_types: Bitmap4::EMPTY,
        child_attr_delay: Time::default(),
        dir_attr_delay: Time::default(),
        child_attributes: Bitmap4::EMPTY,
        dir_attributes: Bitmap4::EMPTY,
    })
}

fn at_root(op: Op) -> Vec<Op> {
    vec![Op::Putrootfh, op]
}

fn in_d(op: Op) -> Vec<Op> {
    vec![Op::Putrootfh, Op::lookup(b"d"), op]
}

fn mkdir(name: &'static [u8]) -> Op {
    Op::create(CreateType::Dir, name, Attrs { mode: Some(0o755), ..Attrs::default() })
}

fn make(name: &'static [u8]) -> Op {
    Op::Open(open_args("m", RW | bits::WANT_NO_DELEG, 0, OpenClaim::Null(name.into()), true))
}

impl Client {
    /// The delegation of the directory to which `to` leads, when there is one.
    async fn of_directory(&mut self, to: Vec<Op>) -> Option<Stateid> {
        let mut r = self.run(to).await;
        while r.remaining() > 1 {
            r.take_any();
        }
        match r.get_dir_delegation().unwrap() {
            GetDirDelegationOk::Granted(d) => {
                assert!(d.notification.is_empty(), "nothing is notified");
                Some(d.stateid)
            }
            GetDirDelegationOk::Unavail(will_signal) => {
                assert!(!will_signal);
                None
            }
        }
    }

    async fn handle(&mut self, to: Op) -> Fh {
        let mut r = self.run(vec![Op::Putrootfh, to, Op::Getfh]).await;
        r.putrootfh().unwrap();
        r.take_any();
        r.getfh().unwrap()[..].into()
    }

    /// Waits until recalled directories can be delegated again, and renews the lease.
    async fn rest(&mut self) {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(40)).await;
            self.run(vec![]).await;
        }
    }
}

/// A server with the directory `d`, which contains `f`, `g` and the directory `e`. Returns the
/// handle of `d`.
async fn with_directory() -> (Lab, Fh) {
    let (lab, _) = lab().await;
    let mut maker = lab.client("maker of d").await;
    maker.reclaim_complete().await;
    let d = maker.handle(mkdir(b"d")).await;
    for op in [mkdir(b"e"), make(b"f"), make(b"g")] {
        assert_eq!(maker.status(in_d(op)).await, Nfsstat4::OK);
    }
    (lab, d)
}

/// A client with a working backchannel and rights to the directory gets a delegation. The
/// delegation then behaves like others.
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn server_grants_directory_delegations() {
    let (lab, d) = with_directory().await;
    let mut deaf = lab.client("deaf").await;
    assert_eq!(deaf.of_directory(in_d(ask())).await, None, "it has not sent RECLAIM_COMPLETE");
    deaf.reclaim_complete().await;
    assert_eq!(deaf.of_directory(in_d(ask())).await, None, "it cannot be called");
    let (mut a, mut b) = (callable(&lab, "a").await, callable(&lab, "b").await);
    assert_eq!(a.status(vec![Op::Putrootfh, Op::lookup(b"f"), ask()]).await, Nfsstat4::NOTDIR);
    let (of_a, of_b) =
        (a.of_directory(in_d(ask())).await.unwrap(), b.of_directory(in_d(ask())).await.unwrap());
    assert_ne!(of_a, of_b, "several clients may have a delegation");
    assert_eq!(a.of_directory(in_d(ask())).await, None, "it has one");
    assert!(a.of_directory(at_root(ask())).await.is_some(), "another directory has another delegation");
    assert_eq!(a.test(of_a).await, Nfsstat4::OK);
    assert_eq!(a.test(of_b).await, Nfsstat4::BAD_STATEID);
    assert_eq!(a.status(vec![Op::FreeStateid(of_a)]).await, Nfsstat4::LOCKS_HELD);
    assert_eq!(b.give_back(&d, of_a).await, Err(Nfsstat4::BAD_STATEID));
    assert_eq!(a.give_back(&d, of_a).await, Ok(()));
    assert_eq!(a.give_back(&d, of_a).await, Err(Nfsstat4::BAD_STATEID));
    assert!(a.of_directory(in_d(ask())).await.is_some(), "it may ask again");
}

/// The configured limit holds for files and directories together. A server without delegations does
/// not support the operation.
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn delegation_limit_covers_directories() {
    for most in [0, 1] {
        let options = Options { delegations_max: most, ..Options::new(env(2)) };
        let lab = Lab::with(&model(), "/", options, Others::Nobody);
        begin(&lab).await;
        let mut a = callable(&lab, "a").await;
        a.run(at_root(mkdir(b"d"))).await;
        if most == 0 {
            assert_eq!(a.status(in_d(ask())).await, Nfsstat4::NOTSUPP);
            continue;
        }
        assert!(a.of_directory(in_d(ask())).await.is_some());
        assert_eq!(a.of_directory(at_root(ask())).await, None);
        assert_eq!(a.delegation("f").await, None);
    }
}

/// Each operation that changes a directory's names or attributes recalls other clients'
/// delegations. It gets "try later" and succeeds after the return. The holder's own operations
/// succeed at once, and the holder keeps the delegation.
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn changes_of_a_directory_recall() {
    let (lab, d) = with_directory().await;
    let (mut holder, mut other) = (callable(&lab, "holder").await, lab.client("other").await);
    other.reclaim_complete().await;
    let name = |n: &str| n.as_bytes().into();
    let set = Op::Setattr(SetattrArgs {
        stateid: Stateid::ANONYMOUS,
        attrs: Attrs { mode: Some(0o700), ..Attrs::default() },
    });
    let rename = |from: Op, old: &str, to: Op, new: &str| {
        let rename = Op::Rename(RenameArgs { oldname: name(old), newname: name(new) });
        vec![Op::Putrootfh, from, Op::Savefh, Op::Putrootfh, to, rename]
    };
    let (here, there) = (|| Op::lookup(b"d"), || Op::Getfh);
    let link = vec![Op::Putrootfh, Op::lookup(b"f"), Op::Savefh, Op::putfh(&d), Op::Link(name("l"))];
    let changes: Vec<(&str, Vec<Op>)> = vec![
        ("mkdir", in_d(mkdir(b"new"))),
        ("symlink", in_d(Op::create(CreateType::Link(b"to"[..].into()), b"s", Attrs::default()))),
        ("mkfifo", in_d(Op::create(CreateType::Fifo, b"p", Attrs::default()))),
        ("create", in_d(make(b"made"))),
        ("link", link),
        ("unlink", in_d(Op::Remove(name("g")))),
        ("rmdir", in_d(Op::Remove(name("e")))),
        ("rename", rename(here(), "f", here(), "g")),
        ("rename away", rename(here(), "g", there(), "h")),
        ("rename to", rename(there(), "h", here(), "f")),
        ("chmod", in_d(set)),
        ("rename of itself", rename(there(), "d", there(), "d2")),
    ];
    for (what, ops) in changes {
        // The time without delegations grows with each recall.
        holder.rest().await;
        other.run(vec![]).await;
        let id = holder.of_directory(vec![Op::putfh(&d), ask()]).await;
        let id = id.unwrap_or_else(|| panic!("{what}: no delegation"));
        let turn = tokio::time::timeout(Duration::from_secs(60), other.status(ops.clone()));
        assert_eq!(turn.await.unwrap(), Nfsstat4::DELAY, "{what}");
        holder.wire.listening(Duration::from_secs(2)).await;
        assert!(holder.wire.recalls().contains(&id), "{what}");
        assert_eq!(other.status(ops.clone()).await, Nfsstat4::DELAY, "{what}");
        holder.give_back(&d, id).await.unwrap();
        assert_eq!(other.status(ops).await, Nfsstat4::OK, "{what}");
    }
    holder.rest().await;
    let id = holder.of_directory(vec![Op::putfh(&d), ask()]).await.unwrap();
    for op in [mkdir(b"own"), make(b"mine"), Op::Remove(name("own"))] {
        assert_eq!(holder.status(vec![Op::putfh(&d), op]).await, Nfsstat4::OK);
    }
    holder.wire.listening(Duration::from_secs(2)).await;
    assert_eq!(holder.wire.recalls(), [], "the holder's own changes recall nothing");
    assert_eq!(holder.test(id).await, Nfsstat4::OK);
}

/// A client that removes a directory delegated to it is not delayed. The delegation is recalled
/// afterwards.
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn own_rmdir_recalls_delegation() {
    let (lab, _) = with_directory().await;
    let mut holder = callable(&lab, "holder").await;
    let id =
        holder.of_directory(vec![Op::Putrootfh, Op::lookup(b"d"), Op::lookup(b"e"), ask()]).await.unwrap();
    assert_eq!(holder.status(in_d(Op::Remove(b"e"[..].into()))).await, Nfsstat4::OK);
    holder.wire.listening(Duration::from_secs(1)).await;
    assert_eq!(holder.wire.recalls(), [id]);
}

/// Operations that do not change the names recall nothing: reads, operations in other directories,
/// and opens with O_CREAT of existing files.
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn other_operations_do_not_recall() {
    let (lab, d) = with_directory().await;
    let (mut holder, mut other) = (callable(&lab, "holder").await, lab.client("other").await);
    other.reclaim_complete().await;
    holder.of_directory(in_d(ask())).await.unwrap();
    let list = Op::Readdir(ReaddirArgs {
        cookie: 0,
        cookieverf: [0; 8],
        dircount: 1000,
        maxcount: 4000,
        attr_request: Bitmap4::EMPTY,
    });
    let mut there = in_d(Op::lookup(b"e"));
    there.push(mkdir(b"below"));
    let again = Op::Open(open_args("m", RW, 0, OpenClaim::Null(b"f"[..].into()), true));
    for ops in
        [in_d(list), there, in_d(again), at_root(mkdir(b"beside")), vec![Op::putfh(&d), Op::Access(63)]]
    {
        assert_eq!(other.status(ops).await, Nfsstat4::OK);
    }
    holder.wire.listening(Duration::from_secs(1)).await;
    assert_eq!(holder.wire.recalls(), []);
}

/// Each operation of NFSv3 that changes a directory's names recalls other clients' delegations. It
/// gets JUKEBOX until the return.
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn nfsv3_change_recalls_directory() {
    let (lab, d) = with_directory().await;
    let mut holder = callable(&lab, "holder").await;
    let mut wire = lab.connect();
    let dir: nfs3::Fh3 = d[..].into();
    let at = |name: &str| nfs3::Diropargs3 { dir: dir.clone(), name: name.as_bytes().into() };
    let attributes = nfs3::Sattr3::default();
    let create = |how| nfs3::CreateArgs { r#where: at("made"), how };
    let later = nfs3::Nfsstat3::JUKEBOX;
    let id = holder.of_directory(in_d(ask())).await.unwrap();
    for how in [nfs3::Createhow3::Guarded(attributes), nfs3::Createhow3::Exclusive([1; 8])] {
        assert_eq!(wire.call(&create(how)).await.status(), later);
    }
    let mkdir = nfs3::MkdirArgs { r#where: at("made"), attributes };
    assert_eq!(wire.call(&mkdir).await.status(), later);
    let remove = nfs3::RemoveArgs { object: at("f") };
    assert_eq!(wire.call(&remove).await.status(), later);
    assert_eq!(wire.call(&nfs3::RmdirArgs { object: at("e") }).await.status(), later);
    assert_eq!(wire.call(&nfs3::RenameArgs { from: at("f"), to: at("h") }).await.status(), later);
    let file = holder.handle(Op::lookup(b"f")).await;
    let link = nfs3::LinkArgs { file: file[..].into(), link: at("l") };
    assert_eq!(wire.call(&link).await.status(), later);
    holder.wire.listening(Duration::from_secs(1)).await;
    assert!(holder.wire.recalls().contains(&id));
    holder.give_back(&d, id).await.unwrap();
    assert_eq!(wire.call(&remove).await.status(), nfs3::Nfsstat3::OK);
    assert_eq!(wire.call(&mkdir).await.status(), nfs3::Nfsstat3::OK);
}

/// A holder that does not answer loses the delegation when its lease has certainly expired. It gets
/// a status flag until it frees the stateid.
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn unreturned_directory_delegation_is_revoked() {
    let (lab, d) = with_directory().await;
    let (mut holder, mut other) = (callable(&lab, "holder").await, lab.client("other").await);
    other.reclaim_complete().await;
    let id = holder.of_directory(in_d(ask())).await.unwrap();
    holder.wire.deaf = true;
    let begun = Instant::now();
    loop {
        match other.status(in_d(mkdir(b"new"))).await {
            Nfsstat4::OK => break,
            status => assert_eq!(status, Nfsstat4::DELAY),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let took = begun.elapsed();
    assert!(took >= LEASE && took < 2 * LEASE, "{took:?}");
    assert_ne!(holder.flags().await & seq4_status::RECALLABLE_STATE_REVOKED, 0);
    assert_eq!(holder.test(id).await, Nfsstat4::DELEG_REVOKED);
    assert_eq!(holder.give_back(&d, id).await, Err(Nfsstat4::DELEG_REVOKED));
    assert_eq!(holder.status(vec![Op::FreeStateid(id)]).await, Nfsstat4::OK);
    assert_eq!(holder.flags().await & seq4_status::RECALLABLE_STATE_REVOKED, 0);
}

/// After a restart no client changes names before the earlier holders are back, or can no longer
/// rely on the names. Directory delegations cannot be reclaimed: clients request new ones.
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn restart_ends_directory_delegations() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let state = Some(dir.path().to_path_buf());
    let lab = Lab::new(&model, "/", 2, state.clone());
    begin(&lab).await;
    callable(&lab, "holder").await.of_directory(at_root(ask())).await.unwrap();
    drop(lab);
    let lab = Lab::new(&model, "/", 3, state);
    tokio::spawn(lab.server.clone().tend());
    let mut other = lab.client("other").await;
    other.run(vec![Op::ReclaimComplete(false)]).await.reclaim_complete().unwrap();
    assert_eq!(other.status(at_root(mkdir(b"new"))).await, Nfsstat4::GRACE);
    let mut holder = Client::with(lab.connect(), "holder", 1, create_session::CONN_BACK_CHAN).await;
    assert_eq!(holder.of_directory(at_root(ask())).await, None, "earlier delegations may still be in use");
    assert_eq!(other.status(at_root(mkdir(b"new"))).await, Nfsstat4::GRACE);
    holder.reclaim_complete().await;
    let mut maker = lab.client("maker").await;
    maker.reclaim_complete().await;
    assert_eq!(other.status(at_root(mkdir(b"new"))).await, Nfsstat4::OK);
    holder.wire.listening(Duration::from_secs(1)).await;
    holder.rest().await;
    assert!(holder.of_directory(at_root(ask())).await.is_some());
}

/// When the exports change, names may lead elsewhere, so delegations of directories are recalled. A
/// client can return the delegation of a directory that is covered now.
/// Promise: S2a
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn changed_exports_recall_directories() {
    let (around, inside) = (model(), model());
    let lab = Lab::new(&around, "/", 2, None);
    begin(&lab).await;
    let mut holder = callable(&lab, "holder").await;
    let d = holder.handle(mkdir(b"d")).await;
    let of_root = holder.of_directory(at_root(ask())).await.unwrap();
    let of_d = holder.of_directory(in_d(ask())).await.unwrap();
    let Some(crate::handle::Handle::Object(_, fh)) = crate::handle::Handle::read(&d) else {
        panic!("an object")
    };
    lab.server.replace(crossings::table(("/", &around), &fh, ("/d", &inside)));
    holder.wire.listening(Duration::from_secs(1)).await;
    let recalls = holder.wire.recalls();
    assert!(recalls.contains(&of_root) && recalls.contains(&of_d), "{recalls:?}");
    assert_eq!(holder.status(vec![Op::putfh(&d), ask()]).await, Nfsstat4::STALE);
    holder.give_back(&d, of_d).await.unwrap();
    assert_eq!(holder.test(of_d).await, Nfsstat4::BAD_STATEID);
}

/// A local program's change recalls the delegation at once.
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn local_changes_of_a_directory_recall() {
    for can in [false, true] {
        let watcher = Arc::new(Watcher { told: Mutex::default(), can, alone: true, watched: Arc::default() });
        let lab = Lab::beside(&model(), "/", 2, None, Others::Watched(watcher.clone()));
        begin(&lab).await;
        let mut holder = callable(&lab, "holder").await;
        let d = holder.handle(mkdir(b"d")).await;
        let id = holder.of_directory(in_d(ask())).await;
        assert_eq!(id.is_some(), can);
        let Some(id) = id else { continue };
        assert_eq!(watcher.watched.load(SeqCst), 1);
        let Some(crate::handle::Handle::Object(_, fh)) = crate::handle::Handle::read(&d) else {
            panic!("an object")
        };
        let told = watcher.told.lock().clone().unwrap();
        told(&fh);
        holder.wire.listening(Duration::from_secs(1)).await;
        assert_eq!(holder.wire.recalls(), [id]);
        holder.give_back(&d, id).await.unwrap();
        assert_eq!(watcher.watched.load(SeqCst), 0);
    }
}

/// Several clients answer look-ups from memory as long as they hold a delegation. No answer is
/// older than the last change that was acknowledged before it, the client's own changes included.
/// Promise: S10b
#[tokio::test(start_paused = true)]
async fn no_stale_name_is_ever_believed() {
    const NAMES: [&[u8]; 4] = [b"n0", b"n1", b"n2", b"n3"];
    let random = env(78).random;
    let mut from_memory = 0;
    for _ in 0..20 {
        let lab = Lab::new(&model(), "/", (random)(), None);
        begin(&lab).await;
        let mut clients = [callable(&lab, "a").await, callable(&lab, "b").await, callable(&lab, "c").await];
        let d = clients[0].handle(mkdir(b"d")).await;
        let mut kept: Vec<Option<(Stateid, [bool; 4])>> = vec![None; clients.len()];
        let mut truth = [false; 4];
        for _ in 0..300 {
            let i = (random)() as usize % clients.len();
            tokio::time::sleep(Duration::from_millis((random)() % 400)).await;
            if (random)().is_multiple_of(15) {
                let n = (random)() as usize % NAMES.len();
                let op = if truth[n] { Op::Remove(NAMES[n].into()) } else { mkdir(NAMES[n]) };
                while clients[i].status(vec![Op::putfh(&d), op.clone()]).await != Nfsstat4::OK {
                    for (c, kept) in clients.iter_mut().zip(&mut kept) {
                        assert!(kept.is_none_or(|(_, names)| names == truth), "as long as it is held");
                        c.wire.listening(Duration::from_millis(1)).await;
                        let recalled = c.wire.recalls();
                        if let Some((id, _)) = kept.take_if(|(id, _)| recalled.contains(id)) {
                            c.give_back(&d, id).await.unwrap();
                        }
                        c.run(vec![]).await;
                    }
                }
                truth[n] = !truth[n];
                if let Some((_, names)) = &mut kept[i] {
                    names[n] = truth[n];
                }
                for (other, kept) in kept.iter().enumerate() {
                    assert!(other == i || kept.is_none(), "another client's delegation was not recalled");
                }
                continue;
            }
            let c = &mut clients[i];
            if let Some((_, names)) = &kept[i] {
                assert_eq!(*names, truth);
                from_memory += 1;
                continue;
            }
            let id = c.of_directory(vec![Op::putfh(&d), ask()]).await;
            let mut seen = [false; 4];
            for (n, seen) in NAMES.iter().zip(&mut seen) {
                *seen = c.status(vec![Op::putfh(&d), Op::lookup(n)]).await == Nfsstat4::OK;
            }
            assert_eq!(seen, truth);
            kept[i] = id.map(|id| (id, seen));
        }
    }
    assert!(from_memory > 500, "{from_memory} answers from memory prove nothing");
}
