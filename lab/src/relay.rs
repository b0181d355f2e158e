//! The relay: a TCP proxy that counts ONC RPC messages, delays them, and can cut the line.
//!
//! The relay stands before every server, so each client is counted by the same code and has the
//! same delay. The relay decodes calls with hither's decoders but forwards bytes, not messages. It
//! therefore also forwards bytes that it cannot decode.
//!
//! The control protocol has one command per line, and one JSON line as the answer:
//! - `snap` returns the counters, and `reset` sets them to zero.
//! - `rtt MS` sets the delay, half in each direction.
//! - `cut [PORT]` stops all bytes and keeps the connections, as a pulled cable does. `heal [PORT]`
//!   ends the cut.
//! - `break [PORT]` closes every connection.
//! - `ping` has no effect.

mod count;
mod decode;
mod pipe;

use crate::args::Args;
use crate::clock;
use crate::lab::{CTL_PORT, Fail, HOST_IP, Lab, Res};
use crate::process::{Daemon, command};
use crate::server::Kind;
use count::Stats;
use pipe::Line;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The state that all connections share.
pub struct Shared {
    /// Half a round trip in microseconds.
    pub delay_us: AtomicU64,
    /// The counters.
    pub stats: Mutex<Stats>,
}

/// Locks a mutex. A panic of another thread does not make the lock unusable.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The relay of a laboratory.
pub fn daemon(lab: &Lab) -> Daemon {
    Daemon::at(&lab.run, "relay")
}

/// Starts the relay before both servers. Does nothing when the relay runs.
pub fn start(lab: &Lab) -> Res<()> {
    let daemon = daemon(lab);
    if daemon.pid().is_some() {
        return Ok(());
    }
    let me = std::env::current_exe()?;
    let holder = lab.holder().pid().ok_or_else(|| Fail("the laboratory is down".into()))?;
    let mut c = command(&["nsenter", &format!("--net=/proc/{holder}/ns/net"), "--"]);
    c.arg(me).args(["relay", "--ctl", &format!("{HOST_IP}:{CTL_PORT}")]);
    for kind in Kind::ALL {
        let (near, far) = (kind.relayed(), kind.direct());
        c.arg("--fwd").arg(format!("{}:{}={}:{}", near.ip, near.port, far.ip, far.port));
        c.arg("--fwd").arg(format!("{}:{}={}:{}", near.ip, near.mountport, far.ip, far.mountport));
    }
    let log = lab.run.join("relay.log");
    daemon.start(c, &log)?;
    let ready = clock::wait_until(Duration::from_secs(5), || {
        daemon.pid().is_none() || std::fs::read_to_string(&log).is_ok_and(|t| t.contains("ready"))
    });
    if !ready || daemon.pid().is_none() {
        return Err(Fail(format!("the relay did not start; see {}", log.display())));
    }
    Ok(())
}

/// Sends one command to the running relay of this process's namespace.
pub fn ctl(line: &str) -> Res<String> {
    let addr: SocketAddr =
        format!("{HOST_IP}:{CTL_PORT}").parse().map_err(|_| Fail("control address".into()))?;
    let mut s = TcpStream::connect_timeout(&addr, Duration::from_secs(2))
        .map_err(|e| Fail(format!("the relay does not answer: {e}")))?;
    s.set_read_timeout(Some(Duration::from_secs(10)))?;
    writeln!(s, "{line}")?;
    let mut reply = String::new();
    BufReader::new(s).read_line(&mut reply)?;
    Ok(reply.trim().to_string())
}

/// `relay --fwd LISTEN=TARGET... --ctl ADDR [--rtt-ms N]`: runs until it is killed.
pub fn main(args: &mut Args) -> Res<ExitCode> {
    let forwards = args.values("--fwd")?;
    let control = args.value("--ctl")?.ok_or_else(|| Fail("relay needs --ctl ADDR".into()))?;
    let rtt = args.number("--rtt-ms")?.unwrap_or(0.0);
    args.no_more_options()?;
    let shared = Arc::new(Shared {
        delay_us: AtomicU64::new((rtt * 500.0) as u64),
        stats: Mutex::new(Stats::default()),
    });
    let mut lines = vec![];
    for f in &forwards {
        let (near, far) =
            f.split_once('=').ok_or_else(|| Fail(format!("--fwd {f}: LISTEN=TARGET expected")))?;
        let (listener, port) = listen(near)?;
        let line = Arc::new(Line::new(port, far.to_string()));
        lines.push(line.clone());
        let shared = shared.clone();
        thread::spawn(move || accept(listener, &line, &shared));
    }
    let (listener, _) = listen(&control)?;
    println!("ready");
    let lines = Arc::new(lines);
    for stream in listener.incoming().flatten() {
        let (shared, lines) = (shared.clone(), lines.clone());
        thread::spawn(move || serve_control(&stream, &shared, &lines));
    }
    Ok(ExitCode::SUCCESS)
}

fn listen(addr: &str) -> Res<(TcpListener, u16)> {
    let l = TcpListener::bind(addr).map_err(|e| Fail(format!("cannot listen on {addr}: {e}")))?;
    let port = l.local_addr()?.port();
    Ok((l, port))
}

fn accept(listener: TcpListener, line: &Arc<Line>, shared: &Arc<Shared>) {
    for client in listener.incoming().flatten() {
        let (line, shared) = (line.clone(), shared.clone());
        thread::spawn(move || {
            if let Err(e) = pipe::carry(client, &line, &shared) {
                eprintln!("to {}: {e}", line.target);
            }
        });
    }
}

fn serve_control(stream: &TcpStream, shared: &Shared, lines: &[Arc<Line>]) {
    let Ok(mut out) = stream.try_clone() else { return };
    for text in BufReader::new(stream).lines().map_while(Result::ok) {
        let mut words = text.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let reply = command_reply(verb, words.next(), shared, lines);
        if writeln!(out, "{reply}").is_err() {
            break;
        }
    }
}

fn command_reply(verb: &str, word: Option<&str>, shared: &Shared, lines: &[Arc<Line>]) -> serde_json::Value {
    let ok = json!({"ok": true});
    let port: Option<u16> = word.and_then(|w| w.parse().ok());
    if matches!(verb, "cut" | "heal" | "break")
        && word.is_some()
        && !lines.iter().any(|l| Some(l.port) == port)
    {
        return json!({"error": format!("{verb} {}: no such port", word.unwrap_or_default())});
    }
    let chosen = lines.iter().filter(|l| port.is_none() || port == Some(l.port));
    match verb {
        "snap" => lock(&shared.stats).json(),
        "reset" => {
            *lock(&shared.stats) = Stats::default();
            ok
        }
        "rtt" => match word.and_then(|w| w.parse::<f64>().ok()).filter(|ms| (0.0..=10_000.0).contains(ms)) {
            Some(ms) => {
                shared.delay_us.store((ms * 500.0) as u64, Ordering::Relaxed);
                ok
            }
            None => json!({"error": "rtt MS"}),
        },
        "cut" => {
            chosen.for_each(|l| l.cut(true));
            ok
        }
        "heal" => {
            chosen.for_each(|l| l.cut(false));
            ok
        }
        "break" => json!({"closed": chosen.map(|l| l.close_all()).sum::<usize>()}),
        "ping" => ok,
        other => json!({"error": format!("unknown command {other:?}")}),
    }
}
