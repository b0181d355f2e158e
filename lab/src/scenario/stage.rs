//! The tools of a scenario: mounts, programs that run on them in the background, and faults.

use crate::client::{Ask, Client, Mount};
use crate::clock;
use crate::guest::quote;
use crate::lab::{Fail, Lab, Res};
use crate::relay;
use crate::server::{Kind, Options, Server};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Longest that any program of a scenario may run.
const LIMIT: Duration = Duration::from_secs(900);

/// One scenario on one server with one client.
pub struct Stage<'a> {
    /// The laboratory.
    pub lab: &'a Lab,
    /// The client under test.
    pub client: &'a Client,
    /// The server with the faults.
    pub kind: Kind,
    /// Protocol version.
    pub vers: &'a str,
    name: &'static str,
    verbose: bool,
    mounts: Mutex<Vec<Arc<Mount>>>,
}

impl<'a> Stage<'a> {
    /// A stage without mounts.
    pub fn new(
        lab: &'a Lab,
        client: &'a Client,
        kind: Kind,
        vers: &'a str,
        name: &'static str,
        verbose: bool,
    ) -> Self {
        Self { lab, client, kind, vers, name, verbose, mounts: Mutex::default() }
    }

    /// The server.
    pub fn server(&self) -> Server<'_> {
        Server::new(self.lab, self.kind)
    }

    /// Reports progress in verbose runs.
    pub fn say(&self, what: &str) {
        if self.verbose {
            println!("    {what}");
        }
    }

    /// Mounts the server through the relay with the client under test.
    pub fn mount(&self, nth: usize, opts: &str) -> Res<Arc<Mount>> {
        self.mount_with(self.client, self.kind, nth, opts)
    }

    /// Mounts any server with any client.
    pub fn mount_with(&self, client: &Client, kind: Kind, nth: usize, opts: &str) -> Res<Arc<Mount>> {
        let ask = Ask { opts, nth, ..Ask::new(kind.relayed(), self.vers) };
        let mount = Arc::new(client.mount(self.lab, &ask)?);
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner).push(mount.clone());
        Ok(mount)
    }

    /// A new empty directory on the mount.
    pub fn directory(&self, mount: &Mount) -> Res<PathBuf> {
        let dir = mount.mp.join(format!("{}.{}", self.name, std::process::id()));
        mount.shell(&format!("rm -rf {d} && mkdir {d}", d = dir.display()), LIMIT)?;
        Ok(dir)
    }

    /// A command line for a Python program of `lab/work`.
    pub fn program(&self, name: &str) -> String {
        format!("exec /usr/bin/python3 {}", quote(&self.lab.file("work").join(name).display().to_string()))
    }

    /// Starts the verified writer, lets it work for `warm`, and returns it.
    pub fn writer(&self, mount: &Arc<Mount>, warm: Duration) -> Res<Writer> {
        let dir = self.directory(mount)?;
        let tmp = mount.scratch(self.name)?;
        let words = format!(
            "{} write {} {t}/log {t}/stop {}",
            self.program("verified.py"),
            dir.display(),
            if self.vers == "3" { "volatile" } else { "" },
            t = tmp.display()
        );
        let job = Job::start(mount, &words);
        job.expect("writing", Duration::from_secs(60))?;
        clock::pause(warm);
        Ok(Writer { job, dir, tmp, verify: self.program("verified.py") })
    }

    /// Checks that a client without cached state finds all acknowledged data.
    pub fn verify(&self, mount: &Arc<Mount>, writer: Writer) -> Res<()> {
        let Writer { job, dir, tmp, verify } = writer;
        mount.shell(&format!("touch {}/stop", tmp.display()), LIMIT)?;
        let end = job.wait(Duration::from_secs(120))?;
        self.say(&end.text);
        if end.code != 0 {
            return Err(Fail(format!("the writer failed with code {}: {}", end.code, end.last())));
        }
        mount.umount()?;
        let fresh = self.mount(0, "")?;
        let out = fresh.shell(&format!("{verify} verify {} {}/log", dir.display(), tmp.display()), LIMIT)?;
        self.say(&out);
        fresh.shell(&format!("rm -rf {}", dir.display()), LIMIT)?;
        fresh.umount()
    }

    /// Sends a command about the server's NFS and MOUNT ports to the relay.
    pub fn relay(&self, verb: &str) -> Res<()> {
        let at = self.kind.relayed();
        for port in [at.port, at.mountport] {
            relay::ctl(&format!("{verb} {port}"))?;
        }
        Ok(())
    }

    /// Undoes every fault and every mount.
    pub fn restore(&self) -> Res<()> {
        relay::ctl("heal")?;
        for kind in Kind::ALL {
            let server = Server::new(self.lab, kind);
            if server.running() {
                let _ = server.freeze(false);
            }
        }
        self.server().start(&Options::default(), true)?;
        for mount in self.mounts.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            mount.force_umount();
        }
        Ok(())
    }
}

/// The running verified writer.
pub struct Writer {
    /// The program.
    pub job: Job,
    dir: PathBuf,
    tmp: PathBuf,
    verify: String,
}

impl Writer {
    /// Fails unless the writer finished another round within `limit`.
    pub fn must_advance(&self, limit: Duration) -> Res<()> {
        let before = self.job.text().lines().count();
        if clock::wait_until(limit, || self.job.text().lines().count() > before || self.job.ended()) {
            if self.job.ended() {
                return Err(Fail(format!("the writer ended: {}", last_line(&self.job.text()))));
            }
            return Ok(());
        }
        Err(Fail(format!("the writer made no progress within {} s", limit.as_secs())))
    }
}

/// The end of a program.
pub struct End {
    /// Exit code, or 128 + signal.
    pub code: i32,
    /// All its output.
    pub text: String,
}

impl End {
    /// The last line of output, which usually contains the reason.
    pub fn last(&self) -> String {
        last_line(&self.text)
    }
}

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or("no output").to_string()
}

/// A program that runs on a mount in the background.
pub struct Job {
    text: Arc<Mutex<String>>,
    thread: JoinHandle<Res<i32>>,
}

impl Job {
    /// Starts a shell command.
    pub fn start(mount: &Arc<Mount>, script: &str) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let (mount, script, sink) = (mount.clone(), script.to_string(), text.clone());
        let thread = thread::spawn(move || {
            mount.run(&script, LIMIT, |l| {
                let mut all = sink.lock().unwrap_or_else(PoisonError::into_inner);
                all.push_str(l);
                all.push('\n');
            })
        });
        Self { text, thread }
    }

    /// The output so far.
    pub fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the program has ended.
    pub fn ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for a line of output that starts with `word`. Returns the rest of that line.
    pub fn expect(&self, word: &str, limit: Duration) -> Res<String> {
        let mut found = None;
        clock::wait_until(limit, || {
            found = self.text().lines().find_map(|l| l.strip_prefix(word).map(|r| r.trim().to_string()));
            found.is_some() || self.ended()
        });
        found.ok_or_else(|| {
            Fail(format!("the program never printed {word:?} but {:?}", last_line(&self.text())))
        })
    }

    /// Waits for the end of the program. Fails when it does not end within `limit`.
    pub fn wait(self, limit: Duration) -> Res<End> {
        if !clock::wait_until(limit, || self.ended()) {
            return Err(Fail(format!(
                "still running after {} s: {}",
                limit.as_secs(),
                last_line(&self.text())
            )));
        }
        let text = self.text();
        let code = self.thread.join().map_err(|_| Fail("a thread of the laboratory failed".into()))??;
        Ok(End { code, text })
    }
}
