//! Exports in the syntax of exports(5): directories, their clients and the clients' rights.
//!
//! The module reads no files and asks no name servers. It parses text into [`Exports`]. The caller
//! supplies [`LookUps`]. They return the hosts of a netgroup and the addresses of a host when the
//! exports are read. They return the names of an address when a client calls.
//!
//! A line is a path and clients with options, `/srv 192.0.2.0/24(rw,no_root_squash)
//! *.example.org(ro)`. `-ro,insecure` before clients sets their defaults. A backslash continues a
//! line, `#` begins a comment, `"..."` and `\040` quote. Of the clients that match an address, the
//! most specific one decides, independent of the order. The subject of a certificate comes first. A
//! host comes before a network and a smaller network before a larger one. Networks come before
//! patterns, patterns before netgroups, and netgroups before everybody. An unknown word is an error
//! with file and line. An export with unintended rights would be worse than no export.

mod options;
#[cfg(test)]
mod tests;
mod words;

use crate::access::{Admit, Asker, Rights};
use crate::pattern::matches_pattern;
use options::Settings;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Largest text of exports, in bytes.
pub const TEXT_MAX_BYTES: usize = 4 << 20;

/// All exports of one or more texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exports {
    /// One entry for each path, in the order of first mention.
    pub entries: Vec<Entry>,
}

/// One exported directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Absolute path, as bytes.
    pub path: Vec<u8>,
    /// The line that first mentions the directory.
    pub at: SourceLine,
    /// `fsid=`: the number of the file system for clients; 0 for `root`.
    pub fsid: Option<u64>,
    /// `crossmnt`: file systems mounted inside the directory are exported as well.
    pub crossmnt: bool,
    /// `nohide`: NFSv3 clients can cross into it from an export around it.
    pub nohide: bool,
    /// The clients that may use it.
    pub clients: Vec<Client>,
}

/// A set of clients and their rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The clients.
    pub who: Who,
    /// Their rights.
    pub rights: Rights,
    /// The line that names them.
    pub at: SourceLine,
    /// The word when it has options and no client, `(rw)`. Such a word admits everybody. Often a
    /// stray blank has separated the options from a client.
    pub alone: Option<String>,
}

/// A set of clients, as the text names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// `*`, or no client named.
    Everybody,
    /// `@NAME`: the hosts of a netgroup (netgroup(5)).
    Netgroup(String),
    /// A host name with `*`, `?` or `[...]`, compared without regard to case.
    Pattern(String),
    /// A network.
    Network(Network),
    /// A host by name.
    Host(String),
    /// A host by address.
    Address(IpAddr),
    /// `subject:NAME`: clients with a valid certificate that has this name (mutual TLS).
    Subject(String),
}

/// A network: all addresses with the same first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// An address of the network.
    pub addr: IpAddr,
    /// Number of bits that agree.
    pub bits: u8,
}

/// A line of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine {
    /// Name of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: usize,
}

/// A fault of a text, and its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct ExportsError {
    /// The line.
    pub at: SourceLine,
    /// The fault, and its remedy.
    pub what: String,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Addresses of a host. Empty: the host is unknown. May block: called when the exports are read.
pub type AddressesOf<'a> = dyn Fn(&str) -> Vec<IpAddr> + 'a;

/// Hosts of a netgroup. A `None` in the list stands for any host. `None`: the netgroup is unknown.
/// May block: called when the exports are read.
pub type HostsOf<'a> = dyn Fn(&str) -> Option<Vec<Option<String>>> + 'a;

/// Names of an address. Must not block.
pub type NamesOf = dyn Fn(IpAddr) -> Vec<String> + Send + Sync;

/// The look-ups of hosts that exports need.
pub struct LookUps<'a> {
    /// Addresses of a host.
    pub addresses_of: &'a AddressesOf<'a>,
    /// Hosts of a netgroup.
    pub hosts_of: &'a HostsOf<'a>,
    /// Names of an address.
    pub names_of: Arc<NamesOf>,
}

