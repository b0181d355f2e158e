//! The content of a message as a flat list of named values, in wire order.
//!
//! The names are those of Wireshark's fields, so that two readers of the same bytes can be compared
//! value by value. Numbers are decimal, flags are 0 or 1, opaque values are hexadecimal, and texts
//! appear unchanged.

mod nfs3;
mod nfs4;
mod nfs4_attrs;
mod nfs4_callback;

use bytes::Bytes;
use hither_proto::rpc::{
    AcceptStat, AcceptedReply, CallHeader, DeniedReply, Message, OpaqueAuth, ReplyBody, ReplyHeader,
};
use hither_proto::xdr::{Result, XdrError};
use hither_proto::{mount as mnt, nfs3 as v3, nfs4 as v4, nqnfs as nq, portmap as pmap};
use std::collections::HashMap;
use std::fmt::Display;

/// Callback program numbers, which the client chooses from the transient range. Linux takes the
/// first.
const CB_PROGRAMS: std::ops::RangeInclusive<u32> = 0x4000_0000..=0x5fff_ffff;

/// The access bits that Wireshark shows (eight).
const ACCESS_SHOWN: u32 = 0xff;

/// The content of one message.
#[derive(Debug)]
pub struct Summary {
    /// Transaction id, equal in call and reply.
    pub xid: u32,
    /// True for a call, false for a reply.
    pub call: bool,
    /// Program, version and procedure of the call. A reply has those of its call.
    pub proc: (u32, u32, u32),
    /// Name of the procedure.
    pub name: &'static str,
    /// The named values of the message.
    pub fields: Fields,
}

/// Named values in order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Fields(pub Vec<(&'static str, String)>);

impl Fields {
    /// Appends a number.
    pub fn num(&mut self, name: &'static str, value: impl Display) {
        self.0.push((name, value.to_string()));
    }

    /// Appends a flag.
    pub fn flag(&mut self, name: &'static str, value: bool) {
        self.num(name, u8::from(value));
    }

    /// Appends text.
    pub fn text(&mut self, name: &'static str, value: &[u8]) {
        self.0.push((name, String::from_utf8_lossy(value).into_owned()));
    }

    /// Appends an opaque value.
    pub fn hex(&mut self, name: &'static str, value: &[u8]) {
        self.0.push((name, value.iter().map(|b| format!("{b:02x}")).collect()));
    }

    /// Appends an 8-byte verifier. Some fields show it as a number.
    pub fn verifier(&mut self, name: &'static str, value: &[u8; 8]) {
        self.num(name, u64::from_be_bytes(*value));
    }
}

/// Decodes messages and remembers calls, because a reply does not contain its procedure.
#[derive(Debug, Default)]
pub struct Reader {
    calls: HashMap<u32, (u32, u32, u32)>,
}

impl Reader {
    /// Decodes one message. `None` for a reply whose call is unknown, and for an unknown program or
    /// procedure.
    ///
    /// # Errors
    /// The message is malformed.
    pub fn read(&mut self, message: &Bytes) -> Result<Option<Summary>> {
        let mut fields = Fields::default();
        let (call, xid, proc, body) = match Message::decode(message)? {
            Message::Call(h, body) => {
                self.calls.insert(h.xid, (h.prog, h.vers, h.proc));
                call_header(&mut fields, &h);
                (true, h.xid, (h.prog, h.vers, h.proc), body)
            }
            Message::Reply(h, body) => {
                let Some(proc) = self.calls.remove(&h.xid) else { return Ok(None) };
                reply_header(&mut fields, &h);
                if !h.is_success() {
                    return Ok(Some(Summary { xid: h.xid, call: false, proc, name: "failed", fields }));
                }
                (false, h.xid, proc, body)
            }
            Message::UnknownVersion { version, .. } => return Err(XdrError::Invalid(version)),
        };
        let name = procedure(&mut fields, proc, call, &body)?;
        Ok(name.map(|name| Summary { xid, call, proc, name, fields }))
    }
}

fn call_header(f: &mut Fields, h: &CallHeader) {
    f.num("rpc.program", h.prog);
    f.num("rpc.programversion", h.vers);
    f.num("rpc.procedure", h.proc);
    auth(f, &h.cred);
    auth(f, &h.verf);
}

