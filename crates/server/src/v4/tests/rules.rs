//! Rules of RFC 8881 that matter to clients other than Linux: names and lists of any length, limits
//! of channels, lost replies of CREATE_SESSION, owners, read-only exports.

use super::*;
use crate::access::{Asker, Rights, Squash};
use crate::table::{ExportSpec, Table};
use crate::v4::clients::{Introduction, Principal};
use crate::v4::session::Back;
use hither_proto::nfs3;
use hither_proto::rpc::{OpaqueAuth, Procedure};
use hither_rpc::server::{Acceptor, ServerLimits, Transport};
use hither_vfs::{Create, Cred, Name, OpenAccess, OpenHow, PathRef, RequestContext, SetAttr};

/// The status of operations after a SEQUENCE without `cachethis`.
async fn status(c: &mut Client, ops: Vec<Op>) -> Nfsstat4 {
    c.seq += 1;
    let all = std::iter::once(c.sequence(false)).chain(ops).collect();
    c.wire.call(&Compound::new(2, all)).await.status
}

/// A client that has recovered.
async fn client(lab: &Lab, name: &'static str) -> Client {
    let mut c = lab.client(name).await;
    c.reclaim_complete().await;
    c
}

/// A mode with bits that the protocol does not define is refused by every operation that takes a
/// mode (RFC 8881 section 6.2.4).
/// Promise: S13
#[tokio::test]
async fn undefined_mode_bits_are_refused() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = client(&lab, "a").await;
    let (_, fh) = c.open("f", "x", RW, 0).await.unwrap();
    for mode in [0o10_644, 0o100_644, 0xffff, u32::MAX] {
        let attrs = || Attrs { mode: Some(mode), ..Attrs::default() };
        let claim = OpenClaim::Null(b"new"[..].into());
        let how = Some(CreateHow::Unchecked(attrs()));
        let create = OpenArgs { how, ..open_args("x", RW, 0, claim, true) };
        let ops = [
            vec![Op::putfh(&fh), Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attrs: attrs() })],
            vec![Op::Putrootfh, Op::create(CreateType::Dir, b"d", attrs())],
            vec![Op::Putrootfh, Op::Open(create)],
            vec![Op::putfh(&fh), Op::Verify(attrs())],
            vec![Op::putfh(&fh), Op::Nverify(attrs())],
        ];
        for ops in ops {
            let what = format!("{:?} with mode {mode:o}", ops.last().unwrap().number());
            assert_eq!(status(&mut c, ops).await, Nfsstat4::INVAL, "{what}");
        }
    }
}

/// Names, link texts, owners and lists may have any length on the wire. Values that are too long
/// get a status.
/// Promise: S13
#[tokio::test]
async fn long_values_have_statuses() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = client(&lab, "a").await;
    let (id, fh) = c.open("f", "x", RW, 0).await.unwrap();
    let none = Attrs::default;
    for len in [256, 1025, 5000, 60_000] {
        let name = vec![b'n'; len];
        let long = || Component::from(&name[..]);
        let rename = |old: Component, new: Component| Op::Rename(RenameArgs { oldname: old, newname: new });
        let open = |claim| Op::Open(open_args("x", RW, 0, claim, true));
        let ops = [
            vec![Op::Lookup(long())],
            vec![Op::Remove(long())],
            vec![Op::Secinfo(long())],
            vec![Op::create(CreateType::Dir, &name, none())],
            vec![open(OpenClaim::Null(long()))],
            vec![Op::Savefh, rename(b"f"[..].into(), long())],
            vec![Op::Savefh, rename(long(), b"f"[..].into())],
            vec![Op::putfh(&fh), Op::Savefh, Op::Putrootfh, Op::Link(long())],
            vec![Op::putfh(&fh), Op::Getxattr(long())],
            vec![Op::putfh(&fh), Op::Removexattr(long())],
        ];
        for ops in ops {
            let what = format!("{:?} with {len} bytes", ops.last().unwrap().number());
            let ops = std::iter::once(Op::Putrootfh).chain(ops).collect();
            assert_eq!(status(&mut c, ops).await, Nfsstat4::NAMETOOLONG, "{what}");
        }
    }
    let link = |len: usize| {
        vec![Op::Putrootfh, Op::create(CreateType::Link(vec![b'l'; len][..].into()), b"l", none())]
    };
    assert_eq!(status(&mut c, link(4097)).await, Nfsstat4::NAMETOOLONG);
    assert_eq!(status(&mut c, link(0)).await, Nfsstat4::INVAL);
    let set = |attrs| vec![Op::putfh(&fh), Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attrs })];
    let owner = Attrs { owner: Some(vec![b'1'; 2000][..].into()), ..none() };
    assert_eq!(status(&mut c, set(owner)).await, Nfsstat4::BADOWNER);
    let ids = vec![id; 5000];
    let mut r = c.run(vec![Op::TestStateid(ids.into())]).await;
    assert_eq!(r.test_stateid().unwrap_err().status(), Some(Nfsstat4::REP_TOO_BIG_TO_CACHE));
    assert_eq!(status(&mut c, vec![Op::TestStateid(vec![id; 5000].into())]).await, Nfsstat4::OK);
    assert_eq!(status(&mut c, vec![Op::Putrootfh; 2000]).await, Nfsstat4::TOO_MANY_OPS);
}

