//! No data of an acknowledged commit is lost, at any number of server restarts.

use super::*;
use bytes::Bytes;
use hither_vfs::FileRange;
use proptest::prelude::*;

/// A server with one file that loses some unstable writes at each restart.
struct Server {
    state: Mutex<State>,
    wsize_bytes: u32,
}

struct State {
    stable: Vec<u8>,
    /// Unstable writes in the order of their execution.
    pending: Vec<(u64, Bytes)>,
    boots: u64,
    random: u64,
    /// One in this many steps is a restart; 0: never.
    restart_every: u64,
    refuse: Option<i32>,
    silent: bool,
    delay: Duration,
    commits: u32,
    writes: u32,
    calls_now: u32,
    most_calls: u32,
}

fn apply(file: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    file.resize(file.len().max(end), 0);
    file[offset as usize..end].copy_from_slice(data);
}

impl State {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn restart(&mut self) {
        self.boots += 1;
        for (offset, data) in std::mem::take(&mut self.pending) {
            if self.random(2) == 0 {
                apply(&mut self.stable, offset, &data);
            }
        }
    }

    fn maybe_restart(&mut self) {
        if self.restart_every > 0 && self.random(self.restart_every) == 0 {
            self.restart();
        }
    }

    fn sync(&mut self) {
        for (offset, data) in std::mem::take(&mut self.pending) {
            apply(&mut self.stable, offset, &data);
        }
    }

    fn volatile(&self) -> Vec<u8> {
        let mut all = self.stable.clone();
        self.pending.iter().for_each(|(offset, data)| apply(&mut all, *offset, data));
        all
    }
}

impl Server {
    fn new(seed: u64, restart_every: u64) -> Arc<Self> {
        let state = State {
            stable: Vec::new(),
            pending: Vec::new(),
            boots: 1,
            random: seed | 1,
            restart_every,
            refuse: None,
            silent: false,
            delay: Duration::ZERO,
            commits: 0,
            writes: 0,
            calls_now: 0,
            most_calls: 0,
        };
        Arc::new(Self { state: Mutex::new(state), wsize_bytes: 16 })
    }

    /// Time of the request or the reply on the network. The server may restart in this time.
    async fn travel(&self) {
        let delay = self.state.lock().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let hops = self.state.lock().random(4);
        for _ in 0..hops {
            tokio::task::yield_now().await;
        }
        self.state.lock().maybe_restart();
    }

    fn truncate(&self, size: u64) {
        let mut s = self.state.lock();
        s.sync();
        s.stable.resize(size as usize, 0);
    }

