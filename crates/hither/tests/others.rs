//! `hither serve` with clients that disturb each other, with foreign clients, and with clients that
//! ask for more than the server has.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::wire::Wire;
use common::{HITHER, run};
use hither_proto::nfs3::{Diropargs3, Fh3, GetattrArgs, LookupArgs, ReadArgs, ReaddirArgs, ReaddirplusArgs};
use hither_proto::record;
use hither_proto::rpc::{OpaqueAuth, Procedure, call};
use hither_proto::xdr::Enc;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Descriptor limit of the server. It covers connections and the server's own files as well.
const DESCRIPTORS: usize = 200;

#[expect(clippy::disallowed_methods, reason = "tests of processes measure in real time")]
fn now() -> Instant {
    Instant::now()
}

fn umount(mnt: &Path) {
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
}

fn opened_to_write(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// The open files of one thread, with their numbers.
type Files = Vec<(usize, File)>;
type Work = Arc<dyn Fn(&mut Files) + Send + Sync>;
/// Work, and the channel that reports its end.
type Task = (Work, Sender<()>);

/// Most open files of one thread.
const FILES_MAX: usize = 10_000;

/// Threads that hold files open. Each has a descriptor table of its own, because the limit of
/// descriptors holds for a table.
struct Holders(Vec<(Sender<Task>, JoinHandle<()>)>);

impl Holders {
    /// Opens the files `f0` to `f{count - 1}` of a directory.
    fn open(dir: &Path, count: usize) -> Self {
        let holder = |first| {
            let (work, asked) = channel::<Task>();
            let (dir, numbers) = (dir.to_owned(), first..count.min(first + FILES_MAX));
            let thread = std::thread::spawn(move || {
                // SAFETY: the thread uses no descriptor of another thread from now on.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
                let open = |n| (n, opened_to_write(&dir.join(format!("f{n}"))).unwrap());
                let mut files = numbers.map(open).collect();
                for (work, done) in asked {
                    work(&mut files);
                    done.send(()).unwrap();
                }
            });
            (work, thread)
        };
        let holders = Self((0..count).step_by(FILES_MAX).map(holder).collect());
        holders.each(|_| {});
        holders
    }

    /// Does some work in each thread at once, and waits for its end.
    fn each(&self, work: impl Fn(&mut Files) + Send + Sync + 'static) {
        let work: Work = Arc::new(work);
        let mut begun = Vec::new();
        for (holder, _) in &self.0 {
            let (done, ended) = channel();
            holder.send((work.clone(), done)).unwrap();
            begun.push(ended);
        }
        begun.iter().for_each(|ended| ended.recv().expect("a holder of files failed"));
    }

    /// Closes all files.
    fn close(self) {
        for (work, thread) in self.0 {
            drop(work);
            thread.join().unwrap();
        }
    }
}

fn write_each(files: &mut Files) {
    for (n, file) in files {
        file.write_all_at(b"x", 0).unwrap();
        // Only some files are synced, because each fsync waits for the disk.
        if *n % 8 == 7 {
            file.sync_all().unwrap();
        }
    }
}

fn check_each(files: &mut Files) {
    for (n, file) in files {
        let mut found = vec![0; 8];
        let len = file.read_at(&mut found, 0).unwrap();
        assert_eq!(String::from_utf8_lossy(&found[..len]), format!("x{n}"));
    }
}

/// Clients hold many more files open than the server has descriptors, and read and write each of
/// them. Files that another client has removed stay usable. When removed files hold all
/// descriptors, further opens are refused after a while, and open files stay intact. `HITHER_OPENS`
/// is the number of opens. The server then has a fifth as many descriptors.
/// Promise: S7a
#[test]
#[ignore = "needs root"]
fn open_files_exceed_descriptors() {
    let long: Option<usize> = std::env::var("HITHER_OPENS").ok().map(|n| n.parse().unwrap());
    let (count, descriptors) = long.map_or((800, DESCRIPTORS), |n| (n, n / 5));
    let own = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: own.maximum, ..own }).unwrap();
    let limit = format!("--nofile={descriptors}:{descriptors}");
    let words = ["prlimit", &limit, "setpriv", "--bounding-set=-sys_resource", "--"];
    let mut server = Serve::of_directory().through(&words);
    for n in 0..count + descriptors {
        fs::write(server.export(&format!("f{n}")), format!("_{n}")).unwrap();
    }
    server.serve();
    let (mnt, other) = (server.mnt("mnt"), server.mnt("other"));
    server.mount("vers=4.2", &mnt).ok();
    server.mount("vers=3", &other).ok();
    let begun = now();
    let holders = Holders::open(&mnt, count);
    println!("{count} files opened with {descriptors} descriptors in {:?}", begun.elapsed());
    fs::remove_file(other.join("f7")).unwrap();
    fs::rename(other.join("f9"), other.join("f8")).unwrap();
    holders.each(write_each);
    holders.each(check_each);
    assert_eq!(fs::read(other.join("f15")).unwrap(), b"x15");
    let mut files = Files::new();
    let mut n = count;
    let refused = loop {
        let path = format!("f{n}");
        let begun = now();
        match opened_to_write(&mnt.join(&path)) {
            Ok(file) => {
                file.write_all_at(b"x", 0).unwrap();
                files.push((n, file));
                fs::remove_file(other.join(&path)).unwrap();
            }
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EREMOTEIO), "{e}");
                break begun.elapsed();
            }
        }
        n += 1;
    };
    println!("{} open files without a name; refused after {refused:?}", n - count);
    assert!(n - count > descriptors * 3 / 8);
    assert!(refused > Duration::from_secs(10) && refused < Duration::from_secs(60), "{refused:?}");
    check_each(&mut files);
    holders.each(check_each);
    // Another client is served as well, and closed files make room for new opens.
    assert_eq!(fs::read(other.join("f23")).unwrap(), b"x23");
    files.truncate(10);
    for n in count + descriptors - 20..count + descriptors {
        files.push((n, opened_to_write(&mnt.join(format!("f{n}"))).unwrap()));
    }
    drop(files);
    holders.close();
    umount(&other);
    umount(&mnt);
    assert_eq!(server.stop(), 0);
    let said = server.complaints();
    assert!((1..=3).contains(&said.lines().count()), "{said}");
    assert!(said.contains("too many files are open for the limit of descriptors"), "{said}");
}