/// RFC 8881 sets no limit for bitmaps and tags. Attributes with too high numbers are unknown. They
/// are ignored in a GETATTR and refused in a SETATTR. A tag is returned.
/// Promise: S13
#[tokio::test]
async fn long_bitmaps_and_tags_are_taken() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = client(&lab, "a").await;
    let (id, fh) = c.open("f", "x", RW, 0).await.unwrap();
    let tag = Tag::copy(&[b't'; 5000]);
    let cases = [
        // The size, and an attribute that does not exist.
        (Op::Getattr(Bitmap4::of(&[attr::SIZE])), 2, vec![], Nfsstat4::OK),
        (
            Op::setattr(id, Attrs { size: Some(2), ..Attrs::default() }),
            5,
            vec![12, 0, 2, 9],
            Nfsstat4::ATTRNOTSUPP,
        ),
    ];
    for (op, words_replaced, values, expected) in cases {
        c.seq += 1;
        let ops = vec![c.sequence(false), Op::putfh(&fh), op];
        let compound = Compound { tag: tag.clone(), minorversion: 2, ops };
        let short = Enc::of(&compound).to_bytes();
        let mut args = Enc::new();
        short[..short.len() - 4 * words_replaced]
            .chunks(4)
            .for_each(|w| args.u32(u32::from_be_bytes(w.try_into().unwrap())));
        let bitmap = [20, 1 << attr::SIZE].into_iter().chain([0; 18]).chain([1]);
        bitmap.chain(values).for_each(|word| args.u32(word));
        c.wire.send(Compound::PROG, Compound::VERS, Compound::PROC, args).await;
        let reply: CompoundReply = Dec::all(&c.wire.receive().await).unwrap();
        assert_eq!((reply.status, &reply.tag), (expected, &tag));
        if expected == Nfsstat4::OK {
            let mut results = reply.results();
            results.sequence().unwrap();
            results.putfh().unwrap();
            assert_eq!(results.getattr().unwrap().mask(), Bitmap4::of(&[attr::SIZE]));
        }
    }
}

