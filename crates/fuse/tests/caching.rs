//! Other clients' changes are visible: at the next open at once, otherwise when the attributes
//! expire. Unchanged state is not requested again.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{eventually, mounted, mounted_with, once_below, pause, seconds};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// Validity that does not end during a test.
const LONG: u64 = 600_000;

/// An open after another client's close shows the new contents and length.
/// Promise: 7
#[test]
fn open_sees_foreign_close() {
    let Some(m) = mounted(LONG) else { return };
    fs::write(m.path("f"), b"old contents").unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"old contents");
    for (i, text) in ["new contents", "longer contents now", "x"].iter().enumerate() {
        m.foreign_write("f", 0, text.as_bytes());
        if i == 2 {
            m.foreign_setattr("f", &hither_vfs::SetAttr { size_bytes: Some(1), ..Default::default() });
        }
        let mut f = File::open(m.path("f")).unwrap();
        let mut seen = String::new();
        f.read_to_string(&mut seen).unwrap();
        assert_eq!(&seen, text);
        assert_eq!(f.metadata().unwrap().len(), text.len() as u64);
    }
    m.end();
}

/// A second read of an unchanged file sends no READ.
#[test]
fn an_unchanged_file_is_read_once() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_write("f", 0, &vec![5; 3 << 20]);
    assert_eq!(fs::read(m.path("f")).unwrap().len(), 3 << 20);
    // The kernel may drop pages at any time, but seldom does.
    let quiet = (0..5).any(|_| {
        let before = m.requests("READ");
        assert_eq!(fs::read(m.path("f")).unwrap().len(), 3 << 20);
        m.requests("READ") == before
    });
    assert!(quiet);
    m.end();
}

/// An append writes at the end of the file that another client has extended.
/// Promise: 6
#[test]
fn append_follows_foreign_append() {
    let Some(m) = mounted(LONG) else { return };
    fs::write(m.path("log"), b"one\n").unwrap();
    for i in 0..5 {
        let end = m.foreign_read("log").len() as u64;
        m.foreign_write("log", end, b"theirs\n");
        let mut f = OpenOptions::new().append(true).open(m.path("log")).unwrap();
        f.write_all(format!("ours {i}\n").as_bytes()).unwrap();
        drop(f);
    }
    let all = String::from_utf8(m.foreign_read("log")).unwrap();
    assert_eq!(all.lines().filter(|l| *l == "theirs").count(), 5, "{all}");
    assert_eq!(all.lines().filter(|l| l.starts_with("ours")).count(), 5, "{all}");
    assert_eq!(fs::read_to_string(m.path("log")).unwrap(), all);
    m.end();
}

/// The kernel sends an open twice when another client has changed the length of the file. The layer
/// below opens the file once.
#[test]
fn changed_length_costs_one_open() {
    let Some(m) = mounted(LONG) else { return };
    fs::write(m.path("log"), b"one\n").unwrap();
    // The close returns the current length.
    eventually("the first open is closed", || m.gate.calls("close") == 1);
    let end = m.foreign_read("log").len() as u64;
    m.foreign_write("log", end, b"theirs\n");
    let opens = m.gate.calls("open");
    let mut f = OpenOptions::new().append(true).open(m.path("log")).unwrap();
    f.write_all(b"ours\n").unwrap();
    drop(f);
    eventually("the open is closed", || m.gate.calls("close") == 2);
    assert_eq!(m.gate.calls("open"), opens + 1);
    assert_eq!(m.foreign_read("log"), b"one\ntheirs\nours\n");
    m.end();
}

/// A reader of an open file gets bytes that another client appends.
#[test]
fn reader_follows_growing_file() {
    let Some(m) = mounted(100) else { return };
    m.foreign_write("log", 0, b"first ");
    let mut f = File::open(m.path("log")).unwrap();
    let mut seen = String::new();
    f.read_to_string(&mut seen).unwrap();
    m.foreign_write("log", 6, b"second");
    eventually("the new bytes are read", || {
        f.read_to_string(&mut seen).unwrap();
        seen == "first second"
    });
    drop(f);
    m.end();
}

