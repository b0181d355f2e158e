//! What a message says, read only as deep as counting needs.
//!
//! Names of procedures and operations, the list of a compound's operations, its status and the
//! delegation an OPEN was given. A message that cannot be read is `None` or "undecoded", never an
//! error: the relay carries it all the same.

/// A decoded call.
pub struct Call {
    /// `v3.GETATTR`, `v4.COMPOUND`, `mount.MNT`, `cb.COMPOUND`...
    pub name: String,
    /// Operations of a compound, in order, as far as they could be read.
    pub ops: Vec<&'static str>,
}

/// A cursor; every read is `None` past the end.
struct Cursor<'a> {
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.bytes.split_first_chunk::<4>()?;
        self.bytes = rest;
        Some(u32::from_be_bytes(*head))
    }

    fn skip(&mut self, n: usize) -> Option<()> {
        self.bytes = self.bytes.get(n..)?;
        Some(())
    }

    /// Counted bytes with their padding.
    fn opaque(&mut self) -> Option<()> {
        let n = self.u32()? as usize;
        self.skip(n.checked_add(3)? & !3)
    }

    /// A counted list of items of `item` bytes.
    fn list(&mut self, item: usize) -> Option<()> {
        let n = self.u32()? as usize;
        self.skip(n.checked_mul(item)?)
    }
}

/// The transaction id, and whether the message is a reply.
pub fn xid(message: &[u8]) -> Option<(u32, bool)> {
    let mut x = Cursor { bytes: message };
    Some((x.u32()?, x.u32()? == 1))
}

/// Decodes a call; `callback` when a server sent it.
pub fn call(message: &[u8], callback: bool) -> Call {
    let unknown = || Call { name: "undecoded".into(), ops: vec![] };
    let mut x = Cursor { bytes: message };
    let decoded = if callback { callback_of(&mut x) } else { call_of(&mut x) };
    decoded.unwrap_or_else(unknown)
}

/// Program, version and procedure of a call; the cursor then stands at the arguments.
fn header(x: &mut Cursor<'_>) -> Option<(u32, u32, u32)> {
    x.skip(12)?; // xid, message type, RPC version
    let which = (x.u32()?, x.u32()?, x.u32()?);
    for _ in 0..2 {
        x.skip(4)?; // flavor of the credential, of the verifier
        x.opaque()?;
    }
    Some(which)
}

fn call_of(x: &mut Cursor<'_>) -> Option<Call> {
    let (program, version, procedure) = header(x)?;
    let of = |prefix: &str, names: &[&str]| {
        let name = names.get(procedure as usize).map_or_else(|| procedure.to_string(), |n| n.to_string());
        Some(Call { name: format!("{prefix}.{name}"), ops: vec![] })
    };
    match (program, version) {
        (100_003, 3) => of("v3", &NFS3),
        (100_003, 4) if procedure == 0 => of("v4", &["NULL"]),
        (100_003, 4) => {
            x.opaque()?; // tag
            x.u32()?; // minor version
            let count = x.u32()?;
            let mut ops = vec![];
            for _ in 0..count.min(1024) {
                let Some(op) = x.u32() else { break };
                ops.push(op4(op));
                if skip_args4(op, x).is_none() {
                    break;
                }
            }
            Some(Call { name: "v4.COMPOUND".into(), ops })
        }
        (100_005, _) => of("mount", &MOUNT3),
        (100_000, _) => of("portmap", &[]),
        (100_021, _) => of("nlm", &[]),
        (100_227, _) => of("acl", &[]),
        _ => of(&format!("prog{program}"), &[]),
    }
}

fn callback_of(x: &mut Cursor<'_>) -> Option<Call> {
    let (_, _, procedure) = header(x)?;
    if procedure == 0 {
        return Some(Call { name: "cb.NULL".into(), ops: vec![] });
    }
    x.opaque()?; // tag
    x.skip(8)?; // minor version, callback ident
    let count = x.u32()?;
    let mut ops = vec![];
    for _ in 0..count.min(64) {
        let Some(op) = x.u32() else { break };
        ops.push(cb_op4(op));
        // Only what stands before the operation of interest is skipped.
        let more = op == 11 && x.skip(16 + 16).is_some() && x.u32() == Some(0);
        if !more {
            break;
        }
    }
    Some(Call { name: "cb.COMPOUND".into(), ops })
}

