//! Messages that were written by hand from the RFCs' XDR.

use super::*;
use crate::rpc::Procedure;

const SESSION: Sessionid = *b"0123456789abcdef";
const STATEID: Stateid = Stateid { seqid: 3, other: *b"state-id-one" };

/// The wire form of a `stateid4`.
fn stateid() -> [u8; 16] {
    *b"\0\0\0\x03state-id-one"
}

#[test]
fn the_procedure_is_compound() {
    assert_eq!((Compound::PROG, Compound::VERS, Compound::PROC), (100_003, 4, 1));
    assert_eq!((PORT, CB_VERSION, CB_PROC_COMPOUND), (2049, 1, 1));
}

#[test]
fn special_stateids() {
    both_ways(&Stateid::ANONYMOUS, &wire![[0u8; 16]]);
    both_ways(&Stateid::READ_BYPASS, &wire![[0xffu8; 16]]);
    both_ways(&Stateid::CURRENT, &wire![1u32, [0u8; 12]]);
    both_ways(&Stateid::INVALID, &wire![u32::MAX, [0u8; 12]]);
    assert!(Stateid::CURRENT.is_special() && !STATEID.is_special());
    assert_eq!(STATEID.any_seqid().seqid, 0);
}

#[test]
fn root_attributes() {
    const MASK: Bitmap4 = Bitmap4::of(&[attr::TYPE, attr::CHANGE, attr::SIZE, attr::MODE]);
    let compound = Compound::new(2, vec![Op::Putrootfh, Op::Getfh, Op::getattr(&MASK)]);
    both_ways(&compound, &wire!["", 2u32, 3u32, 24u32, 10u32, 9u32, 2u32, 0x1au32, 2u32]);

    let attrs = Attrs {
        ftype: Some(Ftype::DIR),
        change: Some(0x1_0000_0002),
        size: Some(4096),
        mode: Some(0o755),
        ..Default::default()
    };
    let results =
        vec![OpRes::Putrootfh(Ok(())), OpRes::Getfh(Ok(Fh::copy(b"rootfh"))), OpRes::Getattr(Ok(attrs))];
    let reply = CompoundReply { status: Nfsstat4::OK, tag: Tag::default(), results: results.into() };
    let head = wire![0u32, "", 3u32, 24u32, 0u32, 10u32, 0u32, "rootfh"];
    let tail = wire![9u32, 0u32, 2u32, 0x1au32, 2u32, 24u32, 2u32, 1u32, 2u32, 4096u64, 0o755u32];
    both_ways(&reply, &[head, tail].concat().into());
}

#[test]
fn exclusive_create_in_a_session() {
    let sequence =
        SequenceArgs { sessionid: SESSION, sequenceid: 7, slotid: 1, highest_slotid: 2, cachethis: true };
    let open = OpenArgs {
        seqid: 0,
        share_access: open::SHARE_ACCESS_BOTH | open::WANT_NO_DELEG,
        share_deny: open::SHARE_DENY_NONE,
        owner: StateOwner { clientid: 0, owner: b"own1"[..].into() },
        how: Some(CreateHow::Exclusive41(CreateVerfAttr {
            verf: *b"verifier",
            attrs: Attrs { mode: Some(0o644), ..Default::default() },
        })),
        claim: OpenClaim::Null(Component::copy(b"f.c")),
    };
    let compound = Compound::new(
        1,
        vec![Op::Sequence(sequence), Op::putfh(&Fh::copy(b"dirh")), Op::Open(open), Op::Getfh],
    );
    let head = wire!["", 1u32, 4u32, 53u32, SESSION, 7u32, 1u32, 2u32, 1u32, 22u32, "dirh"];
    let open = wire![18u32, 0u32, 0x403u32, 0u32, 0u64, "own1", 1u32, 3u32, *b"verifier", 2u32, 0u32, 2u32];
    let tail = wire![4u32, 0o644u32, 0u32, "f.c", 10u32];
    both_ways(&compound, &[head, open, tail].concat().into());
}

