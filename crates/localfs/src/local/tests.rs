//! Tests of a served directory. They run as root, on the file system of the build and on a tmpfs.

use super::*;
use bytes::Bytes;
use hither_vfs::{
    Access, Create, Cred, Data, File, FileRange, LockKind, LockOwner, LockWait, Made, Name, OpenHow, Opened,
    PathRef, RenameFlags, Seek, SetAttr, SetTime, Special, Stability, Stop, Time, Vfs, WalkRequest,
    XattrMode,
};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

mod acls;
mod clones;
mod covered;
mod descriptors;
mod failing;
mod fresh;
mod hostile;
mod journaled;
mod known;
mod new;
mod overlay;
mod piped;
mod place;
mod posix;
mod power;
mod watch;

/// Runs a command, and returns whether it succeeded.
fn sh(program: &str, args: &[&str]) -> bool {
    std::process::Command::new(program).args(args).output().is_ok_and(|out| out.status.success())
}

/// Whether there are loop devices. Root must have them, so that no test is skipped unseen.
fn has_loop_devices() -> bool {
    let has = sh("losetup", &["-f"]);
    assert!(has || !rustix::process::geteuid().is_root(), "no loop devices: losetup -f fails");
    has
}

/// A directory that is removed at the end of its test.
pub(in crate::local) struct Dir(pub(in crate::local) PathBuf);

impl Dir {
    fn on(place: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(place).join(format!("hither-local-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    pub(in crate::local) fn new() -> Self {
        Self::on(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tests"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn env() -> Env {
    static NEXT: AtomicU64 = AtomicU64::new(0x1234_5678);
    #[allow(clippy::disallowed_methods)] // ctime is the time of the machine.
    let wall = || SystemTime::now();
    let random = || NEXT.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).rotate_left(29);
    Env { random: Arc::new(random), wall: Arc::new(wall) }
}

fn local(dir: &Dir) -> Local {
    Local::open(&dir.0, LocalOptions { stable: false, ..Default::default() }, env()).unwrap()
}

fn cx(uid: u32, gid: u32, groups: &[u32]) -> RequestContext {
    RequestContext::new(Arc::new(Cred { uid, gid, groups: groups.into() }))
}

fn root() -> RequestContext {
    cx(0, 0, &[])
}

fn name(n: &str) -> Name {
    Name::new(n.as_bytes().to_vec()).unwrap()
}

fn names(path: &str) -> Vec<Name> {
    path.split('/').map(name).collect()
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..Default::default() }
}

fn how(access: OpenAccess, create: Create) -> OpenHow {
    OpenHow { access, create, truncate: false, execute: false, first_bytes: 0, known: None }
}

fn both() -> OpenAccess {
    OpenAccess::READ | OpenAccess::WRITE
}

fn errno<T>(r: Result<T>) -> i32 {
    r.err().map_or(0, |e| e.errno)
}

async fn top(l: &Local) -> Fh {
    l.root(&root()).await.unwrap().fh
}

async fn find(l: &Local, cx: &RequestContext, path: &str) -> Result<Node> {
    let (base, path) = (top(l).await, names(path));
    let mut trail = l.walk(cx, PathRef { base: &base, path: &path }, WalkRequest::default()).await?;
    match trail.stop {
        Stop::Complete => Ok(trail.steps.pop().unwrap()),
        Stop::Missing(_) => Err(Error::new(libc::ENOENT)),
        Stop::Symlink => Err(Error::new(libc::ELOOP)),
        Stop::NotDirectory => Err(Error::new(libc::ENOTDIR)),
        Stop::Limit => Err(Error::new(libc::EIO)),
        Stop::Failed(e) => Err(e),
    }
}

async fn create(l: &Local, cx: &RequestContext, dir: &Fh, n: &str, bits: u32) -> Result<Opened> {
    l.open(cx, PathRef::name(dir, &name(n)), &how(both(), Create::Exclusive(mode(bits)))).await
}

async fn put(l: &Local, cx: &RequestContext, f: &Opened, at: u64, data: &'static [u8]) -> Result<u64> {
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    Ok(l.write(cx, file, at, Bytes::from_static(data).into(), Stability::Unstable).await?.bytes)
}

async fn read_all(l: &Local, cx: &RequestContext, fh: &Fh) -> Result<Bytes> {
    Ok(l.read(cx, File { fh, open: None }, 0, 1 << 20).await?.data.into_bytes())
}
