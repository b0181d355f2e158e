//! Programs on the socket of a mount, with a real server: their view, their cost, their
//! permissions.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, hither, run, sh, wait_for};
use hither_client::wire::{self, HEADER_BYTES, Header, Part, Request};
use hither_client::{Client, Kind, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn umount(dir: &Path) {
    run(Command::new(HITHER).arg("umount").arg(dir)).ok();
}

/// Number of calls to the server so far, without lease renewals, and all of them by name.
fn rpcs(dir: &Path) -> (u64, String) {
    let said = run(Command::new(HITHER).args(["stat", "--json"]).arg(dir)).ok().out;
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let operations = report["operations"].as_array().unwrap();
    let calls = |op: &serde_json::Value| op["calls"].as_u64().unwrap();
    let counted: Vec<_> = operations.iter().filter(|op| calls(op) > 0 && op["name"] != "SEQUENCE").collect();
    let each: Vec<_> = counted.iter().map(|op| format!("{} {}", op["name"], calls(op))).collect();
    (counted.into_iter().map(calls).sum(), each.join(", "))
}

/// All operations on files, with the versions that differ.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn files_by_the_socket() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    for version in ["4.2", "3"] {
        ganesha.mount(&format!("vers={version}"), &mnt).ok();
        let client = Client::connect(&mnt).unwrap();
        assert_eq!((client.dir(), client.source().as_str()), (mnt.clone(), "127.0.0.1:/export"));
        client.create_dir("d").unwrap();
        client.create_dir(mnt.join("d/e")).unwrap();
        let body: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 251) as u8).collect();
        let mut file =
            OpenOptions::new().read(true).write(true).create_new(true).open(&client, "d/e/f").unwrap();
        file.write_all(&body).unwrap();
        file.sync_all().unwrap();
        assert!(std::fs::read(ganesha.export("d/e/f")).unwrap() == body, "fsync means the server");
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert!(read == body);
        file.set_len(10).unwrap();
        assert_eq!(file.stat().unwrap().size, 10);
        file.close().unwrap();
        assert_eq!(client.read("d/e/f").unwrap(), &body[..10]);
        let again = OpenOptions::new().write(true).create_new(true).open(&client, "d/e/f");
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);

        client.symlink("e/f", "d/link").unwrap();
        client.symlink("/etc/passwd", "d/out").unwrap();
        client.symlink(mnt.join("d/e/f"), "d/absolute").unwrap();
        client.symlink("loop", "d/loop").unwrap();
        assert_eq!(client.read("d/link").unwrap(), &body[..10]);
        assert_eq!(client.read("d/absolute").unwrap(), &body[..10]);
        assert_eq!(client.read("d/e/../../d/./link").unwrap(), &body[..10]);
        assert_eq!(client.read_link("d/link").unwrap(), Path::new("e/f"));
        assert_eq!(client.lstat("d/link").unwrap().kind, Kind::Symlink);
        assert_eq!(client.stat("d/link").unwrap().kind, Kind::File);
        let errno = |path: &str| client.read(path).unwrap_err().raw_os_error().unwrap();
        assert_eq!(errno("d/out"), libc::EXDEV, "nothing outside the mount is read with the daemon's rights");
        assert_eq!(errno("../../etc/passwd"), libc::EXDEV);
        assert_eq!(errno("d/loop"), libc::ELOOP);
        assert_eq!(errno("d/none"), libc::ENOENT);
        assert_eq!(errno("d/e/f/g"), libc::ENOTDIR);
        assert_eq!(errno("d/e/f/"), libc::ENOTDIR);
        assert_eq!(errno("d/e"), libc::EISDIR);
        assert_eq!(client.stat("").unwrap().kind, Kind::Directory);

        client.rename("d/e/f", "d/g").unwrap();
        let mut names: Vec<_> = client.list("d").unwrap().into_iter().map(|e| e.path).collect();
        names.sort();
        let names: Vec<_> = names.iter().map(|n| n.to_str().unwrap()).collect();
        assert_eq!(names, ["absolute", "e", "g", "link", "loop", "out"]);
        assert_eq!(client.remove_file("d/e").unwrap_err().raw_os_error(), Some(libc::EISDIR));
        assert_eq!(client.remove_dir("d").unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
        client.remove_dir("d/e").unwrap();
        for name in ["absolute", "g", "link", "loop", "out"] {
            client.remove_file(format!("d/{name}")).unwrap();
        }
        client.remove_dir("d").unwrap();
        assert!(!ganesha.export("d").exists());
        umount(&mnt);
        assert!(client.stat("").is_err(), "the mount is gone");
    }
}

