//! The action of each option on [`Wanted`]: one function for each option, which checks its value.
//!
//! An error is the part of the message after `option 'name=value': `.

use super::{Consistency, Family, Versions, Wanted};
use hither_cache::data::Fill;
use hither_cache::policy::Policy;
use hither_nfs::{LookupCache, Recovery, Version};
use hither_tools::units::size;
use rustix::mount::MountFlags;
use std::str::FromStr;
use std::time::Duration;

type Done = Result<(), String>;

/// A number between bounds, both inclusive.
fn number<T: FromStr + PartialOrd + std::fmt::Display>(value: &str, low: T, high: T) -> Result<T, String> {
    match value.parse::<T>() {
        Ok(n) if n >= low && n <= high => Ok(n),
        _ => Err(format!("expected a whole number from {low} to {high}")),
    }
}

/// The message about a version that hither does not support.
pub fn version_refused(version: &str) -> String {
    match version {
        "2" => "NFSv2 is not supported: use vers=3, or leave vers out to negotiate".into(),
        "4.0" => "NFSv4.0 is not supported: use vers=4.1 or vers=4.2".into(),
        other => format!("there is no NFS version {other} here: use 3, 4.1 or 4.2"),
    }
}

pub fn vers(w: &mut Wanted, value: &str) -> Done {
    w.versions = match value {
        "nqnfs" => Versions::Only(Version::Nqnfs),
        "3" => Versions::Only(Version::V3),
        "4" => Versions::Any4,
        "4.1" => Versions::Only(Version::V41),
        "4.2" => Versions::Only(Version::V42),
        other => return Err(version_refused(other)),
    };
    Ok(())
}

pub fn minorversion(w: &mut Wanted, value: &str) -> Done {
    w.minor = Some(number(value, 0, 9)?);
    Ok(())
}

pub fn proto(w: &mut Wanted, value: &str) -> Done {
    w.family = Some(match value {
        "tcp" => Family::V4,
        "tcp6" => Family::V6,
        "udp" | "udp6" => return Err("NFS over UDP is not supported: use proto=tcp".into()),
        "rdma" | "rdma6" => return Err("NFS over RDMA is not supported: use proto=tcp".into()),
        _ => return Err("expected tcp or tcp6".into()),
    });
    Ok(())
}

pub fn mountproto(_: &mut Wanted, value: &str) -> Done {
    match value {
        "tcp" | "tcp6" => Ok(()),
        "udp" | "udp6" => Err("the MOUNT protocol is spoken over TCP only: use mountproto=tcp".into()),
        _ => Err("expected tcp".into()),
    }
}

pub fn mountvers(_: &mut Wanted, value: &str) -> Done {
    if value == "3" { Ok(()) } else { Err("only MOUNT version 3 is spoken: use mountvers=3".into()) }
}

pub fn port(w: &mut Wanted, value: &str) -> Done {
    // In nfs(5), 0 means "query rpcbind".
    w.port = Some(number(value, 0, u16::MAX)?).filter(|&port| port != 0);
    Ok(())
}

pub fn mountport(w: &mut Wanted, value: &str) -> Done {
    w.mount_port = Some(number(value, 0, u16::MAX)?).filter(|&port| port != 0);
    Ok(())
}

pub fn sec(w: &mut Wanted, value: &str) -> Done {
    let mut flavors = Vec::new();
    for name in value.split(':') {
        match (name.parse(), name) {
            (Ok(flavor), _) => flavors.push(flavor),
            // A list may contain flavors that are not supported (nfs(5)).
            (Err(()), "none") => {}
            (Err(()), _) => {
                return Err(format!("unknown flavor '{name}', expected sys, krb5, krb5i or krb5p"));
            }
        }
    }
    if flavors.is_empty() {
        return Err("anonymous access is not supported: use sec=sys".into());
    }
    w.flavors = flavors;
    Ok(())
}

pub fn hard(w: &mut Wanted, _: &str) -> Done {
    w.recovery = Recovery::Hard;
    Ok(())
}

pub fn soft(w: &mut Wanted, _: &str) -> Done {
    w.recovery = Recovery::Soft;
    Ok(())
}

