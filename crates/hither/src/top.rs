//! `hither top DIR`: a mount's current requests to its server, by operation, process and file.
//!
//! Rates come from two reports of the daemon over the control socket. Processes and files come from
//! the daemon's ring of calls to the server. Answers from caches cost the server nothing and appear
//! as a rate only. A terminal is redrawn until `q`; otherwise each interval is printed below the
//! last.

mod server;

use crate::cli::TopArgs;
use crate::control::locate::{self, Daemon};
use crate::control::{self, Ask};
use crate::exit::Failure;
use crate::report::{Operation, Report};
use crate::stat::text::{added, answered};
use crate::stat::{self, print};
use crate::why::PastCall;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue, style};
use hither_tools::units::{bytes, duration};
use serde::{Deserialize, Serialize};
use server::ServerWatch;
use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;
use tokio::time::Instant;

/// Width and height without a terminal.
const PLAIN: (usize, usize) = (120, 40);

/// The calls since an earlier request.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Since {
    /// Position for the next request.
    pub next: u64,
    /// Calls that the ring dropped in between.
    pub lost: u64,
    /// The calls.
    pub calls: Vec<PastCall>,
}

/// Shows the figures until the end.
///
/// # Errors
/// The path is not in a mount of hither; those of [`control::ask`].
pub fn run(args: &TopArgs) -> Result<(), Failure> {
    let dir = match (&args.dir, &args.server) {
        (_, Some(server)) => {
            let mut watch = ServerWatch::new(locate::server(server.as_deref())?)?;
            return show(args, |every| watch.frame(every));
        }
        (Some(dir), None) => dir,
        (None, None) => return Err(Failure::usage("name a directory of a mount, or --server")),
    };
    let daemon = locate::daemon(dir)?;
    let mut watch = Watch { before: stat::report(&daemon)?, since: since(&daemon, u64::MAX)?, daemon };
    show(args, |every| watch.frame(every))
}

/// Shows a frame in each round.
fn show(args: &TopArgs, mut next: impl FnMut(Duration) -> Result<Frame, Failure>) -> Result<(), Failure> {
    let every = Duration::from_secs(args.delay);
    let screen =
        if io::stdout().is_terminal() && io::stdin().is_terminal() { Some(Screen::begin()?) } else { None };
    let mut rounds = 0;
    loop {
        match &screen {
            Some(_) if quits(every)? => return Ok(()),
            Some(_) => {}
            None => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a command that waits for its user, not logic"
                )]
                std::thread::sleep(every);
            }
        }
        let frame = next(every)?;
        match &screen {
            Some(screen) => screen.draw(&frame)?,
            None => print(&format!("{}\n", frame.lines(PLAIN.0, PLAIN.1).join("\n")))?,
        }
        rounds += 1;
        if args.rounds.is_some_and(|n| rounds >= n) {
            return Ok(());
        }
    }
}

fn since(daemon: &Daemon, from: u64) -> Result<Since, Failure> {
    serde_json::from_value(control::ask(daemon, Ask::Calls(from))?)
        .map_err(|e| Failure::system(format!("the daemon of {} is of another version: {e}", daemon.dir)))
}

fn broken(e: io::Error) -> Failure {
    Failure::system(format!("the terminal: {e}"))
}

/// Waits for the next round. Returns true if the user quits.
fn quits(every: Duration) -> Result<bool, Failure> {
    let until = Instant::now() + every;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if !event::poll(left).map_err(broken)? {
            return Ok(false);
        }
        if let Event::Key(key) = event::read().map_err(broken)?
            && key.kind == KeyEventKind::Press
        {
            let ends = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if ends || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(true);
            }
        }
    }
}

/// Restores the screen when dropped.
struct Screen;

