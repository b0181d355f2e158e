//! `hither gateway` between mounts and an origin: bytes, names, rights, locks, and kills of both.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::wire::Wire;
use common::{HITHER, Random, own_files, pause, run, sh};
use hither_proto::nfs3::{Diropargs3, LookupArgs, Nfsstat3, ReadArgs, WriteArgs};
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Versions between client and gateway, and between gateway and origin.
const VERSIONS: [(&str, &str); 4] =
    [("vers=4.2", "vers=4.2"), ("vers=3", "vers=4.2"), ("vers=4.2", "vers=3"), ("vers=3", "vers=3")];

/// Runs `test` with an origin and a gateway, with each combination of versions.
fn for_each_version(test: impl Fn(&str, &mut Serve, &mut Serve)) {
    for (client, origin_version) in VERSIONS {
        own_files();
        let mut origin = Serve::of_directory();
        origin.serve();
        let mut gateway = Serve::gateway(&origin, origin_version);
        gateway.serve();
        println!("client {client}, origin {origin_version}");
        test(client, &mut origin, &mut gateway);
    }
}

/// Gateways of a chain.
const CHAIN: usize = 5;

fn umount(dir: &Path) {
    run(Command::new(HITHER).arg("umount").arg(dir)).ok();
}

/// Files and names that clients of the gateway make are at the origin, and changes at the origin
/// show at the next open.
/// Promise: G1
#[test]
#[ignore = "needs root"]
fn changes_pass_through_gateway() {
    for_each_version(|client, origin, gateway| {
        let mnt = gateway.mnt("mnt");
        gateway.mount(client, &mnt).ok();
        let (m, export) = (mnt.display(), origin.export(""));
        sh(&format!(
            "set -e; cd {m}; mkdir -p a/b; seq 100000 > a/b/n; cp -p a/b/n a/copy; ln a/copy a/hard; \
             ln -s copy a/soft; mv a/b/n a/moved; chmod 640 a/moved; mkfifo a/pipe; rm a/copy; \
             truncate -s 1000000 a/hard; dd if=/dev/urandom of=a/big bs=1M count=5 status=none; rmdir a/b"
        ))
        .ok();
        let list = "find a -printf '%p %y %m %n %s %l\\n' | sort; find a -type f | sort | xargs md5sum";
        let seen = |dir: &Path| sh(&format!("cd {}; {list}", dir.display())).ok().out;
        assert_eq!(seen(&mnt), seen(&export));
        for number in 0..20 {
            let text = format!("{number} {}", "x".repeat(number % 7));
            fs::write(origin.export("a/hard"), &text).unwrap();
            assert_eq!(fs::read_to_string(mnt.join("a/hard")).unwrap(), text);
        }
        sh(&format!("mkdir {m}/t")).ok();
        let state = |dir: &Path| {
            let meta = fs::metadata(dir.join("t")).unwrap();
            (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec(), meta.nlink(), meta.mode())
        };
        for call in [
            "touch t/f",
            "mv t/f t/g",
            "ln t/g t/h",
            "ln -s g t/s",
            "mkfifo t/p",
            "mkdir t/d",
            "mv t/d a/d",
            "mv a/d t/d",
            "rmdir t/d",
            "rm t/h",
            "mv t/g t/s",
            "echo > t/s",
            "chmod 700 t",
            "cp a/big t/big",
        ] {
            sh(&format!("cd {m}; touch -d 2001-01-01 t; stat t; {call}; stat t")).ok();
            assert_eq!(state(&mnt), state(&export), "{client}, after {call}");
        }
        umount(&mnt);
        assert_eq!(gateway.stop(), 0);
    });
}

