//! The security flavors of a mount (`sec=`), and the credentials of its users.

use bytes::Bytes;
use hither_proto::rpc::{AUTH_SYS_MAX_GIDS, AuthSys};
use hither_proto::xdr::Opaque;
use hither_rpc::gss::{GssOwner, GssService, GssUser, Mechanism};
use hither_rpc::{Credential, Flavor};
use hither_vfs::Cred;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Most credentials that are kept.
const CREDENTIALS_MAX: usize = 1024;

/// `sec=`.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// The flavor in use.
    pub flavor: Flavor,
    /// Flavors that may be used if the server refuses that flavor, in order of preference.
    pub others: Vec<Flavor>,
    /// Makes the contexts of Kerberos flavors.
    pub mechanism: Option<Arc<dyn Mechanism>>,
}

impl Security {
    /// The security with the first other flavor that the server offers.
    pub(crate) fn other(&self, offered: &[Flavor]) -> Option<Self> {
        self.from(self.others.iter().position(|flavor| offered.contains(flavor))?)
    }

    /// The security with the next flavor, for a machine without Kerberos.
    pub(crate) fn next(&self) -> Option<Self> {
        self.from(0)
    }

    fn from(&self, at: usize) -> Option<Self> {
        let (flavor, others) = self.others.get(at..)?.split_first()?;
        Some(Self { flavor: *flavor, others: others.to_vec(), mechanism: self.mechanism.clone() })
    }
}

/// The RPC credentials of users.
pub(crate) struct Credentials {
    machine: Bytes,
    gss: Option<Gss>,
    sys: Mutex<HashMap<Cred, Credential>>,
    users: Mutex<HashMap<GssOwner, Credential>>,
}

struct Gss {
    mechanism: Arc<dyn Mechanism>,
    service: GssService,
    host: Arc<str>,
}

impl Credentials {
    /// Credentials for the server named `host`, from the host named `machine`.
    pub fn new(security: &Security, host: &str, machine: Bytes) -> Self {
        let gss = security.flavor.service().zip(security.mechanism.clone());
        let gss = gss.map(|(service, mechanism)| Gss { mechanism, service, host: host.into() });
        Self { machine, gss, sys: Mutex::default(), users: Mutex::default() }
    }

    /// The credential of a user. AUTH_SYS has 16 groups at most. Of more groups the first 16 are
    /// sent, as by the Linux client. Under Kerberos the server knows the groups.
    pub fn of(&self, cred: &Cred) -> Credential {
        let Some(gss) = &self.gss else {
            return kept(&self.sys, cred, || self.sys(cred));
        };
        // Root has the machine's keys (as with rpc.gssd), unless the mount belongs to a user.
        let own = rustix::process::geteuid();
        let owner = match (cred.uid, own.is_root()) {
            (0, true) => GssOwner::Machine,
            (0, false) => GssOwner::User(own.as_raw()),
            (uid, _) => GssOwner::User(uid),
        };
        kept(&self.users, &owner, || {
            let (mechanism, host) = (gss.mechanism.clone(), gss.host.clone());
            Credential::Gss(GssUser::new(mechanism, owner.clone(), host, gss.service))
        })
    }

    fn sys(&self, cred: &Cred) -> Credential {
        let gids: Vec<u32> = cred.groups.iter().copied().take(AUTH_SYS_MAX_GIDS).collect();
        Credential::sys(&AuthSys {
            stamp: 0,
            machinename: Opaque(self.machine.clone()),
            uid: cred.uid,
            gid: cred.gid,
            gids: gids.into(),
        })
    }
}

/// The credential of `key`, made once.
fn kept<K: Hash + Eq + Clone>(
    all: &Mutex<HashMap<K, Credential>>,
    key: &K,
    make: impl FnOnce() -> Credential,
) -> Credential {
    let mut all = all.lock();
    if let Some(known) = all.get(key) {
        return known.clone();
    }
    if all.len() >= CREDENTIALS_MAX {
        all.clear();
    }
    let new = make();
    all.insert(key.clone(), new.clone());
    new
}
