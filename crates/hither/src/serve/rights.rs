//! What clients of `hither serve DIR` may do: the words of exports(5) on the command line, and the addresses they may come from.

use crate::cli::ServeArgs;
use crate::exit::Failure;
use hither_server::access::{Admit, NOBODY, Rights, Squash};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Who may come, and what for.
#[derive(Debug, Clone)]
pub struct Rules {
    rights: Rights,
    /// Nobody named: everybody.
    networks: Vec<Network>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    addr: IpAddr,
    bits: u8,
}

impl Rules {
    /// Reads the command line.
    ///
    /// # Errors
    /// A word that is none, in a line for the user.
    pub fn new(args: &ServeArgs) -> Result<Self, Failure> {
        let near = args.listen.iter().all(|a| a.ip().is_loopback());
        let mut rights = Rights {
            read_only: false,
            // On this machine whoever may use privileged ports is the superuser anyway.
            squash: if near { Squash::None } else { Squash::Root },
            ..Rights::default()
        };
        for word in args.options.iter().flat_map(|o| o.split(',')).filter(|w| !w.is_empty()) {
            option(&mut rights, word)?;
        }
        let networks = args.allow.iter().map(|a| Network::parse(a)).collect::<Result<_, _>>()?;
        Ok(Self { rights, networks })
    }

    /// As the server wants them.
    pub fn admit(&self) -> Arc<Admit> {
        let rules = self.clone();
        Arc::new(move |client| {
            let may = rules.networks.is_empty() || rules.networks.iter().any(|n| n.contains(client));
            may.then(|| rules.rights.clone())
        })
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = &self.rights;
        f.write_str(if r.read_only { "ro" } else { "rw" })?;
        f.write_str(match r.squash {
            Squash::None => ",no_root_squash",
            Squash::Root => ",root_squash",
            Squash::All => ",all_squash",
        })?;
        f.write_str(if r.secure { ",secure" } else { ",insecure" })
    }
}

fn option(rights: &mut Rights, word: &str) -> Result<(), Failure> {
    let id = |text: &str| {
        let id = if text == "-1" { Some(NOBODY) } else { text.parse().ok() };
        id.ok_or_else(|| Failure::usage(format!("option '{word}': a number must follow the =")))
    };
    match word.split_once('=') {
        None => match word {
            "rw" => rights.read_only = false,
            "ro" => rights.read_only = true,
            "root_squash" => rights.squash = Squash::Root,
            "no_root_squash" => rights.squash = Squash::None,
            "all_squash" => rights.squash = Squash::All,
            "no_all_squash" if rights.squash == Squash::All => rights.squash = Squash::Root,
            "no_all_squash" => {}
            "secure" => rights.secure = true,
            "insecure" => rights.secure = false,
            _ => return Err(unknown(word)),
        },
        Some(("anonuid", text)) => rights.anon_uid = id(text)?,
        Some(("anongid", text)) => rights.anon_gid = id(text)?,
        Some(("sec", "sys")) => {}
        Some(("sec", _)) => {
            return Err(Failure::usage(format!("option '{word}': only sec=sys is offered")));
        }
        Some(_) => return Err(unknown(word)),
    }
    Ok(())
}

fn unknown(word: &str) -> Failure {
    Failure::usage(format!(
        "option '{word}' is not known: use rw, ro, root_squash, no_root_squash, all_squash, anonuid=N, anongid=N, \
         secure, insecure"
    ))
}

impl Network {
    fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = || Failure::usage(format!("--allow {text}: an address or ADDRESS/BITS, as 192.0.2.0/24"));
        let (addr, bits) = match text.split_once('/') {
            Some((addr, bits)) => (addr, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        let most = if addr.is_ipv4() { 32 } else { 128 };
        match bits.unwrap_or(most) {
            bits if bits <= most => Ok(Self { addr, bits }),
            _ => Err(wrong()),
        }
    }

    fn contains(&self, client: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u32| {
            let shift = width - u32::from(self.bits);
            a.checked_shr(shift) == b.checked_shr(shift)
        };
        match (self.addr, client) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn rules(args: &[&str]) -> Result<Rules, Failure> {
        let all = [&["hither", "serve"], args, &["/srv"]].concat();
        let Command::Serve(args) = Cli::parse_from(all).command else { panic!("it is serve") };
        Rules::new(&args)
    }

    #[test]
    fn what_is_usual_depends_on_the_address() {
        assert_eq!(rules(&[]).unwrap().to_string(), "rw,no_root_squash,secure");
        assert_eq!(rules(&["-l", "192.0.2.1:2049"]).unwrap().to_string(), "rw,root_squash,secure");
        assert_eq!(
            rules(&["-l", "0.0.0.0:2049", "-o", "ro,insecure"]).unwrap().to_string(),
            "ro,root_squash,insecure"
        );
        assert_eq!(rules(&["-o", "anonuid=5,all_squash"]).unwrap().rights.anon_uid, 5);
        assert!(rules(&["-o", "rot"]).unwrap_err().line.contains("'rot' is not known"));
        assert!(rules(&["-o", "sec=krb5"]).is_err() && rules(&["-o", "anonuid=x"]).is_err());
    }

    #[test]
    fn clients_come_from_where_they_may() {
        let rules =
            rules(&["--allow", "192.0.2.0/24", "--allow", "2001:db8::1", "--allow", "10.0.0.0/0"]).unwrap();
        let may = |a: &str| rules.networks[..2].iter().any(|n| n.contains(a.parse().unwrap()));
        assert!(may("192.0.2.255") && may("2001:db8::1"));
        assert!(!may("192.0.3.0") && !may("2001:db8::2"));
        assert!(rules.admit()("203.0.113.9".parse().unwrap()).is_some());
        assert!(super::Network::parse("192.0.2.0/33").is_err());
    }
}
