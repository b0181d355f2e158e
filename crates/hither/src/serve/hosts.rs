//! Hosts by name, as this machine knows them: addresses, names of addresses, members of netgroups.
//!
//! All of it blocks. Addresses come from the resolver of the C library. Names and netgroups are
//! asked of getent(1), which knows the same sources (nsswitch.conf(5)).

use std::net::{IpAddr, ToSocketAddrs};
use std::process::{Command, Stdio};

/// Addresses of a host; none: unknown.
pub fn addresses_of(host: &str) -> Vec<IpAddr> {
    (host, 0).to_socket_addrs().map(|all| all.map(|a| a.ip().to_canonical()).collect()).unwrap_or_default()
}

/// Names of an address that lead back to it: the owner of the address's reverse zone could
/// otherwise claim any name.
pub fn names_of(client: IpAddr) -> Vec<String> {
    let answer = getent("hosts", &client.to_string()).unwrap_or_default();
    let mut names = names_in(&answer);
    names.retain(|name| addresses_of(name).contains(&client));
    names
}

/// Hosts of a netgroup, `None` among them for any host; `None`: unknown.
pub fn hosts_of(netgroup: &str) -> Option<Vec<Option<String>>> {
    getent("netgroup", netgroup).map(|answer| hosts_in(&answer))
}

/// The answer of a database about a key; `None`: it has none.
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

/// `ADDRESS NAME ALIAS...`, line by line.
fn names_in(answer: &str) -> Vec<String> {
    let lines = answer.lines().map(|line| line.split_ascii_whitespace().skip(1));
    let mut names: Vec<String> = lines.flatten().map(str::to_owned).collect();
    names.dedup();
    names
}

/// `GROUP (HOST,USER,DOMAIN) ...`. An empty host is any host, `-` is none.
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
