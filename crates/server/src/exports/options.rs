//! The options of an export.

use crate::access::{Flavors, NOBODY, Principals, Rights, Squash, Transports};

/// The options read so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub rights: Rights,
    pub fsid: Option<u64>,
    pub crossmnt: bool,
    pub nohide: bool,
}

/// Options without an effect, each with the reason.
const NO_MATTER: &[&str] = &[
    // The server always replies after the change is stable.
    "sync",
    "async",
    "wdelay",
    "no_wdelay",
    // A directory is always checked against the export, a file never. Clients cannot forge handles.
    "subtree_check",
    "no_subtree_check",
    // NLM is not offered.
    "secure_locks",
    "insecure_locks",
    "auth_nlm",
    "no_auth_nlm",
    // The ACL protocol beside NFSv3 is not offered.
    "acl",
    "no_acl",
    // pNFS is not offered.
    "no_pnfs",
    "nopnfs",
];

impl Settings {
    /// Reads `word,word=value`.
    pub fn read(&mut self, text: &str) -> Result<(), String> {
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            match word.split_once('=') {
                Some((key, value)) => self.value(word, key, value)?,
                None => self.word(word)?,
            }
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<(), String> {
        let rights = &mut self.rights;
        match word {
            "ro" => rights.read_only = true,
            "rw" => rights.read_only = false,
            "secure" => rights.secure = true,
            "insecure" => rights.secure = false,
            "root_squash" => rights.squash = Squash::Root,
            "no_root_squash" => rights.squash = Squash::None,
            "all_squash" => rights.squash = Squash::All,
            "no_all_squash" if rights.squash == Squash::All => rights.squash = Squash::Root,
            "no_all_squash" => {}
            "manage_gids" | "manage-gids" => rights.manage_gids = true,
            "crossmnt" => self.crossmnt = true,
            "nohide" => self.nohide = true,
            "hide" => self.nohide = false,
            _ if NO_MATTER.contains(&word) => {}
            _ => return Err(unknown(word)),
        }
        Ok(())
    }

    fn value(&mut self, word: &str, key: &str, value: &str) -> Result<(), String> {
        match key {
            "anonuid" => self.rights.anon_uid = id(word, value)?,
            "anongid" => self.rights.anon_gid = id(word, value)?,
            "fsid" if value == "root" => self.fsid = Some(0),
            "fsid" => self.fsid = Some(fsid(word, value)?),
            "sec" => {
                let known = || format!("'{word}': use sys, krb5, krb5i and krb5p, with : between them");
                self.rights.flavors = Flavors::parse(value).ok_or_else(known)?;
            }
            "principal" => {
                let known = || {
                    format!("'{word}': use principals or patterns such as *@EXAMPLE.ORG, with : between them")
                };
                self.rights.principals = Principals::parse(value).ok_or_else(known)?;
            }
            "xprtsec" => {
                let accepted = Transports::parse(value);
                let known = || format!("'{word}': use none, tls and mtls, with : between them");
                self.rights.transports = accepted.ok_or_else(known)?;
            }
            _ => return Err(unknown(word)),
        }
        Ok(())
    }
}

fn unknown(word: &str) -> String {
    format!(
        "option '{word}' is not known: use ro, rw, root_squash, no_root_squash, all_squash, anonuid=N, anongid=N, secure, \
         insecure, fsid=N, sec=sys:krb5:krb5i:krb5p, principal=PATTERN:PATTERN, xprtsec=none:tls:mtls, crossmnt, nohide, manage-gids"
    )
}

fn id(word: &str, value: &str) -> Result<u32, String> {
    if value == "-1" || value == "-2" {
        return Ok(NOBODY);
    }
    // The highest number means "no change" to the kernel. No user has it.
    let id = value.parse().ok().filter(|&id| id != u32::MAX);
    id.ok_or_else(|| format!("'{word}': a number must follow the ="))
}

/// The number of a file system: a number, or a UUID whose two halves are combined.
fn fsid(word: &str, value: &str) -> Result<u64, String> {
    if let Ok(number) = value.parse::<u32>() {
        return Ok(number.into());
    }
    let hex: String = value.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    let uuid = (hex.len() == 32).then(|| u128::from_str_radix(&hex, 16).ok()).flatten();
    let uuid = uuid.ok_or_else(|| format!("'{word}': a number, a UUID or 'root' must follow the ="))?;
    Ok((uuid >> 64) as u64 ^ uuid as u64)
}