/// Status of a compound's reply and, when an OPEN can be reached, the delegation it was given.
pub fn compound_reply(message: &[u8], name: &str) -> Option<(u32, Option<&'static str>)> {
    if name != "v4.COMPOUND" {
        return None;
    }
    let mut x = Cursor { bytes: message };
    x.skip(8)?; // xid, message type
    if x.u32()? != 0 {
        return None; // denied
    }
    x.skip(4)?;
    x.opaque()?; // verifier
    if x.u32()? != 0 {
        return None; // not executed
    }
    let status = x.u32()?;
    Some((status, delegation(&mut x)))
}

fn delegation(x: &mut Cursor<'_>) -> Option<&'static str> {
    x.opaque()?; // tag
    for _ in 0..x.u32()? {
        let (op, status) = (x.u32()?, x.u32()?);
        if status != 0 {
            return None;
        }
        match op {
            53 => x.skip(16 + 4 * 5)?,        // SEQUENCE
            15 | 16 | 22 | 24 | 31 | 32 => {} // no results
            3 => x.skip(8)?,                  // ACCESS
            10 => x.opaque()?,                // GETFH
            9 => {
                x.list(4)?;
                x.opaque()?;
            }
            18 => {
                x.skip(16 + 20 + 4)?; // stateid, change information, flags
                x.list(4)?;
                return Some(match x.u32()? {
                    0 => "none",
                    1 => "read",
                    2 => "write",
                    3 => "none_ext",
                    _ => "other",
                });
            }
            _ => return None,
        }
    }
    None
}

/// Procedures of NFSv3 (RFC 1813).
const NFS3: [&str; 22] = [
    "NULL",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "ACCESS",
    "READLINK",
    "READ",
    "WRITE",
    "CREATE",
    "MKDIR",
    "SYMLINK",
    "MKNOD",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "LINK",
    "READDIR",
    "READDIRPLUS",
    "FSSTAT",
    "FSINFO",
    "PATHCONF",
    "COMMIT",
];

/// Procedures of MOUNT v3.
const MOUNT3: [&str; 6] = ["NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"];

/// Operations of NFSv4.0 to 4.2 with their extensions, from number 3 on (RFC 8881, 7862, 8276).
const NFS4: [&str; 73] = [
    "ACCESS",
    "CLOSE",
    "COMMIT",
    "CREATE",
    "DELEGPURGE",
    "DELEGRETURN",
    "GETATTR",
    "GETFH",
    "LINK",
    "LOCK",
    "LOCKT",
    "LOCKU",
    "LOOKUP",
    "LOOKUPP",
    "NVERIFY",
    "OPEN",
    "OPENATTR",
    "OPEN_CONFIRM",
    "OPEN_DOWNGRADE",
    "PUTFH",
    "PUTPUBFH",
    "PUTROOTFH",
    "READ",
    "READDIR",
    "READLINK",
    "REMOVE",
    "RENAME",
    "RENEW",
    "RESTOREFH",
    "SAVEFH",
    "SECINFO",
    "SETATTR",
    "SETCLIENTID",
    "SETCLIENTID_CONFIRM",
    "VERIFY",
    "WRITE",
    "RELEASE_LOCKOWNER",
    "BACKCHANNEL_CTL",
    "BIND_CONN_TO_SESSION",
    "EXCHANGE_ID",
    "CREATE_SESSION",
    "DESTROY_SESSION",
    "FREE_STATEID",
    "GET_DIR_DELEGATION",
    "GETDEVICEINFO",
    "GETDEVICELIST",
    "LAYOUTCOMMIT",
    "LAYOUTGET",
    "LAYOUTRETURN",
    "SECINFO_NO_NAME",
    "SEQUENCE",
    "SET_SSV",
    "TEST_STATEID",
    "WANT_DELEGATION",
    "DESTROY_CLIENTID",
    "RECLAIM_COMPLETE",
    "ALLOCATE",
    "COPY",
    "COPY_NOTIFY",
    "DEALLOCATE",
    "IO_ADVISE",
    "LAYOUTERROR",
    "LAYOUTSTATS",
    "OFFLOAD_CANCEL",
    "OFFLOAD_STATUS",
    "READ_PLUS",
    "SEEK",
    "WRITE_SAME",
    "CLONE",
    "GETXATTR",
    "SETXATTR",
    "LISTXATTRS",
    "REMOVEXATTR",
];

fn op4(op: u32) -> &'static str {
    (op as usize).checked_sub(3).and_then(|i| NFS4.get(i)).copied().unwrap_or("ILLEGAL")
}

