//! XDR (RFC 4506): encoding and decoding of values.
//!
//! This module has no RPC or NFS types. [`Enc`] is a list of segments. It collects small items in a
//! head buffer and takes large payloads by reference, so a 1 MiB WRITE is not copied. [`Dec`] is a
//! cursor over one refcounted buffer. Opaque payloads are slices of that buffer, so a 1 MiB READ
//! reply is not copied either. The decoder checks every length against its maximum and the
//! remaining bytes *before* it allocates memory.

use bytes::{BufMut, Bytes, BytesMut};
use std::fmt;

/// Payloads of at least this length become a segment of their own. A copy of a shorter payload is
/// cheaper than one more iovec.
const SEGMENT_MIN_BYTES: usize = 1024;

/// Most elements for which memory is reserved before the first element of a list is read. A longer
/// list grows as its elements are read.
const RESERVE_MAX_ITEMS: usize = 64;

/// Why a message could not be decoded. The peer caused the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum XdrError {
    /// The message ends inside a value.
    #[error("message ends inside a value")]
    Short,
    /// A counted item is longer than the protocol allows.
    #[error("length {len} exceeds the maximum of {max}")]
    TooLong {
        /// Length in the message.
        len: u64,
        /// Longest length that the protocol allows.
        max: u64,
    },
    /// A boolean is neither 0 nor 1, or a union has no arm for its discriminant.
    #[error("value {0} is not valid")]
    Invalid(u32),
    /// Bytes remain after the last value.
    #[error("{0} bytes remain after the end of the message")]
    Trailing(usize),
}

/// Result of decoding.
pub type Result<T> = std::result::Result<T, XdrError>;

/// A type with an XDR representation.
pub trait Xdr: Sized {
    /// Appends the value.
    fn enc(&self, e: &mut Enc);
    /// Reads a value.
    fn dec(d: &mut Dec<'_>) -> Result<Self>;
}

/// Encoder: a head buffer and payloads by reference, in order.
#[derive(Default)]
pub struct Enc {
    done: Vec<Bytes>,
    done_bytes: usize,
    head: BytesMut,
    /// True inside [`Enc::counted`]: no new segments, so that the length can be patched.
    copy_only: bool,
}

impl fmt::Debug for Enc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enc").field("len", &self.len()).field("segments", &self.done.len()).finish()
    }
}

impl Enc {
    /// An empty message.
    pub fn new() -> Self {
        Self { done: Vec::new(), done_bytes: 0, head: BytesMut::with_capacity(256), copy_only: false }
    }

    /// Encodes one value as a whole message.
    pub fn of<T: Xdr>(value: &T) -> Self {
        let mut e = Self::new();
        value.enc(&mut e);
        e
    }

    /// Encoded bytes so far.
    pub fn len(&self) -> usize {
        self.done_bytes + self.head.len()
    }

    /// True when nothing was encoded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first unsigned integer: the status, in most results. `None` when less was encoded.
    pub fn first_u32(&self) -> Option<u32> {
        let first = self.done.first().map_or(&self.head[..], |segment| &segment[..]);
        first.first_chunk().copied().map(u32::from_be_bytes)
    }

    /// Appends an unsigned integer.
    #[inline]
    pub fn u32(&mut self, v: u32) {
        self.raw(&v.to_be_bytes());
    }

    /// Appends an unsigned hyper.
    #[inline]
    pub fn u64(&mut self, v: u64) {
        self.raw(&v.to_be_bytes());
    }

    /// Appends bytes without length or padding (fixed opaque of a multiple of 4, or raw XDR).
    #[inline]
    pub fn raw(&mut self, b: &[u8]) {
        // Unlike `put_slice`, this function is inlined into its caller, where lengths are usually
        // known.
        self.head.extend_from_slice(b);
    }

    /// Appends fixed-length opaque data with its padding.
    #[inline]
    pub fn fixed(&mut self, b: &[u8]) {
        self.raw(b);
        self.pad(b.len());
    }