/// A thousand small files arrive in few round trips, and cached files need none.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn many_files_take_few_round_trips() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    let names: Vec<String> = (0..1000).map(|i| format!("{}/f{i}", i % 4)).collect();
    for dir in 0..4 {
        std::fs::create_dir(ganesha.export(&dir.to_string())).unwrap();
    }
    for (i, name) in names.iter().enumerate() {
        std::fs::write(ganesha.export(name), vec![i as u8; 100 + i]).unwrap();
    }
    std::fs::write(ganesha.export("0/large"), vec![7; 3 << 20]).unwrap();
    // No cached state expires during this test on any machine.
    ganesha.mount("vers=4.2,actimeo=3600", &mnt).ok();
    let client = Client::connect(&mnt).unwrap();
    let (before, _) = rpcs(&mnt);
    let all = client.read_many(&names).unwrap();
    let (after, each) = rpcs(&mnt);
    for (i, read) in all.into_iter().enumerate() {
        assert_eq!(read.unwrap(), vec![i as u8; 100 + i], "{}", names[i]);
    }
    println!("1000 files read: {} RPCs ({each})", after - before);
    assert!(after - before <= 250, "{} RPCs for 1000 files: {each}", after - before);

    let (before, _) = rpcs(&mnt);
    let stats = client.stat_many(&names).unwrap();
    let (after, each) = rpcs(&mnt);
    assert!(stats.iter().zip(0..).all(|(s, i)| s.as_ref().unwrap().size == 100 + i));
    println!("1000 files looked at: {} RPCs ({each})", after - before);
    assert!(after - before <= 8, "{} RPCs to look at 1000 files: {each}", after - before);

    // Errors, large files and parts arrive at their own places in the result.
    let mixed = ["0/large", "none", "0", "1/f1", "none/none"];
    let read = client.read_many(&mixed).unwrap();
    let kinds: Vec<_> = read.iter().map(|r| r.as_ref().map(Vec::len).map_err(|e| e.raw_os_error())).collect();
    let (none, dir) = (Err(Some(libc::ENOENT)), Err(Some(libc::EISDIR)));
    assert_eq!(kinds, [Ok(3 << 20), none, dir, Ok(101), none]);
    let mut parts = vec![None; 3];
    let asked = [("0/large", (3 << 20) - 5, 10), ("1/f1", 99, 100), ("1/f1", 500, 1)];
    client
        .read_parts(&asked, |i, read| {
            parts[i] = Some(read.map(|(size, data)| (size, data.to_vec())).unwrap())
        })
        .unwrap();
    let wanted = [(3 << 20, vec![7; 5]), (101, vec![1; 2]), (101, vec![])];
    assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>(), wanted);
    umount(&mnt);

    // State that holds for a minute is requested once.
    ganesha.mount("vers=4.2,consistency=bounded=60", &mnt).ok();
    let client = Client::connect(&mnt).unwrap();
    client.read_many(&names).unwrap().into_iter().for_each(|read| drop(read.unwrap()));
    // Files written less than five seconds ago may change without a new time stamp, and are not
    // cached.
    wait_for("a thousand files that are known", 60, || {
        let (before, _) = rpcs(&mnt);
        let all = client.read_many(&names).unwrap();
        let (after, each) = rpcs(&mnt);
        assert!(all.into_iter().enumerate().all(|(i, read)| read.unwrap() == vec![i as u8; 100 + i]));
        println!("1000 files again: {} RPCs ({each})", after - before);
        after - before <= 8
    });
    umount(&mnt);
}