#[test]
fn an_open_with_a_write_delegation() {
    let ok = OpenOk {
        stateid: STATEID,
        cinfo: ChangeInfo { atomic: true, before: 1, after: 2 },
        rflags: open::RESULT_LOCKTYPE_POSIX,
        attrset: Bitmap4::of(&[attr::MODE]),
        delegation: OpenDelegation::Write(WriteDelegation {
            stateid: STATEID,
            recall: false,
            space_limit: SpaceLimit::Blocks(ModifiedLimit { num_blocks: 5, bytes_per_block: 512 }),
            permissions: Ace { ace_type: 0, flag: 0, access_mask: 1, who: OwnerName::copy(b"EVERYONE@") },
        }),
    };
    let head = wire![18u32, 0u32, stateid(), 1u32, 1u64, 2u64, 4u32, 2u32, 0u32, 2u32];
    let deleg = wire![2u32, stateid(), 0u32, 2u32, 5u32, 512u32, 0u32, 0u32, 1u32, "EVERYONE@"];
    both_ways(&OpRes::Open(Ok(ok)), &[head, deleg].concat().into());
}

#[test]
fn refused_delegation_has_reason() {
    let arm = |d: OpenDelegation, b| both_ways(&d, &b);
    arm(OpenDelegation::None, wire![0u32]);
    arm(OpenDelegation::NoneExt(WhyNoDelegation::NotWanted), wire![3u32, 0u32]);
    arm(OpenDelegation::NoneExt(WhyNoDelegation::Contention(true)), wire![3u32, 1u32, 1u32]);
    arm(OpenDelegation::NoneExt(WhyNoDelegation::Other(99)), wire![3u32, 99u32]);
}

/// A failure keeps the data that belongs to its status.
#[test]
fn nfs4_failures_keep_data() {
    let denied = LockDenied {
        offset: 10,
        length: 20,
        locktype: LockType::WRITE,
        owner: StateOwner { clientid: 9, owner: b"them"[..].into() },
    };
    let lock = OpRes::Lock(Err(LockFail::Denied(denied.clone())));
    both_ways(&lock, &wire![12u32, 10010u32, 10u64, 20u64, 2u32, 9u64, "them"]);
    let lockt = OpRes::Lockt(Err(LockFail::Denied(denied)));
    both_ways(&lockt, &wire![13u32, 10010u32, 10u64, 20u64, 2u32, 9u64, "them"]);
    both_ways(&OpRes::Lock(Err(Nfsstat4::GRACE.into())), &wire![12u32, 10013u32]);

    let attrsset = Bitmap4::of(&[attr::SIZE]);
    let setattr = OpRes::Setattr(Err(SetattrFail { status: Nfsstat4::NOSPC, attrsset }));
    both_ways(&setattr, &wire![34u32, 28u32, 1u32, 0x10u32]);
    both_ways(&OpRes::Setattr(Ok(attrsset)), &wire![34u32, 0u32, 1u32, 0x10u32]);
    both_ways(&OpRes::failed(NfsOpnum4::SETATTR, Nfsstat4::PERM), &wire![34u32, 1u32, 0u32]);

    let netaddr = Netaddr { netid: Text::copy(b"tcp"), addr: Text::copy(b"10.0.0.1.3.77") };
    let inuse = OpRes::Setclientid(Err(SetclientidFail::InUse(netaddr)));
    both_ways(&inuse, &wire![35u32, 10017u32, "tcp", "10.0.0.1.3.77"]);
    let small = OpRes::Getdeviceinfo(Err(GetdeviceinfoFail::TooSmall(300)));
    both_ways(&small, &wire![47u32, 10005u32, 300u32]);
    let later = OpRes::Layoutget(Err(LayoutgetFail::TryLater(true)));
    both_ways(&later, &wire![50u32, 10058u32, 1u32]);
    let reqs = CopyRequirements { consecutive: true, synchronous: false };
    both_ways(&OpRes::Copy(Err(CopyFail::NoReqs(reqs))), &wire![60u32, 10094u32, 1u32, 0u32]);
    both_ways(&OpRes::Illegal(Nfsstat4::OP_ILLEGAL), &wire![10044u32, 10044u32]);
    both_ways(&OpRes::Lookup(Err(Nfsstat4(20000))), &wire![15u32, 20000u32]);
}

#[test]
fn a_directory_with_two_entries() {
    let entry = |cookie, name: &[u8], fileid| Entry {
        cookie,
        name: Component::copy(name),
        attrs: Attrs { ftype: Some(Ftype::REG), fileid: Some(fileid), ..Default::default() },
    };
    let ok = ReaddirOk {
        cookieverf: *b"cookverf",
        entries: crate::xdr::Chain(vec![entry(3, b"a", 100), entry(4, b"\xff\xfebc", 101)]),
        eof: true,
    };
    let head = wire![26u32, 0u32, *b"cookverf"];
    let first = wire![1u32, 3u64, "a", 1u32, 0x0010_0002u32, 12u32, 1u32, 100u64];
    let second = wire![1u32, 4u64, 4u32, *b"\xff\xfebc", 1u32, 0x0010_0002u32, 12u32, 1u32, 101u64];
    let tail = wire![0u32, 1u32];
    both_ways(&OpRes::Readdir(Ok(ok)), &[head, first, second, tail].concat().into());
}