impl Exports {
    /// Adds the exports of a text. Messages name the text `file`.
    ///
    /// # Errors
    /// The first fault. No export of the text is added then.
    pub fn add(&mut self, file: &str, text: &[u8]) -> Result<(), ExportsError> {
        let mut all = self.clone();
        match all.add_what_is_right(file, text).into_iter().next() {
            Some(wrong) => Err(wrong),
            None => {
                *self = all;
                Ok(())
            }
        }
    }

    /// Adds the exports of those lines that are right. Returns the faults of the other lines, in
    /// their order.
    pub fn add_what_is_right(&mut self, file: &str, text: &[u8]) -> Vec<ExportsError> {
        let wrong = |line, what| ExportsError { at: SourceLine { file: file.to_string(), line }, what };
        if text.len() > TEXT_MAX_BYTES {
            return vec![wrong(1, format!("more than {TEXT_MAX_BYTES} bytes"))];
        }
        let mut found = Vec::new();
        for (line, words) in words::lines(text) {
            let at = SourceLine { file: file.to_string(), line };
            let added = words.and_then(|words| match words.split_first() {
                Some((path, clients)) => add_line(&mut self.entries, path, clients, at),
                None => Ok(()),
            });
            found.extend(added.err().map(|what| wrong(line, what)));
        }
        found
    }
}

fn add_line(
    entries: &mut Vec<Entry>,
    path: &words::Word,
    clients: &[words::Word],
    at: SourceLine,
) -> Result<(), String> {
    let path = clean_path(&path.text)?;
    let known = entries.iter().position(|e| e.path == path);
    let mut entry = match known {
        Some(i) => entries[i].clone(),
        None => {
            Entry { path, at: at.clone(), fsid: None, crossmnt: false, nohide: false, clients: Vec::new() }
        }
    };
    let mut defaults = Settings::default();
    let mut any = false;
    for word in clients {
        let text = word.utf8()?;
        if let Some(options) = text.strip_prefix('-') {
            defaults = Settings::default();
            defaults.read(options)?;
            continue;
        }
        any = true;
        add_client(&mut entry, text, &defaults, &at)?;
    }
    if !any {
        add_client(&mut entry, "*", &defaults, &at)?;
    }
    match known {
        Some(i) => entries[i] = entry,
        None => entries.push(entry),
    }
    Ok(())
}

fn add_client(entry: &mut Entry, text: &str, defaults: &Settings, at: &SourceLine) -> Result<(), String> {
    let (who, options) = match text.split_once('(') {
        Some((who, rest)) => {
            let options = rest.strip_suffix(')').ok_or_else(|| format!("'{text}': the ) is missing"))?;
            (who, options)
        }
        None => (text, ""),
    };
    let who = who_of(who)?;
    let mut settings = defaults.clone();
    settings.read(options)?;
    if entry.clients.iter().any(|c| c.who == who) {
        return Err(format!("'{text}': these clients have rights to this directory already"));
    }
    match (entry.fsid, settings.fsid) {
        (Some(a), Some(b)) if a != b => return Err(format!("fsid={b}: the directory has fsid={a} already")),
        (None, Some(fsid)) => entry.fsid = Some(fsid),
        _ => {}
    }
    entry.crossmnt |= settings.crossmnt;
    entry.nohide |= settings.nohide;
    let alone = text.starts_with('(').then(|| text.to_string());
    entry.clients.push(Client { who, rights: settings.rights, at: at.clone(), alone });
    Ok(())
}