/// The same for NFSv3.
/// Promise: S13
#[tokio::test]
async fn long_values_of_nfsv3_have_statuses() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut wire = lab.connect();
    let root = wire.root3("/").await;
    for len in [256, 1025, 60_000] {
        let name = vec![b'n'; len];
        let at = || nfs3::Diropargs3 { dir: root.clone(), name: name[..].into() };
        let lookup = wire.call(&nfs3::LookupArgs { what: at() }).await;
        assert_eq!(lookup.status(), nfs3::Nfsstat3::NAMETOOLONG, "{len}");
        let attributes = nfs3::Sattr3::default();
        let mkdir = wire.call(&nfs3::MkdirArgs { r#where: at(), attributes }).await;
        assert_eq!(mkdir.status(), nfs3::Nfsstat3::NAMETOOLONG, "{len}");
    }
    let link = nfs3::SymlinkArgs {
        r#where: nfs3::Diropargs3 { dir: root.clone(), name: b"l"[..].into() },
        symlink_attributes: nfs3::Sattr3::default(),
        symlink_data: vec![b'l'; 4097][..].into(),
    };
    assert_eq!(wire.call(&link).await.status(), nfs3::Nfsstat3::NAMETOOLONG);
}

/// A successful SECINFO_NO_NAME consumes the current filehandle and its stateid. For the parent it
/// has the errors of LOOKUPP.
/// Promise: S13
#[tokio::test]
async fn secinfo_consumes_the_filehandle() {
    let lab = Lab::new(&model(), "/srv/data", 2, None);
    let mut c = client(&lab, "a").await;
    let here = [Op::Putrootfh, Op::lookup(b"srv"), Op::lookup(b"data")];
    let make = Op::create(CreateType::Link(b"to"[..].into()), b"link", Attrs::default());
    c.run(here.iter().cloned().chain([make]).collect()).await;
    let style = |s| Op::SecinfoNoName(s);
    for (ops, expected) in [
        (vec![style(SecinfoStyle::CURRENT_FH)], Nfsstat4::OK),
        (vec![style(SecinfoStyle::PARENT)], Nfsstat4::OK),
        (vec![style(SecinfoStyle(7))], Nfsstat4::INVAL),
        (vec![style(SecinfoStyle::CURRENT_FH), Op::Getfh], Nfsstat4::NOFILEHANDLE),
        (vec![Op::Secinfo(b"link"[..].into()), Op::Getfh], Nfsstat4::NOFILEHANDLE),
        (vec![Op::Secinfo(b"none"[..].into())], Nfsstat4::NOENT),
        (vec![Op::Savefh, style(SecinfoStyle::PARENT), Op::Restorefh, Op::Getfh], Nfsstat4::OK),
        (vec![Op::lookup(b"link"), style(SecinfoStyle::PARENT)], Nfsstat4::SYMLINK),
    ] {
        let all = here.iter().cloned().chain(ops.clone()).collect();
        assert_eq!(status(&mut c, all).await, expected, "{ops:?}");
    }
    assert_eq!(status(&mut c, vec![style(SecinfoStyle::CURRENT_FH)]).await, Nfsstat4::NOFILEHANDLE);
    let top = vec![Op::Putrootfh, style(SecinfoStyle::PARENT)];
    assert_eq!(status(&mut c, top).await, Nfsstat4::NOENT);
}

/// The result of CREATE_SESSION for a client whose EXCHANGE_ID returned `who`.
async fn create(
    wire: &mut crate::tests::Wire,
    who: &ExchangeIdOk,
    sequence: u32,
    fore: ChannelAttrs,
) -> Result<CreateSessionOk, Nfsstat4> {
    let args = CreateSessionArgs {
        clientid: who.clientid,
        sequence,
        flags: 0,
        fore_chan_attrs: fore,
        back_chan_attrs: fore,
        cb_program: 1,
        sec_parms: Vec::new().into(),
    };
    let reply = wire.call(&Compound::new(1, vec![Op::CreateSession(args)])).await;
    reply.results().create_session().map_err(|e| e.status().unwrap())
}

fn channel(request: u32, response: u32, cached: u32) -> ChannelAttrs {
    ChannelAttrs {
        maxrequestsize: request,
        maxresponsesize: response,
        maxresponsesize_cached: cached,
        maxoperations: 8,
        maxrequests: 1,
        ..ChannelAttrs::default()
    }
}

async fn introduce(wire: &mut crate::tests::Wire, name: &str) -> ExchangeIdOk {
    let args = ExchangeIdArgs {
        clientowner: ClientOwner { verifier: [1; 8], ownerid: name.as_bytes().into() },
        flags: 0,
        state_protect: StateProtectArgs::None,
        impl_id: None,
    };
    wire.call(&Compound::new(1, vec![Op::ExchangeId(args)])).await.results().exchange_id().unwrap()
}

/// A server without RPCSEC_GSS refuses state protection that needs it (RFC 8881 section 18.35.3).
/// An update of a client is refused with the same status as a new client.
#[tokio::test]
async fn state_protection_needs_gss() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut wire = lab.connect();
    let ops = StateProtectOps { must_enforce: Bitmap4::EMPTY, must_allow: Bitmap4::EMPTY };
    let ssv = SsvParms {
        ops,
        hash_algs: Vec::new().into(),
        encr_algs: Vec::new().into(),
        window: 1,
        num_gss_handles: 1,
    };
    for (state_protect, refusal) in [
        (StateProtectArgs::MachCred(ops), Nfsstat4::INVAL),
        (StateProtectArgs::Ssv(ssv), Nfsstat4::ENCR_ALG_UNSUPP),
    ] {
        let args = ExchangeIdArgs {
            clientowner: ClientOwner { verifier: [1; 8], ownerid: b"a"[..].into() },
            flags: exchgid::UPD_CONFIRMED_REC_A,
            state_protect,
            impl_id: None,
        };
        let fresh = ExchangeIdArgs { flags: 0, ..args.clone() };
        for args in [args, fresh] {
            let reply = wire.call(&Compound::new(1, vec![Op::ExchangeId(args)])).await;
            assert_eq!(reply.status, refusal);
        }
    }
    let who = introduce(&mut wire, "a").await;
    assert_eq!(who.state_protect, StateProtectOk::None);
}

