//! Open files.

use crate::Client;
use crate::calls::Call;
use crate::wire::{
    APPEND_AT, Attr, IO_MAX_BYTES, NO_FOLLOW, OPEN_CREATE, OPEN_EXCLUSIVE, OPEN_READ, OPEN_TRUNCATE,
    OPEN_WRITE, Opened, Reader, Request, WRITE_APPEND,
};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most requests of one read or write under way.
const WINDOW: usize = 8;

/// How to open a file, as [`std::fs::OpenOptions`]. For appending see [`File::append`].
#[derive(Debug, Clone, Copy)]
pub struct OpenOptions {
    flags: u32,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Options without any access. New files get the permissions 0644, independent of the umask.
    pub fn new() -> Self {
        Self { flags: 0, mode: 0o644 }
    }

    fn set(&mut self, flag: u32, on: bool) -> &mut Self {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
        self
    }

    /// Opens for reading.
    pub fn read(&mut self, on: bool) -> &mut Self {
        self.set(OPEN_READ, on)
    }

    /// Opens for writing.
    pub fn write(&mut self, on: bool) -> &mut Self {
        self.set(OPEN_WRITE, on)
    }

    /// Creates a missing file.
    pub fn create(&mut self, on: bool) -> &mut Self {
        self.set(OPEN_CREATE, on)
    }

    /// Creates the file, which must be missing.
    pub fn create_new(&mut self, on: bool) -> &mut Self {
        self.set(OPEN_CREATE | OPEN_EXCLUSIVE, on)
    }

    /// Truncates the file to length 0.
    pub fn truncate(&mut self, on: bool) -> &mut Self {
        self.set(OPEN_TRUNCATE, on)
    }

    /// Refuses a symbolic link at the end of the path.
    pub fn no_follow(&mut self, on: bool) -> &mut Self {
        self.set(NO_FOLLOW, on)
    }

    /// Permissions of new files.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Opens a file.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(&self, client: &Client, path: impl AsRef<Path>) -> io::Result<File> {
        let path = client.relative(path.as_ref())?;
        let body = client.conn.call(&Request::Open(&path, self.flags, self.mode))?;
        let opened = Opened::decode(&body)?;
        let closed = AtomicBool::new(false);
        Ok(File { client: client.clone(), number: opened.file, attr: opened.attr, at: 0, closed })
    }
}

/// An open file. After a drop without [`File::close`], the program does not learn whether its
/// writes are stable.
#[derive(Debug)]
pub struct File {
    client: Client,
    number: u64,
    attr: Attr,
    at: u64,
    closed: AtomicBool,
}

impl File {
    /// The file's attributes at the open.
    pub fn opened_as(&self) -> &Attr {
        &self.attr
    }