fn auth(f: &mut Fields, auth: &OpaqueAuth) {
    f.num("rpc.auth.flavor", auth.flavor.0);
    f.num("rpc.auth.length", auth.body.len());
    if let Ok(Some(sys)) = auth.as_sys() {
        f.num("rpc.auth.stamp", sys.stamp);
        f.text("rpc.auth.machinename", &sys.machinename);
        f.num("rpc.auth.uid", sys.uid);
        f.num("rpc.auth.gid", sys.gid);
        sys.gids.iter().for_each(|gid| f.num("rpc.auth.gid", gid));
    }
}

fn reply_header(f: &mut Fields, h: &ReplyHeader) {
    match &h.body {
        ReplyBody::Accepted(AcceptedReply { verf, stat }) => {
            f.num("rpc.replystat", 0);
            auth(f, verf);
            f.num("rpc.state_accept", stat.discriminant());
            if let AcceptStat::ProgMismatch(range) = stat {
                f.num("rpc.programversion.min", range.low);
                f.num("rpc.programversion.max", range.high);
            }
        }
        ReplyBody::Denied(denied) => {
            f.num("rpc.replystat", 1);
            f.num("rpc.state_reject", denied.discriminant());
            match denied {
                DeniedReply::RpcMismatch(range) => {
                    f.num("rpc.version.min", range.low);
                    f.num("rpc.version.max", range.high);
                }
                DeniedReply::AuthError(stat) => f.num("rpc.state_auth", stat.0),
            }
        }
    }
}

/// Decodes arguments or results. Returns the procedure's name, or `None` if it is unknown.
fn procedure(
    f: &mut Fields,
    (prog, vers, proc): (u32, u32, u32),
    call: bool,
    body: &Bytes,
) -> Result<Option<&'static str>> {
    macro_rules! read {
        ($call:ty, $reply:ty, $proc:expr, $args:path, $res:path) => {{
            let known = if call {
                <$call>::decode($proc, body)?.map(|v| $args(f, &v)).is_some()
            } else {
                <$reply>::decode($proc, body)?.map(|v| $res(f, &v)).is_some()
            };
            if known { $proc.name() } else { None }
        }};
    }
    Ok(match (prog, vers) {
        (v3::PROGRAM, v3::VERSION) => read!(v3::Call3, v3::Reply3, v3::Proc3(proc), nfs3::call, nfs3::reply),
        (v4::PROGRAM, v4::VERSION) => read!(v4::Call4, v4::Reply4, v4::Proc4(proc), nfs4::call, nfs4::reply),
        (nq::PROGRAM, nq::VERSION) => {
            read!(nq::NqCall, nq::NqReply, nq::NqProc(proc), nqnfs_call, nqnfs_reply)
        }
        (mnt::PROGRAM, nq::mount1::VERSION) if proc == nq::mount1::Mount1Proc::MNT.0 => {
            use nq::mount1::{Mount1Call, Mount1Proc, Mount1Reply};
            read!(Mount1Call, Mount1Reply, Mount1Proc(proc), shown, shown)
        }
        (mnt::PROGRAM, mnt::VERSION) => {
            read!(mnt::MountCall, mnt::MountReply, mnt::MountProc(proc), mount_call, mount_reply)
        }
        (pmap::PROGRAM, 2) => {
            read!(pmap::PortmapCall, pmap::PortmapReply, pmap::PortmapProc(proc), portmap_call, portmap_reply)
        }
        (pmap::PROGRAM, 3 | 4) => {
            read!(pmap::RpcbindCall, pmap::RpcbindReply, pmap::RpcbindProc(proc), rpcbind_call, rpcbind_reply)
        }
        (prog, v4::CB_VERSION) if CB_PROGRAMS.contains(&prog) => {
            nfs4_callback::callback(f, proc, call, body)?
        }
        _ => None,
    })
}

/// Appends a value under this library's names, because Wireshark has no NQNFS dissector.
fn shown(f: &mut Fields, value: &impl std::fmt::Debug) {
    f.text("nqnfs", format!("{value:?}").as_bytes());
}

fn nqnfs_call(f: &mut Fields, call: &nq::NqCall) {
    match call {
        nq::NqCall::Write(a) => {
            let nq::WriteArgs { file, offset, append, data } = &a.args;
            let bytes = data.len();
            let text =
                format!("Write({:?}, {file:?}, offset {offset}, append {append}, {bytes} bytes)", a.lease);
            f.text("nqnfs", text.as_bytes());
        }
        call => shown(f, call),
    }
}