/// Creates a file again and again while another client removes it. Returns the number of created
/// files.
fn makes(dir: &Path, over: &AtomicBool, writes: bool) -> u64 {
    let mut made = 0;
    while !over.load(Relaxed) {
        match File::create_new(dir.join("f")) {
            Ok(mut file) => {
                made += 1;
                if writes {
                    file.write_all(b"text").unwrap();
                    file.sync_all().unwrap();
                }
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}"),
        }
    }
    made
}

/// The creation of an object succeeds although another client removes the object meanwhile.
/// Promise: S7b
#[test]
#[ignore = "needs root"]
fn create_succeeds_despite_removal() {
    for (version, journal) in [("3", false), ("4.2", false), ("3", true), ("4.2", true)] {
        let mut server = Serve::of_directory();
        if journal {
            let path = server.dir.path().join("journal").display().to_string();
            server = server.with(&["--journal", &path, "--journal-size", "16"]);
        }
        server.serve();
        let (one, other) = (server.mnt("one"), server.mnt("other"));
        // Options under which each call asks for names.
        let options = format!("vers={version},actimeo=0,lookupcache=none");
        server.mount(&options, &one).ok();
        server.mount(&options, &other).ok();
        let (over, removed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let maker = {
            let (dir, over) = (one.clone(), over.clone());
            // With NFSv4 the file is open and stays usable without a name.
            let writes = version != "3";
            std::thread::spawn(move || makes(&dir, &over, writes))
        };
        let removers: Vec<_> = (0..2)
            .map(|_| {
                let (path, over, removed) = (other.join("f"), over.clone(), removed.clone());
                std::thread::spawn(move || {
                    while !over.load(Relaxed) {
                        match fs::remove_file(&path) {
                            Ok(()) => drop(removed.fetch_add(1, Relaxed)),
                            Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
                        }
                    }
                })
            })
            .collect();
        common::wait_for("files to be made and removed", 90, || removed.load(Relaxed) > 100);
        over.store(true, Relaxed);
        let made = maker.join().unwrap();
        removers.into_iter().for_each(|r| r.join().unwrap());
        println!("NFS {version}, journal {journal}: {made} made, {} removed", removed.load(Relaxed));
        umount(&one);
        umount(&other);
        assert_eq!(server.stop(), 0);
    }
}

/// Relays between a client and the server. Lets MKDIR, SYMLINK and LINK succeed and answers them
/// with NFS3ERR_EXIST. A restarted server answers a repeated call in this way.
fn repeating(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, there) = (client.unwrap(), TcpStream::connect(("127.0.0.1", server)).unwrap());
            let repeated = Arc::new(Mutex::new(HashMap::new()));
            let calls = repeated.clone();
            let (from, to) = (client.try_clone().unwrap(), there.try_clone().unwrap());
            std::thread::spawn(move || {
                pass(from, to, |record| {
                    // Transaction id, program and procedure of the call.
                    if let (100_003, proc @ (9 | 10 | 15)) = (word(record, 12), word(record, 20)) {
                        calls.lock().unwrap().insert(word(record, 0), proc);
                    }
                });
            });
            std::thread::spawn(move || {
                pass(there, client, |record| {
                    if let Some(proc) = repeated.lock().unwrap().remove(&word(record, 0)) {
                        assert_eq!(word(record, 24), 0, "the call succeeded");
                        // NFS3ERR_EXIST without attributes: those of the directory, and for LINK
                        // also those of the linked object.
                        record.truncate(24);
                        let words: &[u32] = if proc == 15 { &[17, 0, 0, 0] } else { &[17, 0, 0] };
                        words.iter().for_each(|w| record.extend_from_slice(&w.to_be_bytes()));
                    }
                });
            });
        }
    });
    port
}

