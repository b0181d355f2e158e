//! The error type of all layers: an errno, and a reason for the log.

use std::borrow::Cow;
use std::fmt;

/// Result of a file-system call.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a file-system call.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// The errno for the program.
    pub errno: i32,
    /// The cause for the log; `None` when the errno is sufficient.
    pub why: Option<Cow<'static, str>>,
    /// The caller's credential could not be used, so the server did not judge the call. A later
    /// attempt may succeed, with any errno.
    pub is_unproven: bool,
    /// A lock that the call relied on was lost. No later attempt may succeed, with any errno.
    pub is_lost: bool,
}

impl Error {
    /// An expected failure that the errno describes completely.
    pub fn new(errno: i32) -> Self {
        Self { errno, why: None, is_unproven: false, is_lost: false }
    }

    /// A failure that is logged with a reason.
    pub fn because(errno: i32, why: impl Into<Cow<'static, str>>) -> Self {
        Self { why: Some(why.into()), ..Self::new(errno) }
    }

    /// A call that the server did not judge, because the caller's credential could not be used.
    pub fn unproven(errno: i32, why: impl Into<Cow<'static, str>>) -> Self {
        Self { is_unproven: true, ..Self::because(errno, why) }
    }

    /// `EIO` of a call that relied on a lost lock.
    pub fn lost(why: impl Into<Cow<'static, str>>) -> Self {
        Self { is_lost: true, ..Self::because(libc::EIO, why) }
    }

    /// Level at which the failure is logged. Common answers (no such file, not permitted) are
    /// `debug`. An error with a reason is `warn`.
    pub fn level(&self) -> tracing::Level {
        match self.why {
            None => tracing::Level::DEBUG,
            Some(_) => tracing::Level::WARN,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = std::io::Error::from_raw_os_error(self.errno);
        match &self.why {
            Some(why) => write!(f, "{why}: {errno}"),
            None => write!(f, "{errno}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
