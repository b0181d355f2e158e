//! Jobs that wait for a thread, by the host that sent their calls.
//!
//! The next job is one of the host whose jobs have taken the least time of the threads. This is
//! start-time fair queueing (Goyal, Vin and Cheng 1996) with the measured time as the cost. A host
//! with many slow calls therefore delays another host by one job, and not by all its jobs. A part
//! of the threads is reserved for hosts without a running job.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// The host that sent a call; `None`: this process.
pub(super) type Host = Option<IpAddr>;

/// This part of the threads is reserved for hosts without a running job (an eighth).
const RESERVE_PART: usize = 8;
/// The assumed time of a running job.
const ASSUMED: Duration = Duration::from_millis(1);
/// A host that was idle begins this much before the others.
const CREDIT: Duration = Duration::from_millis(10);
/// Idle hosts whose time is remembered.
const IDLE_HOSTS_MAX: usize = 1024;

/// Waiting jobs, and the number of running ones.
pub(super) struct Queue<T> {
    threads_max: usize,
    hosts: HashMap<Host, Flow<T>>,
    /// Hosts with waiting jobs, by their time.
    ready: BTreeSet<(Duration, Host)>,
    waiting: usize,
    running: usize,
    /// Time of the host with the last begun job. An idle host begins [`CREDIT`] before it, and
    /// saves no more time up.
    reached: Duration,
}

/// The jobs of one host.
struct Flow<T> {
    jobs: VecDeque<T>,
    running: usize,
    used: Duration,
}

impl<T> Queue<T> {
    /// An empty queue for at most `threads_max` running jobs.
    pub fn new(threads_max: usize) -> Self {
        let (hosts, ready) = (HashMap::new(), BTreeSet::new());
        Self { threads_max, hosts, ready, waiting: 0, running: 0, reached: CREDIT }
    }

    /// Maximum number of running jobs.
    pub fn threads_max(&self) -> usize {
        self.threads_max
    }

    /// Whether no job waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Adds a job. Jobs of one host keep their order.
    pub fn push(&mut self, host: Host, job: T) {
        let begins = self.reached.saturating_sub(CREDIT);
        let new = || Flow { jobs: VecDeque::new(), running: 0, used: begins };
        let flow = self.hosts.entry(host).or_insert_with(new);
        if flow.jobs.is_empty() {
            if flow.running == 0 {
                flow.used = flow.used.max(begins);
            }
            self.ready.insert((flow.used, host));
        }
        flow.jobs.push_back(job);
        self.waiting += 1;
    }

    /// Removes the last added job of a host.
    pub fn remove_last(&mut self, host: Host) {
        let Some(flow) = self.hosts.get_mut(&host) else { return };
        self.waiting -= usize::from(flow.jobs.pop_back().is_some());
        if flow.jobs.is_empty() {
            self.ready.remove(&(flow.used, host));
        }
    }

    /// The next job, which runs until [`Queue::ended`]. `None`: no job waits, or the free threads
    /// are reserved.
    pub fn pop(&mut self) -> Option<(Host, T)> {
        let free = self.threads_max.saturating_sub(self.running);
        let is_reserved = free <= self.threads_max / RESERVE_PART;
        let may_run = |(_, host): &&(Duration, Host)| !is_reserved || self.hosts[host].running == 0;
        let &(used, host) = self.ready.iter().find(may_run)?;
        self.ready.remove(&(used, host));
        let flow = self.hosts.get_mut(&host)?;
        let job = flow.jobs.pop_front()?;
        self.reached = self.reached.max(used);
        flow.used += ASSUMED;
        flow.running += 1;
        if !flow.jobs.is_empty() {
            self.ready.insert((flow.used, host));
        }
        self.waiting -= 1;
        self.running += 1;
        Some((host, job))
    }

