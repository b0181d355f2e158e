//! Directories: READDIRPLUS when the caller needs attributes and the server supports it, else
//! READDIR.
//!
//! A listing without progress gives EIO instead of an endless loop. Examples are a page without
//! entries and end, a page that repeats the sent cookie, and a cookie that occurs twice.

use super::V3;
use super::convert;
use super::wire::Patience;
use crate::error;
use hither_proto::nfs3::{
    Entry3, Entryplus3, Nfsstat3, PostOpAttr, ReaddirArgs, ReaddirOk, ReaddirplusArgs, ReaddirplusOk, Res,
};
use hither_proto::rpc::Procedure;
use hither_proto::xdr::Xdr;
use hither_vfs::{Attrs, DirEntry, DirPage, Error, Fh, Name, Node, RequestContext, Result};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// Smallest and largest requested reply in bytes.
const PAGE_LEAST_BYTES: u32 = 4 << 10;
const PAGE_MAX_BYTES: u32 = 1 << 20;

/// Pages in a row without a usable entry before the listing fails.
const EMPTY_PAGES_MAX: u32 = 64;

/// How often a page is requested again after NOENT.
const MISSING_MAX: u32 = 8;

/// A reply to either procedure.
struct Raw {
    dir_attributes: PostOpAttr,
    verifier: [u8; 8],
    eof: bool,
    entries: Vec<RawEntry>,
}

struct RawEntry {
    name: bytes::Bytes,
    cookie: u64,
    fileid: u64,
    attributes: PostOpAttr,
    handle: Option<Fh>,
}

/// A page, and the attributes of the directory after it.
pub(super) struct Listed {
    pub page: DirPage,
    pub dir: Option<Attrs>,
}

impl From<ReaddirplusOk> for Raw {
    fn from(ok: ReaddirplusOk) -> Self {
        let entry = |e: Entryplus3| RawEntry {
            name: e.name.0,
            cookie: e.cookie,
            fileid: e.fileid,
            attributes: e.name_attributes,
            handle: e.name_handle.as_ref().and_then(convert::fh),
        };
        Self {
            dir_attributes: ok.dir_attributes,
            verifier: ok.cookieverf,
            eof: ok.eof,
            entries: ok.entries.0.into_iter().map(entry).collect(),
        }
    }
}

impl From<ReaddirOk> for Raw {
    fn from(ok: ReaddirOk) -> Self {
        let entry = |e: Entry3| RawEntry {
            name: e.name.0,
            cookie: e.cookie,
            fileid: e.fileid,
            attributes: None,
            handle: None,
        };
        Self {
            dir_attributes: ok.dir_attributes,
            verifier: ok.cookieverf,
            eof: ok.eof,
            entries: ok.entries.0.into_iter().map(entry).collect(),
        }
    }
}

impl V3 {
    /// Whether listings have filehandles and attributes, as far as known.
    pub(super) fn lists_nodes(&self) -> bool {
        self.opts.readdirplus && !self.no_readdirplus.load(Ordering::Relaxed)
    }

    /// The first page with filehandles and attributes.
    pub(super) async fn list_from_start(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        max_bytes: u32,
    ) -> Result<Listed> {
        let listed = self.list(cx, dir, 0, [0; 8], max_bytes, true).await;
        let whole = listed.as_ref().is_ok_and(|l| l.page.eof);
        self.listing_sizes.listed(dir, max_bytes, whole);
        listed
    }