pub fn softerr(w: &mut Wanted, _: &str) -> Done {
    w.recovery = Recovery::Softerr;
    Ok(())
}

pub fn timeo(w: &mut Wanted, value: &str) -> Done {
    let tenths: u64 = number(value, 1, 6000).map_err(|why| format!("{why} tenths of a second"))?;
    w.timeo = Duration::from_millis(tenths * 100);
    Ok(())
}

pub fn retrans(w: &mut Wanted, value: &str) -> Done {
    w.retrans = number(value, 0, 1000)?;
    Ok(())
}

pub fn nconnect(w: &mut Wanted, value: &str) -> Done {
    w.nconnect = number(value, 1, 16)?;
    Ok(())
}

pub fn max_connect(_: &mut Wanted, value: &str) -> Done {
    number(value, 1, 16).map(drop)
}

pub fn resvport(w: &mut Wanted, _: &str) -> Done {
    w.resvport = true;
    Ok(())
}

pub fn noresvport(w: &mut Wanted, _: &str) -> Done {
    w.resvport = false;
    Ok(())
}

/// nfs(5): a value below 1024 becomes 4096, one above 1 MiB becomes 1 MiB, others are rounded down
/// to a multiple of 1024.
fn transfer_size(value: &str) -> Result<Option<u32>, String> {
    let bytes: u64 = value.parse().map_err(|_| "expected a number of bytes".to_string())?;
    Ok(match bytes {
        0 => None,
        1..1024 => Some(4096),
        _ => Some(bytes.min(1 << 20) as u32 & !1023),
    })
}

pub fn rsize(w: &mut Wanted, value: &str) -> Done {
    w.rsize_bytes = transfer_size(value)?;
    Ok(())
}

pub fn wsize(w: &mut Wanted, value: &str) -> Done {
    w.wsize_bytes = transfer_size(value)?;
    Ok(())
}

/// Parses a time of the attribute cache. It is recorded because it contradicts `noac`.
fn seconds(w: &mut Wanted, name: &str, value: &str) -> Result<Duration, String> {
    let secs = number(value, 0, i32::MAX as u64).map_err(|_| "expected a number of seconds".to_string())?;
    w.times.push(format!("{name}={value}"));
    Ok(Duration::from_secs(secs))
}

pub fn acregmin(w: &mut Wanted, value: &str) -> Done {
    w.attr_cache.regular_min = seconds(w, "acregmin", value)?;
    Ok(())
}

pub fn acregmax(w: &mut Wanted, value: &str) -> Done {
    w.attr_cache.regular_max = seconds(w, "acregmax", value)?;
    Ok(())
}

pub fn acdirmin(w: &mut Wanted, value: &str) -> Done {
    w.attr_cache.directory_min = seconds(w, "acdirmin", value)?;
    Ok(())
}

pub fn acdirmax(w: &mut Wanted, value: &str) -> Done {
    w.attr_cache.directory_max = seconds(w, "acdirmax", value)?;
    Ok(())
}

pub fn actimeo(w: &mut Wanted, value: &str) -> Done {
    let all = seconds(w, "actimeo", value)?;
    w.attr_cache = hither_nfs::AttrCache {
        regular_min: all,
        regular_max: all,
        directory_min: all,
        directory_max: all,
        ..w.attr_cache
    };
    Ok(())
}

pub fn ac(w: &mut Wanted, _: &str) -> Done {
    w.noac = false;
    Ok(())
}

pub fn noac(w: &mut Wanted, _: &str) -> Done {
    w.noac = true;
    Ok(())
}

pub fn lookupcache(w: &mut Wanted, value: &str) -> Done {
    w.lookup_cache = match value {
        "all" => LookupCache::All,
        "pos" | "positive" => LookupCache::Positive,
        "none" => LookupCache::None,
        _ => return Err("expected all, pos or none".into()),
    };
    Ok(())
}

pub fn cto(w: &mut Wanted, _: &str) -> Done {
    w.close_to_open = true;
    Ok(())
}

pub fn nocto(w: &mut Wanted, _: &str) -> Done {
    w.close_to_open = false;
    Ok(())
}

