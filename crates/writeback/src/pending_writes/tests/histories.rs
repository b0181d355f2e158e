//! Random histories on virtual time, compared with a plain vector of bytes. Reads see every write
//! at once, at any behaviour of the server. The server has all bytes that fsync or close
//! acknowledged.

use super::gate::Verdict;
use super::*;
use hither_vfs::{Error, FileRange};
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Op {
    Write {
        open: usize,
        at: u64,
        len: u64,
        byte: u8,
    },
    Append {
        open: usize,
        len: u64,
        byte: u8,
    },
    Sync {
        open: usize,
        at: u64,
        len: u64,
        byte: u8,
    },
    Read {
        open: usize,
        at: u64,
        len: u32,
    },
    Resize {
        open: usize,
        size: u64,
    },
    Punch {
        open: usize,
        at: u64,
        len: u64,
    },
    SetTime(usize),
    /// Sets times and permissions, which may be delayed.
    Defer(usize, u32, u8),
    /// Another user requests the access rights.
    Pay,
    Copy {
        open: usize,
        from: u64,
        to: u64,
        len: u64,
    },
    Commit(usize),
    /// Closes and opens again.
    Reopen(usize, bool),
    Stat(usize),
    Wait(u64),
    /// Makes the server full, silent or well.
    Server(i32),
    /// A recall, which sends all bytes.
    Recall,
}

fn op() -> impl Strategy<Value = Op> {
    let (open, at, byte) = (0..3usize, 0..300u64, any::<u8>());
    let len = prop_oneof![4 => 1..40u64, 1 => 1..400u64];
    prop_oneof![
        8 => (open.clone(), at.clone(), len.clone(), byte)
            .prop_map(|(open, at, len, byte)| Op::Write { open, at, len, byte }),
        3 => (open.clone(), len.clone(), byte).prop_map(|(open, len, byte)| Op::Append { open, len, byte }),
        1 => (open.clone(), at.clone(), len.clone(), byte)
            .prop_map(|(open, at, len, byte)| Op::Sync { open, at, len, byte }),
        5 => (open.clone(), at.clone(), 0..500u32).prop_map(|(open, at, len)| Op::Read { open, at, len }),
        2 => (open.clone(), 0..400u64).prop_map(|(open, size)| Op::Resize { open, size }),
        1 => (open.clone(), at.clone(), len.clone()).prop_map(|(open, at, len)| Op::Punch { open, at, len }),
        1 => open.clone().prop_map(Op::SetTime),
        2 => (open.clone(), 0..4u32, 1..8u8).prop_map(|(open, mode, what)| Op::Defer(open, 0o600 | mode, what)),
        1 => Just(Op::Pay),
        1 => (open.clone(), at.clone(), at, len)
            .prop_map(|(open, from, to, len)| Op::Copy { open, from, to, len }),
        2 => open.clone().prop_map(Op::Commit),
        1 => (open.clone(), proptest::bool::weighted(0.2)).prop_map(|(o, cut)| Op::Reopen(o, cut)),
        2 => open.prop_map(Op::Stat),
        4 => prop_oneof![0..20u64, 0..8000u64].prop_map(Op::Wait),
        2 => prop_oneof![Just(0), Just(0), Just(libc::ENOSPC), Just(libc::EIO)].prop_map(Op::Server),
        1 => Just(Op::Recall),
    ]
}

struct Run {
    s: Stack,
    opens: Vec<(Fh, OpenId)>,
    file: Vec<u8>,
    server: Arc<Mutex<i32>>,
    /// The modification time set last, unless bytes were written since.
    then: Option<Time>,
    mode: u32,
    /// An error may still have to be reported.
    troubled: bool,
    /// The file is delegated except during a recall, and closes do not wait.
    delegated: bool,
}

