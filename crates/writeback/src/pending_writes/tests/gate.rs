//! A layer between the tested layer and the model. It counts, holds back and fails calls, and
//! shortens and delays writes.

use async_trait::async_trait;
use bytes::Bytes;
use hither_vfs::*;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// A function that decides about the next writes.
pub type Fate = Box<dyn FnMut(u64, u64) -> Verdict + Send>;

/// The decision about one write.
#[derive(Debug, Clone, Copy)]
pub enum Verdict {
    /// The write is passed on after a delay.
    Pass(Duration),
    /// The write fails after a delay, without effect.
    Fail(Duration, i32),
    /// Only the first bytes are written, after a delay.
    Short(Duration, u64),
}

pub struct Gate {
    below: Arc<dyn Vfs>,
    state: Mutex<State>,
    opened: Notify,
}

#[derive(Default)]
struct State {
    shut: HashSet<&'static str>,
    shut_files: HashSet<Fh>,
    fail: HashMap<&'static str, i32>,
    waiting: HashMap<&'static str, usize>,
    most_waiting: HashMap<&'static str, usize>,
    calls: HashMap<&'static str, usize>,
    fate: Option<Fate>,
    old_attrs: Option<Attrs>,
    writes: Vec<(u64, u64)>,
    stable_writes: usize,
    finishes: usize,
    last_write: Option<Data>,
    creds: Vec<Arc<Cred>>,
    batches: Vec<usize>,
    removed: Vec<usize>,
    unused: Vec<bool>,
    fail_names: HashMap<Name, (i32, bool)>,
    upcalls: Option<Arc<dyn Upcalls>>,
    delegated: bool,
    delegates_times: bool,
    /// Times of writes that `finish` set ([`RequestContext::sets_write_time`]).
    write_times: Vec<Time>,
    /// Answers to `can_cache_writes`, the next one last. True when the list is empty.
    can_cache_writes: Vec<bool>,
    grants: bool,
    log: Vec<String>,
}

impl Gate {
    pub fn new(below: Arc<dyn Vfs>) -> Arc<Self> {
        Arc::new(Self { below, state: Mutex::default(), opened: Notify::new() })
    }

    /// Delegates all files for writing, up to 1000 bytes, or none.
    pub fn delegate(&self, delegated: bool) {
        self.state.lock().delegated = delegated;
    }

    /// Lets this mount maintain the times of all files, or of none.
    pub fn delegate_times(&self, delegates_times: bool) {
        self.state.lock().delegates_times = delegates_times;
    }

    /// Times of writes that were set.
    pub fn write_times(&self) -> Vec<Time> {
        self.state.lock().write_times.clone()
    }

    /// Sets the next answers to `can_cache_writes`, and the answer to `request_write_caching`.
    pub fn can_cache_writes(&self, answers: &[bool], grants: bool) {
        let mut s = self.state.lock();
        (s.can_cache_writes, s.grants) = (answers.iter().rev().copied().collect(), grants);
    }

    /// Another gate to the same model.
    pub fn another(&self) -> Arc<Self> {
        Self::new(self.below.clone())
    }

    pub fn below(&self) -> &dyn Vfs {
        &*self.below
    }

    /// The server without the gate.
    pub fn server(&self) -> Arc<dyn Vfs> {
        self.below.clone()
    }

    /// Holds back calls of a kind (`walk`), or their answers (`walk answer`).
    pub fn shut(&self, op: &'static str) {
        self.state.lock().shut.insert(op);
    }

    /// Holds back writes to one file.
    pub fn shut_file(&self, fh: &Fh) {
        self.state.lock().shut_files.insert(fh.clone());
    }

    /// Releases all calls and answers.
    pub fn open_all(&self) {
        let mut s = self.state.lock();
        s.shut.clear();
        s.shut_files.clear();
        drop(s);
        self.opened.notify_waiters();
    }

