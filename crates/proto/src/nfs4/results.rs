//! Reading a compound's results one by one, each as the type that the caller expects.
//!
//! It knows nothing of particular operations: the tables add a method for each. A client writes
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
//! in the order of its call. The number of each result is checked, so a server that answers
//! something else is found out instead of being believed.

use super::table::{AnyResult, Operation};
use super::{Fail, NfsOpnum4, Nfsstat4};

/// The difference between a result and the operation that the caller asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpError<N = NfsOpnum4> {
    /// The operation failed, or the peer stopped before it.
    #[error("{op:?} (operation {index}): {status}")]
    Status {
        /// Its place in the compound, from 0.
        index: usize,
        /// The operation.
        op: N,
        /// How it ended.
        status: Nfsstat4,
    },
    /// The peer misbehaved: it answers another operation than was asked.
    #[error("the peer answers {found:?} to {expected:?} (operation {index})")]
    Mismatch {
        /// Its place in the compound, from 0.
        index: usize,
        /// The requested operation.
        expected: N,
        /// The answered operation.
        found: N,
    },
    /// The peer misbehaved: it says that all is well but has left out results.
    #[error("the peer's reply ends before {expected:?} (operation {index})")]
    Missing {
        /// Its place in the compound, from 0.
        index: usize,
        /// The requested operation.
        expected: N,
    },
    /// The peer misbehaved: it has more results than there were operations.
    #[error("the peer's reply has {count} results too many")]
    Extra {
        /// How many.
        count: usize,
    },
}

impl<N> OpError<N> {
    /// The status, when the server gave one; none when it misbehaved.
    pub fn status(&self) -> Option<Nfsstat4> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::Mismatch { .. } | Self::Missing { .. } | Self::Extra { .. } => None,
        }
    }
}

/// The result of an operation, unless the peer misbehaved.
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
    /// Over the results of a compound that ended with `status`.
    pub fn new(status: Nfsstat4, results: Vec<R>) -> Self {
        Self { status, index: 0, rest: results.into_iter() }
    }

    /// The compound's status.
    pub fn status(&self) -> Nfsstat4 {
        self.status
    }

    /// How many results were taken.
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many results remain.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next result, untaken.
    pub fn peek(&self) -> Option<&R> {
        self.rest.as_slice().first()
    }

    /// The next result's number, untaken.
    pub fn peek_number(&self) -> Option<R::Number> {
        self.peek().map(AnyResult::number)
    }

    /// The next result, of any operation.
    pub fn take_any(&mut self) -> Option<R> {
        let r = self.rest.next();
        self.index += usize::from(r.is_some());
        r
    }

    /// The next result, which must be of operation `O`; the data of a failure beside the status
    /// (the lock in conflict) is kept.
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
            // The server does not know the operation: the number is ILLEGAL, not ours.
            None if found == R::ILLEGAL && status != Nfsstat4::OK => {
                Err(OpError::Status { index, op: expected, status })
            }
            None => Err(OpError::Mismatch { index, expected, found }),
        }
    }

    /// The next result, which must be a success of operation `O`.
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
