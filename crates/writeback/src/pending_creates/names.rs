//! Walks over pending objects and the server's objects.
//!
//! A pending name is not at the server, or is being sent. The result of a walk at the server may be
//! older than the arrival of an object. The walk is then repeated.

use super::PendingCreates;
use super::table::{Body, Status, Table};
use hither_vfs::{
    Access, Along, Cred, Error, Fh, Name, Node, PathRef, Read, RequestContext, Result, Stop, Validity,
    WalkRequest, WalkResult,
};

/// The most repetitions of a walk. The last result is used as it is.
const TRIES: u32 = 16;

/// The complete result of a walk over pending objects, or an object that must be sent first. An
/// object must be sent first when the caller is not its creator.
type Here = std::result::Result<WalkResult, Fh>;

impl PendingCreates {
    /// Walks `path` from a pending object. `steps` lead to that object.
    fn walk_here(
        &self,
        t: &Table,
        cred: &Cred,
        (start, mut steps): (Fh, Vec<Node>),
        path: &[Name],
        want: WalkRequest,
    ) -> Here {
        let mut at = start;
        let mut rest = path.iter();
        let stop = loop {
            let Some(object) = t.here.get(&at) else { return Err(at) };
            if !object.is_of(cred) {
                return Err(at);
            }
            let Some(name) = rest.next() else { break Stop::Complete };
            match object.body {
                Body::Directory if object.rights().contains(Access::LOOKUP) => {}
                Body::Directory => return Err(at),
                Body::Link(_) => break Stop::Symlink,
                Body::File(_) => break Stop::NotDirectory,
            }
            let Some(child) = t.child(&at, name) else { break Stop::Missing(Validity::Once) };
            let Some(object) = t.here.get(child) else { return Err(at) };
            at = child.clone();
            let mut node = Node { fh: at.clone(), attrs: object.attrs() };
            t.show(&at, &mut node.attrs);
            steps.push(node);
        };
        let mut along = Along::default();
        if let (Stop::Complete, Some(object)) = (&stop, t.here.get(&at)) {
            if !want.access.is_empty() {
                along.access = Some(object.rights() & want.access);
            }
            if let (Body::File(data), true) = (&object.body, want.read_bytes > 0) {
                let len = data.len().min(want.read_bytes as usize);
                let first = bytes::Bytes::copy_from_slice(&data[..len]);
                along.first = Some(Read { data: first.into(), eof: len == data.len() });
            }
        }
        Ok(WalkResult { steps, stop, along })
    }

    /// Adds pending objects to the result of a walk at the server.
    fn put_over(
        &self,
        t: &Table,
        cred: &Cred,
        at: PathRef<'_>,
        want: WalkRequest,
        mut trail: WalkResult,
    ) -> Here {
        trail.steps.iter_mut().for_each(|node| t.show_node(node));
        if let Some(base) = &mut trail.along.base {
            t.show(at.base, base);
        }
        if let Some(page) = &mut trail.along.listing {
            t.show_page(page);
        }
        if t.here.is_empty() {
            return Ok(trail);
        }
        // The listing lacks the pending names, so it is not a complete one.
        trail.along.listing = None;
        for (i, name) in at.path.iter().enumerate().take(trail.steps.len() + 1) {
            let dir = if i == 0 { at.base } else { &trail.steps[i - 1].fh };
            let Some(child) = t.child(dir, name) else { continue };
            let Some(object) = t.here.get(child) else { continue };
            let (child, mut steps) = (child.clone(), trail.steps[..i].to_vec());
            let mut node = Node { fh: child.clone(), attrs: object.attrs() };
            t.show(&child, &mut node.attrs);
            steps.push(node);
            return self.walk_here(t, cred, (child, steps), &at.path[i + 1..], want);
        }
        Ok(trail)
    }

    /// The first pending object of a walk, with the steps to it and the remaining names. `None`
    /// when the walk begins at the server.
    fn start_here<'a>(&self, t: &Table, at: PathRef<'a>) -> Option<(Fh, Vec<Node>, &'a [Name])> {
        let step = |fh: &Fh| {
            let mut node = Node { fh: fh.clone(), attrs: t.here.get(fh)?.attrs() };
            t.show(fh, &mut node.attrs);
            Some(vec![node])
        };
        if t.here.contains_key(at.base) {
            let steps = if at.path.is_empty() { step(at.base)? } else { Vec::new() };
            return Some((at.base.clone(), steps, at.path));
        }
        let (name, rest) = at.path.split_first()?;
        let child = t.child(at.base, name)?;
        Some((child.clone(), step(child)?, rest))
    }

    /// The result that is known without a request to the server.
    pub(super) fn peek_over(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        let known = |here: Here| here.ok();
        let (real, generation) = {
            let mut t = self.table();
            if t.is_unused() {
                drop(t);
                return self.below.peek(cx, at);
            }
            if let Some((fh, steps, rest)) = self.start_here(&t, at) {
                return known(self.walk_here(&t, &cx.cred, (fh, steps), rest, WalkRequest::default()));
            }
            match t.status(at.base) {
                Status::There(real) => (real, t.generation),
                _ => return None,
            }
        };
        let trail = self.below.peek(cx, PathRef { base: &real, path: at.path })?;
        let t = self.table();
        if t.generation != generation {
            return None;
        }
        known(self.put_over(&t, &cx.cred, at, WalkRequest::default(), trail))
    }

    pub(super) async fn walk_over(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        want: WalkRequest,
    ) -> Result<WalkResult> {
        if self.table().is_unused() {
            return self.below.walk(cx, at, want).await;
        }
        let mut tries = 0;
        loop {
            let (here, real, generation) = {
                let mut t = self.table();
                let start = self.start_here(&t, at);
                let here =
                    start.map(|(fh, steps, rest)| self.walk_here(&t, &cx.cred, (fh, steps), rest, want));
                let real = match (&here, t.status(at.base)) {
                    (None, Status::There(real)) => Some(real),
                    (None, Status::Refused(errno)) => return Err(Error::new(errno)),
                    _ => None,
                };
                (here, real, t.generation)
            };
            let here = match (here, real) {
                (Some(here), _) => here,
                (None, Some(real)) => {
                    let trail = self.below.walk(cx, PathRef { base: &real, path: at.path }, want).await?;
                    let t = self.table();
                    tries += 1;
                    if t.generation != generation && tries < TRIES {
                        continue;
                    }
                    self.put_over(&t, &cx.cred, at, want, trail)
                }
                (None, None) => return Err(Error::new(libc::ESTALE)),
            };
            match here {
                Ok(trail) => return Ok(trail),
                Err(fh) => drop(self.at_server(cx, &fh).await?),
            }
        }
    }
}
