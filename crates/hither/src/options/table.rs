//! The table of all mount options.

use super::{Wanted, apply, security};

/// Whether an option takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arg {
    /// `name`.
    None,
    /// `name=VALUE`.
    Needed(&'static str),
    /// `name` or `name=VALUE`.
    Optional(&'static str),
}

/// The action of an option.
#[derive(Clone, Copy)]
pub enum Act {
    /// Checks the value and changes the settings.
    Set(fn(&mut Wanted, &str) -> Result<(), String>),
    /// Accepted without effect, so that existing fstab lines work.
    Ignore,
    /// Refused with a remedy, because ignoring the option would break its promise.
    Refuse(&'static str),
}

/// Headings of the option list, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Connection to the server.
    Reach,
    /// Behaviour with a server that does not answer.
    Recovery,
    /// Sizes.
    Transfer,
    /// Attribute and name cache.
    Attributes,
    /// Fewer round trips: shared messages, prefetching, delayed writes.
    Latency,
    /// Data on a local disk.
    Disk,
    /// Identity, ACLs, locks.
    Access,
    /// The mount command.
    Command,
    /// Options of the mount point: mount(8).
    Generic,
    /// Accepted without effect.
    Harmless,
    /// Refused.
    Refused,
}

/// Groups with their headings.
pub const GROUPS: &[(Group, &str)] = &[
    (Group::Reach, "How the server is reached"),
    (Group::Recovery, "When the server does not answer"),
    (Group::Transfer, "Transfer sizes"),
    (Group::Attributes, "Attributes and names kept by the client"),
    (Group::Latency, "Round trips"),
    (Group::Disk, "The disk cache"),
    (Group::Access, "Access and identity"),
    (Group::Command, "The mount command"),
    (Group::Generic, "The mount point (mount(8))"),
    (Group::Harmless, "Accepted without effect"),
    (Group::Refused, "Refused"),
];

/// One option.
pub struct Def {
    /// Name as in nfs(5) or mount(8).
    pub name: &'static str,
    /// Other names of the option.
    pub also: &'static [&'static str],
    /// Whether the option takes a value.
    pub arg: Arg,
    /// The default value; empty if there is none.
    pub default: &'static str,
    /// Group in the list.
    pub group: Group,
    /// Name of a set of exclusive options; `None`: the last given value counts.
    pub rivals: Option<&'static str>,
    /// Help text: one phrase without a full stop.
    pub help: &'static str,
    /// Action of the option.
    pub act: Act,
}

const fn keyword(name: &'static str, group: Group, set: fn(&mut Wanted, &str) -> Result<(), String>) -> Def {
    let arg = Arg::None;
    Def { name, also: &[], arg, default: "", group, rivals: None, help: "", act: Act::Set(set) }
}

const fn valued(
    name: &'static str,
    arg: &'static str,
    default: &'static str,
    group: Group,
    set: fn(&mut Wanted, &str) -> Result<(), String>,
) -> Def {
    let arg = Arg::Needed(arg);
    Def { name, also: &[], arg, default, group, rivals: None, help: "", act: Act::Set(set) }
}

const fn harmless(name: &'static str, why: &'static str) -> Def {
    let (arg, group) = (Arg::Optional(""), Group::Harmless);
    Def { name, also: &[], arg, default: "", group, rivals: None, help: why, act: Act::Ignore }
}

const fn refused(name: &'static str, instead: &'static str) -> Def {
    let (arg, group) = (Arg::Optional(""), Group::Refused);
    Def { name, also: &[], arg, default: "", group, rivals: None, help: instead, act: Act::Refuse(instead) }
}

impl Def {
    const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }
    const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }
    const fn rivals(self, set: &'static str) -> Self {
        Self { rivals: Some(set), ..self }
    }
    const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }
    const fn optional(self, arg: &'static str) -> Self {
        Self { arg: Arg::Optional(arg), ..self }
    }
}