    /// Records the end of a job of `host` after `took`.
    pub fn ended(&mut self, host: Host, took: Duration) {
        self.running -= 1;
        let Some(flow) = self.hosts.get_mut(&host) else { return };
        let was_ready = self.ready.remove(&(flow.used, host));
        flow.used = (flow.used + took).saturating_sub(ASSUMED);
        flow.running -= 1;
        if was_ready {
            self.ready.insert((flow.used, host));
        }
        if flow.running == 0 && !was_ready && self.hosts.len() > IDLE_HOSTS_MAX {
            self.hosts.remove(&host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn host(n: u8) -> Host {
        Some(Ipv4Addr::new(10, 0, 0, n).into())
    }

    const MS: Duration = Duration::from_millis(1);

    /// Runs the waiting jobs one after another, and returns their hosts. A job of host `n` takes
    /// `cost(n)`.
    fn run(queue: &mut Queue<u8>, most: usize, cost: impl Fn(u8) -> Duration) -> Vec<u8> {
        let one = || {
            let (host, job) = queue.pop()?;
            queue.ended(host, cost(job));
            Some(job)
        };
        std::iter::from_fn(one).take(most).collect()
    }

    /// A host with few calls waits for no waiting job of other hosts.
    /// Promise: S7
    #[test]
    fn busy_hosts_delay_others_by_one_job() {
        let mut queue = Queue::new(1);
        (0..1000_u32).for_each(|n| queue.push(host((n % 8) as u8), (n % 8) as u8));
        assert_eq!(run(&mut queue, 100, |_| 50 * MS).len(), 100);
        for _ in 0..20 {
            queue.push(host(99), 99);
            assert_eq!(run(&mut queue, 1, |_| MS / 10), [99]);
            run(&mut queue, 3, |_| 50 * MS);
        }
    }

    /// Hosts get equal times, whatever their jobs cost.
    #[test]
    fn hosts_share_time() {
        let mut queue = Queue::new(1);
        (0..1000).for_each(|_| [1, 2].iter().for_each(|&n| queue.push(host(n), n)));
        let begun = run(&mut queue, 110, |n| if n == 1 { 10 * MS } else { MS });
        let slow = begun.iter().filter(|&&n| n == 1).count();
        assert!((9..=11).contains(&slow), "{slow}");
        // A host that comes later gets its share from then on, and ten jobs for the time before.
        (0..1000).for_each(|_| queue.push(host(3), 3));
        let begun = run(&mut queue, 120, |n| if n == 1 { 10 * MS } else { MS });
        let late = begun.iter().filter(|&&n| n == 3).count();
        assert!((60..=70).contains(&late), "{late}");
    }

    /// Jobs of one host run in their order.
    #[test]
    fn jobs_keep_their_order() {
        let mut queue = Queue::new(2);
        (0..10).for_each(|n| queue.push(None, n));
        queue.remove_last(None);
        assert_eq!((queue.waiting, run(&mut queue, 20, |_| MS)), (9, (0..9).collect()));
        assert!(queue.is_empty() && queue.pop().is_none());
    }

    /// Long jobs of one host leave threads for a host without a running job.
    #[test]
    fn threads_are_reserved_for_other_hosts() {
        let mut queue = Queue::new(16);
        (0..40).for_each(|_| queue.push(host(1), 1));
        let running = std::iter::from_fn(|| queue.pop()).count();
        assert_eq!((running, queue.waiting), (14, 26));
        queue.push(host(2), 2);
        queue.push(host(2), 2);
        assert_eq!(queue.pop(), Some((host(2), 2)));
        assert_eq!(queue.pop(), None, "the last free thread is for a third host");
        queue.ended(host(2), MS);
        assert_eq!(queue.pop(), Some((host(2), 2)));
    }

    /// The queue forgets idle hosts.
    #[test]
    fn idle_hosts_are_forgotten() {
        let mut queue = Queue::new(4);
        for n in 0..5000_u32 {
            let host = Some(Ipv4Addr::from(n).into());
            queue.push(host, 0);
            let (host, _) = queue.pop().unwrap();
            queue.ended(host, MS);
        }
        assert!(queue.hosts.len() <= IDLE_HOSTS_MAX + 1 && queue.ready.is_empty());
    }
}
