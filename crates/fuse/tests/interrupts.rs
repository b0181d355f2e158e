//! A dead server blocks only its waiting callers, and they can be killed; signals that a program
//! handles do not disturb it; unmounting always works.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, PATIENCE, eventually, mounted, mounted_with, once_below, pause, seconds};
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Starts a program that does `what` to `path`; see [`child`].
fn start(m: &Mount, what: &str, path: &str) -> Child {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    c.env("CHILD", what).env("CHILD_PATH", m.path(path)).current_dir("/");
    c.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// The program's report about its call: `ok` or `errno N`, after how many signals.
fn outcome(mut child: Child) -> String {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    text.lines().find_map(|l| l.split_once("outcome: ")).unwrap_or(("", "none")).1.to_owned()
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: a signal to a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Sends a signal to the very thread that waits in the kernel for its call, once it does: its
/// request was seen before it sleeps.
fn signal_waiter(child: &Child, signal: i32) {
    let tasks = format!("/proc/{}/task", child.id());
    let mut waiter = None;
    eventually("a thread waits", || {
        waiter = fs::read_dir(&tasks).unwrap().find_map(|t| {
            let t = t.unwrap();
            let wchan = fs::read_to_string(t.path().join("wchan")).ok()?;
            wchan.contains("request_wait").then(|| t.file_name().to_str().unwrap().parse::<i32>().unwrap())
        });
        waiter.is_some()
    });
    // SAFETY: a signal to a thread of a child that was not waited for.
    assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, child.id(), waiter.unwrap(), signal) }, 0);
}

static CAUGHT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

extern "C" fn caught(_: i32) {
    CAUGHT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

fn handle(signal: i32) {
    // SAFETY: the handler only counts; the structure is filled as sigaction(2) wants it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = caught as extern "C" fn(i32) as usize;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Not a test: the program that the tests start.
#[test]
#[ignore = "the program that other tests start"]
fn child() {
    let Ok(what) = std::env::var("CHILD") else { return };
    let path = std::env::var("CHILD_PATH").unwrap();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // An ignored signal, as from nohup(1) and similar programs, is inherited.
        // SAFETY: no handler, only the default.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    for part in what.split_whitespace() {
        let result = match part {
            "handle-int" => {
                handle(libc::SIGINT);
                continue;
            }
            "handle-alarm" => {
                handle(libc::SIGALRM);
                continue;
            }
            "storm" => storm(&path),
            "stat" => fs::metadata(&path).map(drop),
            "read" => fs::read(&path).map(drop),
            "write" => fs::write(&path, b"written").map(drop),
            "create" => fs::File::create_new(&path).map(drop),
            "hold" => {
                let mut f = fs::File::create(&path).unwrap();
                std::io::Write::write_all(&mut f, b"x").unwrap();
                println!("holding");
                pause(60_000);
                Ok(())
            }
            _ => panic!("{part}?"),
        };
        let caught = CAUGHT.load(std::sync::atomic::Ordering::Relaxed);
        match result {
            Ok(()) => println!("outcome: ok {}", caught > 0),
            Err(e) => println!("outcome: errno {} {}", e.raw_os_error().unwrap_or(0), caught > 0),
        }
    }
}

/// Thousands of calls, while another thread sends signals to this one as fast as it can.
fn storm(path: &str) -> std::io::Result<()> {
    use std::sync::atomic::{AtomicBool, Ordering};
    handle(libc::SIGUSR1);
    static DONE: AtomicBool = AtomicBool::new(false);
    // SAFETY: no arguments but numbers.
    let me = unsafe { libc::syscall(libc::SYS_gettid) };
    let thread = std::thread::spawn(move || {
        while !DONE.load(Ordering::Relaxed) {
            // SAFETY: a signal with a handler to a thread of this process that waits for this one.
            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), me, libc::SIGUSR1) };
        }
    });
    let result = (0..3000).try_for_each(|_| fs::metadata(path).map(drop));
    DONE.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    result
}

