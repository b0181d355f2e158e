//! Replies of the Linux kernel's server (6.1) and of nfs-ganesha (4.3) to the Linux kernel's
//! client. The expected values are those of tshark 4.0.

use super::*;

fn reply(hex: &str) -> Results<OpRes> {
    let digit = |c: u8| char::from(c).to_digit(16).expect("hex") as u8;
    let bytes: Bytes = hex.as_bytes().chunks(2).map(|c| digit(c[0]) << 4 | digit(c[1])).collect();
    Dec::all::<CompoundReply>(&bytes).unwrap().results()
}

#[test]
fn knfsd_grants_a_read_delegation() {
    let mut r = reply(OPEN_READ_DELEGATION);
    let sequence = r.sequence().unwrap();
    assert_eq!((sequence.sequenceid, sequence.slotid, sequence.target_highest_slotid), (0x40, 0, 29));
    r.putfh().unwrap();
    let opened = r.open().unwrap();
    assert_eq!(opened.stateid, Stateid { seqid: 1, other: *b"\x20\x1d\x02\x6b\xcf\x57\x19\x4c\x08\0\0\0" });
    assert_eq!((opened.cinfo.atomic, opened.cinfo.before), (true, 1_927_689_466_719_321_710));
    assert_eq!(opened.rflags, open::RESULT_LOCKTYPE_POSIX | open::RESULT_MAY_NOTIFY_LOCK);
    let delegation = opened.delegation.stateid().unwrap();
    assert_eq!(delegation.other[8..], [9, 0, 0, 0]);
    assert_eq!(r.getfh().unwrap()[..], *b"\x01\0\x01\x01\0\0\0\0\x15\0\0\0\xee\x18\x35\x10");
    assert_eq!(r.access(), Ok(AccessOk { supported: 0x1ed, access: 0x1cd }));
    let attrs = r.getattr().unwrap();
    assert_eq!((attrs.ftype, attrs.size, attrs.fileid), (Some(Ftype::REG), Some(1_310_720), Some(21)));
    assert_eq!(
        (attrs.mode, attrs.numlinks, attrs.change),
        (Some(0o644), Some(1), Some(1_927_689_466_375_576_423))
    );
    assert_eq!(attrs.time_access, Some(Time { seconds: 1_795_300_716, nseconds: 939_230_308 }));
    assert_eq!(r.finish(), Ok(()));
}

/// nfs-ganesha refuses a delegation with the reason NotWanted (an extended "none").
#[test]
fn ganesha_refuses_delegation_with_reason() {
    let mut r = reply(OPEN_NO_DELEGATION);
    r.sequence().unwrap();
    r.putfh().unwrap();
    let opened = r.open().unwrap();
    assert_eq!(opened.delegation, OpenDelegation::NoneExt(WhyNoDelegation::NotWanted));
    assert_eq!(r.access().unwrap().access, 0x0d);
    assert_eq!(r.getattr().unwrap().owner, Some(OwnerName::copy(b"root@localdomain")));
    assert_eq!(r.finish(), Ok(()));
}

#[test]
fn knfsd_copies() {
    let mut r = reply(COPY_COMMIT);
    r.sequence().unwrap();
    r.putfh().unwrap();
    r.savefh().unwrap();
    r.putfh().unwrap();
    let copied = r.copy().unwrap();
    assert_eq!((copied.response.count, copied.response.callback_id), (1_310_720, None));
    assert_eq!(copied.response.committed, StableHow::UNSTABLE);
    assert_eq!(r.commit(), Ok(copied.response.writeverf));
}

#[test]
fn knfsd_lists_extended_attributes() {
    let mut r = reply(LISTXATTRS);
    r.sequence().unwrap();
    r.putfh().unwrap();
    let list = r.listxattrs().unwrap();
    assert_eq!((list.cookie, list.eof), (144_115_188_075_855_872, true));
    assert_eq!(*list.names, [Component::copy(b"k"), Component::copy(b"k2")]);
}