pub fn acnegmax(w: &mut Wanted, value: &str) -> Done {
    let secs = number(value, 0, i32::MAX as u64).map_err(|_| "expected a number of seconds".to_string())?;
    w.absent_max = Some(Duration::from_secs(secs));
    w.attr_cache.negative_max = Duration::from_secs(secs);
    Ok(())
}

pub fn consistency(w: &mut Wanted, value: &str) -> Done {
    w.consistency = Some(mode(value)?);
    Ok(())
}

pub fn subtree(w: &mut Wanted, value: &str) -> Done {
    super::subtrees::take(w, value)
}

/// The value of `consistency=`, and the mode of a subtree.
pub fn mode(value: &str) -> Result<Consistency, String> {
    let expected = || "expected close-to-open, bounded=SECONDS, frozen or strict".to_string();
    Ok(match value {
        "close-to-open" | "cto" => Consistency::CloseToOpen,
        "frozen" => Consistency::Frozen,
        "strict" => Consistency::Strict,
        other => {
            let secs = other.strip_prefix("bounded=").ok_or_else(expected)?;
            Consistency::Bounded(Duration::from_secs(
                number(secs, 0, i32::MAX as u64).map_err(|_| expected())?,
            ))
        }
    })
}

pub fn chain(w: &mut Wanted, _: &str) -> Done {
    w.chains = true;
    Ok(())
}

pub fn nochain(w: &mut Wanted, _: &str) -> Done {
    w.chains = false;
    Ok(())
}

pub fn chain_max(w: &mut Wanted, value: &str) -> Done {
    w.chain_max = Some(number(value, 1, 1000)?);
    Ok(())
}

pub fn prefetch(w: &mut Wanted, value: &str) -> Done {
    w.prefetch = match value {
        "off" => false,
        "small" => true,
        _ => return Err("expected off or small".into()),
    };
    Ok(())
}

pub fn meta_cache_size(w: &mut Wanted, value: &str) -> Done {
    w.meta_cache_bytes = size(value, 1 << 20, 1 << 40)?;
    Ok(())
}

/// The default directory of the cache.
pub const CACHE_DIR: &str = "/var/cache/hither";

/// The default directory of journals. Unlike a cache, its files are not deleted to make room.
pub const JOURNAL_DIR: &str = "/var/lib/hither";

pub fn cache(w: &mut Wanted, value: &str) -> Done {
    let dir = if value.is_empty() { CACHE_DIR } else { value };
    if !dir.starts_with('/') {
        return Err("expected an absolute path".into());
    }
    w.cache.dir = Some(dir.into());
    Ok(())
}

pub fn fsc(w: &mut Wanted, _: &str) -> Done {
    cache(w, "")
}

pub fn nocache(w: &mut Wanted, _: &str) -> Done {
    w.cache.dir = None;
    Ok(())
}

pub fn cache_size(w: &mut Wanted, value: &str) -> Done {
    w.cache.size_bytes = size(value, 1 << 20, 1 << 50)?;
    w.cache.detail("cache-size")
}

pub fn cache_dir_size(w: &mut Wanted, value: &str) -> Done {
    w.cache.dir_size_bytes = Some(size(value, 1 << 20, 1 << 50)?);
    w.cache.detail("cache-dir-size")
}

pub fn cache_soft(w: &mut Wanted, value: &str) -> Done {
    w.cache.soft_percent = number(value, 1, 100).map_err(|why| format!("{why} percent"))?;
    w.cache.detail("cache-soft")
}

pub fn cache_policy(w: &mut Wanted, value: &str) -> Done {
    w.cache.policy = Policy::of(value).ok_or("expected lru, s3-fifo or gdsf")?;
    w.cache.detail("cache-policy")
}

pub fn cache_min_free(w: &mut Wanted, value: &str) -> Done {
    w.cache.min_free_bytes = size(value, 0, 1 << 50)?;
    w.cache.detail("cache-min-free")
}

pub fn cache_min_file(w: &mut Wanted, value: &str) -> Done {
    w.cache.min_file_bytes = size(value, 0, 1 << 50)?;
    w.cache.detail("cache-min-file")
}

