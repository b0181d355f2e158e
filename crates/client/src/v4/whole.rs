//! A whole file in one compound: OPEN that creates it, WRITE, SETATTR and CLOSE.
//!
//! It knows nothing of what programs have open. As for bytes that are brought along (`bring`), WRITE and CLOSE use the current stateid, and the
//! open belongs to an owner of its own. It is not recognised when it is sent again to a server that has lost the session: the caller finds the
//! file there then (`EEXIST`), and knows what he wrote.

use super::attrs::NODE_ATTRS;
use super::call::Compound;
use super::core::Core;
use super::fail::{Answered, Fail};
use super::open::change_info;
use super::state::{own_fh, wire_fh, wire_name};
use hither_proto::nfs4::{CreateHow, Op, OpenArgs, OpenClaim, StableHow, StateOwner, Stateid, open};
use hither_vfs::{Cx, Data, Error, Fh, Made, Name, Node, SetAttr};
use std::sync::Arc;

impl Core {
    /// See `Vfs::create_whole`; `None` when the bytes do not fit into one WRITE. Runs in a task of its own.
    pub async fn create_whole(
        self: &Arc<Self>,
        cx: &Cx,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Answered<Option<Made>> {
        let len = data.len();
        if len > self.facts().wsize as usize || set.size_bytes.is_some() {
            return Ok(None);
        }
        let times = SetAttr { atime: set.atime, mtime: set.mtime, ..SetAttr::default() };
        let at_once = SetAttr { atime: None, mtime: None, ..set.clone() };
        let sets = times != SetAttr::default();
        let turn = self.turn();
        let open = OpenArgs {
            seqid: 0,
            share_access: open::SHARE_ACCESS_WRITE | open::WANT_NO_DELEG,
            share_deny: open::SHARE_DENY_NONE,
            owner: StateOwner { clientid: 0, owner: turn.owner().clone().into() },
            how: Some(CreateHow::Guarded(self.wire_set(&at_once).await)),
            claim: OpenClaim::Null(wire_name(name)),
        };
        let mut ops = vec![Op::Putfh(wire_fh(dir)), Op::Open(open), Op::Getfh];
        if len > 0 {
            ops.push(Op::write(Stateid::CURRENT, 0, StableHow::FILE_SYNC, data.into_bytes()));
        }
        if sets {
            ops.push(Op::setattr(Stateid::ANONYMOUS, self.wire_set(&times).await));
        }
        ops.extend([Op::close(Stateid::CURRENT), Op::Getattr(NODE_ATTRS)]);
        ops.extend([Op::Putfh(wire_fh(dir)), Op::Getattr(NODE_ATTRS)]);
        let mut answer = self.compound(cx, Compound::new("OPEN", ops)).await?;
        answer.results.putfh()?;
        let ok = answer.results.open()?;
        let fh = own_fh(&answer.results.getfh()?);
        // Nobody asked for it.
        self.note_delegation(&fh, &ok);
        let filled = (|| -> Answered<()> {
            if len > 0 {
                let wrote = answer.results.write()?;
                if wrote.committed == StableHow::UNSTABLE || wrote.count as usize != len {
                    return Err(Fail::from(Error::because(
                        libc::ENOSPC,
                        "only a part of a file was written",
                    )));
                }
            }
            let set = if sets { answer.results.setattr().map(drop) } else { Ok(()) };
            set?;
            answer.results.close()?;
            Ok(())
        })();
        if let Err(f) = filled {
            self.close_brought(&fh, ok.stateid, &turn);
            return Err(f);
        }
        let attrs = match answer.results.getattr() {
            Ok(wire) => self.attrs(&fh, &wire, answer.asked).await?,
            Err(_) => self.getattr(cx, &fh).await?,
        };
        let mut info = change_info(&ok.cinfo);
        if answer.results.putfh().is_ok() {
            info.attrs = self.dir_attrs(dir, &mut answer).await;
        }
        Ok(Some(Made { node: Node { fh, attrs }, dir: info }))
    }
}
