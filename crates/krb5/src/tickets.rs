//! Credentials, where the tools of the system keep them.

use libgssapi::credential::{Cred, CredUsage};
use libgssapi::error::{Error, MajorFlags};
use libgssapi::oid::{GSS_MECH_KRB5, OidSet};
use libgssapi_sys as sys;
use rustix::process::getuid;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// The machine's credential cache, in memory.
const MACHINE_CACHE: &str = "MEMORY:hither-machine";
/// Directories with cache files of users.
const DIRECTORIES: [&str; 2] = ["/tmp", "/run/user/UID"];
/// Most caches of a user that are tried.
const CACHES_MAX: usize = 32;

/// Tickets of the machine, with the keys in `keytab`. Without a keytab, root's own tickets serve.
pub(crate) fn machine(keytab: &Path) -> Result<Cred, Error> {
    if !keytab.exists() {
        return default_cache();
    }
    let keytab = keytab.to_string_lossy();
    from_store(CredUsage::Initiate, &[("client_keytab", &keytab), ("ccache", MACHINE_CACHE)])
}

/// Keys to accept contexts. A replayed token gives no key of the context to the attacker, so no
/// replay cache is kept.
pub(crate) fn acceptor(keytab: &Path) -> Result<Cred, Error> {
    let keytab = keytab.to_string_lossy();
    from_store(CredUsage::Accept, &[("keytab", &keytab), ("rcache", "none:")])
}

/// Tickets of a user. The thread has the user's identity. The user's caches are tried in the order
/// of the library's default, the usual places, and files of any name in [`DIRECTORIES`], the newest
/// first. A cache in `/tmp` that belongs to another user is not used: its tickets would give this
/// user's calls, and his data, to that user.
pub(crate) fn user(uid: u32) -> Result<Cred, Error> {
    // `KRB5CCNAME` of this process names the cache of its own user.
    let is_default = getuid().as_raw() == uid || std::env::var_os("KRB5CCNAME").is_none();
    let first = if is_default && !is_planted(uid) { default_cache() } else { Err(none()) };
    let mut error = match first {
        Ok(cred) if !is_planted(uid) => return Ok(cred),
        Ok(_) => none(),
        Err(e) => e,
    };
    for cache in caches(uid) {
        match from_store(CredUsage::Initiate, &[("ccache", &cache)]) {
            Ok(cred) if cred.lifetime().is_ok_and(|left| !left.is_zero()) => return Ok(cred),
            Ok(_) => error = expired(),
            Err(_) => {}
        }
    }
    Err(error)
}

/// Whether another user has a file or link at the usual place of this user's cache.
fn is_planted(uid: u32) -> bool {
    let owner = fs::symlink_metadata(format!("/tmp/krb5cc_{uid}")).map(|meta| meta.uid());
    owner.is_ok_and(|owner| owner != uid && owner != 0)
}

fn caches(uid: u32) -> Vec<String> {
    let usual = (!is_planted(uid)).then(|| format!("FILE:/tmp/krb5cc_{uid}"));
    let mut caches: Vec<String> = usual.into_iter().collect();
    caches.extend([
        format!("KEYRING:persistent:{uid}"),
        format!("DIR:/run/user/{uid}/krb5cc"),
        format!("KCM:{uid}"),
    ]);
    let mut files: Vec<(SystemTime, String)> = Vec::new();
    for dir in DIRECTORIES.map(|dir| dir.replace("UID", &uid.to_string())) {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.starts_with("krb5cc")) else { continue };
            // The file itself and not one that a link names.
            let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
            if meta.is_file() && meta.uid() == uid {
                let at = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                files.push((at, format!("FILE:{dir}/{name}")));
            }
        }
    }
    files.sort_by(|a, b| b.cmp(a));
    caches.extend(files.into_iter().map(|(_, name)| name));
    caches.truncate(CACHES_MAX);
    caches
}

fn default_cache() -> Result<Cred, Error> {
    let cred = Cred::acquire(None, None, CredUsage::Initiate, Some(&OidSet::singleton(GSS_MECH_KRB5)?))?;
    if cred.lifetime()?.is_zero() { Err(expired()) } else { Ok(cred) }
}

fn none() -> Error {
    Error { major: MajorFlags::GSS_S_NO_CRED, minor: 0 }
}

fn expired() -> Error {
    Error { major: MajorFlags::GSS_S_CREDENTIALS_EXPIRED, minor: 0 }
}

/// Credentials from named places (`gss_acquire_cred_from`, an extension of MIT).
fn from_store(usage: CredUsage, places: &[(&str, &str)]) -> Result<Cred, Error> {
    let invalid = |_| Error { major: MajorFlags::GSS_S_BAD_NAME, minor: 0 };
    let mut strings = Vec::new();
    for (key, value) in places {
        strings.push((CString::new(*key).map_err(invalid)?, CString::new(*value).map_err(invalid)?));
    }
    let mut elements: Vec<_> = strings
        .iter()
        .map(|(key, value)| sys::gss_key_value_element_desc { key: key.as_ptr(), value: value.as_ptr() })
        .collect();
    let store = sys::gss_key_value_set_desc { count: elements.len() as u32, elements: elements.as_mut_ptr() };
    let mut oid = sys::gss_OID_desc {
        length: GSS_MECH_KRB5.len() as u32,
        elements: GSS_MECH_KRB5.as_ptr().cast_mut().cast(),
    };
    let mut mechanisms = sys::gss_OID_set_desc { count: 1, elements: &mut oid };
    let usage = match usage {
        CredUsage::Accept => sys::GSS_C_ACCEPT,
        _ => sys::GSS_C_INITIATE,
    };
    let (mut minor, mut cred) = (0, std::ptr::null_mut());
    // SAFETY: all pointers are to values that live until the end of the call, and the library
    // changes only `minor` and `cred`.
    let major = unsafe {
        sys::gss_acquire_cred_from(
            &mut minor,
            std::ptr::null_mut(),
            u32::MAX,
            &mut mechanisms,
            usage as sys::gss_cred_usage_t,
            &store,
            &mut cred,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    if major != sys::GSS_S_COMPLETE {
        return Err(Error { major: MajorFlags::from_bits_retain(major), minor });
    }
    // SAFETY: the library has just made `cred`, and nothing else owns it.
    Ok(unsafe { Cred::from_c(cred) })
}
