//! READDIR and READDIRPLUS.
//!
//! The protocol's listings begin with `.` and `..`, which a `Vfs` omits. They have the cookies 1
//! and 2, and cookies of the `Vfs` are shifted by two. A caller that may read but not search the
//! directory gets the directory's own number for `..`.

use super::{At, is_delayed};
use crate::error::stat3;
use crate::server::Request;
use hither_proto::nfs3::*;
use hither_proto::xdr::Chain;
use hither_vfs::{Attr, DirPage, FileKind, Node};

/// Bytes of a reply besides its entries: status, attributes, verifier, end of list, end of
/// directory.
const HEAD_BYTES: usize = 4 + 88 + 8 + 4 + 4;
/// Bytes of an entry besides its name: marker, number, length of the name, cookie.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// Bytes of an entry for attributes and the head of a handle.
const PLUS_BYTES: usize = 88 + 8;
/// Cookies of `.` and `..`.
pub(crate) const DOT: u64 = 1;
pub(crate) const DOTDOT: u64 = 2;

/// An entry of a reply.
struct Item {
    fileid: u64,
    name: Name3,
    cookie: u64,
    node: Option<Node>,
}

/// Limits of a listing, in bytes.
struct Room {
    /// The whole reply.
    reply: usize,
    /// Names and cookies.
    names: usize,
}

struct Listing<E> {
    attr: Attr,
    verifier: [u8; 8],
    entries: Vec<E>,
    eof: bool,
}

pub(super) async fn readdir(r: &Request, a: &ReaddirArgs) -> ReaddirRes {
    let dir = match At::of(r, &a.dir).await {
        Ok(dir) => dir,
        Err(status) => return Res::Err(status, None),
    };
    let reply = a.count.min(r.server.options.listing_max_bytes) as usize;
    let entry = |i: Item| Entry3 { fileid: i.fileid, name: i.name, cookie: i.cookie };
    let room = Room { reply, names: usize::MAX };
    match list(&dir, a.cookie, a.cookieverf, &room, false, entry).await {
        Ok(l) => Res::Ok(ReaddirOk {
            dir_attributes: Some(dir.wire(&l.attr)),
            cookieverf: l.verifier,
            entries: Chain(l.entries),
            eof: l.eof,
        }),
        Err(status) => Res::Err(status, dir.after().await),
    }
}

pub(super) async fn readdirplus(r: &Request, a: &ReaddirplusArgs) -> ReaddirplusRes {
    let dir = match At::of(r, &a.dir).await {
        Ok(dir) => dir,
        Err(status) => return Res::Err(status, None),
    };
    let room = Room {
        reply: a.maxcount.min(r.server.options.listing_max_bytes) as usize,
        names: a.dircount as usize,
    };
    match list(&dir, a.cookie, a.cookieverf, &room, true, |i| plus(r, &dir, i)).await {
        Ok(l) => Res::Ok(ReaddirplusOk {
            dir_attributes: Some(dir.wire(&l.attr)),
            cookieverf: l.verifier,
            entries: Chain(l.entries),
            eof: l.eof,
        }),
        Err(status) => Res::Err(status, dir.after().await),
    }
}

fn plus(r: &Request, dir: &At, mut i: Item) -> Entryplus3 {
    // An entry that another export covers has no handle: the client uses LOOKUP.
    i.node = i.node.filter(|node| dir.crossing(r, &node.fh).is_none());
    let known = |n: &&Node| n.attrs.attr.kind != FileKind::Regular || !is_delayed(r, &n.fh);
    Entryplus3 {
        fileid: i.fileid,
        name: i.name,
        cookie: i.cookie,
        name_attributes: i.node.as_ref().filter(known).map(|n| dir.wire(&n.attrs.attr)),
        name_handle: i.node.and_then(|n| dir.handle(&n.fh)),
    }
}

/// A part of a directory after a cookie. Each entry is made at once, so that a long listing is not
/// in memory a third time.
async fn list<E>(
    dir: &At,
    cookie: u64,
    verifier: [u8; 8],
    room: &Room,
    nodes: bool,
    entry: impl Fn(Item) -> E,
) -> Result<Listing<E>, Nfsstat3> {
    let attr = dir.attr().await?;
    let from = cookie.saturating_sub(DOTDOT);
    let most = room.reply.saturating_sub(HEAD_BYTES).clamp(64, u32::MAX as usize) as u32;
    let verifier = if from == 0 { [0; 8] } else { verifier };
    let page = dir.export.vfs.readdir(&dir.cx, &dir.fh, from, verifier, most, nodes).await;
    let page = page.map_err(|e| stat3(&e))?;
    let verifier = page.verifier;
    let all_of_page = page.eof;
    let mut made = Vec::with_capacity(page.entries.len() + 2);
    let (mut reply, mut names) = (HEAD_BYTES, 0);
    let mut eof = true;
    for item in dots(dir, &attr, cookie).await.into_iter().chain(entries(page)) {
        let name = ENTRY_BYTES + item.name.len().next_multiple_of(4);
        reply += name + if nodes { PLUS_BYTES + FH_MAX_BYTES } else { 0 };
        names += name;
        if reply > room.reply || (names > room.names && !made.is_empty()) {
            eof = false;
            break;
        }
        made.push(entry(item));
    }
    if made.is_empty() && !eof {
        return Err(Nfsstat3::TOOSMALL);
    }
    Ok(Listing { attr, verifier, entries: made, eof: eof && all_of_page })
}

/// `.` and `..`, unless the cookie is past them.
async fn dots(dir: &At, attr: &Attr, cookie: u64) -> Vec<Item> {
    if cookie > DOT {
        return Vec::new();
    }
    let above = dir.above().await.ok().flatten().map_or(attr.fileid, |node| node.attrs.attr.fileid);
    let item = |name: &[u8], cookie| Item {
        fileid: if cookie == DOT { attr.fileid } else { above },
        name: Name3::copy(name),
        cookie,
        node: (cookie == DOT).then(|| Node {
            fh: dir.fh.clone(),
            attrs: hither_vfs::Attrs {
                attr: attr.clone(),
                valid: hither_vfs::Validity::Once,
                asked: tokio::time::Instant::now(),
            },
        }),
    };
    match cookie {
        0 => vec![item(b".", DOT), item(b"..", DOTDOT)],
        _ => vec![item(b"..", DOTDOT)],
    }
}

fn entries(page: DirPage) -> impl Iterator<Item = Item> {
    page.entries.into_iter().map(|e| Item {
        fileid: e.fileid,
        name: Name3::from(e.name.bytes().clone()),
        cookie: e.cookie.saturating_add(DOTDOT),
        node: e.node,
    })
}
