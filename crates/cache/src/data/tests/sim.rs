//! A disk in memory. A power cut loses the data that were not made durable. Errors can be injected.

use crate::data::io::{Io, IoFile, Listed};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// Unit in which a write is lost or kept.
const SECTOR: usize = 512;

#[derive(Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Changes since the last sync, in order.
    pending: Vec<Change>,
    touched_s: u64,
}

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Len(u64),
}

enum NameChange {
    Add(String, u64),
    Remove(String),
}

#[derive(Default)]
struct State {
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    pending_names: Vec<NameChange>,
    inodes: HashMap<u64, Inode>,
    next: u64,
    random: u64,
    /// Calls until the power is cut.
    left: Option<u64>,
    off: bool,
    fail: Option<i32>,
    capacity: u64,
    /// A function to run during the next write.
    meanwhile: Option<Box<dyn FnOnce() + Send>>,
}

/// The simulated disk.
pub struct Sim(Arc<Mutex<State>>);

struct SimFile(Arc<Mutex<State>>, u64);

impl State {
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Called before each call. Fails after the power cut, and if this call cuts the power.
    fn step(&mut self) -> io::Result<()> {
        if self.off {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if let Some(left) = &mut self.left {
            if *left == 0 {
                self.off = true;
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            *left -= 1;
        }
        Ok(())
    }

    /// The same for calls that write.
    fn step_writing(&mut self) -> io::Result<()> {
        self.step()?;
        self.fail.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    fn inode(&mut self, ino: u64) -> &mut Inode {
        self.inodes.get_mut(&ino).unwrap()
    }
}

fn apply(to: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Len(len) => to.resize(*len as usize, 0),
        Change::Write(at, data) => {
            let end = *at as usize + data.len();
            if to.len() < end {
                to.resize(end, 0);
            }
            to[*at as usize..end].copy_from_slice(data);
        }
    }
}

impl Sim {
    pub fn new(seed: u64) -> Arc<Self> {
        let state = State { random: seed | 1, capacity: u64::MAX, ..State::default() };
        Arc::new(Self(Arc::new(Mutex::new(state))))
    }

    /// Cuts the power after so many calls.
    pub fn cut_after(&self, calls: u64) {
        self.0.lock().left = Some(calls);
    }

    pub fn is_off(&self) -> bool {
        self.0.lock().off
    }

    /// Makes the following calls that write fail, or succeed again.
    pub fn fail(&self, errno: Option<i32>) {
        self.0.lock().fail = errno;
    }

    pub fn set_capacity(&self, bytes: u64) {
        self.0.lock().capacity = bytes;
    }

    /// The disk after a power cut now: any part of the data that were not durable is there, in any
    /// order.
    pub fn after_power_cut(&self) -> Arc<Self> {
        let mut s = self.0.lock();
        let mut out =
            State { random: s.random() | 1, capacity: s.capacity, next: s.next, ..State::default() };
        let mut names = s.durable_names.clone();
        let changes = std::mem::take(&mut s.pending_names);
        for change in changes {
            if s.random().is_multiple_of(4) {
                continue;
            }
            match change {
                NameChange::Add(name, ino) => drop(names.insert(name, ino)),
                NameChange::Remove(name) => drop(names.remove(&name)),
            }
        }
        for ino in names.values() {
            let (mut bytes, pending, touched_s) = {
                let inode = &s.inodes[ino];
                (inode.durable.clone(), inode.pending.clone(), inode.touched_s)
            };
            for change in pending {
                match (s.random() % 4, change) {
                    (0, _) => {}
                    (1 | 2, change) => apply(&mut bytes, &change),
                    (_, Change::Len(len)) => apply(&mut bytes, &Change::Len(len)),
                    // Some sectors of the write, some with their old content, some with garbage.
                    (_, Change::Write(at, data)) => {
                        for (i, piece) in data.chunks(SECTOR).enumerate() {
                            let mut piece = piece.to_vec();
                            match s.random() % 4 {
                                0 => continue,
                                1 => piece.fill(s.random() as u8),
                                _ => {}
                            }
                            apply(&mut bytes, &Change::Write(at + (i * SECTOR) as u64, piece));
                        }
                    }
                }
            }
            let inode = Inode { now: bytes.clone(), durable: bytes, pending: Vec::new(), touched_s };
            out.inodes.insert(*ino, inode);
        }
        (out.names, out.durable_names) = (names.clone(), names);
        Arc::new(Self(Arc::new(Mutex::new(out))))
    }

    /// The disk after the process was killed: the kernel still has all written data.
    pub fn after_kill(&self) -> Arc<Self> {
        let mut s = self.0.lock();
        let mut out =
            State { random: s.random() | 1, capacity: s.capacity, next: s.next, ..State::default() };
        for (name, ino) in &s.names {
            let inode = &s.inodes[ino];
            let (bytes, touched_s) = (inode.now.clone(), inode.touched_s);
            out.inodes
                .insert(*ino, Inode { now: bytes.clone(), durable: bytes, pending: Vec::new(), touched_s });
            out.names.insert(name.clone(), *ino);
        }
        out.durable_names = out.names.clone();
        Arc::new(Self(Arc::new(Mutex::new(out))))
    }
}

impl Sim {
    /// Runs a function during the next write.
    pub fn meanwhile(&self, what: impl FnOnce() + Send + 'static) {
        self.0.lock().meanwhile = Some(Box::new(what));
    }
}

impl Io for Sim {
    fn create(&self, name: &str) -> io::Result<Arc<dyn IoFile>> {
        let mut s = self.0.lock();
        s.step_writing()?;
        if s.names.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        s.next += 1;
        let ino = s.next;
        s.inodes.insert(ino, Inode::default());
        s.names.insert(name.to_string(), ino);
        s.pending_names.push(NameChange::Add(name.to_string(), ino));
        Ok(Arc::new(SimFile(self.0.clone(), ino)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn IoFile>> {
        let mut s = self.0.lock();
        s.step()?;
        let ino = *s.names.get(name).ok_or(ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile(self.0.clone(), ino)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut s = self.0.lock();
        s.step_writing()?;
        s.names.remove(name).ok_or(ErrorKind::NotFound)?;
        s.pending_names.push(NameChange::Remove(name.to_string()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut s = self.0.lock();
        s.step_writing()?;
        let ino = s.names.remove(from).ok_or(ErrorKind::NotFound)?;
        s.names.insert(to.to_string(), ino);
        // After a power cut both names may exist, or none. Real disks do less.
        s.pending_names.push(NameChange::Add(to.to_string(), ino));
        s.pending_names.push(NameChange::Remove(from.to_string()));
        Ok(())
    }

    fn sync_names(&self, _: &str) -> io::Result<()> {
        let mut s = self.0.lock();
        s.step_writing()?;
        s.durable_names = s.names.clone();
        s.pending_names.clear();
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<Listed>> {
        let mut s = self.0.lock();
        s.step()?;
        let each = |(name, ino): (&String, &u64)| {
            let inode = &s.inodes[ino];
            Listed { name: name.clone(), used_bytes: inode.now.len() as u64, touched_s: inode.touched_s }
        };
        Ok(s.names.iter().map(each).collect())
    }

    fn list_in(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut s = self.0.lock();
        s.step()?;
        let within = |name: &&String| name.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'));
        Ok(s.names.keys().filter(within).cloned().collect())
    }

    fn touch(&self, name: &str, at_s: u64) -> io::Result<()> {
        let mut s = self.0.lock();
        s.step_writing()?;
        let ino = *s.names.get(name).ok_or(ErrorKind::NotFound)?;
        s.inode(ino).touched_s = at_s;
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let mut s = self.0.lock();
        s.step()?;
        let used: u64 = s.names.values().map(|ino| s.inodes[ino].now.len() as u64).sum();
        Ok(s.capacity.saturating_sub(used))
    }
}

impl IoFile for SimFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        let mut s = self.0.lock();
        s.step()?;
        let at = at as usize;
        let bytes = s.inode(self.1).now.get(at..at + buf.len()).ok_or(ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn read_at_now(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        if self.0.lock().random().is_multiple_of(2) {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.read_at(buf, at)
    }

    fn write_at(&self, data: &[u8], at: u64) -> io::Result<()> {
        let meanwhile = self.0.lock().meanwhile.take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        let mut s = self.0.lock();
        let step = s.step_writing();
        // A power cut during a write may leave a part of it.
        let change = Change::Write(at, data.to_vec());
        if step.is_ok() || s.off {
            let inode = s.inode(self.1);
            apply(&mut inode.now, &change);
            inode.pending.push(change);
        }
        step
    }

    fn len(&self) -> io::Result<u64> {
        let mut s = self.0.lock();
        s.step()?;
        Ok(s.inode(self.1).now.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut s = self.0.lock();
        s.step_writing()?;
        let inode = s.inode(self.1);
        apply(&mut inode.now, &Change::Len(len));
        inode.pending.push(Change::Len(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut s = self.0.lock();
        s.step_writing()?;
        let inode = s.inode(self.1);
        for change in std::mem::take(&mut inode.pending) {
            apply(&mut inode.durable, &change);
        }
        Ok(())
    }

    fn write_soon(&self) {}

    fn backing(&self) -> Option<Arc<File>> {
        None
    }
}
