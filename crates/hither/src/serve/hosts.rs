//! Host names and netgroups of this machine: addresses, names of addresses, members of netgroups.
//!
//! All functions block. Addresses come from the resolver of the C library. Names and netgroups come
//! from getent(1), which uses the same sources (nsswitch.conf(5)).

use std::net::{IpAddr, ToSocketAddrs};
use std::process::{Command, Stdio};

/// Addresses of a host; empty for an unknown host.
pub fn addresses_of(host: &str) -> Vec<IpAddr> {
    (host, 0).to_socket_addrs().map(|all| all.map(|a| a.ip().to_canonical()).collect()).unwrap_or_default()
}

/// Names of an address that resolve to the address. Without this check the owner of the address's
/// reverse zone could claim any name.
pub fn names_of(client: IpAddr) -> Vec<String> {
    let answer = getent("hosts", &client.to_string()).unwrap_or_default();
    let mut names = names_in(&answer);
    names.retain(|name| addresses_of(name).contains(&client));
    names
}

/// Hosts of a netgroup. A `None` among them means any host. The result is `None` for an unknown
/// netgroup.
pub fn hosts_of(netgroup: &str) -> Option<Vec<Option<String>>> {
    getent("netgroup", netgroup).map(|answer| hosts_in(&answer))
}

/// The answer of a database about a key, or `None` without one.
fn getent(database: &str, key: &str) -> Option<String> {
    let answer =
        Command::new("getent").args([database, key]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    match answer {
        Ok(answer) if answer.status.success() => String::from_utf8(answer.stdout).ok(),
        Ok(_) => None,
        Err(e) => {
            tracing::warn!("getent, which finds names of clients and netgroups, cannot be run: {e}");
            None
        }
    }
}

/// The names in lines `ADDRESS NAME ALIAS...`.
fn names_in(answer: &str) -> Vec<String> {
    let lines = answer.lines().map(|line| line.split_ascii_whitespace().skip(1));
    let mut names: Vec<String> = lines.flatten().map(str::to_owned).collect();
    names.dedup();
    names
}

/// The hosts in `GROUP (HOST,USER,DOMAIN) ...`. An empty host is any host; `-` is no host.
fn hosts_in(answer: &str) -> Vec<Option<String>> {
    let triples = answer.split('(').skip(1).filter_map(|rest| rest.split([',', ')']).next());
    let hosts = triples.map(str::trim).filter(|host| *host != "-");
    hosts.map(|host| (!host.is_empty()).then(|| host.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_getent_are_read() {
        assert_eq!(names_in("192.0.2.1       one.example.org one\n"), ["one.example.org", "one"]);
        assert_eq!(names_in(""), [""; 0]);
        let host = |name: &str| Some(name.to_owned());
        assert_eq!(
            hosts_in("builders  (one.example.org,-,) (two,root,example.org) (-,me,) ( ,you,)\n"),
            [host("one.example.org"), host("two"), None]
        );
        assert!(hosts_in("empty \n").is_empty());
    }

    #[test]
    fn names_lead_back() {
        let near = IpAddr::from([127, 0, 0, 1]);
        for name in names_of(near) {
            assert!(addresses_of(&name).contains(&near), "{name}");
        }
        assert_eq!(hosts_of("no-such-netgroup-here"), None);
    }
}
