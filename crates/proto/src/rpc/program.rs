//! Programs and their procedures. One declaration gives numbers, typed calls, and enums of all
//! calls and all replies.
//!
//! This module has no programs. A client calls through [`Procedure`], which connects the arguments
//! to the results. A server and a traffic analyser use the enums.

use crate::xdr::Xdr;

/// The arguments of one procedure. Their type determines the procedure and its results.
pub trait Procedure: Xdr {
    /// Program number.
    const PROG: u32;
    /// Version of the program.
    const VERS: u32;
    /// Procedure number.
    const PROC: u32;
    /// Name of the procedure in the RFC, for counters and traces.
    const NAME: &'static str;
    /// Type of the results.
    type Reply: Xdr;
}

/// Declares the procedures of one version of a program: their numbers, their arguments as
/// [`Procedure`]s, and one enum each of all calls and all replies.
#[macro_export]
macro_rules! rpc_program {
    ($(#[$m:meta])* program $prog:literal version $vers:literal, $proc:ident, $call:ident, $reply:ident {
        $($(#[$pm:meta])* $name:ident = $n:literal, $v:ident($args:ty) -> $res:ty;)*
    }) => {
        $crate::xdr_enum! {
            $(#[$m])*
            ///
            /// Procedure numbers.
            pub enum $proc { $($(#[$pm])* $name = $n),* }
        }
        $(#[$m])*
        ///
        /// The arguments of any call.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $call { $($(#[$pm])* $v($args)),* }
        $(#[$m])*
        ///
        /// The results of any call.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $reply { $($(#[$pm])* $v($res)),* }

        $(impl $crate::rpc::Procedure for $args {
            const PROG: u32 = $prog;
            const VERS: u32 = $vers;
            const PROC: u32 = $n;
            const NAME: &'static str = stringify!($name);
            type Reply = $res;
        })*
        $crate::rpc_program!(@codec $call, $proc, { $($name = $v),* });
        $crate::rpc_program!(@codec $reply, $proc, { $($name = $v),* });
    };
    (@codec $any:ident, $proc:ident, { $($name:ident = $v:ident),* }) => {
        impl $any {
            /// The procedure of the call or reply.
            pub fn procedure(&self) -> $proc {
                match self { $(Self::$v(_) => $proc::$name),* }
            }
            /// Reads the arguments of `procedure` from the whole of `body`. `None` for an unknown
            /// procedure.
            ///
            /// # Errors
            /// The bytes are malformed, or bytes remain.
            pub fn decode(procedure: $proc, body: &bytes::Bytes) -> $crate::xdr::Result<Option<Self>> {
                Ok(Some(match procedure {
                    $($proc::$name => Self::$v($crate::xdr::Dec::all(body)?),)*
                    _ => return Ok(None),
                }))
            }
            /// Appends the value without the procedure number, which is in the RPC header.
            pub fn encode(&self, e: &mut $crate::xdr::Enc) {
                match self { $(Self::$v(v) => $crate::xdr::Xdr::enc(v, e)),* }
            }
        }
        $crate::xdr_sample!(calls $any { $($v),* });
    };
}