/// CREATE_SESSION is executed once for each sequence number, failures included (RFC 8881 section
/// 18.36.4).
/// Promise: S13
#[tokio::test]
async fn sessions_are_made_once() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut wire = lab.connect();
    let who = introduce(&mut wire, "a").await;
    let (first, usual) = (who.sequenceid, channel(4096, 4096, 1024));
    let before = create(&mut wire, &who, first.wrapping_sub(1), usual).await;
    assert_eq!(before.unwrap_err(), Nfsstat4::SEQ_MISORDERED);
    assert_eq!(create(&mut wire, &who, first + 1, usual).await.unwrap_err(), Nfsstat4::SEQ_MISORDERED);
    assert_eq!(create(&mut wire, &who, first, channel(10, 10, 0)).await.unwrap_err(), Nfsstat4::TOOSMALL);
    assert_eq!(create(&mut wire, &who, first, usual).await.unwrap_err(), Nfsstat4::TOOSMALL, "a repetition");
    let made = create(&mut wire, &who, first + 1, usual).await.unwrap();
    assert_eq!(create(&mut wire, &who, first + 1, usual).await.unwrap(), made);
    assert_eq!(create(&mut wire, &who, first, usual).await.unwrap_err(), Nfsstat4::SEQ_MISORDERED);
    let another = create(&mut wire, &who, first + 2, usual).await.unwrap();
    assert_ne!(another.sessionid, made.sessionid);
    assert_eq!(lab.server.v4.clients.by_id(who.clientid).unwrap().sessions().len(), 2);
}