    pub(super) async fn list(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Result<Listed> {
        let (mut cookie, mut verifier) = (cookie, verifier);
        for _ in 0..EMPTY_PAGES_MAX {
            let asked = Instant::now();
            let raw = self.page(cx, dir, cookie, verifier, max_bytes, nodes).await?;
            let next = check_progress(cookie, &raw)?;
            let attrs = self.learn(dir, &raw.dir_attributes, asked);
            let entries: Vec<_> = raw.entries.into_iter().filter_map(|e| self.entry(dir, e, asked)).collect();
            if !entries.is_empty() || raw.eof {
                let page = DirPage { entries, verifier: raw.verifier, eof: raw.eof, access: None };
                return Ok(Listed { page, dir: attrs });
            }
            // The page has only `.`, `..` or invalid names.
            (cookie, verifier) = (next, raw.verifier);
        }
        Err(Error::because(libc::EIO, "the server repeatedly sends directory pages without entries"))
    }

    async fn page(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Result<Raw> {
        let most = PAGE_MAX_BYTES.min(self.caller.sizes.rsize_bytes.max(PAGE_LEAST_BYTES));
        let mut bytes = max_bytes.clamp(PAGE_LEAST_BYTES, most);
        let (mut verifier, mut missing) = (verifier, 0);
        loop {
            // READDIR without attributes does not access the objects.
            let plus = nodes && self.lists_nodes() && missing < MISSING_MAX / 2;
            let (dir, cookieverf) = (convert::fh3(dir)?, verifier);
            let page = if plus {
                let (dircount, maxcount) = (bytes, bytes);
                self.ask_page(cx, &ReaddirplusArgs { dir, cookie, cookieverf, dircount, maxcount }).await?
            } else {
                self.ask_page(cx, &ReaddirArgs { dir, cookie, cookieverf, count: bytes }).await?
            };
            match page {
                Ok(raw) => return Ok(raw),
                Err(Nfsstat3::NOTSUPP) if plus => self.no_readdirplus.store(true, Ordering::Relaxed),
                Err(Nfsstat3::TOOSMALL) if bytes < most => bytes = bytes.saturating_mul(4).min(most),
                // A server that verifies cookies reports that the directory has changed. Many
                // servers accept the cookie without a verifier.
                Err(Nfsstat3::BAD_COOKIE) if verifier != [0; 8] => verifier = [0; 8],
                // An object was removed while the server made the page (ganesha). NOENT is not a
                // status of this procedure (RFC 1813 section 3.3.16), and readdir(3) would treat it
                // as the end of the directory.
                Err(Nfsstat3::NOENT) if missing < MISSING_MAX => missing += 1,
                Err(Nfsstat3::NOENT) => {
                    return Err(Error::because(
                        libc::EIO,
                        "the server repeatedly answers \"no such file\" for a directory page",
                    ));
                }
                Err(status) => return Err(error::nfs3(status)),
            }
        }
    }

    async fn ask_page<P, T>(
        &self,
        cx: &RequestContext,
        args: &P,
    ) -> Result<std::result::Result<Raw, Nfsstat3>>
    where
        P: Procedure<Reply = Res<T, PostOpAttr>>,
        T: Xdr + Into<Raw>,
    {
        let page = self.caller.ask(&cx.cred, &Patience::of(cx), args).await.map_err(|e| error::call(&e))?;
        Ok(page.map(Into::into).map_err(|(status, _)| status))
    }

    /// The entry for the `Vfs` interface; `None` for `.`, `..` and invalid names.
    fn entry(&self, dir: &Fh, raw: RawEntry, asked: Instant) -> Option<DirEntry> {
        if matches!(&raw.name[..], b"." | b"..") {
            return None;
        }
        // A copy, because a slice would keep the whole page alive.
        let name = match Name::new(bytes::Bytes::copy_from_slice(&raw.name)) {
            Ok(name) => name,
            Err(_) => {
                let name = raw.name.escape_ascii();
                tracing::warn!(?dir, %name, "the server lists an invalid name");
                return None;
            }
        };
        let attr = raw.attributes.as_ref().and_then(convert::attr);
        let kind = attr.as_ref().map(|a| a.kind);
        let node = attr.zip(raw.handle).map(|(attr, fh)| {
            let attrs = self.stamp_named(&fh, attr, asked);
            Node { fh, attrs: self.aged(attrs) }
        });
        Some(DirEntry { name, cookie: raw.cookie, fileid: raw.fileid, kind, node })
    }
}

/// Checks that the page makes progress. Returns the cookie of the next page.
fn check_progress(sent: u64, page: &Raw) -> Result<u64> {
    let mut seen = HashSet::with_capacity(page.entries.len());
    let repeats = page.entries.iter().any(|e| e.cookie == sent || !seen.insert(e.cookie));
    if repeats {
        return Err(Error::because(
            libc::EIO,
            "the server repeats a directory cookie: the listing would never end",
        ));
    }
    match page.entries.last() {
        Some(last) => Ok(last.cookie),
        None if page.eof => Ok(sent),
        None => Err(Error::because(libc::EIO, "the server sends neither entries nor the end of a directory")),
    }
}
