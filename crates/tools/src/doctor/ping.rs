//! The round trip to a server: NULL calls of ONC RPC (RFC 5531) on a connection of their own. They
//! access no file and no disk.

use hither_rpc::tls::{ClientTls, Program, TlsConnect, TlsError};
use hither_rpc::{Connect, Endpoint, Link, TcpConnect, read_record};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout};

/// Number of calls of one measurement.
const CALLS: u32 = 20;
/// A server that does not answer a NULL call within this time is unreachable.
const PATIENCE: Duration = Duration::from_secs(5);
/// The NFS program.
const NFS: u32 = 100_003;
/// Longest accepted reply to a NULL call.
const REPLY_MAX_BYTES: usize = 1024;

/// The results of the NULL calls.
#[derive(Debug, Clone, Default)]
pub struct Pings {
    /// From SYN to the end of the handshake, of TLS if the connection uses it.
    pub connect: Duration,
    /// Each call's round trip.
    pub rtts: Vec<Duration>,
    /// Whether the server offers NFSv3 and NFSv4.
    pub v3: bool,
    /// See `v3`.
    pub v4: bool,
}

/// Connects and makes NULL calls.
///
/// # Errors
/// The connection fails, or the server does not answer.
pub async fn ping(server: SocketAddr, tls: Option<Arc<ClientTls>>) -> io::Result<Pings> {
    let late =
        |what: &str| io::Error::new(ErrorKind::TimedOut, format!("{what} within {} s", PATIENCE.as_secs()));
    let began = Instant::now();
    let endpoint = Endpoint { addr: server, resvport: false, keepalive: false, connect_timeout: PATIENCE };
    let tcp = Arc::new(TcpConnect::new(endpoint));
    let mut link = match tls {
        None => tcp.connect(None).await?,
        Some(tls) => {
            let program = Program { number: NFS, version: 4 };
            TlsConnect::new(tcp, tls, program).connect(None).await?
        }
    };
    let mut pings = Pings { connect: began.elapsed(), ..Pings::default() };
    let mut xid = std::process::id() << 8;
    let mut call = async |version: u32| {
        xid = xid.wrapping_add(1);
        let began = Instant::now();
        link.writer.write_all(&null_call(xid, version)).await?;
        link.writer.flush().await?;
        let spoken = timeout(PATIENCE, reply(&mut link, xid)).await.map_err(|_| late("no answer"))??;
        Ok::<_, io::Error>((spoken, began.elapsed()))
    };
    // The first calls also warm caches on the network path.
    pings.v4 = call(4).await?.0;
    pings.v3 = call(3).await?.0;
    let version = if pings.v4 { 4 } else { 3 };
    for _ in 0..CALLS {
        pings.rtts.push(call(version).await?.1);
    }
    Ok(pings)
}

/// A NULL call with its record mark.
fn null_call(xid: u32, version: u32) -> Vec<u8> {
    const LAST_FRAGMENT: u32 = 1 << 31;
    // xid, CALL, RPC version, program, version, procedure, and two empty opaque_auth.
    let words = [xid, 0, 2, NFS, version, 0, 0, 0, 0, 0];
    let mark = LAST_FRAGMENT | (words.len() as u32 * 4);
    std::iter::once(mark).chain(words).flat_map(u32::to_be_bytes).collect()
}

/// Reads the reply to a call. Returns whether the server offers the version.
async fn reply(link: &mut Link, xid: u32) -> io::Result<bool> {
    let record = read_record(&mut link.reader, REPLY_MAX_BYTES).await.map_err(|e| match e.kind() {
        ErrorKind::InvalidData if TlsError::of(&e).is_none() => {
            io::Error::new(ErrorKind::InvalidData, "the peer is not an RPC server")
        }
        _ => e,
    })?;
    spoken(&record, xid).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "an invalid reply"))
}

fn spoken(record: &[u8], xid: u32) -> Option<bool> {
    let word = |i: usize| Some(u32::from_be_bytes(record.get(i * 4..i * 4 + 4)?.try_into().ok()?));
    // xid, REPLY, MSG_ACCEPTED, verifier (flavor, length, body), accept_stat.
    if word(0)? != xid || word(1)? != 1 {
        return None;
    }
    if word(2)? != 0 {
        return Some(false);
    }
    let verifier = word(4)? as usize;
    Some(word(5 + verifier.div_ceil(4))? == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_be_bytes()).collect()
    }

    #[test]
    fn null_replies_tell_version_support() {
        assert_eq!(spoken(&words(&[7, 1, 0, 0, 0, 0]), 7), Some(true));
        // PROG_MISMATCH after a verifier of five bytes.
        assert_eq!(spoken(&words(&[7, 1, 0, 2, 5, 9, 9, 2, 3, 3]), 7), Some(false));
        assert_eq!(spoken(&words(&[7, 1, 1, 0]), 7), Some(false), "denied");
        for wrong in
            [&[8, 1, 0, 0, 0, 0][..], &[7, 0, 0, 0, 0, 0], &[7, 1, 0], &[7, 1, 0, 0, u32::MAX, 0], &[]]
        {
            assert_eq!(spoken(&words(wrong), 7), None, "{wrong:?}");
        }
    }
}
