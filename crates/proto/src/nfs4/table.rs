//! The macro that turns a table of operations into types. [`super::compound`] and
//! [`super::callback`] contain the tables.
//!
//! A row has the number, the protocol's name, the variant and the method. It also has the types of
//! the arguments (none is `()`), of the result, and of the failure if it is not just a status. The
//! macro declares the number type with names, and the enums of calls and results with their
//! encoding. It also declares a typed method of the reply's cursor for each operation.

use super::{Fail, Nfsstat4};

/// An operation as a type, for [`super::Results::outcome`].
pub trait Operation {
    /// The data of a success.
    type Ok;
    /// The data of a failure.
    type Fail: Fail;
    /// The enum of results that contains this result.
    type Res: AnyResult;
    /// Number of the operation.
    const NUMBER: <Self::Res as AnyResult>::Number;
    /// Takes the result if it is of this operation.
    fn take(res: Self::Res) -> Option<Result<Self::Ok, Self::Fail>>;
}

/// A result of some operation.
pub trait AnyResult: Sized {
    /// The type of the operation numbers.
    type Number: Copy + PartialEq + std::fmt::Debug;
    /// The number in the result of an unknown operation.
    const ILLEGAL: Self::Number;
    /// The operation's number on the wire.
    fn number(&self) -> Self::Number;
    /// Status of the operation.
    fn status(&self) -> Nfsstat4;
}