impl Screen {
    fn begin() -> Result<Self, Failure> {
        terminal::enable_raw_mode().map_err(broken)?;
        let screen = Self;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide).map_err(broken)?;
        Ok(screen)
    }

    fn draw(&self, frame: &Frame) -> Result<(), Failure> {
        // Pseudo-terminals of programs may report no size.
        let (width, height) = match terminal::size().map_err(broken)? {
            (0, _) | (_, 0) => (80, 24),
            size => size,
        };
        let mut out = io::stdout().lock();
        let drawn = (|| {
            queue!(out, cursor::MoveTo(0, 0), Clear(ClearType::All))?;
            for (row, line) in frame.lines(width.into(), height.into()).iter().enumerate() {
                queue!(out, cursor::MoveTo(0, row as u16), style::Print(line))?;
            }
            out.flush()
        })();
        drawn.map_err(broken)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

/// The latest calls to the server.
struct Watch {
    before: Report,
    since: Since,
    daemon: Daemon,
}

impl Watch {
    fn frame(&mut self, every: Duration) -> Result<Frame, Failure> {
        let now = stat::report(&self.daemon)?;
        self.since = since(&self.daemon, self.since.next)?;
        let frame = Frame::new(&self.before, &now, &self.since, every);
        self.before = now;
        Ok(frame)
    }
}

/// Calls of one process, or on one file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Share {
    who: String,
    calls: u64,
    questions: u64,
    took_us: u64,
}

/// One round, before it is cut to the size of the screen.
struct Frame {
    head: Vec<String>,
    operations: Vec<String>,
    processes: Vec<String>,
    files: Vec<String>,
}

impl Frame {
    fn new(before: &Report, now: &Report, since: &Since, every: Duration) -> Self {
        let seconds = every.as_secs_f64().max(0.001);
        let rate = |n: u64| n as f64 / seconds;
        let m = &now.mount;
        let operations = added(before, now);
        let sum = |of: fn(&Operation) -> u64| operations.iter().map(of).sum::<u64>();
        let requests = |r: &Report| r.fuse.values().sum::<u64>();
        let mut head = vec![
            format!("{} on {}: NFS {}, server {}", m.source, m.dir, m.nfs_version, m.server),
            format!(
                "programs  {:.0} requests/s    server  {:.0} calls/s, sent {}/s, received {}/s",
                rate(requests(now).saturating_sub(requests(before))),
                rate(sum(|op| op.calls)),
                bytes(rate(sum(|op| op.bytes_sent)) as u64),
                bytes(rate(sum(|op| op.bytes_received)) as u64)
            ),
        ];
        let here = answered(&now.since(before));
        if !here.is_empty() {
            head.push(format!("answered  {}", here.join(", ")));
        }
        if since.lost > 0 {
            head.push(format!(
                "(processes and files: the last {} of {} calls)",
                since.calls.len(),
                since.calls.len() as u64 + since.lost
            ));
        }
        let mut rows: Vec<&Operation> = operations.iter().filter(|op| op.calls > 0).collect();
        rows.sort_by(|a, b| b.calls.cmp(&a.calls).then(a.name.cmp(&b.name)));
        let mut lines = vec![format!(
            "{:<20} {:>9} {:>10} {:>12} {:>12}",
            "OPERATION", "calls/s", "round trip", "sent/s", "received/s"
        )];
        lines.extend(rows.iter().map(|op| {
            format!(
                "{:<20} {:>9.1} {:>10} {:>12} {:>12}",
                op.name,
                rate(op.calls),
                duration(op.rtt_us.mean as u64),
                bytes(rate(op.bytes_sent) as u64),
                bytes(rate(op.bytes_received) as u64)
            )
        }));
        let of_process = |call: &PastCall| format!("{}[{}] uid {}", call.program, call.pid, call.uid);
        let of_file = |call: &PastCall| call.path.clone().unwrap_or_else(|| "?".into());
        Self {
            head,
            operations: lines,
            processes: table("PROCESS", &shares(&since.calls, of_process), seconds),
            files: table("FILE", &shares(&since.calls, of_file), seconds),
        }
    }

    /// The lines that fit, with the most important ones first in each table.
    fn lines(&self, width: usize, height: usize) -> Vec<String> {
        let mut out = self.head.clone();
        let tables = [&self.operations, &self.processes, &self.files];
        // A blank line precedes each table. Unused room passes to the next table.
        let mut room = height.saturating_sub(out.len() + tables.len());
        for (i, lines) in tables.iter().enumerate() {
            let mine = lines.len().min(room / (tables.len() - i)).max(usize::from(room > 0).min(lines.len()));
            if mine > 0 {
                out.push(String::new());
                out.extend(lines.iter().take(mine).cloned());
            }
            room -= mine;
        }
        out.truncate(height);
        let plain = |c: char| if c.is_control() { '?' } else { c };
        out.iter().map(|line| line.chars().map(plain).take(width).collect()).collect()
    }
}