/// A client of the gateway that opens a file after the end of a write at the origin reads the new
/// bytes (close-to-open). So does a client that has never seen the file, while the gateway has the
/// old one in its caches. The writer changes the bytes or puts a new file in the place of the old
/// one.
/// Promise: G1
#[test]
#[ignore = "needs root"]
fn open_at_gateway_sees_closed_file() {
    const ROUNDS: usize = 12;
    for_each_version(|client, origin, gateway| {
        let (writer, mounts) = (origin.mnt("writer"), ["first", "second"].map(|name| gateway.mnt(name)));
        origin.mount("vers=4.2", &writer).ok();
        fs::create_dir_all(writer.join("d/e")).unwrap();
        let write = |replace: bool, name: &str, text: &str| {
            let at = writer.join("d/e").join(name);
            let written = if replace { writer.join("d/new") } else { at.clone() };
            fs::write(&written, text).unwrap();
            if replace {
                fs::rename(&written, &at).unwrap();
            }
        };
        let read = |mnt: &Path, name: &str| {
            fs::read_to_string(mnt.join("d/e").join(name)).unwrap_or_else(|e| e.to_string())
        };
        for replace in [false, true] {
            for name in ["a", "b", "c"] {
                write(replace, name, "old");
            }
            gateway.mount(client, &mounts[0]).ok();
            for round in 0..ROUNDS {
                let text = format!("round {round}");
                let what = format!("{client}, replaced: {replace}, {text}");
                // The gateway knows the files before the change.
                assert_eq!(["a", "b", "c"].map(|name| read(&mounts[0], name).is_empty()), [false; 3]);
                write(replace, "a", &text);
                assert_eq!(read(&mounts[0], "a"), text, "{what}, the same client");
                write(replace, "b", &text);
                gateway.mount(client, &mounts[1]).ok();
                assert_eq!(read(&mounts[1], "b"), text, "{what}, a new client");
                write(replace, "c", &text);
                assert_eq!(read(&mounts[1], "c"), text, "{what}, a client that knows the directory");
                umount(&mounts[1]);
            }
            umount(&mounts[0]);
        }
        umount(&writer);
    });
}

/// The first call of a client for a name reaches the file that has the name at the origin, although
/// the gateway has an older listing of the directory.
/// Promise: G1
#[test]
#[ignore = "needs root"]
fn first_lookup_is_of_call() {
    for_each_version(|client, origin, gateway| {
        let (lister, mnt) = (gateway.mnt("lister"), gateway.mnt("mnt"));
        [&lister, &mnt].iter().for_each(|at| drop(gateway.mount(client, at).ok()));
        let made = sh(&format!(
            "cd {}; for d in a b c d e; do mkdir $d; echo old f > $d/f; echo old y > $d/y; done",
            origin.export("").display()
        ));
        made.ok();
        sh(&format!("cd {}; for d in a b c d e; do ls -l $d; cat $d/y; done", lister.display())).ok();
        let writer = origin.mnt("writer");
        origin.mount("vers=4.2", &writer).ok();
        let swap = "cd $d; mv f g; mv y f; echo new > n; cd ..";
        sh(&format!("set -e; cd {}; for d in a b c d e; do {swap}; done", writer.display())).ok();
        pause(1_500);
        let at = |name: &str| mnt.join(name);
        assert_eq!(fs::read_to_string(at("a/n")).map_err(|e| e.to_string()), Ok("new\n".into()), "{client}");
        fs::set_permissions(at("b/f"), Permissions::from_mode(0o600)).unwrap();
        sh(&format!("truncate -s 1 {}", at("c/f").display())).ok();
        fs::remove_file(at("d/f")).unwrap();
        let ino = |name: &str| fs::metadata(origin.export(name)).map(|m| m.ino()).unwrap();
        assert_eq!(fs::metadata(at("e/f")).unwrap().ino(), ino("e/f"), "{client}");
        let mode = |name: &str| fs::metadata(origin.export(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("b/f"), mode("b/g")), (0o600, 0o644), "{client}");
        let text = |name: &str| fs::read_to_string(origin.export(name)).unwrap();
        assert_eq!((text("c/f"), text("c/g")), ("o".into(), "old f\n".into()), "{client}");
        assert_eq!((text("d/g"), origin.export("d/f").exists()), ("old f\n".into(), false), "{client}");
        [&writer, &lister, &mnt].iter().for_each(|at| umount(at));
    });
}

/// Reads of many small files through a gateway cost the origin about as many messages as a mount of
/// the origin. Prints the figures.
#[test]
#[ignore = "needs root"]
fn gateway_costs_few_messages() {
    const FILES: u64 = 60;
    own_files();
    let mut origin = Serve::of_directory();
    origin.serve();
    fs::create_dir(origin.export("d")).unwrap();
    (0..FILES).for_each(|n| fs::write(origin.export(&format!("d/{n}")), format!("file {n}")).unwrap());
    // Files that changed a few seconds ago are looked at more often.
    pause(6_000);
    let mut gateway = Serve::gateway(&origin, "vers=4.2");
    gateway.serve();
    let cost = |server: &Serve, name: &str| {
        let mnt = server.mnt(name);
        server.mount("vers=4.2", &mnt).ok();
        let before = origin_calls(&origin).0;
        assert_eq!(
            sh(&format!("grep -c . {}/d/* | wc -l", mnt.display())).ok().out.trim(),
            FILES.to_string()
        );
        let calls = origin_calls(&origin).0 - before;
        umount(&mnt);
        calls
    };
    let (direct, cold) = (cost(&origin, "direct"), cost(&gateway, "cold"));
    let warm = cost(&gateway, "warm");
    println!("{FILES} files: {direct} messages by a mount, {cold} by the gateway, {warm} when warm");
    assert!(cold <= direct + direct / 10, "{cold} of {direct}");
    assert!(warm <= direct + direct / 10, "{warm} of {direct}");
}

