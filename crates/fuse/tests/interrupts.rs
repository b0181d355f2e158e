//! An unresponsive server blocks only its waiting callers, and they can be killed. Signals that a
//! program handles do not disturb it. Unmounting always works.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, PATIENCE, eventually, mounted, mounted_with, once_below, pause, seconds};
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Starts a program that does `what` to `path` (see [`child`]).
fn start(m: &Mount, what: &str, path: &str) -> Child {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    c.env("CHILD", what).env("CHILD_PATH", m.path(path)).current_dir("/");
    c.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// The program's report: `ok` or `errno N`, and whether it caught signals.
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

/// Sends a signal to the thread that waits in the kernel for its call. The request can arrive
/// before the thread sleeps.
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
    // SAFETY: the handler only counts, and the structure is filled as sigaction(2) requires.
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
        // SAFETY: the signal gets its default action. The program may inherit that it ignores the
        // signal, for example from nohup(1).
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

/// Runs thousands of calls while another thread sends signals to this one as fast as possible.
fn storm(path: &str) -> std::io::Result<()> {
    use std::sync::atomic::{AtomicBool, Ordering};
    handle(libc::SIGUSR1);
    static DONE: AtomicBool = AtomicBool::new(false);
    // SAFETY: only numbers are passed.
    let me = unsafe { libc::syscall(libc::SYS_gettid) };
    let thread = std::thread::spawn(move || {
        while !DONE.load(Ordering::Relaxed) {
            // SAFETY: a signal with a handler, to a thread of this process that waits for this one.
            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), me, libc::SIGUSR1) };
        }
    });
    let result = (0..3000).try_for_each(|_| fs::metadata(path).map(drop));
    DONE.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    result
}

/// No call fails while its thread gets many handled signals.
#[test]
fn signals_lose_no_call() {
    let Some(m) = mounted(0) else { return };
    fs::write(m.path("f"), b"x").unwrap();
    // The scheduler decides how many signals arrive during a call, so the test repeats until there
    // were enough.
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

/// Seconds until the signal ends the program. The call waits on a thread, because the test harness
/// runs its test on one.
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

/// SIGKILL ends a program that waits for an unresponsive server, in each kind of call.
/// Promise: 24
#[test]
fn kill_ends_waiting_call() {
    // Without first bytes, which would avoid the read.
    let Some(m) = mounted_with(0, |c| c.first_bytes = 0) else { return };
    fs::write(m.path("f"), b"x").unwrap();
    for (op, what) in [("walk", "stat"), ("open", "read"), ("read", "read"), ("write", "write")] {
        once_below("seconds until the program ends", 2.0, || {
            m.gate.shut(op);
            let child = start(&m, what, "f");
            eventually("the call waits", || m.gate.waiting(op) > 0);
            let took = ends_by(child, libc::SIGKILL);
            m.gate.open_all();
            eventually("the call below ends", || {
                m.mounted().counts().requests == 0 && m.gate.waiting(op) == 0
            });
            took
        });
    }
    m.end();
}

/// SIGINT, SIGTERM and SIGHUP without a handler end a program that waits for an unresponsive
/// server.
/// Promise: 24
#[test]
fn ctrl_c_ends_waiting_call() {
    let Some(m) = mounted(0) else { return };
    for s in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        once_below("seconds until the program ends", 2.0, || {
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

/// A handled SIGALRM neither fails nor repeats a waiting call.
#[test]
fn handled_timer_keeps_waiting_call() {
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
        // The call neither failed nor was repeated.
        assert_eq!(m.gate.calls(op), calls, "{op}");
        m.gate.open_all();
        assert_eq!(outcome(child), "ok true", "{op}");
    }
    m.end();
}

/// A waiting call fails with EINTR some time after a SIGINT with a handler.
/// Promise: 24
#[test]
fn handled_ctrl_c_gets_eintr() {
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
    eventually("the call below ends", || m.mounted().counts().requests == 0);
    m.end();
}

/// An open that is answered after its caller was killed is closed again.
#[test]
fn late_open_is_closed() {
    let Some(m) = mounted(0) else { return };
    m.gate.shut("open");
    let child = start(&m, "create", "late");
    eventually("the call waits", || m.gate.waiting("open") == 1);
    ends_by(child, libc::SIGKILL);
    assert_eq!(m.model.open_count(), 0);
    m.gate.open_all();
    // The server has created the file. No program has it open.
    eventually("the file exists", || m.path("late").exists());
    eventually("the file is closed", || m.model.open_count() == 0 && m.mounted().counts().requests == 0);
    m.end();
}

/// A killed program does not wait for the flush of its files.
#[test]
fn killed_program_skips_flush() {
    let Some(m) = mounted(0) else { return };
    once_below("seconds until the program ends", 4.0, || {
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
        eventually("the file is closed", || m.model.open_count() == 0 && m.mounted().counts().requests == 0);
        took
    });
    m.end();
}

/// Other calls are answered while one waits for the server.
#[test]
fn waiting_call_blocks_no_other() {
    // Without first bytes, which would avoid the read.
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

/// A lazy unmount returns while calls wait for the server.
#[test]
fn lazy_unmount_ignores_waiting_calls() {
    let Some(m) = mounted(0) else { return };
    m.gate.shut("walk");
    let child = start(&m, "stat", "f");
    eventually("the call waits", || m.gate.waiting("walk") == 1);
    let mounted = m.mounted();
    assert_eq!(mounted.unmount(false).unwrap_err().raw_os_error(), Some(libc::EBUSY));
    // The server does not respond until the end of the test.
    mounted.unmount(true).unwrap();
    ends_by(child, libc::SIGKILL);
    // The mount ends with its last user, although the server does not respond.
    let ended = async { tokio::time::timeout(PATIENCE, mounted.wait()).await };
    m.rt.block_on(ended).expect("the threads end");
}

/// An abort of the connection ends all calls and closes all files on the server.
#[test]
fn connection_abort_ends_calls() {
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

/// A running close reaches the server although the mount ends first.
#[test]
fn close_outlives_unmount() {
    let Some(m) = mounted(0) else { return };
    fs::write(m.path("f"), b"x").unwrap();
    m.gate.shut("close");
    drop(fs::File::open(m.path("f")).unwrap());
    eventually("the close waits", || m.gate.waiting("close") >= 1);
    // The kernel sends RELEASE a short time before it releases the mount.
    eventually("the mount is unmounted", || m.mounted().unmount(false).is_ok());
    m.gate.open_all();
    let mounted = m.mounted();
    let ended = async { tokio::time::timeout(PATIENCE, mounted.wait()).await };
    m.rt.block_on(ended).expect("the threads end");
    eventually("the file is closed", || m.model.open_count() == 0);
}
