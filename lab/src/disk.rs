//! An emulated hard disk: one file in its own file system. The bytes are in memory or on a fast
//! disk, and the emulated head takes its time.
//!
//! A request that does not begin at the end of the last one waits for a seek. A flush waits for the
//! disk's cache. There is one head, so requests are served one after the other. losetup(8) with
//! direct I/O makes a block device of the file. A guest uses the file's path as its disk. The ext4
//! on the disk, with its log, is real. The bytes should be in memory (tmpfs). Otherwise a request
//! may wait for another disk, or, when memory is short, for this disk itself. Only the head is
//! emulated. The end of this process loses no data, and the distance of a seek does not matter.

use crate::args::Args;
use crate::clock;
use crate::lab::{Fail, Res};
use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, SessionACL, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The file's name.
const NAME: &str = "disk";
/// The file's inode number. The directory has number 1.
const INODE: INodeNo = INodeNo(2);
/// A control file. `on` and `off` written to it switch the delays, so that preparations take no
/// time.
const CONTROL: &str = "delays";
const CONTROL_INODE: INodeNo = INodeNo(3);
/// Validity of attributes. They never change without the kernel.
const VALIDITY: Duration = Duration::from_secs(3600);

/// The first bytes of a commit record of an ext4 log: jbd2's magic number and its block type.
const COMMIT_RECORD: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];

/// Delays of requests.
#[derive(Debug, Clone, Copy)]
struct Delays {
    seek: Duration,
    flush: Duration,
}

/// The disk. Its session has one thread, so no caller waits for the lock.
struct Disk {
    bytes: File,
    size_bytes: u64,
    delays: Delays,
    slow: AtomicBool,
    /// User-mode Linux drops the flushes of its file systems. A log's commit record stands between
    /// two flushes. The disk therefore does both flushes when the record is written.
    flushes_by_record: bool,
    /// The end of the last request.
    head: Mutex<u64>,
}

impl Disk {
    /// Moves the head to the first byte of a request.
    fn seek(&self, offset: u64, len: usize) {
        let mut head = self.head.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if moved(&mut head, offset, len) {
            self.pause(self.delays.seek);
        }
    }

    fn pause(&self, time: Duration) {
        if self.slow.load(Ordering::Relaxed) {
            clock::pause(time);
        }
    }

    /// Handles `on` or `off`.
    fn told(&self, text: &[u8], reply: ReplyWrite) {
        match text.trim_ascii() {
            b"on" => self.slow.store(true, Ordering::Relaxed),
            b"off" => self.slow.store(false, Ordering::Relaxed),
            _ => return reply.error(Errno::EINVAL),
        }
        reply.written(text.len() as u32);
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let (kind, perm, size) = match ino {
            INODE => (FileType::RegularFile, 0o600, self.size_bytes),
            CONTROL_INODE => (FileType::RegularFile, 0o200, 0),
            _ => (FileType::Directory, 0o700, 0),
        };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

/// Whether the head has to move to a request. Leaves the head behind the request.
fn moved(head: &mut u64, offset: u64, len: usize) -> bool {
    let from = std::mem::replace(head, offset + len as u64);
    from != offset
}

impl Filesystem for Disk {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Larger than any request of a block device.
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = [(NAME, INODE), (CONTROL, CONTROL_INODE)].into_iter().find(|(known, _)| name == *known);
        match found {
            Some((_, ino)) => reply.entry(&VALIDITY, &self.attr(ino), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALIDITY, &self.attr(ino));
    }

    /// A shell truncates the file to which it writes.
    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&VALIDITY, &self.attr(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Caches are above this disk, so every request must reach it.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = self.size_bytes.saturating_sub(offset);
        let mut data = vec![0; u64::from(size).min(left) as usize];
        self.seek(offset, data.len());
        match self.bytes.read_exact_at(&mut data, offset) {
            Ok(()) => reply.data(&data),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if ino == CONTROL_INODE {
            return self.told(data, reply);
        }
        if offset + data.len() as u64 > self.size_bytes {
            return reply.error(Errno::ENOSPC);
        }
        self.seek(offset, data.len());
        if self.flushes_by_record && data.starts_with(&COMMIT_RECORD) {
            self.pause(self.delays.flush * 2);
        }
        match self.bytes.write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.pause(self.delays.flush);
        reply.ok();
    }
}

/// `disk DIR --bytes-in FILE [--mib N] [--seek-ms N] [--flush-ms N] [--flush-by-record]`: serves
/// DIR/disk until DIR is unmounted. Requests have no delay before `on` is written to DIR/delays.
pub fn main(args: &mut Args) -> Res<ExitCode> {
    let file = args.value("--bytes-in")?.ok_or_else(|| Fail("disk DIR --bytes-in FILE".into()))?;
    let size_bytes = (args.number("--mib")?.unwrap_or(4096.0) as u64) << 20;
    let seek = args.number("--seek-ms")?.unwrap_or(8.0);
    let flush = args.number("--flush-ms")?.unwrap_or(8.0);
    let flushes_by_record = args.flag("--flush-by-record");
    args.no_more_options()?;
    let dir = args.word().ok_or_else(|| Fail("disk DIR --bytes-in FILE".into()))?;
    let bytes = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&file)?;
    bytes.set_len(size_bytes)?;
    let ms = |n: f64| Duration::from_secs_f64(n.clamp(0.0, 10_000.0) / 1000.0);
    let delays = Delays { seek: ms(seek), flush: ms(flush) };
    let disk = Disk {
        bytes,
        size_bytes,
        delays,
        slow: AtomicBool::new(false),
        flushes_by_record,
        head: Mutex::new(0),
    };
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::FSName("hither-lab".into()), MountOption::NoDev, MountOption::NoSuid];
    config.acl = SessionACL::All;
    fuser::mount(disk, dir, &config)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head moves unless a request begins at the end of the last one.
    #[test]
    fn head_moves_between_distant_requests() {
        let mut head = 0;
        let moves: Vec<bool> = [(0, 4096), (4096, 512), (4608, 8), (4608, 8), (1 << 30, 4096), (0, 1)]
            .into_iter()
            .map(|(offset, len)| moved(&mut head, offset, len))
            .collect();
        assert_eq!(moves, [false, false, false, true, true, true]);
    }
}
