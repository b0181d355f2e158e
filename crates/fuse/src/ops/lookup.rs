//! LOOKUP and READLINK.

use super::Call;
use crate::abi::{EntryReply, Out, entry_out};
use crate::call::{Answer, Undo};
use crate::inode::Inode;
use hither_vfs::{Error, Name, Result, Stop, Want, Where};
use tokio::time::Instant;

/// The kernel takes targets that fit a page with their NUL.
const TARGET_MAX_BYTES: usize = 4095;

impl Call {
    pub(super) async fn lookup(&self, name: Name) -> Result<Answer> {
        let dir = self.inode()?;
        if let Some(answer) = self.lookup_known(&dir, &name) {
            return Ok(answer);
        }
        let (fh, asked) = (dir.fh(), self.asked());
        let trail = self.session.vfs.walk(&self.cx(), Where::name(&fh, &name), Want::default()).await?;
        if let Some(node) = trail.steps.first() {
            dir.note_searcher(&self.cred(), node.attrs.valid);
            return self.entry_answer(&dir, &name, node, asked).await;
        }
        match trail.stop {
            Stop::Missing(valid) => {
                self.session.inodes.unbind(dir.id, &name);
                let valid = self.name_valid(&dir, valid.left(Instant::now()));
                if valid.is_zero() {
                    return Err(Error::new(libc::ENOENT));
                }
                let none =
                    EntryReply { nodeid: 0, ino: 0, entry_valid: valid, attr_valid: valid, attr: None };
                let mut out = Out::with_capacity(128);
                entry_out(&mut out, &none);
                Ok(Answer::bytes(out.into_vec()))
            }
            Stop::Failed(e) => Err(e),
            Stop::NotDirectory | Stop::Symlink => Err(Error::new(libc::ENOTDIR)),
            Stop::Complete | Stop::Limit => {
                Err(Error::because(libc::EIO, "a walk of one name brought nothing"))
            }
        }
    }

    /// Answers from what is known. The kernel itself keeps names that everybody may look up; in other directories it asks
    /// each time, and a caller who was let in before need not wait for the server each time.
    fn lookup_known(&self, dir: &Inode, name: &Name) -> Option<Answer> {
        let now = Instant::now();
        if dir.world_searchable() || !dir.may_search(&self.cred(), now) {
            return None;
        }
        let inode = self.session.inodes.look_up(dir.id, name, now)?;
        let undo = Undo::Forget(vec![inode.id]);
        let Some(attrs) = inode.known(now) else {
            self.session.inodes.forget(inode.id, 1);
            return None;
        };
        let asked = self.asked();
        inode.observe(&attrs, asked);
        let mut out = Out::with_capacity(128);
        self.entry(&mut out, dir, &inode, &attrs);
        Some(Answer::bytes(out.into_vec()).or(undo))
    }

    pub(super) async fn readlink(&self) -> Result<Answer> {
        let inode = self.inode()?;
        let target = self.session.vfs.readlink(&self.cx(), &inode.fh()).await?;
        if target.len() > TARGET_MAX_BYTES {
            return Err(Error::new(libc::ENAMETOOLONG));
        }
        inode.link_read();
        Ok(Answer { body: crate::call::Body::Data(target.into()), undo: crate::call::Undo::Nothing })
    }
}