fn word(record: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(record[at..at + 4].try_into().unwrap())
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut change: impl FnMut(&mut Vec<u8>)) {
    let mut mark = [0; 4];
    while from.read_exact(&mut mark).is_ok() {
        let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        from.read_exact(&mut record).unwrap();
        change(&mut record);
        let mark = record.len() as u32 | 1 << 31;
        if to.write_all(&[&mark.to_be_bytes(), &record[..]].concat()).is_err() {
            break;
        }
    }
}

/// A call creates an object and is answered like a repetition. The client finds the object,
/// although it had just cached the absence of its name.
#[test]
#[ignore = "needs root"]
fn repeated_create_finds_object() {
    // The relay connects from an unprivileged port.
    let mut server = Serve::of_directory().with(&["-o", "rw,insecure,no_root_squash"]);
    server.serve();
    let (mnt, port, mountport) = (server.mnt("mnt"), repeating(server.port), server.port);
    let options = format!("retry=0,vers=3,port={port},mountport={mountport},actimeo=600");
    run(Command::new(HITHER).args(["mount", "-o", &options, "127.0.0.1:/"]).arg(&mnt)).ok();
    fs::write(mnt.join("from"), "text").unwrap();
    type Make = fn(&Path, &Path) -> std::io::Result<()>;
    let ways: [(&str, Make); 3] = [
        ("link", |from, to| fs::hard_link(from, to)),
        ("mkdir", |_, to| fs::create_dir(to)),
        ("symlink", |from, to| std::os::unix::fs::symlink(from, to)),
    ];
    for (name, make) in ways {
        let here = mnt.join(name);
        // The client trusts the cached state of a recently changed directory only for a short time.
        common::pause(2500);
        assert_eq!(fs::symlink_metadata(&here).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(make(&mnt.join("from"), &here).unwrap_err().kind(), ErrorKind::AlreadyExists, "{name}");
        fs::symlink_metadata(&here).unwrap();
        assert_eq!(here.is_dir(), name == "mkdir");
    }
    umount(&mnt);
    server.stop();
}

/// The tools of libnfs, a foreign client in user space. Their NFSv4 is NFSv4.0, which the server
/// refuses at once.
#[test]
#[ignore = "needs root"]
fn libnfs_tools_read_and_write() {
    let mut server = Serve::of_directory();
    server.serve();
    let local = server.dir.path().join("local");
    let body: Vec<u8> = (0..3_000_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
    fs::write(&local, &body).unwrap();
    fs::create_dir(server.export("dir")).unwrap();
    for n in 0..300 {
        fs::write(server.export(&format!("dir/a file {n}")), "x").unwrap();
    }
    let port = server.port;
    let url = |path: &str, version: u32| {
        format!("nfs://127.0.0.1/{path}?version={version}&nfsport={port}&mountport={port}")
    };
    let tool = |name: &str| Command::new(name);
    let listed = run(tool("nfs-ls").arg(url("dir", 3))).ok().out;
    assert_eq!(listed.lines().filter(|l| l.contains("a file ")).count(), 300, "{listed}");
    run(tool("nfs-cp").arg(&local).arg(url("dir/copy", 3))).ok();
    assert!(fs::read(server.export("dir/copy")).unwrap() == body);
    let back = run(tool("sh")
        .args(["-c", "exec nfs-cat \"$1\" > back", "sh", &url("dir/copy", 3)])
        .current_dir(server.dir.path()));
    back.ok();
    assert!(fs::read(server.dir.path().join("back")).unwrap() == body);
    let missing = run(tool("nfs-cat").arg(url("dir/nothing", 3)));
    assert_ne!(missing.code, 0, "{missing:?}");
    let began = now();
    let refused = run(tool("timeout").args(["20", "nfs-ls", &url("dir", 4)]));
    assert!(refused.code > 0 && began.elapsed() < Duration::from_secs(10), "{refused:?}");
    assert_eq!(server.stop(), 0);
}

/// A connection from one of this machine's addresses.
fn connect_from(address: Ipv4Addr, port: u16) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(address, 0)).unwrap();
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap();
    TcpStream::from(socket)
}

