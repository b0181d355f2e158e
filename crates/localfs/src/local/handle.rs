//! Filehandles that only this server can make.
//!
//! A filehandle has four parts:
//!
//! - a byte that says how the object is found
//! - a byte with the type of the kernel handle
//! - the kernel handle, in the format of the file system: inode number and generation, 8 bytes on
//!   ext4, 12 on xfs and tmpfs, 20 on btrfs
//! - 8 bytes of SipHash-2-4 over these, keyed with a secret and bound to the number of the export
//!   and the UUID of the file system
//!
//! So a client has filehandles only of objects that the server gave to it or to another client. A
//! filehandle is not valid in another export.
//!
//! The secret is in the state directory. Without the secret all filehandles are stale. A program
//! that reads the secret can make filehandles.

use super::sys::KernelHandle;
use hither_vfs::{Env, Error, Fh, Result};
use rustix::fs::Mode;
use siphasher::sip::SipHasher24;
use smallvec::SmallVec;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// First byte of a filehandle that contains a kernel handle.
const KERNEL: u8 = 1;
/// Length of the authenticator, in bytes.
const MAC_BYTES: usize = 8;
/// Longest filehandle in bytes: that of NFSv3 (RFC 1813 section 2.4).
const FH_MAX_BYTES: usize = 64;
/// Name of the file in the state directory with the secret.
const KEY_FILE: &str = "handle-key";
/// The first bytes of that file.
const KEY_MAGIC: &[u8; 8] = b"hithkey1";

/// Makes and checks filehandles.
pub(super) struct Sealer {
    keyed: SipHasher24,
}

impl Sealer {
    /// A sealer for one export of one file system.
    pub fn new(key: &[u8; 16], export_id: u64, fs_id: &[u8; 16]) -> Self {
        let mut keyed = SipHasher24::new_with_key(key);
        keyed.write(&export_id.to_be_bytes());
        keyed.write(fs_id);
        Self { keyed }
    }

    fn mac(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        let mut hasher = self.keyed;
        hasher.write(bytes);
        hasher.finish().to_be_bytes()
    }

    /// Filehandle with a kernel handle; `None` when the kernel handle is too long.
    pub fn seal(&self, handle: &KernelHandle) -> Option<Fh> {
        let kind = u8::try_from(handle.kind()).ok()?;
        let mut out: SmallVec<[u8; FH_MAX_BYTES]> = SmallVec::from_slice(&[KERNEL, kind]);
        out.extend_from_slice(handle.bytes());
        self.finish(out)
    }

    fn finish(&self, mut out: SmallVec<[u8; FH_MAX_BYTES]>) -> Option<Fh> {
        let mac = self.mac(&out);
        out.extend_from_slice(&mac);
        (out.len() <= FH_MAX_BYTES).then(|| Fh(bytes::Bytes::copy_from_slice(&out)))
    }

    /// The kernel handle in a filehandle.
    ///
    /// # Errors
    /// `ESTALE` for a filehandle that this sealer did not make: of another export, another file
    /// system, another secret, or forged.
    pub fn open(&self, fh: &Fh) -> Result<KernelHandle> {
        let stale = || Error::new(libc::ESTALE);
        let split = fh.0.len().checked_sub(MAC_BYTES).ok_or_else(stale)?;
        let (bytes, mac) = fh.0.split_at(split);
        if fh.0.len() > FH_MAX_BYTES || !same(&self.mac(bytes), mac) {
            return Err(stale());
        }
        match bytes {
            [KERNEL, kind, handle @ ..] => KernelHandle::new(i32::from(*kind), handle).ok_or_else(stale),
            _ => Err(stale()),
        }
    }
}

/// Compares in constant time, so the time does not tell where the difference is.
fn same(a: &[u8; MAC_BYTES], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y)) == 0
}

/// The secret in `state_dir`, created when it is missing.
///
/// # Errors
/// Those of the file system; `InvalidData` for a file that holds no secret of this program, or that
/// others may read.
pub(super) fn secret(state_dir: &Path, env: &Env) -> io::Result<[u8; 16]> {
    let path = state_dir.join(KEY_FILE);
    let invalid = |why: &str| io::Error::new(ErrorKind::InvalidData, format!("{}: {why}", path.display()));
    match File::open(&path) {
        Ok(mut file) => {
            if file.metadata()?.permissions().mode() & 0o077 != 0 {
                return Err(invalid(
                    "other users may read it; chmod 600, or remove it to make all filehandles stale",
                ));
            }
            let mut raw = Vec::new();
            (&mut file).take(64).read_to_end(&mut raw)?;
            let key = raw.strip_prefix(KEY_MAGIC).and_then(|key| key.try_into().ok());
            return key.ok_or_else(|| invalid("damaged; remove it to make all filehandles stale"));
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let mut key = [0; 16];
    key[..8].copy_from_slice(&(env.random)().to_ne_bytes());
    key[8..].copy_from_slice(&(env.random)().to_ne_bytes());
    let name = format!("{KEY_FILE}.{:016x}", (env.random)());
    let new = state_dir.join(name);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(KEY_MAGIC)?;
    file.write_all(&key)?;
    file.sync_all()?;
    // Another server may have created one meanwhile: the first one is used.
    let linked = std::fs::hard_link(&new, &path);
    std::fs::remove_file(&new)?;
    match linked {
        Ok(()) => File::open(state_dir)?.sync_all()?,
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return secret(state_dir, env),
        Err(e) => return Err(e),
    }
    Ok(key)
}

/// Creates the state directory when it is missing. Only its owner may read it.
pub(super) fn make_state_dir(dir: &Path) -> io::Result<()> {
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(rustix::io::Errno::NOENT) => {
            if let Some(parent) = dir.parent() {
                std::fs::create_dir_all(parent)?;
            }
            Ok(rustix::fs::mkdir(dir, Mode::RWXU)?)
        }
        other => Ok(other?),
    }
}