fn cb_op4(op: u32) -> &'static str {
    match op {
        3 => "CB_GETATTR",
        4 => "CB_RECALL",
        5 => "CB_LAYOUTRECALL",
        6 => "CB_NOTIFY",
        8 => "CB_RECALL_ANY",
        10 => "CB_RECALL_SLOT",
        11 => "CB_SEQUENCE",
        14 => "CB_NOTIFY_LOCK",
        15 => "CB_OFFLOAD",
        _ => "CB_OTHER",
    }
}

/// A stateid.
const STATEID: usize = 16;

/// Skips the arguments of one operation; `None` when it is unknown or ends early.
fn skip_args4(op: u32, x: &mut Cursor<'_>) -> Option<()> {
    match op {
        10 | 16 | 23 | 24 | 27 | 31 | 32 => Some(()),
        3 | 19 | 52 | 58 => x.skip(4),
        4 => x.skip(4 + STATEID),
        5 => x.skip(12),
        6 => create(x),
        7 | 30 | 57 => x.skip(8),
        8 | 45 => x.skip(STATEID),
        9 => x.list(4),
        11 | 15 | 22 | 28 | 33 | 72 | 75 => x.opaque(),
        12 => lock(x),
        13 => {
            x.skip(4 + 8 + 8 + 8)?;
            x.opaque()
        }
        14 => x.skip(4 + 4 + STATEID + 16),
        17 | 37 => attributes(x),
        18 => open(x),
        20 => x.skip(STATEID + 4),
        21 => x.skip(STATEID + 12),
        25 | 68 | 69 => x.skip(STATEID + 8 + 4),
        26 => {
            x.skip(8 + 8 + 4 + 4)?;
            x.list(4)
        }
        29 => {
            x.opaque()?;
            x.opaque()
        }
        34 => {
            x.skip(STATEID)?;
            attributes(x)
        }
        38 => {
            x.skip(STATEID + 8 + 4)?;
            x.opaque()
        }
        39 => {
            x.skip(8)?;
            x.opaque()
        }
        44 => x.skip(16),
        53 => x.skip(16 + 4 * 4),
        55 => x.list(STATEID),
        59 | 62 => x.skip(STATEID + 16),
        60 => {
            x.skip(2 * STATEID + 24 + 8)?; // stateids, offsets and count, consecutive, synchronous
            x.list(0) // servers to copy from: none within one server
        }
        71 => x.skip(2 * STATEID + 24),
        73 => {
            x.skip(4)?;
            x.opaque()?;
            x.opaque()
        }
        74 => x.skip(12),
        _ => None,
    }
}

fn attributes(x: &mut Cursor<'_>) -> Option<()> {
    x.list(4)?;
    x.opaque()
}

fn create(x: &mut Cursor<'_>) -> Option<()> {
    match x.u32()? {
        5 => x.opaque()?,    // symbolic link
        3 | 4 => x.skip(8)?, // devices
        _ => {}
    }
    x.opaque()?;
    attributes(x)
}

fn lock(x: &mut Cursor<'_>) -> Option<()> {
    x.skip(4 + 4 + 8 + 8)?;
    if x.u32()? == 0 {
        return x.skip(STATEID + 4);
    }
    x.skip(4 + STATEID + 4 + 8)?;
    x.opaque()
}

fn open(x: &mut Cursor<'_>) -> Option<()> {
    x.skip(4 + 4 + 4 + 8)?; // seqid, access, deny, client id
    x.opaque()?; // owner
    if x.u32()? == 1 {
        match x.u32()? {
            0 | 1 => attributes(x)?,
            2 => x.skip(8)?,
            3 => {
                x.skip(8)?;
                attributes(x)?;
            }
            _ => return None,
        }
    }
    match x.u32()? {
        0 | 3 => x.opaque(),
        1 => x.skip(4),
        2 => {
            x.skip(STATEID)?;
            x.opaque()
        }
        4 | 6 => Some(()),
        5 => x.skip(STATEID),
        _ => None,
    }
}
