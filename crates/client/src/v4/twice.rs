//! What became of a change whose session was lost before its reply was here.
//!
//! It was sent again in another session, and the server refused it, perhaps because the first one
//! had done it. The names say which: a new name that leads to the very file is proof for LINK; for
//! RENAME the old name is gone and the new one leads to another object than before. A directory
//! that exists is no proof of anything, since programs use mkdir(2) as a lock: MKDIR reports what
//! the server said.

use super::call::Compound;
use super::core::Core;
use super::fail::{Answered, Fail};
use super::state::{own_fh, wire_fh, wire_name};
use hither_proto::nfs4::{Nfsstat4, Op};
use hither_vfs::{Cx, Fh, Name};
use std::sync::Arc;

impl Core {
    /// Whether an earlier RENAME of `from` to `to`, which led to `replaced`, was executed.
    pub async fn renamed_before(
        self: &Arc<Self>,
        cx: &Cx,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
    ) -> Answered<bool> {
        let now = self.leads_to(cx, to).await?;
        Ok(now.is_some_and(|now| Some(&now) != replaced) && self.leads_to(cx, from).await?.is_none())
    }

    /// Whether `to` is a name of `fh`.
    pub async fn linked_before(self: &Arc<Self>, cx: &Cx, fh: &Fh, to: (&Fh, &Name)) -> Answered<bool> {
        Ok(self.leads_to(cx, to).await?.as_ref() == Some(fh))
    }

    /// What a name leads to now, asked of the server.
    pub async fn leads_to(self: &Arc<Self>, cx: &Cx, (dir, name): (&Fh, &Name)) -> Answered<Option<Fh>> {
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
