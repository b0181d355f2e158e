//! The layers of a mount: `fuse(delayed writes(metadata cache(disk cache(nfs client))))`. With
//! `creates=here` they are `fuse(new objects(removals(delayed …)))`, with `subtree=`
//! `fuse(subtrees(delayed writes(metadata cache(...)), for each mode))`. Only this module decides
//! the order of layers.

mod cache;
pub mod journal;
mod parts;
pub mod subtrees;
mod why;

use crate::control::{CacheAsk, TraceAsk};
use crate::exit::Failure;
use crate::kerberos;
use crate::mount::Job;
use crate::mountstats;
use crate::options::{Versions, Wanted};
use crate::report::{Counters, MountPart, Report, Transport};
use crate::top::Since;
use crate::trace::Trace;
use hither_cache::data::DataCache;
use hither_fuse::{CloseWaits, Layers, Record};
use hither_nfs::v4::Delegated;
use hither_nfs::{AttrCache, Connected, LookupCache, MountError, Options, Recovery, Security, Version};
use hither_rpc::Flavor;
use hither_rpc::tls::{ClientTls, TlsSettings, TlsStart};
use hither_socket::Programs;
use hither_vfs::{Cred, Env, Fh, RequestContext};
use hither_writeback::pending_creates::{PendingCreates, PendingCreatesOptions};
use hither_writeback::pending_removes::{PendingRemoves, PendingRemovesOptions};
use hither_writeback::wal::Wal;
use journal::Journal;
use parts::{Below, Parts};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of one FUSE request if the server states no limit.
const MAX_IO_BYTES: u32 = 1 << 20;

/// Time limit for saving names and attributes at the end of a mount.
const NAMES_WITHIN: Duration = Duration::from_secs(2);

/// The lower half: a connected NFS client and its caches.
pub struct Client {
    connected: Connected,
    options: Options,
    disk: Option<Arc<DataCache>>,
    wal: Option<Arc<Wal>>,
    note: Option<String>,
    exclusive: bool,
    strict: bool,
    cache_bytes: u64,
    parts: Parts,
    /// With subtrees: the mount's own mode, if it has a name, and the modes of the subtrees.
    modes: Vec<String>,
    pending_removes: Option<Arc<PendingRemoves>>,
    pending_creates: Option<Arc<PendingCreates>>,
}

/// The reason why there is no client.
pub enum NoClient {
    /// The server is not available.
    Server(MountError),
    /// A file of this machine is not usable: a message for the user.
    Local(String),
}

/// Connects to the server and negotiates the version.
///
/// # Errors
/// The reason why there is no mount, as a message for the user.
pub async fn connect(job: &Job, addrs: Vec<SocketAddr>) -> Result<Client, NoClient> {
    let mut options = client_options(job, addrs).map_err(NoClient::Local)?;
    let versions: &[Option<Version>] = match job.wanted.versions {
        Versions::Any => &[None],
        Versions::Any4 => &[Some(Version::V42), Some(Version::V41)],
        Versions::Only(version) => &[Some(version)],
    };
    let mut refused = None;
    for version in versions {
        options.version = *version;
        match hither_nfs::connect(&options, env()).await {
            Ok(connected) => {
                let journal = journal::open(job, &connected).await.map_err(NoClient::Local)?;
                return Ok(Client::stacked(job, connected, options, journal).await);
            }
            Err(e) if e.other_version_may_work() => refused = Some(e),
            Err(e) => return Err(NoClient::Server(e)),
        }
    }
    Err(NoClient::Server(refused.unwrap_or(MountError::Interrupted)))
}

/// The settings of the client. Reads the files of TLS.
///
/// # Errors
/// A message for the user about an unusable file.
pub fn client_options(job: &Job, addrs: Vec<SocketAddr>) -> Result<Options, String> {
    let w = &job.wanted;
    let tls = w.security.settings(&job.source.host).map(ClientTls::new).transpose();
    Ok(Options {
        server: job.source.host.clone(),
        addrs: addrs.into_iter().map(|addr| SocketAddr::new(addr.ip(), w.port.unwrap_or(0))).collect(),
        path: job.source.path.clone(),
        version: None,
        port: w.port,
        mount_port: w.mount_port,
        recovery: w.recovery,
        timeo: w.timeo,
        retrans: w.retrans,
        nconnect: w.nconnect,
        resvport: w.resvport,
        tls: tls.map_err(|e| e.to_string())?.map(Arc::new),
        security: flavors(w)?,
        rsize_bytes: w.rsize_bytes,
        wsize_bytes: w.wsize_bytes,
        attr_cache: w.told().0,
        lookup_cache: w.told().1,
        delegations: w.delegations(),
        withdraw_max: w.withdraw_max,
        close_to_open: w.close_to_open,
        sync: w.sync,
        readdirplus: w.readdirplus,
        chains: w.chains,
        chain_max: w.chain_max,
        acl: w.acl,
        idmap_domain: w.idmap_domain.clone(),
        client_name: job.client_name.clone(),
        // The daemon itself retries, because it also looks up the name again and informs the user.
        retry: Duration::ZERO,
    })
}