/// Reads and writes of NFSv3 clients that never asked for their rights are checked, also where the
/// gateway has the bytes in its caches.
/// Promise: G2
#[test]
#[ignore = "needs root"]
fn gateway_checks_rights() {
    own_files();
    let mut origin = Serve::of_directory();
    origin.serve();
    fs::write(origin.export("secret"), "bytes of root").unwrap();
    fs::set_permissions(origin.export("secret"), Permissions::from_mode(0o640)).unwrap();
    let cache = origin.dir.path().join("cache");
    fs::create_dir(&cache).unwrap();
    let mut gateway = Serve::gateway(&origin, &format!("vers=4.2,cache={}", cache.display()));
    gateway.serve();
    let mut wire = Wire::connect(gateway.port);
    let dir = wire.root();
    let what = Diropargs3 { dir, name: b"secret"[..].into() };
    let file = wire.call(&LookupArgs { what }).into_result().unwrap().object;
    let read = || ReadArgs { file: file.clone(), offset: 0, count: 100 };
    let write = || WriteArgs {
        file: file.clone(),
        offset: 0,
        count: 1,
        stable: hither_proto::nfs3::StableHow::FILE_SYNC,
        data: b"X"[..].into(),
    };
    for _ in 0..3 {
        assert_eq!(&wire.call(&read()).into_result().unwrap().data[..], b"bytes of root");
    }
    wire.user = 1000;
    assert_eq!(wire.call(&read()).into_result().map(drop).unwrap_err().0, Nfsstat3::ACCES);
    assert_eq!(wire.call(&write()).into_result().map(drop).unwrap_err().0, Nfsstat3::ACCES);
    rustix::fs::chown(origin.export("secret"), Some(rustix::fs::Uid::from_raw(1000)), None).unwrap();
    pause(4_000);
    // The owner may write, although a program has taken the right away since its open.
    fs::set_permissions(origin.export("secret"), Permissions::from_mode(0o400)).unwrap();
    assert!(wire.call(&write()).into_result().is_ok());
    assert_eq!(fs::read(origin.export("secret")).unwrap(), b"Xytes of root");
}

/// Programs write and sync while gateway and origin are killed by turns. All synced bytes are at
/// the origin, and no call fails.
/// Promise: G3
#[test]
#[ignore = "needs root"]
fn kills_lose_no_synced_byte() {
    for_each_version(|client, origin, gateway| {
        let mnt = gateway.mnt("mnt");
        gateway.mount(client, &mnt).ok();
        let over = AtomicBool::new(false);
        let written = std::thread::scope(|s| {
            let write = |writer: u64| {
                let (at, over) = (mnt.join(format!("f{writer}")), &over);
                move || {
                    let (mut random, mut bytes) = (Random(writer), vec![0; 1 << 20]);
                    let file = File::create(at).unwrap();
                    let mut pieces = 0;
                    while !over.load(Ordering::Relaxed) {
                        for _ in 0..1 + random.below(20) {
                            let (from, len) = (random.below(1 << 19), 1 + random.below(100_000));
                            let piece = vec![random.below(255) as u8 + 1; len as usize];
                            file.write_all_at(&piece, from).unwrap();
                            bytes[from as usize..][..piece.len()].copy_from_slice(&piece);
                            pieces += 1;
                        }
                        file.sync_all().unwrap();
                    }
                    bytes.truncate(file.metadata().unwrap().len() as usize);
                    (bytes, pieces)
                }
            };
            let writers: Vec<_> = (0..3).map(|writer| s.spawn(write(writer))).collect();
            for kill in 0..4 {
                pause(700);
                let killed = if kill % 2 == 0 { &mut *gateway } else { &mut *origin };
                killed.kill();
                killed.serve();
            }
            pause(2_000);
            over.store(true, Ordering::Relaxed);
            writers.into_iter().map(|w| w.join().unwrap()).collect::<Vec<_>>()
        });
        for (writer, (bytes, pieces)) in written.iter().enumerate() {
            let name = format!("f{writer}");
            assert!(fs::read(origin.export(&name)).unwrap() == *bytes, "{client}, {name}: {pieces} pieces");
            assert!(fs::read(mnt.join(&name)).unwrap() == *bytes, "{client}, {name} through the gateway");
        }
        umount(&mnt);
    });
}

