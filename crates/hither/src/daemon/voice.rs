//! Messages of the daemon to the program that started it, until the mount is usable.

use crate::exit::Failure;
use crate::mount::Message;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs::File;
use std::io::Write;
use std::time::Duration;

/// The receiver of messages.
pub enum Voice {
    /// A foreground mount: the terminal.
    Terminal,
    /// The command that waits at the other end of the pipe.
    Pipe(File),
    /// Everything was said.
    Silent,
}

impl Voice {
    /// Leaves the session of the command, and takes its pipe, which is standard output, away from
    /// other printing code. Until the mount is usable, the death of the command ends this process.
    ///
    /// # Errors
    /// No standard output, no /dev/null.
    pub fn pipe() -> Result<Self, Failure> {
        // Fails for a leader of a process group, as when started by hand: then there is no session
        // to leave.
        let _ = rustix::process::setsid();
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        let fail = |e: rustix::io::Errno| Failure::system(format!("standard output: {e}"));
        let pipe = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3).map_err(fail)?;
        let null = File::options().write(true).open("/dev/null");
        let null = null.map_err(|e| Failure::system(format!("/dev/null: {e}")))?;
        rustix::stdio::dup2_stdout(&null).map_err(fail)?;
        Ok(Self::Pipe(File::from(pipe)))
    }

    /// Sends one message; false when the receiver has gone.
    fn tell(&mut self, message: &Message) -> bool {
        let Self::Pipe(pipe) = self else { return true };
        let Ok(mut line) = serde_json::to_vec(message) else { return false };
        line.push(b'\n');
        pipe.write_all(&line).is_ok()
    }

    /// The last message: from here on the two processes are strangers.
    fn part(&mut self, message: &Message) -> bool {
        let _ = set_parent_process_death_signal(None);
        let heard = self.tell(message);
        *self = Self::Silent;
        heard
    }

    /// The mount is usable; false when the command has gone before it could say so.
    pub fn ready(&mut self) -> bool {
        self.part(&Message::Ready)
    }

    /// The first attempt failed and there will be more.
    pub fn waiting(&mut self, why: &str, retry: Duration, background: bool) {
        if background {
            self.part(&Message::Background(why.to_string()));
            return;
        }
        let minutes = retry.as_secs() / 60;
        let plural = if minutes == 1 { "" } else { "s" };
        let note = format!("{why}; trying again for {minutes} minute{plural} (retry=0 tries once)");
        self.tell(&Message::Note(note));
    }

    /// Something to know about the mount.
    pub fn note(&mut self, note: &str) {
        self.tell(&Message::Note(note.to_string()));
    }

    /// There is no mount.
    pub fn failed(&mut self, failure: &Failure) {
        self.part(&Message::Failed(failure.code, failure.line.clone()));
    }
}
