//! Calls that create or remove several names, with the state of each file in this layer.

use super::WriteBack;
use hither_vfs::{ChangeInfo, Creation, Fh, Made, NewKind, Removal, RequestContext, Result, Vfs};

impl WriteBack {
    pub(super) async fn make_many(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        new: &[Creation],
    ) -> Vec<Result<Made>> {
        let made = self.below.create_many(cx, dir, new).await;
        for (one, made) in new.iter().zip(&made) {
            if let (NewKind::File(_), Ok(made)) = (&one.kind, made) {
                self.learn_owner(cx, &made.node.attrs);
                self.named(Some(&made.node.fh), (dir, &one.name));
            }
        }
        made
    }

    pub(super) async fn take_many(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        gone: &[Removal],
    ) -> Vec<Result<ChangeInfo>> {
        let files: Vec<_> = gone.iter().map(|one| one.target.as_ref().filter(|_| !one.is_dir)).collect();
        for file in &files {
            if let Err(e) = self.flush_delegated(cx, *file).await {
                return gone.iter().map(|_| Err(e.clone())).collect();
            }
        }
        // A file in use may need a hidden name, and all names have one call.
        let unused = |(one, file): (&Removal, &Option<&Fh>)| self.losing_name(*file, (dir, &one.name));
        let losing: Vec<_> = gone.iter().zip(&files).map(unused).collect();
        let known = files.iter().filter(|file| file.is_some_and(|fh| self.known(fh).is_some())).count();
        let target_unused = known > 0 && known == losing.iter().flatten().count();
        let below = RequestContext { target_unused, ..cx.clone() };
        let mut out = self.touching(&files, self.below.remove_many(&below, dir, gone)).await;
        for ((one, file), outcome) in gone.iter().zip(files).zip(&mut out) {
            match outcome {
                Ok(_) if !one.is_dir => self.lost_a_name(file).await,
                // The directory waits for files that are leaving it.
                Err(e) if one.is_dir && matches!(e.errno, libc::ENOTEMPTY | libc::EEXIST) => {
                    *outcome = self.rmdir(cx, dir, &one.name).await;
                }
                _ => {}
            }
        }
        for (losing, outcome) in losing.into_iter().zip(&out) {
            match (losing, outcome) {
                (Some(losing), Ok(_)) => losing.removed(),
                (Some(losing), Err(_)) => losing.fail().await,
                (None, _) => {}
            }
        }
        out
    }
}