/// A change on one side is visible on the other side at once, even if the kernel has cached the old
/// state.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn socket_and_mount_see_each_other() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    for version in ["4.2", "3"] {
        // Cached state holds for a minute, so only notifications can show a change.
        ganesha.mount(&format!("vers={version},consistency=bounded=60"), &mnt).ok();
        let client = Client::connect(&mnt).unwrap();
        std::fs::write(mnt.join("f"), "by the mount").unwrap();
        assert_eq!(client.read("f").unwrap(), b"by the mount");
        let held = std::fs::File::open(mnt.join("f")).unwrap();
        let mut start = [0; 6];
        for round in 0..50_u8 {
            held.read_exact_at(&mut start, 0).unwrap();
            assert_eq!(held.metadata().unwrap().len(), 12 + u64::from(round));
            let file = OpenOptions::new().write(true).open(&client, "f").unwrap();
            let body = [b'a' + round % 26; 6];
            file.write_all_at(&body, 0).unwrap();
            // Before the close, through a descriptor that has read the old bytes.
            held.read_exact_at(&mut start, 0).unwrap();
            assert_eq!(start, body, "round {round}");
            file.write_all_at(b"!", 12 + u64::from(round)).unwrap();
            assert_eq!(held.metadata().unwrap().len(), 13 + u64::from(round), "round {round}");
            file.close().unwrap();
            let whole = std::fs::read(mnt.join("f")).unwrap();
            assert_eq!((&whole[..6], whole.len()), (&body[..], 13 + usize::from(round)));
        }

        // Absent names, new names, and listings.
        assert!(!mnt.join("new").exists());
        let list = || {
            let mut names: Vec<_> = std::fs::read_dir(&mnt)
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(list(), ["f"]);
        client.write("new", "1").unwrap();
        assert_eq!(std::fs::read(mnt.join("new")).unwrap(), b"1");
        assert_eq!(list(), ["f", "new"]);
        client.rename("new", "newer").unwrap();
        assert!(!mnt.join("new").exists());
        assert_eq!(std::fs::metadata(mnt.join("newer")).unwrap().len(), 1);
        assert_eq!(list(), ["f", "newer"]);
        client.rename("newer", "f").unwrap();
        assert_eq!(std::fs::read(mnt.join("f")).unwrap(), b"1", "another file has the name");
        client.create_dir("dir").unwrap();
        assert!(mnt.join("dir").is_dir());
        client.remove_dir("dir").unwrap();
        assert!(!mnt.join("dir").exists());

        // An open file that loses its name stays readable.
        let open = std::fs::File::open(mnt.join("f")).unwrap();
        client.remove_file("f").unwrap();
        assert!(!mnt.join("f").exists());
        let mut byte = [0];
        open.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, *b"1");
        drop(open);

        // The other direction: data that a program of the mount has not closed yet.
        let writer = std::fs::File::create(mnt.join("g")).unwrap();
        for round in 0..20_u8 {
            writer.write_all_at(&[round; 3], 0).unwrap();
            assert_eq!(client.read("g").unwrap(), [round; 3]);
        }
        writer.set_len(1).unwrap();
        assert_eq!(client.stat("g").unwrap().size, 1);
        drop((writer, held));
        std::fs::rename(mnt.join("g"), mnt.join("h")).unwrap();
        assert_eq!(client.stat("g").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(client.read("h").unwrap(), [19]);
        std::fs::remove_file(mnt.join("h")).unwrap();
        // A file that lost its name while open disappears a moment after its last close.
        let left = || std::fs::read_dir(ganesha.export("")).unwrap().count();
        wait_for("an empty directory", 60, || left() == 0);

        // Appends follow the appends of others, by the socket, by the mount and by another mount.
        let log = client.create("log").unwrap();
        let second = OpenOptions::new().write(true).open(&client, "log").unwrap();
        assert_eq!(log.append(b"one ").unwrap(), 4);
        assert_eq!(second.append(b"two ").unwrap(), 8);
        let mut others = std::fs::OpenOptions::new().append(true).open(mnt.join("log")).unwrap();
        std::io::Write::write_all(&mut others, b"three ").unwrap();
        others.sync_all().unwrap();
        log.sync_all().unwrap();
        assert_eq!(std::fs::read(ganesha.export("log")).unwrap(), b"one two three ");
        let there = ganesha.dir.path().join("elsewhere");
        std::fs::create_dir_all(&there).unwrap();
        ganesha.mount(&format!("vers={version}"), &there).ok();
        let mut elsewhere = std::fs::OpenOptions::new().append(true).open(there.join("log")).unwrap();
        std::io::Write::write_all(&mut elsewhere, b"four ").unwrap();
        drop(elsewhere);
        umount(&there);
        assert_eq!(log.append(b"five").unwrap(), 23);
        log.close().unwrap();
        second.close().unwrap();
        drop(others);
        assert_eq!(std::fs::read(ganesha.export("log")).unwrap(), b"one two three four five");
        client.remove_file("log").unwrap();

        // fsync on one side covers writes on the other.
        let file = client.create("s").unwrap();
        let other = std::fs::OpenOptions::new().write(true).open(mnt.join("s")).unwrap();
        file.write_all_at(b"stable", 0).unwrap();
        other.sync_all().unwrap();
        assert_eq!(std::fs::read(ganesha.export("s")).unwrap(), b"stable");
        file.close().unwrap();
        drop(other);
        client.remove_file("s").unwrap();
        // The same when the mount learns of the file only later.
        let file = client.create("s").unwrap();
        file.write_all_at(b"earlier", 0).unwrap();
        let other = std::fs::OpenOptions::new().write(true).open(mnt.join("s")).unwrap();
        other.sync_all().unwrap();
        assert_eq!(std::fs::read(ganesha.export("s")).unwrap(), b"earlier");
        file.close().unwrap();
        drop(other);
        client.remove_file("s").unwrap();
        umount(&mnt);
    }
}

