//! Reads the results of a compound one by one, each with the type that the caller expects.
//!
//! The tables of operations add a method for each operation. A client writes
//!
//! ```
//! # use hither_proto::nfs4::*;
//! # fn f(reply: CompoundReply) -> Result<(), OpError> {
//! let mut r = reply.results();
//! r.sequence()?;
//! r.putfh()?;
//! let opened = r.open()?;
//! let (fh, attrs) = (r.getfh()?, r.getattr()?);
//! # Ok(()) }
//! ```
//!
//! in the order of its call. The cursor checks the number of each result, and so detects a reply
//! with other operations.

use super::table::{AnyResult, Operation};
use super::{Fail, NfsOpnum4, Nfsstat4};

/// Why a result does not match the requested operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpError<N = NfsOpnum4> {
    /// The operation failed, or the peer ended the compound before it.
    #[error("{op:?} (operation {index}): {status}")]
    Status {
        /// Index of the operation in the compound, from 0.
        index: usize,
        /// The operation.
        op: N,
        /// Status of the operation or the compound.
        status: Nfsstat4,
    },
    /// The peer misbehaved: the result belongs to another operation.
    #[error("the peer answers {found:?} to {expected:?} (operation {index})")]
    Mismatch {
        /// Index of the operation in the compound, from 0.
        index: usize,
        /// The requested operation.
        expected: N,
        /// The operation of the result.
        found: N,
    },
    /// The peer misbehaved: the status is OK, but results are missing.
    #[error("the peer's reply ends before {expected:?} (operation {index})")]
    Missing {
        /// Index of the operation in the compound, from 0.
        index: usize,
        /// The requested operation.
        expected: N,
    },
    /// The peer misbehaved: there are more results than operations.
    #[error("the peer's reply has {count} results too many")]
    Extra {
        /// Number of extra results.
        count: usize,
    },
}

impl<N> OpError<N> {
    /// The status from the server, or `None` when the server misbehaved.
    pub fn status(&self) -> Option<Nfsstat4> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::Mismatch { .. } | Self::Missing { .. } | Self::Extra { .. } => None,
        }
    }
}

/// The result of an operation, or an error when the peer misbehaved.
pub type Outcome<O, R> =
    Result<Result<<O as Operation>::Ok, <O as Operation>::Fail>, OpError<<R as AnyResult>::Number>>;

/// A cursor over results.
#[derive(Debug)]
pub struct Results<R> {
    status: Nfsstat4,
    index: usize,
    rest: std::vec::IntoIter<R>,
}

impl<R: AnyResult> Results<R> {
    /// A cursor over the results of a compound that ended with `status`.
    pub fn new(status: Nfsstat4, results: Vec<R>) -> Self {
        Self { status, index: 0, rest: results.into_iter() }
    }

    /// The compound's status.
    pub fn status(&self) -> Nfsstat4 {
        self.status
    }

    /// Number of taken results.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of remaining results.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next result. It stays in the cursor.
    pub fn peek(&self) -> Option<&R> {
        self.rest.as_slice().first()
    }

    /// The number of the next result. The result stays in the cursor.
    pub fn peek_number(&self) -> Option<R::Number> {
        self.peek().map(AnyResult::number)
    }

    /// Takes the next result, of any operation.
    pub fn take_any(&mut self) -> Option<R> {
        let r = self.rest.next();
        self.index += usize::from(r.is_some());
        r
    }

    /// Takes the next result, which must be of operation `O`. The result keeps the data of a
    /// failure besides the status, for example a conflicting lock.
    pub fn outcome<O: Operation<Res = R>>(&mut self) -> Outcome<O, R> {
        let (index, expected) = (self.index, O::NUMBER);
        let Some(res) = self.take_any() else {
            return Err(match self.status {
                Nfsstat4::OK => OpError::Missing { index, expected },
                status => OpError::Status { index, op: expected, status },
            });
        };
        let (found, status) = (res.number(), res.status());
        match O::take(res) {
            Some(outcome) => Ok(outcome),
            // The server does not know the operation and returns the number ILLEGAL.
            None if found == R::ILLEGAL && status != Nfsstat4::OK => {
                Err(OpError::Status { index, op: expected, status })
            }
            None => Err(OpError::Mismatch { index, expected, found }),
        }
    }

    /// Takes the next result, which must be a success of operation `O`.
    pub fn expect<O: Operation<Res = R>>(&mut self) -> Result<O::Ok, OpError<R::Number>> {
        let index = self.index;
        self.outcome::<O>()?.map_err(|f| OpError::Status { index, op: O::NUMBER, status: f.status() })
    }

    /// Fails when results remain.
    pub fn finish(self) -> Result<(), OpError<R::Number>> {
        match self.remaining() {
            0 => Ok(()),
            count => Err(OpError::Extra { count }),
        }
    }
}
