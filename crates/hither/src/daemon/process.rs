//! The daemon as a process: limits, priority, memory, threads.

use crate::exit::Failure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;

/// Killing the daemon takes a file system away from all programs: the kernel should rather take a
/// program that used too much memory. Not -1000: a daemon that leaks must remain killable.
const OOM_SCORE_ADJ: &str = "-500";
/// Threads of the runtime: they do sockets and protocol, a few microseconds each.
const WORKERS_MAX: usize = 8;
/// Threads for blocking work: name service, unmounting, and the disk cache, which uses at most 32
/// of them at a time.
const BLOCKING_MAX: usize = 40;
/// Open files: the disk cache has one for each file in use.
const OPEN_FILES: u64 = 1 << 20;
/// The most that the kernel allows any process.
const OPEN_FILES_MAX: &str = "/proc/sys/fs/nr_open";

/// Prepares this process; a failed step is not worth failing for.
pub fn prepare() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let most = std::fs::read_to_string(OPEN_FILES_MAX).ok().and_then(|n| n.trim().parse().ok());
    let more = maximum.map(|maximum| maximum.max(OPEN_FILES.min(most.unwrap_or(OPEN_FILES))));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: more, maximum: more });
    if let Err(e) = raised.or_else(|_| setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })) {
        tracing::debug!("raising the limit of open files: {e}");
    }
    if let Err(e) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        tracing::debug!("oom_score_adj: {e}");
    }
    io_flusher();
    keep_memory();
}

/// Replies of 1 MiB are received into fresh buffers. The C library would give each back to the
/// kernel when it is freed and fault its pages in again for the next (parallel 1 MiB reads: 300
/// against 958 MiB/s in one pair of runs, about equal in the next), so it keeps up to `KEEP_BYTES`
/// instead. musl's has no such setting.
#[cfg(target_env = "gnu")]
fn keep_memory() {
    const KEEP_BYTES: libc::c_int = 128 << 20;
    const MMAP_BYTES: libc::c_int = 32 << 20;
    // SAFETY: mallopt takes integers only and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP_BYTES);
    }
}

#[cfg(not(target_env = "gnu"))]
fn keep_memory() {}

/// When memory is short, the kernel must not wait for dirty pages of this very mount to be written
/// before it gives memory to this process, which writes them. Threads started later inherit the
/// mark.
fn io_flusher() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: prctl with this option takes integers only and touches no memory of ours.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1_usize, 0_usize, 0_usize, 0_usize) };
    if result != 0 {
        tracing::debug!("PR_SET_IO_FLUSHER: {}", std::io::Error::last_os_error());
    }
}

/// The runtime.
///
/// # Errors
/// No threads to be had.
pub fn runtime() -> Result<Runtime, Failure> {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(processors.clamp(2, WORKERS_MAX))
        .max_blocking_threads(BLOCKING_MAX)
        .thread_name("hither-rt")
        .enable_all()
        .build()
        .map_err(|e| Failure::system(format!("threads: {e}")))
}