/// Each user has exactly its own permissions. The socket admits the configured users.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn rights_are_those_of_the_program() {
    let ganesha = Ganesha::start();
    let (mnt, socket) = (ganesha.mnt(), ganesha.dir.path().join("programs"));
    std::fs::set_permissions(ganesha.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for (name, mode, uid, gid) in [
        ("root", 0o600, 0, 0),
        ("group", 0o640, 0, 4242),
        ("own", 0o600, 1234, 0),
        ("all", 0o644, 0, 0),
        ("blind", 0o200, 1234, 0),
    ] {
        let path = ganesha.export(name);
        std::fs::write(&path, name).unwrap();
        std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::fs::create_dir(ganesha.export("closed")).unwrap();
    std::fs::write(ganesha.export("closed/f"), "closed").unwrap();
    std::fs::set_permissions(ganesha.export("closed"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let names = ["root", "group", "own", "all", "closed/f", "blind"];
    for options in ["vers=4.2", "vers=3", "vers=4.2,consistency=bounded=60"] {
        let where_ = format!("{options},socket={},socket-mode=0666", socket.display());
        ganesha.mount(&where_, &mnt).ok();
        // The data that the superuser has read is in memory.
        let client = Client::connect(&mnt).unwrap();
        for _ in 0..2 {
            let read = client.read_many(&names).unwrap();
            assert!(read.iter().all(Result::is_ok), "{options}: {read:?}");
        }
        // The program runs as another user with one more group.
        for (uid, groups, wanted) in [
            (1234, "4242", "root: EACCES, group: 5, own: 3, all: 3, closed/f: EACCES, blind: EACCES"),
            (1234, "1", "root: EACCES, group: EACCES, own: 3, all: 3, closed/f: EACCES, blind: EACCES"),
            (0, "0", "root: 4, group: 5, own: 3, all: 3, closed/f: 6, blind: 5"),
        ] {
            let script = "import os,sys; sys.path.insert(0, sys.argv[4]); import hither, errno\n\
                          os.setgroups([int(sys.argv[2])]); os.setgid(77); os.setuid(int(sys.argv[1]))\n\
                          c = hither.connect(sys.argv[3]); out = []\n\
                          for many in (False, True):\n\
                          \x20 row = []\n\
                          \x20 for n in sys.argv[5:]:\n\
                          \x20\x20 try: b = c.read_many([n] * 5)[4] if many else c.open(n).read()\n\
                          \x20\x20 except OSError as e: b = e\n\
                          \x20\x20 row.append(n + ': ' + (errno.errorcode[b.errno] if isinstance(b, OSError) else str(len(b))))\n\
                          \x20 out.append(', '.join(row))\n\
                          print('\\n'.join(out))";
            let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bindings/python");
            let (uid, path) = (uid.to_string(), socket.to_str().unwrap());
            let mut command = Command::new("python3");
            let said = run(command.args(["-c", script, &uid, groups, path, python]).args(names)).ok();
            assert_eq!(
                said.out,
                format!("{wanted}\n{wanted}\n"),
                "{options}, {uid} in {groups}: {}",
                said.err
            );
        }
        umount(&mnt);
        assert!(!socket.exists(), "the socket goes with the mount");
    }
    // By default only the superuser is admitted. With `nosocket` there is no socket.
    ganesha.mount("vers=4.2", &mnt).ok();
    let dev = std::fs::metadata(&mnt).unwrap().dev();
    let usual = format!("/run/hither/{}:{}.programs", libc::major(dev), libc::minor(dev));
    let meta = std::fs::metadata(&usual).unwrap();
    assert_eq!((meta.mode() & 0o777, meta.uid()), (0o600, 0));
    umount(&mnt);
    assert!(!Path::new(&usual).exists());
    ganesha.mount("vers=4.2,nosocket", &mnt).ok();
    assert_eq!(Client::connect(&mnt).unwrap_err().kind(), ErrorKind::NotFound);
    umount(&mnt);
    let refused = ganesha.mount("vers=4.2,socket=relative", &mnt);
    refused.fails(1, "hither: option 'socket=relative': expected an absolute path");
    // A read-only mount refuses changes by the socket as well.
    ganesha.mount("vers=4.2,ro", &mnt).ok();
    let client = Client::connect(&mnt).unwrap();
    assert!(client.is_read_only());
    for outcome in [client.write("x", "x"), client.remove_file("all"), client.create_dir("x")] {
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    umount(&mnt);
}

/// Whole trees with attributes, and notifications of changes.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn trees_and_changes() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    for d in 0..20 {
        let dir = ganesha.export(&format!("t/d{d}/sub"));
        std::fs::create_dir_all(&dir).unwrap();
        for f in 0..50 {
            std::fs::write(dir.join(format!("f{f}")), vec![0; f]).unwrap();
        }
    }
    ganesha.mount("vers=4.2,actimeo=3600", &mnt).ok();
    let client = Client::connect(&mnt).unwrap();
    let (before, _) = rpcs(&mnt);
    let all: Vec<_> = client.walk("t", u32::MAX).unwrap().map(Result::unwrap).collect();
    let (after, each) = rpcs(&mnt);
    assert_eq!(all.len(), 20 + 20 + 20 * 50);
    for entry in &all {
        let meta = std::fs::symlink_metadata(ganesha.export("t").join(&entry.path)).unwrap();
        let attr = entry.attr.as_ref().unwrap();
        assert_eq!((attr.fileid, attr.mode), (meta.ino(), meta.mode() & 0o7777), "{entry:?}");
        assert_eq!(attr.kind == Kind::Directory, meta.is_dir(), "{entry:?}");
    }
    println!("a tree of 1040: {} RPCs ({each})", after - before);
    assert!(after - before <= 41 * 3, "{} RPCs for 41 directories: {each}", after - before);
    assert_eq!(client.walk("t", 1).unwrap().count(), 20);
    // A walk whose results are not read blocks no other call.
    let mut begun = client.walk("t", u32::MAX).unwrap();
    begun.next().unwrap().unwrap();
    drop(begun);
    assert!(client.stat("t").is_ok());
    // REMOVE of NFSv4 would remove the file.
    let refused = client.remove_dir("t/d0/sub/f0").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotADirectory);
    assert!(ganesha.export("t/d0/sub/f0").exists());
    drop(client);
    umount(&mnt);

    ganesha.mount("vers=4.2,acregmin=1,acregmax=1,acdirmin=1,acdirmax=1", &mnt).ok();
    let client = Client::connect(&mnt).unwrap();
    let other = ganesha.dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    ganesha.mount("vers=4.2", &other).ok();
    let mut changes = client.watch(&["t/d0/sub/f0", "t/none"]).unwrap();
    let within = Duration::from_secs(60);
    let mut first: Vec<_> = (0..2).map(|_| changes.next_within(within).unwrap()).collect();
    first.sort_by_key(|(i, _)| *i);
    assert!(first[0].1.as_ref().is_ok_and(|a| a.size == 0));
    assert_eq!(first[1].1.as_ref().unwrap_err().kind(), ErrorKind::NotFound);
    // Several steps of a program (truncating a file, writing it) may be reported as several
    // changes.
    let mut told = |wanted: (usize, Option<u64>), steps: &[(usize, Option<u64>)]| loop {
        let (i, attr) = changes.next_within(within).unwrap();
        let missing = |e: std::io::Error| assert_eq!(e.kind(), ErrorKind::NotFound);
        match (i, attr.map(|a| a.size).map_err(missing).ok()) {
            seen if seen == wanted => break,
            seen => assert!(steps.contains(&seen), "{seen:?} on the way to {wanted:?}"),
        }
    };
    std::fs::write(other.join("t/d0/sub/f0"), "elsewhere").unwrap();
    told((0, Some(9)), &[(0, Some(0))]);
    std::fs::write(other.join("t/none"), "").unwrap();
    told((1, Some(0)), &[(0, Some(9))]);
    std::fs::remove_file(other.join("t/d0/sub/f0")).unwrap();
    told((0, None), &[(1, Some(0))]);
    let quiet = changes.next_within(Duration::from_secs(3)).unwrap_err();
    assert_eq!(quiet.kind(), ErrorKind::TimedOut, "a report without a change");
    umount(&other);
    umount(&mnt);
}

/// For every kind of bad message, other programs are served, and no file stays open.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn strange_programs_hurt_themselves() {
    let ganesha = Ganesha::start();
    let (mnt, socket) = (ganesha.mnt(), ganesha.dir.path().join("programs"));
    ganesha.mount(&format!("vers=4.2,socket={}", socket.display()), &mnt).ok();
    let client = Client::connect(&mnt).unwrap();
    client.write("f", vec![1; 1 << 20]).unwrap();
    let refused = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        // The server may close the connection before all bytes are written.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    let mut long = Header { len: u32::MAX, id: 1, op: 1, flags: 0 }.encode().to_vec();
    let greeting = {
        let mut out = Vec::new();
        Request::Hello(1).encode(1, &mut out);
        out
    };
    let mut early = Vec::new();
    Request::List(b"").encode(1, &mut early);
    let twice = [&greeting[..], &greeting[..]].concat();
    let mut unknown = greeting.clone();
    unknown.extend(Header { len: 0, id: 2, op: 999, flags: 0 }.encode());
    for bytes in [&long[..], &early, &twice, &unknown, b"GET / HTTP/1.1\r\n\r\n"] {
        let answer = refused(bytes);
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains("malformed"), "{bytes:?}: {text}");
    }
    long.truncate(5);
    // A request number in use: two reads with one number.
    let mut doubled = greeting.clone();
    let watch = Request::Watch(vec![b"f"]);
    watch.encode(5, &mut doubled);
    watch.encode(5, &mut doubled);
    assert!(String::from_utf8_lossy(&refused(&doubled)).contains("in use"));
    // A program requests gigabytes and reads nothing. The replies do not accumulate.
    let mut greedy = UnixStream::connect(&socket).unwrap();
    greedy.write_all(&greeting).unwrap();
    greedy.set_nonblocking(true).unwrap();
    let parts = vec![Part { path: b"f", offset: 0, len: 1 << 20 }; 1000];
    for id in 2..200 {
        let mut out = Vec::new();
        Request::ReadMany(parts.clone()).encode(id, &mut out);
        if greedy.write_all(&out).is_err() {
            break;
        }
    }
    let daemon = common::daemons(&mnt)[0];
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
    };
    for _ in 0..50 {
        assert_eq!(client.read("f").unwrap().len(), 1 << 20, "others are served");
    }
    assert!(resident() < 400, "{} MB for a program that reads nothing", resident());
    drop(greedy);
    // Files that a program leaves open are closed, and their data is at the server.
    let mut child = UnixStream::connect(&socket).unwrap();
    let mut out = greeting.clone();
    Request::Open(b"left", wire::OPEN_WRITE | wire::OPEN_CREATE, 0o644).encode(2, &mut out);
    Request::Write(1, 0, 0, b"left behind").encode(3, &mut out);
    child.write_all(&out[..greeting.len()]).unwrap();
    let mut header = [0; HEADER_BYTES];
    child.read_exact(&mut header).unwrap();
    child.read_exact(&mut vec![0; Header::decode(&header).unwrap().len as usize]).unwrap();
    let opening = out.len() - (HEADER_BYTES + 8 + 8 + 4 + 4 + 11);
    child.write_all(&out[greeting.len()..opening]).unwrap();
    child.read_exact(&mut header).unwrap();
    child.read_exact(&mut vec![0; Header::decode(&header).unwrap().len as usize]).unwrap();
    child.write_all(&out[opening..]).unwrap();
    child.read_exact(&mut header).unwrap();
    drop(child);
    let left = ganesha.export("left");
    wait_for("the left files", 60, || std::fs::read(&left).is_ok_and(|b| b == b"left behind"));
    let figure = |name: &str| {
        let report = hither(&["stat", "--json", mnt.to_str().unwrap()]).ok().out;
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        report["layers"]["socket"][name].as_u64().unwrap()
    };
    // The bytes reach the server before the close has ended.
    wait_for("nothing open", 60, || figure("files_open") == 0);
    assert!(figure("malformed") >= 6 && figure("pieces") > 50);
    umount(&mnt);
}