#[test]
fn ganesha_reads_a_directory_with_handles() {
    let mut r = reply(READDIR);
    r.sequence().unwrap();
    r.putfh().unwrap();
    let dir = r.readdir().unwrap();
    assert!(dir.eof);
    let [entry] = &dir.entries[..] else { panic!("{dir:?}") };
    assert_eq!((entry.cookie, &entry.name[..]), (i64::MAX as u64, &b"d"[..]));
    assert_eq!((entry.attrs.size, entry.attrs.fileid), (Some(4096), Some(10_043_463)));
    assert_eq!((entry.attrs.mode, entry.attrs.rdattr_error), (Some(0o755), Some(Nfsstat4::OK)));
    assert_eq!(entry.attrs.filehandle.as_ref().map(|fh| fh.len()), Some(23));
}

#[test]
fn knfsd_introduces_itself() {
    let server = reply(EXCHANGE_ID).exchange_id().unwrap();
    assert_eq!((server.clientid, server.sequenceid), (0x201d_026b_ce57_194c, 1));
    assert_eq!(server.flags, exchgid::USE_PNFS_MDS | exchgid::SUPP_MOVED_REFER);
    assert_eq!((&server.server_owner.major_id[..], &server.server_scope[..]), (&b"knfsd"[..], &b"knfsd"[..]));
    assert_eq!(server.impl_id, None);
}

const OPEN_READ_DELEGATION: &str = "\
    0000000000000000000000060000003500000000201d026bcf57194c01000000000000000000004000000000\
    0000001d0000001d000000000000001600000000000000120000000000000001201d026bcf57194c08000000\
    000000011ac0875b4d113e6e1ac0875b4d113e6e0000002400000001000000000000000100000001201d026b\
    cf57194c0900000000000000000000000000000000000000000000000000000a000000000000001001000101\
    0000000015000000ee1835100000000300000000000001ed000001cd0000000900000000000000020010011a\
    00b0a23a00000080000000011ac0875b38941b67000000000014000000000000000000000000000000000000\
    0000000000000015000001a40000000100000001300000000000000130000000000000000000000000000000\
    00140000000000006b021d6c37fb8464000000006b021d6c38941b64000000006b021d6c38941b6400000000\
    00000015";

const OPEN_NO_DELEGATION: &str = "\
    000000000000000000000005000000350000000002000000141d026b01000000000000000000003600000000\
    0000003f0000003f00000000000000160000000000000012000000000000000102000000141d026b03000000\
    0000000018ea3074edbfb8b818ea3074edbfb8b8000000040000000000000003000000000000000300000000\
    0000002d0000000d0000000900000000000000020010011a00b0a23a000000980000000118ea3074edbfb8b8\
    00000000001400000000000043a0d24d0000000025fdd92e000000000099404f000001a40000000100000010\
    726f6f74406c6f63616c646f6d61696e00000010726f6f74406c6f63616c646f6d61696e0000000000000000\
    0000000000140000000000006b021d4808e263ed000000006b021d480d54e8b8000000006b021d480d54e8b8\
    000000000099404f";

const COPY_COMMIT: &str = "\
    0000000000000000000000060000003500000000201d026bcf57194c01000000000000000000008100000000\
    0000001d0000001d000000000000001600000000000000200000000000000016000000000000003c00000000\
    00000000000000000014000000000000ba6fd9595a692cef00000001000000010000000500000000ba6fd959\
    5a692cef";

const LISTXATTRS: &str = "\
    0000000000000000000000030000003500000000201d026bcf57194c01000000000000000000006100000000\
    0000001d0000001d0000000000000016000000000000004a0000000002000000000000000000000200000001\
    6b000000000000026b32000000000001";

const READDIR: &str = "\
    000000000000000000000003000000350000000002000000141d026b01000000000000000000005f00000000\
    0000003f0000003f0000000000000016000000000000001a000000000000000000000000000000017fffffff\
    ffffffff0000000164000000000000020018091a00b0a23a000000b80000000218ea30751fb16a9900000000\
    000010000000000043a0d24d0000000025fdd92e00000000000000174300000112444dd2a0432ed9fd250147\
    4099009622317e000000000000994047000001ed0000000300000010726f6f74406c6f63616c646f6d61696e\
    00000010726f6f74406c6f63616c646f6d61696e00000000000000000000000000001000000000006b021d45\
    3933612e000000006b021d4903abd099000000006b021d4903abd09900000000009940470000000000000001";

const EXCHANGE_ID: &str = "\
    0000000000000000000000010000002a00000000201d026bce57194c00000001000200010000000000000000\
    00000000000000056b6e667364000000000000056b6e66736400000000000000";