/// A session may be small. Its limits include the headers of RPC and are exact to the byte.
/// Promise: S13
#[tokio::test]
async fn small_sessions_work_to_the_byte() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut maker = client(&lab, "maker").await;
    let (id, fh) = maker.open("f", "x", RW, 0).await.unwrap();
    let write = Op::write(id, 0, StableHow::FILE_SYNC, vec![7; 2000].into());
    maker.run(vec![Op::putfh(&fh), write]).await;
    let mut wire = lab.connect();
    for (n, response) in (88..1100).step_by(92).enumerate() {
        let name = format!("client {n}");
        let who = introduce(&mut wire, &name).await;
        let fore = channel(400, response, 4096);
        let made = create(&mut wire, &who, who.sequenceid, fore).await.unwrap();
        assert_eq!(made.fore_chan_attrs.maxresponsesize_cached, response);
        let sequence = |sequenceid| {
            let sessionid = made.sessionid;
            Op::Sequence(SequenceArgs {
                sessionid,
                sequenceid,
                slotid: 0,
                highest_slotid: 0,
                cachethis: false,
            })
        };
        let read = Op::Read(ReadArgs { stateid: Stateid::READ_BYPASS, offset: 0, count: 5000 });
        let ops = vec![sequence(1), Op::putfh(&fh), read, Op::Getattr(Bitmap4::of(&[attr::SIZE]))];
        let reply = wire.call(&Compound::new(1, ops)).await;
        let bytes = Enc::of(&reply).len() + setup::REPLY_HEADER_BYTES;
        assert!(bytes <= response as usize, "{bytes} of {response}");
        let expected = if response < 180 { Nfsstat4::REP_TOO_BIG } else { Nfsstat4::OK };
        assert_eq!(reply.status, expected, "{response}");
        let attrs = Attrs { mode: Some(0o700), ..Attrs::default() };
        let make = Op::create(CreateType::Dir, name.as_bytes(), attrs);
        let reply = wire.call(&Compound::new(1, vec![sequence(2), Op::Putrootfh, make])).await;
        let found = status(&mut maker, vec![Op::Putrootfh, Op::lookup(name.as_bytes())]).await;
        let (made, refused) = (Nfsstat4::OK, Nfsstat4::REP_TOO_BIG);
        let expected = if response < 250 { (refused, Nfsstat4::NOENT) } else { (made, made) };
        assert_eq!((reply.status, found), expected, "a refused file is not created: {response}");
        let long = vec![sequence(3), Op::Putrootfh, Op::lookup(&[b'x'; 300])];
        assert_eq!(wire.call(&Compound::new(1, long)).await.status, Nfsstat4::REQ_TOO_BIG);
    }
}

/// A client of another principal with the same name replaces the first client only when that has no
/// state and no session.
/// Promise: S13
#[tokio::test]
async fn collisions_of_names() {
    let lab = Lab::new(&model(), "/", 2, None);
    let (mut first, mut second) = (lab.connect(), lab.connect());
    second.become_user(9);
    let exchange = |update: bool| {
        let args = ExchangeIdArgs {
            clientowner: ClientOwner { verifier: [1; 8], ownerid: b"a"[..].into() },
            flags: if update { exchgid::UPD_CONFIRMED_REC_A } else { 0 },
            state_protect: StateProtectArgs::None,
            impl_id: None,
        };
        Compound::new(1, vec![Op::ExchangeId(args)])
    };
    assert_eq!(first.call(&exchange(true)).await.status, Nfsstat4::NOENT);
    let who = introduce(&mut first, "a").await;
    let made = create(&mut first, &who, who.sequenceid, channel(4096, 4096, 0)).await.unwrap();
    let updated = first.call(&exchange(true)).await.results().exchange_id().unwrap();
    assert_eq!(
        (updated.clientid, updated.flags & exchgid::CONFIRMED_R),
        (who.clientid, exchgid::CONFIRMED_R)
    );
    assert_eq!(second.call(&exchange(true)).await.status, Nfsstat4::PERM);
    assert_eq!(second.call(&exchange(false)).await.status, Nfsstat4::CLID_INUSE);
    let destroy = Compound::new(1, vec![Op::DestroySession(made.sessionid)]);
    assert_eq!(first.call(&destroy).await.status, Nfsstat4::OK);
    let other = second.call(&exchange(false)).await.results().exchange_id().unwrap();
    assert_ne!(other.clientid, who.clientid);
    let late = create(&mut first, &who, who.sequenceid + 1, channel(4096, 4096, 0)).await;
    assert_eq!(late.unwrap_err(), Nfsstat4::STALE_CLIENTID, "its record is removed at once");
}