/// The Python package's own tests run on a mount, with fsspec where it is installed.
#[test]
#[ignore = "needs root, nfs-ganesha and Python"]
fn the_python_package() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    ganesha.mount("vers=4.2", &mnt).ok();
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bindings/python");
    // The system's Python, which finds the system's fsspec.
    let python = if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" };
    let mut tests = Command::new(python);
    tests
        .args(["-B", "-m", "unittest", "discover", "-s", "tests"])
        .current_dir(dir)
        .env("HITHER_MOUNT", &mnt);
    let said = run(&mut tests).ok();
    println!("{}", said.err);
    assert!(said.err.contains("OK") && !said.err.contains("Ran 0 tests"), "{}", said.err);
    umount(&mnt);
}

/// A frozen mount lends descriptors of files that are completely in its cache. No other mount does.
#[test]
#[ignore = "needs root, nfs-ganesha and Python"]
fn descriptors_are_lent_where_nothing_changes() {
    let ganesha = Ganesha::start();
    let (mnt, cache) = (ganesha.mnt(), ganesha.dir.path().join("cache"));
    let body: Vec<u8> = (0..300_000_u32).map(|i| (i % 249) as u8).collect();
    std::fs::write(ganesha.export("f"), &body).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::options().write(true).open(ganesha.export("f")).unwrap().set_modified(old).unwrap();
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bindings/python");
    let script = "import os,sys; sys.path.insert(0, sys.argv[1]); import hither, errno, time\n\
                  c = hither.connect(sys.argv[2]); wanted = sys.argv[3]; said = ''\n\
                  for _ in range(600):\n\
                  \x20with c.open('f') as f:\n\
                  \x20 body = f.readall()\n\
                  \x20 try:\n\
                  \x20  fd = f.lend(); said = 'lent'\n\
                  \x20  assert os.pread(fd, 1 << 20, 0) == body\n\
                  \x20  try: os.write(fd, b'x'); said = 'writable'\n\
                  \x20  except OSError as e: assert e.errno == errno.EBADF\n\
                  \x20  os.close(fd)\n\
                  \x20 except OSError as e: said = errno.errorcode[e.errno]\n\
                  \x20if said == wanted: break\n\
                  \x20time.sleep(0.1)\n\
                  print(said)";
    let cached = format!("vers=4.2,cache={},cache-age=0,cache-min-free=1M", cache.display());
    for (options, wanted) in [
        (format!("{cached},ro,consistency=frozen"), "lent"),
        (cached.clone(), "ENOTSUP"),
        ("vers=4.2".into(), "ENOTSUP"),
    ] {
        ganesha.mount(&options, &mnt).ok();
        let said = run(Command::new("python3").args(["-c", script, dir, mnt.to_str().unwrap(), wanted])).ok();
        assert_eq!(said.out.trim(), wanted, "{options}: {}", said.err);
        // The same with the Rust crate, which libhither uses.
        let file = Client::connect(&mnt).unwrap().open("f").unwrap();
        match file.lend() {
            Ok(lent) => {
                let mut bytes = vec![0; body.len() + 1];
                assert_eq!((wanted, lent.read_at(&mut bytes, 0).unwrap()), ("lent", body.len()));
                assert!(bytes[..body.len()] == body);
                assert!(lent.write_at(b"x", 0).is_err());
                // Programs that this one executes do not inherit the descriptor.
                assert_eq!(rustix::io::fcntl_getfd(&lent).unwrap(), rustix::io::FdFlags::CLOEXEC);
            }
            Err(e) => assert_eq!((wanted, e.raw_os_error()), ("ENOTSUP", Some(libc::EOPNOTSUPP))),
        }
        file.close().unwrap();
        umount(&mnt);
    }
}