use Group::{Access, Attributes, Command, Disk, Generic, Latency, Reach, Recovery, Transfer};

/// The table.
pub const OPTIONS: &[Def] = &[
    // Connection to the server.
    valued("vers", "VERSION", "negotiated: 4.2, 4.1, 3", Reach, apply::vers)
        .also(&["nfsvers"])
        .help("NFS version: 3, 4 (4.2 or 4.1), 4.1, 4.2, or nqnfs; without it the highest that the server has"),
    valued("minorversion", "N", "", Reach, apply::minorversion).help("with vers=4: 1 or 2"),
    valued("proto", "NETID", "any", Reach, apply::proto)
        .help("tcp (IPv4 addresses) or tcp6 (IPv6 addresses)"),
    valued("port", "N", "2049; vers=3: rpcbind's answer", Reach, apply::port)
        .help("the server's NFS port; 0 asks rpcbind"),
    valued("mountport", "N", "rpcbind's answer", Reach, apply::mountport)
        .help("the server's MOUNT port (vers=3; with vers=nqnfs that of port= unless given)"),
    valued("nconnect", "N", "1", Reach, apply::nconnect)
        .help("number of TCP connections to the server, 1 to 16"),
    keyword("resvport", Reach, apply::resvport)
        .rivals("resvport")
        .default("on")
        .help("connect from a privileged source port"),
    keyword("noresvport", Reach, apply::noresvport)
        .rivals("resvport")
        .help("connect from any source port; the server must allow it (`insecure` in exports(5))"),
    // Behaviour with a server that does not answer.
    keyword("hard", Recovery, apply::hard)
        .rivals("recovery")
        .default("on")
        .help("calls wait until the server answers; the waiting program can be interrupted"),
    keyword("soft", Recovery, apply::soft)
        .rivals("recovery")
        .help("calls fail with EIO after retrans retries; a program that ignores the error loses data"),
    keyword("softerr", Recovery, apply::softerr)
        .rivals("recovery")
        .help("as soft, but calls fail with ETIMEDOUT"),
    valued("timeo", "TENTHS", "600", Recovery, apply::timeo)
        .help("tenths of a second until a call is sent again; each retry adds the same time"),
    valued("retrans", "N", "2", Recovery, apply::retrans)
        .help("retries before a soft mount gives up and a hard one reports that the server does not answer"),
    // Transfer sizes.
    valued("rsize", "BYTES", "the server's preference", Transfer, apply::rsize)
        .help("most bytes in one READ: a multiple of 1024 up to 1048576"),
    valued("wsize", "BYTES", "the server's preference", Transfer, apply::wsize)
        .help("most bytes in one WRITE: a multiple of 1024 up to 1048576"),
    // Caches of attributes and names.
    valued("acregmin", "SECONDS", "3", Attributes, apply::acregmin)
        .help("minimum lifetime of cached attributes of files"),
    valued("acregmax", "SECONDS", "60", Attributes, apply::acregmax)
        .help("maximum lifetime of cached attributes of files"),
    valued("acdirmin", "SECONDS", "30", Attributes, apply::acdirmin)
        .help("minimum lifetime of cached attributes of directories"),
    valued("acdirmax", "SECONDS", "60", Attributes, apply::acdirmax)
        .help("maximum lifetime of cached attributes of directories"),
    valued("actimeo", "SECONDS", "", Attributes, apply::actimeo)
        .help("sets acregmin, acregmax, acdirmin and acdirmax to one value"),
    keyword("ac", Attributes, apply::ac)
        .rivals("ac")
        .default("on")
        .help("attributes are cached for these times"),
    keyword("noac", Attributes, apply::noac)
        .rivals("ac")
        .help("no attributes are cached, and every write is stable before it returns"),
    valued("lookupcache", "MODE", "all", Attributes, apply::lookupcache)
        .help("cached names: all (also absent ones), pos (present ones only) or none"),
    keyword("cto", Attributes, apply::cto)
        .rivals("cto")
        .default("on")
        .help("close-to-open: opening a file asks the server whether it changed"),
    keyword("nocto", Attributes, apply::nocto)
        .rivals("cto")
        .help("opening a file relies on cached attributes; for trees that do not change"),
    keyword("rdirplus", Attributes, apply::rdirplus)
        .optional("none|force")
        .rivals("rdirplus")
        .default("on")
        .help("listing a directory fetches attributes and filehandles as well"),
    keyword("nordirplus", Attributes, apply::nordirplus)
        .rivals("rdirplus")
        .help("listing a directory fetches names only"),
    valued("acnegmax", "SECONDS", "60; names never asked for: 1", Attributes, apply::acnegmax).help(
        "maximum age of an absent name since the server confirmed it; an option of hither's own",
    ),
    valued("consistency", "MODE", "close-to-open", Attributes, apply::consistency).help(
        "close-to-open (cto), bounded=SECONDS (no data is older; opens do not ask), frozen (the export never changes: for \
         datasets and releases) or strict (every call asks the server unless a delegation covers the file, and writes are \
         at the server when they return); replaces cto, ac* and noac",
    ),
    valued("subtree", "PATH:MODE", "", Attributes, apply::subtree).help(
        "consistency= mode of the directory PATH of the mount and of all files below it; PATH may appear later; may be given \
         several times, and the longest path counts; a value with a comma stands in double quotes",
    ),
    valued("meta-cache-size", "SIZE", "256M", Attributes, apply::meta_cache_size)
        .help("memory for names, attributes and directories, with K, M, G or T"),
    // Round trips.
    keyword("chain", Latency, apply::chain)
        .rivals("chain")
        .default("on")
        .help("a whole path, read from the calling program, is looked up in one round trip"),
    keyword("nochain", Latency, apply::nochain)
        .rivals("chain")
        .help("names are looked up one by one, as the kernel asks for them"),
    valued("chain-max", "N", "the server's limit", Latency, apply::chain_max)
        .help("maximum names looked up in one compound"),
    valued("prefetch", "WHAT", "small", Latency, apply::prefetch)
        .help("small (an open fetches the directory's other small files as well, if they are few or several are opened) or off"),
    valued("dirty-max", "SIZE", "256M", Latency, apply::dirty_max)
        .help("limit of delayed writes in bytes; at the limit writers wait"),
    valued("dirty-age", "SECONDS", "5", Latency, apply::dirty_age)
        .help("maximum time that written bytes wait before they are sent"),
    valued("durability", "WHERE", "server", Latency, apply::durability).help(
        "server (close and fsync return when the data is on the server's stable storage), delegated (close returns at once for files under a write delegation or lease), lazy (close returns at once; the data is sent up to dirty-age later), local (both return when the local disk has the data; no other client may use the export) or local-names (the same for names); sets close, writeback, exclusive and creates",
    ),
    valued("close", "HOW", "wait", Latency, apply::close)
        .help("wait (close returns when the data is on stable storage), delegated (close waits only for files without a write delegation, or without a write lease with vers=nqnfs) or lazy (the data is sent up to dirty-age later: a crash loses it, other clients see it late)"),
    valued("writeback", "WHERE", "memory", Latency, apply::writeback).help(
        "memory (a killed daemon loses data that was neither fsynced nor closed) or journal (the data is on the local disk \
         before write(2) returns, and after a crash the next mount sends it)",
    ),
    keyword("exclusive", Latency, apply::exclusive).help(
        "no other client uses the export: with writeback=journal, fsync and close return when the local disk has the data, and the server gets it later",
    ),
    valued("creates", "WHERE", "server", Latency, apply::creates).help(
        "server or here (with writeback=journal,exclusive: new files, directories and symbolic links are in the journal when their call returns, and are sent later, several in one message; removals are done here at once)",
    ),
    valued("journal-dir", "DIR", "that of cache, or /var/lib/hither", Latency, apply::journal_dir)
        .help("parent directory of the journal of writeback=journal"),
    // The disk cache.
    keyword("cache", Disk, apply::cache)
        .optional("DIR")
        .rivals("cache")
        .help("read data is kept on a local disk, in DIR (/var/cache/hither), and used when the server has confirmed it"),
    keyword("nocache", Disk, apply::nocache).rivals("cache").default("on").help("no read data is kept on a local disk"),
    keyword("fsc", Disk, apply::fsc).optional("TAG").rivals("cache").help("as cache, without a directory of its own"),
    keyword("nofsc", Disk, apply::nocache).rivals("cache").help("as nocache"),
    valued("cache-size", "SIZE", "10G", Disk, apply::cache_size)
        .help("maximum size of this mount's data; eviction starts at cache-soft= percent, in the order of cache-policy="),
    valued("cache-dir-size", "SIZE", "no limit", Disk, apply::cache_dir_size).help(
        "maximum size of DIR over all mounts: give it to each mount that shares DIR; eviction starts at cache-soft= percent, with data that no mount uses, then with a share of each mount",
    ),
    valued("cache-soft", "PERCENT", "90", Disk, apply::cache_soft)
        .help("the soft limit, in percent of cache-size= and of cache-dir-size="),
    valued("cache-policy", "POLICY", "lru", Disk, apply::cache_policy).help(
        "eviction order: lru (unused for longest first, a tenth at a time), s3-fifo (read once first; for large scans), gdsf \
         (large and seldom used first, so that most files are found; for sizes that differ)",
    ),
    valued("cache-min-free", "SIZE", "1G", Disk, apply::cache_min_free)
        .help("space that the cache leaves free in its file system"),
    valued("cache-min-file", "SIZE", "1", Disk, apply::cache_min_file).help("smaller files are not kept"),
    valued("cache-max-file", "SIZE", "16 × cache-size", Disk, apply::cache_max_file)
        .help("larger files are not kept"),
    valued("cache-age", "SECONDS", "30", Disk, apply::cache_age)
        .help("files that changed more recently are not kept: the server's clock may hide a second change"),
    valued("fill", "WHEN", "idle", Disk, apply::fill)
        .help("files of which more than a tenth was read are completed: idle (while the mount has no other requests), BYTES/s, or off"),
    keyword("cache-read-only", Disk, apply::cache_read_only)
        .help("cached data is used; nothing is added or removed"),
    // Access and identity.
    valued("sec", "FLAVOR", "sys", Access, apply::sec).help(
        "security flavors sys, krb5, krb5i (with checksums) and krb5p (encrypted), or a list of them with : between \
         them: the first one that the server offers is used",
    ),
    valued("xprtsec", "POLICY", "none", Access, security::xprtsec).help(
        "encryption of all connections except queries to rpcbind: none, tls (RPC-with-TLS, RFC 9289; the server has a certificate), mtls (this client has one as well) or direct (TLS from the first byte, as TLS proxies expect it)",
    ),
    valued("tls-ca", "FILE", "the system's authorities", Access, security::tls_ca)
        .help("with TLS: PEM file of the authorities that the server's certificate must come from"),
    valued("tls-cert", "FILE", "", Access, security::tls_cert)
        .help("with xprtsec=mtls or direct: PEM file of the client certificate and its issuers"),
    valued("tls-key", "FILE", "", Access, security::tls_key).help("PEM file of the private key of tls-cert"),
    valued("tls-server-name", "NAME", "the server as mounted", Access, security::tls_server_name)
        .help("with TLS: the DNS name or IP address that the server's certificate must have"),
    valued("tls-crl", "FILE", "", Access, security::tls_crl)
        .help("with TLS: PEM file of revocation lists; one must cover each certificate of the server"),
    keyword("acl", Access, apply::acl)
        .rivals("acl")
        .default("on")
        .help("NFSv4 ACLs are offered as the attribute system.nfs4_acl"),
    keyword("noacl", Access, apply::noacl)
        .rivals("acl")
        .help("no ACLs are offered; the server still enforces them"),
    valued("idmap_domain", "DOMAIN", "idmapd.conf, else DNS", Access, apply::idmap_domain)
        .help("domain of the names user@domain that NFSv4 servers send; an option of hither's own"),
    // The mount command.
    valued("retry", "MINUTES", "2; with bg 10000", Command, apply::retry)
        .help("time for which the mount is tried while the server cannot be reached; 0 tries once"),
    keyword("bg", Command, apply::bg)
        .rivals("bg")
        .help("if the first attempt fails, go on trying in the background and report success"),
    keyword("fg", Command, apply::fg).rivals("bg").default("on").help("try in the foreground"),
    valued("metrics", "ADDRESS:PORT|SOCKET", "", Command, apply::metrics)
        .help("serve the figures of `hither stat` for Prometheus, over HTTP on a TCP address or a UNIX socket (/PATH, mode 0600)"),
    valued("socket", "PATH", "/run/hither/MAJOR:MINOR.programs", Command, apply::socket)
        .rivals("socket")
        .help("path of the socket by which programs reach the mount without the kernel (docs/SOCKET.md)"),
    keyword("nosocket", Command, apply::nosocket).rivals("socket").help("no socket for programs"),
    valued("socket-mode", "MODE", "0600", Command, apply::socket_mode)
        .help("permissions of the socket, in octal: users who may write to it may connect, with their own rights on the files"),
    valued("socket-group", "GROUP", "", Command, apply::socket_group).help("group of the socket, by name or number"),
    keyword("sloppy", Command, apply::sloppy).help("ignore unknown options (also mount -s)"),
    keyword("remount", Command, apply::remount)
        .help("change the flags of an existing mount (ro, rw, nosuid, ...); other options stay unchanged"),
    // The mount point.
    keyword("ro", Generic, apply::ro).help("read only"),
    keyword("rw", Generic, apply::rw).default("on").help("readable and writable"),
    keyword("nosuid", Generic, apply::nosuid).help("set-user-id and set-group-id bits have no effect"),
    keyword("suid", Generic, apply::suid).default("on").help("set-user-id and set-group-id bits work"),
    keyword("nodev", Generic, apply::nodev).help("device files cannot be opened"),
    keyword("dev", Generic, apply::dev).default("on").help("device files can be opened"),
    keyword("noexec", Generic, apply::noexec).help("programs cannot be executed"),
    keyword("exec", Generic, apply::exec).default("on").help("programs can be executed"),
    keyword("nosymfollow", Generic, apply::nosymfollow)
        .help("symbolic links are not followed, only read (by Linux 5.10 and later)"),
    keyword("symfollow", Generic, apply::symfollow).default("on").help("symbolic links are followed"),
    keyword("sync", Generic, apply::sync)
        .help("every write is on the server's stable storage before it returns"),
    keyword("async", Generic, apply::async_)
        .default("on")
        .help("writes are on the server's stable storage when fsync(2) or close(2) returns"),
    keyword("dirsync", Generic, apply::dirsync)
        .help("accepted for mount(8): directory changes are always synchronous at the server"),
    keyword("nodirsync", Generic, apply::nodirsync).help("clears dirsync"),
    keyword("noatime", Generic, apply::noatime).help("as mount(8); the server keeps access times either way"),
    keyword("atime", Generic, apply::atime).help("as mount(8)"),
    keyword("relatime", Generic, apply::relatime).help("as mount(8)").also(&["norelatime"]),
    keyword("strictatime", Generic, apply::strictatime).help("as mount(8)").also(&["nostrictatime"]),
    keyword("nodiratime", Generic, apply::nodiratime).help("as mount(8)"),
    keyword("diratime", Generic, apply::diratime).help("as mount(8)"),
    keyword("lazytime", Generic, apply::lazytime).help("as mount(8)"),
    keyword("nolazytime", Generic, apply::nolazytime).help("as mount(8)"),
    // Accepted without effect.
    harmless("defaults", "the defaults hold anyway"),
    harmless("_netdev", "systemd and mount(8) read it: the mount needs the network"),
    harmless("nofail", "systemd and mount(8) read it: a failure does not stop booting"),
    harmless("auto", "mount(8) reads it: `mount -a` mounts it"),
    harmless("noauto", "mount(8) reads it: `mount -a` leaves it out"),
    harmless("user", "mount(8) reads it; mounting still needs root"),
    harmless("nouser", "mount(8) reads it"),
    harmless("users", "mount(8) reads it").also(&["nousers"]),
    harmless("owner", "mount(8) reads it").also(&["noowner", "group", "nogroup"]),
    harmless("x-*", "comments for other programs, such as x-systemd.automount").also(&["comment"]),
    harmless("user_id", "mount(8) repeats what /proc/mounts shows when it remounts")
        .also(&["group_id", "rootmode", "max_read"]),
    harmless("silent", "mount(8) reads it").also(&["loud"]),
    harmless("helper", "umount(8) reads it").also(&["uhelper"]),
    harmless("mand", "there are no mandatory locks").also(&["nomand"]),
    harmless("iversion", "the server's change attribute is always used").also(&["noiversion"]),
    harmless("intr", "waiting programs can always be interrupted").also(&["nointr"]),
    harmless("tcp", "TCP is the only transport"),
    harmless("clientaddr", "callbacks use the connection of the mount (NFSv4.1)"),
    valued("mountproto", "NETID", "", Group::Harmless, apply::mountproto).help("tcp is always used"),
    valued("mountvers", "N", "", Group::Harmless, apply::mountvers).help("3 is always used"),
    valued("max_connect", "N", "", Group::Harmless, apply::max_connect)
        .help("one server address is used, over nconnect connections"),
    valued("local_lock", "MECHANISM", "", Group::Harmless, apply::local_lock)
        .help("none; with vers=3 and nqnfs locks are local, with vers=4.x they are the server's"),
    harmless("nolock", "with vers=3 locks are always local; with vers=4.x they are part of the protocol")
        .rivals("lock"),
    harmless("lock", "with vers=4.x locks are the server's; refused with vers=3").rivals("lock"),
    harmless("nosharecache", "every mount has a cache of its own").rivals("sharecache"),
    harmless("sharecache", "every mount has a cache of its own").rivals("sharecache"),
    harmless("nosoftreval", "cached attributes are never used after they expire"),
    harmless("migration", "they concern NFSv4.0 only").also(&["nomigration"]),
    harmless("notrunkdiscovery", "one server address is used").also(&["trunkdiscovery"]),
    harmless("allow_other", "all users have access, as their permissions at the server say"),
    // Refused.
    refused("udp", "NFS over UDP loses data under load; use proto=tcp"),
    refused("rdma", "there is no RDMA transport; use proto=tcp"),
    refused(
        "softreval",
        "cached attributes are not used after they expire; leave it out, or give larger ac* times",
    ),
    refused("mounthost", "the MOUNT service of the server itself is used; leave it out"),
    refused("namlen", "the server limits the length of names; leave it out"),
    refused("context", "SELinux contexts of a whole mount are not supported; leave it out").also(&[
        "fscontext",
        "defcontext",
        "rootcontext",
        "seclabel",
    ]),
    refused("default_permissions", "the server checks permissions; leave it out"),
    refused("loop", "there is no loop device in an NFS mount; leave it out").also(&["offset", "sizelimit"]),
    refused("bind", "use `mount --bind`").also(&["rbind", "move"]),
    refused("v2", "NFSv2 is not supported; use vers=3"),
    refused("v3", "use vers=3"),
    refused("v4", "use vers=4").also(&["v4.0", "v4.1", "v4.2"]),
];
