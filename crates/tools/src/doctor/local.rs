//! Measurements of this machine: the disk of a cache, and the kernel's settings.

use super::measured::{Kernel, LocalDisk, Spread, Throughput};
use rustix::fs::{Advice, CWD, Mode, OFlags, fadvise, openat};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes to write and to read.
const BYTES: usize = 64 << 20;
/// Bytes of one call.
const STEP: usize = 1 << 20;
/// Number of flushes.
const SYNCS: u64 = 10;
/// Longest time for writing and for reading.
const WITHIN: Duration = Duration::from_secs(5);

/// Measures the disk of a directory with an unnamed file. Blocks.
///
/// # Errors
/// The directory does not exist, or its file system has no unnamed files.
pub fn disk(dir: &Path) -> io::Result<LocalDisk> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file: File = openat(CWD, dir, flags, Mode::RUSR | Mode::WUSR)?.into();
    let mut block: Vec<u8> = (0..STEP).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let began = Instant::now();
    let mut written = 0;
    while written < BYTES as u64 && began.elapsed() < WITHIN {
        block[0] = block[0].wrapping_add(1);
        file.write_all_at(&block, written)?;
        written += STEP as u64;
    }
    file.sync_data()?;
    let write = Throughput { bytes: written, took_us: began.elapsed().as_micros() as u64 };
    let mut syncs = Vec::new();
    for i in 0..SYNCS {
        let began = Instant::now();
        file.write_all_at(&block[..4096], i * 4096)?;
        file.sync_data()?;
        syncs.push(began.elapsed());
    }
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    let began = Instant::now();
    let mut read = 0;
    while read < written && began.elapsed() < WITHIN {
        file.read_exact_at(&mut block, read)?;
        read += STEP as u64;
    }
    Ok(LocalDisk {
        dir: dir.display().to_string(),
        write,
        read: Throughput { bytes: read, took_us: began.elapsed().as_micros() as u64 },
        sync_us: Spread::of(syncs).unwrap_or_default(),
    })
}

/// The kernel's version and settings.
pub fn kernel(fuse_minor: Option<u32>) -> Kernel {
    let third = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        text.split_whitespace().nth(2)?.parse().ok()
    };
    Kernel {
        release: rustix::system::uname().release().to_string_lossy().into_owned(),
        fuse_minor,
        fuse: Path::new("/dev/fuse").exists(),
        tcp_rmem_max_bytes: third("tcp_rmem"),
        tcp_wmem_max_bytes: third("tcp_wmem"),
    }
}
