//! Files that are replaced while others read them. Every length and every byte belongs to one
//! version, in each mode of delayed closes.
//!
//! The tests need root. `HITHER_SECONDS` makes each history longer than a second. `HITHER_SEED`
//! repeats a history.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests of processes")]

mod common;

use common::serve::Serve;
use common::{Ganesha, HITHER, Random, pause, run};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: u64 = 2;
const READERS: u64 = 3;
const FILES: u64 = 1;

/// The contents of version `n` of a file.
fn version(n: u64) -> Vec<u8> {
    vec![b'a' + (n % 26) as u8; 1000 + 700 * (n % 26) as usize]
}

/// Checks that bytes, or only a length, belong to one version. Returns the fault otherwise.
fn judge(bytes: Option<&[u8]>, len: u64) -> Result<(), String> {
    let is_version = |n: u64| match bytes {
        Some(bytes) => bytes == version(n),
        None => len == version(n).len() as u64,
    };
    let whole = bytes.is_none_or(|bytes| bytes.len() as u64 == len);
    if whole && (0..26).any(is_version) {
        Ok(())
    } else {
        Err(format!("{:?} bytes where fstat(2) says {len}", bytes.map(<[u8]>::len)))
    }
}

/// Replaces a file. A name that was just replaced may be stale for a moment.
fn replace(dir: &Path, random: &mut Random, writer: u64) -> io::Result<()> {
    let temporary = dir.join(format!("tmp{writer}"));
    if random.below(3) == 0 {
        // The next open truncates the old contents.
        fs::write(&temporary, [b'!'; 30_000])?;
    }
    let mut file = File::create(&temporary)?;
    let body = version(random.next());
    let (one, other) = body.split_at(random.below(body.len() as u64) as usize);
    file.write_all(one)?;
    file.write_all(other)?;
    drop(file);
    let name = dir.join(format!("file{}", random.below(FILES)));
    match random.below(4) {
        0 => {
            let linked = dir.join(format!("link{writer}"));
            fs::hard_link(&temporary, &linked)?;
            fs::rename(&linked, name)?;
            fs::remove_file(&temporary)
        }
        _ => fs::rename(&temporary, name),
    }
}

/// Looks at a file in one of several ways.
fn look(dir: &Path, random: &mut Random) -> io::Result<Result<(), String>> {
    let name = format!("file{}", random.below(FILES));
    Ok(match random.below(8) {
        0 => judge(None, fs::metadata(dir.join(name))?.len()),
        1 => {
            let listed = fs::read_dir(dir)?.filter_map(Result::ok).find(|e| e.file_name() == *name);
            match listed.map(|e| e.metadata()) {
                Some(attrs) => judge(None, attrs?.len()),
                None => Ok(()),
            }
        }
        how => {
            let mut file = File::open(dir.join(name))?;
            let mut bytes = Vec::new();
            let early = if how == 2 { Some(file.metadata()?.len()) } else { None };
            file.read_to_end(&mut bytes)?;
            let len = file.metadata()?.len();
            judge(Some(&bytes), len).and_then(|()| judge(Some(&bytes), early.unwrap_or(len)))
        }
    })
}

/// Runs writers and readers side by side. Returns contents that belong to no version, and the
/// number of calls.
fn play(dir: &Path, seed: u64, time: Duration) -> (BTreeMap<String, u64>, u64) {
    for file in 0..FILES {
        fs::write(dir.join(format!("file{file}")), version(0)).unwrap();
    }
    let (end, wrong) = (Instant::now() + time, Mutex::new((BTreeMap::new(), 0)));
    std::thread::scope(|threads| {
        for number in 0..WRITERS + READERS {
            let wrong = &wrong;
            threads.spawn(move || {
                let mut random = Random(seed ^ number << 32);
                while Instant::now() < end {
                    let seen = if number < WRITERS {
                        replace(dir, &mut random, number).map(Ok)
                    } else {
                        look(dir, &mut random)
                    };
                    let mut wrong = wrong.lock().unwrap();
                    wrong.1 += 1;
                    // This test does not judge a stale handle or an absent name.
                    if let Ok(Err(why)) = seen {
                        *wrong.0.entry(why).or_insert(0) += 1;
                    }
                }
            });
        }
    });
    wrong.into_inner().unwrap()
}

