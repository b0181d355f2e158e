//! Directory listings: READDIR alone, for many directories at once, and as part of other compounds.
//!
//! Replies are checked: a listing without progress is an error, and invalid names are omitted.
//! [`Core::first_page`] reads the page of other compounds.

use super::attrs::{NODE_ATTRS, kind};
use super::call::{Answer, Compound};
use super::core::Core;
use super::fail::Answered;
use super::many::Parts;
use super::state::wire_fh;
use hither_proto::nfs4::{Bitmap4, Entry, Nfsstat4, Op, ReaddirArgs, ReaddirOk, attr};
use hither_vfs::{Access, Attrs, DirEntry, DirPage, Error, Fh, Name, RequestContext};
use std::sync::Arc;
use tokio::time::Instant;

/// Longest requested READDIR reply.
const READDIR_MAX_BYTES: u32 = 1 << 20;
/// How often a page is requested again after NOENT.
const MISSING_MAX: u32 = 8;
/// Shortest useful reply: one entry with the longest name fits.
pub(crate) const READDIR_MIN_BYTES: u32 = 1024;

const LEAN: Bitmap4 = Bitmap4::of(&[attr::TYPE, attr::RDATTR_ERROR, attr::FILEID, attr::MOUNTED_ON_FILEID]);
const RICH: Bitmap4 =
    NODE_ATTRS.with(attr::RDATTR_ERROR).with(attr::FILEHANDLE).with(attr::MOUNTED_ON_FILEID);

/// READDIR from the start with filehandles and attributes. The reply has at most `max_bytes`.
pub(crate) fn first_page_op(max_bytes: u32) -> Op {
    Op::Readdir(ReaddirArgs {
        cookie: 0,
        cookieverf: [0; 8],
        dircount: max_bytes,
        maxcount: max_bytes,
        attr_request: RICH,
    })
}

