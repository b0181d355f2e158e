//! Walking over what is here and what is at the server.
//!
//! A name that is here is not at the server, or is on its way there. What is found below may have
//! been asked for before an object arrived: then the walk is made again.

use super::Ahead;
use super::table::{Body, Status, Table};
use hither_vfs::{
    Access, Along, Cred, Cx, Error, Fh, Name, Node, Read, Result, Stop, Trail, Validity, Want, Where,
};

/// How often a walk is made again before it is taken as it is.
const TRIES: u32 = 16;

/// What is known here of a path: all of it; or what somebody else than its maker asks for, which
/// goes to the server first.
type Here = std::result::Result<Trail, Fh>;

impl Ahead {
    /// Walks `path` from an object that is here, behind the steps that lead there.
    fn walk_here(
        &self,
        t: &Table,
        cred: &Cred,
        (start, mut steps): (Fh, Vec<Node>),
        path: &[Name],
        want: Want,
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
        Ok(Trail { steps, stop, along })
    }

    /// Puts what is here over what was found below.
    fn put_over(&self, t: &Table, cred: &Cred, at: Where<'_>, want: Want, mut trail: Trail) -> Here {
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
        // It would pass for all that is there.
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

    /// Where a walk begins among what is here, if it does: an object and the steps up to it, and
    /// the names left.
    fn start_here<'a>(&self, t: &Table, at: Where<'a>) -> Option<(Fh, Vec<Node>, &'a [Name])> {
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

    /// What is known without asking anybody.
    pub(super) fn peek_over(&self, cx: &Cx, at: Where<'_>) -> Option<Trail> {
        let known = |here: Here| here.ok();
        let (real, generation) = {
            let mut t = self.table();
            if t.is_unused() {
                drop(t);
                return self.below.peek(cx, at);
            }
            if let Some((fh, steps, rest)) = self.start_here(&t, at) {
                return known(self.walk_here(&t, &cx.cred, (fh, steps), rest, Want::default()));
            }
            match t.status(at.base) {
                Status::There(real) => (real, t.generation),
                _ => return None,
            }
        };
        let trail = self.below.peek(cx, Where { base: &real, path: at.path })?;
        let t = self.table();
        if t.generation != generation {
            return None;
        }
        known(self.put_over(&t, &cx.cred, at, Want::default(), trail))
    }

    pub(super) async fn walk_over(&self, cx: &Cx, at: Where<'_>, want: Want) -> Result<Trail> {
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
                    let trail = self.below.walk(cx, Where { base: &real, path: at.path }, want).await?;
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