    /// Appends variable-length opaque data. Long payloads are appended by reference.
    pub fn opaque(&mut self, b: &Bytes) {
        self.u32(b.len() as u32);
        if b.len() >= SEGMENT_MIN_BYTES && !self.copy_only {
            self.flush_head();
            self.done_bytes += b.len();
            self.done.push(b.clone());
        } else {
            self.head.put_slice(b);
        }
        self.pad(b.len());
    }

    /// Appends variable-length opaque data by copy.
    pub fn opaque_slice(&mut self, b: &[u8]) {
        self.u32(b.len() as u32);
        self.fixed(b);
    }

    /// Appends encoded bytes as a segment of their own.
    pub fn push_segment(&mut self, segment: Bytes) {
        self.flush_head();
        self.done_bytes += segment.len();
        self.done.push(segment);
    }

    /// Appends another message and keeps its segments.
    pub fn append(&mut self, other: Enc) {
        if other.done.is_empty() || self.copy_only {
            other.done.iter().for_each(|b| self.head.put_slice(b));
            self.head.put_slice(&other.head);
            return;
        }
        self.flush_head();
        self.done_bytes += other.done_bytes;
        self.done.extend(other.done);
        self.head = other.head;
    }

    /// Appends the output of `f` as variable-length opaque data with its length. The output is
    /// copied, so this method is for small structured items (attribute lists) and not for payloads.
    pub fn counted(&mut self, f: impl FnOnce(&mut Self)) {
        let at = self.len();
        self.u32(0);
        let outer = std::mem::replace(&mut self.copy_only, true);
        f(self);
        self.copy_only = outer;
        let len = self.len() - at - 4;
        self.patch_u32(at, len as u32);
        self.pad(len);
    }

    /// Overwrites 4 bytes at `at`, for counts and lengths that are known later. `at` is a value of
    /// [`Enc::len`] from before the placeholder. It must still be in the head buffer: no segment
    /// may have been added since.
    pub fn patch_u32(&mut self, at: usize, v: u32) {
        let at = at.checked_sub(self.done_bytes).expect("patch position is in the head buffer");
        self.head[at..at + 4].copy_from_slice(&v.to_be_bytes());
    }

    /// The message as segments for a vectored write.
    pub fn finish(mut self) -> Vec<Bytes> {
        self.flush_head();
        self.done
    }

    /// The message as one buffer. Several segments are copied into one.
    pub fn to_bytes(self) -> Bytes {
        let mut segments = self.finish();
        match segments.len() {
            0 => Bytes::new(),
            1 => segments.remove(0),
            _ => segments.concat().into(),
        }
    }

    #[inline]
    fn pad(&mut self, len: usize) {
        self.raw(&[0; 3][..len.wrapping_neg() & 3]);
    }

    fn flush_head(&mut self) {
        if !self.head.is_empty() {
            self.done_bytes += self.head.len();
            let head = self.head.split().freeze();
            self.done.push(head);
        }
    }
}

/// Decoder: a cursor over one received message.
#[derive(Debug, Clone)]
pub struct Dec<'a> {
    buf: &'a Bytes,
    pos: usize,
    end: usize,
}

impl<'a> Dec<'a> {
    /// A decoder at the beginning of `buf`.
    pub fn new(buf: &'a Bytes) -> Self {
        Self { buf, pos: 0, end: buf.len() }
    }

    /// Decodes exactly one value from the whole of `buf`. Remaining bytes are an error.
    pub fn all<T: Xdr>(buf: &'a Bytes) -> Result<T> {
        let mut d = Self::new(buf);
        let v = T::dec(&mut d)?;
        d.finish()?;
        Ok(v)
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.end - self.pos
    }

    /// Offset of the next byte.
    pub fn position(&self) -> usize {
        self.pos
    }

    /// Fails if bytes remain.
    pub fn finish(&self) -> Result<()> {
        match self.remaining() {
            0 => Ok(()),
            n => Err(XdrError::Trailing(n)),
        }
    }

    /// The unread bytes, as a slice of the message.
    pub fn rest(&mut self) -> Bytes {
        let b = self.buf.slice(self.pos..self.end);
        self.pos = self.end;
        b
    }

