//! Outcome of a change whose session was lost before its reply arrived.
//!
//! The client sent the change again in another session, and the server refused it. The first
//! execution may be the reason. The names give the answer. For LINK, a new name of the same file is
//! proof. For RENAME, the old name is absent and the new name has another object than before. An
//! existing directory proves nothing, since programs use mkdir(2) as a lock. MKDIR therefore
//! reports the server's status.

use super::call::Compound;
use super::core::Core;
use super::fail::{Answered, Fail};
use super::state::{own_fh, wire_fh, wire_name};
use hither_proto::nfs4::{Nfsstat4, Op};
use hither_vfs::{Fh, Name, RequestContext};
use std::sync::Arc;

impl Core {
    /// Whether an earlier RENAME of `from` to `to` was executed. `replaced` is the object that `to`
    /// had before.
    pub async fn renamed_before(
        self: &Arc<Self>,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
    ) -> Answered<bool> {
        let now = self.leads_to(cx, to).await?;
        Ok(now.is_some_and(|now| Some(&now) != replaced) && self.leads_to(cx, from).await?.is_none())
    }

    /// Whether `to` is a name of `fh`.
    pub async fn linked_before(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        to: (&Fh, &Name),
    ) -> Answered<bool> {
        Ok(self.leads_to(cx, to).await?.as_ref() == Some(fh))
    }

    /// The object of a name at the server; `None` when the name does not exist.
    pub async fn leads_to(
        self: &Arc<Self>,
        cx: &RequestContext,
        (dir, name): (&Fh, &Name),
    ) -> Answered<Option<Fh>> {
        let ops = [Op::Putfh(wire_fh(dir)), Op::Lookup(wire_name(name)), Op::Getfh];
        let mut answer = self.compound(cx, Compound::new("LOOKUP", ops)).await?;
        answer.results.putfh()?;
        match answer.results.lookup() {
            Ok(()) => Ok(Some(own_fh(&answer.results.getfh()?))),
            Err(e) if e.status() == Some(Nfsstat4::NOENT) => Ok(None),
            Err(e) => Err(Fail::from(e)),
        }
    }
}
