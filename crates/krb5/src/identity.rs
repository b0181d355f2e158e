//! The identity of a thread while it reads the tickets of a user.

use hither_rpc::gss::{GssError, GssOwner};
use rustix::process::{Uid, geteuid, getuid};
use rustix::thread::set_thread_res_uid;

/// The user whose tickets are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    uid: Option<Uid>,
}

/// A thread has the identity until this is dropped.
pub(crate) struct Taken {
    before: Option<(Uid, Uid)>,
}

impl Identity {
    /// That of `owner`, as far as this process may take it.
    pub fn of(owner: &GssOwner) -> Self {
        let uid = match owner {
            GssOwner::Machine => None,
            GssOwner::User(uid) => (geteuid().is_root() && *uid != 0).then(|| Uid::from_raw(*uid)),
        };
        Self { uid }
    }

    /// Gives this thread the identity. The credential caches of other users stay closed to it.
    ///
    /// # Errors
    /// The process may not change its identity.
    pub fn take(self) -> Result<Taken, GssError> {
        let Some(uid) = self.uid else { return Ok(Taken { before: None }) };
        let before = (getuid(), geteuid());
        set_thread_res_uid(uid, uid, before.1)
            .map_err(|e| GssError::Failed(format!("cannot act for user {}: {e}", uid.as_raw()).into()))?;
        Ok(Taken { before: Some(before) })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some((real, effective)) = self.before
            && set_thread_res_uid(real, effective, effective).is_err()
        {
            // A thread with the wrong identity must not run another task.
            std::process::abort();
        }
    }
}