fn nqnfs_reply(f: &mut Fields, reply: &nq::NqReply) {
    match reply {
        nq::NqReply::Read(nq::Res::Ok(lease, ok)) => {
            let text = format!("Read({lease:?}, {:?}, {} bytes)", ok.attributes, ok.data.len());
            f.text("nqnfs", text.as_bytes());
        }
        reply => shown(f, reply),
    }
}

fn mount_call(f: &mut Fields, call: &mnt::MountCall) {
    use mnt::MountCall as C;
    match call {
        C::Mnt(mnt::MntArgs { dirpath }) | C::Umnt(mnt::UmntArgs { dirpath }) => {
            f.text("mount.path", dirpath)
        }
        C::Null(_) | C::Dump(_) | C::Umntall(_) | C::Export(_) => {}
    }
}

fn mount_reply(f: &mut Fields, reply: &mnt::MountReply) {
    use mnt::MountReply as R;
    match reply {
        R::Null(()) | R::Umnt(()) | R::Umntall(()) => {}
        R::Mnt(res) => {
            f.num("mount.status", res.discriminant());
            if let mnt::MntRes::Granted(ok) = res {
                f.num("nfs.fh.length", ok.fhandle.len());
                f.hex("nfs.fhandle", &ok.fhandle);
                f.num("mount.flavors", ok.auth_flavors.len());
                ok.auth_flavors.iter().for_each(|flavor| f.num("mount.flavor", flavor.0));
            }
        }
        R::Dump(list) => {
            for entry in list.iter() {
                f.text("mount.dump.hostname", &entry.hostname);
                f.text("mount.dump.directory", &entry.directory);
            }
        }
        R::Export(list) => {
            for entry in list.iter() {
                f.text("mount.export.directory", &entry.dir);
                entry.groups.iter().for_each(|g| f.text("mount.export.group", g));
            }
        }
    }
}

fn portmap_call(f: &mut Fields, call: &pmap::PortmapCall) {
    use pmap::PortmapCall as C;
    match call {
        C::Null(_) | C::Dump(_) => {}
        C::Set(pmap::PortmapSet { mapping: m })
        | C::Unset(pmap::PortmapUnset { mapping: m })
        | C::Getport(pmap::PortmapGetport { mapping: m }) => mapping(f, m),
    }
}

fn mapping(f: &mut Fields, m: &pmap::Mapping) {
    f.num("portmap.prog", m.prog);
    f.num("portmap.version", m.vers);
    f.num("portmap.proto", m.prot);
    f.num("portmap.port", m.port);
}

fn portmap_reply(f: &mut Fields, reply: &pmap::PortmapReply) {
    use pmap::PortmapReply as R;
    match reply {
        R::Null(()) => {}
        R::Set(done) | R::Unset(done) => f.flag("portmap.answer", *done),
        R::Getport(port) => f.num("portmap.port", port),
        R::Dump(list) => list.iter().for_each(|m| mapping(f, m)),
    }
}

fn rpcbind_call(f: &mut Fields, call: &pmap::RpcbindCall) {
    use pmap::RpcbindCall as C;
    match call {
        C::Null(_) | C::Dump(_) | C::Gettime(_) => {}
        C::Set(pmap::RpcbindSet { rpcb: r })
        | C::Unset(pmap::RpcbindUnset { rpcb: r })
        | C::Getaddr(pmap::RpcbindGetaddr { rpcb: r })
        | C::Getversaddr(pmap::RpcbindGetversaddr { rpcb: r }) => rpcb(f, r),
    }
}

fn rpcb(f: &mut Fields, r: &pmap::Rpcb) {
    f.num("portmap.rpcb.prog", r.prog);
    f.num("portmap.rpcb.version", r.vers);
    f.text("portmap.rpcb.netid", &r.netid);
    f.text("portmap.rpcb.addr", &r.addr);
    f.text("portmap.rpcb.owner", &r.owner);
}

fn rpcbind_reply(f: &mut Fields, reply: &pmap::RpcbindReply) {
    use pmap::RpcbindReply as R;
    match reply {
        R::Null(()) | R::Gettime(_) => {}
        R::Set(done) | R::Unset(done) => f.flag("portmap.answer", *done),
        R::Getaddr(addr) | R::Getversaddr(addr) => f.text("portmap.uaddr", addr),
        R::Dump(list) => list.iter().for_each(|r| rpcb(f, r)),
    }
}
