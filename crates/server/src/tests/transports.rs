//! Exports that accept some transports, and sessions that belong to one transport.

use super::{Client, Lab, Wire, env, model, open_args};
use crate::access::{Asker, Rights, Squash, Transports};
use crate::handle;
use crate::table::{ExportSpec, Others, Table};
use crate::{Options, Server};
use hither_proto::mount::{ExportArgs, MntArgs};
use hither_proto::nfs3;
use hither_proto::nfs4::*;
use hither_proto::rpc::{AuthStat, Procedure};
use hither_proto::sample::{Sample, Source};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::server::{Acceptor, ServerLimits, Transport};
use hither_vfs::model::Model;
use std::sync::Arc;

/// Sampled operations for each policy and transport.
const SAMPLES: usize = 150;

fn mutual(names: &[&str]) -> Transport {
    Transport::MutualTls { names: names.iter().map(|name| name.to_string()).collect() }
}

fn transports() -> [Transport; 3] {
    [Transport::Plain, Transport::Tls, mutual(&["build-farm"])]
}

fn policies() -> impl Iterator<Item = Transports> {
    (0..8).map(|n| Transports { none: n & 1 != 0, tls: n & 2 != 0, mtls: n & 4 != 0 })
}

fn spec(path: &str, model: &Arc<Model>, transports: Transports) -> ExportSpec {
    let rights = Rights { squash: Squash::None, secure: false, transports, ..Rights::default() };
    let rights = Rights { read_only: false, ..rights };
    ExportSpec {
        path: path.into(),
        aliases: vec![],
        vfs: model.clone(),
        extra: Some(model.clone()),
        admit: Arc::new(move |_: &Asker<'_>| Some(rights.clone())),
        epoch: None,
        others: Others::Nobody,
        covers: None,
    }
}

/// A server with an export `/kept` of this policy, and an export `/any` for all.
fn lab(policy: Transports, kept: &Arc<Model>) -> Lab {
    let specs = vec![spec("/kept", kept, policy), spec("/any", &model(), Transports::ALL)];
    let server = Server::new(Options::new(env(2)), Table::new(specs).unwrap()).unwrap();
    let acceptor = Acceptor::new(server.clone(), ServerLimits::default());
    Lab { server, acceptor }
}

async fn root_of(lab: &Lab, path: &str) -> bytes::Bytes {
    let table = lab.server.table();
    let export = table.exports().iter().find(|export| export.path == path).unwrap();
    handle::object(export.number, &export.root().await.unwrap().fh)
}

impl Client {
    /// The status of a compound.
    async fn verdict_of(&mut self, ops: Vec<Op>) -> Nfsstat4 {
        self.seq += 1;
        let mut all = vec![self.sequence(true)];
        all.extend(ops);
        self.wire.call(&Compound::new(2, all)).await.status
    }
}

/// Whether an operation behind PUTFH, or behind PUTFH and SAVEFH, is answered in any export.
fn is_free(op: &Op, saved: bool) -> bool {
    match op {
        Op::Putfh(_) | Op::Putrootfh | Op::Putpubfh | Op::Savefh | Op::Secinfo(_) | Op::SecinfoNoName(_) => {
            true
        }
        // Behind SAVEFH, it puts back the filehandle that is current anyway.
        Op::Restorefh => true,
        Op::Sequence(_) | Op::ExchangeId(_) | Op::CreateSession(_) | Op::BindConnToSession(_) => saved,
        Op::BackchannelCtl(_) | Op::ReclaimComplete(_) | Op::TestStateid(_) | Op::FreeStateid(_) => saved,
        Op::Illegal(_) => saved,
        _ => false,
    }
}

/// Any operation of NFSv4 on an export is answered exactly if the export lists the transport. PUTFH
/// alone and SECINFO are always answered.
/// Promise: S18
#[tokio::test]
async fn nfs4_answers_listed_transports_only() {
    let kept = model();
    let mut kinds = std::collections::BTreeSet::new();
    for (policy, transport) in policies().flat_map(|p| transports().map(|t| (p, t))) {
        let lab = lab(policy, &kept);
        let accepted = policy.accept(&transport);
        let mut c = Client::new(lab.connect_over(transport.clone()), "one", 1).await;
        c.reclaim_complete().await;
        let root = root_of(&lab, "/kept").await;
        let before = kept.object_count();
        for seed in 0..SAMPLES {
            let bytes: Vec<u8> =
                (0..600u32).map(|i| (i * 7 + seed as u32 * 131) as u8 ^ (i >> 3) as u8).collect();
            let op = Op::sample(&mut Source::new(&bytes));
            if matches!(op, Op::DestroySession(_) | Op::DestroyClientid(_)) {
                continue;
            }
            kinds.insert(op.number().0);
            for saved in [false, true] {
                let mut ops = vec![Op::Putfh(root.clone().into())];
                ops.extend(saved.then_some(Op::Savefh));
                ops.push(op.clone());
                let refused = c.verdict_of(ops).await == Nfsstat4::WRONGSEC;
                let expected = !accepted && !is_free(&op, saved);
                assert_eq!(refused, expected, "{policy} {transport} saved={saved}: {op:?}");
            }
        }
        if !accepted {
            assert_eq!(kept.object_count(), before, "{policy} {transport}");
        }
    }
    assert!(kinds.len() > 30, "{} kinds of operations", kinds.len());
}

/// The rules of RFC 8881 section 2.6.3.1 for names: LOOKUP fails with WRONGSEC, SECINFO does not,
/// and a listing has the error in place of the attributes.
/// Promise: S18
#[tokio::test]
async fn names_of_refused_exports_are_shown() {
    let kept = model();
    for (policy, transport) in policies().flat_map(|p| transports().map(|t| (p, t))) {
        let lab = lab(policy, &kept);
        let refusal = if policy.accept(&transport) { Nfsstat4::OK } else { Nfsstat4::WRONGSEC };
        let mut c = Client::new(lab.connect_over(transport), "one", 1).await;
        c.reclaim_complete().await;
        let root = root_of(&lab, "/kept").await;
        let any = root_of(&lab, "/any").await;
        let put = |fh: &bytes::Bytes| Op::Putfh(fh.clone().into());
        let size = Op::Getattr(Bitmap4::of(&[attr::SIZE]));
        let open = Op::Open(open_args("o", 3, 0, OpenClaim::Null(b"new"[..].into()), true));
        let link = Op::Link(b"l"[..].into());
        for (ops, expected) in [
            (vec![Op::Putrootfh, Op::lookup(b"kept")], refusal),
            (vec![Op::Putrootfh, Op::lookup(b"any"), size.clone()], Nfsstat4::OK),
            (vec![Op::Putrootfh, Op::Secinfo(b"kept"[..].into())], Nfsstat4::OK),
            (vec![put(&root)], Nfsstat4::OK),
            (vec![put(&root), put(&any), size.clone()], Nfsstat4::OK),
            (vec![put(&root), Op::SecinfoNoName(SecinfoStyle::CURRENT_FH)], Nfsstat4::OK),
            (vec![put(&root), Op::Lookupp, size.clone()], refusal),
            (vec![put(&root), open], refusal),
            (vec![put(&root), Op::Savefh, put(&any), Op::Restorefh, size], refusal),
        ] {
            assert_eq!(c.verdict_of(ops.clone()).await, expected, "{policy}: {ops:?}");
        }
        let linked = c.verdict_of(vec![put(&root), Op::Savefh, put(&any), link]).await;
        assert_eq!(linked == Nfsstat4::WRONGSEC, refusal == Nfsstat4::WRONGSEC, "the saved filehandle");
        let list = |wanted: &[u32]| {
            Op::Readdir(ReaddirArgs {
                cookie: 0,
                cookieverf: [0; 8],
                dircount: 1000,
                maxcount: 4000,
                attr_request: Bitmap4::of(wanted),
            })
        };
        let mut r = c.run(vec![Op::Putrootfh, list(&[attr::RDATTR_ERROR, attr::SIZE])]).await;
        r.putrootfh().unwrap();
        let list = r.readdir().unwrap().entries;
        let error = |name: &[u8]| list.iter().find(|e| &e.name[..] == name).unwrap().attrs.rdattr_error;
        assert_eq!(error(b"kept"), Some(refusal));
        assert_eq!(error(b"any"), Some(Nfsstat4::OK));
    }
}

/// Sends a call of NFSv3 and returns whether it was answered.
async fn answered<P: Procedure>(wire: &mut Wire, args: &P) -> bool {
    wire.xid += 1;
    wire.send(P::PROG, P::VERS, P::PROC, Enc::of(args)).await;
    match wire.verdict().await {
        Ok(_) => true,
        Err(AuthStat::TOOWEAK) => false,
        Err(other) => panic!("{other:?}"),
    }
}

/// Calls of NFSv3 on an export are answered exactly if the export lists the transport. Others get
/// AUTH_TOOWEAK, also when they are repeated. MNT gets MNT3ERR_ACCES. EXPORT lists all.
/// Promise: S18
#[tokio::test]
async fn nfs3_answers_listed_transports_only() {
    let kept = model();
    for (policy, transport) in policies().flat_map(|p| transports().map(|t| (p, t))) {
        let lab = lab(policy, &kept);
        let accepted = policy.accept(&transport);
        let mut wire = lab.connect_over(transport);
        let object: nfs3::Fh3 = root_of(&lab, "/kept").await.into();
        let before = kept.object_count();
        let dir = || object.clone();
        let name = || nfs3::Diropargs3 { dir: dir(), name: b"n"[..].into() };
        let mut all = vec![
            answered(&mut wire, &nfs3::GetattrArgs { object: dir() }).await,
            answered(&mut wire, &nfs3::AccessArgs { object: dir(), access: 63 }).await,
            answered(&mut wire, &nfs3::LookupArgs { what: name() }).await,
            answered(&mut wire, &nfs3::ReadArgs { file: dir(), offset: 0, count: 10 }).await,
            answered(&mut wire, &nfs3::ReaddirArgs { dir: dir(), cookie: 0, cookieverf: [0; 8], count: 999 })
                .await,
            answered(&mut wire, &nfs3::FsstatArgs { fsroot: dir() }).await,
            answered(&mut wire, &nfs3::FsinfoArgs { fsroot: dir() }).await,
            answered(&mut wire, &nfs3::CommitArgs { file: dir(), offset: 0, count: 0 }).await,
        ];
        let how = nfs3::Createhow3::Guarded(nfs3::Sattr3::default());
        let create = nfs3::CreateArgs { r#where: name(), how };
        all.push(answered(&mut wire, &create).await);
        wire.xid -= 1;
        all.push(answered(&mut wire, &create).await);
        all.push(answered(&mut wire, &nfs3::RemoveArgs { object: name() }).await);
        assert!(all.iter().all(|answered| *answered == accepted), "{policy}: {all:?}");
        assert_eq!(kept.object_count(), before);
        let mounted = wire.call(&MntArgs { dirpath: b"/kept"[..].into() }).await.into_result().map(|_| ());
        assert_eq!(mounted.is_ok(), accepted);
        assert_eq!(wire.call(&ExportArgs {}).await.0.len(), 2);
    }
}

/// Sends operations that need no session of their own.
async fn alone(wire: &mut Wire, op: Op) -> Result<Nfsstat4, AuthStat> {
    wire.xid += 1;
    let args = Enc::of(&Compound::new(2, vec![op]));
    wire.send(Compound::PROG, Compound::VERS, Compound::PROC, args).await;
    wire.verdict().await.map(|body| Dec::all::<CompoundReply>(&body).unwrap().status)
}

/// A session that began over TLS is refused on other connections, and its client id too. A client
/// that claims its name on another transport does not end it.
/// Promise: S19
#[tokio::test]
async fn session_is_bound_to_transport() {
    let lab = Lab::new(&model(), "/", 2, None);
    let farm = mutual(&["build-farm", "b.example"]);
    for (mine, others) in [
        (Transport::Plain, vec![Transport::Tls, farm.clone()]),
        (Transport::Tls, vec![Transport::Plain, farm.clone()]),
        (farm, vec![Transport::Plain, Transport::Tls, mutual(&["other"]), mutual(&[])]),
    ] {
        let name = "shared name";
        let mut c = Client::new(lab.connect_over(mine.clone()), name, 1).await;
        c.reclaim_complete().await;
        for other in others {
            let mut wire = lab.connect_over(other.clone());
            let bind = BindConnToSessionArgs {
                sessionid: c.session,
                dir: ChannelDirFromClient::FORE_OR_BOTH,
                use_conn_in_rdma_mode: false,
            };
            let create = CreateSessionArgs {
                clientid: c.id,
                sequence: 2,
                flags: 0,
                fore_chan_attrs: ChannelAttrs::default(),
                back_chan_attrs: ChannelAttrs::default(),
                cb_program: 1,
                sec_parms: Vec::new().into(),
            };
            c.seq += 1;
            let sequence = c.sequence(false);
            c.seq -= 1;
            for op in [
                sequence,
                Op::BindConnToSession(bind),
                Op::DestroySession(c.session),
                Op::CreateSession(create),
                Op::DestroyClientid(c.id),
            ] {
                assert_eq!(
                    alone(&mut wire, op.clone()).await,
                    Err(AuthStat::TOOWEAK),
                    "{mine} {other}: {op:?}"
                );
            }
            // The same name on another transport is another client.
            let mut claimant = Client::new(wire, name, 9).await;
            assert_ne!(claimant.id, c.id);
            let session = claimant.session;
            assert_eq!(alone(&mut claimant.wire, Op::DestroySession(session)).await, Ok(Nfsstat4::OK));
            assert_eq!(alone(&mut claimant.wire, Op::DestroyClientid(claimant.id)).await, Ok(Nfsstat4::OK));
        }
        // The session works on, also on another connection of the same kind. The other names of a
        // certificate may change when it is renewed.
        c.run(vec![Op::Putrootfh]).await.putrootfh().unwrap();
        let same = if mine.subject().is_some() { mutual(&["build-farm", "new"]) } else { mine };
        c.wire = lab.connect_over(same);
        c.run(vec![Op::Putrootfh]).await.putrootfh().unwrap();
        assert_eq!(alone(&mut c.wire, Op::DestroySession(c.session)).await, Ok(Nfsstat4::OK));
        assert_eq!(alone(&mut c.wire, Op::DestroyClientid(c.id)).await, Ok(Nfsstat4::OK));
    }
}

/// After a restart a client reclaims its opens over its own transport. A client that claims its
/// name on another transport reclaims nothing, and takes nothing from it.
/// Promise: S19
#[tokio::test]
async fn reclaim_needs_the_same_transport() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let lab = |seed| Lab::new(&model, "/", seed, Some(dir.path().to_path_buf()));
    let farm = mutual(&["build-farm"]);
    let first = lab(2);
    let mut c = Client::new(first.connect_over(farm.clone()), "one", 1).await;
    c.reclaim_complete().await;
    let (_, fh) = c.open("f", "x", 3, 0).await.unwrap();
    drop(first);
    let second = lab(3);
    let reclaim = || {
        let claim = OpenClaim::Previous(DelegationType::NONE);
        vec![Op::putfh(&fh), Op::Open(open_args("x", 3, 0, claim, false))]
    };
    for (transport, expected) in [
        (Transport::Plain, Nfsstat4::NO_GRACE),
        (Transport::Tls, Nfsstat4::NO_GRACE),
        (mutual(&["other"]), Nfsstat4::NO_GRACE),
        (farm, Nfsstat4::OK),
    ] {
        let mut c = Client::new(second.connect_over(transport.clone()), "one", 2).await;
        assert_eq!(c.verdict_of(reclaim()).await, expected, "{transport}");
        c.reclaim_complete().await;
    }
}

/// The reply cache of NFSv3 does not answer a call with the reply to a call over another transport.
/// Promise: S19
#[tokio::test]
async fn reply_cache_distinguishes_transports() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut statuses = Vec::new();
    for transport in [Transport::Tls, Transport::Plain, mutual(&["a"]), mutual(&["b"]), Transport::Tls] {
        let mut wire = lab.connect_over(transport);
        let root = wire.root3("/").await;
        let object = nfs3::Diropargs3 { dir: root, name: b"d"[..].into() };
        let make = nfs3::MkdirArgs { r#where: object, attributes: nfs3::Sattr3::default() };
        wire.xid = 99;
        statuses.push(wire.call(&make).await.status());
    }
    let exists = nfs3::Nfsstat3::EXIST;
    assert_eq!(statuses, [nfs3::Nfsstat3::OK, exists, exists, exists, nfs3::Nfsstat3::OK]);
}
