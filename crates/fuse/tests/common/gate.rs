//! A layer that passes calls on. A test can make it delay calls like an unresponsive server, fail
//! them, shorten reads, and count calls.

use async_trait::async_trait;
use bytes::Bytes;
use hither_vfs::*;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

pub struct Gate {
    below: Arc<dyn Vfs>,
    state: Mutex<State>,
    opened: Notify,
}

#[derive(Default)]
struct State {
    shut: HashSet<&'static str>,
    fail: HashMap<&'static str, i32>,
    waiting: HashMap<&'static str, usize>,
    calls: HashMap<&'static str, usize>,
    short_reads: Option<u32>,
    cookie_shift: u64,
    stuck_listing: bool,
    listed: usize,
    last_cred: Option<Arc<Cred>>,
    walks: Vec<Walk>,
    last_open: Option<RequestContext>,
    remembers: bool,
    names: HashMap<(Fh, Name, Arc<Cred>), Node>,
    leases: bool,
    upcalls: Option<Arc<dyn Upcalls>>,
    at_peek: Option<Act>,
}

/// Keys of delayed answers, by operation.
const ANSWERS: [(&str, &str); 6] = [
    ("walk", "walk's answer"),
    ("readdir", "readdir's answer"),
    ("write", "write's answer"),
    ("copy", "copy's answer"),
    ("deallocate", "deallocate's answer"),
    ("setattr", "setattr's answer"),
];

/// An action of the test at each peek of a name.
type Act = Arc<dyn Fn(&str) + Send + Sync>;

/// A recorded walk.
#[derive(Debug, Clone)]
pub struct Walk {
    /// Names, joined by slashes.
    pub path: String,
    pub want: WalkRequest,
    pub at: tokio::time::Instant,
}

impl Gate {
    pub fn new(below: Arc<dyn Vfs>) -> Arc<Self> {
        Arc::new(Self { below, state: Mutex::default(), opened: Notify::new() })
    }

    /// Delays calls of a kind from now on. They do not end when they are cancelled, as with the
    /// worst server.
    pub fn shut(&self, op: &'static str) {
        self.state.lock().unwrap().shut.insert(op);
    }

    /// Delays the answers of calls of a kind from now on. They are as old as the call.
    pub fn shut_answers(&self, op: &str) {
        let key = ANSWERS.iter().find(|(of, _)| *of == op).unwrap().1;
        self.shut(key);
    }

    /// Number of delayed answers of calls of a kind.
    pub fn answers_waiting(&self, op: &str) -> usize {
        self.waiting(ANSWERS.iter().find(|(of, _)| *of == op).unwrap().1)
    }

    /// Lets calls of a kind pass.
    pub fn let_pass(&self, op: &str) {
        self.state.lock().unwrap().shut.retain(|shut| *shut != op);
        self.opened.notify_waiters();
    }

    /// Lets all calls pass.
    pub fn open_all(&self) {
        self.state.lock().unwrap().shut.clear();
        self.opened.notify_waiters();
    }

    /// Number of delayed calls of a kind.
    pub fn waiting(&self, op: &'static str) -> usize {
        self.state.lock().unwrap().waiting.get(op).copied().unwrap_or(0)
    }

    /// Number of calls of a kind.
    pub fn calls(&self, op: &'static str) -> usize {
        self.state.lock().unwrap().calls.get(op).copied().unwrap_or(0)
    }

    /// Fails calls of a kind with `errno`; 0 stops that.
    pub fn fail(&self, op: &'static str, errno: i32) {
        let mut s = self.state.lock().unwrap();
        if errno == 0 {
            s.fail.remove(op)
        } else {
            s.fail.insert(op, errno)
        };
    }

    /// Limits reads to `bytes` bytes.
    pub fn cut_reads(&self, bytes: u32) {
        self.state.lock().unwrap().short_reads = Some(bytes);
    }

    /// Subtracts `shift` from all cookies, because servers of NFSv3 may use the cookies 1 and 2.
    pub fn shift_cookies(&self, shift: u64) {
        self.state.lock().unwrap().cookie_shift = shift;
    }

    /// Number of entries of all listings.
    pub fn listed(&self) -> usize {
        self.state.lock().unwrap().listed
    }

    /// Makes listings return to their start again and again.
    pub fn circle(&self) {
        self.state.lock().unwrap().stuck_listing = true;
    }

    /// Removes and returns the recorded walks.
    pub fn walks(&self) -> Vec<Walk> {
        std::mem::take(&mut self.state.lock().unwrap().walks)
    }

    /// Runs `act` at each peek of a name: after a lookup was read, and before a request was sent.
    pub fn at_peek(&self, act: impl Fn(&str) + Send + Sync + 'static) {
        self.state.lock().unwrap().at_peek = Some(Arc::new(act));
    }

    /// Caches walked names for the same caller, until a change or an error. This is the minimum of
    /// a cache.
    pub fn remember_names(&self) {
        self.state.lock().unwrap().remembers = true;
    }