/// The flavors of a mount. Kerberos is loaded when one of them needs it.
fn flavors(wanted: &Wanted) -> Result<Security, String> {
    let needs = |flavor: &Flavor| flavor.service().is_some();
    let uses = wanted.flavors.iter().any(needs);
    let mechanism = uses.then(|| kerberos::mechanism(None)).transpose()?;
    let (flavor, others) = wanted.flavors.split_first().ok_or("option 'sec': no flavor")?;
    Ok(Security { flavor: *flavor, others: others.to_vec(), mechanism })
}

/// The machine's random source and clock.
pub fn env() -> Env {
    #[expect(clippy::disallowed_methods, reason = "the one place where the clock comes from")]
    let wall = || std::time::SystemTime::now();
    Env { random: Arc::new(rand::random), wall: Arc::new(wall) }
}

impl Client {
    async fn stacked(
        job: &Job,
        connected: Connected,
        options: Options,
        Journal { wal, note }: Journal,
    ) -> Self {
        let w = &job.wanted;
        let below = Below { connected: &connected, client: connected.vfs.clone(), wal: wal.clone() };
        let (parts, disk) =
            Parts::new(w, below, |client| Box::pin(cache::disk(job, &connected, client))).await;
        if let Some(disk) = &disk {
            cache::restore_snapshot(disk, &parts.own.meta, w.cache.size_bytes).await;
        }
        let dirty = &parts.own.dirty;
        let cache_bytes = w.cache.size_bytes;
        let (exclusive, strict) = (w.exclusive, w.is_strict());
        let pending_creates = wal.as_ref().filter(|_| exclusive && w.creates_here).map(|wal| {
            let file_max_bytes =
                (connected.wsize_bytes as usize).min(PendingCreatesOptions::default().file_max_bytes);
            let options = PendingCreatesOptions {
                age: w.dirty_age,
                file_max_bytes,
                ..PendingCreatesOptions::default()
            };
            let pending_removes =
                PendingRemoves::new(dirty.clone(), env(), PendingRemovesOptions::default(), wal.clone());
            (PendingCreates::new(pending_removes.clone(), env(), options, wal.clone()), pending_removes)
        });
        let (pending_creates, pending_removes) = pending_creates.unzip();
        Self {
            wal,
            note,
            exclusive,
            strict,
            connected,
            options,
            disk,
            cache_bytes,
            parts,
            modes: w.modes(),
            pending_removes,
            pending_creates,
        }
    }

    /// The layers for a frontend. No other client uses a file system with delayed names, so it
    /// needs no leases.
    pub fn layers(&self) -> Layers {
        match &self.pending_creates {
            Some(pending_creates) => Layers::alone(pending_creates.clone()),
            None => self.parts.layers(),
        }
    }

    /// Whether the version has no state at the server, as NFSv3.
    pub fn is_stateless(&self) -> bool {
        self.connected.version.is_stateless()
    }

    /// Whether the server may delegate files (RFC 8881 section 10.4).
    pub fn has_delegations(&self) -> bool {
        matches!(self.connected.version, Version::V41 | Version::V42)
    }

    /// Whether cached answers hold beyond their time, because the server is away.
    pub fn answer_stale(&self, stale: bool) {
        self.parts.all().for_each(|part| part.meta.answer_stale(stale));
        if let Some(disk) = &self.disk {
            disk.answer_stale(stale);
        }
    }

    /// Asks the server for the attributes of the root, past all caches.
    ///
    /// # Errors
    /// Those of the server, and of a soft mount whose server is away.
    pub async fn probe(&self) -> hither_vfs::Result<()> {
        self.connected.vfs.root(&RequestContext::new(Arc::new(Cred::root()))).await.map(drop)
    }

    /// A summary for the log: `NFS 4.2, server 10.0.0.1:2049, rsize=1048576,...`.
    pub fn summary(&self) -> String {
        let c = &self.connected;
        format!("NFS {}, server {}, {}", c.version.name(), c.server, self.effective())
    }