/// Calls with large replies, as messages.
fn large_calls<P: Procedure>(args: impl Fn(u32) -> P) -> Vec<u8> {
    let message = |n| call(n, P::PROG, P::VERS, P::PROC, &OpaqueAuth::none(), Enc::of(&args(n)));
    (0..16).flat_map(|n| record::frame(message(n)).concat()).collect()
}

/// With connections that ask for much data and never read, the whole server keeps within 1.2 times
/// its limit of memory. Another connection is served meanwhile. The replies are data, listings, or
/// listings with attributes. `HITHER_DEAF` is the number of connections, `HITHER_MEMORY` the limit
/// in MiB.
/// Promise: S7
#[test]
#[ignore = "needs root"]
fn unread_replies_stay_within_memory() {
    const BYTES: u32 = 1 << 20;
    type Calls = fn(Fh3, Fh3) -> Vec<u8>;
    let kinds: [(&str, Calls); 3] = [
        ("READ", |file, _| {
            let args = |n| ReadArgs { file: file.clone(), offset: u64::from(n % 7) << 20, count: BYTES };
            large_calls(args)
        }),
        ("READDIR", |_, dir| {
            large_calls(|_| ReaddirArgs { dir: dir.clone(), cookie: 0, cookieverf: [0; 8], count: BYTES })
        }),
        ("READDIRPLUS", |_, dir| {
            large_calls(|_| ReaddirplusArgs {
                dir: dir.clone(),
                cookie: 0,
                cookieverf: [0; 8],
                dircount: BYTES,
                maxcount: BYTES,
            })
        }),
    ];
    for (kind, calls) in kinds {
        unread_replies_of(kind, calls);
    }
}

fn unread_replies_of(kind: &str, calls: fn(Fh3, Fh3) -> Vec<u8>) {
    let given = |name, usual| std::env::var(name).map_or(usual, |n| n.parse::<u64>().unwrap());
    let (count, limit) = (given("HITHER_DEAF", 150), given("HITHER_MEMORY", 64));
    let memory = limit.to_string();
    let mut server = Serve::of_directory().with(&["--max-memory", &memory, "--options", "insecure"]);
    fs::write(server.export("f"), vec![7; 8 << 20]).unwrap();
    fs::create_dir(server.export("dir")).unwrap();
    (0..6000).for_each(|n| drop(File::create(server.export(&format!("dir/{n:060}"))).unwrap()));
    server.serve();
    let mut near = Wire::connect(server.port);
    let root = near.root();
    let mut find = |name: &'static [u8]| {
        let what = Diropargs3 { dir: root.clone(), name: name.into() };
        near.call(&LookupArgs { what }).into_result().unwrap().object
    };
    let (file, dir) = (find(b"f"), find(b"dir"));
    let mut ask = |seconds| {
        let (mut worst, until) = (Duration::ZERO, now() + Duration::from_secs(seconds));
        while now() < until {
            let begun = now();
            near.call(&GetattrArgs { object: file.clone() }).into_result().unwrap();
            let read = ReadArgs { file: file.clone(), offset: 0, count: 4096 };
            assert_eq!(near.call(&read).into_result().unwrap().data.len(), 4096);
            worst = worst.max(begun.elapsed());
        }
        worst
    };
    let alone = ask(1);
    let before = server.memory_peak_kib();
    let calls = calls(file.clone(), dir);
    let deaf: Vec<TcpStream> = (0..count)
        .map(|n| {
            let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, 2 + (n % 8) as u8), server.port);
            // At the limit of connections the server ends some.
            let _ = stream.write_all(&calls);
            stream
        })
        .collect();
    let worst = ask(2);
    let peak = server.memory_peak_kib();
    println!(
        "{kind}: {count} that do not read: {before} KiB before, {peak} KiB at most; a call took {alone:?} and {worst:?}"
    );
    assert!(peak <= (limit << 10) * 6 / 5, "{kind}: {peak} KiB, {before} before");
    assert!(worst < Duration::from_millis(500).max(alone * 2), "{kind}: {worst:?}, alone {alone:?}");
    drop(deaf);
    assert_eq!(server.stop(), 0);
}
