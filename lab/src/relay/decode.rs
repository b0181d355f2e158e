//! Decodes messages with hither's own decoders.
//!
//! The result names procedures, the operations of a compound, its status, and the delegation
//! granted to an OPEN. A message that cannot be decoded counts as "undecoded" and is no error. The
//! relay still forwards it. A count of such messages points to a fault of the decoders.

use bytes::Bytes;
use hither_proto::nfs4::{
    self, CbCompound, Compound, CompoundReply, NfsCbOpnum4, NfsOpnum4, OpRes, OpenDelegation,
};
use hither_proto::rpc::{CallHeader, Message};
use hither_proto::xdr::Dec;
use hither_proto::{mount, nfs3, nqnfs, portmap};

/// A decoded call.
pub struct Call {
    /// `v3.GETATTR`, `v4.COMPOUND`, `mount.MNT`, `cb.COMPOUND`...
    pub name: String,
    /// Operations of a compound, in order.
    pub ops: Vec<&'static str>,
}

/// One message, as far as the counters need it.
pub enum Seen {
    /// A call or a callback.
    Call(u32, Call),
    /// A reply. Its body is not decoded yet.
    Reply(u32, Message),
    /// Not an RPC message.
    Rubbish,
}

/// Decodes a message. A call that does not come from the client is a callback.
pub fn message(bytes: &Bytes, from_client: bool) -> Seen {
    match Message::decode(bytes) {
        Ok(Message::Call(header, body)) => {
            let call = if from_client { call(&header, &body) } else { callback(&header, &body) };
            Seen::Call(header.xid, call)
        }
        Ok(reply @ Message::Reply(..)) => Seen::Reply(reply.xid(), reply),
        Ok(Message::UnknownVersion { xid, .. }) => Seen::Call(xid, named("rpc", None, 0)),
        Err(_) => Seen::Rubbish,
    }
}

fn named(program: &str, name: Option<&str>, number: u32) -> Call {
    let name = name.map_or_else(|| number.to_string(), str::to_string);
    Call { name: format!("{program}.{name}"), ops: vec![] }
}

fn call(header: &CallHeader, body: &Bytes) -> Call {
    let n = header.proc;
    match (header.prog, header.vers) {
        (nfs3::PROGRAM, nfs3::VERSION) => named("v3", nfs3::Proc3(n).name(), n),
        (nfs4::PROGRAM, nfs4::VERSION) if nfs4::Proc4(n) == nfs4::Proc4::COMPOUND => {
            let Ok(compound) = Dec::all::<Compound>(body) else { return named("v4", Some("undecoded"), n) };
            let ops = compound.ops.iter().map(|op| op.number().name().unwrap_or("UNKNOWN")).collect();
            Call { name: "v4.COMPOUND".into(), ops }
        }
        (nfs4::PROGRAM, nfs4::VERSION) => named("v4", nfs4::Proc4(n).name(), n),
        (nqnfs::PROGRAM, nqnfs::VERSION) => named("nqnfs", nqnfs::NqProc(n).name(), n),
        (mount::PROGRAM, _) => named("mount", mount::MountProc(n).name(), n),
        (portmap::PROGRAM, _) => named("portmap", None, n),
        (100_021, _) => named("nlm", None, n),
        (100_227, _) => named("acl", None, n),
        (program, _) => named(&format!("prog{program}"), None, n),
    }
}

fn callback(header: &CallHeader, body: &Bytes) -> Call {
    if header.prog == nqnfs::PROGRAM {
        return named("cb", nqnfs::NqProc(header.proc).name(), header.proc);
    }
    if header.proc == nfs4::CB_PROC_NULL {
        return named("cb", Some("NULL"), 0);
    }
    match Dec::all::<CbCompound>(body) {
        Ok(c) => {
            let name = |number: NfsCbOpnum4| number.name().unwrap_or("CB_UNKNOWN");
            Call { name: "cb.COMPOUND".into(), ops: c.ops.iter().map(|op| name(op.number())).collect() }
        }
        Err(_) => named("cb", Some("undecoded"), header.proc),
    }
}

/// The status of a compound's reply. When `look` says that the compound may contain an OPEN, also
/// the granted delegation.
pub fn compound_reply(reply: &Message, look: bool) -> Option<(u32, Option<&'static str>)> {
    let Message::Reply(header, body) = reply else { return None };
    if !header.is_success() {
        return None;
    }
    let status = Dec::new(body).u32().ok()?;
    Some((status, if look { delegation(body) } else { None }))
}

fn delegation(body: &Bytes) -> Option<&'static str> {
    let reply: CompoundReply = Dec::all(body).ok()?;
    reply.results.iter().filter(|r| r.number() == NfsOpnum4::OPEN).find_map(|r| match r {
        OpRes::Open(Ok(ok)) => Some(match ok.delegation {
            OpenDelegation::None => "none",
            OpenDelegation::NoneExt(_) => "none_ext",
            OpenDelegation::Read(_) => "read",
            OpenDelegation::Write(_) => "write",
            OpenDelegation::ReadAttrs(_) => "read_attrs",
            OpenDelegation::WriteAttrs(_) => "write_attrs",
        }),
        _ => None,
    })
}