pub fn cache_max_file(w: &mut Wanted, value: &str) -> Done {
    w.cache.max_file_bytes = Some(size(value, 0, 1 << 50)?);
    w.cache.detail("cache-max-file")
}

pub fn cache_age(w: &mut Wanted, value: &str) -> Done {
    w.cache.age = Duration::from_secs(number(value, 0, 86400).map_err(|why| format!("{why} seconds"))?);
    w.cache.detail("cache-age")
}

pub fn fill(w: &mut Wanted, value: &str) -> Done {
    w.cache.fill = match value {
        "off" => Fill::Off,
        "idle" => Fill::Idle,
        rate => {
            let bytes = rate.strip_suffix("/s").and_then(|bytes| size(bytes, 1 << 10, 1 << 40).ok());
            Fill::Rate(bytes.ok_or("expected off, idle, or a rate such as 10M/s, from 1K/s on")?)
        }
    };
    w.cache.detail("fill")
}

pub fn cache_read_only(w: &mut Wanted, _: &str) -> Done {
    w.cache.read_only = true;
    w.cache.detail("cache-read-only")
}

pub fn dirty_max(w: &mut Wanted, value: &str) -> Done {
    w.dirty_max_bytes = size(value, 1 << 20, 1 << 36)?;
    Ok(())
}

pub fn dirty_age(w: &mut Wanted, value: &str) -> Done {
    w.dirty_age = Duration::from_secs(number(value, 0, 3600).map_err(|why| format!("{why} seconds"))?);
    Ok(())
}

/// Sets the options `close`, `writeback`, `exclusive` and `creates` together.
pub fn durability(w: &mut Wanted, value: &str) -> Done {
    if !["server", "delegated", "lazy", "local", "local-names"].contains(&value) {
        return Err("expected server, delegated, lazy, local or local-names".into());
    }
    w.lazy_close = value == "lazy";
    w.delegated_close = value == "delegated";
    w.creates_here = value == "local-names";
    w.exclusive = value == "local" || w.creates_here;
    if w.exclusive {
        w.journal.get_or_insert_with(|| JOURNAL_DIR.into());
    }
    Ok(())
}

pub fn close(w: &mut Wanted, value: &str) -> Done {
    (w.lazy_close, w.delegated_close) = match value {
        "wait" => (false, false),
        "delegated" => (false, true),
        "lazy" => (true, false),
        _ => return Err("expected 'close=wait', 'close=delegated' or 'close=lazy'".into()),
    };
    Ok(())
}

pub fn writeback(w: &mut Wanted, value: &str) -> Done {
    w.journal = match value {
        "memory" => None,
        "journal" => Some(JOURNAL_DIR.into()),
        _ => return Err("expected 'writeback=memory' or 'writeback=journal'".into()),
    };
    Ok(())
}

pub fn journal_dir(w: &mut Wanted, value: &str) -> Done {
    if !value.starts_with('/') {
        return Err("expected an absolute path".into());
    }
    w.journal_dir = Some(value.into());
    Ok(())
}

pub fn creates(w: &mut Wanted, value: &str) -> Done {
    w.creates_here = match value {
        "server" => false,
        "here" => true,
        _ => return Err("expected 'creates=server' or 'creates=here'".into()),
    };
    Ok(())
}

pub fn exclusive(w: &mut Wanted, _: &str) -> Done {
    w.exclusive = true;
    Ok(())
}

pub fn rdirplus(w: &mut Wanted, value: &str) -> Done {
    w.readdirplus = match value {
        "" | "force" => true,
        "none" => false,
        _ => return Err("expected 'rdirplus', 'rdirplus=force' or 'rdirplus=none'".into()),
    };
    Ok(())
}

pub fn nordirplus(w: &mut Wanted, _: &str) -> Done {
    w.readdirplus = false;
    Ok(())
}

pub fn acl(w: &mut Wanted, _: &str) -> Done {
    w.acl = true;
    Ok(())
}

pub fn noacl(w: &mut Wanted, _: &str) -> Done {
    w.acl = false;
    Ok(())
}

pub fn idmap_domain(w: &mut Wanted, value: &str) -> Done {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if value.len() > 255 || !value.chars().all(fits) {
        return Err("expected a domain name such as example.org".into());
    }
    w.idmap_domain = Some(value.to_string());
    Ok(())
}