/// `hither daemon` serves the socket without a mount.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn without_a_mount() {
    let ganesha = Ganesha::start();
    let dir = ganesha.dir.path().to_path_buf();
    let (socket, mnt) = (dir.join("socket"), ganesha.mnt());
    let start = |options: &str| {
        let mut daemon = ganesha.inside(HITHER);
        daemon.args(["daemon", "127.0.0.1:/export", "--socket"]).arg(&socket).args(["-o", options, "--log"]);
        daemon
            .arg(dir.join("daemon.log"))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let mut daemon = daemon.spawn().unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(daemon.stdout.as_mut().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert_eq!(line, format!("127.0.0.1:/export for programs at {}\n", socket.display()));
        daemon
    };
    // nsenter(1) has executed the daemon, so the process id is the daemon's.
    let kill = |daemon: &std::process::Child, signal: &str| {
        run(Command::new("kill").args([signal, &daemon.id().to_string()])).ok();
    };
    for options in ["vers=4.2,retry=0", "vers=3,retry=0"] {
        let mut daemon = start(options);
        let client = Client::connect(&socket).unwrap();
        assert_eq!((client.dir().as_path(), client.source().as_str()), (Path::new(""), "127.0.0.1:/export"));
        client.create_dir("d").unwrap();
        client.write("/d/f", "from the root").unwrap();
        assert_eq!(std::fs::read(ganesha.export("d/f")).unwrap(), b"from the root");
        let names: Vec<String> = (0..20).map(|i| format!("d/f{i}")).collect();
        for name in &names {
            client.write(name, name).unwrap();
        }
        let all = client.read_many(&names).unwrap();
        assert!(all.into_iter().zip(&names).all(|(read, name)| read.unwrap() == name.as_bytes()));
        assert_eq!(client.walk("", u32::MAX).unwrap().count(), 22);
        // An absolute link has no target here, because nothing is mounted on this machine.
        client.symlink("/d/f", "d/absolute").unwrap();
        assert_eq!(client.read("d/absolute").unwrap_err().raw_os_error(), Some(libc::EXDEV));
        let second = ["daemon", "127.0.0.1:/export", "-o", "retry=0", "--socket", socket.to_str().unwrap()];
        let taken = "the path exists already; give another path";
        run(ganesha.inside(HITHER).args(second))
            .fails(1, &format!("hither: option 'socket={}': {taken}", socket.display()));
        // Data that was written and not closed is at the server after an orderly end.
        let file = client.create("d/open").unwrap();
        file.write_all_at(b"not closed", 0).unwrap();
        kill(&daemon, "-TERM");
        assert!(daemon.wait().unwrap().success());
        assert!(!socket.exists());
        assert_eq!(std::fs::read(ganesha.export("d/open")).unwrap(), b"not closed");
        assert!(client.stat("").is_err(), "the daemon is gone");
        drop((file, client));
        // A killed daemon leaves its socket, and the next daemon takes it over.
        let mut daemon = start(options);
        kill(&daemon, "-KILL");
        daemon.wait().unwrap();
        assert!(socket.exists());
        let mut daemon = start(&format!("{options},ro"));
        let client = Client::connect(&socket).unwrap();
        assert_eq!(client.read("d/f").unwrap(), b"from the root");
        assert_eq!(client.write("x", "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
        kill(&daemon, "-TERM");
        assert!(daemon.wait().unwrap().success());
        std::fs::remove_dir_all(ganesha.export("d")).unwrap();
    }
    assert!(!common::is_mounted(&mnt), "nothing was mounted");
    let refused = hither(&["daemon", "s:/x", "-s", "/run/x", "-o", "remount"]);
    refused.fails(1, "hither: option 'remount' needs a mount: remove it");
}

/// The path of the socket names a daemon without a mount: `stat`, `top`, `why`, `sync` and `cache`
/// find it, and so does an evicting program with keys. `metrics=` serves its figures.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn mountless_daemon_is_seen() {
    let ganesha = Ganesha::start();
    let dir = ganesha.dir.path().to_path_buf();
    let (socket, figures) = (dir.join("socket"), dir.join("figures"));
    let control = dir.join("socket.control");
    let start = || {
        let options =
            format!("vers=4.2,retry=0,cache={0}/cache,cache-age=0,metrics={0}/figures", dir.display());
        let mut daemon = ganesha.inside(HITHER);
        daemon.args(["daemon", "127.0.0.1:/export", "--socket"]).arg(&socket).args(["-o", &options, "--log"]);
        let mut daemon =
            daemon.arg(dir.join("daemon.log")).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(daemon.stdout.as_mut().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        daemon
    };
    std::fs::write(ganesha.export("kept"), vec![7; 100_000]).unwrap();
    // A file of another program beside the socket is never replaced.
    std::fs::write(&control, "a file").unwrap();
    let mut daemon = start();
    assert_eq!(std::fs::read(&control).unwrap(), b"a file");
    run(Command::new("kill").args(["-KILL", &daemon.id().to_string()])).ok();
    daemon.wait().unwrap();
    std::fs::remove_file(&control).unwrap();
    // The daemon takes over the sockets that the killed daemon left.
    let mut daemon = start();
    assert_eq!(std::fs::metadata(&control).unwrap().permissions().mode() & 0o777, 0o600);
    let client = Client::connect(&socket).unwrap();
    assert_eq!(client.read("kept").unwrap().len(), 100_000);
    let at = socket.to_str().unwrap();
    let file = format!("{at}/kept");
    let json = |words: &[&str]| serde_json::from_str::<serde_json::Value>(&hither(words).ok().out).unwrap();
    let stat = json(&["stat", "--json", at]);
    assert_eq!(
        (stat["mount"]["dir"].as_str(), stat["mount"]["source"].as_str()),
        (Some(at), Some("127.0.0.1:/export"))
    );
    assert_eq!(stat["mount"]["pid"], daemon.id());
    assert!(stat["operations"].as_array().unwrap().iter().any(|op| op["name"] == "READ"), "{stat}");
    assert!(hither(&["stat", at]).ok().out.contains("127.0.0.1:/export"));
    assert!(hither(&["top", "-n", "1", at]).ok().out.contains(at));
    let why = hither(&["why", &file]).ok().out;
    assert!(why.starts_with(&format!("{file}: ")) && !why.contains("not cached"), "{why}");
    hither(&["sync", at]).ok();
    assert!(hither(&["cache", "status", at]).ok().out.contains(&format!("{}/cache", dir.display())));
    let kept = || json(&["cache", "ls", "--json", at]).as_array().unwrap().clone();
    wait_for("the cached file", 20, || kept().iter().any(|entry| entry["cached_bytes"] == 100_000));
    hither(&["cache", "pin", &file]).ok();
    assert_eq!(kept()[0]["pinned"], true);
    hither(&["cache", "unpin", &file]).ok();
    assert_eq!(kept()[0]["pinned"], false);
    let key = kept()[0]["key"].as_str().unwrap().to_string();
    let evicted = sh(&format!("echo {key} | $HITHER cache evict --keys --json {at}")).ok().out;
    assert_eq!(evicted.trim(), r#"{"evicted":1}"#);
    assert!(kept().is_empty());
    let page = sh(&format!("curl -s --unix-socket {} http://h/metrics", figures.display())).ok().out;
    assert!(page.contains(&format!("mountpoint=\"{at}\"")), "{page}");
    let refused = hither(&["trace", "record", "-m", at, "/dev/null", "--", "true"]);
    refused.fails(2, &format!("hither: the daemon of {at} refuses: only mounts record calls: mount it"));
    run(Command::new("kill").args(["-KILL", &daemon.id().to_string()])).ok();
    daemon.wait().unwrap();
    hither(&["stat", at])
        .fails(2, &format!("hither: no daemon answers questions about {at}: start it again (hither daemon)"));
    let mut daemon = start();
    hither(&["stat", at]).ok();
    run(Command::new("kill").args(["-TERM", &daemon.id().to_string()])).ok();
    assert!(daemon.wait().unwrap().success());
    assert!(!control.exists() && !socket.exists());
}