    /// Sends delayed bytes to the server, as far as it takes them in this time.
    pub async fn flush(&self, within: Duration) {
        if let Ok(Err(e)) = tokio::time::timeout(within, self.parts.sync()).await {
            tracing::warn!("not all written data reached the server: {e}");
        }
    }

    /// Flushes all data and releases all state at the server.
    ///
    /// # Errors
    /// Data could not be written.
    pub async fn shutdown(&self, within: Duration) -> hither_vfs::Result<()> {
        let mut cx = RequestContext::new(Arc::new(Cred::root()));
        cx.deadline = Some(Instant::now() + within);
        if let Some(disk) = &self.disk {
            // Names are saved before the layers shut down.
            let most = cache::names_bytes(self.cache_bytes);
            let _ = tokio::time::timeout(
                NAMES_WITHIN.min(within),
                cache::save_snapshot(disk, &self.parts.own.meta, most),
            )
            .await;
        }
        self.layers().vfs.shutdown(&cx).await
    }

    /// The notices of the mount: the outcome of delayed writes from before a crash.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Why the disk cache takes nothing now.
    pub fn cache_trouble(&self) -> Option<String> {
        self.disk.as_ref().and_then(|disk| disk.trouble())
    }

    /// The options in effect, as nfs(5) writes them.
    fn effective(&self) -> String {
        let (o, c) = (&self.options, &self.connected);
        let mut out = format!("vers={},rsize={},wsize={}", c.version.name(), c.rsize_bytes, c.wsize_bytes);
        let mut push = |word: &str| {
            out.push(',');
            out.push_str(word);
        };
        push(match o.recovery {
            Recovery::Hard => "hard",
            Recovery::Soft => "soft",
            Recovery::Softerr => "softerr",
        });
        push(if c.server.is_ipv4() { "proto=tcp" } else { "proto=tcp6" });
        push(&format!("timeo={},retrans={}", o.timeo.as_millis() / 100, o.retrans));
        push(&format!("sec={}", c.flavor));
        if let Some(tls) = &o.tls {
            security_words(tls.settings()).iter().for_each(|word| push(word));
        }
        if c.version.is_stateless() {
            push("local_lock=all");
        }
        for (on, word) in [
            (o.nconnect > 1, format!("nconnect={}", o.nconnect).as_str()),
            (!o.resvport, "noresvport"),
            (o.sync, "sync"),
            (self.wal.is_some(), "writeback=journal"),
            (self.exclusive, "exclusive"),
            (self.pending_creates.is_some(), "creates=here"),
            (!o.close_to_open, "nocto"),
            (!o.readdirplus, "nordirplus"),
            (!o.acl, "noacl"),
            (c.lookup_cache == LookupCache::Positive, "lookupcache=pos"),
            (c.lookup_cache == LookupCache::None && !self.strict, "lookupcache=none"),
            (o.attr_cache == AttrCache::NONE && !self.strict, "noac"),
            (self.strict, "consistency=strict"),
        ] {
            if on {
                push(word);
            }
        }
        self.modes.iter().for_each(|mode| push(mode));
        let (a, normal) = (o.attr_cache, AttrCache::default());
        for (name, time, default) in [
            ("acregmin", a.regular_min, normal.regular_min),
            ("acregmax", a.regular_max, normal.regular_max),
            ("acdirmin", a.directory_min, normal.directory_min),
            ("acdirmax", a.directory_max, normal.directory_max),
            ("acnegmax", a.negative_max, normal.negative_max),
        ] {
            if time != default && a != AttrCache::NONE {
                let _ = write!(out, ",{name}={}", time.as_secs());
            }
        }
        out
    }
}

/// The options of TLS. Without `tls-server-name` the name is the host of the source.
fn security_words(settings: &TlsSettings) -> Vec<String> {
    let TlsSettings { start, server_name, authorities, identity, revocations } = settings;
    let policy = match (start, identity) {
        (TlsStart::Direct, _) => "direct",
        (TlsStart::Probe, Some(_)) => "mtls",
        (TlsStart::Probe, None) => "tls",
    };
    let mut words = vec![format!("xprtsec={policy}"), format!("tls-server-name={server_name}")];
    let files = [
        ("tls-ca", authorities.as_ref()),
        ("tls-cert", identity.as_ref().map(|files| &files.certificate)),
        ("tls-key", identity.as_ref().map(|files| &files.key)),
        ("tls-crl", revocations.as_ref()),
    ];
    words.extend(files.iter().filter_map(|(name, file)| Some(format!("{name}={}", (*file)?.display()))));
    words
}