/// Readers of a file that is replaced never see it empty or mixed.
/// Promise: 6a
#[test]
#[ignore = "needs root"]
fn replaced_files_are_never_empty() {
    let number = |name: &str, otherwise| std::env::var(name).map_or(otherwise, |n| n.parse().unwrap());
    let (seed, time) = (number("HITHER_SEED", 1), Duration::from_secs(number("HITHER_SECONDS", 1)));
    let mut server = Serve::of_directory().with(&["--max-delegations", "1000"]);
    server.serve();
    let mnt = server.mnt("mnt");
    let journal = server.dir.path().join("journal");
    let here = format!("writeback=journal,exclusive,creates=here,journal-dir={}", journal.display());
    let mut failed = Vec::new();
    for mode in ["close=wait", "close=lazy", "close=delegated", &here] {
        for vers in ["3", "4.2"] {
            let options = format!("vers={vers},dirty-age=1,{mode}");
            server.mount(&options, &mnt).ok();
            let dir = mnt.join(format!("d{}", failed.len()));
            fs::create_dir_all(&dir).unwrap();
            let (wrong, looks) = play(&dir, seed, time);
            println!("{options}: {looks} calls, wrong: {wrong:?}");
            if !wrong.is_empty() {
                failed.push(format!("{options}: {wrong:?}"));
            }
            run(Command::new("rm").arg("-rf").arg(&dir)).ok();
            run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
        }
    }
    assert!(failed.is_empty(), "seed {seed}: {failed:#?}");
}

/// A program that found a file before its removal has all its bytes, or ESTALE, at any time after.
/// The server never had the bytes, because they were to wait on the client.
/// Promise: 6a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn removed_unsent_files_are_never_empty() {
    let mut server = Serve::of_directory().with(&["--max-delegations", "1000"]);
    server.serve();
    let ganesha = Ganesha::start();
    let (far, near) = (ganesha.dir.path().join("far"), server.mnt("mnt"));
    fs::create_dir(&far).unwrap();
    for options in ["vers=4.2,close=lazy", "vers=4.2,close=delegated", "vers=3,close=lazy"] {
        server.mount(options, &near).ok();
        ganesha.mount(options, &far).ok();
        for dir in [&near, &far] {
            never_empty(&dir.join("removed"), options);
            run(Command::new(HITHER).arg("umount").arg(dir)).ok();
        }
    }
    assert_eq!(server.stop(), 0);
}

fn never_empty(dir: &Path, options: &str) {
    const BODY: &[u8] = b"twelve bytes";
    fs::create_dir_all(dir).unwrap();
    let path = |name: String| dir.join(name);
    let find = |n: i32| {
        let (file, other) = (path(format!("f{n}")), path(format!("other{n}")));
        fs::write(&file, BODY).unwrap();
        let found = rustix::fs::open(&file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        if n % 2 == 0 {
            fs::remove_file(&file).unwrap();
        } else {
            fs::write(&other, "other").unwrap();
            fs::rename(other, file).unwrap();
        }
        found
    };
    let found: Vec<_> = (0..20).map(find).collect();
    let began = Instant::now();
    for at_ms in [0, 20, 100, 250, 500, 1000, 3200] {
        pause(at_ms - at_ms.min(began.elapsed().as_millis() as u64));
        for (n, found) in found.iter().enumerate() {
            let what = format!("{options}, {}: file {n} after {:?}", dir.display(), began.elapsed());
            match rustix::fs::fstat(found) {
                Ok(stat) => assert_eq!(stat.st_size, BODY.len() as i64, "{what}"),
                Err(e) => assert_eq!(e, rustix::io::Errno::STALE, "{what}"),
            }
            match fs::read(format!("/proc/thread-self/fd/{}", found.as_raw_fd())) {
                Ok(bytes) => assert!(bytes == BODY, "{what}: {bytes:?}"),
                Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ESTALE), "{what}"),
            }
        }
    }
}

