//! A mount of the reference model for tests, with a layer that delays, fails and counts calls.

#![allow(dead_code, missing_docs, clippy::unwrap_used)]

mod aio;
mod gate;
mod uring;

#[allow(unused_imports)]
pub use aio::aio_write;
pub use gate::Gate;
use hither_fuse::{Config, Layers, Mounted, mount};
use hither_vfs::{Env, Fh, File, Name, PathRef, SetAttr, Vfs, model::Model};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
#[allow(unused_imports)]
pub use uring::uring_open;

/// A mounted model. The runtime serves the mount. The test's own thread acts as the programs.
pub struct Mount {
    pub dir: PathBuf,
    pub model: Arc<Model>,
    pub gate: Arc<Gate>,
    pub mounted: Option<Mounted>,
    pub rt: Runtime,
}

/// A mount with answers that are valid for `validity_ms`. `None`, with a message, when the test may
/// not mount.
pub fn mounted(validity_ms: u64) -> Option<Mount> {
    mounted_with(validity_ms, |_| ())
}

pub fn mounted_with(validity_ms: u64, change: impl FnOnce(&mut Config)) -> Option<Mount> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: mounting needs root and /dev/fuse");
        return None;
    }
    own_mount_namespace();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("hither-fuse-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    #[allow(clippy::disallowed_methods)]
    let wall = || std::time::SystemTime::now();
    let env = Env { random: Arc::new(|| 4), wall: Arc::new(wall) };
    let model = Arc::new(Model::new(env, Duration::from_millis(validity_ms), 64 << 20));
    let gate = Gate::new(model.clone());
    let mut config = Config { source: "model:/".into(), mount_flags: 0, ..Config::default() };
    change(&mut config);
    // As few threads as a mount needs, and one for the test.
    let rt = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(hither_fuse::BLOCKING_THREADS_MAX + 1)
        .enable_all()
        .build()
        .unwrap();
    let mounted = rt.block_on(mount(&dir, config, Layers::alone(gate.clone()))).unwrap();
    Some(Mount { dir, model, gate, mounted: Some(mounted), rt })
}

/// Moves this thread and its child processes to a new mount namespace. Otherwise a copy of the
/// mount in another new namespace would keep the mount alive after the unmount.
fn own_mount_namespace() {
    let none = std::ptr::null();
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: only a constant string is passed.
    let ok = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, flags, std::ptr::null()) == 0
    };
    assert!(ok, "a mount namespace: {}", std::io::Error::last_os_error());
}

impl Mount {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    /// Number of requests of one kind.
    pub fn requests(&self, op: &str) -> u64 {
        self.mounted().stats().iter().find(|c| c.op == op).map_or(0, |c| c.count)
    }

    /// Name in `/sys/fs/fuse/connections`.
    pub fn connection(&self) -> u32 {
        self.mounted().device().1
    }

    /// Lets the kernel forget all objects that no program uses.
    pub fn forget(&self) {
        let path = std::ffi::CString::new(self.dir.to_str().unwrap()).unwrap();
        let flags = libc::MS_REMOUNT | libc::MS_NOSUID | libc::MS_NODEV;
        // SAFETY: NUL-terminated strings; FUSE ignores the options of a remount.
        let ok = unsafe {
            libc::mount(c"none".as_ptr(), path.as_ptr(), std::ptr::null(), flags, std::ptr::null())
        };
        assert_eq!(ok, 0, "a remount: {}", std::io::Error::last_os_error());
    }

