//! Calls of programs that other suites lack: locks of other clients, locks on read-only
//! descriptors, overlayfs, and mounts inside the mount. Most tests run on nfs-ganesha and on
//! `hither serve`.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{Ganesha, HITHER, Random, Said, is_mounted, run, sh};
use std::fs::{File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// A server that a test can mount.
enum Server {
    Ganesha(Ganesha),
    Hither(Serve),
}

impl Server {
    fn ganesha() -> Self {
        Self::Ganesha(Ganesha::start())
    }

    fn hither() -> Self {
        let mut server = Serve::of_directory();
        server.serve();
        Self::Hither(server)
    }

    fn dir(&self) -> &Path {
        match self {
            Self::Ganesha(s) => s.dir.path(),
            Self::Hither(s) => s.dir.path(),
        }
    }

    fn mount(&self, options: &str, mnt: &Path) -> Said {
        let _ = std::fs::create_dir(mnt);
        match self {
            Self::Ganesha(s) => s.mount(options, mnt),
            Self::Hither(s) => s.mount(options, mnt),
        }
    }

    fn unmount(&self, mnt: &Path) {
        run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        assert!(!is_mounted(mnt));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A mount that a failed test left must not keep the directory busy.
        for mnt in ["a", "b"].map(|name| self.dir().join(name)).iter().filter(|mnt| is_mounted(mnt)) {
            let _ = Command::new("umount").arg("-l").arg(mnt).status();
        }
    }
}

/// Calls fcntl(2) for a lock. Returns the kernel's answer or the errno.
fn fcntl(file: &File, call: i32, kind: i32, (start, len): (i64, i64)) -> Result<(i32, i64, i64), i32> {
    let mut lock = libc::flock { l_type: kind as i16, l_whence: 0, l_start: start, l_len: len, l_pid: 0 };
    // SAFETY: the structure outlives the call, and the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), call, &mut lock) } {
        0 => Ok((i32::from(lock.l_type), lock.l_start, lock.l_len)),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// F_GETLK reports every lock of another client with its exact range. A range may extend to the end
/// of the file.
fn conflicts_are_told(server: &Server) {
    let (a, b) = (server.dir().join("a"), server.dir().join("b"));
    for version in ["4.1", "4.2"] {
        server.mount(&format!("vers={version}"), &a).ok();
        server.mount(&format!("vers={version}"), &b).ok();
        let open = |dir: &Path| {
            let mut how = OpenOptions::new();
            how.read(true).write(true).create(true).truncate(false).open(dir.join("locked")).unwrap()
        };
        let (here, there) = (open(&a), open(&b));
        let far = i64::MAX - 1;
        for range in [(0, 0), (100, 0), (100, 50), (1 << 40, 1), (far, 1), (far, 0)] {
            for kind in [libc::F_RDLCK, libc::F_WRLCK] {
                fcntl(&there, libc::F_SETLK, kind, range).unwrap();
                let told = fcntl(&here, libc::F_GETLK, libc::F_WRLCK, (0, 0));
                assert_eq!(told, Ok((kind, range.0, range.1)), "vers={version}");
                let free = fcntl(&here, libc::F_GETLK, libc::F_WRLCK, (0, 10)).map(|lock| lock.0);
                let taken = if range.0 == 0 { kind } else { libc::F_UNLCK };
                assert_eq!(free, Ok(taken), "vers={version} {range:?}");
                fcntl(&there, libc::F_SETLK, libc::F_UNLCK, (0, 0)).unwrap();
            }
        }
        drop((here, there));
        server.unmount(&a);
        server.unmount(&b);
    }
}

/// F_GETLK reports locks of another client of nfs-ganesha.
/// Promise: 16
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn conflicts_are_told_of_ganesha() {
    conflicts_are_told(&Server::ganesha());
}

/// F_GETLK reports locks of another client of `hither serve`.
/// Promise: 16
#[test]
#[ignore = "needs root"]
fn conflicts_are_told_of_hither() {
    conflicts_are_told(&Server::hither());
}

/// flock(2) takes either kind of lock on a descriptor for reading, writing or both, as on a local
/// disk. The file must permit such an open. The lock holds between clients until it is released.
fn flock_on_every_descriptor(server: &Server) {
    let (a, b) = (server.dir().join("a"), server.dir().join("b"));
    std::fs::set_permissions(server.dir(), PermissionsExt::from_mode(0o755)).unwrap();
    for version in ["4.1", "4.2", "3"] {
        server.mount(&format!("vers={version}"), &a).ok();
        server.mount(&format!("vers={version}"), &b).ok();
        let path = a.join("flocked");
        std::fs::write(&path, version).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        for (read, write) in [(true, false), (false, true), (true, true)] {
            let case = format!("vers={version} {read} {write}");
            let file = OpenOptions::new().read(read).write(write).open(&path).unwrap();
            let other = File::open(b.join("flocked")).unwrap();
            file.lock().unwrap_or_else(|e| panic!("{case}: {e}"));
            assert_eq!(other.try_lock_shared().is_err(), version != "3", "{case}");
            other.unlock().unwrap();
            file.lock_shared().unwrap_or_else(|e| panic!("{case}: {e}"));
            other.try_lock_shared().unwrap_or_else(|e| panic!("{case}: {e}"));
            drop(other);
            drop(file);
            let last = OpenOptions::new().read(true).write(true).open(b.join("flocked")).unwrap();
            // The kernel reports the close a moment after close(2) has returned.
            last.lock().unwrap_or_else(|e| panic!("{case}: {e}"));
        }
        // A user with read permission only.
        let script = "exec 3<flocked; flock -s -n 3; flock -x -n 3";
        let mut user = Command::new("setpriv");
        user.args(["--reuid=12345", "--regid=12345", "--clear-groups", "--", "sh", "-c", script]);
        let said = run(user.current_dir(&a));
        match version {
            "3" => drop(said.ok()),
            _ => assert!(said.code != 0 && said.err.contains("Bad file descriptor"), "{said:?}"),
        }
        server.unmount(&a);
        server.unmount(&b);
    }
}

/// Promise: 16
#[test]
#[ignore = "needs root, util-linux and nfs-ganesha"]
fn flock_on_every_descriptor_with_ganesha() {
    flock_on_every_descriptor(&Server::ganesha());
}

/// Promise: 16
#[test]
#[ignore = "needs root and util-linux"]
fn flock_on_every_descriptor_with_hither() {
    flock_on_every_descriptor(&Server::hither());
}

/// getxattr(2) returns a value for every name that listxattr(2) lists. overlayfs over a mount
/// copies files up.
fn overlays(server: &Server) {
    let mnt = server.dir().join("a");
    for options in ["vers=4.2", "vers=4.1", "vers=3", "vers=4.2,noacl"] {
        server.mount(options, &mnt).ok();
        // NFSv3 has no extended attributes and reports that.
        let list = if options == "vers=3" { "" } else { "getfattr -h -m - -d a/low/* > /dev/null" };
        let script = format!(
            "cd {}; umount over 2>/dev/null || true; rm -rf a/low up work over; mkdir -p a/low/sub up work over
             echo lower > a/low/file; echo gone > a/low/gone; echo deep > a/low/sub/deep; ln -s file a/low/link
             for f in a/low/*; do setfattr -h -n user.test -v value $f 2>/dev/null || true; done
             {list}
             mount -t overlay overlay -o lowerdir=a/low,upperdir=up,workdir=work over
             [ \"$(cat over/link)\" = lower ]
             echo upper >> over/file; chmod 600 over/sub/deep; touch -h over/link; mv over/sub/deep over/moved
             rm over/gone; rm -r over/sub; mkdir over/sub; echo new > over/sub/new
             [ \"$(cat over/file)\" = \"$(printf 'lower\\nupper')\" ]; [ \"$(cat over/moved)\" = deep ]
             [ ! -e over/gone ]; [ \"$(ls over/sub)\" = new ]; ls over/* > /dev/null
             [ \"$(cat a/low/file a/low/gone a/low/sub/deep)\" = \"$(printf 'lower\\ngone\\ndeep')\" ]
             umount over",
            server.dir().display()
        );
        let said = sh(&script);
        assert_eq!(said.code, 0, "{options}: {said:?}");
        assert!(!said.err.contains("getfattr"), "{options}: {said:?}");
        // The kernel demands more of an overlay's upper layer than NFS offers. The mount fails with
        // that message and leaves no file.
        let script = format!(
            "cd {}; rm -rf a/up a/work local; mkdir -p a/up a/work local over; echo local > local/file
             mount -t overlay overlay -o lowerdir=local,upperdir=a/up,workdir=a/work over || {{ rm -r a/up a/work; exit 7; }}
             echo upper >> over/file; mv over/file over/moved; cat over/moved; umount over",
            server.dir().display()
        );
        let said = sh(&script);
        assert_eq!(said.code, 7, "{options}: {said:?}");
        eprintln!("{options}: {said:?}");
        server.unmount(&mnt);
    }
}

/// Promise: 14a
#[test]
#[ignore = "needs root, attr and nfs-ganesha"]
fn overlays_over_ganesha() {
    overlays(&Server::ganesha());
}

/// Promise: 14a
#[test]
#[ignore = "needs root and attr"]
fn overlays_over_hither() {
    overlays(&Server::hither());
}

/// Calls about names have the same results, and leave the same names, as on a local disk.
fn names(server: &Server, all: &[&str]) {
    let script = |dir: &Path| {
        format!(
            "cd {} && mkdir names && cd names && set +e && LC_ALL=C && export LC_ALL
             echo x > a; ln a b; ln a c; for old in a b c; do for new in a b c; do ln $old $new; done; done
             stat a b c > /dev/null; for old in a b c; do for new in a b c; do ln $old $new; done; done
             mv -T a b; link a b; link b c; rmdir a; rmdir c; ls -i | wc -l
             user='setpriv --reuid 1000 --regid 1000 --clear-groups'
             mkdir -m 0755 seen; touch seen/f1 seen/f2; mkdir seen/sub; chmod 0744 seen
             $user ls seen; $user cat seen/f1; ls seen; rm -r seen
             mkdir -m 0711 hidden; touch hidden/f; $user ls hidden; $user cat hidden/f; ls hidden
             for n in 1 2 3 4 5 6; do
               mkdir over$n; cd over$n; echo old > old; echo new > new; exec 3<> old 4<> new
               mv new old; exec 3>&-; ls -A > /dev/null; exec 4>&-; cd ..
             done
             sleep 1.5; ls -A over*; rm -r over*; ls
             mkdir -m 0777 own; $user perl -e '
               sysopen(F, \"own/f\", 577, 0444) && syswrite(F, \"bytes\") or print \"open: $!\\n\";
               truncate(\"own/f\", 0) or print \"truncate: $!\\n\";
               truncate(F, 2) or print \"ftruncate: $!\\n\"'; cat own/f; rm -r own",
            dir.display()
        )
    };
    let plain = server.dir().join("plain");
    std::fs::create_dir(&plain).unwrap();
    let wanted = sh(&script(&plain));
    assert!(wanted.err.contains("File exists") && wanted.err.contains("Not a directory"), "{wanted:?}");
    assert!(wanted.out.ends_with("truncate: Permission denied\nby"), "{wanted:?}");
    let mnt = server.dir().join("a");
    for options in all {
        server.mount(options, &mnt).ok();
        let said = sh(&script(&mnt));
        assert_eq!(
            (said.code, said.out, said.err),
            (wanted.code, wanted.out.clone(), wanted.err.clone()),
            "{options}"
        );
        std::fs::remove_dir_all(mnt.join("names")).unwrap();
        server.unmount(&mnt);
    }
}

/// Promise: 14
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn names_over_ganesha() {
    names(&Server::ganesha(), &["vers=4.2", "vers=4.1", "vers=3"]);
}

/// Promise: 14
#[test]
#[ignore = "needs root"]
fn names_over_hither() {
    let mut server = Serve::of_directory().with(&["--nqnfs", "-o", "rw,no_root_squash,insecure"]);
    server.serve();
    let all = [
        "vers=4.2",
        "vers=4.1",
        "vers=3",
        "vers=nqnfs",
        "vers=nqnfs,nordirplus",
        "vers=4.2,consistency=strict",
        "vers=3,noac",
    ];
    names(&Server::Hither(server), &all);
}

/// One random change of names below `dir`, which has at most 12 of them.
fn change_names(random: &mut Random, dir: &Path) {
    let mut name = || dir.join(format!("n{}", random.below(12)));
    let (one, other) = (name(), name());
    // Many of these fail, as on a local disk.
    let _ = match random.below(6) {
        0 => std::fs::create_dir(&one),
        1 => std::fs::write(&one, "new"),
        2 | 3 => std::fs::rename(&one, &other),
        4 => std::fs::remove_dir_all(&one),
        _ => std::fs::read_dir(dir).map(drop),
    };
}

/// Changes of names by this mount and by another client detach no mount inside the mount, in this
/// mount namespace and in another.
/// Promise: 12a
#[test]
#[ignore = "needs root"]
fn inner_mounts_stay() {
    let mut server = Serve::of_directory().with(&["--nqnfs", "-o", "rw,no_root_squash,insecure"]);
    server.serve();
    let journal = server.dir.path().join("journal");
    std::fs::create_dir(&journal).unwrap();
    let here = format!("writeback=journal,exclusive,creates=here,journal-dir={}", journal.display());
    let here = [format!("vers=4.2,{here}"), format!("vers=3,{here}")];
    let (export, server) = (server.export(""), Server::Hither(server));
    let mut random = Random(12);
    for options in ["vers=4.2", "vers=4.2,close=lazy", "vers=3", "vers=3,noac", "vers=nqnfs"]
        .into_iter()
        .chain(here.iter().map(String::as_str))
    {
        let mnt = server.dir().join("a");
        server.mount(options, &mnt).ok();
        let inner = ["w/mp", "w/d/mp"].map(|dir| mnt.join(dir));
        for dir in &inner {
            std::fs::create_dir_all(dir).unwrap();
            sh(&format!("mount -t tmpfs tmpfs {0} && echo inside > {0}/f", dir.display())).ok();
        }
        // Another namespace with the same mounts.
        let mut other = Command::new("unshare").args(["-m", "sleep", "60"]).spawn().unwrap();
        for step in 0..120 {
            let at = ["w", "w/d", "."][random.below(3) as usize];
            let foreign = !options.contains("exclusive") && random.below(2) == 0;
            let top = if foreign { &export } else { &mnt };
            change_names(&mut random, &top.join(at));
            for dir in &inner {
                let inside = std::fs::read_to_string(dir.join("f"));
                assert_eq!(inside.as_deref().ok(), Some("inside\n"), "{options}, step {step}: {inside:?}");
            }
            let there = format!("/proc/{}/root{}/f", other.id(), inner[0].display());
            assert_eq!(std::fs::read_to_string(there).unwrap(), "inside\n", "{options}, step {step}");
        }
        other.kill().unwrap();
        other.wait().unwrap();
        for dir in &inner {
            sh(&format!("umount {}", dir.display())).ok();
        }
        std::fs::remove_dir_all(mnt.join("w")).unwrap();
        server.unmount(&mnt);
        sh(&format!("rm -rf {}/n* {}/n*", export.display(), mnt.display())).ok();
    }
}

/// Programs on two mounts use one open file in turns, each under a lock. They append, cut, and read
/// the whole file. No record is lost or misplaced.
fn locked_turns(server: &Server, options: &str, seed: u64) {
    let (a, b) = (server.dir().join("a"), server.dir().join("b"));
    server.mount(options, &a).ok();
    server.mount(options, &b).ok();
    std::fs::write(a.join("turns"), "").unwrap();
    let open = |dir: &Path, reads, flags| {
        let mut how = OpenOptions::new();
        how.append(true).read(reads).custom_flags(flags).open(dir.join("turns")).unwrap()
    };
    // The kernel divides long writes with O_DIRECT and sends the parts in parallel.
    let files =
        [&a, &b].map(|dir| [open(dir, true, 0), open(dir, false, 0), open(dir, false, libc::O_DIRECT)]);
    let (mut random, mut expected) = (Random(seed), Vec::new());
    for step in 0..40 {
        let all = &files[random.below(2) as usize];
        let (both, file) = (&all[0], &all[random.below(3) as usize]);
        let kind = random.below(2);
        // flock(2) of a descriptor excludes fcntl(2) of another, as both are locks of the server.
        let locked = if kind == 0 { both } else { file };
        match kind {
            0 => locked.lock().unwrap(),
            _ => drop(fcntl(locked, libc::F_SETLKW, libc::F_WRLCK, (0, 0)).unwrap()),
        }
        let what = random.below(8);
        match what {
            0 => {
                let len = random.below(expected.len() as u64 + 1);
                file.set_len(len).unwrap();
                expected.truncate(len as usize);
            }
            1 | 2 => {}
            _ => {
                let len = [10, 100, 5000, 300_000, 1_200_000][random.below(5) as usize];
                let record = vec![b'A' + (step % 50) as u8; len];
                let mut file = file;
                std::io::Write::write_all(&mut file, &record).unwrap();
                expected.extend(record);
            }
        }
        if what <= 4 {
            let mut found = vec![0; expected.len() + 10];
            let mut len = 0;
            while let n @ 1.. =
                std::os::unix::fs::FileExt::read_at(both, &mut found[len..], len as u64).unwrap()
            {
                len += n;
            }
            let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!((len, differs), (expected.len(), None), "{options}, seed {seed}, step {step}: {what}");
        }
        match kind {
            0 => locked.unlock().unwrap(),
            _ => drop(fcntl(locked, libc::F_SETLK, libc::F_UNLCK, (0, 0)).unwrap()),
        }
    }
    drop(files);
    server.unmount(&a);
    server.unmount(&b);
    let export = match server {
        Server::Ganesha(s) => s.export("turns"),
        Server::Hither(s) => s.export("turns"),
    };
    assert!(std::fs::read(export).unwrap() == expected, "{options}, seed {seed}");
}

/// Promise: 6
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn locked_turns_on_ganesha() {
    let server = Server::ganesha();
    ["vers=4.2", "vers=4.1,noac"].into_iter().zip(1..).for_each(|(o, seed)| locked_turns(&server, o, seed));
}

/// Promise: 6
#[test]
#[ignore = "needs root"]
fn locked_turns_on_hither() {
    for delegations in ["0", "1000"] {
        let mut server = Serve::of_directory().with(&["--max-delegations", delegations]);
        server.serve();
        let server = Server::Hither(server);
        let all = [
            "vers=4.2",
            "vers=4.1",
            "vers=4.2,noac",
            "vers=4.2,close=lazy",
            "vers=4.2,close=delegated",
            "vers=4.2,consistency=strict",
            "vers=4.2,lookupcache=none",
            "vers=4.2,nocto,actimeo=600",
        ];
        all.into_iter().zip(1..).for_each(|(options, seed)| locked_turns(&server, options, seed));
    }
}

/// The umask applies to new objects as on a local file system: not in a directory with a default
/// ACL.
/// Promise: 19c
#[test]
#[ignore = "needs root"]
fn default_acl_replaces_umask() {
    let mut server = Serve::of_directory().with(&["--max-delegations", "1000"]);
    server.serve();
    let (export, server) = (server.export(""), Server::Hither(server));
    let makes = |at: &Path| {
        let script = "umask $0 && cd $1 && echo > file && mkdir dir && mkfifo fifo && set -C && echo > excl && \
             python3 -c 'import os; os.close(os.open(\"new\", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))'";
        for umask in ["0", "022", "077"] {
            for dir in ["acl", "plain"] {
                let dir = at.join(umask).join(dir);
                std::fs::create_dir_all(&dir).unwrap();
                if dir.ends_with("acl") {
                    // The default ACL is set where the file system is.
                    let local = export.join(dir.strip_prefix(at).unwrap());
                    let local = if local.exists() { local } else { dir.clone() };
                    sh(&format!("setfacl -d -m u::rwx,u:1001:rwx,g::rx,g:1002:rw,o::- {}", local.display()))
                        .ok();
                }
                run(Command::new("bash").args(["-c", script, umask]).arg(&dir)).ok();
            }
        }
    };
    let acls = |at: &Path| {
        sh(&format!("cd {} && getfacl -R -n --omit-header . && stat -c '%n %A' */*/*", at.display())).ok().out
    };
    let reference = export.parent().unwrap().join("reference");
    makes(&reference);
    let expected = acls(&reference);
    let mnt = server.dir().join("a");
    for options in ["vers=4.2", "vers=4.2,close=lazy", "vers=4.2,consistency=strict"] {
        server.mount(options, &mnt).ok();
        makes(&mnt);
        let sorted = |text: &str| {
            let mut blocks: Vec<_> = text.split("\n\n").map(str::to_owned).collect();
            blocks.sort();
            blocks
        };
        server.unmount(&mnt);
        assert_eq!(sorted(&acls(&export)), sorted(&expected), "{options}");
        sh(&format!("rm -rf {}/*", export.display())).ok();
    }
}

/// A program reads a file from the end that it knows, while others append through the same mount.
/// It meets appended bytes or the end, and no zeros.
/// Promise: 5
#[test]
#[ignore = "needs root"]
fn appended_bytes_are_read_whole() {
    let mut server = Serve::of_directory().with(&["--max-delegations", "1000"]);
    server.serve();
    let server = Server::Hither(server);
    let mnt = server.dir().join("a");
    for options in ["vers=4.2", "vers=3", "vers=4.2,noac", "vers=4.2,close=lazy"] {
        server.mount(options, &mnt).ok();
        for round in 0..3 {
            let path = mnt.join(format!("log{round}"));
            let reader =
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            let (mut seen, mut buffer) = (0, vec![0; 1 << 16]);
            std::thread::scope(|scope| {
                let write = |n: usize| {
                    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
                    (0..150).for_each(|i| {
                        std::io::Write::write_all(&mut log, &vec![b'x'; 40 + (n * 151 + i * 37) % 900])
                            .unwrap()
                    });
                };
                let writers: Vec<_> = (0..4).map(|n| scope.spawn(move || write(n))).collect();
                loop {
                    let over = writers.iter().all(|w| w.is_finished());
                    let len = std::os::unix::fs::FileExt::read_at(&reader, &mut buffer, seen).unwrap();
                    let zeros = buffer[..len].iter().filter(|&&byte| byte == 0).count();
                    assert_eq!(zeros, 0, "{options}, round {round}: {len} bytes at {seen}");
                    seen += len as u64;
                    if over && len == 0 {
                        break;
                    }
                }
            });
            assert_eq!(seen, std::fs::metadata(&path).unwrap().len(), "{options}, round {round}");
        }
        server.unmount(&mnt);
    }
}

/// A write with O_DIRECT is at the server when it returns, and not only after fsync(2) or close(2).
/// Promise: 4
#[test]
#[ignore = "needs root"]
fn direct_writes_reach_server() {
    let mut server = Serve::of_directory();
    server.serve();
    let (export, server) = (server.export("direct"), Server::Hither(server));
    let mnt = server.dir().join("a");
    for options in ["vers=4.2", "vers=3", "vers=4.2,close=lazy"] {
        server.mount(options, &mnt).ok();
        let script = "import mmap, os, sys\n\
            fd, page = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, 4096)\n\
            for n in range(1, 20):\n  page[:] = bytes([n]) * 4096\n  os.pwritev(fd, [page], 4096 * (n % 3))\n\
            \x20 there = open(sys.argv[2], 'rb').read()[4096 * (n % 3):][:4096]\n  assert there == page[:], n";
        run(Command::new("python3").args(["-c", script]).arg(mnt.join("direct")).arg(&export)).ok();
        server.unmount(&mnt);
        std::fs::remove_file(&export).unwrap();
    }
}

/// Random stores into a shared mapping, writes and truncations of a file with holes: lseek(2) with
/// SEEK_DATA and SEEK_HOLE skips no data, through a descriptor from before the stores.
/// Promise: 5
#[test]
#[ignore = "needs root"]
fn seek_sees_mapped_stores() {
    const SCRIPT: &str = r#"
import mmap, os, random, sys
random.seed(int(sys.argv[2]))
LENGTH = 1 << 20
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o644)
os.ftruncate(fd, LENGTH)
os.fsync(fd)
memory, model = mmap.mmap(fd, LENGTH), bytearray(LENGTH)
for step in range(60):
    at, piece = random.randrange(LENGTH - 9000), random.randbytes(random.randrange(1, 9000))
    if random.random() < 0.5:
        memory[at:at + len(piece)] = piece
    else:
        os.pwrite(fd, piece, at)
    model[at:at + len(piece)] = piece
    if random.random() < 0.1:
        os.ftruncate(fd, at)
        os.ftruncate(fd, LENGTH)
        model[at:] = bytes(LENGTH - at)
    place, found = 0, bytearray(LENGTH)
    while place < LENGTH:
        try:
            start = os.lseek(fd, place, os.SEEK_DATA)
        except OSError:
            break
        place = os.lseek(fd, start, os.SEEK_HOLE)
        found[start:place] = os.pread(fd, place - start, start)
    assert found == model, (step, at, len(piece))
"#;
    let mut server = Serve::of_directory();
    server.serve();
    let server = Server::Hither(server);
    let mnt = server.dir().join("a");
    for options in ["vers=4.2", "vers=4.2,noac", "vers=3", "vers=4.2,close=lazy"] {
        server.mount(options, &mnt).ok();
        for seed in ["1", "2", "3"] {
            let file = mnt.join(format!("holes{seed}"));
            let done = run(Command::new("python3").args(["-c", SCRIPT]).arg(&file).arg(seed));
            assert_eq!(done.code, 0, "{options}, {seed}: {}", done.err);
            std::fs::remove_file(&file).unwrap();
        }
        server.unmount(&mnt);
    }
}

/// Processes of one mount with fcntl(2) locks: a cycle of waits fails with EDEADLK for one of them,
/// F_GETLK names the holding process, and a release wakes the next one. Open files (F_OFD_SETLKW)
/// are in no cycle.
/// Promise: 16
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn local_locks_are_those_of_processes() {
    const SCRIPT: &str = r#"
import errno, fcntl, os, signal, struct, sys, threading, time
path, count = sys.argv[1], int(sys.argv[2])
fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
LOCK, LAYOUT = fcntl.LOCK_EX, "hhqqi4x"

# A ring: each process holds a byte and waits for the next one's.
holding, go = os.pipe(), os.pipe()
children = []
for n in range(count):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        fcntl.lockf(fd, LOCK, 1, n)
        os.write(holding[1], b"x")
        os.read(go[0], 1)
        try:
            fcntl.lockf(fd, LOCK, 1, (n + 1) % count)
        except OSError as e:
            os._exit(7 if e.errno == errno.EDEADLK else 8)
        os._exit(0)
    children.append(child)
for _ in children:
    os.read(holding[0], 1)

asked = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(LAYOUT, fcntl.F_WRLCK, 0, count - 1, 1, 0))
kind, _, start, length, pid = struct.unpack(LAYOUT, asked)
held = (fcntl.F_WRLCK, count - 1, 1, children[-1])
assert (kind, start, length, pid) == held, (kind, start, length, pid)
os.write(go[1], b"x" * count)
codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
assert codes == [0] * (count - 1) + [7], codes

# Two open files of one process wait for each other, until a third thread releases one lock.
files = [os.open(path, os.O_RDWR) for _ in range(2)]
def ofd(fd, command, kind, at):
    fcntl.fcntl(fd, command, struct.pack(LAYOUT, kind, 0, at, 1, 0))
for n in range(2):
    ofd(files[n], fcntl.F_OFD_SETLK, fcntl.F_WRLCK, n)
failed = []
def take(n):
    try:
        ofd(files[n], fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, 1 - n)
    except OSError as e:
        failed.append(e)
threads = [threading.Thread(target=take, args=(n,)) for n in range(2)]
for thread in threads:
    thread.start()
time.sleep(0.1)
ofd(files[0], fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0)
threads[1].join()
ofd(files[1], fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 1)
threads[0].join()
assert not failed, failed
[os.close(file) for file in files]

# The release wakes a process that has waited for more than a second.
times = []
for _ in range(3):
    fcntl.lockf(fd, LOCK, 1, 0)
    child = os.fork()
    if child == 0:
        fcntl.lockf(fd, LOCK, 1, 0)
        os.write(holding[1], struct.pack("d", time.monotonic()))
        os._exit(0)
    time.sleep(1.3)
    begin = time.monotonic()
    fcntl.lockf(fd, fcntl.LOCK_UN, 1, 0)
    times.append(struct.unpack("d", os.read(holding[0], 8))[0] - begin)
    os.waitpid(child, 0)
assert min(times) < 0.1, times
"#;
    for server in [Server::ganesha(), Server::hither()] {
        let mnt = server.dir().join("a");
        for (options, processes) in [("vers=4.2", "2"), ("vers=4.1", "3"), ("vers=3,nolock", "2")] {
            server.mount(options, &mnt).ok();
            let done = run(Command::new("python3").args(["-c", SCRIPT]).arg(mnt.join("ring")).arg(processes));
            assert_eq!(done.code, 0, "{options}: {}", done.err);
            std::fs::remove_file(mnt.join("ring")).unwrap();
            server.unmount(&mnt);
        }
    }
}