/// An absolute path without `.`, `..` and double slashes.
fn clean_path(path: &[u8]) -> Result<Vec<u8>, String> {
    let shown = path.escape_ascii();
    if path.first() != Some(&b'/') {
        return Err(format!("'{shown}': a path from / is needed"));
    }
    if path.contains(&0) || path.split(|&b| b == b'/').any(|part| part == b"." || part == b"..") {
        return Err(format!("'{shown}': write the path without . and .."));
    }
    let mut clean = Vec::with_capacity(path.len());
    for part in path.split(|&b| b == b'/').filter(|part| !part.is_empty()) {
        clean.push(b'/');
        clean.extend_from_slice(part);
    }
    if clean.is_empty() {
        clean.push(b'/');
    }
    Ok(clean)
}

fn who_of(text: &str) -> Result<Who, String> {
    if text.is_empty() || text == "*" {
        return Ok(Who::Everybody);
    }
    if let Some(netgroup) = text.strip_prefix('@') {
        return match netgroup {
            "" => Err("'@': the name of a netgroup must follow".into()),
            name => Ok(Who::Netgroup(name.to_string())),
        };
    }
    if let Some(subject) = text.strip_prefix("subject:") {
        return match subject {
            "" => Err("'subject:': a name in client certificates must follow".into()),
            name => Ok(Who::Subject(name.to_string())),
        };
    }
    if text.starts_with("gss/") {
        return Err(format!("'{text}': name the flavors with an option, as in *(sec=krb5)"));
    }
    if let Some((addr, mask)) = text.split_once('/') {
        return Network::parse(addr, mask).map(Who::Network);
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(addr) = bare.parse::<IpAddr>() {
        return Ok(Who::Address(addr.to_canonical()));
    }
    if text.contains(['*', '?', '[']) {
        return Ok(Who::Pattern(text.to_ascii_lowercase()));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if text.chars().all(fits) {
        return Ok(Who::Host(text.to_ascii_lowercase()));
    }
    Err(format!("'{text}': neither host, nor network, nor pattern"))
}

impl Network {
    /// Parses a network. `mask` is a number of bits or a netmask.
    fn parse(addr: &str, mask: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("'{addr}/{mask}': {why}");
        let bare = addr.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(addr);
        let addr: IpAddr = bare.parse().map_err(|_| wrong("the part before / is no address"))?;
        let width = if addr.is_ipv4() { 32 } else { 128 };
        let bits = match mask.parse::<u8>() {
            Ok(bits) => bits,
            Err(_) => {
                let mask: IpAddr = mask.parse().map_err(|_| wrong("the part after / is no netmask"))?;
                let (raw, its_width) = raw(mask);
                let bits = (raw << (128 - its_width)).leading_ones();
                let clean = bits >= its_width || raw << (128 - its_width + bits) == 0;
                if its_width != u32::from(width) || !clean {
                    return Err(wrong("the part after / is no netmask"));
                }
                bits as u8
            }
        };
        if bits > width { Err(wrong("more bits than an address has")) } else { Ok(Self { addr, bits }) }
    }

    /// Whether an address is in the network.
    pub fn contains(&self, client: IpAddr) -> bool {
        let ((ours, width), (theirs, its_width)) = (raw(self.addr), raw(client));
        let shift = width - u32::from(self.bits);
        width == its_width && ours.checked_shr(shift) == theirs.checked_shr(shift)
    }
}

/// An address as a number, and its width in bits.
fn raw(addr: IpAddr) -> (u128, u32) {
    match addr {
        IpAddr::V4(a) => (a.to_bits().into(), 32),
        IpAddr::V6(a) => (a.to_bits(), 128),
    }
}

impl Entry {
    /// The function that admits clients, for [`ExportSpec`](crate::table::ExportSpec), and the
    /// unknown hosts and netgroups. Unknown hosts and netgroups are not admitted; the caller warns
    /// of them.
    pub fn admit(&self, look_ups: &LookUps<'_>) -> (Arc<Admit>, Vec<String>) {
        let mut ready = Ready { names_of: look_ups.names_of.clone(), ..Ready::new() };
        let mut unknown = Vec::new();
        let mut addresses = |name: &str| {
            let found = (look_ups.addresses_of)(name);
            if found.is_empty() {
                unknown.push(name.to_string());
            }
            found.into_iter().map(|addr| addr.to_canonical())
        };
        let mut no_groups = Vec::new();
        for client in &self.clients {
            let rights = client.rights.clone();
            match &client.who {
                Who::Everybody => ready.everybody = Some(rights),
                Who::Pattern(pattern) => ready.patterns.push((pattern.clone(), rights)),
                Who::Subject(name) => ready.subjects.push((name.clone(), rights)),
                Who::Network(network) => ready.networks.push((*network, rights)),
                // An address in the text takes precedence over an address of a named host.
                Who::Address(addr) => drop(ready.hosts.insert(*addr, rights)),
                Who::Host(name) => {
                    for addr in addresses(name) {
                        ready.hosts.entry(addr).or_insert_with(|| rights.clone());
                    }
                }
                Who::Netgroup(name) => match (look_ups.hosts_of)(name) {
                    Some(hosts) => {
                        let any = hosts.contains(&None);
                        let members = hosts.iter().flatten().flat_map(|host| addresses(host)).collect();
                        ready.netgroups.push(Netgroup { any, members, rights });
                    }
                    None => no_groups.push(format!("@{name}")),
                },
            }
        }
        unknown.extend(no_groups);
        ready.networks.sort_by_key(|(network, _)| std::cmp::Reverse(network.bits));
        (Arc::new(move |client: &Asker<'_>| ready.rights(client)), unknown)
    }

    /// Whether the rights of a client depend on its name.
    pub fn needs_names(&self) -> bool {
        self.clients.iter().any(|client| matches!(client.who, Who::Pattern(_)))
    }
}

/// A netgroup with its hosts resolved.
struct Netgroup {
    /// All hosts are members.
    any: bool,
    members: HashSet<IpAddr>,
    rights: Rights,
}

/// Clients of an entry with all names resolved.
struct Ready {
    /// Names in client certificates, in the order of the text.
    subjects: Vec<(String, Rights)>,
    hosts: HashMap<IpAddr, Rights>,
    /// The smallest network first.
    networks: Vec<(Network, Rights)>,
    patterns: Vec<(String, Rights)>,
    netgroups: Vec<Netgroup>,
    everybody: Option<Rights>,
    names_of: Arc<NamesOf>,
}

impl Ready {
    fn new() -> Self {
        let names_of: Arc<NamesOf> = Arc::new(|_| Vec::new());
        Self {
            subjects: Vec::new(),
            hosts: HashMap::new(),
            networks: Vec::new(),
            patterns: Vec::new(),
            netgroups: Vec::new(),
            everybody: None,
            names_of,
        }
    }

    fn rights(&self, asker: &Asker<'_>) -> Option<Rights> {
        if let Some((_, rights)) = self.subjects.iter().find(|(name, _)| asker.subjects.contains(name)) {
            return Some(rights.clone());
        }
        let client = asker.addr;
        if let Some(rights) = self.hosts.get(&client) {
            return Some(rights.clone());
        }
        if let Some((_, rights)) = self.networks.iter().find(|(network, _)| network.contains(client)) {
            return Some(rights.clone());
        }
        if !self.patterns.is_empty() {
            let names = (self.names_of)(client);
            let fits = |pattern: &str| {
                names.iter().any(|n| matches_pattern(pattern.as_bytes(), n.to_ascii_lowercase().as_bytes()))
            };
            if let Some((_, rights)) = self.patterns.iter().find(|(pattern, _)| fits(pattern)) {
                return Some(rights.clone());
            }
        }
        let is_in = |group: &&Netgroup| group.any || group.members.contains(&client);
        if let Some(group) = self.netgroups.iter().find(is_in) {
            return Some(group.rights.clone());
        }
        self.everybody.clone()
    }
}