    /// Runs `act` while the kernel repeatedly forgets all objects that no program uses.
    pub fn forgetting<T>(&self, act: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    self.forget();
                    pause(1);
                }
            });
            let done = catch_unwind(AssertUnwindSafe(act));
            over.store(true, Ordering::Relaxed);
            done.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Aborts the connection.
    pub fn abort(&self) {
        let control = Path::new("/sys/fs/fuse/connections");
        if !control.join(self.connection().to_string()).exists() {
            let ok = Command::new("mount").args(["-t", "fusectl", "fusectl"]).arg(control).status().unwrap();
            assert!(ok.success(), "the control file system");
        }
        std::fs::write(control.join(self.connection().to_string()).join("abort"), "1").unwrap();
    }

    /// Filehandle of an object, by path from the root, looked up by another client.
    pub fn fh(&self, path: &str) -> Fh {
        self.rt.block_on(async {
            let cx = root();
            let mut fh = self.model.root(&cx).await.unwrap().fh;
            for part in path.split('/').filter(|p| !p.is_empty()) {
                let name = name(part);
                fh = self
                    .model
                    .walk(&cx, PathRef::name(&fh, &name), hither_vfs::WalkRequest::default())
                    .await
                    .unwrap()
                    .steps[0]
                    .fh
                    .clone();
            }
            fh
        })
    }

    /// Another client writes a file. It creates a missing file.
    pub fn foreign_write(&self, path: &str, offset: u64, data: &[u8]) {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.fh(dir);
        let how = hither_vfs::OpenHow {
            access: hither_vfs::OpenAccess::WRITE,
            create: hither_vfs::Create::IfMissing(SetAttr { mode: Some(0o644), ..Default::default() }),
            truncate: false,
            execute: false,
            first_bytes: 0,
            known: None,
        };
        let data = bytes::Bytes::copy_from_slice(data);
        self.rt.block_on(async {
            let cx = root();
            let last = name(last);
            let f = self.model.open(&cx, PathRef::name(&dir, &last), &how).await.unwrap();
            let file = File { fh: &f.node.fh, open: Some(f.open) };
            let stable = hither_vfs::Stability::Stable;
            self.model.write(&cx, file, offset, data.into(), stable).await.unwrap();
            self.model.close(&cx, &f.node.fh, f.open).await.unwrap();
        });
    }

    /// Another client creates a directory and its missing parents.
    pub fn foreign_dirs(&self, path: &str) {
        let mut dir = self.fh("");
        let set = SetAttr { mode: Some(0o755), ..Default::default() };
        for part in path.split('/').filter(|p| !p.is_empty()) {
            let made = self.rt.block_on(self.model.mkdir(&root(), &dir, &name(part), &set));
            let found = || {
                let (part, cx, want) = (name(part), root(), hither_vfs::WalkRequest::default());
                let walk = self.model.walk(&cx, PathRef::name(&dir, &part), want);
                self.rt.block_on(walk).unwrap().steps.remove(0)
            };
            let node = made.map_or_else(|_| found(), |made| made.node);
            dir = node.fh;
        }
    }

    /// Another client creates a symbolic link.
    pub fn foreign_symlink(&self, path: &str, target: &str) {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        let (dir, target) = (self.fh(dir), bytes::Bytes::copy_from_slice(target.as_bytes()));
        let set = SetAttr::default();
        self.rt.block_on(self.model.symlink(&root(), &dir, &name(last), &target, &set)).unwrap();
    }

    /// Another client changes attributes.
    pub fn foreign_setattr(&self, path: &str, set: &SetAttr) {
        let fh = self.fh(path);
        self.rt.block_on(self.model.setattr(&root(), File { fh: &fh, open: None }, set)).unwrap();
    }

    /// Another client removes a file.
    pub fn foreign_unlink(&self, path: &str) {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.fh(dir);
        self.rt.block_on(self.model.unlink(&root(), &dir, &name(last), None)).unwrap();
    }

    /// Another client renames an object in the root of the mount.
    pub fn foreign_rename(&self, old: &str, new: &str) {
        let (root_fh, flags) = (self.fh(""), hither_vfs::RenameFlags::empty());
        let (from, to) = ((&root_fh, &name(old)), (&root_fh, &name(new)));
        self.rt.block_on(self.model.rename(&root(), from, to, None, flags)).unwrap();
    }

    /// Another client reads a whole file.
    pub fn foreign_read(&self, path: &str) -> Vec<u8> {
        let fh = self.fh(path);
        let read = self.rt.block_on(self.model.read(&root(), File { fh: &fh, open: None }, 0, 64 << 20));
        read.unwrap().data.into_bytes().to_vec()
    }

    /// Unmounts, and checks that no file is open.
    pub fn end(mut self) {
        let mounted = self.mounted.take().unwrap();
        // A killed process closes its files a short time after wait(2) has returned.
        eventually("nothing is in use", || mounted.unmount(false).is_ok());
        let ended = self.rt.block_on(async { tokio::time::timeout(PATIENCE, mounted.wait()).await });
        ended.expect("the threads end with the mount");
        assert_eq!(self.model.open_count(), 0, "opens left at the server");
        assert_eq!(mounted.counts().open_files, 0, "files left open");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.gate.open_all();
        drop(self.mounted.take());
        let _ = std::fs::remove_dir(&self.dir);
    }
}

pub fn root() -> hither_vfs::RequestContext {
    hither_vfs::RequestContext::new(Arc::new(hither_vfs::Cred::root()))
}

pub fn name(n: &str) -> Name {
    Name::new(n.as_bytes().to_vec()).unwrap()
}

/// Runs a shell command in the mount as another user.
pub fn as_user(dir: &Path, uid: u32, gid: u32, groups: &[u32], command: &str) -> Output {
    let mut c = Command::new("setpriv");
    c.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
    match groups {
        [] => c.arg("--clear-groups"),
        _ => c.arg(format!("--groups={}", groups.iter().map(u32::to_string).collect::<Vec<_>>().join(","))),
    };
    // The shell must not need rights to its working directory.
    c.args(["--", "sh", "-c", command]).current_dir("/").env("M", dir).env("LC_ALL", "C");
    c.output().unwrap()
}

/// As [`as_user`], returns whether the command succeeded.
pub fn user_can(dir: &Path, uid: u32, gid: u32, groups: &[u32], command: &str) -> bool {
    as_user(dir, uid, gid, groups, command).status.success()
}

/// The maximum time of a short operation on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the condition holds, for more than a minute.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if holds() {
            return;
        }
        pause(10);
    }
    panic!("not within {PATIENCE:?}: {what}");
}

/// Checks that a value (a time, a number of calls) is below a bound in one of several attempts. On
/// a busy machine it is sometimes above the bound.
pub fn once_below<T: PartialOrd + std::fmt::Debug>(what: &str, bound: T, mut attempt: impl FnMut() -> T) {
    let mut all = Vec::new();
    for _ in 0..10 {
        let this = attempt();
        if this < bound {
            return;
        }
        all.push(this);
    }
    panic!("{what}: never below {bound:?}: {all:?}");
}

#[allow(clippy::disallowed_methods)]
pub fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Duration of a function in seconds.
#[allow(clippy::disallowed_methods)]
pub fn seconds(f: impl FnOnce()) -> f64 {
    let start = std::time::Instant::now();
    f();
    start.elapsed().as_secs_f64()
}
