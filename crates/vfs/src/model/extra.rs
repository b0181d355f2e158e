//! The calls of [`Extra`], and checks of names of attributes.

use super::Model;
use crate::{Attrs, Error, Extra, Fh, File, Name, PosixAcls, ReadPiped, RequestContext, Result, Vfs};
use async_trait::async_trait;

/// Alignment of clones in bytes.
const CLONE_BLOCK_BYTES: u32 = 4096;

#[async_trait]
impl Extra for Model {
    fn read_piped(
        &self,
        _cx: &RequestContext,
        _file: File<'_>,
        _offset_bytes: u64,
        _len_bytes: u32,
    ) -> Option<ReadPiped> {
        None
    }

    fn has_acls(&self) -> bool {
        false
    }

    async fn acls(&self, _cx: &RequestContext, _fh: &Fh) -> Result<PosixAcls> {
        Err(Error::new(libc::EOPNOTSUPP))
    }

    async fn set_acls(&self, _cx: &RequestContext, _fh: &Fh, _acls: &PosixAcls) -> Result<Attrs> {
        Err(Error::new(libc::EOPNOTSUPP))
    }

    fn clone_block_bytes(&self) -> Option<u32> {
        Some(CLONE_BLOCK_BYTES)
    }

    async fn clone_range(
        &self,
        cx: &RequestContext,
        from: File<'_>,
        from_offset_bytes: u64,
        to: File<'_>,
        to_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let invalid = || Error::new(libc::EINVAL);
        let size = self.getattr(cx, from).await?.attr.size_bytes;
        let left = size.checked_sub(from_offset_bytes).ok_or_else(invalid)?;
        let len = if len_bytes == 0 { left } else { len_bytes };
        let block = u64::from(CLONE_BLOCK_BYTES);
        let end = to_offset_bytes.checked_add(len).ok_or_else(invalid)?;
        let past = self.getattr(cx, to).await?.attr.size_bytes > end;
        let ragged = !len.is_multiple_of(block) && (len != left || past);
        let apart = from_offset_bytes.abs_diff(to_offset_bytes) >= len;
        if !from_offset_bytes.is_multiple_of(block) || !to_offset_bytes.is_multiple_of(block) || ragged {
            return Err(invalid());
        }
        if len > left || (from.fh == to.fh && !apart) {
            return Err(invalid());
        }
        let len = u32::try_from(len).map_err(|_| Error::new(libc::EFBIG))?;
        let read = self.read(cx, from, from_offset_bytes, len).await?;
        self.write_now(cx, to, to_offset_bytes, &read.data).map(drop)
    }
}

/// Accepts only names in the name space `user.` (RFC 8276). Other name spaces fail with
/// `EOPNOTSUPP`, as on a server.
pub(super) fn check_xattr_name(name: &[u8]) -> Result<()> {
    match name {
        n if n.len() > Name::MAX_BYTES => Err(Error::new(libc::ERANGE)),
        n if n.starts_with(b"user.") && n.len() > 5 => Ok(()),
        _ => Err(Error::new(libc::EOPNOTSUPP)),
    }
}
