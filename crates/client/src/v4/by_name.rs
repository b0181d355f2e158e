//! OPEN by name, of existing files and with creation.
//!
//! One compound looks up the directories, opens the file and reads its attributes. The file is
//! known only from the reply. A creation gets the attributes that OPEN could not set in a second
//! compound.

use super::attrs::NODE_ATTRS;
use super::call::{Answer, Compound};
use super::core::Core;
use super::fail::Answered;
use super::open::{after_open, change_info, cuts_at_once, right_to_open, told_right};
use super::state::{Files, OpenState, own_fh, wire_fh, wire_name};
use crate::stamp::Stamp;
use hither_proto::nfs4::{
    Bitmap4, CreateHow, CreateVerfAttr, Nfsstat4, Op, OpenClaim, OpenOk, Stateid, attr,
};
use hither_vfs::{
    ChangeInfo, Create, Fh, File, Name, Node, OpenHow, OpenId, Opened, RequestContext, SetAttr, SetTime, Time,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The place of an open: `name` in the directory to which `before` leads from `base`.
#[derive(Clone, Copy)]
pub(super) struct ByName<'a> {
    pub base: &'a Fh,
    pub before: &'a [Name],
    pub name: &'a Name,
}

/// An open by name in progress. Drop ends it.
pub(super) struct Naming<'a>(&'a Files);

impl<'a> Naming<'a> {
    pub fn new(files: &'a Files) -> Self {
        files.naming.fetch_add(1, Ordering::SeqCst);
        Self(files)
    }
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        self.0.naming.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Parameters of a creation.
#[derive(Default)]
struct Creation {
    how: Option<CreateHow>,
    /// Requested attributes, of which some may be left to set.
    asked: SetAttr,
    /// Attributes that the server does not set in the same step.
    later: Bitmap4,
    /// The stamp that identifies a repetition of this creation, or of later creations.
    stamp: Option<Stamp>,
}

impl Creation {
    /// Whether the stamp takes the place of a verifier.
    fn trusts_stamp(&self) -> bool {
        self.stamp.as_ref().is_some_and(|stamp| stamp.trusted)
    }
}

/// The reply to a granted OPEN.
struct Reply {
    fh: Fh,
    ok: OpenOk,
    /// The results after GETFH.
    answer: Answer,
}

/// An open that is registered, with results that are not read yet.
struct Registered<'a> {
    at: ByName<'a>,
    reply: Reply,
    id: OpenId,
    delegation: Option<Stateid>,
    /// Whether the server may have executed the OPEN twice.
    repeated: bool,
}

impl Registered<'_> {
    /// Whether this open created the file. Servers that cannot read both values atomically
    /// (ganesha) still show whether the open changed the directory. The Linux client uses the same
    /// test.
    fn is_created(&self, how: &OpenHow) -> bool {
        let cinfo = &self.reply.ok.cinfo;
        match how.create {
            Create::No => false,
            Create::IfMissing(_) => cinfo.before != cinfo.after,
            Create::Exclusive(_) => true,
        }
    }
}

impl Core {
    /// Opens a file by name. `naming` ends when the open is registered.
    pub(super) async fn open_by_name(
        self: &Arc<Self>,
        cx: &RequestContext,
        at: ByName<'_>,
        how: &OpenHow,
        naming: Naming<'_>,
    ) -> Answered<Opened> {
        let create = self.create_how(how).await;
        let ops = self.ops_by_name(cx, at, how, &create);
        let guess = self.guess(at, cx).await;
        let mut repeated = false;
        let granted = self.compound(cx, self.with_first_bytes(ops, how)).await.and_then(|mut answer| {
            answer.results.putfh()?;
            for _ in at.before {
                answer.results.lookup()?;
            }
            repeated = answer.repeated;
            let ok = answer.results.open()?;
            let fh = own_fh(&answer.results.getfh()?);
            Ok(Reply { fh, ok, answer })
        });
        let reply = match granted {
            Ok(reply) => reply,
            Err(refused) => {
                self.guessed_wrong(guess);
                if let (Some(Nfsstat4::EXIST), Some(stamp), true) =
                    (refused.status(), &create.stamp, repeated)
                    && let Some(fh) = self.made_before(cx, at, stamp).await
                {
                    let how = OpenHow { create: Create::No, truncate: false, ..how.clone() };
                    let opened = self.open_by_handle(cx, &fh, &how).await?;
                    return Ok(Opened { created: true, dir: Some(ChangeInfo::default()), ..opened });
                }
                if refused.status() == Some(Nfsstat4::ATTRNOTSUPP) && create.trusts_stamp() {
                    self.stamps.refused();
                    return Box::pin(self.open_by_name(cx, at, how, naming)).await;
                }
                return Err(refused);
            }
        };
        let state = self.state_of(cx, &reply.fh, guess);
        if at.before.is_empty() {
            self.files.note_name(&state.file, at.base, at.name);
        }
        let (id, delegation) = self.granted(&state, how.access, &reply.ok, reply.answer.asked);
        // The open is registered. If it is refused later, its CLOSE need not wait for a reply.
        drop(naming);
        let opened = Registered { at, reply, id, delegation, repeated };
        self.finish_by_name(cx, how, create, opened).await
    }

