//! The peer of a socket: its identity at the time of connect.

use hither_vfs::Cred;
use smallvec::SmallVec;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Maximum number of supplementary groups of a process (the kernel's NGROUPS_MAX).
const GROUPS_MAX: usize = 65_536;

/// User, group and supplementary groups of the connected program, as of connect.
pub(crate) fn peer(socket: &impl AsFd) -> io::Result<Cred> {
    let who = rustix::net::sockopt::socket_peercred(socket)?;
    let groups = groups(socket.as_fd())?;
    Ok(Cred { uid: who.uid.as_raw(), gid: who.gid.as_raw(), groups })
}

fn groups(socket: BorrowedFd<'_>) -> io::Result<SmallVec<[u32; 8]>> {
    let mut room = 64;
    while room <= GROUPS_MAX {
        let mut groups = vec![0_u32; room];
        let mut bytes = (room * size_of::<u32>()) as libc::socklen_t;
        let (fd, at) = (socket.as_raw_fd(), groups.as_mut_ptr());
        // SAFETY: the kernel writes at most `bytes` bytes to `groups`, which has as many, and the
        // number written to `bytes`.
        let r =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERGROUPS, at.cast(), &raw mut bytes) };
        if r == 0 {
            groups.truncate(bytes as usize / size_of::<u32>());
            return Ok(groups.into());
        }
        let e = io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::ERANGE) {
            return Err(e);
        }
        room = (bytes as usize / size_of::<u32>()).max(room + 1);
    }
    Err(io::Error::from_raw_os_error(libc::ERANGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel reports uid, gid and supplementary groups of the peer.
    #[test]
    fn peer_identity_is_read() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let cred = peer(&one).unwrap();
        assert_eq!(cred.uid, rustix::process::geteuid().as_raw());
        assert_eq!(cred.gid, rustix::process::getegid().as_raw());
        let mut own: Vec<u32> = rustix::process::getgroups().unwrap().iter().map(|g| g.as_raw()).collect();
        let mut told = cred.groups.to_vec();
        own.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, own);
    }
}
