//! Names and kinds of files.

use super::*;

impl State {
    pub(super) fn lookup(&mut self, name: &Component, cur: &mut Cur) -> Result<(), Nfsstat4> {
        let name = text(name);
        if name == "export" {
            return Ok(());
        }
        if cur.fh.as_ref().is_some_and(|fh| &fh[..] != ROOT) && !self.file(cur)?.dir {
            return Err(Nfsstat4::NOTDIR);
        }
        self.files.get(&name).ok_or(Nfsstat4::NOENT)?;
        cur.fh = Some(handle(self.leads_to.get(&name).unwrap_or(&name)));
        Ok(())
    }

    pub(super) fn lookup_parent(cur: &mut Cur) -> Result<(), Nfsstat4> {
        // All directories are in the root.
        cur.fh = Some(Fh::copy(ROOT));
        Ok(())
    }

    /// VERIFY and NVERIFY of a file's kind.
    pub(super) fn verify(&mut self, wanted: &Attrs, cur: &Cur, same: bool) -> Result<(), Nfsstat4> {
        let is_same = self.attrs(cur, Bitmap4::of(&[attr::TYPE]))?.ftype == wanted.ftype;
        let wrong = if is_same { Nfsstat4::SAME } else { Nfsstat4::NOT_SAME };
        if is_same == same { Ok(()) } else { Err(wrong) }
    }
}