    /// The number of calls of a kind that are held back.
    pub fn waiting(&self, op: &'static str) -> usize {
        self.state.lock().waiting.get(op).copied().unwrap_or(0)
    }

    /// The most calls of a kind that were held back at a time.
    pub fn most_waiting(&self, op: &'static str) -> usize {
        self.state.lock().most_waiting.get(op).copied().unwrap_or(0)
    }

    /// The number of calls of a kind so far.
    pub fn calls(&self, op: &'static str) -> usize {
        self.state.lock().calls.get(op).copied().unwrap_or(0)
    }

    pub fn total_calls(&self) -> usize {
        self.state.lock().calls.values().sum()
    }

    /// Fails calls of a kind. 0 ends that. `EKEYEXPIRED`: the server judges nothing. `mtime`: all
    /// attributes sent with a modification time.
    pub fn fail(&self, op: &'static str, errno: i32) {
        self.state.lock().fail.insert(op, errno);
    }

    /// Fails the creation or removal of a file. 0 ends that. `there`: the call takes effect
    /// although the caller gets an error.
    pub fn fail_name(&self, name: &Name, errno: i32, there: bool) {
        self.state.lock().fail_names.insert(name.clone(), (errno, there));
    }

    /// The number of objects in each call that created several.
    pub fn batches(&self) -> Vec<usize> {
        self.state.lock().batches.clone()
    }

    /// For each removed name: whether the caller declared its object unused.
    pub fn unused(&self) -> Vec<bool> {
        self.state.lock().unused.clone()
    }

    /// The number of names in each call that removed several.
    pub fn removed(&self) -> Vec<usize> {
        self.state.lock().removed.clone()
    }

    /// Sets the function that decides about writes.
    pub fn decide(&self, fate: Fate) {
        self.state.lock().fate = Some(fate);
    }

    /// Answers requests for attributes with these, like an answer that was in flight for long.
    pub fn answer_with(&self, attrs: Option<Attrs>) {
        self.state.lock().old_attrs = attrs;
    }

    /// Offset and length of the writes so far.
    pub fn writes(&self) -> Vec<(u64, u64)> {
        self.state.lock().writes.clone()
    }

    pub fn stable_writes(&self) -> usize {
        self.state.lock().stable_writes
    }

    pub fn finishes(&self) -> usize {
        self.state.lock().finishes
    }

    pub fn last_write(&self) -> Option<Data> {
        self.state.lock().last_write.clone()
    }

    /// Credentials of the writes so far.
    pub fn creds(&self) -> Vec<Arc<Cred>> {
        self.state.lock().creds.clone()
    }

    pub fn upcalls(&self) -> Arc<dyn Upcalls> {
        self.state.lock().upcalls.clone().unwrap()
    }

    /// Names of the calls so far, in the order of passing them on.
    pub fn log(&self) -> Vec<String> {
        self.state.lock().log.clone()
    }

    async fn held(&self, held: impl Fn(&State) -> bool) {
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            if !held(&self.state.lock()) {
                return;
            }
            opened.await;
        }
    }

    async fn pass(&self, op: &'static str, fh: Option<&Fh>) -> Result<()> {
        let held = |s: &State| s.shut.contains(op) || fh.is_some_and(|fh| s.shut_files.contains(fh));
        {
            let mut s = self.state.lock();
            *s.calls.entry(op).or_default() += 1;
            let waiting = *s.waiting.entry(op).and_modify(|n| *n += 1).or_insert(1);
            let most = s.most_waiting.entry(op).or_default();
            *most = waiting.max(*most);
        }
        self.held(held).await;
        let mut s = self.state.lock();
        *s.waiting.entry(op).or_default() -= 1;
        match s.fail.get(op) {
            Some(&libc::EKEYEXPIRED) => Err(Error::unproven(libc::EACCES, "no ticket works")),
            Some(&errno) if errno != 0 => Err(Error::new(errno)),
            _ => {
                s.log.push(op.to_owned());
                Ok(())
            }
        }
    }
}