/// Each gateway of a chain makes handles longer, and each handle fits into NFSv3's. Handles survive
/// kills of all gateways. Without its table a gateway refuses its long handles.
/// Promise: G4
#[test]
#[ignore = "needs root"]
fn handles_pass_chain_of_gateways() {
    for version in ["vers=3", "vers=4.2"] {
        own_files();
        let mut origin = Serve::of_directory().with(&["-o", "rw,no_root_squash,insecure"]);
        origin.serve();
        let mut chain: Vec<Serve> = Vec::new();
        for _ in 0..CHAIN {
            let mut gateway = Serve::gateway(chain.last().unwrap_or(&origin), version)
                .with(&["-o", "rw,no_root_squash,insecure"]);
            gateway.serve();
            chain.push(gateway);
        }
        fs::write(origin.export("read"), "of the origin").unwrap();
        let handle = |server: &Serve| {
            let mut wire = Wire::connect_from(server.port, 777);
            let what = Diropargs3 { dir: wire.root_of("/"), name: b"read".as_slice().into() };
            let found = wire.call(&LookupArgs { what }).into_result().unwrap().object;
            (wire, found)
        };
        let is_long = |server: &&mut Serve| handle(server).1.starts_with(&[0x14]);
        assert!(chain.iter_mut().filter(is_long).count() > 0, "{version}: no handle is long");

        let mnt = chain[CHAIN - 1].mnt("mnt");
        chain[CHAIN - 1].mount(version, &mnt).ok();
        let reading = File::open(mnt.join("read")).unwrap();
        let mut writing = File::create(mnt.join("written")).unwrap();
        writing.write_all(b"before").unwrap();
        writing.sync_all().unwrap();
        let number = fs::metadata(mnt.join("read")).unwrap().ino();
        for gateway in &mut chain {
            gateway.kill();
        }
        for gateway in &mut chain {
            gateway.serve();
        }
        let mut bytes = [0; 13];
        reading.read_exact_at(&mut bytes, 0).unwrap();
        writing.write_all(b" and after").unwrap();
        writing.sync_all().unwrap();
        assert_eq!(&bytes, b"of the origin", "{version}");
        assert_eq!(fs::metadata(mnt.join("read")).unwrap().ino(), number, "{version}");
        assert_eq!(fs::read(origin.export("written")).unwrap(), b"before and after", "{version}");
        drop((reading, writing));
        umount(&mnt);

        let long = chain.iter_mut().find(is_long).unwrap();
        let (mut wire, file) = handle(long);
        long.kill();
        fs::remove_file(long.dir.path().join("state/long-handles")).unwrap();
        long.serve();
        wire.reconnect();
        let read = wire.call(&ReadArgs { file, offset: 0, count: 100 }).into_result();
        assert_eq!(read.map(drop).map_err(|(status, _)| status), Err(Nfsstat3::STALE), "{version}");
    }
}

/// Names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