    /// The compound of an OPEN by name.
    fn ops_by_name(&self, cx: &RequestContext, at: ByName<'_>, how: &OpenHow, create: &Creation) -> Vec<Op> {
        // The owner belongs to the credential. The file is known only after the OPEN.
        let owner = self.files.owner(&cx.cred);
        let mut ops = vec![Op::Putfh(wire_fh(at.base))];
        ops.extend(at.before.iter().map(|n| Op::Lookup(wire_name(n))));
        ops.push(self.open_op(&owner, how, create.how.clone(), OpenClaim::Null(wire_name(at.name))));
        ops.push(Op::Getfh);
        match how.create {
            Create::No => ops.extend(after_open(how)),
            // The file may exist already.
            Create::IfMissing(_) => ops.extend(right_to_open(how).map(Op::Access)),
            Create::Exclusive(_) => {}
        }
        ops.push(Op::Getattr(NODE_ATTRS));
        if how.create != Create::No && at.before.is_empty() {
            ops.extend([Op::Putfh(wire_fh(at.base)), Op::Getattr(NODE_ATTRS)]);
        }
        ops
    }

    /// Guesses that the name still belongs to the file that was opened by it and is still open.
    /// Then the CLOSE of that file must not overtake this OPEN, as for opens by filehandle.
    async fn guess(&self, at: ByName<'_>, cx: &RequestContext) -> Option<Arc<OpenState>> {
        let fh = self.files.by_name(at.base, at.name).filter(|_| at.before.is_empty())?;
        let state = self.files.try_begin(&fh, &cx.cred)?;
        drop(state.closing.lock().await);
        Some(state)
    }

    /// The state of an opened file. A wrong guess ends.
    fn state_of(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        guess: Option<Arc<OpenState>>,
    ) -> Arc<OpenState> {
        match guess {
            Some(state) if state.file.fh == *fh => state,
            wrong => {
                let state = self.files.start(fh, &cx.cred);
                self.guessed_wrong(wrong);
                state
            }
        }
    }

    /// Ends a wrong guess.
    fn guessed_wrong(self: &Arc<Self>, guess: Option<Arc<OpenState>>) {
        let Some(wrong) = guess else { return };
        self.files.abandoned(&wrong);
        let core = self.clone();
        // The open need not wait for the CLOSE of another file.
        tokio::spawn(async move { core.release_soon(&wrong).await });
    }

