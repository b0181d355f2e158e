//! MOUNT version 3 (RFC 1813 appendix I): returns the first filehandle of NFSv3 for a path.
//!
//! The module knows nothing of NFS procedures. It keeps no list of mounts, because such lists
//! become wrong when clients disappear.

use crate::error::stat3;
use crate::handle;
use crate::server::{Request, Server};
use crate::table::Export;
use hither_proto::mount::{
    Dirpath, Exportnode, MntArgs, MntOk, MntRes, MountCall, MountProc, MountReply, Mountstat3,
    Name as HostName,
};
use hither_proto::nfs3;
use hither_proto::xdr::{Chain, Enc};
use hither_rpc::Flavor;
use hither_rpc::server::{Incoming, Outcome};
use hither_vfs::{FileKind, Node, PathRef, Spent, Stop, WalkRequest};
use std::sync::Arc;

/// Answers a call.
pub(crate) async fn answer(server: &Arc<Server>, call: Incoming, spent: &Arc<Spent>) -> Outcome {
    let args = match MountCall::decode(MountProc(call.proc), &call.args) {
        Ok(Some(args)) => args,
        Ok(None) => return Outcome::ProcUnavail,
        Err(_) => return Outcome::GarbageArgs,
    };
    let request = Request::new(server, (call.peer, call.caller), spent);
    let reply = match args {
        MountCall::Null(_) => MountReply::Null(()),
        MountCall::Mnt(args) => MountReply::Mnt(mnt(&request, &args).await),
        MountCall::Dump(_) => MountReply::Dump(Chain::default()),
        MountCall::Umnt(_) => MountReply::Umnt(()),
        MountCall::Umntall(_) => MountReply::Umntall(()),
        MountCall::Export(_) => MountReply::Export(Chain(exports(&request))),
    };
    let mut out = Enc::new();
    reply.encode(&mut out);
    Outcome::Done(out)
}

/// MNT.
pub(crate) async fn mnt(request: &Request, args: &MntArgs) -> MntRes {
    match root(request, args).await {
        Ok(ok) => MntRes::Granted(ok),
        Err(status) => {
            tracing::info!("{} may not mount {}: {status:?}", request.peer.addr, args.dirpath.escape_ascii());
            MntRes::Refused(status.0)
        }
    }
}

async fn root(request: &Request, args: &MntArgs) -> Result<MntOk, Mountstat3> {
    let (export, names) = request.table.find(&args.dirpath).ok_or(Mountstat3::NOENT)?;
    // The reply names the flavors for calls of NFS. MNT itself comes with any flavor (RFC 2623
    // section 2.3.2).
    let (cx, rights) = request.enter_any(export).await.map_err(|_| Mountstat3::ACCES)?;
    if !request.accepts_transport(export, &rights) {
        return Err(Mountstat3::ACCES);
    }
    let failed = |e: hither_vfs::Error| Mountstat3(stat3(&e).0);
    let mut node: Node = export.root().await.map_err(failed)?;
    if !names.is_empty() {
        let trail =
            export.vfs.walk(&cx, PathRef { base: &node.fh, path: &names }, WalkRequest::default()).await;
        let trail = trail.map_err(failed)?;
        match (trail.stop, trail.steps.into_iter().last()) {
            (Stop::Complete, Some(last)) => node = last,
            (Stop::Symlink | Stop::NotDirectory, _) => return Err(Mountstat3::NOTDIR),
            (Stop::Failed(e), _) => return Err(failed(e)),
            _ => return Err(Mountstat3::NOENT),
        }
    }
    if node.attrs.attr.kind != FileKind::Directory {
        return Err(Mountstat3::NOTDIR);
    }
    let wire = handle::object(export.number, &node.fh);
    if wire.len() > nfs3::FH_MAX_BYTES {
        tracing::error!("{}: filehandles of this file system are too long for NFSv3", export.path);
        return Err(Mountstat3::NOTSUPP);
    }
    let auth_flavors = rights.flavors.iter().map(Flavor::number).collect::<Vec<_>>().into();
    Ok(MntOk { fhandle: wire.into(), auth_flavors })
}

/// The exports that this client may mount. The reply does not name the other clients of an export.
fn exports(request: &Request) -> Vec<Exportnode> {
    let may = |e: &&Arc<Export>| e.rights(&request.peer).is_some();
    let node = |e: &Arc<Export>| Exportnode {
        dir: Dirpath::copy(e.path.as_bytes()),
        groups: Chain(Vec::<HostName>::new()),
    };
    request.table.exports().iter().filter(may).map(node).collect()
}
