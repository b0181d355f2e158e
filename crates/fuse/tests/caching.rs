//! Other clients' changes are seen: at the next open at once, otherwise when attributes expire.
//! Unchanged state is not asked for again.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{eventually, mounted, mounted_with, once_below, pause, seconds};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// Validity so long that it plays no part.
const LONG: u64 = 600_000;

/// Promise: 7
#[test]
fn an_open_sees_what_was_closed_elsewhere() {
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

#[test]
fn an_unchanged_file_is_read_once() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_write("f", 0, &vec![5; 3 << 20]);
    assert_eq!(fs::read(m.path("f")).unwrap().len(), 3 << 20);
    // The kernel may give pages up at any time; mostly it does not.
    let quiet = (0..5).any(|_| {
        let before = m.requests("READ");
        assert_eq!(fs::read(m.path("f")).unwrap().len(), 3 << 20);
        m.requests("READ") == before
    });
    assert!(quiet);
    m.end();
}

/// Promise: 6
#[test]
fn an_append_goes_to_the_end_another_client_made() {
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

/// The kernel is sent to look the path up again with the length it did not know: the file opened
/// for that is closed while the program goes on.
#[test]
fn an_append_to_what_another_client_made_longer_waits_for_no_close() {
    let Some(m) = mounted(LONG) else { return };
    fs::write(m.path("log"), b"one\n").unwrap();
    // Its end brings the present length.
    eventually("the first open is closed", || m.gate.calls("close") == 1);
    let end = m.foreign_read("log").len() as u64;
    m.foreign_write("log", end, b"theirs\n");
    m.gate.shut("close");
    let mut f = OpenOptions::new().append(true).open(m.path("log")).unwrap();
    f.write_all(b"ours\n").unwrap();
    eventually("the open that was sent back is being closed", || m.gate.waiting("close") == 1);
    m.gate.open_all();
    drop(f);
    assert_eq!(m.foreign_read("log"), b"one\ntheirs\nours\n");
    m.end();
}

#[test]
fn a_growing_file_can_be_followed() {
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

/// Promise: 10
#[test]
fn a_file_held_open_shows_changes_without_anybody_asking_for_attributes() {
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

/// Promise: 5
#[test]
fn a_mapping_shows_changes_and_keeps_its_own() {
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
        // SAFETY: mapped above, used no more.
        unsafe { munmap(at.cast(), 8192) }.unwrap();
    }
    drop(f);
    m.end();
}

#[test]
fn an_absent_name_is_remembered_for_its_time_only() {
    let Some(m) = mounted(LONG) else { return };
    assert!(!m.path("f").exists());
    let before = m.requests("LOOKUP");
    assert!(!m.path("f").exists());
    assert_eq!(m.requests("LOOKUP"), before);
    m.end();
    let Some(m) = mounted(400) else { return };
    assert!(!m.path("f").exists());
    m.foreign_write("f", 0, b"x");
    eventually("it is there", || m.path("f").exists());
    m.end();
}

/// A rename that the server executes again after it was restarted finds its work done; the new name
/// was known to be absent.
#[test]
fn a_rename_that_was_executed_twice_leaves_no_absent_name() {
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
    // Kernels before 6.16 learn it a moment later.
    eventually("it is there", || m.path("g").exists());
    assert!(!m.path("f").exists());
    assert_eq!(fs::read(m.path("g")).unwrap(), b"moved");
    m.end();
}

/// Promise: 11
#[test]
fn a_listing_is_cached_while_it_holds_and_nothing_changes() {
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

#[test]
fn a_listing_brings_attributes_again_when_they_have_run_out() {
    let Some(m) = mounted(400) else { return };
    for i in 0..50 {
        m.foreign_write(&format!("f{i}"), 0, b"x");
    }
    let list = || fs::read_dir(&m.dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>();
    assert_eq!(list(), 50);
    // On a busy machine some may run out again on the way.
    once_below("questions for 50 files that come with the listing", 25, || {
        pause(600);
        let before = (m.gate.calls("walk"), m.gate.calls("getattr"));
        assert_eq!(list(), 50);
        m.gate.calls("walk") - before.0 + m.gate.calls("getattr") - before.1
    });
    m.end();
}

#[test]
fn a_private_directory_is_not_asked_about_every_time() {
    use std::os::unix::fs::PermissionsExt;
    let Some(m) = mounted(LONG) else { return };
    // The kernel asks each time, as it does not know the right to search; the test peeks at the
    // layer below.
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
    eventually("it is closed", || m.model.open_count() == 0);
    // Replaced elsewhere: opening the old file fails, and then the name is looked up in earnest.
    m.foreign_unlink("home/f");
    m.foreign_write("home/f", 0, b"new");
    assert_eq!(fs::read(m.path("home/f")).unwrap(), b"new");
    eventually("it is closed", || m.model.open_count() == 0);
    fs::rename(m.path("home/f"), m.path("home/g")).unwrap();
    assert!(!m.path("home/f").exists());
    assert_eq!(fs::read(m.path("home/g")).unwrap(), b"new");
    fs::remove_file(m.path("home/g")).unwrap();
    assert!(!m.path("home/g").exists());
    m.end();
}

#[test]
fn a_file_replaced_elsewhere_is_found_under_its_name() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_write("f", 0, b"first");
    assert_eq!(fs::read(m.path("f")).unwrap(), b"first");
    eventually("it is closed", || m.model.open_count() == 0);
    m.foreign_unlink("f");
    m.foreign_write("f", 0, b"second");
    // The kernel still knows the old file by that name; opening it is ESTALE, and the name is
    // looked up again.
    assert_eq!(fs::read(m.path("f")).unwrap(), b"second");
    eventually("it is closed", || m.model.open_count() == 0);
    m.foreign_unlink("f");
    assert_eq!(fs::read(m.path("f")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    m.end();
}

/// However long the look-ups of an open wait that was sent back to look its path up again, the
/// program gets its file: a second ESTALE would reach it.
#[test]
fn an_open_that_is_looked_up_again_for_long_gets_its_file() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_dirs("a");
    m.foreign_dirs("b");
    m.foreign_write("a/f", 0, b"text");
    assert_eq!(fs::read(m.path("a/f")).unwrap(), b"text");
    fs::hard_link(m.path("a/f"), m.path("b/f")).unwrap();
    assert_eq!(fs::read(m.path("b/f")).unwrap(), b"text");
    // Which of its names is meant is not known here: the kernel is to look it up, behind a link
    // that is cut.
    m.gate.shut("walk");
    let path = m.path("a/f");
    let reader = std::thread::spawn(move || fs::read(path));
    eventually("it is looked up", || m.gate.waiting("walk") > 0);
    common::pause(11_000);
    m.gate.open_all();
    assert_eq!(reader.join().unwrap().unwrap(), b"text");
    m.end();
}

/// A file that is replaced a second time, while the path of an open that was sent back is looked
/// up, is not opened under its old handle: a second ESTALE would reach the program.
/// Promise: 13
#[test]
fn replaced_file_is_looked_up_after_its_directory() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_dirs("d");
    let replace = |text| {
        m.foreign_unlink("d/f");
        m.foreign_write("d/f", 0, text);
    };
    m.foreign_write("d/f", 0, b"first");
    assert_eq!(fs::read(m.path("d/f")).unwrap(), b"first");
    eventually("it is closed", || m.model.open_count() == 0);
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

/// Servers that fail an open in another way, because its file is being removed: the name is looked
/// up again, once.
/// Promise: 13
#[test]
fn open_that_the_server_fails_is_looked_up_again() {
    let Some(m) = mounted(LONG) else { return };
    m.foreign_write("f", 0, b"text");
    assert_eq!(fs::read(m.path("f")).unwrap(), b"text");
    eventually("it is closed", || m.model.open_count() == 0);
    let (gate, failing) = (m.gate.clone(), || m.gate.fail("open", libc::EREMOTEIO));
    failing();
    assert_eq!(fs::read(m.path("f")).unwrap_err().raw_os_error(), Some(libc::EREMOTEIO));
    m.gate.at_peek(move |_| gate.fail("open", 0));
    failing();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"text");
    m.end();
}

#[test]
fn attributes_after_a_write_come_with_it() {
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

#[test]
fn seeking_to_the_end_finds_the_servers_end_after_an_open() {
    let Some(m) = mounted(LONG) else { return };
    fs::write(m.path("f"), b"12345").unwrap();
    m.foreign_write("f", 5, b"67890");
    let mut f = File::open(m.path("f")).unwrap();
    assert_eq!(f.seek(SeekFrom::End(0)).unwrap(), 10);
    drop(f);
    m.end();
}

/// Each descriptor asks for the outcome of the writes: an error is reported to all that were open,
/// not only to the first that asks.
#[test]
fn each_open_asks_what_became_of_writes() {
    let Some(m) = mounted(0) else { return };
    let mut a = fs::File::create(m.path("f")).unwrap();
    let b = fs::OpenOptions::new().write(true).open(m.path("f")).unwrap();
    a.write_all(b"x").unwrap();
    a.sync_all().unwrap();
    let asked = m.gate.calls("commit");
    assert!(asked > 0);
    drop(a);
    assert_eq!(m.gate.calls("commit"), asked, "it was told before");
    drop(b);
    assert_eq!(m.gate.calls("commit"), asked + 1);
    let c = fs::OpenOptions::new().write(true).open(m.path("f")).unwrap();
    drop(c);
    assert_eq!(m.gate.calls("commit"), asked + 1, "nothing was written since it was opened");
    m.end();
}

/// Promise: 10
#[test]
fn all_open_files_show_changes_however_many() {
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

/// Promise: 8b
#[test]
fn contents_of_an_open_file_are_no_older_than_their_validity() {
    let Some(m) = mounted(1000) else { return };
    m.foreign_write("f", 0, &[0; 4]);
    let f = File::open(m.path("f")).unwrap();
    let mut buf = [0; 4];
    f.read_exact_at(&mut buf, 0).unwrap();
    let mut round = 0;
    // A busy machine may be late, but not each time.
    once_below("seconds until the new contents are read", 1.0, || {
        // The longest time: right after a look.
        let looks = m.gate.calls("getattr");
        eventually("it is looked at", || m.gate.calls("getattr") > looks);
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

/// Promise: 11
#[test]
fn an_open_directory_shows_changes_when_it_is_read_from_its_start_again() {
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

/// Promise: 11
#[test]
fn a_cached_listing_is_not_used_after_its_time_by_who_opened_before() {
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

/// First bytes that came with opens are kept for the youngest opens only.
#[test]
fn files_that_are_open_and_never_read_keep_few_bytes() {
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
    // 64 MiB are 16 times as much as comes with one.
    assert_eq!((0..20).map(read).collect::<Vec<_>>(), [[1; 4].as_slice(), &[0; 16]].concat());
    drop(files);
    m.end();
}
