//! The times that the holder of a write delegation maintains (RFC 9754 section 5).
//!
//! The module knows nothing of calls. The holder presents times in its answer to CB_GETATTR and in
//! SETATTR. A time before the original one is ignored, and a time in the future becomes the
//! present. The original times are those of the file at the grant. Every operation compares all its
//! times with one value of the present.
//!
//! A local file system changes the ctime with every time that is set, but a new access time alone
//! must not change it. Such a SETATTR has therefore no effect, and read delegations never include
//! the access time.

use super::{Delegation, Leases, id, key};
use crate::v4::clients::Client;
use hither_proto::nfs4::{self, Attrs as Wire, Nfsstat4};
use hither_vfs::{Attr, Fh, SetAttr, SetTime, Time};

/// Times of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    pub access: Time,
    pub modify: Time,
}

/// The times that a holder presents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HolderTimes {
    pub access: Option<Time>,
    pub modify: Option<Time>,
}

impl Times {
    /// Times before all others. The original times of a reclaimed delegation are unknown.
    pub const EARLIEST: Self = Self { access: EARLIEST, modify: EARLIEST };

    pub fn of(attr: &Attr) -> Self {
        Self { access: attr.atime, modify: attr.mtime }
    }

    fn lower(&mut self, to: Self) {
        self.access = self.access.min(to.access);
        self.modify = self.modify.min(to.modify);
    }
}

const EARLIEST: Time = Time { secs: i64::MIN, nanos: 0 };

impl HolderTimes {
    /// The times in a set of attributes.
    ///
    /// # Errors
    /// `INVAL`: a time has a second or more of nanoseconds.
    pub fn of(wire: &Wire) -> Result<Self, Nfsstat4> {
        let time = |t: Option<&nfs4::Time>| match t {
            Some(t) if t.nseconds >= 1_000_000_000 => Err(Nfsstat4::INVAL),
            t => Ok(t.map(|t| Time { secs: t.seconds, nanos: t.nseconds })),
        };
        Ok(Self { access: time(wire.time_deleg_access())?, modify: time(wire.time_deleg_modify())? })
    }

    pub fn is_none(&self) -> bool {
        self.access.is_none() && self.modify.is_none()
    }

    /// The times that the server accepts at the time `now`, for a file with these original times.
    #[must_use]
    pub fn accepted(self, original: Times, now: Time) -> Self {
        let accepted = |presented: Option<Time>, original: Time| {
            presented.map(|t| t.min(now)).filter(|t| *t >= original)
        };
        Self {
            access: accepted(self.access, original.access),
            modify: accepted(self.modify, original.modify),
        }
    }

    /// The change that a SETATTR with these times makes. `None` without a modification time.
    pub fn to_set(self) -> Option<SetAttr> {
        let mtime = Some(SetTime::To(self.modify?));
        Some(SetAttr { atime: self.access.map(SetTime::To), mtime, ..SetAttr::default() })
    }
}

impl Delegation {
    /// Makes the holder of this write delegation maintain the times, from these original ones.
    pub fn maintain_times(&self, original: Times) {
        self.original.lock().get_or_insert(original);
    }

    /// The original times, when the holder maintains the times.
    pub fn original_times(&self) -> Option<Times> {
        *self.original.lock()
    }
}

impl Leases {
    /// The times that the server accepts from the holder of a delegation now ([`HolderTimes`]).
    pub fn accepted_times(&self, original: Times, presented: HolderTimes) -> HolderTimes {
        presented.accepted(original, self.questions.now())
    }

    /// Records the attributes after a SETATTR of times by a client. A holder may set its file to
    /// earlier times, and later times are then compared with these.
    pub fn times_were_set(&self, client: &Client, fh: &Fh, attr: &Attr) {
        let held = self.inner.lock().writing.get(&key(fh)).filter(|d| d.holder() == id(client)).cloned();
        if let Some(original) = held.as_ref().map(|d| d.original.lock()).as_mut().and_then(|o| o.as_mut()) {
            original.lower(Times::of(attr));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(secs: i64) -> Time {
        Time { secs, nanos: 0 }
    }

    /// A time before the original one is ignored. A time in the future becomes the present.
    #[test]
    fn holder_times_are_checked() {
        let original = Times { access: at(100), modify: at(200) };
        let accepted = |access, modify| {
            let presented = HolderTimes { access: Some(at(access)), modify: Some(at(modify)) };
            let told = presented.accepted(original, at(1000));
            (told.access.map(|t| t.secs), told.modify.map(|t| t.secs))
        };
        assert_eq!(accepted(99, 199), (None, None));
        assert_eq!(accepted(100, 200), (Some(100), Some(200)));
        assert_eq!(accepted(5000, 900), (Some(1000), Some(900)));
        assert_eq!(HolderTimes::default().accepted(original, at(1000)), HolderTimes::default());
        let late = Times { access: at(2000), modify: at(2000) };
        let presented = HolderTimes { access: Some(at(3000)), modify: Some(at(3000)) };
        assert!(presented.accepted(late, at(1000)).is_none(), "the server's clock was set back");
        let access = HolderTimes { access: Some(at(1)), modify: None };
        assert_eq!(access.to_set(), None, "it would change the ctime");
        let mut odd = Wire::default();
        odd.rare_mut().time_deleg_modify = Some(nfs4::Time { seconds: 1, nseconds: 1_000_000_000 });
        assert_eq!(HolderTimes::of(&odd), Err(Nfsstat4::INVAL));
    }

    proptest! {
        /// An accepted time lies between the original time and the present, and later presented
        /// times are accepted as no earlier ones.
        #[test]
        fn accepted_times_are_monotonic(original: i32, now: i32, mut presented: Vec<i32>) {
            presented.sort_unstable();
            let original = Times { access: at(i64::from(original)), modify: at(i64::from(original)) };
            let now = at(i64::from(now));
            let mut last = None;
            for t in presented.into_iter().map(|t| at(i64::from(t))) {
                let told = HolderTimes { access: None, modify: Some(t) }.accepted(original, now);
                if let Some(modify) = told.modify {
                    prop_assert!((original.modify..=now).contains(&modify));
                }
                prop_assert!(told.modify >= last);
                last = told.modify;
            }
        }
    }
}
