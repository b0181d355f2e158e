//! Privileges of a daemon: capabilities, `no_new_privs`, and refused system calls.
//!
//! A daemon gives up the rights that it never uses, before its threads exist. A fault of a decoder
//! then gives an attacker fewer rights than root has. The capabilities leave the bounding set as
//! well, so programs that the daemon starts (`getent`) cannot regain them. A seccomp filter refuses
//! system calls that load code into the kernel, trace other processes, or change the clock, keys,
//! or swap. Refused calls fail with EPERM. The filter allows all other calls: it narrows the attack
//! surface of the kernel, and is no sandbox.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use rustix::thread::{remove_capability_from_bounding_set, set_no_new_privs};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;

/// The kind of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `hither mount`.
    Mount,
    /// `hither mount` with a Kerberos flavor.
    MountKerberos,
    /// `hither serve`, `hither gateway` and `hither daemon`.
    Serve,
}

impl Role {
    /// The kept capabilities. A capability that the process did not have is not gained.
    fn kept(self) -> CapabilitySet {
        // Files of the disk cache, the state directory, keys and sockets may belong to any user.
        // SYS_RESOURCE permits large pipes and reserved blocks. NET_BIND_SERVICE is for ports below
        // 1024, which each reconnection binds.
        let both = CapabilitySet::CHOWN
            | CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::DAC_READ_SEARCH
            | CapabilitySet::FOWNER
            | CapabilitySet::NET_BIND_SERVICE
            | CapabilitySet::SYS_RESOURCE
            // Unmounting, and files that the kernel reads itself. A server needs it for fanotify(7)
            // and for the private mount of an export.
            | CapabilitySet::SYS_ADMIN;
        match self {
            // The calls of programs are read with process_vm_readv(2). setns(2) enters their mount
            // name spaces.
            Self::Mount => both | CapabilitySet::SYS_PTRACE | CapabilitySet::SYS_CHROOT,
            // The tickets of a user are read as the user.
            Self::MountKerberos => Self::Mount.kept() | CapabilitySet::SETUID,
            // The server acts as the user of each call. It takes leases (fcntl(2)) on files of
            // other users.
            Self::Serve => {
                both | CapabilitySet::FSETID
                    | CapabilitySet::LEASE
                    | CapabilitySet::MKNOD
                    | CapabilitySet::SETGID
                    | CapabilitySet::SETUID
            }
        }
    }

    fn refused(self) -> impl Iterator<Item = i64> {
        let mounts = if self == Self::Serve { MOUNT_CALLS } else { &[] };
        // Credential caches may be in keyrings.
        let keys = if self == Self::MountKerberos { &[] } else { KEY_CALLS };
        REFUSED.iter().chain(ARCHITECTURE).chain(mounts).chain(keys).copied()
    }
}

/// System calls that no daemon makes.
const REFUSED: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &[i64] = &[libc::SYS_ioperm, libc::SYS_iopl, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const ARCHITECTURE: &[i64] = &[];

/// System calls for keys of the kernel, where users may keep their Kerberos tickets.
const KEY_CALLS: &[i64] = &[libc::SYS_add_key, libc::SYS_keyctl, libc::SYS_request_key];

/// System calls that only a mount makes. A server makes a private mount of each export with
/// open_tree(2) and mount_setattr(2).
const MOUNT_CALLS: &[i64] = &[
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_process_vm_readv,
    libc::SYS_setns,
    libc::SYS_umount2,
];

/// Gives up the privileges that a daemon of this kind does not use. Later threads inherit the
/// result, so the caller has one thread. A failed step leaves a warning: containers may forbid it.
pub fn give_up(role: Role) {
    let kept = role.kept();
    // The bounding set comes first, because its change needs CAP_SETPCAP.
    for capability in (CapabilitySet::all() - kept).iter() {
        // The kernel may be older than the capability, and the process may be no root.
        if let Err(e) = remove_capability_from_bounding_set(capability) {
            tracing::debug!("bounding set without {capability:?}: {e}");
        }
    }
    let narrowed = capabilities(None).and_then(|had| {
        set_capabilities(
            None,
            CapabilitySets {
                effective: had.effective & kept,
                permitted: had.permitted & kept,
                inheritable: had.inheritable & kept,
            },
        )
    });
    if let Err(e) = narrowed {
        tracing::warn!("this process keeps its capabilities: {e}");
    }
    if let Err(e) = set_no_new_privs(true) {
        tracing::warn!("no_new_privs: {e}");
    }
    let filtered = filter(role).and_then(|program| seccompiler::apply_filter(&program));
    if let Err(e) = filtered {
        tracing::warn!("no filter of system calls: {e}");
    }
}

fn filter(role: Role) -> seccompiler::Result<BpfProgram> {
    let rules: BTreeMap<_, _> = role.refused().map(|call| (call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, std::env::consts::ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread without privileges cannot make the refused calls. It goes on to make others.
    #[test]
    fn refused_calls_fail() {
        let thread = std::thread::spawn(|| {
            give_up(Role::Serve);
            // SAFETY: a null pointer is an error of the call, which touches no memory of ours.
            let result = unsafe { libc::syscall(libc::SYS_userfaultfd, -1) };
            let refused = (result, std::io::Error::last_os_error().raw_os_error());
            // SAFETY: as above; the kernel alone would answer EFAULT to root.
            let result = unsafe { libc::syscall(libc::SYS_clock_settime, 0, 0) };
            let clock = (result, std::io::Error::last_os_error().raw_os_error());
            let sets = capabilities(None).unwrap();
            (refused, clock, sets, std::fs::read("/proc/self/stat").is_ok())
        });
        let (refused, clock, sets, reads) = thread.join().unwrap();
        assert_eq!((refused, clock), ((-1, Some(libc::EPERM)), (-1, Some(libc::EPERM))));
        assert!(Role::Serve.kept().contains(sets.permitted), "{sets:?}");
        assert!(reads);
    }

    /// A mount needs calls that a server does not need, and no call is refused to mounts only.
    #[test]
    fn mounts_may_mount() {
        let calls = |role: Role| role.refused().collect::<Vec<_>>();
        assert!(!calls(Role::Mount).contains(&libc::SYS_umount2));
        assert!(calls(Role::Serve).contains(&libc::SYS_umount2));
        assert!(calls(Role::Mount).iter().all(|call| calls(Role::Serve).contains(call)));
        assert!(calls(Role::MountKerberos).iter().all(|call| calls(Role::Mount).contains(call)));
        assert!(calls(Role::Mount).contains(&libc::SYS_keyctl));
        for role in [Role::Mount, Role::MountKerberos, Role::Serve] {
            assert!(filter(role).is_ok());
        }
    }
}