#[test]
fn a_storm_of_signals_loses_no_call() {
    let Some(m) = mounted(0) else { return };
    fs::write(m.path("f"), b"x").unwrap();
    // How many signals come while a call waits is the scheduler's affair: until there were enough
    // of them.
    let mut interrupts = 0;
    for _ in 0..100 {
        let children: Vec<_> = (0..3).map(|_| start(&m, "storm", "f")).collect();
        for child in children {
            assert_eq!(outcome(child), "ok true");
        }
        interrupts = m.requests("INTERRUPT");
        if interrupts > 100 {
            break;
        }
    }
    assert!(interrupts > 100, "{interrupts} interrupts are no storm");
    m.end();
}

/// Seconds until a program has ended by a signal. The child of the test harness runs its test on a
/// thread: the call waits there.
fn ends_by(mut child: Child, wanted: i32) -> f64 {
    signal(&child, wanted);
    let mut status = None;
    let took = seconds(|| {
        eventually("the program ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        })
    });
    assert_eq!(status.unwrap().signal(), Some(wanted));
    took
}

/// Promise: 24
#[test]
fn kill_ends_a_call_to_a_dead_server() {
    // First bytes that come with the name would spare the read.
    let Some(m) = mounted_with(0, |c| c.first_bytes = 0) else { return };
    fs::write(m.path("f"), b"x").unwrap();
    for (op, what) in [("walk", "stat"), ("open", "read"), ("read", "read"), ("write", "write")] {
        once_below("seconds until it ends", 2.0, || {
            m.gate.shut(op);
            let child = start(&m, what, "f");
            eventually("the call waits", || m.gate.waiting(op) > 0);
            let took = ends_by(child, libc::SIGKILL);
            m.gate.open_all();
            eventually("the call below ends", || m.mounted().counts().2 == 0 && m.gate.waiting(op) == 0);
            took
        });
    }
    m.end();
}

/// Promise: 24
#[test]
fn ctrl_c_ends_a_call_to_a_dead_server() {
    let Some(m) = mounted(0) else { return };
    for s in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        once_below("seconds until it ends", 2.0, || {
            m.gate.shut("walk");
            let child = start(&m, "stat", "f");
            eventually("the call waits", || m.gate.waiting("walk") == 1);
            let took = ends_by(child, s);
            m.gate.open_all();
            eventually("the call below ends", || m.gate.waiting("walk") == 0);
            took
        });
    }
    m.end();
}

#[test]
fn timers_of_a_program_do_not_disturb_its_calls() {
    let Some(m) = mounted_with(0, |c| c.interrupt_patience = Duration::from_millis(300)) else { return };
    fs::write(m.path("f"), b"x").unwrap();
    for (op, what) in [("walk", "stat"), ("open", "read"), ("write", "write")] {
        m.gate.shut(op);
        let child = start(&m, &format!("handle-alarm {what}"), "f");
        eventually("the call waits", || m.gate.waiting(op) > 0);
        let calls = m.gate.calls(op);
        for _ in 0..20 {
            signal_waiter(&child, libc::SIGALRM);
            pause(50);
        }
        // Neither failed nor tried again.
        assert_eq!(m.gate.calls(op), calls, "{op}");
        m.gate.open_all();
        assert_eq!(outcome(child), "ok true", "{op}");
    }
    m.end();
}

/// Promise: 24
#[test]
fn a_program_that_handles_ctrl_c_gets_eintr_after_a_while() {
    let Some(m) = mounted_with(0, |c| c.interrupt_patience = Duration::from_millis(1500)) else { return };
    m.gate.shut("walk");
    let child = start(&m, "handle-int stat", "f");
    eventually("the call waits", || m.gate.waiting("walk") == 1);
    let took = seconds(|| {
        signal_waiter(&child, libc::SIGINT);
        assert_eq!(outcome(child), format!("errno {} true", libc::EINTR));
    });
    assert!(took > 1.4, "not at once: {took} s");
    m.gate.open_all();
    eventually("the call below ends", || m.mounted().counts().2 == 0);
    m.end();
}

#[test]
fn what_comes_too_late_is_taken_back() {
    let Some(m) = mounted(0) else { return };
    m.gate.shut("open");
    let child = start(&m, "create", "late");
    eventually("the call waits", || m.gate.waiting("open") == 1);
    ends_by(child, libc::SIGKILL);
    assert_eq!(m.model.open_count(), 0);
    m.gate.open_all();
    // The file was created, as the server does not know better; no program has it open.
    eventually("it is there", || m.path("late").exists());
    eventually("it is closed", || m.model.open_count() == 0 && m.mounted().counts().2 == 0);
    m.end();
}