    fn remembered(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        let key = (at.base.clone(), at.path.first()?.clone(), cx.cred.clone());
        let node = self.state.lock().unwrap().names.get(&key).cloned()?;
        Some(WalkResult::new(vec![node], Stop::Complete))
    }

    /// Grants leases on files from now on.
    pub fn give_leases(&self) {
        self.state.lock().unwrap().leases = true;
    }

    /// Lets a lease expire.
    pub async fn expire(&self, fh: &Fh) {
        let upcalls = self.state.lock().unwrap().upcalls.clone().unwrap();
        upcalls.expire(std::slice::from_ref(fh)).await;
    }

    pub async fn revoke(&self, fh: Option<&Fh>) {
        let upcalls = self.state.lock().unwrap().upcalls.clone().unwrap();
        match fh {
            Some(fh) => upcalls.revoke(fh).await,
            None => upcalls.revoke_all().await,
        }
    }

    fn lease(&self, attrs: &mut Attrs) {
        if attrs.attr.kind != FileKind::Directory && self.state.lock().unwrap().leases {
            attrs.valid = Validity::Lease;
        }
    }

    /// Context of the last open.
    pub fn last_open(&self) -> RequestContext {
        self.state.lock().unwrap().last_open.clone().unwrap()
    }

    /// Identity of the last call.
    pub fn last_cred(&self) -> Arc<Cred> {
        self.state.lock().unwrap().last_cred.clone().unwrap()
    }

    async fn pass(&self, cx: &RequestContext, op: &'static str) -> Result<()> {
        {
            let mut s = self.state.lock().unwrap();
            *s.calls.entry(op).or_default() += 1;
            s.last_cred = Some(cx.cred.clone());
            if let Some(&errno) = s.fail.get(op) {
                return Err(Error::new(errno));
            }
        }
        self.hold(op).await;
        Ok(())
    }

    /// Waits while calls of a kind, or their answers, are delayed.
    async fn hold(&self, op: &'static str) {
        {
            let mut s = self.state.lock().unwrap();
            if !s.shut.contains(op) {
                return;
            }
            *s.waiting.entry(op).or_default() += 1;
        }
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            if !self.state.lock().unwrap().shut.contains(op) {
                break;
            }
            opened.await;
        }
        *self.state.lock().unwrap().waiting.entry(op).or_default() -= 1;
    }
}

macro_rules! pass_on {
    ($(fn $op:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        #[async_trait]
        impl Vfs for Gate {
            $(async fn $op(&self, cx: &RequestContext, $($arg: $ty),*) -> Result<$out> {
                self.pass(cx, stringify!($op)).await?;
                let result = self.below.$op(cx, $($arg),*).await;
                if !matches!(stringify!($op), "access" | "close" | "statfs" | "getxattr" | "readlink") {
                    self.state.lock().unwrap().names.clear();
                }
                if let Some((_, answer)) = ANSWERS.iter().find(|(of, _)| *of == stringify!($op)) {
                    self.hold(answer).await;
                }
                result
            })*

            async fn read(&self, cx: &RequestContext, file: File<'_>, at: u64, len: u32) -> Result<Read> {
                self.pass(cx, "read").await?;
                let cut = self.state.lock().unwrap().short_reads.unwrap_or(u32::MAX);
                self.below.read(cx, file, at, len.min(cut)).await
            }

            async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
                let names: Vec<_> = at.path.iter().map(|n| String::from_utf8_lossy(n.as_bytes())).collect();
                let walk = Walk { path: names.join("/"), want, at: tokio::time::Instant::now() };
                self.state.lock().unwrap().walks.push(walk);
                self.pass(cx, "walk").await?;
                let mut trail = self.below.walk(cx, at, want).await?;
                trail.steps.iter_mut().for_each(|node| self.lease(&mut node.attrs));
                self.hold("walk's answer").await;
                let mut s = self.state.lock().unwrap();
                let mut base = at.base;
                let remembered = if s.remembers { trail.steps.len() } else { 0 };
                for (name, node) in at.path.iter().zip(&trail.steps).take(remembered) {
                    s.names.insert((base.clone(), name.clone(), cx.cred.clone()), node.clone());
                    base = &node.fh;
                }
                Ok(trail)
            }

            async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
                self.pass(cx, "getattr").await?;
                let mut attrs = self.below.getattr(cx, file).await?;
                self.lease(&mut attrs);
                Ok(attrs)
            }

            async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
                self.state.lock().unwrap().last_open = Some(cx.clone());
                self.pass(cx, "open").await?;
                let opened = self.below.open(cx, at, how).await;
                if opened.is_err() || how.create != Create::No {
                    self.state.lock().unwrap().names.clear();
                }
                let mut opened = opened?;
                self.lease(&mut opened.node.attrs);
                Ok(opened)
            }

            fn peek(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
                let at_peek = self.state.lock().unwrap().at_peek.clone();
                if let (Some(act), Some(name)) = (at_peek, at.path.last()) {
                    act(&String::from_utf8_lossy(name.as_bytes()));
                }
                self.remembered(cx, at).or_else(|| self.below.peek(cx, at))
            }

            fn subscribe(&self, upcalls: std::sync::Arc<dyn Upcalls>) {
                self.state.lock().unwrap().upcalls = Some(upcalls.clone());
                self.below.subscribe(upcalls);
            }

            async fn readdir(
                &self, cx: &RequestContext, dir: &Fh, cookie: u64, v: [u8; 8], max: u32, nodes: bool,
            ) -> Result<DirPage> {
                self.pass(cx, "readdir").await?;
                let (shift, circle) = {
                    let s = self.state.lock().unwrap();
                    (s.cookie_shift, s.stuck_listing)
                };
                let below = if cookie == 0 || circle { 0 } else { cookie + shift };
                let mut page = self.below.readdir(cx, dir, below, v, max, nodes).await?;
                page.entries.iter_mut().for_each(|e| e.cookie -= shift);
                let nodes = page.entries.iter_mut().filter_map(|e| e.node.as_mut());
                nodes.for_each(|node| self.lease(&mut node.attrs));
                page.eof &= !circle;
                self.state.lock().unwrap().listed += page.entries.len();
                self.hold("readdir's answer").await;
                Ok(page)
            }

            async fn write(
                &self, cx: &RequestContext, file: File<'_>, at: u64, data: Data, stability: Stability,
            ) -> Result<Wrote> {
                self.pass(cx, "write").await?;
                let wrote = self.below.write(cx, file, at, data, stability).await;
                self.state.lock().unwrap().names.clear();
                let mut wrote = wrote?;
                wrote.attrs.iter_mut().for_each(|attrs| self.lease(attrs));
                self.hold("write's answer").await;
                Ok(wrote)
            }
        }

        #[async_trait]
        impl BatchOps for Gate {
            hither_vfs::delegate!(self.below; getattr_many, revalidate_many, read_many, list_many);

            async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
                create_many_in_steps(self, cx, dir, new).await
            }

            async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
                remove_many_in_steps(self, cx, dir, gone).await
            }
        }
    };
}