/// A caller without the principal of an authenticated client takes over none of its sessions,
/// although it knows their ids.
#[tokio::test]
async fn sessions_belong_to_principal() {
    let lab = Lab::new(&model(), "/", 2, None);
    let clients = &lab.server.v4.clients;
    let who = Introduction {
        owner: b"a"[..].into(),
        transport: Transport::Plain,
        host: [192, 0, 2, 1].into(),
        verifier: [1; 8],
        principal: Principal::Kerberos("host/a@REALM".into()),
        update: false,
        may_reclaim: false,
    };
    let client = clients.introduce(who).unwrap();
    clients.confirm(&client);
    let (fore, cred) = (channel(4096, 4096, 0), OpaqueAuth::none());
    let back = Back { prog: 1, cred, wanted: true, peer: None, proven: None };
    let session = clients.add_session(&client, fore, back, 7).unwrap();
    let mut stranger = lab.connect();
    let bind = BindConnToSessionArgs {
        sessionid: session.id,
        dir: ChannelDirFromClient::BACK_OR_BOTH,
        use_conn_in_rdma_mode: false,
    };
    for op in [Op::BindConnToSession(bind), Op::DestroySession(session.id), Op::DestroyClientid(client.id)] {
        let what = op.number();
        let status = stranger.call(&Compound::new(1, vec![op])).await.status;
        assert_eq!(status, Nfsstat4::WRONG_CRED, "{what:?}");
    }
    let who = ExchangeIdOk { clientid: client.id, ..introduce(&mut stranger, "b").await };
    let made = create(&mut stranger, &who, 1, channel(4096, 4096, 0)).await;
    assert_eq!(made.unwrap_err(), Nfsstat4::WRONG_CRED);
    assert!(clients.session(&session.id).is_some() && !session.back_is_up());
}