/// Mounts FUSE on top of the client.
///
/// # Errors
/// The reason why the kernel refuses the mount.
pub async fn mount(job: &Job, dir: &Path, client: &Client) -> Result<hither_fuse::Mounted, Failure> {
    let c = &client.connected;
    let largest = c.rsize_bytes.max(c.wsize_bytes).clamp(4096, MAX_IO_BYTES);
    let all_strict = job.wanted.all_parts().all(Wanted::is_strict);
    let config = hither_fuse::Config {
        source: job.source.shown(),
        mount_flags: mount_flags(&job.wanted),
        // Without NLM, NFSv3 locks are local to this machine. The kernel's own locks suffice.
        server_locks: !c.version.is_stateless(),
        xattrs: !c.version.is_stateless(),
        server_copy: c.version == Version::V42,
        max_io_bytes: largest & !4095,
        // Hints come from the calling thread. A thread that repeats a call looks as if it were
        // still in the first call.
        hints: job.wanted.chains && !all_strict,
        // The lookups of the same call have resolved the target of the name.
        close_to_open: job.wanted.close_to_open && !job.wanted.is_strict(),
        // A user without a ticket has no rights at the server.
        trusts_modes: c.flavor.service().is_none(),
        strict: job.wanted.is_strict(),
        strict_parts: job.wanted.all_parts().any(Wanted::is_strict),
        may_be_shared: c.version == Version::Nqnfs && job.wanted.delegations() && !job.wanted.is_strict(),
        first_bytes: if all_strict { 0 } else { hither_fuse::Config::default().first_bytes },
        // With a journal, close(2) waits for it.
        close_waits: if job.wanted.lazy_close {
            CloseWaits::Never
        } else if job.wanted.delegated_close && client.wal.is_none() {
            CloseWaits::UnlessDelegated
        } else {
            CloseWaits::Always
        },
        keeps_names: job.wanted.told().1 != LookupCache::None && !all_strict,
        names_wait: client.pending_creates.is_some(),
        commits_last: !job.wanted.lazy_close && !job.wanted.delegated_close && !job.wanted.exclusive,
        passthrough: client.disk.is_some() && job.wanted.is_frozen(),
        ..hither_fuse::Config::default()
    };
    hither_fuse::mount(dir, config, client.layers()).await.map_err(|e| match e {
        hither_fuse::MountError::NotRoot => Failure::usage(e.to_string()),
        hither_fuse::MountError::NoSuchDirectory(_)
        | hither_fuse::MountError::NotDirectory(_)
        | hither_fuse::MountError::Busy(_)
        | hither_fuse::MountError::Root(_) => Failure::mount(e.to_string()),
        _ => Failure::system(e.to_string()),
    })
}

/// Serves the socket for programs from the same layers, with or without FUSE.
///
/// # Errors
/// The reason why there is no socket.
pub async fn programs(
    job: &Job,
    client: &Client,
    mounted: Option<&hither_fuse::Mounted>,
    listener: tokio::net::UnixListener,
) -> hither_vfs::Result<Programs> {
    let c = &client.connected;
    let options = hither_socket::Options {
        dir: mounted.map(|mounted| mounted.dir().to_owned()).unwrap_or_default(),
        source: job.source.shown(),
        read_only: job.wanted.flags.contains(rustix::mount::MountFlags::RDONLY),
        close_to_open: job.wanted.all_parts().any(|part| part.close_to_open),
        max_io_bytes: c.rsize_bytes.min(c.wsize_bytes).clamp(4096, MAX_IO_BYTES),
        lends: client.disk.is_some() && job.wanted.is_frozen(),
    };
    Programs::start(listener, client.layers().vfs, mounted.map(hither_fuse::Mounted::invalidator), options)
        .await
}

/// The flags of mount(2), without SYNCHRONOUS. That flag is for file systems in the kernel; here
/// the client implements `sync`.
fn mount_flags(wanted: &Wanted) -> libc::c_ulong {
    libc::c_ulong::from(wanted.flags.bits())
}