impl Run {
    async fn new(seed: u64) -> Self {
        let delegated = seed >> 32 & 1 == 1;
        let options = WriteBackOptions {
            delegated_close: delegated,
            wsize_bytes: 64,
            dirty_max_bytes: 2048,
            file_max_bytes: 512,
            flights_per_file: 2,
            small_flights_per_file: 3,
            flights: 4,
            stat_flush_bytes: 32,
            ..Default::default()
        };
        let s = Stack::new(options).await;
        let server = Arc::new(Mutex::new(0));
        let (trouble, mut x) = (server.clone(), seed | 1);
        s.gate.decide(Box::new(move |_, len| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let after = match x % 4 {
                0 => Duration::ZERO,
                1 => Duration::from_millis(x >> 20 & 15),
                _ => Duration::from_millis(x >> 20 & 2047),
            };
            match (*trouble.lock(), x >> 40 & 7) {
                (0, 0) => Verdict::Short(after, 1 + (x >> 45) % len),
                (0, _) => Verdict::Pass(after),
                (_, 0) => Verdict::Short(after, 1 + (x >> 45) % len),
                (errno, _) => Verdict::Fail(after, errno),
            }
        }));
        s.dirty.subscribe(Arc::new(Nobody));
        s.gate.delegate(delegated);
        let mut opens = Vec::new();
        for _ in 0..3 {
            opens.push(s.open("f").await);
        }
        Self { s, opens, file: Vec::new(), server, then: None, mode: 0o644, troubled: false, delegated }
    }

    fn put(&mut self, at: u64, data: &[u8]) {
        let end = at as usize + data.len();
        self.file.resize(self.file.len().max(end), 0);
        self.file[at as usize..end].copy_from_slice(data);
    }

    async fn write(&mut self, open: usize, at: u64, data: Bytes, stability: Stability) {
        let f = &self.opens[open];
        // Different opens write as different users.
        let who = RequestContext::new(Arc::new(Cred { gid: open as u32 % 2, ..Cred::root() }));
        let file = At { fh: &f.0, open: Some(f.1) };
        let wrote = self.s.dirty.write(&who, file, at, data.clone().into(), stability).await;
        match wrote {
            Ok(w) => self.put(at, &data[..w.bytes as usize]),
            Err(e) => self.must_be_trouble(e),
        }
    }

    fn must_be_trouble(&self, e: Error) {
        assert!(self.troubled, "no reason for {e}");
    }

    async fn same_below(&self) {
        let fh = &self.opens[0].0;
        assert_eq!(self.s.below(fh).await, self.file);
        let theirs = self.s.gate.below().getattr(&cx(), At { fh, open: None }).await.unwrap().attr;
        assert_eq!(theirs.mode, self.mode);
        assert!(self.then.is_none_or(|then| theirs.mtime == then), "{:?} {:?}", theirs.mtime, self.then);
    }

    async fn defer(&mut self, open: usize, mode: u32, what: u8) {
        let f = &self.opens[open];
        let then = Time { secs: 6, nanos: self.file.len() as u32 };
        let time = |bit| (what & bit != 0).then_some(SetTime::To(then));
        let set = SetAttr {
            mode: (what & 1 != 0).then_some(mode),
            mtime: time(2),
            atime: time(4),
            ..Default::default()
        };
        let mode = set.mode.unwrap_or(self.mode);
        let file = At { fh: &f.0, open: Some(f.1) };
        let attrs = self.s.dirty.setattr(&cx(), file, &set).await.unwrap();
        assert_eq!(attrs.attr.mode, mode);
        // On a failing server, older bytes may still be unsent.
        let then = if set.mtime.is_some() { Some(then) } else { self.then };
        (self.then, self.mode) = (then.filter(|_| !self.troubled), mode);
        assert_eq!(self.s.dirty.getattr(&cx(), file).await.unwrap().attr.mode, mode);
    }

    /// Makes the server well, and waits until it has all bytes.
    async fn recover(&mut self) {
        *self.server.lock() = 0;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(self.s.dirty.stats().dirty_bytes, 0, "old bytes are sent by age");
    }

    /// Prepares a call that must not fail.
    async fn calm(&mut self) {
        if self.troubled {
            self.recover().await;
        }
    }

    async fn step(&mut self, op: Op) {
        let changes = matches!(
            op,
            Op::Write { .. } | Op::Append { .. } | Op::Sync { .. } | Op::Resize { .. } | Op::Punch { .. }
        );
        if changes || matches!(op, Op::Copy { .. } | Op::SetTime(_) | Op::Reopen(_, true)) {
            self.then = None;
        }
        match op {
            Op::Defer(open, mode, what) => self.defer(open, mode, what).await,
            Op::Pay => {
                let who = RequestContext::new(Arc::new(Cred { uid: 9, ..Cred::root() }));
                let fh = &self.opens[0].0;
                self.s.dirty.access(&who, fh, hither_vfs::Access::READ).await.unwrap();
                let theirs = self.s.gate.below().getattr(&cx(), At { fh, open: None }).await;
                assert_eq!(theirs.unwrap().attr.mode, self.mode);
            }
            Op::Write { open, at, len, byte } => {
                self.write(open, at, pattern(byte, len), Stability::Unstable).await;
            }
            Op::Append { open, len, byte } => {
                let end = self.file.len() as u64;
                self.write(open, end, pattern(byte, len), Stability::Unstable).await;
            }
            Op::Sync { open, at, len, byte } => {
                self.write(open, at, pattern(byte, len), Stability::Stable).await;
            }
            Op::Read { open, at, len } => {
                let seen = self.s.read(&self.opens[open], at, len).await;
                let (from, to) = (at as usize, at as usize + len as usize);
                let (from, to) = (from.min(self.file.len()), to.min(self.file.len()));
                assert_eq!(seen, self.file[from..to]);
            }
            Op::Resize { open, size } => {
                let attrs = self.s.resize(&self.opens[open], size).await.unwrap();
                self.file.resize(size as usize, 0);
                assert_eq!(attrs.attr.size_bytes, size);
            }
            Op::Punch { open, at, len } => self.punch(open, at, len).await,
            Op::SetTime(open) => {
                self.calm().await;
                let f = &self.opens[open];
                let then = Time { secs: 5, nanos: self.file.len() as u32 };
                let set = SetAttr { mtime: Some(SetTime::To(then)), ..Default::default() };
                let file = At { fh: &f.0, open: Some(f.1) };
                self.s.dirty.setattr(&cx(), file, &set).await.unwrap();
                tokio::time::sleep(Duration::from_secs(60)).await;
                assert_eq!(self.s.dirty.getattr(&cx(), file).await.unwrap().attr.mtime, then);
            }
            Op::Copy { open, from, to, len } => self.copy(open, from, to, len).await,
            Op::Commit(open) => match self.s.commit(&self.opens[open]).await {
                Ok(()) => self.same_below().await,
                Err(e) => self.must_be_trouble(e),
            },
            Op::Reopen(open, cut) => self.reopen(open, cut).await,
            Op::Stat(open) => assert_eq!(self.s.size(&self.opens[open]).await, self.file.len() as u64),
            Op::Wait(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Op::Server(errno) => {
                *self.server.lock() = errno;
                self.troubled |= errno != 0;
            }
            Op::Recall => {
                self.s.gate.delegate(false);
                self.s.gate.upcalls().revoke(&self.opens[0].0).await;
                if !self.troubled {
                    self.same_below().await;
                }
                self.s.gate.delegate(self.delegated);
            }
        }
        let stats = self.s.dirty.stats();
        assert!(stats.dirty_bytes <= 2048 && stats.dirty_bytes_peak <= 2048);
    }

    /// Bytes that cannot be sent cannot be punched or copied, so the server must be well.
    async fn punch(&mut self, open: usize, at: u64, len: u64) {
        self.calm().await;
        let f = &self.opens[open];
        let hole = FileRange { start_bytes: at, end_bytes: at + len };
        self.s.dirty.deallocate(&cx(), At { fh: &f.0, open: Some(f.1) }, hole).await.unwrap();
        let size = self.file.len();
        self.file[size.min(at as usize)..size.min((at + len) as usize)].fill(0);
    }

    async fn copy(&mut self, open: usize, from: u64, to: u64, len: u64) {
        self.calm().await;
        let f = &self.opens[open];
        let file = At { fh: &f.0, open: Some(f.1) };
        let n = self.s.dirty.copy(&cx(), file, from, file, to, len).await.unwrap();
        let end = (from + len).min(self.file.len() as u64);
        assert_eq!(n, end.saturating_sub(from));
        if n > 0 {
            let data = self.file[from as usize..end as usize].to_vec();
            self.put(to, &data);
        }
    }

    async fn reopen(&mut self, open: usize, cut: bool) {
        self.calm().await;
        let closed = self.s.close(&self.opens[open]).await;
        if let Err(e) = closed {
            self.must_be_trouble(e);
        }
        if !self.delegated {
            self.same_below().await;
        }
        if cut {
            self.file.clear();
        }
        let file = name("f");
        let at = if cut { PathRef::fh(&self.opens[open].0) } else { PathRef::name(&self.s.root, &file) };
        let how = if cut { OpenHow { create: Create::No, ..how(true) } } else { how(false) };
        let opened = self.s.dirty.open(&cx(), at, &how).await.unwrap();
        assert_eq!(opened.node.attrs.attr.size_bytes, self.file.len() as u64);
        self.opens[open].1 = opened.open;
    }

    async fn end(mut self) {
        self.recover().await;
        for f in self.opens.clone() {
            // Each open reports a past error at most once.
            if let Err(e) = self.s.commit(&f).await {
                self.must_be_trouble(e);
                self.s.commit(&f).await.unwrap();
            }
            self.same_below().await;
            self.s.close(&f).await.unwrap();
        }
        settle().await;
        assert!(self.s.dirty.holds_no_file());
        assert_eq!(self.s.dirty.total.load(Ordering::Relaxed), 0);
        assert_eq!(self.s.dirty.stats().bytes_dropped, 0);
    }
}