pub fn local_lock(_: &mut Wanted, value: &str) -> Done {
    match value {
        "none" => Ok(()),
        "all" | "flock" | "posix" => {
            Err("the version decides whether locks are local: with vers=3 all are, with vers=4.x none".into())
        }
        _ => Err("expected none".into()),
    }
}

pub fn retry(w: &mut Wanted, value: &str) -> Done {
    let minutes = number(value, 0, 1_000_000_u64).map_err(|_| "expected a number of minutes".to_string())?;
    w.retry = Some(Duration::from_secs(minutes * 60));
    Ok(())
}

pub fn metrics(w: &mut Wanted, value: &str) -> Done {
    w.metrics = Some(value.parse()?);
    Ok(())
}

pub fn socket(w: &mut Wanted, value: &str) -> Done {
    if !value.starts_with('/') {
        return Err("expected an absolute path".into());
    }
    w.socket.path = Some(value.into());
    w.socket.offered = true;
    Ok(())
}

pub fn nosocket(w: &mut Wanted, _: &str) -> Done {
    w.socket.offered = false;
    Ok(())
}

pub fn socket_mode(w: &mut Wanted, value: &str) -> Done {
    match u32::from_str_radix(value, 8) {
        Ok(mode) if mode <= 0o777 => w.socket.mode = mode,
        _ => return Err("expected permissions in octal, such as 0660".into()),
    }
    Ok(())
}

pub fn socket_group(w: &mut Wanted, value: &str) -> Done {
    w.socket.group = Some(value.into());
    Ok(())
}

pub fn bg(w: &mut Wanted, _: &str) -> Done {
    w.background = true;
    Ok(())
}

pub fn fg(w: &mut Wanted, _: &str) -> Done {
    w.background = false;
    Ok(())
}

pub fn sloppy(w: &mut Wanted, _: &str) -> Done {
    w.sloppy = true;
    Ok(())
}

pub fn remount(w: &mut Wanted, _: &str) -> Done {
    w.remount = true;
    Ok(())
}

pub fn sync(w: &mut Wanted, _: &str) -> Done {
    w.sync = true;
    Ok(())
}

pub fn async_(w: &mut Wanted, _: &str) -> Done {
    w.sync = false;
    Ok(())
}

/// Defines a pair of functions that set and clear a flag of mount(2).
macro_rules! flag {
    ($set:ident, $clear:ident, $flag:expr) => {
        pub fn $set(w: &mut Wanted, _: &str) -> Done {
            w.flags.insert($flag);
            Ok(())
        }
        pub fn $clear(w: &mut Wanted, _: &str) -> Done {
            w.flags.remove($flag);
            Ok(())
        }
    };
}

flag!(ro, rw, MountFlags::RDONLY);
flag!(nosuid, suid, MountFlags::NOSUID);
flag!(nodev, dev, MountFlags::NODEV);
flag!(noexec, exec, MountFlags::NOEXEC);
flag!(nodiratime, diratime, MountFlags::NODIRATIME);
flag!(dirsync, nodirsync, MountFlags::DIRSYNC);
flag!(nosymfollow, symfollow, MountFlags::NOSYMFOLLOW);
flag!(lazytime, nolazytime, MountFlags::LAZYTIME);

/// The three policies for access times exclude each other in mount(2).
const ATIME: MountFlags = MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);

fn atime_policy(w: &mut Wanted, flag: MountFlags) -> Done {
    w.flags.remove(ATIME);
    w.flags.insert(flag);
    Ok(())
}

pub fn noatime(w: &mut Wanted, _: &str) -> Done {
    atime_policy(w, MountFlags::NOATIME)
}

pub fn atime(w: &mut Wanted, _: &str) -> Done {
    atime_policy(w, MountFlags::empty())
}

pub fn relatime(w: &mut Wanted, _: &str) -> Done {
    atime_policy(w, MountFlags::RELATIME)
}

pub fn strictatime(w: &mut Wanted, _: &str) -> Done {
    atime_policy(w, MountFlags::STRICTATIME)
}
