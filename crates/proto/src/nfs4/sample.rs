//! Sample values of the NFSv4 types that no macro of the XDR module declares. See
//! [`crate::sample`].

use super::{Attrs, Bitmap4, CbCompound, CbOp, Compound, Fail, Nfsstat4, Op};
use crate::sample::{Sample, Source};
use bytes::Bytes;

/// A failure type with sample values.
pub trait FailSample: Fail {
    /// Makes a failure for `status`, which is not [`Nfsstat4::OK`].
    fn sample(status: Nfsstat4, s: &mut Source<'_>) -> Self;
}

impl FailSample for Nfsstat4 {
    fn sample(status: Nfsstat4, _: &mut Source<'_>) -> Self {
        status
    }
}

impl<T: Sample, F: FailSample> Sample for Result<T, F> {
    fn sample(s: &mut Source<'_>) -> Self {
        if s.byte() & 1 == 0 {
            return Ok(T::sample(s));
        }
        let status = match <Nfsstat4 as Sample>::sample(s) {
            Nfsstat4::OK => Nfsstat4::SERVERFAULT,
            other => other,
        };
        Err(F::sample(status, s))
    }
}

impl Sample for Compound {
    fn sample(s: &mut Source<'_>) -> Self {
        let (tag, minorversion) = (Sample::sample(s), s.below(3) as u32);
        Self { tag, minorversion, ops: ops(s, |op| matches!(op, Op::Illegal(_))) }
    }
}

impl Sample for CbCompound {
    fn sample(s: &mut Source<'_>) -> Self {
        let (tag, minorversion, callback_ident) = (Sample::sample(s), s.below(3) as u32, s.int() as u32);
        Self { tag, minorversion, callback_ident, ops: ops(s, |op| matches!(op, CbOp::Illegal(_))) }
    }
}

/// Sample operations. An operation that ends decoding is the last.
fn ops<T: Sample>(s: &mut Source<'_>, last: impl Fn(&T) -> bool) -> Vec<T> {
    let mut ops = s.list::<T>(8);
    if let Some(i) = ops.iter().position(last) {
        ops.truncate(i + 1);
    }
    ops
}

impl Sample for Bitmap4 {
    fn sample(s: &mut Source<'_>) -> Self {
        let n = s.below(6);
        (0..n).map(|_| s.below(Bitmap4::BITS as usize) as u32).collect()
    }
}

impl Sample for Attrs {
    fn sample(s: &mut Source<'_>) -> Self {
        let mut attrs = Attrs::default();
        for _ in 0..s.below(8) {
            let n = s.below(super::attr::COUNT as usize) as u32;
            attrs.sample_attr(n, s);
        }
        if s.byte() > 230 {
            let first = super::attr::COUNT;
            let mask = Bitmap4::of(&[first + s.below(40) as u32]);
            let mut raw = s.bytes(64);
            raw.truncate(raw.len() & !3);
            attrs.unknown = Some(super::UnknownAttrs { mask, vals: Bytes::from(raw.to_vec()) });
        }
        attrs
    }
}