#[test]
fn setting_times_and_owner() {
    let attrs = Attrs {
        owner: Some(OwnerName::copy(b"joe@home")),
        time_access_set: Some(SetTime::Server),
        time_modify_set: Some(SetTime::Client(Time { seconds: -1, nseconds: 5 })),
        ..Default::default()
    };
    // 36 is bit 4 of word 1, 48 is bit 16, 54 is bit 22.
    let head = wire![34u32, [0u8; 16], 2u32, 0u32, 0x0041_0010u32, 32u32];
    let vals = wire!["joe@home", 0u32, 1u32, u64::MAX, 5u32];
    both_ways(&Op::setattr(Stateid::ANONYMOUS, attrs), &[head, vals].concat().into());
}

#[test]
fn a_mode_with_a_umask() {
    let attrs = Attrs { mode_umask: Some(ModeUmask { mode: 0o666, umask: 0o22 }), ..Default::default() };
    both_ways(&attrs, &wire![3u32, 0u32, 0u32, 1u32 << 17, 8u32, 0o666u32, 0o22u32]);
}

#[test]
fn exchange_id_and_create_session() {
    let args = ExchangeIdArgs {
        clientowner: ClientOwner { verifier: *b"bootverf", ownerid: b"hither@host"[..].into() },
        flags: exchgid::SUPP_MOVED_REFER,
        state_protect: StateProtectArgs::None,
        impl_id: None,
    };
    both_ways(&Op::ExchangeId(args), &wire![42u32, *b"bootverf", "hither@host", 1u32, 0u32, 0u32]);
    let ok = ExchangeIdOk {
        clientid: 0x1234_5678_9abc_def0,
        sequenceid: 1,
        flags: exchgid::USE_NON_PNFS | exchgid::CONFIRMED_R,
        state_protect: StateProtectOk::None,
        server_owner: ServerOwner { minor_id: 4, major_id: b"srv"[..].into() },
        server_scope: b"scope"[..].into(),
        impl_id: Some(ImplId {
            domain: Text::copy(b"example.org"),
            name: Text::copy(b"knfsd"),
            date: Time::default(),
        }),
    };
    let head = wire![42u32, 0u32, 0x1234_5678_9abc_def0u64, 1u32, 0x8001_0000u32, 0u32, 4u64, "srv", "scope"];
    let tail = wire![1u32, "example.org", "knfsd", 0u64, 0u32];
    both_ways(&OpRes::ExchangeId(Ok(ok)), &[head, tail].concat().into());

    let channel = |ops| ChannelAttrs {
        headerpadsize: 0,
        maxrequestsize: 1 << 20,
        maxresponsesize: 1 << 20,
        maxresponsesize_cached: 4096,
        maxoperations: ops,
        maxrequests: 64,
        rdma_ird: None,
    };
    let args = CreateSessionArgs {
        clientid: 5,
        sequence: 1,
        flags: create_session::CONN_BACK_CHAN,
        fore_chan_attrs: channel(50),
        back_chan_attrs: channel(2),
        cb_program: 0x4000_0000,
        sec_parms: vec![CallbackSec::None].into(),
    };
    let head = wire![43u32, 5u64, 1u32, 2u32];
    let fore = wire![0u32, 1u32 << 20, 1u32 << 20, 4096u32, 50u32, 64u32, 0u32];
    let back = wire![0u32, 1u32 << 20, 1u32 << 20, 4096u32, 2u32, 64u32, 0u32];
    let tail = wire![0x4000_0000u32, 1u32, 0u32];
    both_ways(&Op::CreateSession(args), &[head, fore, back, tail].concat().into());
}

#[test]
fn a_lock_by_a_new_owner() {
    let lock = LockArgs {
        locktype: LockType::WRITEW,
        reclaim: false,
        offset: 0,
        length: u64::MAX,
        locker: Locker::New(OpenToLockOwner {
            open_seqid: 0,
            open_stateid: STATEID,
            lock_seqid: 0,
            lock_owner: StateOwner { clientid: 0, owner: b"lock"[..].into() },
        }),
    };
    let head = wire![12u32, 4u32, 0u32, 0u64, u64::MAX, 1u32];
    let tail = wire![0u32, stateid(), 0u32, 0u64, "lock"];
    both_ways(&Op::Lock(lock), &[head, tail].concat().into());
}