    /// Reads an unsigned integer.
    pub fn u32(&mut self) -> Result<u32> {
        let b = self.take(4)?;
        Ok(u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// Reads an unsigned hyper.
    pub fn u64(&mut self) -> Result<u64> {
        Ok((u64::from(self.u32()?) << 32) | u64::from(self.u32()?))
    }

    /// Reads a boolean. Values other than 0 and 1 are an error.
    pub fn bool(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            v => Err(XdrError::Invalid(v)),
        }
    }

    /// Reads fixed-length opaque data.
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        self.padding(N)?;
        Ok(out)
    }

    /// Reads variable-length opaque data of at most `max` bytes, as a slice of the message.
    pub fn opaque(&mut self, max: usize) -> Result<Bytes> {
        let len = self.len(max)?;
        let start = self.pos;
        self.take(len)?;
        let out = self.buf.slice(start..start + len);
        self.padding(len)?;
        Ok(out)
    }

    /// Reads variable-length opaque data of at most `max` bytes that contains XDR. The returned
    /// decoder reads the data in place and ends at its end.
    pub fn nested(&mut self, max: usize) -> Result<Dec<'a>> {
        let len = self.len(max)?;
        let inner = Dec { buf: self.buf, pos: self.pos, end: self.pos + len };
        self.take(len)?;
        self.padding(len)?;
        Ok(inner)
    }

    /// Reads an element count of at most `max` elements that take at least `item_min_bytes` each.
    pub fn count(&mut self, max: usize, item_min_bytes: usize) -> Result<usize> {
        let n = self.u32()? as usize;
        if n > max {
            return Err(XdrError::TooLong { len: n as u64, max: max as u64 });
        }
        if n.saturating_mul(item_min_bytes) > self.remaining() {
            return Err(XdrError::Short);
        }
        Ok(n)
    }

    fn len(&mut self, max: usize) -> Result<usize> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(XdrError::TooLong { len: len as u64, max: max as u64 });
        }
        if len > self.remaining() {
            return Err(XdrError::Short);
        }
        Ok(len)
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.remaining() {
            return Err(XdrError::Short);
        }
        let b = &self.buf[self.pos..self.pos + n];
        self.pos += n;
        Ok(b)
    }

    /// Skips padding without a check. Padding should be zero (RFC 4506 section 3), but Linux 6.1's
    /// server leaves old bytes after the values of extended attributes.
    fn padding(&mut self, len: usize) -> Result<()> {
        self.take(len.wrapping_neg() & 3).map(|_| ())
    }
}

impl Xdr for u32 {
    fn enc(&self, e: &mut Enc) {
        e.u32(*self);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        d.u32()
    }
}

impl Xdr for i32 {
    fn enc(&self, e: &mut Enc) {
        e.u32(*self as u32);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        Ok(d.u32()? as i32)
    }
}

impl Xdr for u64 {
    fn enc(&self, e: &mut Enc) {
        e.u64(*self);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        d.u64()
    }
}

impl Xdr for i64 {
    fn enc(&self, e: &mut Enc) {
        e.u64(*self as u64);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        Ok(d.u64()? as i64)
    }
}

impl Xdr for bool {
    fn enc(&self, e: &mut Enc) {
        e.u32(u32::from(*self));
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        d.bool()
    }
}

impl Xdr for () {
    fn enc(&self, _: &mut Enc) {}
    fn dec(_: &mut Dec<'_>) -> Result<Self> {
        Ok(())
    }
}

impl<T: Xdr> Xdr for Box<T> {
    fn enc(&self, e: &mut Enc) {
        (**self).enc(e);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        T::dec(d).map(Box::new)
    }
}

/// Fixed-length opaque data (`opaque x[N]`).
impl<const N: usize> Xdr for [u8; N] {
    fn enc(&self, e: &mut Enc) {
        e.fixed(self);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        d.fixed()
    }
}

/// Optional data (`type *x`).
impl<T: Xdr> Xdr for Option<T> {
    fn enc(&self, e: &mut Enc) {
        e.u32(u32::from(self.is_some()));
        if let Some(v) = self {
            v.enc(e);
        }
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        Ok(if d.bool()? { Some(T::dec(d)?) } else { None })
    }
}

/// Variable-length opaque data or string of at most `MAX` bytes (`opaque x<MAX>`). XDR strings are
/// bytes too, because file names have no encoding.
#[derive(Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Opaque<const MAX: usize>(pub Bytes);

