//! Notifies systemd by sd_notify(3): one datagram with lines to the socket named in
//! `NOTIFY_SOCKET`.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket for notifications; `None` without one.
pub struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    /// The socket from the environment.
    pub fn from_environment() -> Self {
        let name = std::env::var_os("NOTIFY_SOCKET");
        let addr = name.and_then(|name| match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(&name).ok(),
            _ => None,
        });
        Self(addr.and_then(|addr| Some((UnixDatagram::unbound().ok()?, addr))))
    }

    /// Reports that clients can connect.
    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// Reports that the configuration is being read again.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// Reports that the server is ending.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    fn say(&self, words: &str) {
        if let Some((socket, addr)) = &self.0
            && let Err(e) = socket.send_to_addr(words.as_bytes(), addr)
        {
            tracing::warn!("notifying systemd: {e}");
        }
    }
}