macro_rules! op_table {
    (
        $(#[$num_doc:meta])* number $num:ident;
        $(#[$call_doc:meta])* call $call:ident;
        $(#[$res_doc:meta])* result $res:ident;
        $(#[$mod_doc:meta])* markers $markers:ident;
        illegal $illegal:literal;
        $($(#[$m:meta])* $n:literal $NAME:ident $v:ident $f:ident($($arg:ty)?) -> $ok:ty $(, $fail:ty)?;)*
    ) => {
        $crate::xdr_enum! {
            $(#[$num_doc])*
            pub enum $num { $($(#[$m])* $NAME = $n,)* ILLEGAL = $illegal }
        }

        $(#[$call_doc])*
        #[allow(clippy::large_enum_variant, reason = "compounds are short; a box each would cost more")]
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $call {
            $($(#[$m])* $v $(($arg))?,)*
            /// An unknown operation number. The arguments cannot be decoded, so it is the last
            /// operation.
            Illegal(u32),
        }

        $(#[$res_doc])*
        #[allow(clippy::large_enum_variant, reason = "compounds are short; a box each would cost more")]
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $res {
            $($(#[$m])* $v(Result<$ok, op_table!(@fail $($fail)?)>),)*
            /// The result of an unknown operation number.
            Illegal($crate::nfs4::Nfsstat4),
        }

        impl $call {
            /// The operation's number.
            pub fn number(&self) -> $num {
                match self {
                    $(Self::$v $((op_table!(@ignore $arg)))? => $num::$NAME,)*
                    Self::Illegal(n) => $num(*n),
                }
            }
        }

        impl $crate::xdr::Xdr for $call {
            fn enc(&self, e: &mut $crate::xdr::Enc) {
                $crate::xdr::Xdr::enc(&self.number(), e);
                match self {
                    $(Self::$v $((op_table!(@bind a $arg)))? => { $(op_table!(@enc a e $arg);)? })*
                    Self::Illegal(_) => {}
                }
            }
            fn dec(d: &mut $crate::xdr::Dec<'_>) -> $crate::xdr::Result<Self> {
                Ok(match d.u32()? {
                    $($n => Self::$v $((<$arg as $crate::xdr::Xdr>::dec(d)?))?,)*
                    n => Self::Illegal(n),
                })
            }
        }

        impl $res {
            /// The operation's number.
            pub fn number(&self) -> $num {
                match self { $(Self::$v(_) => $num::$NAME,)* Self::Illegal(_) => $num::ILLEGAL }
            }

            /// Status of the operation.
            pub fn status(&self) -> $crate::nfs4::Nfsstat4 {
                match self {
                    $(Self::$v(r) => $crate::nfs4::status::status_of(r),)*
                    Self::Illegal(s) => *s,
                }
            }

            /// The result of an operation that fails with only a status, which is not OK. Data that
            /// belongs to the status is absent: a denied LOCK, for example, needs its own arm
            /// instead.
            pub fn failed(op: $num, status: $crate::nfs4::Nfsstat4) -> Self {
                match op {
                    $($num::$NAME => Self::$v(Err(status.into())),)*
                    _ => Self::Illegal(status),
                }
            }
        }

        impl $crate::xdr::Xdr for $res {
            fn enc(&self, e: &mut $crate::xdr::Enc) {
                $crate::xdr::Xdr::enc(&self.number(), e);
                match self {
                    $(Self::$v(r) => $crate::xdr::Xdr::enc(r, e),)*
                    Self::Illegal(s) => $crate::xdr::Xdr::enc(s, e),
                }
            }
            fn dec(d: &mut $crate::xdr::Dec<'_>) -> $crate::xdr::Result<Self> {
                Ok(match d.u32()? {
                    $($n => Self::$v($crate::xdr::Xdr::dec(d)?),)*
                    $illegal => Self::Illegal($crate::xdr::Xdr::dec(d)?),
                    n => return Err($crate::xdr::XdrError::Invalid(n)),
                })
            }
        }

        impl $crate::nfs4::table::AnyResult for $res {
            type Number = $num;
            const ILLEGAL: $num = $num::ILLEGAL;
            fn number(&self) -> $num { Self::number(self) }
            fn status(&self) -> $crate::nfs4::Nfsstat4 { Self::status(self) }
        }

        $(#[$mod_doc])*
        pub mod $markers {
            $($(#[$m])* #[derive(Debug, Clone, Copy)] pub struct $v;)*
        }

        $(impl $crate::nfs4::table::Operation for $markers::$v {
            type Ok = $ok;
            type Fail = op_table!(@fail $($fail)?);
            type Res = $res;
            const NUMBER: $num = $num::$NAME;
            fn take(res: $res) -> Option<Result<Self::Ok, Self::Fail>> {
                match res { $res::$v(r) => Some(r), _ => None }
            }
        })*

        impl $crate::nfs4::Results<$res> {
            $($(#[$m])* pub fn $f(&mut self) -> Result<$ok, $crate::nfs4::OpError<$num>> {
                self.expect::<$markers::$v>()
            })*
        }

        #[cfg(any(test, feature = "sample"))]
        impl $crate::sample::Sample for $call {
            fn sample(s: &mut $crate::sample::Source<'_>) -> Self {
                match $num::VALUES[s.below($num::VALUES.len())].0 {
                    $($n => Self::$v $((<$arg as $crate::sample::Sample>::sample(s)))?,)*
                    n => Self::Illegal(n),
                }
            }
        }

        #[cfg(any(test, feature = "sample"))]
        impl $crate::sample::Sample for $res {
            fn sample(s: &mut $crate::sample::Source<'_>) -> Self {
                match $num::VALUES[s.below($num::VALUES.len())].0 {
                    $($n => Self::$v($crate::sample::Sample::sample(s)),)*
                    _ => Self::Illegal($crate::nfs4::Nfsstat4::OP_ILLEGAL),
                }
            }
        }

        /// Round-trip tests, one for each operation.
        #[cfg(test)]
        #[allow(non_snake_case)]
        mod each {
            use super::*;
            $(#[test]
            fn $NAME() {
                $(crate::sample::round_trip::<$arg>();)?
                crate::sample::round_trip::<Result<$ok, op_table!(@fail $($fail)?)>>();
                assert_eq!($num::$NAME.name(), Some(stringify!($NAME)));
            })*
        }
    };
    (@fail) => { $crate::nfs4::Nfsstat4 };
    (@fail $fail:ty) => { $fail };
    (@ignore $t:ty) => { _ };
    (@bind $a:ident $t:ty) => { $a };
    (@enc $a:ident $e:ident $t:ty) => { $crate::xdr::Xdr::enc($a, $e) };
}
pub(super) use op_table;
