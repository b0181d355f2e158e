//! Messages of the daemon to the command that started it, until the mount is usable.

use crate::exit::Failure;
use crate::mount::Message;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs::File;
use std::io::Write;
use std::time::Duration;

/// The destination of messages.
pub enum Voice {
    /// The terminal of a foreground mount.
    Terminal,
    /// The command that waits at the other end of the pipe.
    Pipe(File),
    /// No further messages.
    Silent,
}

impl Voice {
    /// Starts a session of its own, and takes over standard output, which is the command's pipe.
    /// Other printing code then writes to /dev/null. Until the mount is usable, the death of the
    /// command ends this process.
    ///
    /// # Errors
    /// Standard output or /dev/null is not available.
    pub fn pipe() -> Result<Self, Failure> {
        // The call fails for the leader of a process group, for example after a start by hand. The
        // process then stays in its session.
        let _ = rustix::process::setsid();
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        let fail = |e: rustix::io::Errno| Failure::system(format!("standard output: {e}"));
        let pipe = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3).map_err(fail)?;
        let null = File::options().write(true).open("/dev/null");
        let null = null.map_err(|e| Failure::system(format!("/dev/null: {e}")))?;
        rustix::stdio::dup2_stdout(&null).map_err(fail)?;
        Ok(Self::Pipe(File::from(pipe)))
    }

    /// Sends one message. Returns false when the receiver has ended.
    fn tell(&mut self, message: &Message) -> bool {
        let Self::Pipe(pipe) = self else { return true };
        let Ok(mut line) = serde_json::to_vec(message) else { return false };
        line.push(b'\n');
        pipe.write_all(&line).is_ok()
    }

    /// Sends the last message. From then on the two processes are independent.
    fn part(&mut self, message: &Message) -> bool {
        let _ = set_parent_process_death_signal(None);
        let heard = self.tell(message);
        *self = Self::Silent;
        heard
    }

    /// Reports a usable mount. Returns false when the command has already ended.
    pub fn ready(&mut self) -> bool {
        self.part(&Message::Ready)
    }

    /// Reports that the first attempt failed and more will follow.
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

    /// Reports a note about the mount.
    pub fn note(&mut self, note: &str) {
        self.tell(&Message::Note(note.to_string()));
    }

    /// Reports that there is no mount.
    pub fn failed(&mut self, failure: &Failure) {
        self.part(&Message::Failed(failure.code, failure.line.clone()));
    }
}
