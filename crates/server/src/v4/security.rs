//! Exports that accept only some transports and flavors (exports(5), `xprtsec` and `sec`): SECINFO,
//! and NFS4ERR_WRONGSEC.
//!
//! RFC 8881 section 2.6.3.1 defines the operation that fails. An operation that sets the current
//! filehandle fails if the next one uses the filehandle. It does not fail before an operation that
//! may report the error itself, or that asks for the security of an export. SECINFO never fails for
//! this reason.

use super::exec::{Exec, Here};
use bytes::Bytes;
use hither_proto::nfs4::{GssInfo, Nfsstat4, Op, OpenClaim, Secinfo, SecinfoOk, SecinfoStyle};
use hither_proto::xdr::Opaque;
use hither_rpc::Flavor;
use hither_vfs::FileKind;

/// The mechanism Kerberos 5, 1.2.840.113554.1.2.2 (RFC 4121 section 1), in DER without its tag.
const KRB5: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";

impl Exec<'_> {
    pub(super) async fn secinfo(&mut self, name: &Bytes) -> Result<SecinfoOk, Nfsstat4> {
        self.lookup(name, &[]).await?;
        self.tell_flavors()
    }

    pub(super) async fn secinfo_no_name(&mut self, style: SecinfoStyle) -> Result<SecinfoOk, Nfsstat4> {
        match style {
            SecinfoStyle::CURRENT_FH => {}
            SecinfoStyle::PARENT => self.has_parent().await?,
            _ => return Err(Nfsstat4::INVAL),
        }
        self.tell_flavors()
    }

    /// Fails as LOOKUPP does for the root and for objects that are no directories.
    async fn has_parent(&self) -> Result<(), Nfsstat4> {
        match self.here()? {
            Here::Above(0) => Err(Nfsstat4::NOENT),
            Here::Above(_) => Ok(()),
            Here::Object(o) if o.export.is_root(&o.fh) => match self.r.table.place_of(&o.export) {
                0 => Err(Nfsstat4::NOENT),
                _ => Ok(()),
            },
            Here::Object(o) => match self.attrs(o).await?.attr.kind {
                FileKind::Directory => Ok(()),
                FileKind::Symlink => Err(Nfsstat4::SYMLINK),
                _ => Err(Nfsstat4::NOTDIR),
            },
        }
    }

    /// The security flavors of the export, or of all exports that the client may use. The operation
    /// consumes the current filehandle (RFC 8881 section 2.6.3.1.1.8).
    fn tell_flavors(&mut self) -> Result<SecinfoOk, Nfsstat4> {
        let flavors: Vec<Flavor> = match self.here()? {
            Here::Object(o) => o.rights.flavors.iter().collect(),
            Here::Above(_) => {
                let rights: Vec<_> =
                    self.r.table.exports().iter().filter_map(|export| export.rights(&self.r.peer)).collect();
                let is_used = |flavor: &Flavor| rights.iter().any(|r| r.flavors.iter().any(|f| f == *flavor));
                Flavor::ALL.into_iter().filter(is_used).collect()
            }
        };
        self.current = None;
        self.stateid = None;
        self.ahead.clear();
        self.ahead_stop = None;
        Ok(flavors.into_iter().map(secinfo_of).collect::<Vec<_>>().into())
    }

    /// Whether the export of a filehandle accepts the call. Directories above the exports
    /// accept all.
    pub(super) fn is_accepted(&self, here: &Here) -> bool {
        match here {
            Here::Above(_) => true,
            Here::Object(o) => self.r.accepts(&o.export, &o.rights),
        }
    }

    /// Fails if an operation would use a filehandle of an export that refuses the connection.
    pub(super) fn may_use(&self, op: &Op) -> Result<(), Nfsstat4> {
        let current = (!sets_filehandle(op) && !is_for_any(op)).then_some(&self.current);
        let saved = uses_saved(op).then_some(&self.saved);
        let used = [current, saved].into_iter().flatten().flatten();
        self.need_accepted(used)
    }

    /// Runs after an operation that succeeded. Fails if the new current filehandle is of an export
    /// that refuses the connection, unless the next operation may have it.
    pub(super) fn may_follow(&self, op: &Op, rest: &[Op]) -> Result<(), Nfsstat4> {
        let is_deferred = match op {
            Op::Lookup(_) | Op::Lookupp => false,
            _ if sets_filehandle(op) => rest.first().is_none_or(|next| {
                sets_filehandle(next) || matches!(next, Op::Savefh) || reports_itself(next)
            }),
            _ => true,
        };
        if is_deferred { Ok(()) } else { self.need_accepted(self.current.iter()) }
    }

    fn need_accepted<'h>(&self, mut used: impl Iterator<Item = &'h Here>) -> Result<(), Nfsstat4> {
        if used.all(|here| self.is_accepted(here)) { Ok(()) } else { Err(Nfsstat4::WRONGSEC) }
    }
}

fn secinfo_of(flavor: Flavor) -> Secinfo {
    match flavor.service() {
        None => Secinfo::Flavor(flavor.number().0),
        Some(service) => Secinfo::Gss(GssInfo { oid: Opaque(Bytes::from_static(KRB5)), qop: 0, service }),
    }
}

/// Whether an operation puts a filehandle in the place of the current one.
fn sets_filehandle(op: &Op) -> bool {
    matches!(op, Op::Putfh(_) | Op::Putrootfh | Op::Putpubfh | Op::Restorefh)
}

/// Whether an operation reports the security error of the object that it looks up, or reports no
/// such error.
fn reports_itself(op: &Op) -> bool {
    let by_name = |claim: &OpenClaim| {
        matches!(claim, OpenClaim::Null(_) | OpenClaim::DelegateCur(_) | OpenClaim::DelegatePrev(_))
    };
    match op {
        Op::Lookup(_) | Op::Lookupp | Op::Secinfo(_) | Op::SecinfoNoName(_) => true,
        Op::Open(a) => by_name(&a.claim),
        _ => false,
    }
}

/// Whether an operation works with any current filehandle, or needs none.
fn is_for_any(op: &Op) -> bool {
    matches!(
        op,
        Op::Savefh
            | Op::Secinfo(_)
            | Op::SecinfoNoName(_)
            | Op::Sequence(_)
            | Op::ExchangeId(_)
            | Op::CreateSession(_)
            | Op::DestroySession(_)
            | Op::BindConnToSession(_)
            | Op::BackchannelCtl(_)
            | Op::DestroyClientid(_)
            | Op::ReclaimComplete(_)
            | Op::TestStateid(_)
            | Op::FreeStateid(_)
            | Op::Illegal(_)
    )
}

/// Whether an operation uses the saved filehandle.
fn uses_saved(op: &Op) -> bool {
    matches!(op, Op::Rename(_) | Op::Link(_) | Op::Copy(_) | Op::Clone(_))
}