macro_rules! pass_on {
    ($(fn $op:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        #[async_trait]
        impl Vfs for Gate {
            $(async fn $op(&self, cx: &RequestContext, $($arg: $ty),*) -> Result<$out> {
                self.pass(stringify!($op), None).await?;
                let out = self.below.$op(cx, $($arg),*).await;
                self.held(|s| s.shut.contains(concat!(stringify!($op), " answer"))).await;
                out
            })*

            async fn write(
                &self, cx: &RequestContext, file: File<'_>, at: u64, data: Data, stability: Stability,
            ) -> Result<Wrote> {
                let len = data.len() as u64;
                let verdict = {
                    let mut s = self.state.lock();
                    s.writes.push((at, len));
                    s.stable_writes += usize::from(stability == Stability::Stable);
                    s.last_write = Some(data.clone());
                    s.creds.push(cx.cred.clone());
                    s.fate.as_mut().map_or(Verdict::Pass(Duration::ZERO), |fate| fate(at, len))
                };
                self.pass("write", Some(file.fh)).await?;
                let data = match verdict {
                    // A passed write takes effect at once, while a timer of zero takes a
                    // millisecond.
                    Verdict::Pass(Duration::ZERO) => data,
                    Verdict::Pass(after) => {
                        tokio::time::sleep(after).await;
                        data
                    }
                    Verdict::Fail(after, errno) => {
                        tokio::time::sleep(after).await;
                        return Err(Error::new(errno));
                    }
                    Verdict::Short(after, most) => {
                        tokio::time::sleep(after).await;
                        data.into_bytes().slice(..most.min(len) as usize).into()
                    }
                };
                self.below.write(cx, file, at, data, stability).await
            }

            async fn finish(
                &self, cx: &RequestContext, file: File<'_>, piece: Option<(u64, Data)>, set: &SetAttr,
            ) -> Result<Finished> {
                let refusal = {
                    let mut s = self.state.lock();
                    s.finishes += 1;
                    if let (true, Some(SetTime::To(mtime))) = (cx.sets_write_time, set.mtime) {
                        s.write_times.push(mtime);
                    }
                    s.fail.get("mtime").copied().filter(|errno| *errno != 0 && set.mtime.is_some())
                };
                match refusal {
                    None => finish_in_steps(self, cx, file, piece, set).await,
                    Some(errno) => {
                        let done = finish_in_steps(self, cx, file, piece, &SetAttr::default()).await?;
                        Ok(Finished { set: Err(Error::new(errno)), ..done })
                    }
                }
            }

            async fn unlink(
                &self, cx: &RequestContext, dir: &Fh, name: &Name, target: Option<&Fh>,
            ) -> Result<ChangeInfo> {
                self.pass("unlink", None).await?;
                self.state.lock().unused.push(cx.target_unused);
                let fate = self.state.lock().fail_names.get(name).copied();
                let removes = !matches!(fate, Some((errno, false)) if errno != 0);
                let out = if removes { self.below.unlink(cx, dir, name, target).await } else { Ok(ChangeInfo::default()) };
                match fate {
                    Some((errno, _)) if errno != 0 => return Err(Error::new(errno)),
                    _ => {}
                }
                self.held(|s| s.shut.contains("unlink answer")).await;
                out
            }

            async fn create_whole(
                &self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr, data: Data,
            ) -> Result<Made> {
                self.pass("create_whole", None).await?;
                let fate = self.state.lock().fail_names.get(name).copied();
                match fate {
                    None | Some((0, _)) => {}
                    Some((errno, false)) => return Err(Error::new(errno)),
                    Some((errno, true)) => {
                        drop(self.below.create_whole(cx, dir, name, set, data).await);
                        return Err(Error::new(errno));
                    }
                }
                let out = self.below.create_whole(cx, dir, name, set, data).await;
                self.held(|s| s.shut.contains("create_whole answer")).await;
                out
            }

            async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
                self.pass("getattr", None).await?;
                let old = self.state.lock().old_attrs.clone();
                match old {
                    Some(attrs) => Ok(attrs),
                    None => self.below.getattr(cx, file).await,
                }
            }

            delegate!(self.below; peek);

            fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
                self.state.lock().upcalls = Some(upcalls);
            }
        }

        #[async_trait]
        impl BatchOps for Gate {
            delegate!(self.below; getattr_many, revalidate_many, read_many, list_many);

            async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
                self.state.lock().batches.push(new.len());
                create_many_in_steps(self, cx, dir, new).await
            }

            async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
                self.state.lock().removed.push(gone.len());
                remove_many_in_steps(self, cx, dir, gone).await
            }
        }
    };
}