/// Answers requests about a mount, or about a daemon without one. It holds references only and
/// keeps no layer running.
pub struct Teller {
    part: MountPart,
    stats: Arc<hither_rpc::Stats>,
    tls: Option<Arc<ClientTls>>,
    delegated: Option<Delegated>,
    /// `None`: a daemon without a mount.
    mounted: Option<Arc<hither_fuse::Mounted>>,
    root: Fh,
    disk: Option<Arc<DataCache>>,
    parts: Parts,
    pending_removes: Option<Arc<PendingRemoves>>,
    pending_creates: Option<Arc<PendingCreates>>,
    wal: Option<Arc<Wal>>,
    wanted: Wanted,
    programs: Option<Arc<Programs>>,
}

impl Teller {
    /// A teller for the mount of `client` on `dir`, or for its socket at `dir` without a mount.
    /// `root` is the root of the layers.
    pub fn new(
        job: &Job,
        dir: &Path,
        client: &Client,
        root: Fh,
        mounted: Option<Arc<hither_fuse::Mounted>>,
        programs: Option<Arc<Programs>>,
    ) -> Self {
        let c = &client.connected;
        let part = MountPart {
            source: job.source.shown(),
            dir: dir.to_string_lossy().into_owned(),
            nfs_version: c.version.name().to_string(),
            server: c.server.to_string(),
            options: client.effective(),
            rsize_bytes: c.rsize_bytes,
            wsize_bytes: c.wsize_bytes,
            age_s: 0,
            pid: std::process::id(),
            cache: job.wanted.cache.dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()),
            cache_trouble: None,
            journal: client.wal.as_ref().map(|wal| wal.dir().to_string_lossy().into_owned()),
            journal_trouble: None,
            fuse_minor: mounted.as_ref().map(|mounted| mounted.negotiated().0),
            transport: None,
        };
        let (disk, parts, wanted) = (client.disk.clone(), client.parts.clone(), job.wanted.clone());
        let (wal, pending_creates) = (client.wal.clone(), client.pending_creates.clone());
        let pending_removes = client.pending_removes.clone();
        let (stats, delegated) = (c.stats.clone(), c.delegated.clone());
        Self {
            wal,
            pending_creates,
            pending_removes,
            part,
            stats,
            tls: client.options.tls.clone(),
            delegated,
            mounted,
            root,
            disk,
            parts,
            wanted,
            programs,
        }
    }

    /// The report of the mount.
    pub fn report(&self) -> Report {
        let rpc = self.stats.snapshot();
        let cache_trouble = self.disk.as_ref().and_then(|disk| disk.trouble());
        let journal_trouble = self.wal.as_ref().and_then(|wal| wal.trouble());
        let transport = self.tls.as_ref().and_then(|tls| tls.report()).map(Transport::from);
        let part =
            MountPart { age_s: rpc.age_s, cache_trouble, journal_trouble, transport, ..self.part.clone() };
        let requests = self.mounted.as_ref().map_or_else(Vec::new, |mounted| mounted.stats());
        Report::new(part, &rpc, &requests, self.layers())
    }

    /// The statvers=1.1 record. `flags` are the mount's flags from mountinfo.
    pub fn mountstats(&self, flags: &str) -> String {
        let rpc = self.stats.snapshot();
        let part = MountPart { age_s: rpc.age_s, ..self.part.clone() };
        mountstats::record(&part, flags, &rpc, &self.requests())
    }

    /// The cached state of a path below the mount point, and the cost of its last calls.
    ///
    /// # Errors
    /// A message for the user.
    pub async fn why(&self, path: &str) -> Result<serde_json::Value, String> {
        let disk = self.disk.as_deref();
        let layers = why::Layers {
            mounted: self.mounted.as_deref(),
            root: &self.root,
            parts: &self.parts,
            disk,
            wanted: &self.wanted,
        };
        serde_json::to_value(layers.explain(path).await?).map_err(|e| e.to_string())
    }

    /// The calls to the server since a position. Only mounts record calls. [`u64::MAX`] returns no
    /// calls, only the present position.
    ///
    /// # Errors
    /// A message for the user.
    pub fn calls(&self, from: u64) -> Result<serde_json::Value, String> {
        let Some(mounted) = &self.mounted else {
            let none = Since { next: 0, lost: 0, calls: Vec::new() };
            return serde_json::to_value(none).map_err(|e| e.to_string());
        };
        serde_json::to_value(why::since(mounted, from)).map_err(|e| e.to_string())
    }

    /// Answers requests about the disk cache.
    ///
    /// # Errors
    /// A message for the user.
    pub async fn cache(&self, ask: CacheAsk) -> Result<serde_json::Value, String> {
        match &self.disk {
            Some(disk) => cache::answer(disk, &self.parts.own.meta, ask).await,
            None => Err("it has no disk cache: start it with -o cache".into()),
        }
    }

    /// Starts or ends a recording of opened files or calls.
    ///
    /// # Errors
    /// Another process is recording.
    pub fn trace(&self, ask: TraceAsk) -> Result<serde_json::Value, String> {
        let mounted = self.mounted.as_ref().ok_or("only mounts record calls: mount it")?;
        let value = match ask {
            TraceAsk::Start { by, below, calls } => {
                let record = if calls { Record::Calls } else { Record::Opens };
                if !mounted.trace(by, below, record) {
                    return Err("another process records already".into());
                }
                Ok(serde_json::json!({}))
            }
            TraceAsk::Stop { by } => {
                let ended = mounted.end_trace(by).ok_or("nothing was recorded")?;
                serde_json::to_value(Trace::from(ended))
            }
        };
        value.map_err(|e| e.to_string())
    }

    /// Writes the kept data of a conflict over its file, or over another file.
    ///
    /// # Errors
    /// A message for the user.
    pub async fn apply(&self, name: &str, to: Option<&str>) -> Result<serde_json::Value, String> {
        let Some(wal) = &self.wal else {
            return Err("it is mounted without a journal (writeback=journal)".into());
        };
        let bytes = journal::apply(self.parts.own.dirty.clone(), wal.conflicts(), name, to).await?;
        Ok(serde_json::json!({ "applied_bytes": bytes }))
    }

    /// Waits until the server has all written data.
    pub async fn sync(&self, within: Duration) -> serde_json::Value {
        let sync = async {
            if let Some(pending_creates) = &self.pending_creates {
                pending_creates.sync().await?;
            }
            if let Some(pending_removes) = &self.pending_removes {
                pending_removes.sync().await?;
            }
            self.parts.sync().await
        };
        let unsent = match tokio::time::timeout(within, sync).await {
            Ok(Ok(())) => return serde_json::json!({}),
            Ok(Err(e)) => e.to_string(),
            Err(_) => format!("the server did not take the data within {} s", within.as_secs()),
        };
        let kept = match self.parts.unsent() {
            (0, _) => String::new(),
            (bytes, files) => format!("; {bytes} bytes of {files} files are kept and tried again"),
        };
        serde_json::json!({ "unsent": unsent + &kept })
    }

    fn layers(&self) -> BTreeMap<String, Counters> {
        let mut layers = vec![
            ("meta", Counters::sum(self.parts.all().map(|part| Counters::of(&part.meta.stats())))),
            ("dirty", Counters::sum(self.parts.all().map(|part| Counters::of(&part.dirty.stats())))),
        ];
        layers.extend(
            self.pending_creates
                .as_ref()
                .map(|pending_creates| ("ahead", Counters::of(&pending_creates.stats()))),
        );
        layers.extend(
            self.pending_removes
                .as_ref()
                .map(|pending_removes| ("removals", Counters::of(&pending_removes.stats()))),
        );
        layers.extend(self.wal.as_ref().map(|wal| ("journal", Counters::of(&wal.stats()))));
        let mut leases = BTreeMap::new();
        if let Some(mounted) = &self.mounted {
            layers.push(("hints", Counters::of(&mounted.hints())));
            let lent = BTreeMap::from([("opens", mounted.passthrough_opens())]);
            layers.extend(self.disk.as_ref().map(|_| ("passthrough", Counters::of(&lent))));
            let (held, withdrawals) = mounted.leases();
            leases.extend([("held", held), ("withdrawals", withdrawals)]);
        }
        layers.extend(self.disk.as_ref().map(|disk| ("disk", Counters::of(&disk.stats()))));
        layers.extend(self.programs.as_ref().map(|programs| ("socket", Counters::of(&programs.stats()))));
        if let Some(delegated) = &self.delegated {
            let counts = delegated.counts();
            leases.extend([
                ("delegations_read", counts.reading),
                ("delegations_write", counts.writing),
                ("delegations_directory", counts.directories),
                ("recalls", counts.recalls),
                ("getattrs", counts.getattrs),
            ]);
        }
        layers.push(("leases", Counters::of(&leases)));
        layers.into_iter().map(|(name, counters)| (name.to_string(), counters)).collect()
    }

    fn requests(&self) -> BTreeMap<String, u64> {
        let requests = self.mounted.iter().flat_map(|mounted| mounted.stats());
        requests.map(|op| (op.op.to_string(), op.count)).collect()
    }
}