/// The script of each of several processes. Their files wait on the client after the close.
const REMOVE: &str = "
    for round in 1 2; do
        mkdir d$N; cd d$N
        for f in 1 2 3 4 5 6; do echo bytes > $f; ln $f link$f; done
        sleep 0.2
        for f in 1 2 3; do rm $f; done
        for f in 4 5; do echo other > new$f; done
        sleep 0.2
        for f in 4 5; do mv new$f $f; done
        for f in 1 2 3 4 5; do [ $(stat -c %h link$f) = 1 ] || exit 3; done
        rm link*
        sleep 0.1
        ls -a | grep -q nfs && exit 4
        cd ..; rm -rf d$N || exit 5
        [ ! -e d$N ] || exit 6
    done";

/// The removal of a closed, unsent file makes no hidden name. No hidden name is listed or counted,
/// and trees can be removed.
/// Promise: 6a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn unsent_files_leave_no_hidden_names() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    let journal = ganesha.dir.path().join("journal");
    let here = format!("writeback=journal,exclusive,creates=here,journal-dir={}", journal.display());
    for mode in ["close=lazy", &here] {
        for vers in ["3", "4.2"] {
            ganesha.mount(&format!("vers={vers},dirty-age=600,{mode}"), &mnt).ok();
            let start = |n: u64| {
                let mut shell = Command::new("sh");
                shell.args(["-c", REMOVE]).env("N", n.to_string()).current_dir(&mnt).spawn().unwrap()
            };
            let running: Vec<_> = (0..16).map(start).collect();
            for mut one in running {
                assert!(one.wait().unwrap().success(), "{mode}, vers={vers}");
            }
            run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
            assert_eq!(fs::read_dir(ganesha.export("")).unwrap().count(), 0, "{mode}, vers={vers}");
        }
    }
}

/// Threads of one mount open a name while another mount gives the name to new files. An open that
/// begins after the rename has returned finds the new file, also while another thread of its mount
/// learns of the file.
/// Promise: 7
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn open_after_rename_sees_new_file() {
    const THREADS: usize = 6;
    let seconds = std::env::var("HITHER_SECONDS").map_or(3, |n| n.parse().unwrap());
    let ganesha = Ganesha::start();
    let mut serve = Serve::of_directory();
    serve.serve();
    for (server, vers) in [("hither serve", "4.2"), ("hither serve", "3"), ("nfs-ganesha", "4.2")] {
        let options = format!("vers={vers}");
        let [reader, writer] = ["reader", "writer"].map(|name| {
            let mnt = ganesha.dir.path().join(format!("{name}{vers}"));
            let mnt = if server == "nfs-ganesha" { mnt } else { serve.mnt(name) };
            let _ = fs::create_dir(&mnt);
            if server == "nfs-ganesha" {
                ganesha.mount(&options, &mnt).ok();
            } else {
                serve.mount(&options, &mnt).ok();
            }
            mnt
        });
        let (end, announced) = (Instant::now() + Duration::from_secs(seconds), AtomicU64::new(0));
        fs::write(writer.join("v"), "0").unwrap();
        let read = || {
            let (mut opens, mut old) = (0, Vec::new());
            while Instant::now() < end {
                let least = announced.load(Ordering::SeqCst);
                // A file that is replaced twice during an open may be gone.
                let Ok(text) = fs::read_to_string(reader.join("v")) else { continue };
                opens += 1;
                // The threads do not run in step.
                pause(opens * 7 % 11);
                if text.parse::<u64>().unwrap() < least {
                    old.push((text, least));
                }
            }
            (opens, old)
        };
        let (opens, old) = std::thread::scope(|s| {
            let readers: Vec<_> = (0..THREADS).map(|_| s.spawn(read)).collect();
            for version in 1.. {
                if Instant::now() >= end {
                    break;
                }
                fs::write(writer.join("new"), version.to_string()).unwrap();
                fs::rename(writer.join("new"), writer.join("v")).unwrap();
                announced.store(version, Ordering::SeqCst);
                pause(15);
            }
            let read = readers.into_iter().map(|reader| reader.join().unwrap());
            read.fold((0, Vec::new()), |(opens, mut all), (n, old)| {
                all.extend(old);
                (opens + n, all)
            })
        });
        println!("{server}, {options}: {opens} opens, {} old", old.len());
        for mnt in [&reader, &writer] {
            run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        }
        assert!(old.is_empty() && opens > 0, "{server}, {options}: {opens} opens, {old:?}");
    }
}