#[async_trait]
impl LeaseAuthority for Gate {
    fn delegated_bytes(&self, _: &Fh) -> Option<u64> {
        self.state.lock().delegated.then_some(1000)
    }

    fn can_cache_writes(&self, _: &Fh) -> bool {
        self.state.lock().can_cache_writes.pop().unwrap_or(true)
    }

    async fn request_write_caching(&self, _: &RequestContext, _: &Fh) -> bool {
        self.state.lock().grants
    }

    fn is_noncacheable(&self, _: &Fh) -> bool {
        false
    }

    fn delegates_times(&self, _: &Fh) -> bool {
        self.state.lock().delegates_times
    }
}

pass_on! {
    fn root() -> Node;
    fn walk(at: PathRef<'_>, want: WalkRequest) -> WalkResult;
    fn setattr(file: File<'_>, set: &SetAttr) -> Attrs;
    fn access(fh: &Fh, want: Access) -> Access;
    fn parent(dir: &Fh) -> Node;
    fn readlink(fh: &Fh) -> Bytes;
    fn open(at: PathRef<'_>, how: &OpenHow) -> Opened;
    fn close(fh: &Fh, open: OpenId) -> ();
    fn read(file: File<'_>, at: u64, len: u32) -> Read;
    fn commit(file: File<'_>) -> ();
    fn mkdir(dir: &Fh, name: &Name, set: &SetAttr) -> Made;
    fn mknod(dir: &Fh, name: &Name, what: &Special, set: &SetAttr) -> Made;
    fn symlink(dir: &Fh, name: &Name, target: &Bytes, set: &SetAttr) -> Made;
    fn link(fh: &Fh, dir: &Fh, name: &Name) -> Made;
    fn rmdir(dir: &Fh, name: &Name) -> ChangeInfo;
    fn rename(
        from: (&Fh, &Name), to: (&Fh, &Name), replaced: Option<&Fh>, flags: RenameFlags
    ) -> Moved;
    fn readdir(dir: &Fh, cookie: u64, verifier: [u8; 8], max: u32, nodes: bool) -> DirPage;
    fn statfs(fh: &Fh) -> FsStat;
    fn getxattr(fh: &Fh, name: &[u8]) -> Bytes;
    fn setxattr(fh: &Fh, name: &[u8], value: &Bytes, mode: XattrMode) -> ();
    fn listxattr(fh: &Fh) -> Vec<Bytes>;
    fn removexattr(fh: &Fh, name: &[u8]) -> ();
    fn lock(
        file: File<'_>, owner: LockOwner, kind: LockKind, range: FileRange, wait: LockWait
    ) -> Option<Attrs>;
    fn unlock(file: File<'_>, owner: LockOwner, range: FileRange) -> ();
    fn test_lock(file: File<'_>, owner: LockOwner, kind: LockKind, range: FileRange) -> Option<LockConflict>;
    fn seek(file: File<'_>, at: u64, what: Seek) -> u64;
    fn allocate(file: File<'_>, range: FileRange) -> ();
    fn deallocate(file: File<'_>, range: FileRange) -> ();
    fn copy(from: File<'_>, from_at: u64, to: File<'_>, to_at: u64, len: u64) -> u64;
    fn shutdown() -> ();
}
