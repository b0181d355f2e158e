//! Finds the NFSv4 domain of this machine, as libnfsidmap does.

use std::path::Path;

/// The NFSv4 domain of this machine. The sources are, in this order, `Domain` in
/// `/etc/idmapd.conf`, the domain of the host's full name, and `localdomain`.
pub fn local_domain() -> String {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    let host = read("/proc/sys/kernel/hostname");
    configured(&read("/etc/idmapd.conf"))
        .or_else(|| of_name(host.trim()))
        .or_else(|| in_hosts(&read("/etc/hosts"), host.trim()))
        .unwrap_or_else(|| "localdomain".to_owned())
}

/// `Domain = x` of the section `[General]`.
pub(super) fn configured(conf: &str) -> Option<String> {
    let mut general = false;
    for line in conf.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            general = section.trim_end_matches(']').trim().eq_ignore_ascii_case("general");
        } else if let (true, Some((key, value))) = (general, line.split_once('=')) {
            let value = value.trim();
            if key.trim().eq_ignore_ascii_case("domain") && !value.is_empty() {
                return Some(value.to_ascii_lowercase());
            }
        }
    }
    None
}

/// The first full name that `/etc/hosts` has for the host.
pub(super) fn in_hosts(hosts: &str, host: &str) -> Option<String> {
    if host.is_empty() {
        return None;
    }
    hosts.lines().find_map(|line| {
        let names: Vec<&str> = line.split('#').next()?.split_whitespace().skip(1).collect();
        names.contains(&host).then(|| names.iter().find_map(|n| of_name(n))).flatten()
    })
}

fn of_name(name: &str) -> Option<String> {
    let (_, domain) = name.split_once('.')?;
    (!domain.is_empty()).then(|| domain.trim_end_matches('.').to_ascii_lowercase())
}
