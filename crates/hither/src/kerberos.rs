//! Kerberos in this build, and the accounts of principals.

use hither_rpc::gss::{GssIds, Mechanism};
use std::path::Path;
use std::sync::Arc;

/// Static mappings of principals to users, as libnfsidmap reads them.
const IDMAPD_CONF: &str = "/etc/idmapd.conf";

/// Kerberos with the keys in `keytab`; `None`: those of the system.
///
/// # Errors
/// A line: this build has no Kerberos.
#[cfg(feature = "krb5")]
pub fn mechanism(keytab: Option<&Path>) -> Result<Arc<dyn Mechanism>, String> {
    Ok(Arc::new(kerberos(keytab)))
}

#[cfg(feature = "krb5")]
fn kerberos(keytab: Option<&Path>) -> hither_krb5::Kerberos {
    keytab.map_or_else(hither_krb5::Kerberos::system, hither_krb5::Kerberos::new)
}

/// Kerberos with the keys in `keytab`; `None`: those of the system.
///
/// # Errors
/// A line: this build has no Kerberos.
#[cfg(not(feature = "krb5"))]
pub fn mechanism(_: Option<&Path>) -> Result<Arc<dyn Mechanism>, String> {
    Err("this build of hither has no Kerberos: use a package, or build with the feature krb5".into())
}

/// Checks that contexts can be accepted with the keys in `keytab`.
///
/// # Errors
/// A line with the reason.
#[cfg(feature = "krb5")]
pub fn check_keys(keytab: Option<&Path>) -> Result<(), String> {
    kerberos(keytab).check_keys().map_err(|e| e.to_string())
}

/// Checks that contexts can be accepted with the keys in `keytab`.
///
/// # Errors
/// A line with the reason.
#[cfg(not(feature = "krb5"))]
pub fn check_keys(keytab: Option<&Path>) -> Result<(), String> {
    mechanism(keytab).map(drop)
}

/// The account of a principal: that of idmapd.conf, else `local`, which krb5.conf names. Blocks.
pub fn ids_of(principal: &str, local: Option<&str>) -> Option<GssIds> {
    let conf = std::fs::read_to_string(IDMAPD_CONF).unwrap_or_default();
    let name = mapped(&conf, principal).or(local)?;
    let user = nix::unistd::User::from_name(name).ok()??;
    let groups = std::ffi::CString::new(user.name).ok();
    let groups = groups.and_then(|name| nix::unistd::getgrouplist(&name, user.gid).ok()).unwrap_or_default();
    let gids = groups.into_iter().map(|gid| gid.as_raw()).filter(|gid| *gid != user.gid.as_raw()).collect();
    Some(GssIds { uid: user.uid.as_raw(), gid: user.gid.as_raw(), gids })
}

/// The user in `principal = user` of the section `[Static]`.
fn mapped<'c>(conf: &'c str, principal: &str) -> Option<&'c str> {
    let mut is_static = false;
    for line in conf.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(section) = line.strip_prefix('[') {
            is_static = section.trim_end_matches(']').trim().eq_ignore_ascii_case("static");
        } else if is_static
            && let Some((name, user)) = line.split_once('=')
            && name.trim() == principal
        {
            return Some(user.trim());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The section [Static] of idmapd.conf names the accounts of principals.
    #[test]
    fn static_mappings_are_read() {
        let conf = "[General]\nalice@R = root\n[ Static ]\n# alice@R = games\nalice@R = bob\nnfs/h@R=nfs\n[Other]\nx@R = y\n";
        let user = |principal| mapped(conf, principal);
        assert_eq!((user("alice@R"), user("nfs/h@R")), (Some("bob"), Some("nfs")));
        assert_eq!((user("x@R"), user("bob")), (None, None));
    }

    /// A principal without a mapping and without a local user has no account.
    #[test]
    fn unknown_principals_have_no_account() {
        assert_eq!(ids_of("nobody-of-this-name@R", None), None);
        assert_eq!(ids_of("x@R", Some("no-such-user-here")), None);
        assert_eq!(ids_of("x@R", Some("root")).map(|ids| (ids.uid, ids.gid)), Some((0, 0)));
    }
}