pub(super) struct Nobody;

impl Upcalls for Nobody {
    fn revoke(&self, _: &Fh) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

fn play(ops: Vec<Op>, seed: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let mut run = Run::new(seed).await;
        for op in ops {
            run.step(op).await;
        }
        run.end().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..Default::default() })]

    /// Reads in random histories see every write. The server has all bytes that fsync or close
    /// acknowledged.
    /// Promise: 5
    #[test]
    fn random_histories_read_own_writes(ops in vec(op(), 1..50), seed in any::<u64>()) {
        play(ops, seed);
    }
}

/// Several writers on several threads, each with its own part of one file, with syncs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_side_by_side() {
    let options = WriteBackOptions { wsize_bytes: 4096, dirty_max_bytes: 64 << 10, ..Default::default() };
    let s = Arc::new(Stack::new(options).await);
    let part = 40_000u64;
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..8u64 {
        let s = s.clone();
        tasks.spawn(async move {
            let f = s.open("shared").await;
            for round in 0..3u8 {
                let mut at = 0;
                while at < part {
                    let len = (1 + (at * 7 + i * 13) % 6000).min(part - at);
                    s.write(&f, i * part + at, pattern(round + i as u8, len)).await.unwrap();
                    assert_eq!(s.read(&f, i * part + at, len as u32).await, pattern(round + i as u8, len));
                    at += len;
                }
                s.commit(&f).await.unwrap();
            }
            s.close(&f).await.unwrap();
        });
    }
    tasks.join_all().await;
    let f = s.open("shared").await;
    let all = s.below(&f.0).await;
    assert_eq!(all.len() as u64, 8 * part);
    for i in 0..8u64 {
        let mut at = 0;
        while at < part {
            let len = (1 + (at * 7 + i * 13) % 6000).min(part - at);
            let from = (i * part + at) as usize;
            assert_eq!(all[from..from + len as usize], pattern(2 + i as u8, len));
            at += len;
        }
    }
    s.close(&f).await.unwrap();
    let stats = s.dirty.stats();
    assert!(stats.dirty_bytes == 0 && stats.dirty_bytes_peak <= 64 << 10);
}

/// A modification time that is set applies after the bytes written before.
#[test]
fn set_time_applies_after_writes() {
    let write = |at, len| Op::Write { open: 0, at, len, byte: 0 };
    let ops = vec![write(104, 28), Op::Stat(0), write(102, 30), write(103, 32), Op::SetTime(0)];
    play(ops, 65_657_237_924_905_832);
}
