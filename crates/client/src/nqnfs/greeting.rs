//! HELLO, the first call on each connection (docs/NQNFS.md, "Extensions").
//!
//! HELLO is sent while the connection is made, before any other call. A server that sees another
//! call first treats the connection as a separate client and sends no long filehandles. With a
//! server that does not know the procedure, the client uses the protocol of the paper.

use super::held::LeasedWrites;
use hither_proto::nqnfs::{Asking, HelloArgs, HelloOk, NqProc, PROGRAM, Res, VERSION};
use hither_proto::record;
use hither_proto::rpc::{AcceptStat, AcceptedReply, Message, OpaqueAuth, ReplyBody, call};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::{BoxFuture, Connect, Link};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longest wait for the answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest filehandle that the client accepts, in bytes on the wire.
const FH_MAX_BYTES: u32 = 64;
/// Largest READ and WRITE of the client.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// Longest answer. [`FRAGMENTS_MAX`] is the largest number of its fragments.
const ANSWER_MAX_BYTES: usize = 4096;
const FRAGMENTS_MAX: usize = 16;

/// Makes connections that begin with HELLO.
pub(super) struct Greeting {
    inner: Arc<dyn Connect>,
    /// Number of this instance of the client.
    client: u64,
    said: Mutex<Option<HelloOk>>,
    /// WRITEs that must end when the server restarts.
    pub held: LeasedWrites,
}

impl Greeting {
    pub fn new(inner: Arc<dyn Connect>, client: u64) -> Arc<Self> {
        Arc::new(Self { inner, client, said: Mutex::default(), held: LeasedWrites::default() })
    }

    /// The server's last answer to HELLO; `None` when the server does not know HELLO.
    pub fn said(&self) -> Option<HelloOk> {
        *self.said.lock()
    }

    async fn greet(&self, link: &mut Link) -> io::Result<Option<HelloOk>> {
        let hello = HelloArgs { client: self.client, fh_max: FH_MAX_BYTES, transfer_max: TRANSFER_MAX_BYTES };
        let xid = self.client as u32;
        let args = Enc::of(&Asking::nothing(hello));
        let message = call(xid, PROGRAM, VERSION, NqProc::HELLO.0, &OpaqueAuth::none(), args);
        link.writer.write_all(&record::frame(message).concat()).await?;
        link.writer.flush().await?;
        let answer = one_record(link).await?;
        match Message::decode(&answer) {
            Ok(Message::Reply(header, body)) if header.xid == xid => match header.body {
                ReplyBody::Accepted(AcceptedReply { stat: AcceptStat::Success, .. }) => {
                    match Dec::all::<Res<HelloOk>>(&body) {
                        Ok(Res::Ok(_, ok)) => Ok(Some(ok)),
                        Ok(Res::Err(status)) => {
                            Err(nonsense(format!("the server refuses HELLO: {status:?}")))
                        }
                        Err(_) => Err(nonsense("the answer to HELLO cannot be decoded")),
                    }
                }
                // Other failures also affect the calls that follow.
                _ => Ok(None),
            },
            _ => Err(nonsense("the server's reply is no answer to HELLO")),
        }
    }
}

impl Connect for Greeting {
    fn connect(&self, previous: Option<SocketAddr>) -> BoxFuture<'_, io::Result<Link>> {
        Box::pin(async move {
            let mut link = self.inner.connect(previous).await?;
            let said = match tokio::time::timeout(PATIENCE, self.greet(&mut link)).await {
                Ok(said) => said,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            let said = said?;
            let before = self.said();
            if before.is_some_and(|before| said.is_none_or(|said| said.server != before.server)) {
                self.held.begun_anew().await;
            }
            *self.said.lock() = said;
            Ok(link)
        })
    }

    fn server(&self) -> String {
        self.inner.server()
    }
}

fn nonsense(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Reads one record and not a byte more. Later bytes belong to the connection.
async fn one_record(link: &mut Link) -> io::Result<bytes::Bytes> {
    let mut whole = Vec::new();
    for _ in 0..FRAGMENTS_MAX {
        let mark = link.reader.read_u32().await?;
        let (start, len) = (whole.len(), (mark & (u32::MAX >> 1)) as usize);
        if start + len > ANSWER_MAX_BYTES {
            break;
        }
        whole.resize(start + len, 0);
        link.reader.read_exact(&mut whole[start..]).await?;
        if mark >> 31 == 1 {
            return Ok(whole.into());
        }
    }
    Err(nonsense("the answer to HELLO is too long"))
}
