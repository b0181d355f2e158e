//! `SERVER:/PATH`: its syntax, and the addresses of the host.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// The address family for the server (`proto=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `tcp`.
    V4,
    /// `tcp6`.
    V6,
}

/// A mount's source as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Host name or literal address, IPv6 without brackets.
    pub host: String,
    /// Exported path, absolute.
    pub path: String,
}

/// Why a host has no usable address.
#[derive(Debug, PartialEq, Eq)]
pub enum NoAddress {
    /// The name service answered that the name or the address family does not exist.
    Never(String),
    /// The name service did not answer. A later attempt may succeed.
    Now(String),
}

impl Source {
    /// Parses `host:/path` and `[v6]:/path`.
    ///
    /// # Errors
    /// One line that names the fault and the correct form.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with("nfs://") {
            return Err(format!("'{text}' is a URL: write SERVER:/PATH"));
        }
        let (host, path) = if let Some(rest) = text.strip_prefix('[') {
            let (host, path) = rest.split_once("]:").ok_or_else(|| {
                format!("'{text}' lacks the ']:' after the IPv6 address: write [ADDRESS]:/PATH")
            })?;
            if host.split('%').next().unwrap_or_default().parse::<std::net::Ipv6Addr>().is_err() {
                return Err(format!("'{host}' in brackets is not an IPv6 address"));
            }
            (host, path)
        } else {
            let (host, path) = text.split_once(':').ok_or_else(|| {
                format!("'{text}' names no server: write SERVER:/PATH, for example files.example.org:/export")
            })?;
            if path.contains(':') && !path.starts_with('/') {
                return Err(format!(
                    "'{text}' looks like an IPv6 address: write it in brackets, [ADDRESS]:/PATH"
                ));
            }
            (host, path)
        };
        if host.is_empty() {
            return Err(format!("'{text}' names no server before the ':': write SERVER:/PATH"));
        }
        if host.contains(',') {
            return Err(format!("'{host}' names several servers: give one"));
        }
        if host.contains('/') || host.contains(char::is_whitespace) {
            return Err(format!("'{host}' is not the name of a host: write SERVER:/PATH"));
        }
        if !path.starts_with('/') {
            return Err(format!("the exported path '{path}' is not absolute: write {host}:/{path}"));
        }
        if path.contains('\0') || path.len() > 1024 {
            return Err("the exported path is longer than 1024 bytes or has a NUL byte in it".into());
        }
        Ok(Self { host: host.to_string(), path: path.to_string() })
    }

    /// The source as `mount` and `findmnt` show it.
    pub fn shown(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.path)
        } else {
            format!("{}:{}", self.host, self.path)
        }
    }

    /// Whether both name the same directory of the same host, according to the name service.
    /// Blocks.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let path = |source: &Self| source.path.trim_end_matches('/').to_string();
        let addresses = |source: &Self| source.resolve(None).unwrap_or_default();
        path(self) == path(other)
            && (self.host == other.host || {
                let ours = addresses(self);
                addresses(other).iter().any(|theirs| ours.contains(theirs))
            })
    }

    /// The host's addresses with port 0, in the order of the name service. Blocks.
    pub fn resolve(&self, family: Option<Family>) -> Result<Vec<SocketAddr>, NoAddress> {
        let host = &self.host;
        let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, 0)],
            Err(_) => match (host.as_str(), 0).to_socket_addrs() {
                Ok(addrs) => addrs.collect(),
                Err(e) if e.to_string().contains("Temporary failure") => {
                    return Err(NoAddress::Now(format!(
                        "cannot look up host '{host}': the name service does not answer"
                    )));
                }
                Err(_) => return Err(NoAddress::Never(format!("no such host '{host}'"))),
            },
        };
        let mut fitting: Vec<SocketAddr> = Vec::new();
        for addr in found {
            let fits = match family {
                None => true,
                Some(Family::V4) => addr.is_ipv4(),
                Some(Family::V6) => addr.is_ipv6(),
            };
            if fits && !fitting.contains(&addr) {
                fitting.push(addr);
            }
        }
        if fitting.is_empty() {
            let (has, other) = match family {
                Some(Family::V6) => ("IPv6", "proto=tcp"),
                _ => ("IPv4", "proto=tcp6"),
            };
            return Err(NoAddress::Never(format!("host '{host}' has no {has} address: use {other}")));
        }
        Ok(fitting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read() {
        for (text, host, path) in [
            ("server:/export", "server", "/export"),
            ("10.0.0.1:/", "10.0.0.1", "/"),
            ("[fe80::1%eth0]:/a b", "fe80::1%eth0", "/a b"),
            ("[::1]:/x:y", "::1", "/x:y"),
            ("s:/x:y", "s", "/x:y"),
        ] {
            let source = Source::parse(text).unwrap();
            assert_eq!((source.host.as_str(), source.path.as_str()), (host, path));
            assert_eq!(source.shown(), text);
        }
    }

    #[test]
    fn wrong_sources_name_correct_form() {
        for (text, part) in [
            ("/export", "names no server: write SERVER:/PATH"),
            ("server", "names no server"),
            ("server:export", "not absolute: write server:/export"),
            (":/export", "names no server before"),
            ("fe80::1:/export", "write it in brackets"),
            ("[fe80::1:/export", "lacks the ']:'"),
            ("[server]:/export", "is not an IPv6 address"),
            ("a,b:/export", "several servers"),
            ("nfs://server/export", "is a URL"),
            ("./dir:/x", "is not the name of a host"),
        ] {
            let line = Source::parse(text).unwrap_err();
            assert!(line.contains(part), "{text}: {line}");
        }
    }

    #[test]
    fn literal_addresses_need_no_name_service() {
        let v6 = Source::parse("[::1]:/").unwrap();
        assert_eq!(v6.resolve(None).unwrap(), ["[::1]:0".parse().unwrap()]);
        let line = "host '::1' has no IPv4 address: use proto=tcp6".to_string();
        assert_eq!(v6.resolve(Some(Family::V4)), Err(NoAddress::Never(line)));
    }
}