    /// Checks the caller's rights to an existing file, and reads the results after OPEN. A refused
    /// open is closed.
    async fn finish_by_name(
        self: &Arc<Self>,
        cx: &RequestContext,
        how: &OpenHow,
        create: Creation,
        mut open: Registered<'_>,
    ) -> Answered<Opened> {
        let (id, fh, created) = (open.id, open.reply.fh.clone(), open.is_created(how));
        let cut = match how.create {
            Create::Exclusive(_) => None,
            _ if cuts_at_once(how) => Some(self.writes().truncating(&fh, 0).await),
            _ => None,
        };
        let allowed = match how.create {
            Create::IfMissing(_) => {
                let found = told_right(how, &mut open.reply.answer);
                // After two executions the first may have created the file, with a mode without the
                // right to read.
                if created || open.repeated { Ok(()) } else { self.may_open(cx, &fh, how, found).await }
            }
            _ => Ok(()),
        };
        let opened = |node, first, dir| Opened { node, open: id, created, dir, first, backing: None };
        let finished = match allowed {
            Err(refused) => Err(refused),
            Ok(()) if how.create == Create::No => {
                let rest = self.finish_open(cx, &fh, id, how, open.delegation, open.reply.answer).await;
                rest.map(|(node, first)| opened(node, first, None))
            }
            Ok(()) => {
                let made = self.finish_create(cx, how, create, open).await;
                made.map(|(node, dir)| opened(node, None, Some(dir)))
            }
        };
        // With creation OPEN itself has cut the file.
        match (cut, how.create != Create::No || finished.is_ok()) {
            (Some(cut), true) => cut.done(),
            (cut, _) => drop(cut),
        }
        self.or_close(id, finished).await
    }

    /// Sets the attributes that OPEN could not set. Returns the file, and the change of its
    /// directory.
    async fn finish_create(
        self: &Arc<Self>,
        cx: &RequestContext,
        how: &OpenHow,
        create: Creation,
        open: Registered<'_>,
    ) -> Answered<(Node, ChangeInfo)> {
        let Reply { fh, ok, mut answer } = open.reply;
        let stamp = create.stamp;
        let missing = match how.create {
            Create::Exclusive(_) => self.left_to_set(create, &ok),
            _ => SetAttr::default(),
        };
        let wire = answer.results.getattr().ok();
        let mut dir = change_info(&ok.cinfo);
        if open.at.before.is_empty() && answer.results.putfh().is_ok() {
            dir.attrs = self.dir_attrs(open.at.base, &mut answer).await;
        }
        let attrs = match wire {
            _ if missing != SetAttr::default() => {
                self.setattr(cx, File { fh: &fh, open: Some(open.id) }, &missing).await?
            }
            Some(wire) => self.leased_by(&fh, self.attrs(&fh, &wire, answer.asked).await?, open.delegation),
            None => self.getattr(cx, &fh).await?,
        };
        if let Some(stamp) = stamp {
            self.stamps.seen(&stamp, attrs.attr.atime);
        }
        Ok((Node { fh, attrs }, dir))
    }

    /// Attributes left to set after an exclusive creation.
    fn left_to_set(&self, create: Creation, ok: &OpenOk) -> SetAttr {
        if create.trusts_stamp() {
            return SetAttr::default();
        }
        let mut missing = exclusive_leftover(&ok.attrset, create.asked, create.later);
        if let Some(stamp) = create.stamp {
            if missing.atime.is_some() {
                missing.atime = Some(SetTime::To(stamp.time));
            } else {
                // The server keeps its verifiers elsewhere, without a cost for the client.
                self.stamps.refused();
            }
        }
        missing
    }

    /// The parameters of a creation. The first exclusive creation of a mount uses a verifier and
    /// finds out whether the server keeps stamps ([`crate::stamp`]). Later creations use a stamp,
    /// which saves the SETATTR.
    async fn create_how(&self, how: &OpenHow) -> Creation {
        match &how.create {
            Create::No => Creation::default(),
            Create::IfMissing(set) => {
                let mut attrs = self.wire_set(set).await;
                if cuts_at_once(how) {
                    attrs.size = Some(0);
                }
                Creation { how: Some(CreateHow::Unchecked(attrs)), ..Creation::default() }
            }
            Create::Exclusive(set) => {
                let takes_umask = self.facts().exclusive_attrs.has(attr::MODE_UMASK);
                let unmasked = set.unmasked.filter(|_| takes_umask);
                let set = &SetAttr { unmasked, ..set.clone() };
                let stamp = self.stamps.make(&self.env, set);
                if let Some(trusted) = stamp.filter(|s| s.trusted) {
                    let set = SetAttr { atime: Some(SetTime::To(trusted.time)), ..set.clone() };
                    let how = Some(CreateHow::Guarded(self.wire_set(&set).await));
                    return Creation { how, stamp, ..Creation::default() };
                }
                let mut attrs = self.wire_set(set).await;
                let all = attrs.mask();
                attrs.retain(self.facts().exclusive_attrs);
                let later = all.difference(attrs.mask());
                let verf = (self.env.random)().to_be_bytes();
                let how = Some(CreateHow::Exclusive41(CreateVerfAttr { verf, attrs }));
                Creation { how, asked: set.clone(), later, stamp }
            }
        }
    }