    /// The file's present attributes.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn stat(&self) -> io::Result<Attr> {
        let body = self.client.conn.call(&Request::StatFile(self.number))?;
        Ok(Attr::decode(&mut Reader(&body))?)
    }

    /// Reads at an offset until the buffer is full or the file ends.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        offset.checked_add(buf.len() as u64).ok_or(ErrorKind::InvalidInput)?;
        let mut calls: VecDeque<(usize, u32, Call)> = VecDeque::new();
        let (mut sent, mut done) = (0, 0);
        loop {
            while sent < buf.len() && calls.len() < WINDOW {
                let len = (buf.len() - sent).min(IO_MAX_BYTES as usize) as u32;
                let call = self.client.conn.begin(&Request::Read(self.number, offset + sent as u64, len))?;
                calls.push_back((sent, len, call));
                sent += len as usize;
            }
            let Some((at, len, call)) = calls.pop_front() else { return Ok(done) };
            let body = call.one()?;
            let data = body.get(1..).unwrap_or_default();
            let n = data.len().min(len as usize);
            buf[at..at + n].copy_from_slice(&data[..n]);
            done = at + n;
            if n < len as usize {
                // The end of the file. Later ranges of the request do not exist.
                for (.., call) in calls {
                    call.one()?;
                }
                return Ok(done);
            }
        }
    }

    /// Writes all of a buffer at an offset.
    ///
    /// # Errors
    /// Those of pwrite(2).
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        offset.checked_add(buf.len() as u64).ok_or(ErrorKind::FileTooLarge)?;
        let mut calls: VecDeque<(u32, Call)> = VecDeque::new();
        let mut chunks = buf.chunks(IO_MAX_BYTES as usize);
        let mut at = offset;
        loop {
            while calls.len() < WINDOW
                && let Some(chunk) = chunks.next()
            {
                let call = self.client.conn.begin(&Request::Write(self.number, at, 0, chunk))?;
                calls.push_back((chunk.len() as u32, call));
                at += chunk.len() as u64;
            }
            let Some((len, call)) = calls.pop_front() else { return Ok(()) };
            if Reader(&call.one()?).u32()? < len {
                // The next request for the file returns the error, unless another request has
                // returned it already.
                self.sync_all()?;
                return Err(ErrorKind::WriteZero.into());
            }
        }
    }

    /// Writes all of a buffer at the end of the file. Returns the offset behind the written bytes.
    ///
    /// Appends of programs through the same daemon, of at most 1 MiB each, stay in one piece. No
    /// other append overwrites them. Between clients of a server there is no such promise, as with
    /// O_APPEND. The daemon asks for the end each time, unless a delegation or lease covers it.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn append(&self, buf: &[u8]) -> io::Result<u64> {
        let mut end = None;
        for chunk in buf.chunks(IO_MAX_BYTES as usize) {
            let body = self.client.conn.call(&Request::Write(self.number, APPEND_AT, WRITE_APPEND, chunk))?;
            let mut reply = Reader(&body);
            let (taken, at) = (reply.u32()?, reply.u64()?);
            if (taken as usize) < chunk.len() {
                self.sync_all()?;
                return Err(ErrorKind::WriteZero.into());
            }
            end = Some(at.saturating_add(chunk.len() as u64));
        }
        end.map_or_else(|| self.stat().map(|attr| attr.size), Ok)
    }

    /// Reads the whole file.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn read_all(&self) -> io::Result<Vec<u8>> {
        let size = usize::try_from(self.stat()?.size).map_err(|_| ErrorKind::OutOfMemory)?;
        let mut out = Vec::new();
        out.try_reserve_exact(size)?;
        out.resize(size, 0);
        let n = self.read_at(&mut out, 0)?;
        out.truncate(n);
        Ok(out)
    }

    /// Returns when all written data is on stable storage.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn sync_all(&self) -> io::Result<()> {
        self.client.conn.call(&Request::Sync(self.number)).map(drop)
    }

    /// Sets the length.
    ///
    /// # Errors
    /// Those of ftruncate(2).
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.client.conn.call(&Request::SetLen(self.number, len)).map(drop)
    }

    /// A descriptor for reading all bytes of the file. Reads from it send no request.
    ///
    /// # Errors
    /// `EOPNOTSUPP` unless the mount has `cache,ro,consistency=frozen` and the whole file is on the
    /// local disk.
    pub fn lend(&self) -> io::Result<std::fs::File> {
        let call = self.client.conn.begin(&Request::Lend(self.number))?;
        Ok(call.descriptor()?.into())
    }

    /// Closes the file. On success its writes are on stable storage.
    ///
    /// # Errors
    /// Those of close(2).
    pub fn close(self) -> io::Result<()> {
        self.closed.store(true, Ordering::Relaxed);
        self.client.conn.call(&Request::Close(self.number)).map(drop)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !*self.closed.get_mut() {
            let _ = self.client.conn.call(&Request::Close(self.number));
        }
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(buf, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Write for File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let buf = &buf[..buf.len().min(WINDOW * IO_MAX_BYTES as usize)];
        self.write_all_at(buf, self.at)?;
        self.at += buf.len() as u64;
        Ok(buf.len())
    }

    /// Does nothing, because no data is buffered here. For stable storage see [`File::sync_all`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(by) => (self.at, by),
            SeekFrom::End(by) => (self.stat()?.size, by),
        };
        self.at = base.checked_add_signed(by).ok_or(ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