/// One gateway serves exports of two origins at paths of their own, with rights of their own. An
/// origin that is away at the start delays no other origin. SIGHUP adds and removes exports, and
/// files of other exports stay open.
/// Promise: G5
#[test]
#[ignore = "needs root"]
fn many_origins_in_one_gateway() {
    own_files();
    let mut near = Serve::of_directory();
    near.serve();
    let mut late = Serve::beside(2149);
    fs::write(near.export("f"), "near").unwrap();
    fs::write(late.export("f"), "late").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (origins, exports) = (dir.path().join("origins"), dir.path().join("exports"));
    let lines = "127.0.0.1:/ /a hither port=2049,vers=4.2\n\
                 127.0.0.1:/ /b/deep hither port=2149,vers=4.2\n\
                 127.0.0.1:/ /c hither port=2049,mountport=2049,vers=3\n";
    fs::write(&origins, lines).unwrap();
    fs::write(&exports, "/c *(ro,insecure)\n").unwrap();
    let words = ["--origins", origins.to_str().unwrap(), "--config", exports.to_str().unwrap()];
    let mut gateway = Serve::gateway_at(3049, &words);
    gateway.serve();
    let mnt = gateway.mnt("mnt");
    gateway.mount("vers=4.2,actimeo=1", &mnt).ok();
    assert_eq!(fs::read_to_string(mnt.join("a/f")).unwrap(), "near");
    assert_eq!(fs::read_to_string(mnt.join("c/f")).unwrap(), "near");
    assert_eq!(fs::write(mnt.join("c/f"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    // NFSv3 clients mount an export by its path.
    let third = gateway.mnt("third");
    gateway.mount_path("vers=3", "/c", &third).ok();
    assert_eq!(fs::read_to_string(third.join("f")).unwrap(), "near");
    umount(&third);
    // The call waits for the origin that is away, and other calls do not wait for it.
    std::thread::scope(|s| {
        let waiting = s.spawn(|| (fs::read_to_string(mnt.join("b/deep/f")), std::time::Instant::now()));
        let began = std::time::Instant::now();
        fs::write(mnt.join("a/new"), "new").unwrap();
        assert!(began.elapsed().as_secs() < 5);
        pause(1_000);
        assert!(!waiting.is_finished());
        late.serve();
        let back = std::time::Instant::now();
        let (text, answered) = waiting.join().unwrap();
        assert_eq!(text.unwrap(), "late");
        assert!(answered.duration_since(back).as_secs() < 10, "{:?}", answered.duration_since(back));
    });
    let open = File::options().append(true).open(mnt.join("a/new")).unwrap();
    fs::write(&origins, format!("{lines}127.0.0.1:/ /d hither port=2149,vers=4.2\n").replace("/c ", "/e "))
        .unwrap();
    gateway.signal(libc::SIGHUP);
    common::wait_for("the new export", 20, || fs::read_to_string(mnt.join("d/f")).is_ok_and(|t| t == "late"));
    common::wait_for("the end of the old export", 20, || names(&mnt) == ["a", "b", "d", "e"]);
    std::io::Write::write_all(&mut &open, b" and more").unwrap();
    open.sync_all().unwrap();
    assert_eq!(fs::read_to_string(near.export("new")).unwrap(), "new and more");
    // A fault of the file changes nothing.
    fs::write(&origins, "127.0.0.1:/ /a hither no-such-option\n").unwrap();
    gateway.signal(libc::SIGHUP);
    common::wait_for("the complaint", 20, || gateway.complaints().contains("the exports stay as they are"));
    assert_eq!(fs::read_to_string(mnt.join("d/f")).unwrap(), "late");
    drop(open);
    umount(&mnt);
    assert_eq!(gateway.stop(), 0);
}

/// A gateway finds the exports of an origin, from the list of its mountd and from the root of
/// NFSv4. Excluded exports are left out. Clients cross into exports and mounts inside exports. An
/// export that the origin adds or removes appears and disappears.
/// Promise: G6
#[test]
#[ignore = "needs root"]
fn exports_of_origin_are_found() {
    for (client, origin_options, origin_words) in [
        ("vers=4.2", "vers=4.2,mountport=2049", "3,4"),
        ("vers=4.2", "vers=4.2,mountport=2050", "4"),
        ("vers=4.2", "vers=3,mountport=2049", "3,4"),
        ("vers=3", "vers=4.2,mountport=2049", "3,4"),
        ("vers=3", "vers=3,mountport=2049", "3"),
    ] {
        println!("client {client}, origin {origin_options}, versions {origin_words}");
        own_files();
        let origin = Serve::prepare();
        for name in ["one", "two/inner", "two/mounted", "secret", "later"] {
            fs::create_dir_all(origin.export(name)).unwrap();
            fs::write(origin.export(name).join("f"), name).unwrap();
        }
        sh(&format!(
            "mount -t tmpfs tmpfs {0} && echo -n tmpfs > {0}/f",
            origin.export("two/mounted").display()
        ))
        .ok();
        let top = origin.export("").display().to_string();
        let top = top.trim_end_matches('/').to_owned();
        let exports = origin.dir.path().join("exports");
        let lines = format!(
            "{top}/one *(rw,no_root_squash)\n{top}/two *(rw,no_root_squash,crossmnt)\n{top}/two/inner *(rw,no_root_squash)\n{top}/secret *(rw)\n"
        );
        fs::write(&exports, &lines).unwrap();
        let mut origin = origin.with(&["--config", "exports", "--versions", origin_words]);
        let options = format!("port=2049,{origin_options},exclude=/*/secret,exclude=/x");
        let mut gateway = Serve::gateway_at(3049, &["127.0.0.1:/*", "--mount", &options]);
        // One origin starts after the gateway.
        let late = origin_words == "4";
        let each: [&mut Serve; 2] =
            if late { [&mut gateway, &mut origin] } else { [&mut origin, &mut gateway] };
        each.into_iter().for_each(Serve::serve);
        let told = || gateway.said() + &gateway.complaints();
        common::wait_for("the exports", 30, || told().contains("/two "));
        assert!(!told().contains("secret"));
        let mnt = gateway.mnt("mnt");
        let text = |path: &str| fs::read_to_string(mnt.join(path)).ok();
        let errno = |done: std::io::Result<()>| done.unwrap_err().raw_os_error();
        if client == "vers=3" {
            let one = gateway.mnt("one");
            gateway.mount_path(client, &format!("{top}/one"), &one).ok();
            assert_eq!(fs::read_to_string(one.join("f")).unwrap(), "one");
            umount(&one);
            gateway.mount_path(&format!("{client},actimeo=1"), &format!("{top}/two"), &mnt).ok();
        } else {
            gateway.mount_path(&format!("{client},actimeo=1"), &top, &mnt).ok();
            assert_eq!(names(&mnt), ["one", "two"]);
            assert_eq!(text("one/f").unwrap(), "one");
            umount(&mnt);
            gateway.mount_path(&format!("{client},actimeo=1"), &format!("{top}/two"), &mnt).ok();
        }
        assert_eq!(names(&mnt), ["inner", "mounted"]);
        assert_eq!(text("inner/f").unwrap(), "two/inner");
        assert_eq!(text("mounted/f").unwrap(), "tmpfs");
        fs::write(mnt.join("g"), "g").unwrap();
        assert_eq!(errno(fs::rename(mnt.join("g"), mnt.join("mounted/g"))), Some(libc::EXDEV));
        assert_eq!(errno(fs::rename(mnt.join("g"), mnt.join("inner/g"))), Some(libc::EXDEV));
        umount(&mnt);
        fs::write(&exports, lines.replace("/one *", "/later *")).unwrap();
        origin.signal(libc::SIGHUP);
        common::wait_for("the origin", 20, || origin.complaints().contains("exports read again"));
        gateway.signal(libc::SIGHUP);
        let mounts = |name: &str| {
            let done = gateway.mount_path(client, &format!("{top}/{name}"), &mnt);
            let mounted = done.code == 0;
            if mounted {
                umount(&mnt);
            }
            mounted
        };
        common::wait_for("the new export", 30, || mounts("later"));
        common::wait_for("the end of the old one", 30, || !mounts("one"));
        assert_eq!(gateway.stop(), 0);
    }
}

/// A gateway of an origin with 5,000 exports starts within five seconds, and an export takes at
/// most 20 KB of its memory. The best of three starts counts, because other programs may use the
/// machine. All exports of the origin share one queue of local changes and few threads. Prints the
/// figures.
#[test]
#[ignore = "needs root"]
fn thousands_of_exports_start_soon() {
    own_files();
    let origin = Serve::prepare();
    let top = origin.export("").display().to_string();
    let mut lines = String::new();
    for n in 0..5_000 {
        fs::create_dir(origin.export(&format!("e{n}"))).unwrap();
        fs::write(origin.export(&format!("e{n}/f")), n.to_string()).unwrap();
        lines.push_str(&format!("{top}e{n} *(ro,no_root_squash)\n"));
    }
    fs::write(origin.dir.path().join("exports"), lines).unwrap();
    let mut origin = origin.with(&["--config", "exports"]);
    let began = std::time::Instant::now();
    origin.serve();
    println!("origin: {} ms", began.elapsed().as_millis());
    let anonymous_kib = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    for version in ["vers=4.2", "vers=3"] {
        let start = |port: u16, pattern: &str, some: &str| {
            let options = format!("port=2049,mountport=2049,{version}");
            let mut gateway = Serve::gateway_at(port, &[pattern, "--mount", &options]);
            let began = std::time::Instant::now();
            gateway.serve();
            common::wait_for("the exports", 60, || gateway.said().contains(some));
            (gateway, began.elapsed())
        };
        let (mut one, _) = start(3048, &format!("127.0.0.1:{top}e1"), "serving");
        let start_all = || start(3049, "127.0.0.1:/*", "4984 more exports");
        let (mut all, mut time) = start_all();
        for _ in 1..3 {
            if time.as_secs() >= 5 {
                println!("{version}: start {} ms", time.as_millis());
                assert_eq!(all.stop(), 0);
                (all, time) = start_all();
            }
        }
        let (one_kib, all_kib) = (anonymous_kib(one.pid()), anonymous_kib(all.pid()));
        let each_bytes = all_kib.saturating_sub(one_kib) * 1024 / 5_000;
        println!("{version}: start {} ms, {each_bytes} bytes an export", time.as_millis());
        let mnt = all.mnt("mnt");
        all.mount_path("vers=4.2", top.trim_end_matches('/'), &mnt).ok();
        let began = std::time::Instant::now();
        assert_eq!(names(&mnt).len(), 5_000);
        println!("{version}: listing of all exports {} ms", began.elapsed().as_millis());
        let threads = fs::read_dir(format!("/proc/{}/task", origin.pid())).unwrap().count();
        assert!(threads < 300, "{version}: {threads} threads of the origin");
        assert_eq!(fs::read_to_string(mnt.join("e4999/f")).unwrap(), "4999");
        umount(&mnt);
        assert!(time.as_secs() < 5 && each_bytes <= 20_000);
        // The next gateways have the same ports.
        assert_eq!((one.stop(), all.stop()), (0, 0));
    }
    // The kernel allows a user 128 queues of notifications.
    let files = fs::read_dir(format!("/proc/{}/fd", origin.pid())).unwrap().map(|fd| fd.unwrap().path());
    let queues =
        files.filter_map(|fd| fs::read_link(fd).ok()).filter(|to| to.to_string_lossy().contains("notify"));
    assert!(queues.count() <= 1, "all exports share one queue");
}

/// With `stale-ok`, cached files are read while the origin is stopped or killed, for the given
/// time. Other calls wait. All calls have answers within ten seconds of the origin's return.
/// Promise: G7
#[test]
#[ignore = "needs root"]
fn cached_files_outlive_origin() {
    for (client, version, killed) in [
        ("vers=4.2", "vers=4.2", false),
        ("vers=4.2", "vers=3", false),
        ("vers=4.2", "vers=4.2", true),
        ("vers=3", "vers=4.2", true),
    ] {
        own_files();
        let mut origin = Serve::of_directory();
        origin.serve();
        fs::create_dir_all(origin.export("d/e")).unwrap();
        // Small neighbours of a file are fetched with it.
        let (cached_text, other_text) = ("cached".repeat(50_000), "other".repeat(50_000));
        fs::write(origin.export("d/e/cached"), &cached_text).unwrap();
        fs::write(origin.export("d/e/other"), &other_text).unwrap();
        let cache = origin.dir.path().join("cache");
        let options = format!("{version},cache={},cache-age=0,stale-ok=14", cache.display());
        let mut gateway = Serve::gateway(&origin, &options);
        gateway.serve();
        let mnt = gateway.mnt("mnt");
        gateway.mount(&format!("{client},noac"), &mnt).ok();
        let cached = mnt.join("d/e/cached");
        assert!(fs::read_to_string(&cached).unwrap() == cached_text);
        assert_eq!(names(&mnt.join("d/e")), ["cached", "other"]);
        pause(5_000);
        println!("client {client}, origin {version}, killed {killed}");
        let gone = std::time::Instant::now();
        if killed {
            origin.kill();
        } else {
            origin.freeze();
        }
        // The first read waits until the origin counts as away.
        let mut reads = 0;
        while gone.elapsed().as_secs() < 11 {
            let began = std::time::Instant::now();
            assert!(fs::read_to_string(&cached).unwrap() == cached_text);
            assert!(began.elapsed().as_secs() < 6, "read {reads}: {:?}", began.elapsed());
            assert!(cached.metadata().unwrap().is_file());
            reads += 1;
            pause(100);
        }
        assert!(reads > 20, "{reads}");
        let back = std::thread::scope(|s| {
            let read = |name: &'static str| {
                let path = mnt.join("d/e").join(name);
                s.spawn(move || (fs::read_to_string(path).unwrap(), std::time::Instant::now()))
            };
            let other = read("other");
            pause(6_000);
            // After the time, cached files wait as well.
            let late = read("cached");
            pause(1_500);
            let early = (other.is_finished(), late.is_finished());
            let back = std::time::Instant::now();
            if killed {
                origin.serve();
            } else {
                origin.signal(libc::SIGCONT);
            }
            for (thread, text) in [(other, &other_text), (late, &cached_text)] {
                let (read, answered) = thread.join().unwrap();
                assert!(read == *text);
                let after = answered.duration_since(back);
                println!("an answer after {} ms", after.as_millis());
                assert!(after.as_secs() < 10, "{after:?}");
            }
            assert_eq!(early, (false, false), "calls have answers without the origin");
            back
        });
        fs::write(origin.export("d/e/cached"), "newer").unwrap();
        common::wait_for("the new bytes", 10, || {
            fs::read_to_string(&cached).is_ok_and(|text| text == "newer")
        });
        println!("{reads} reads; new bytes after {} ms", back.elapsed().as_millis());
        umount(&mnt);
    }
}

/// Calls by procedure, and sent bytes of file data, of a server.
fn origin_calls(server: &Serve) -> (u64, u64) {
    let state = server.dir.path().join("state").display().to_string();
    let said = common::hither(&["stat", "--server", &state, "--json"]).ok();
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let all = report["operations"].as_array().unwrap();
    let sum = |protocol: &str, name: Option<&str>, figure: &str| -> u64 {
        let fits = |op: &&serde_json::Value| {
            op["protocol"] == protocol && name.is_none_or(|name| op["name"] == name)
        };
        all.iter().filter(fits).map(|op| op[figure].as_u64().unwrap_or(0)).sum()
    };
    let calls = sum("nfs4", Some("COMPOUND"), "calls") + sum("nfs3", None, "calls");
    let bytes = sum("nfs4op", Some("READ"), "sent_bytes") + sum("nfs3", Some("READ"), "sent_bytes");
    (calls, bytes)
}

/// Passes bytes on after a delay.
fn pass_later(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, receiver) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        for (due, bytes) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + delay, buffer[..n].to_vec())).is_err() {
                break;
            }
        }
    });
}