    /// The filehandle of an existing file, if an earlier execution of this exclusive creation made
    /// it. That happens when the reply was lost with a server that restarted.
    async fn made_before(self: &Arc<Self>, cx: &RequestContext, at: ByName<'_>, stamp: &Stamp) -> Option<Fh> {
        let mut ops = vec![Op::Putfh(wire_fh(at.base))];
        ops.extend(at.before.iter().chain([at.name]).map(|n| Op::Lookup(wire_name(n))));
        ops.extend([Op::Getfh, Op::Getattr(Bitmap4::of(&[attr::TIME_ACCESS, attr::TIME_MODIFY]))]);
        let mut answer = self.compound(cx, Compound::new("LOOKUP", ops)).await.ok()?;
        answer.results.putfh().ok()?;
        for _ in 0..=at.before.len() {
            answer.results.lookup().ok()?;
        }
        let fh = own_fh(&answer.results.getfh().ok()?);
        let wire = answer.results.getattr().ok()?;
        let [atime, mtime] = [wire.time_access, wire.time_modify]
            .map(|time| time.map(|time| Time { secs: time.seconds, nanos: time.nseconds }));
        stamp.is_of(atime?, mtime).then_some(fh)
    }
}

/// Attributes left to set after an exclusive create: those that the server could not set, and times
/// that held the verifier (RFC 8881 section 18.16.3).
fn exclusive_leftover(attrset: &Bitmap4, mut asked: SetAttr, later: Bitmap4) -> SetAttr {
    let done = |n: u32| attrset.has(n) && !later.has(n);
    if done(attr::MODE) || done(attr::MODE_UMASK) {
        asked.mode = None;
    }
    asked.unmasked = None;
    if done(attr::OWNER) {
        asked.uid = None;
    }
    if done(attr::OWNER_GROUP) {
        asked.gid = None;
    }
    if done(attr::SIZE) || asked.size_bytes == Some(0) {
        asked.size_bytes = None;
    }
    // A time that the client did not ask for is the verifier.
    let left = |asked: Option<SetTime>, time, set| match asked {
        Some(_) if done(set) => None,
        None if attrset.has(time) || attrset.has(set) => Some(SetTime::Now),
        asked => asked,
    };
    asked.atime = left(asked.atime, attr::TIME_ACCESS, attr::TIME_ACCESS_SET);
    asked.mtime = left(asked.mtime, attr::TIME_MODIFY, attr::TIME_MODIFY_SET);
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times that hold a verifier are set afterwards, whichever bits of them the server reports.
    #[test]
    fn exclusive_verifier_times_are_set() {
        let reports = [
            vec![attr::TIME_ACCESS, attr::TIME_MODIFY],
            vec![attr::TIME_ACCESS_SET, attr::TIME_MODIFY_SET],
            vec![attr::TIME_ACCESS, attr::TIME_ACCESS_SET, attr::TIME_MODIFY, attr::TIME_MODIFY_SET],
        ];
        for report in reports {
            let left = exclusive_leftover(&Bitmap4::of(&report), SetAttr::default(), Bitmap4::EMPTY);
            assert_eq!((left.atime, left.mtime), (Some(SetTime::Now), Some(SetTime::Now)), "{report:?}");
        }
        // A time that the client asked for is there.
        let then = Some(SetTime::To(Time { secs: 7, nanos: 0 }));
        let asked = SetAttr { mtime: then, ..SetAttr::default() };
        let there = Bitmap4::of(&[attr::TIME_ACCESS, attr::TIME_MODIFY_SET]);
        let left = exclusive_leftover(&there, asked, Bitmap4::EMPTY);
        assert_eq!((left.atime, left.mtime), (Some(SetTime::Now), None));
    }
}