impl<const MAX: usize> Opaque<MAX> {
    /// Makes a copy of `b`.
    pub fn copy(b: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(b))
    }
}

impl<const MAX: usize> fmt::Debug for Opaque<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0..=128 => write!(f, "\"{}\"", self.0.escape_ascii()),
            n => write!(f, "<{n} bytes>"),
        }
    }
}

impl<const MAX: usize> std::ops::Deref for Opaque<MAX> {
    type Target = Bytes;
    fn deref(&self) -> &Bytes {
        &self.0
    }
}

impl<const MAX: usize> From<Bytes> for Opaque<MAX> {
    fn from(b: Bytes) -> Self {
        Self(b)
    }
}

impl<const MAX: usize> From<&[u8]> for Opaque<MAX> {
    fn from(b: &[u8]) -> Self {
        Self::copy(b)
    }
}

impl<const MAX: usize> Xdr for Opaque<MAX> {
    fn enc(&self, e: &mut Enc) {
        debug_assert!(self.0.len() <= MAX, "own value exceeds its protocol maximum");
        e.opaque(&self.0);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        d.opaque(MAX).map(Self)
    }
}

/// Variable-length array of at most `MAX` elements (`T x<MAX>`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct List<T, const MAX: usize>(pub Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> std::ops::Deref for List<T, MAX> {
    type Target = Vec<T>;
    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T, const MAX: usize> From<Vec<T>> for List<T, MAX> {
    fn from(v: Vec<T>) -> Self {
        Self(v)
    }
}

impl<T: Xdr, const MAX: usize> Xdr for List<T, MAX> {
    fn enc(&self, e: &mut Enc) {
        debug_assert!(self.0.len() <= MAX, "own list exceeds its protocol maximum");
        e.u32(self.0.len() as u32);
        self.0.iter().for_each(|v| v.enc(e));
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        let n = d.count(MAX, 4)?;
        let mut out = Vec::with_capacity(n.min(RESERVE_MAX_ITEMS));
        for _ in 0..n {
            out.push(T::dec(d)?);
        }
        Ok(Self(out))
    }
}

/// Linked list (`struct { T v; entry *next; }`), used by READDIR and MOUNT.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain<T, const MAX: usize>(pub Vec<T>);