/// A port that leads to a server over a link with this delay in each direction.
fn distant(server: u16, delay: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(("127.0.0.1", server)).unwrap();
            near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).unwrap();
            pass_later(near.try_clone().unwrap(), far.try_clone().unwrap(), delay);
            pass_later(far, near, delay);
        }
    });
    port
}

/// Many clients list and read the same cold tree of a distant origin within seconds. The origin
/// sends each byte about once. It gets as many calls for the listings as from one client (G1).
/// `HITHER_CLIENTS` is the number of clients.
#[test]
#[ignore = "needs root"]
fn many_clients_share_cold_tree() {
    let count = std::env::var("HITHER_CLIENTS").map_or(20, |n| n.parse().unwrap());
    let mut failures = Vec::new();
    for (client, version) in [("vers=4.2", "vers=4.2"), ("vers=3", "vers=4.2"), ("vers=4.2", "vers=3")] {
        own_files();
        let mut origin = Serve::of_directory().with(&["-o", "rw,no_root_squash,insecure"]);
        let (mut random, mut tree_bytes) = (Random(7), 0);
        for n in 0..120 {
            let dir = origin.export(&format!("d{}/e{}", n % 4, n % 12));
            fs::create_dir_all(&dir).unwrap();
            let len = if n % 3 == 0 { 2_000 } else { 20_000 + random.below(300_000) };
            let body: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            fs::write(dir.join(format!("f{n}")), body).unwrap();
            tree_bytes += len;
        }
        origin.serve();
        pause(3_000);
        // One client lists through a gateway of its own.
        let list = |clients: usize, name: &str, command: &str, gateway: &Serve| {
            let dirs: Vec<_> = (0..clients).map(|n| gateway.mnt(&format!("{name}{n}"))).collect();
            dirs.iter().for_each(|dir| drop(gateway.mount(client, dir).ok()));
            let before = origin_calls(&origin);
            std::thread::scope(|s| {
                for dir in &dirs {
                    s.spawn(move || sh(&format!("cd {}; {command}", dir.display())).ok());
                    pause(100);
                }
            });
            let after = origin_calls(&origin);
            dirs.iter().for_each(|dir| umount(dir));
            (after.0 - before.0, after.1 - before.1)
        };
        let start = |name: &str| {
            let cache = origin.dir.path().join(name).display().to_string();
            let far = distant(origin.port, Duration::from_millis(10));
            let options = format!("{version},cache={cache},cache-age=0,port={far}");
            let mut gateway = Serve::gateway(&origin, &options);
            gateway.serve();
            gateway
        };
        let mut gateway = start("one");
        let (one_calls, _) = list(1, "one", "ls -lR >/dev/null", &gateway);
        gateway.stop();
        let mut gateway = start("many");
        let (many_calls, _) = list(count, "many", "ls -lR >/dev/null", &gateway);
        gateway.stop();
        let mut gateway = start("bytes");
        let (_, bytes) = list(count, "bytes", "tar cf - . | cat >/dev/null", &gateway);
        gateway.stop();
        let (calls, times) = (many_calls as f64 / one_calls as f64, bytes as f64 / tree_bytes as f64);
        println!(
            "client {client}, origin {version}: ls -lR {one_calls} calls of one client, {many_calls} of {count} \
             ({calls:.2}); bytes {times:.3} times the tree"
        );
        if times > 1.1 || calls > 1.1 {
            failures.push((client, version));
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
}