#[test]
fn a_killed_program_does_not_wait_for_its_files_to_be_flushed() {
    let Some(m) = mounted(0) else { return };
    once_below("seconds until it ends", 4.0, || {
        let mut child = start(&m, "hold", "f");
        let mut said = [0; 64];
        let out = child.stdout.as_mut().unwrap();
        let mut all = Vec::new();
        while !all.windows(7).any(|w| w == b"holding") {
            let n = out.read(&mut said).unwrap();
            assert!(n > 0);
            all.extend_from_slice(&said[..n]);
        }
        m.gate.shut("commit");
        let took = ends_by(child, libc::SIGKILL);
        m.gate.open_all();
        eventually("the file is closed", || m.model.open_count() == 0 && m.mounted().counts().2 == 0);
        took
    });
    m.end();
}

#[test]
fn others_go_on_while_one_call_waits() {
    // First bytes that come with the name would spare the read.
    let Some(m) = mounted_with(0, |c| c.first_bytes = 0) else { return };
    fs::write(m.path("f"), b"x").unwrap();
    m.gate.shut("read");
    let mut children: Vec<_> = (0..40).map(|_| start(&m, "read", "f")).collect();
    eventually("a call waits", || m.gate.waiting("read") >= 1);
    for i in 0..100 {
        fs::write(m.path(&format!("g{i}")), b"y").unwrap();
    }
    assert_eq!(fs::read_dir(&m.dir).unwrap().count(), 101);
    m.gate.open_all();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    m.end();
}

#[test]
fn a_lazy_unmount_works_while_calls_wait() {
    let Some(m) = mounted(0) else { return };
    m.gate.shut("walk");
    let child = start(&m, "stat", "f");
    eventually("the call waits", || m.gate.waiting("walk") == 1);
    let mounted = m.mounted();
    assert_eq!(mounted.unmount(false).unwrap_err().raw_os_error(), Some(libc::EBUSY));
    // The server is dead until the end of the test: nothing here waits for it.
    mounted.unmount(true).unwrap();
    ends_by(child, libc::SIGKILL);
    // With its last user the mount ends, though the server is still dead.
    let ended = async { tokio::time::timeout(PATIENCE, mounted.wait()).await };
    m.rt.block_on(ended).expect("the threads end");
}

#[test]
fn aborting_the_connection_ends_everything() {
    let Some(m) = mounted(0) else { return };
    fs::write(m.path("f"), b"x").unwrap();
    let held = fs::File::open(m.path("f")).unwrap();
    m.gate.shut("walk");
    let child = start(&m, "stat", "f");
    eventually("the call waits", || m.gate.waiting("walk") == 1);
    m.abort();
    let outcome = outcome(child);
    let gone = [libc::ECONNABORTED, libc::ENOTCONN].map(|e| format!("errno {e} false"));
    assert!(gone.contains(&outcome), "{outcome}");
    let mounted = m.mounted();
    let ended = async { tokio::time::timeout(PATIENCE, mounted.wait()).await };
    m.rt.block_on(ended).expect("the threads end");
    assert_eq!(m.model.open_count(), 0);
    drop(held);
    mounted.unmount(true).unwrap();
}

#[test]
fn a_closed_file_is_closed_below_even_when_the_mount_goes_first() {
    let Some(m) = mounted(0) else { return };
    fs::write(m.path("f"), b"x").unwrap();
    m.gate.shut("close");
    drop(fs::File::open(m.path("f")).unwrap());
    eventually("the close waits", || m.gate.waiting("close") >= 1);
    // The kernel asks for the close a moment before it lets go of the mount.
    eventually("it is unmounted", || m.mounted().unmount(false).is_ok());
    m.gate.open_all();
    let mounted = m.mounted();
    let ended = async { tokio::time::timeout(PATIENCE, mounted.wait()).await };
    m.rt.block_on(ended).expect("the threads end");
    eventually("it is closed", || m.model.open_count() == 0);
}