/// Sums of calls by `of`, sorted by descending time.
fn shares(calls: &[PastCall], of: impl Fn(&PastCall) -> String) -> Vec<Share> {
    let mut all: HashMap<String, Share> = HashMap::new();
    for call in calls {
        let share = all.entry(of(call)).or_default();
        share.calls += 1;
        share.questions += call.asked.len() as u64 + u64::from(call.more);
        share.took_us += call.took_us;
    }
    let mut all: Vec<Share> = all.into_iter().map(|(who, share)| Share { who, ..share }).collect();
    all.sort_by(|a, b| b.took_us.cmp(&a.took_us).then(a.who.cmp(&b.who)));
    all
}

fn table(what: &str, shares: &[Share], seconds: f64) -> Vec<String> {
    let mut lines = vec![format!("{:>9} {:>12} {:>10}  {what}", "calls/s", "questions/s", "each")];
    lines.extend(shares.iter().map(|share| {
        format!(
            "{:>9.1} {:>12.1} {:>10}  {}",
            share.calls as f64 / seconds,
            share.questions as f64 / seconds,
            duration(share.took_us / share.calls.max(1)),
            share.who
        )
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::{op, report};
    use crate::why::Asked;

    fn call(program: &str, path: &str, took_us: u64) -> PastCall {
        let asked = Asked { operation: "READ".into(), took_us, why: String::new() };
        PastCall {
            ago_ms: 1,
            request: "READ".into(),
            name: None,
            path: Some(path.into()),
            pid: 7,
            program: program.into(),
            uid: 0,
            took_us,
            errno: 0,
            asked: vec![asked],
            more: 1,
        }
    }

    fn frame() -> Frame {
        let before = report(vec![op("READ", 1)]);
        let mut now = report(vec![op("READ", 21), op("LOOKUP", 4)]);
        *now.fuse.get_mut("READ").unwrap() += 60;
        let calls = vec![call("cat", "/a", 100), call("cat", "/b\x1b[2J", 300), call("vi", "/a", 500)];
        Frame::new(&before, &now, &Since { next: 3, lost: 5, calls }, Duration::from_secs(2))
    }

    #[test]
    fn top_groups_rates_three_ways() {
        let lines = frame().lines(200, 50);
        let fields = |words: &str| {
            let line = lines
                .iter()
                .find(|line| line.contains(words))
                .unwrap_or_else(|| panic!("{words}: {lines:#?}"));
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(fields("programs").starts_with("programs 30 requests/s server 12 calls/s"));
        assert!(fields("READ ").starts_with("READ 10.0 "));
        assert_eq!(fields("cat[7]"), "1.0 2.0 200 µs cat[7] uid 0");
        assert_eq!(fields("vi[7]"), "0.5 1.0 500 µs vi[7] uid 0");
        assert_eq!(fields("/a"), "1.0 2.0 300 µs /a");
        assert!(lines.iter().any(|l| l.contains("the last 3 of 8 calls")));
        // The row with the most time comes first. A file name cannot move the cursor.
        let at = |words: &str| lines.iter().position(|l| l.contains(words)).unwrap();
        assert!(at("vi[7]") < at("cat[7]") && at("/a") < at("/b?[2J"));
    }

    #[test]
    fn a_frame_fits_the_screen() {
        for (width, height) in [(1, 1), (20, 5), (80, 10), (80, 24), (300, 100)] {
            let lines = frame().lines(width, height);
            assert!(lines.len() <= height, "{height}: {lines:#?}");
            assert!(lines.iter().all(|line| line.chars().count() <= width));
        }
        let lines = frame().lines(80, 13);
        assert!(
            lines.iter().any(|l| l.contains("PROCESS")) && lines.iter().any(|l| l.contains("FILE")),
            "{lines:#?}"
        );
    }
}