/// An open file shows another client's write, although no program requests attributes.
/// Promise: 10
#[test]
fn open_file_shows_foreign_write() {
    let Some(m) = mounted(200) else { return };
    for written_here in [false, true] {
        m.foreign_write("f", 0, b"aaaa");
        let f = OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
        let mut buf = [0; 4];
        f.read_exact_at(&mut buf, 0).unwrap();
        if written_here {
            f.write_all_at(b"z", 3).unwrap();
            pause(2500);
        }
        m.foreign_write("f", 0, b"bbbb");
        eventually("the new contents are read", || {
            f.read_exact_at(&mut buf, 0).unwrap();
            &buf == b"bbbb"
        });
    }
    m.end();
}

/// A shared mapping shows other clients' writes, and a private mapping keeps its own bytes.
/// Promise: 5
#[test]
fn mapping_shows_foreign_write() {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let Some(m) = mounted(200) else { return };
    m.foreign_write("f", 0, &[b'a'; 8192]);
    let f = OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    let map = |flags| {
        // SAFETY: a fresh mapping of 8192 bytes that ends before the test does.
        let at = unsafe { mmap(std::ptr::null_mut(), 8192, rw, flags, &f, 0) }.unwrap();
        at.cast::<u8>()
    };
    let (shared, private) = (map(MapFlags::SHARED), map(MapFlags::PRIVATE));
    // SAFETY: inside the mappings, which no other code in this process touches.
    let get = |at: *mut u8, i: usize| unsafe { at.add(i).read_volatile() };
    // SAFETY: likewise.
    let put = |at: *mut u8, i: usize, v: u8| unsafe { at.add(i).write_volatile(v) };
    put(private, 0, b'p');
    put(shared, 1, b's');
    // SAFETY: the mapping exists.
    unsafe { msync(shared.cast(), 8192, MsyncFlags::SYNC) }.unwrap();
    assert_eq!(m.foreign_read("f")[..3], *b"asa");
    let mut buf = [0; 3];
    f.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!((&buf, get(private, 0)), (b"asa", b'p'));
    f.write_all_at(b"w", 4096).unwrap();
    assert_eq!(get(shared, 4096), b'w');
    m.foreign_write("f", 5000, b"foreign");
    eventually("the mapping shows it", || get(shared, 5000) == b'f');
    for at in [shared, private] {
        // SAFETY: mapped above, and not used any more.
        unsafe { munmap(at.cast(), 8192) }.unwrap();
    }
    drop(f);
    m.end();
}

/// The absence of a name is cached while it is valid, and looked up again after that.
#[test]
fn cached_absence_expires() {
    let Some(m) = mounted(LONG) else { return };
    assert!(!m.path("f").exists());
    let before = m.requests("LOOKUP");
    assert!(!m.path("f").exists());
    assert_eq!(m.requests("LOOKUP"), before);
    m.end();
    let Some(m) = mounted(400) else { return };
    assert!(!m.path("f").exists());
    m.foreign_write("f", 0, b"x");
    eventually("the name exists", || m.path("f").exists());
    m.end();
}

/// A server that executes a rename again after a restart returns ENOENT. The cached absence of the
/// new name must be dropped then.
#[test]
fn repeated_rename_drops_absence() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_write("f", 0, b"moved");
    assert!(m.path("f").exists() && !m.path("g").exists());
    m.gate.shut("rename");
    let (from, to) = (m.path("f"), m.path("g"));
    let renames = std::thread::spawn(move || fs::rename(from, to));
    eventually("the rename is at the server", || m.gate.waiting("rename") == 1);
    m.foreign_unlink("f");
    m.foreign_write("g", 0, b"moved");
    m.gate.open_all();
    assert_eq!(renames.join().unwrap().unwrap_err().raw_os_error(), Some(libc::ENOENT));
    // Kernels before 6.16 drop the name a short time later.
    eventually("the name exists", || m.path("g").exists());
    assert!(!m.path("f").exists());
    assert_eq!(fs::read(m.path("g")).unwrap(), b"moved");
    m.end();
}

