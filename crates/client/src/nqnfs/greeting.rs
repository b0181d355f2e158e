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
use hither_rpc::{BoxFuture, Connect, Link, read_record};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// Longest wait for the answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest filehandle that the client accepts, in bytes on the wire.
const FH_MAX_BYTES: u32 = 64;
/// Largest READ and WRITE of the client.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// Longest answer.
const ANSWER_MAX_BYTES: usize = 4096;

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
        let answer = read_record(&mut link.reader, ANSWER_MAX_BYTES).await?;
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
