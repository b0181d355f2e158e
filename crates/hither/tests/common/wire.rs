//! A client that sends exactly the calls of a test and can repeat them.

use bytes::Bytes;
use hither_proto::mount::MntArgs;
use hither_proto::nfs3::{CreateRes, Fh3};
use hither_proto::record;
use hither_proto::rpc::{AuthSys, Message, OpaqueAuth, Procedure, call};
use hither_proto::xdr::{Dec, Enc};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;

/// The default source port.
const PORT: u16 = 777;

/// A connection from a privileged port.
pub struct Wire {
    runtime: Runtime,
    stream: Option<TcpStream>,
    /// Source port of the connection.
    port: u16,
    server: SocketAddr,
    xid: u32,
    sent: Vec<Sent>,
    /// User and group of the calls.
    pub user: u32,
}

/// A call that was answered with success.
struct Sent {
    xid: u32,
    /// Program, version, procedure.
    what: (u32, u32, u32),
    args: Bytes,
    /// Handle of the object that the call created. Each repetition must return the same handle.
    made: Option<Fh3>,
}

impl Wire {
    pub fn connect(server_port: u16) -> Self {
        Self::connect_from(server_port, PORT)
    }

    /// Connects from this source port.
    pub fn connect_from(server_port: u16, port: u16) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = SocketAddr::from(([127, 0, 0, 1], server_port));
        let stream = Some(runtime.block_on(connect(server, port)));
        Self { runtime, stream, port, server, xid: 7_000, sent: Vec::new(), user: 0 }
    }

    /// Connects to a restarted server from the same port.
    pub fn reconnect(&mut self) {
        // The old connection ends first, because the port is the same.
        self.stream = None;
        self.stream = Some(self.runtime.block_on(connect(self.server, self.port)));
    }

    /// The root directory of `/`.
    pub fn root(&mut self) -> Fh3 {
        self.root_of("/")
    }

    /// The root directory of an export.
    pub fn root_of(&mut self, path: &str) -> Fh3 {
        let dirpath = path.as_bytes().into();
        self.call(&MntArgs { dirpath }).into_result().unwrap().fhandle
    }

    /// Sends a call with a new transaction id.
    pub fn call<P: Procedure>(&mut self, args: &P) -> P::Reply {
        self.xid += 1;
        let reply = self.send(self.xid, (P::PROG, P::VERS, P::PROC), Enc::of(args).to_bytes());
        Dec::all(&reply).unwrap()
    }

    /// As [`Wire::call`], to a server that may be killed before it answers.
    pub fn try_call<P: Procedure>(&mut self, args: &P) -> std::io::Result<P::Reply> {
        self.xid += 1;
        let reply = self.try_send(self.xid, (P::PROG, P::VERS, P::PROC), Enc::of(args).to_bytes())?;
        Ok(Dec::all(&reply).unwrap())
    }

    /// Sends a call that must succeed and that [`Wire::repeat`] repeats.
    pub fn done<P: Procedure>(&mut self, args: &P) {
        self.remember(args, |_| None);
    }

    /// As [`Wire::done`], for a call that creates an object. Returns the object's handle.
    pub fn made<P: Procedure<Reply = CreateRes>>(&mut self, args: &P) -> Fh3 {
        self.remember(args, made).unwrap()
    }

    fn remember<P: Procedure>(&mut self, args: &P, made: fn(&Bytes) -> Option<Fh3>) -> Option<Fh3> {
        self.xid += 1;
        let (xid, what, args) = (self.xid, (P::PROG, P::VERS, P::PROC), Enc::of(args).to_bytes());
        let reply = self.send(xid, what, args.clone());
        assert_eq!(reply[..4], [0; 4], "procedure {} fails", what.2);
        let made = made(&reply);
        self.sent.push(Sent { xid, what, args, made: made.clone() });
        made
    }

    /// Sends all remembered calls again. Each must be answered as the first time.
    pub fn repeat(&mut self) {
        for sent in std::mem::take(&mut self.sent) {
            let reply = self.send(sent.xid, sent.what, sent.args.clone());
            assert_eq!(reply[..4], [0; 4], "procedure {} was made again", sent.what.2);
            if sent.made.is_some() {
                assert_eq!(made(&reply), sent.made, "procedure {}", sent.what.2);
            }
            self.sent.push(sent);
        }
    }

    /// Sends all remembered calls again as another user. Returns their statuses.
    pub fn repeat_as(&mut self, user: u32) -> Vec<u32> {
        let own = std::mem::replace(&mut self.user, user);
        let sent = std::mem::take(&mut self.sent);
        let status = |reply: Bytes| u32::from_be_bytes(reply[..4].try_into().unwrap());
        let all = sent.iter().map(|sent| status(self.send(sent.xid, sent.what, sent.args.clone()))).collect();
        (self.sent, self.user) = (sent, own);
        all
    }

    fn send(&mut self, xid: u32, what: (u32, u32, u32), args: Bytes) -> Bytes {
        self.try_send(xid, what, args).unwrap()
    }

    fn try_send(
        &mut self,
        xid: u32,
        (prog, vers, proc): (u32, u32, u32),
        args: Bytes,
    ) -> std::io::Result<Bytes> {
        let (uid, gid, gids) = (self.user, self.user, Vec::new().into());
        let cred = AuthSys { stamp: 0, machinename: Default::default(), uid, gid, gids };
        let mut body = Enc::new();
        body.raw(&args);
        let message = call(xid, prog, vers, proc, &OpaqueAuth::sys(&cred), body);
        let stream = self.stream.as_mut().unwrap();
        self.runtime.block_on(async {
            stream.write_all(&record::frame(message).concat()).await?;
            let mut records = record::Reader::new(Default::default());
            loop {
                if let Some(record) = records.next_record().unwrap() {
                    let Message::Reply(header, body) = Message::decode(&record).unwrap() else {
                        panic!("a call")
                    };
                    assert!(header.is_success() && header.xid == xid, "{header:?}");
                    return Ok(body);
                }
                if stream.read_buf(&mut records.space()).await? == 0 {
                    return Err(std::io::ErrorKind::ConnectionReset.into());
                }
            }
        })
    }
}

fn made(reply: &Bytes) -> Option<Fh3> {
    Dec::all::<CreateRes>(reply).unwrap().into_result().unwrap().obj
}

/// Connects. The server may still be starting, and the previous connection may still hold the port.
async fn connect(server: SocketAddr, port: u16) -> TcpStream {
    let began = tokio::time::Instant::now();
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        let tried = match socket.bind(SocketAddr::from(([127, 0, 0, 1], port))) {
            Ok(()) => socket.connect(server).await,
            Err(e) => Err(e),
        };
        match tried {
            Ok(stream) => return stream,
            Err(e) => assert!(began.elapsed().as_secs() < 120, "no connection from port {port}: {e}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