#[test]
fn copies_holes_and_extended_attributes() {
    let copy = CopyArgs {
        src_stateid: STATEID,
        dst_stateid: STATEID,
        src_offset: 1,
        dst_offset: 2,
        count: 3,
        consecutive: true,
        synchronous: true,
        source_server: vec![Netloc::Name(Text::copy(b"here"))].into(),
    };
    let ends = wire![60u32, stateid(), stateid(), 1u64, 2u64, 3u64, 1u32, 1u32, 1u32, 1u32, "here"];
    both_ways(&Op::Copy(copy), &ends);
    let clone =
        CloneArgs { src_stateid: STATEID, dst_stateid: STATEID, src_offset: 1, dst_offset: 2, count: 3 };
    both_ways(&Op::Clone(clone), &wire![71u32, stateid(), stateid(), 1u64, 2u64, 3u64]);
    both_ways(&OpRes::Clone(Err(Nfsstat4::INVAL)), &wire![71u32, 22u32]);

    let pieces = vec![
        ReadPlusContent::Data(DataPiece { offset: 0, data: b"data"[..].into() }),
        ReadPlusContent::Hole(HolePiece { offset: 4, length: 8 }),
    ];
    let plus = OpRes::ReadPlus(Ok(ReadPlusOk { eof: false, contents: pieces.into() }));
    both_ways(&plus, &wire![68u32, 0u32, 0u32, 2u32, 0u32, 0u64, "data", 1u32, 4u64, 8u64]);
    let seek = Op::seek(STATEID, 9, DataContent::HOLE);
    both_ways(&seek, &wire![69u32, stateid(), 9u64, 1u32]);
    let set = Op::setxattr(SetxattrOption::REPLACE, b"k", Bytes::from_static(b"vv"));
    both_ways(&set, &wire![73u32, 2u32, "k", "vv"]);
    let list = ListxattrsOk { cookie: 6, names: vec![Component::copy(b"k")].into(), eof: true };
    both_ways(&OpRes::Listxattrs(Ok(list)), &wire![74u32, 0u32, 6u64, 1u32, "k", 1u32]);
}

#[test]
fn a_recall_on_the_backchannel() {
    let sequence = CbSequenceArgs {
        sessionid: SESSION,
        sequenceid: 1,
        slotid: 0,
        highest_slotid: 0,
        cachethis: false,
        referring_call_lists: vec![ReferringCallList {
            sessionid: SESSION,
            referring_calls: vec![ReferringCall { sequenceid: 8, slotid: 2 }].into(),
        }]
        .into(),
    };
    let recall = CbRecallArgs { stateid: STATEID, truncate: false, fh: Fh::copy(b"file") };
    let call = CbCompound {
        tag: Tag::default(),
        minorversion: 1,
        callback_ident: 0,
        ops: vec![CbOp::Sequence(sequence), CbOp::Recall(recall)],
    };
    let head = wire!["", 1u32, 0u32, 2u32, 11u32, SESSION, 1u32, 0u32, 0u32, 0u32];
    let tail = wire![1u32, SESSION, 1u32, 8u32, 2u32, 4u32, stateid(), 0u32, "file"];
    both_ways(&call, &[head, tail].concat().into());

    let ok = CbSequenceOk {
        sessionid: SESSION,
        sequenceid: 1,
        slotid: 0,
        highest_slotid: 3,
        target_highest_slotid: 3,
    };
    let reply = CbCompoundReply {
        status: Nfsstat4::OK,
        tag: Tag::default(),
        results: vec![CbRes::Sequence(Ok(ok)), CbRes::Recall(Ok(()))].into(),
    };
    let bytes = wire![0u32, "", 2u32, 11u32, 0u32, SESSION, 1u32, 0u32, 3u32, 3u32, 4u32, 0u32];
    both_ways(&reply, &bytes);
}

#[test]
fn finished_copy_callback() {
    let args = |offload_info| CbOffloadArgs { fh: Fh::copy(b"dest"), stateid: STATEID, offload_info };
    let fail = args(Err(OffloadFail { status: Nfsstat4::IO, bytes_copied: 77 }));
    both_ways(&fail, &wire!["dest", stateid(), 5u32, 77u64]);
    let done = args(Ok(WriteResponse {
        callback_id: None,
        count: 100,
        committed: StableHow::FILE_SYNC,
        writeverf: *b"verifier",
    }));
    both_ways(&done, &wire!["dest", stateid(), 0u32, 0u32, 100u64, 2u32, *b"verifier"]);
}