    fn verdict(&self) -> std::result::Result<(), Failure> {
        let s = self.state.lock();
        match s.refuse {
            _ if s.silent => Err(Failure::Unanswered(Error::new(libc::ETIMEDOUT))),
            Some(errno) => Err(Failure::Refused(Error::new(errno))),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Wire for Server {
    fn path(&self, _: &Fh) -> Option<String> {
        None
    }

    fn wsize_bytes(&self) -> u32 {
        self.wsize_bytes
    }

    async fn write(
        &self,
        _: &Origin,
        _: &Fh,
        offset: u64,
        data: Data,
        stable: bool,
    ) -> std::result::Result<WriteReply, Failure> {
        {
            let mut s = self.state.lock();
            s.calls_now += 1;
            s.most_calls = s.most_calls.max(s.calls_now);
        }
        self.travel().await;
        let verdict = self.verdict();
        let reply = {
            let mut s = self.state.lock();
            s.calls_now -= 1;
            s.writes += 1;
            verdict?;
            let mut data = data.into_bytes();
            assert!(!data.is_empty() && data.len() <= self.wsize_bytes as usize);
            // Some writes are short.
            if s.random(5) == 0 {
                data.truncate(data.len().div_ceil(2));
            }
            let bytes = data.len() as u64;
            if stable {
                s.sync();
                apply(&mut s.stable, offset, &data);
            } else {
                s.pending.push((offset, data));
            }
            WriteReply { bytes, stable, verifier: s.boots.to_be_bytes(), attr: None }
        };
        self.travel().await;
        Ok(reply)
    }

    async fn commit(&self, _: &Origin, _: &Fh) -> std::result::Result<Verifier, Failure> {
        self.travel().await;
        self.verdict()?;
        let verifier = {
            let mut s = self.state.lock();
            s.commits += 1;
            s.sync();
            s.boots.to_be_bytes()
        };
        self.travel().await;
        Ok(verifier)
    }

    fn epoch(&self) -> u64 {
        self.state.lock().boots
    }
}

fn fh() -> Fh {
    Fh(Bytes::from_static(b"file"))
}

fn cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

/// Memory by which the bound may be exceeded: the bookkeeping of one batch of writes. A batch has
/// up to six calls of up to eight short WRITEs. Their bookkeeping is counted at the reply.
const SLACK_BYTES: u64 = 6 * 8 * 200;
const LIMITS: Limits = Limits { most_bytes: 4000, most_age: Duration::from_secs(30) };

#[derive(Debug, Clone)]
enum Step {
    /// Concurrent writes, perhaps with a concurrent commit.
    Writes(Vec<(FileRange, bool)>, bool),
    Commit,
    Truncate(u64),
    Restart,
    Reconnected,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0_u64..120, 1_u64..50)
        .prop_map(|(start_bytes, len)| FileRange { start_bytes, end_bytes: start_bytes + len });
    let writes = proptest::collection::vec((range, proptest::bool::weighted(0.2)), 1..6);
    prop_oneof![
        6 => (writes, any::<bool>()).prop_map(|(w, c)| Step::Writes(w, c)),
        2 => Just(Step::Commit),
        1 => (0_u64..150).prop_map(Step::Truncate),
        1 => Just(Step::Restart),
        1 => Just(Step::Reconnected),
    ]
}

struct World {
    server: Arc<Server>,
    writes: Arc<Uncommitted>,
    expected: Vec<u8>,
    next: u8,
    tight: bool,
}

impl World {
    async fn step(&mut self, step: Step) {
        match step {
            Step::Writes(writes, commit) => self.write(writes, commit).await,
            Step::Commit => {
                self.writes.commit(&cx(), &fh(), None).await.expect("the server refuses nothing");
                assert_eq!(self.server.state.lock().stable, self.expected, "commit returned too early");
                assert_eq!(self.writes.kept_bytes(), 0);
            }
            Step::Truncate(size) => {
                let truncating = self.writes.truncating(&fh(), size).await;
                self.server.truncate(size);
                truncating.done();
                self.expected.resize(size as usize, 0);
            }
            Step::Restart => self.server.state.lock().restart(),
            Step::Reconnected => self.writes.reconnected(),
        }
        assert!(!self.tight || self.writes.kept_bytes() <= LIMITS.most_bytes + SLACK_BYTES);
        self.check_reads().await;
    }

    async fn write(&mut self, writes: Vec<(FileRange, bool)>, commit: bool) {
        let mut tasks = JoinSet::new();
        let mut flying: Vec<FileRange> = Vec::new();
        for (range, stable) in writes {
            // A write that waits for room may be overtaken. Overlapping writes keep the order of
            // their calls only when there is room for all.
            let overlaps = |r: &FileRange| r.start_bytes < range.end_bytes && range.start_bytes < r.end_bytes;
            if self.tight && flying.iter().any(overlaps) {
                while tasks.join_next().await.transpose().expect("no write panics").is_some() {}
                flying.clear();
            }
            flying.push(range);
            self.next = self.next.wrapping_add(1);
            let data = Bytes::from(vec![self.next; (range.end_bytes - range.start_bytes) as usize]);
            apply(&mut self.expected, range.start_bytes, &data);
            let (all, stability) =
                (self.writes.clone(), if stable { Stability::Stable } else { Stability::Unstable });
            tasks.spawn(async move {
                let len = data.len() as u64;
                let done = all.write(&cx(), &fh(), None, range.start_bytes, data.into(), stability).await;
                assert_eq!(done.expect("the server refuses nothing").0, len);
            });
        }
        if commit {
            let all = self.writes.clone();
            tasks.spawn(async move { all.commit(&cx(), &fh(), None).await.expect("nothing is refused") });
        }
        tasks.join_all().await;
    }

    /// A reader sees the written data, even when the server lost some of it.
    async fn check_reads(&self) {
        let epoch_quiet = || self.server.state.lock().volatile();
        let all = epoch_quiet();
        for (offset, len) in [(0_u64, 200_u32), (30, 40), (100, 100)] {
            let from = all.len().min(offset as usize);
            let to = all.len().min(from + len as usize);
            let read = Read { data: Bytes::copy_from_slice(&all[from..to]).into(), eof: to == all.len() };
            let read = self.writes.overlay(&fh(), offset, len, read);
            let end = self.expected.len().min((offset as usize) + len as usize);
            let wanted = self.expected.get(offset as usize..end).unwrap_or_default();
            assert_eq!(&read.data.into_bytes()[..], wanted, "at {offset}");
        }
        assert_eq!(self.writes.size(&fh(), all.len() as u64), self.expected.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    /// Random concurrent writes, commits, truncations and restarts that lose any part of the
    /// unstable data. Every acknowledged commit holds. Reads see the latest write. Memory is
    /// bounded.
    #[test]
    fn nothing_committed_is_lost(
        steps in proptest::collection::vec(step(), 1..40),
        seed in any::<u64>(),
        restart_every in prop_oneof![Just(0_u64), Just(60), Just(12)],
        tight in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let server = Server::new(seed, restart_every);
            let limits = if tight { LIMITS } else { Limits::default() };
            let writes = Uncommitted::new(server.clone(), limits);
            let mut world = World { server, writes, expected: Vec::new(), next: 0, tight };
            for step in steps {
                let run = world.step(step);
                tokio::time::timeout(Duration::from_secs(60), run).await.expect("nothing hangs");
            }
            // Without restarts all data arrives.
            world.server.state.lock().restart_every = 0;
            world.step(Step::Commit).await;
            // Background tasks end.
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(world.writes.files.lock().is_empty(), "an idle file is forgotten");
        });
    }
}

async fn write(writes: &Uncommitted, offset: u64, len: usize) -> Result<(u64, Option<Attr>)> {
    writes.write(&cx(), &fh(), None, offset, Bytes::from(vec![7; len]).into(), Stability::Unstable).await
}

/// As with Linux's errseq, each open that existed at the error reports it once. A later open does
/// not.
/// Promise: 3
#[tokio::test]
async fn write_error_reaches_each_open() {
    let server = Server::new(1, 0);
    let writes = Uncommitted::new(server.clone(), LIMITS);
    let (a, b) = (writes.opened(&fh()), writes.opened(&fh()));
    write(&writes, 0, 10).await.unwrap();
    server.state.lock().refuse = Some(libc::ESTALE);
    assert_eq!(writes.commit(&cx(), &fh(), Some(&a)).await.unwrap_err().errno, libc::ESTALE);
    server.state.lock().refuse = None;
    writes.commit(&cx(), &fh(), Some(&a)).await.expect("a was told");
    let c = writes.opened(&fh());
    writes.close(&cx(), &fh(), c).await.expect("c came after somebody was told");
    assert_eq!(writes.close(&cx(), &fh(), b).await.unwrap_err().errno, libc::ESTALE);
    writes.close(&cx(), &fh(), a).await.unwrap();
    assert_eq!(writes.kept_bytes(), 0);
    assert!(writes.files.lock().is_empty());
}

/// The next open reports an error that no open has reported.
/// Promise: 3
#[tokio::test]
async fn next_open_reports_unseen_error() {
    let server = Server::new(1, 0);
    let writes = Uncommitted::new(server.clone(), LIMITS);
    write(&writes, 0, 10).await.unwrap();
    server.state.lock().refuse = Some(libc::EACCES);
    writes.reconnected();
    while writes.kept_bytes() > 0 {
        tokio::task::yield_now().await;
    }
    server.state.lock().refuse = None;
    let open = writes.opened(&fh());
    assert_eq!(writes.commit(&cx(), &fh(), Some(&open)).await.unwrap_err().errno, libc::EACCES);
    writes.close(&cx(), &fh(), open).await.unwrap();
}

/// A server that has no room, or whose disk fails, may have lost the bytes of a refused COMMIT.
/// Reads show them, and the next commit writes them again, whether or not the verifier has changed.
/// The last close reports bytes that the server does not take.
/// Promise: 3
#[tokio::test]
async fn bytes_of_refused_commit_are_sent_again() {
    for (errno, forgets) in
        [libc::ENOSPC, libc::EDQUOT, libc::EIO].into_iter().flat_map(|e| [(e, true), (e, false)])
    {
        let server = Server::new(1, 0);
        let writes = Uncommitted::new(server.clone(), LIMITS);
        let open = writes.opened(&fh());
        write(&writes, 0, 10).await.unwrap();
        let refuse = |errno| server.state.lock().refuse = errno;
        for _ in 0..2 {
            refuse(Some(errno));
            assert_eq!(writes.commit(&cx(), &fh(), Some(&open)).await.unwrap_err().errno, errno);
            writes.settle(&fh()).await.expect("a refusal does not fail the next call");
            refuse(None);
        }
        if forgets {
            server.state.lock().pending.clear();
        }
        let empty = Read { data: Data::default(), eof: true };
        assert_eq!(writes.overlay(&fh(), 0, 10, empty).data.len(), 10);
        writes.commit(&cx(), &fh(), Some(&open)).await.unwrap();
        assert_eq!((server.state.lock().stable.len(), writes.kept_bytes()), (10, 0), "{errno} {forgets}");
        write(&writes, 0, 10).await.unwrap();
        refuse(Some(errno));
        assert_eq!(writes.close(&cx(), &fh(), open).await.unwrap_err().errno, errno);
        assert_eq!(writes.kept_bytes(), 0);
    }
}

/// Bytes of a refused COMMIT are not sent after the release of a lock, and the next commit says so.
/// Other bytes stay.
/// Promise: 3, 17
#[tokio::test]
async fn released_lock_keeps_no_uncertain_bytes() {
    let server = Server::new(1, 0);
    let writes = Uncommitted::new(server.clone(), LIMITS);
    let open = writes.opened(&fh());
    write(&writes, 0, 10).await.unwrap();
    writes.releasing(&fh());
    assert!(writes.kept_bytes() > 0, "the server has refused nothing");
    server.state.lock().refuse = Some(libc::ENOSPC);
    assert_eq!(writes.commit(&cx(), &fh(), Some(&open)).await.unwrap_err().errno, libc::ENOSPC);
    writes.releasing(&fh());
    assert_eq!(writes.kept_bytes(), 0);
    let sent = {
        let mut s = server.state.lock();
        s.refuse = None;
        s.pending.clear();
        s.writes
    };
    assert_eq!(writes.commit(&cx(), &fh(), Some(&open)).await.unwrap_err().errno, libc::EIO);
    writes.commit(&cx(), &fh(), Some(&open)).await.unwrap();
    writes.close(&cx(), &fh(), open).await.unwrap();
    let s = server.state.lock();
    assert_eq!((s.writes, s.stable.len()), (sent, 0));
}

/// With `soft` a missing answer fails the commit and keeps the bytes. The next commit may succeed,
/// and then the data is stable.
/// Promise: 3
#[tokio::test]
async fn timed_out_commit_keeps_bytes() {
    let server = Server::new(1, 0);
    let writes = Uncommitted::new(server.clone(), LIMITS);
    write(&writes, 0, 10).await.unwrap();
    server.state.lock().silent = true;
    server.state.lock().restart();
    assert_eq!(writes.commit(&cx(), &fh(), None).await.unwrap_err().errno, libc::ETIMEDOUT);
    assert!(writes.kept_bytes() >= 10);
    server.state.lock().silent = false;
    writes.commit(&cx(), &fh(), None).await.unwrap();
    assert_eq!(server.state.lock().stable, [7; 10]);
}

/// Commits make room; no bytes are dropped. A thousand writes pass through a bound of a few.
#[tokio::test]
async fn writers_wait_for_room() {
    let server = Server::new(1, 0);
    let writes = Uncommitted::new(server.clone(), LIMITS);
    for i in 0..1000 {
        write(&writes, i * 10, 10).await.unwrap();
        assert!(writes.kept_bytes() <= LIMITS.most_bytes + SLACK_BYTES);
    }
    writes.commit(&cx(), &fh(), None).await.unwrap();
    let state = server.state.lock();
    assert_eq!(state.stable.len(), 10_000);
    assert!(state.commits > 10, "{}", state.commits);
}

/// A write longer than wsize is sent in parallel parts.
#[tokio::test]
async fn long_writes_are_pipelined() {
    let server = Server::new(3, 0);
    let writes = Uncommitted::new(server.clone(), LIMITS);
    assert_eq!(write(&writes, 5, 100).await.unwrap().0, 100);
    assert!(server.state.lock().most_calls >= 4, "{}", server.state.lock().most_calls);
    writes.commit(&cx(), &fh(), None).await.unwrap();
    assert_eq!(server.state.lock().stable[5..], [7; 100]);
}

/// An interrupted writer returns at once. Its write is still sent and kept.
#[tokio::test(start_paused = true)]
async fn an_interrupted_write_goes_on() {
    let server = Server::new(1, 0);
    let writes = Uncommitted::new(server.clone(), LIMITS);
    let interrupted = cx();
    // The server takes a few turns of the scheduler, so the cancellation comes first.
    interrupted.cancel.cancel();
    let data = Bytes::from_static(b"0123456789");
    server.state.lock().delay = Duration::from_secs(5);
    let outcome = writes.write(&interrupted, &fh(), None, 0, data.into(), Stability::Unstable).await;
    assert_eq!(outcome.unwrap_err().errno, libc::EINTR);
    assert_eq!(server.state.lock().volatile().len(), 0);
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(server.state.lock().volatile(), b"0123456789");
    assert!(writes.kept_bytes() >= 10);
    server.state.lock().restart();
    writes.commit(&cx(), &fh(), None).await.unwrap();
    assert_eq!(server.state.lock().stable, b"0123456789");
}

/// Bytes without a commit are committed after a time.
#[tokio::test(start_paused = true)]
async fn old_writes_are_committed() {
    let server = Server::new(1, 0);
    let writes = Uncommitted::new(server.clone(), LIMITS);
    write(&writes, 0, 10).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(server.state.lock().commits, 0);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(server.state.lock().commits, 1);
    assert_eq!(writes.kept_bytes(), 0);
}

#[test]
fn slices_of_data() {
    let mut data = Data::default();
    data.push(Bytes::from_static(b"abc"));
    data.push(Bytes::from_static(b"defg"));
    for (start, len, wanted) in [(0, 7, "abcdefg"), (2, 3, "cde"), (3, 4, "defg"), (6, 1, "g"), (1, 0, "")] {
        assert_eq!(&slice(&data, start, len).into_bytes()[..], wanted.as_bytes());
    }
}

proptest! {
    /// The epoch counts of a log agree with the epochs of its entries.
    #[test]
    fn doubtful_ends(steps in proptest::collection::vec((0..7, 0..64u64, 1..32u64), 1..60)) {
        let (mut log, mut epoch) = (log::Log::default(), 0);
        let origin = Origin { cred: cx().cred.clone(), open: None, only_held: false };
        for (what, start, len) in steps {
            match what {
                0..=2 => log.wrote(start, &Data::from(Bytes::from(vec![1; len as usize])), [0; 8], epoch, &origin),
                3 => epoch += 1,
                4 => log.resent(start, start + len, [1; 8], epoch),
                5 => log.truncated(start),
                _ => log.abandon(log.latest().saturating_sub(len)),
            }
            let end = log.doubtful(0, 1000, epoch).last().map_or(0, |(at, b)| at + b.len() as u64);
            prop_assert_eq!(log.doubtful_end_bytes(epoch), end);
        }
    }
}
