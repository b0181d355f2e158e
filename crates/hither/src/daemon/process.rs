//! Process settings of the daemon: limits, priority, memory, threads.

use crate::exit::Failure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;

/// Killing the daemon breaks the file system for all programs. When memory is short, the kernel
/// should kill a program that uses much memory instead. Not -1000, because a leaking daemon must
/// remain killable.
const OOM_SCORE_ADJ: &str = "-500";
/// Most threads of the runtime. Their tasks run for a few microseconds at sockets and protocol.
const WORKERS_MAX: usize = 8;
/// Most threads for blocking work. A mount and the disk cache wait with some of them for others.
/// The rest does what waits for no other thread: name service, unmounting, journals.
const BLOCKING_MAX: usize = hither_fuse::BLOCKING_THREADS_MAX + hither_cache::data::DISK_CALLS_MAX + 64;
/// Limit of open files. The disk cache has one open file for each file in use.
const OPEN_FILES: u64 = 1 << 20;
/// The kernel's maximum of open files for a process.
const OPEN_FILES_MAX: &str = "/proc/sys/fs/nr_open";
/// The number of mimalloc's option `purge_delay` in libmimalloc-sys 0.1.49, in milliseconds.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Prepares this process. A failed step is ignored.
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
    use_little_memory();
}

/// Makes the allocator return freed memory to the kernel after 10 ms. By default it keeps the
/// memory for 10 s, so a server used up to three times its limit. Without a delay, a READ of 1 MiB
/// takes twice the time.
///
/// Huge pages are off: the allocator asks for them, and one small buffer that stays in use keeps
/// 2 MiB. With them, a server with unread listings used twice its limit.
fn use_little_memory() {
    // SAFETY: the option is an integer, and this process has no other thread yet.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 1) }
    if let Err(e) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!("PR_SET_THP_DISABLE: {e}");
    }
}

/// When memory is short, the kernel must not make this process wait for dirty pages of its own
/// mount. Later threads inherit this setting.
fn io_flusher() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: prctl with this option takes integers only and touches no memory of ours.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1_usize, 0_usize, 0_usize, 0_usize) };
    if result != 0 {
        tracing::debug!("PR_SET_IO_FLUSHER: {}", std::io::Error::last_os_error());
    }
}

/// Makes the runtime.
///
/// # Errors
/// The system provides no threads.
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