impl<T, const MAX: usize> Default for Chain<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> std::ops::Deref for Chain<T, MAX> {
    type Target = Vec<T>;
    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Xdr, const MAX: usize> Xdr for Chain<T, MAX> {
    fn enc(&self, e: &mut Enc) {
        for v in &self.0 {
            e.u32(1);
            v.enc(e);
        }
        e.u32(0);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        let mut out = Vec::new();
        while d.bool()? {
            if out.len() == MAX {
                return Err(XdrError::TooLong { len: MAX as u64 + 1, max: MAX as u64 });
            }
            out.push(T::dec(d)?);
        }
        Ok(Self(out))
    }
}

/// Declares a struct whose fields follow each other on the wire.
///
/// ```
/// hither_proto::xdr_struct! {
///     /// A point.
///     #[derive(Copy)]
///     pub struct Point { /// Horizontal.
///         pub x: u32, /// Vertical.
///         pub y: u32 }
/// }
/// ```
#[macro_export]
macro_rules! xdr_struct {
    ($($(#[$m:meta])* pub struct $name:ident { $($(#[$fm:meta])* pub $f:ident : $t:ty),* $(,)? })*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$fm])* pub $f: $t),* }
        impl $crate::xdr::Xdr for $name {
            fn enc(&self, e: &mut $crate::xdr::Enc) { $($crate::xdr::Xdr::enc(&self.$f, e);)* let _ = e; }
            fn dec(d: &mut $crate::xdr::Dec<'_>) -> $crate::xdr::Result<Self> {
                let _ = &d;
                Ok(Self { $($f: <$t as $crate::xdr::Xdr>::dec(d)?),* })
            }
        }
        $crate::xdr_sample!(struct $name { $($f : $t),* });
    )*};
}

/// Declares an enumeration as a named integer, so that unknown values are kept.
///
/// ```
/// hither_proto::xdr_enum! {
///     /// A colour.
///     pub enum Colour { /// The first colour.
///         RED = 1, /// The second colour.
///         GREEN = 2 }
/// }
/// assert_eq!(format!("{:?} {:?}", Colour::RED, Colour(7)), "RED Colour(7)");
/// ```
#[macro_export]
macro_rules! xdr_enum {
    ($($(#[$m:meta])* pub enum $name:ident { $($(#[$vm:meta])* $v:ident = $n:expr),* $(,)? })*) => {$(
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub u32);
        #[allow(missing_docs)]
        impl $name {
            $($(#[$vm])* pub const $v: Self = Self($n);)*
            /// All named values.
            pub const VALUES: &'static [Self] = &[$(Self::$v),*];
            /// The value's name in the protocol, if it has one.
            pub fn name(self) -> Option<&'static str> {
                #[allow(unreachable_patterns)]
                match self { $(Self::$v => Some(stringify!($v)),)* _ => None }
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(n) => f.write_str(n),
                    None => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }
        impl $crate::xdr::Xdr for $name {
            fn enc(&self, e: &mut $crate::xdr::Enc) { e.u32(self.0) }
            fn dec(d: &mut $crate::xdr::Dec<'_>) -> $crate::xdr::Result<Self> { d.u32().map(Self) }
        }
        $crate::xdr_sample!(enum $name);
    )*};
}

/// Declares a discriminated union. Each arm has its discriminant as a `u32` constant and at most
/// one value. `else` names the default arm, which contains only its discriminant. Without a default
/// arm an unlisted discriminant is an error.
///
/// ```
/// use hither_proto::xdr::{Dec, Enc};
/// hither_proto::xdr_union! {
///     /// A shape.
///     pub enum Shape else Other { /// Its radius.
///         Circle(u32) = 1, /// No value.
///         Empty = 2 }
/// }
/// let wire = Enc::of(&Shape::Circle(5)).to_bytes();
/// assert_eq!(&wire[..], [0, 0, 0, 1, 0, 0, 0, 5]);
/// assert_eq!(Dec::all::<Shape>(&wire.slice(..4)).ok(), None);
/// assert_eq!(Shape::Other(9).discriminant(), 9);
/// ```
#[macro_export]
macro_rules! xdr_union {
    ($($(#[$m:meta])* pub enum $name:ident $(else $other:ident)? {
        $($(#[$vm:meta])* $v:ident $(($t:ty))? = $n:expr),* $(,)?
    })*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $($(#[$vm])* $v $(($t))?,)*
            $(/// Any other discriminant. No value follows.
            $other(u32),)?
        }
        impl $name {
            /// The number of this arm on the wire.
            pub fn discriminant(&self) -> u32 {
                match self {
                    $(Self::$v $(($crate::xdr_union!(@ignore $t)))? => $n,)*
                    $(Self::$other(n) => *n,)?
                }
            }
        }
        impl $crate::xdr::Xdr for $name {
            fn enc(&self, e: &mut $crate::xdr::Enc) {
                e.u32(self.discriminant());
                match self {
                    $(Self::$v $(($crate::xdr_union!(@bind v $t)))? => {
                        $($crate::xdr_union!(@enc v e $t);)?
                    })*
                    $(Self::$other(_) => {})?
                }
            }
            fn dec(d: &mut $crate::xdr::Dec<'_>) -> $crate::xdr::Result<Self> {
                let n = d.u32()?;
                $(if n == ($n) { return Ok(Self::$v $((<$t as $crate::xdr::Xdr>::dec(d)?))?); })*
                $(return Ok(Self::$other(n));)?
                #[allow(unreachable_code)]
                Err($crate::xdr::XdrError::Invalid(n))
            }
        }
        $crate::xdr_sample!(union $name { $($v [$($t)?] $n),* } else { $($other)? });
    )*};
    (@ignore $t:ty) => { _ };
    (@bind $v:ident $t:ty) => { $v };
    (@enc $v:ident $e:ident $t:ty) => { $crate::xdr::Xdr::enc($v, $e) };
}

#[cfg(test)]
mod tests;