/// A cached listing is used while it is valid, and dropped after a change.
/// Promise: 11
#[test]
fn listing_is_cached_until_change() {
    for validity in [LONG, 500] {
        let Some(m) = mounted(validity) else { return };
        let list = || {
            let mut names: Vec<_> = fs::read_dir(&m.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        m.foreign_write("a", 0, b"x");
        assert_eq!(list(), ["a"]);
        list();
        if validity == LONG {
            let before = (m.gate.calls("readdir"), m.gate.calls("getattr"), m.gate.calls("access"));
            assert_eq!(list(), ["a"]);
            assert_eq!((m.gate.calls("readdir"), m.gate.calls("getattr"), m.gate.calls("access")), before);
        }
        fs::write(m.path("c"), b"").unwrap();
        assert_eq!(list(), ["a", "c"]);
        m.foreign_write("b", 0, b"x");
        if validity != LONG {
            eventually("the new name is listed", || list() == ["a", "b", "c"]);
        }
        fs::remove_file(m.path("c")).unwrap();
        assert_eq!(list(), ["a", "b"]);
        m.end();
    }
}

/// A listing after the end of validity returns the attributes of all its files.
#[test]
fn listing_returns_expired_attributes() {
    let Some(m) = mounted(400) else { return };
    for i in 0..50 {
        m.foreign_write(&format!("f{i}"), 0, b"x");
    }
    let list = || fs::read_dir(&m.dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>();
    assert_eq!(list(), 50);
    // On a busy machine some attributes may expire again before they are used.
    once_below("requests for 50 files of the listing", 25, || {
        pause(600);
        let before = (m.gate.calls("walk"), m.gate.calls("getattr"));
        assert_eq!(list(), 50);
        m.gate.calls("walk") - before.0 + m.gate.calls("getattr") - before.1
    });
    m.end();
}

/// Names in a directory that only its owner may search are answered from the cache of the layer
/// below.
#[test]
fn private_directory_is_cached_below() {
    use std::os::unix::fs::PermissionsExt;
    let Some(m) = mounted(LONG) else { return };
    // The kernel sends a LOOKUP each time, because it does not know the right to search. The answer
    // comes from the layer below.
    m.gate.remember_names();
    fs::create_dir(m.path("home")).unwrap();
    fs::set_permissions(m.path("home"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(m.path("home/f"), b"x").unwrap();
    assert!(m.path("home/f").exists());
    let before = m.gate.calls("walk");
    for _ in 0..10 {
        assert_eq!(fs::read(m.path("home/f")).unwrap(), b"x");
    }
    assert_eq!(m.gate.calls("walk"), before);
    eventually("the file is closed", || m.model.open_count() == 0);
    // Another client replaces the file. The open of the old file fails, and the name is looked up
    // on the server.
    m.foreign_unlink("home/f");
    m.foreign_write("home/f", 0, b"new");
    assert_eq!(fs::read(m.path("home/f")).unwrap(), b"new");
    eventually("the file is closed", || m.model.open_count() == 0);
    fs::rename(m.path("home/f"), m.path("home/g")).unwrap();
    assert!(!m.path("home/f").exists());
    assert_eq!(fs::read(m.path("home/g")).unwrap(), b"new");
    fs::remove_file(m.path("home/g")).unwrap();
    assert!(!m.path("home/g").exists());
    m.end();
}

/// An open of a file that another client has replaced opens the new file.
#[test]
fn open_finds_foreign_replacement() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_write("f", 0, b"first");
    assert_eq!(fs::read(m.path("f")).unwrap(), b"first");
    eventually("the file is closed", || m.model.open_count() == 0);
    m.foreign_unlink("f");
    m.foreign_write("f", 0, b"second");
    // The kernel has cached the old file under the name. Its open fails with ESTALE, and the kernel
    // looks up the name again.
    assert_eq!(fs::read(m.path("f")).unwrap(), b"second");
    eventually("the file is closed", || m.model.open_count() == 0);
    m.foreign_unlink("f");
    assert_eq!(fs::read(m.path("f")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    m.end();
}

/// An open whose lookups are slow after ESTALE still gets its file. The program would see a second
/// ESTALE.
#[test]
fn slow_estale_retry_opens_file() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_dirs("a");
    m.foreign_dirs("b");
    m.foreign_write("a/f", 0, b"text");
    assert_eq!(fs::read(m.path("a/f")).unwrap(), b"text");
    fs::hard_link(m.path("a/f"), m.path("b/f")).unwrap();
    assert_eq!(fs::read(m.path("b/f")).unwrap(), b"text");
    // It is not known which name of the file is meant. So the kernel must walk the path again, over
    // a cut link.
    m.gate.shut("walk");
    let path = m.path("a/f");
    let reader = std::thread::spawn(move || fs::read(path));
    eventually("the name is looked up", || m.gate.waiting("walk") > 0);
    common::pause(11_000);
    m.gate.open_all();
    assert_eq!(reader.join().unwrap().unwrap(), b"text");
    m.end();
}

/// A file is replaced a second time while the path of an open is walked again after ESTALE. The
/// open must not use the old filehandle, because the program would see a second ESTALE.
/// Promise: 13
#[test]
fn twice_replaced_file_is_opened() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_dirs("d");
    let replace = |text| {
        m.foreign_unlink("d/f");
        m.foreign_write("d/f", 0, text);
    };
    m.foreign_write("d/f", 0, b"first");
    assert_eq!(fs::read(m.path("d/f")).unwrap(), b"first");
    eventually("the file is closed", || m.model.open_count() == 0);
    replace(b"second");
    m.gate.shut_answers("walk");
    let path = m.path("d/f");
    let reader = std::thread::spawn(move || fs::read(path));
    eventually("the path is looked up again", || m.gate.answers_waiting("walk") > 0);
    replace(b"third");
    m.gate.open_all();
    assert_eq!(reader.join().unwrap().unwrap(), b"third");
    m.end();
}

/// Some servers fail an open with another error while its file is being removed. The name is looked
/// up again once.
/// Promise: 13
#[test]
fn failed_open_is_retried_once() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_write("f", 0, b"text");
    assert_eq!(fs::read(m.path("f")).unwrap(), b"text");
    eventually("the file is closed", || m.model.open_count() == 0);
    let (gate, failing) = (m.gate.clone(), || m.gate.fail("open", libc::EREMOTEIO));
    failing();
    assert_eq!(fs::read(m.path("f")).unwrap_err().raw_os_error(), Some(libc::EREMOTEIO));
    m.gate.at_peek(move |_| gate.fail("open", 0));
    failing();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"text");
    m.end();
}

/// The attributes in the reply to a write answer a later stat(2).
#[test]
fn write_reply_answers_stat() {
    let Some(m) = mounted(LONG) else { return };
    let f = File::create(m.path("f")).unwrap();
    f.write_all_at(&[1; 100], 0).unwrap();
    let before = m.gate.calls("getattr");
    assert_eq!(f.metadata().unwrap().len(), 100);
    f.write_all_at(&[1; 100], 100).unwrap();
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 200);
    assert_eq!(m.gate.calls("getattr"), before);
    drop(f);
    m.end();
}

/// After an open, lseek(2) with SEEK_END uses the server's length.
#[test]
fn seek_end_uses_server_length() {
    let Some(m) = mounted(LONG) else { return };
    fs::write(m.path("f"), b"12345").unwrap();
    m.foreign_write("f", 5, b"67890");
    let mut f = File::open(m.path("f")).unwrap();
    assert_eq!(f.seek(SeekFrom::End(0)).unwrap(), 10);
    drop(f);
    m.end();
}

/// Each open sends a COMMIT for writes that it has not checked. So an error is reported to all
/// opens of the file, not only to the first.
#[test]
fn each_open_commits_writes() {
    let Some(m) = mounted(0) else { return };
    let mut a = fs::File::create(m.path("f")).unwrap();
    let b = fs::OpenOptions::new().write(true).open(m.path("f")).unwrap();
    a.write_all(b"x").unwrap();
    a.sync_all().unwrap();
    let asked = m.gate.calls("commit");
    assert!(asked > 0);
    drop(a);
    assert_eq!(m.gate.calls("commit"), asked, "the writes were stable before");
    drop(b);
    assert_eq!(m.gate.calls("commit"), asked + 1);
    let c = fs::OpenOptions::new().write(true).open(m.path("f")).unwrap();
    drop(c);
    assert_eq!(m.gate.calls("commit"), asked + 1, "no write since the open");
    m.end();
}

/// 300 open files all show other clients' writes.
/// Promise: 10
#[test]
fn many_open_files_show_changes() {
    const COUNT: usize = 300;
    let Some(m) = mounted(400) else { return };
    let names: Vec<String> = (0..COUNT).map(|i| format!("f{i}")).collect();
    let open = |name: &String| {
        m.foreign_write(name, 0, b"aaaa");
        let f = File::open(m.path(name)).unwrap();
        f.read_exact_at(&mut [0; 4], 0).unwrap();
        f
    };
    let files: Vec<File> = names.iter().map(open).collect();
    for name in &names {
        m.foreign_write(name, 0, b"bbbb");
    }
    let is_new = |f: &File| {
        let mut buf = [0; 4];
        f.read_exact_at(&mut buf, 0).unwrap();
        &buf == b"bbbb"
    };
    eventually("all show the new contents", || files.iter().all(is_new));
    drop(files);
    m.end();
}

/// An open file shows another client's write at the latest when its validity ends.
/// Promise: 8b
#[test]
fn open_file_contents_expire() {
    let Some(m) = mounted(1000) else { return };
    m.foreign_write("f", 0, &[0; 4]);
    let f = File::open(m.path("f")).unwrap();
    let mut buf = [0; 4];
    f.read_exact_at(&mut buf, 0).unwrap();
    let mut round = 0;
    // A busy machine may be late, but not in each attempt.
    once_below("seconds until the new contents are read", 1.0, || {
        // The longest delay is right after a check.
        let looks = m.gate.calls("getattr");
        eventually("the file is checked", || m.gate.calls("getattr") > looks);
        pause(20);
        round += 1;
        m.foreign_write("f", 0, &[round; 4]);
        seconds(|| {
            eventually("the new contents are read", || {
                f.read_exact_at(&mut buf, 0).unwrap();
                buf == [round; 4]
            });
        })
    });
    drop(f);
    m.end();
}

/// An open directory shows new names after rewinddir(3).
/// Promise: 11
#[test]
fn rewinddir_shows_new_names() {
    use rustix::fs::{Dir, Mode, OFlags, open};
    let Some(m) = mounted(400) else { return };
    m.foreign_write("f0", 0, b"x");
    let fd = open(&m.dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut dir = Dir::new(fd).unwrap();
    let mut count = move || {
        dir.rewind();
        dir.by_ref().filter(|e| !e.as_ref().unwrap().file_name().to_bytes().starts_with(b".")).count()
    };
    assert_eq!(count(), 1);
    for i in 1..4 {
        m.foreign_write(&format!("f{i}"), 0, b"x");
        eventually("the new name is listed", || count() == i + 1);
    }
    drop(count);
    m.end();
}

/// An earlier open of a directory does not use the kernel's cached listing after its validity.
/// Promise: 11
#[test]
fn cached_listing_expires_for_earlier_open() {
    use rustix::fs::{Dir, Mode, OFlags, open};
    let Some(m) = mounted(700) else { return };
    m.foreign_write("f0", 0, b"x");
    let opened = || open(&m.dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for i in 1..4 {
        assert_eq!(fs::read_dir(&m.dir).unwrap().count(), i);
        let fd = opened();
        m.foreign_write(&format!("f{i}"), 0, b"x");
        pause(1500);
        assert_eq!(Dir::new(fd).unwrap().count(), 2 + i + 1, "with . and ..");
    }
    m.end();
}

/// First bytes of opens are kept only for the most recent opens.
#[test]
fn unread_files_keep_few_bytes() {
    let Some(m) = mounted_with(LONG, |c| c.first_bytes = 4 << 20) else { return };
    let names: Vec<String> = (0..20).map(|i| format!("f{i}")).collect();
    for name in &names {
        m.foreign_write(name, 0, name.as_bytes());
    }
    let files: Vec<File> = names.iter().map(|name| File::open(m.path(name)).unwrap()).collect();
    let read = |i: usize| {
        let (before, mut buf) = (m.gate.calls("read"), [0; 16]);
        let n = files[i].read_at(&mut buf, 0).unwrap();
        assert_eq!(buf[..n], *names[i].as_bytes());
        m.gate.calls("read") - before
    };
    // The limit of 64 MiB is 16 times the first bytes of one file.
    assert_eq!((0..20).map(read).collect::<Vec<_>>(), [[1; 4].as_slice(), &[0; 16]].concat());
    drop(files);
    m.end();
}