impl Core {
    /// Lists a part of a directory.
    pub async fn readdir(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Answered<DirPage> {
        let limits = self.ready().await?.limits;
        let room = limits.max_response_bytes.saturating_sub(1024).clamp(4096, READDIR_MAX_BYTES);
        // Attributes take about ten times the bytes of a name.
        let maxcount = if nodes { max_bytes.saturating_mul(4) } else { max_bytes }.clamp(4096, room);
        let args = ReaddirArgs {
            cookie,
            cookieverf: verifier,
            dircount: max_bytes.clamp(512, maxcount),
            maxcount,
            attr_request: if nodes { RICH } else { LEAN },
        };
        let mut missing = 0;
        let (page, answer) = loop {
            let ops = [Op::Putfh(wire_fh(dir)), Op::Readdir(args)];
            let mut answer = self.compound(cx, Compound::new("READDIR", ops)).await?;
            answer.results.putfh()?;
            match answer.results.readdir() {
                Ok(page) => break (page, answer),
                // An object was removed while the server made the page. NOENT is not a status of
                // this operation (RFC 8881 section 18.23.3), and readdir(3) would treat it as the
                // end of the directory.
                Err(e) if e.status() == Some(Nfsstat4::NOENT) && missing < MISSING_MAX => missing += 1,
                Err(e) if e.status() == Some(Nfsstat4::NOENT) => {
                    let why = "the server repeatedly answers \"no such file\" for a directory page";
                    return Err(Error::because(libc::EIO, why).into());
                }
                Err(e) => return Err(e.into()),
            }
        };
        let verifier = page.cookieverf;
        let (page, last) = self.page(page, cookie, nodes, answer.asked).await?;
        if page.entries.is_empty() && !page.eof && last != cookie {
            // The page has only invalid names: continue after them.
            return Box::pin(self.readdir(cx, dir, last, verifier, max_bytes, nodes)).await;
        }
        if page.entries.is_empty() && !page.eof {
            return Err(Error::because(libc::EIO, "the server's directory listing has an empty page").into());
        }
        Ok(page)
    }

    /// The page of [`first_page_op`] in another compound.
    pub async fn first_page(self: &Arc<Self>, page: ReaddirOk, asked: Instant) -> Answered<DirPage> {
        let (page, _) = self.page(page, 0, true, asked).await?;
        if page.entries.is_empty() && !page.eof {
            Err(Error::because(libc::EIO, "the server's directory listing has an empty page").into())
        } else {
            Ok(page)
        }
    }

    /// The page in the types of the `Vfs` interface, and the cookie of its last entry.
    async fn page(
        self: &Arc<Self>,
        page: ReaddirOk,
        cookie: u64,
        nodes: bool,
        asked: Instant,
    ) -> Answered<(DirPage, u64)> {
        let mut entries = Vec::with_capacity(page.entries.len());
        let mut last = cookie;
        for entry in page.entries.0 {
            if entry.cookie == last || entry.cookie == cookie {
                return Err(
                    Error::because(libc::EIO, "the server's directory listing does not advance").into()
                );
            }
            last = entry.cookie;
            entries.extend(self.dir_entry(entry, nodes, asked).await);
        }
        Ok((DirPage { entries, verifier: page.cookieverf, eof: page.eof, access: None }, last))
    }

    async fn dir_entry(self: &Arc<Self>, entry: Entry, nodes: bool, asked: Instant) -> Option<DirEntry> {
        // The server should not send "." and "..". Other invalid names cannot be used.
        let name = Name::new(bytes::Bytes::copy_from_slice(&entry.name)).ok()?;
        let wire = &entry.attrs;
        let node = match (&wire.filehandle, wire.rdattr_error) {
            (Some(fh), None | Some(Nfsstat4::OK)) if nodes => self.node(fh, wire, asked).await.ok(),
            _ => None,
        };
        // stat(2) of the name shows the mounted file system's number. readdir(3) shows the number
        // of the covered directory.
        let fileid = wire.mounted_on_fileid.or(wire.fileid).unwrap_or(0);
        Some(DirEntry { name, cookie: entry.cookie, fileid, kind: wire.ftype.and_then(kind), node })
    }
}

/// Lists the starts of many directories; see [`Core::many`].
pub(crate) struct Lists {
    /// Longest READDIR reply of each.
    pub max_bytes: u32,
    /// Whether the server takes several listings in one compound
    /// ([`data_anywhere`](super::mount::data_anywhere)).
    pub several: bool,
    /// Whether the caller's rights on each directory are requested, too.
    pub rights: bool,
}

impl Parts for Lists {
    type Out = (Attrs, DirPage);
    const LABEL: &'static str = "READDIR";
    const OPS: usize = 4;
    const DIRECTORIES: bool = true;

    fn reply_bytes(&self) -> u32 {
        self.max_bytes + 1024
    }

    fn max_objects(&self) -> usize {
        if self.several { usize::MAX } else { 1 }
    }

    fn ops(&self, fh: &Fh, ops: &mut Vec<Op>) {
        ops.extend([
            Op::Putfh(wire_fh(fh)),
            // Before the listing: names may be newer than these attributes, never older.
            Op::Getattr(NODE_ATTRS),
        ]);
        if self.rights {
            ops.push(Op::Access(Access::all().bits()));
        }
        ops.push(first_page_op(self.max_bytes));
    }

    async fn take(&self, core: &Arc<Core>, fh: &Fh, answer: &mut Answer) -> Answered<(Attrs, DirPage)> {
        answer.results.putfh()?;
        let granted = core.take_directory(fh, answer)?;
        let wire = answer.results.getattr()?;
        let access = if self.rights {
            Some(Access::from_bits_truncate(answer.results.access()?.access))
        } else {
            None
        };
        let page = answer.results.readdir()?;
        let page = core.first_page(page, answer.asked).await.map(|page| DirPage { access, ..page });
        Ok((core.leased_by(fh, core.attrs(fh, &wire, answer.asked).await?, granted), page?))
    }
}

impl Core {
    /// The longest READDIR reply beside `others_bytes` of other replies. `None` when it would be
    /// too short to be useful.
    pub fn listing_room(&self, max_response_bytes: u32, others_bytes: u32, wanted_bytes: u32) -> Option<u32> {
        let room = max_response_bytes.saturating_sub(others_bytes).min(READDIR_MAX_BYTES);
        let bytes = wanted_bytes.max(READDIR_MIN_BYTES).min(room);
        (wanted_bytes > 0 && room >= READDIR_MIN_BYTES).then_some(bytes)
    }
}