/// Only the superuser may set another owner for a new object. Creations of other users succeed as
/// on the Linux server.
/// Promise: S13
#[tokio::test]
async fn creations_that_name_owners() {
    let model = model();
    let lab = Lab::new(&model, "/", 2, None);
    let mut root = client(&lab, "root").await;
    let free = Attrs { mode: Some(0o777), ..Attrs::default() };
    let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attrs: free });
    root.run(vec![Op::Putrootfh, set]).await;
    let number = |n: u32| Some(OwnerName::from(bytes::Bytes::from(n.to_string())));
    let both = Bitmap4::of(&[attr::OWNER, attr::OWNER_GROUP]);
    for (case, uid, gid, told) in [
        ("himself", 1000, 100, both),
        ("a group of his", 1000, 7, both),
        ("a foreign group", 1000, 8, Bitmap4::of(&[attr::OWNER])),
        ("another", 5, 100, Bitmap4::of(&[attr::OWNER_GROUP])),
        ("the superuser", 0, 0, Bitmap4::EMPTY),
    ] {
        let mut wire = lab.connect();
        wire.become_member(1000, 100, vec![7]);
        let mut c = Client::new(wire, case, 1).await;
        c.reclaim_complete().await;
        let attrs = Attrs { owner: number(uid), owner_group: number(gid), ..Attrs::default() };
        let gid = if [100, 7].contains(&gid) { gid } else { 100 };
        let kinds = [CreateType::Dir, CreateType::Fifo, CreateType::Link(b"x"[..].into())];
        for (i, kind) in kinds.into_iter().enumerate() {
            let name = format!("{case} {i}");
            let look = Op::Getattr(both);
            let make = Op::create(kind, name.as_bytes(), attrs.clone());
            let mut r = c.run(vec![Op::Putrootfh, make, look]).await;
            r.putrootfh().unwrap();
            assert_eq!(r.create().unwrap().attrset, told, "{name}");
            let is = r.getattr().unwrap();
            assert_eq!((is.owner, is.owner_group), (number(1000), number(gid)), "{name}");
        }
        let hows = [
            CreateHow::Unchecked(attrs.clone()),
            CreateHow::Guarded(attrs.clone()),
            CreateHow::Exclusive41(CreateVerfAttr { verf: [3; 8], attrs }),
        ];
        for (i, how) in hows.into_iter().enumerate() {
            let name = format!("{case} file {i}");
            let args = open_args("x", RW, 0, OpenClaim::Null(name.as_bytes().into()), false);
            let open = Op::Open(OpenArgs { how: Some(how), ..args });
            let mut r = c.run(vec![Op::Putrootfh, open, Op::Getattr(both)]).await;
            r.putrootfh().unwrap();
            assert_eq!(r.open().unwrap().attrset.intersection(both), told, "{name}");
            assert_eq!(r.getattr().unwrap().owner, number(1000), "{name}");
        }
    }
    let mut wire = lab.connect();
    wire.become_member(1000, 100, vec![7]);
    let dir = wire.root3("/").await;
    let attributes = nfs3::Sattr3 { uid: Some(5), gid: Some(8), ..nfs3::Sattr3::default() };
    let at = |name: &str| nfs3::Diropargs3 { dir: dir.clone(), name: name.as_bytes().into() };
    let made = wire.call(&nfs3::MkdirArgs { r#where: at("d3"), attributes }).await.into_result().unwrap();
    let made = made.obj_attributes.unwrap();
    assert_eq!((made.uid, made.gid), (1000, 100));
    let how = nfs3::Createhow3::Guarded(attributes);
    let made = wire.call(&nfs3::CreateArgs { r#where: at("f3"), how }).await.into_result().unwrap();
    assert_eq!(made.obj_attributes.unwrap().uid, 1000);
}

/// In a read-only export, an OPEN with creation succeeds when the file exists.
/// Promise: S13
#[tokio::test]
async fn creating_opens_of_read_only_exports() {
    let model = model();
    let cx = RequestContext::new(Arc::new(Cred::root()));
    let (vfs, name): (Arc<dyn hither_vfs::Vfs>, _) = (model.clone(), Name::new("f").unwrap());
    let root = vfs.root(&cx).await.unwrap().fh;
    let how =
        OpenHow { create: Create::IfMissing(SetAttr::default()), ..OpenHow::existing(OpenAccess::READ) };
    vfs.open(&cx, PathRef::name(&root, &name), &how).await.unwrap();
    let rights = Rights { squash: Squash::None, secure: false, ..Rights::default() };
    let spec = ExportSpec {
        path: "/".into(),
        aliases: vec![],
        vfs,
        extra: Some(model.clone()),
        admit: Arc::new(move |_: &Asker<'_>| Some(rights.clone())),
        epoch: None,
        others: Others::Nobody,
        covers: None,
    };
    let server = crate::Server::new(Options::new(env(2)), Table::new(vec![spec]).unwrap()).unwrap();
    let acceptor = Acceptor::new(server.clone(), ServerLimits::default());
    let lab = Lab { server, acceptor };
    let mut c = client(&lab, "a").await;
    let attrs = Attrs { mode: Some(0o644), ..Attrs::default() };
    let sized = Attrs { size: Some(0), ..attrs.clone() };
    let exclusive = CreateHow::Exclusive41(CreateVerfAttr { verf: [3; 8], attrs: attrs.clone() });
    let read = bits::SHARE_ACCESS_READ;
    for (name, access, how, expected) in [
        ("f", read, CreateHow::Unchecked(attrs.clone()), Nfsstat4::OK),
        ("f", RW, CreateHow::Unchecked(attrs.clone()), Nfsstat4::ROFS),
        ("f", read, CreateHow::Unchecked(sized), Nfsstat4::ROFS),
        ("f", read, CreateHow::Guarded(attrs.clone()), Nfsstat4::EXIST),
        ("f", RW, exclusive.clone(), Nfsstat4::EXIST),
        ("g", read, CreateHow::Unchecked(attrs.clone()), Nfsstat4::ROFS),
        ("g", RW, exclusive, Nfsstat4::ROFS),
    ] {
        let args = open_args("x", access, 0, OpenClaim::Null(name.as_bytes().into()), false);
        let what = format!("{name} {access} {how:?}");
        let open = Op::Open(OpenArgs { how: Some(how), ..args });
        assert_eq!(status(&mut c, vec![Op::Putrootfh, open]).await, expected, "{what}");
    }
    let dir = c.wire.root3("/").await;
    let sized = nfs3::Sattr3 { size: Some(0), ..nfs3::Sattr3::default() };
    for (name, how, expected) in [
        ("f", nfs3::Createhow3::Unchecked(nfs3::Sattr3::default()), nfs3::Nfsstat3::OK),
        ("f", nfs3::Createhow3::Unchecked(sized), nfs3::Nfsstat3::ROFS),
        ("f", nfs3::Createhow3::Guarded(nfs3::Sattr3::default()), nfs3::Nfsstat3::EXIST),
        ("f", nfs3::Createhow3::Exclusive([1; 8]), nfs3::Nfsstat3::EXIST),
        ("g", nfs3::Createhow3::Unchecked(nfs3::Sattr3::default()), nfs3::Nfsstat3::ROFS),
    ] {
        let r#where = nfs3::Diropargs3 { dir: dir.clone(), name: name.as_bytes().into() };
        let made = c.wire.call(&nfs3::CreateArgs { r#where, how }).await;
        assert_eq!(made.status(), expected, "{name}");
    }
}

/// The number of locks of a file is limited. A lock beyond the limit fails at once, and other
/// owners are not affected.
/// Promise: S13
#[tokio::test]
async fn a_lock_too_many_fails() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = client(&lab, "a").await;
    let (id, fh) = c.open("f", "x", RW, 0).await.unwrap();
    let first = c.lock(&fh, id, "p", (0, 1)).await.unwrap();
    let lock = |at: u64| {
        let locker = Locker::Existing(ExistLockOwner { lock_stateid: first.any_seqid(), lock_seqid: 0 });
        Op::Lock(LockArgs { locktype: LockType::WRITEW, reclaim: false, offset: 2 * at, length: 1, locker })
    };
    let mut at = 1;
    let last = loop {
        let many: Vec<Op> = (0..100).map(|i| lock(at + i)).collect();
        at += 100;
        match status(&mut c, std::iter::once(Op::putfh(&fh)).chain(many).collect()).await {
            Nfsstat4::OK => assert!(at < 100_000),
            last => break last,
        }
    };
    assert_eq!(last, Nfsstat4::SERVERFAULT);
    let unlock = Op::Locku(LockuArgs {
        locktype: LockType::WRITE,
        seqid: 0,
        lock_stateid: first.any_seqid(),
        offset: 0,
        length: 1000,
    });
    assert_eq!(status(&mut c, vec![Op::putfh(&fh), unlock, lock(0)]).await, Nfsstat4::OK);
}

/// Special stateids name no state, and only regular files have locks.
/// Promise: S13
#[tokio::test]
async fn special_stateids_are_refused() {
    let lab = Lab::new(&model(), "/", 2, None);
    let mut c = client(&lab, "a").await;
    let (_, fh) = c.open("f", "x", RW, 0).await.unwrap();
    for id in [Stateid::ANONYMOUS, Stateid::READ_BYPASS, Stateid::CURRENT, Stateid::INVALID] {
        let locku = Op::locku(id, LockType::WRITE, 0, 1);
        for op in [Op::close(id), Op::open_downgrade(id, 1, 0), locku, Op::Delegreturn(id)] {
            let what = format!("{:?} of {id:?}", op.number());
            assert_eq!(status(&mut c, vec![Op::putfh(&fh), op]).await, Nfsstat4::BAD_STATEID, "{what}");
        }
    }
    let make = |kind, name: &[u8]| vec![Op::Putrootfh, Op::create(kind, name, Attrs::default())];
    let owner = StateOwner { clientid: 0, owner: b"o"[..].into() };
    let test = Op::Lockt(LocktArgs { locktype: LockType::WRITE, offset: 0, length: 1, owner });
    for (kind, name, expected) in [
        (CreateType::Dir, &b"d"[..], Nfsstat4::ISDIR),
        (CreateType::Link(b"to"[..].into()), b"l", Nfsstat4::SYMLINK),
        (CreateType::Fifo, b"p", Nfsstat4::WRONG_TYPE),
    ] {
        let ops = make(kind, name).into_iter().chain([test.clone()]).collect();
        assert_eq!(status(&mut c, ops).await, expected, "{expected:?}");
    }
}