pass_on! {
    fn root() -> Node;
    fn setattr(file: File<'_>, set: &SetAttr) -> Attrs;
    fn access(fh: &Fh, want: Access) -> Access;
    fn parent(dir: &Fh) -> Node;
    fn readlink(fh: &Fh) -> Bytes;
    fn close(fh: &Fh, open: OpenId) -> ();
    fn finish(file: File<'_>, piece: Option<(u64, Data)>, set: &SetAttr) -> Finished;
    fn commit(file: File<'_>) -> ();
    fn create_whole(dir: &Fh, name: &Name, set: &SetAttr, data: Data) -> Made;
    fn mkdir(dir: &Fh, name: &Name, set: &SetAttr) -> Made;
    fn mknod(dir: &Fh, name: &Name, what: &Special, set: &SetAttr) -> Made;
    fn symlink(dir: &Fh, name: &Name, target: &Bytes, set: &SetAttr) -> Made;
    fn link(fh: &Fh, dir: &Fh, name: &Name) -> Made;
    fn unlink(dir: &Fh, name: &Name, target: Option<&Fh>) -> ChangeInfo;
    fn rmdir(dir: &Fh, name: &Name) -> ChangeInfo;
    fn rename(
        from: (&Fh, &Name), to: (&Fh, &Name), replaced: Option<&Fh>, flags: RenameFlags
    ) -> Moved;
    fn statfs(fh: &Fh) -> FsStat;
    fn getxattr(fh: &Fh, name: &[u8]) -> Bytes;
    fn setxattr(fh: &Fh, name: &[u8], value: &Bytes, mode: XattrMode) -> ();
    fn listxattr(fh: &Fh) -> Vec<Bytes>;
    fn removexattr(fh: &Fh, name: &[u8]) -> ();
    fn lock(
        file: File<'_>, owner: LockOwner, kind: LockKind, range: FileRange, wait: LockWait
    ) -> Option<Attrs>;
    fn unlock(file: File<'_>, owner: LockOwner, range: FileRange) -> ();
    fn test_lock(
        file: File<'_>, owner: LockOwner, kind: LockKind, range: FileRange
    ) -> Option<LockConflict>;
    fn seek(file: File<'_>, offset_bytes: u64, what: Seek) -> u64;
    fn allocate(file: File<'_>, range: FileRange) -> ();
    fn deallocate(file: File<'_>, range: FileRange) -> ();
    fn copy(
        from: File<'_>, from_offset_bytes: u64, to: File<'_>, to_offset_bytes: u64, len_bytes: u64
    ) -> u64;
    fn shutdown() -> ();
}
