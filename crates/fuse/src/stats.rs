//! Counters of requests.

use crate::abi::opcode;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of the objects and requests of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MountCounts {
    /// Open files.
    pub open_files: usize,
    /// Open directories.
    pub open_directories: usize,
    /// Running requests.
    pub requests: usize,
    /// Inodes that the kernel knows.
    pub inodes: usize,
}

#[derive(Debug)]
pub(crate) struct Stats {
    began: [AtomicU64; opcode::COUNT],
    failed: [AtomicU64; opcode::COUNT],
    /// Directory entries in replies to the kernel.
    pub entries: AtomicU64,
}

impl Default for Stats {
    fn default() -> Self {
        let counts = || [const { AtomicU64::new(0) }; _];
        Self { began: counts(), failed: counts(), entries: AtomicU64::new(0) }
    }
}

/// Requests of one kind since the start of the mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpCount {
    /// Name of the operation in the kernel's header (`LOOKUP`).
    pub op: &'static str,
    /// Number of requests.
    pub count: u64,
    /// Number of requests with an error reply, for example "no such file".
    pub errors: u64,
}

impl Stats {
    pub fn began(&self, op: u32) {
        if let Some(n) = self.began.get(op as usize) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn failed(&self, op: u32) {
        if let Some(n) = self.failed.get(op as usize) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The kinds with at least one request.
    pub fn list(&self) -> Vec<OpCount> {
        let counts = self.began.iter().zip(&self.failed).enumerate();
        counts
            .map(|(op, (n, e))| OpCount {
                op: opcode::name(op as u32),
                count: n.load(Ordering::Relaxed),
                errors: e.load(Ordering::Relaxed),
            })
            .filter(|c| c.count > 0)
            .collect()
    }
}
