//! The rate of one TCP connection, as the measure for every transfer over one connection.

use crate::args::Args;
use crate::clock;
use crate::lab::{Fail, Res};
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

/// Size of a write(2) and a read(2). It is the largest READ of NFS servers.
const CHUNK_BYTES: usize = 1 << 20;

/// `tcp` runs both ends on loopback. `tcp --listen ADDR` sends to its peer, and `tcp --from ADDR`
/// is that peer. Prints a JSON line.
pub fn main(args: &mut Args) -> Res<ExitCode> {
    let limit = Duration::from_secs_f64(args.number("--seconds")?.unwrap_or(2.0).clamp(0.1, 600.0));
    let (listen, from) = (args.value("--listen")?, args.value("--from")?);
    args.no_more_options()?;
    if let Some(addr) = listen {
        for stream in TcpListener::bind(&addr)?.incoming() {
            send(stream?, limit)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let rate = match from {
        Some(addr) => receive(TcpStream::connect(&addr).map_err(|e| Fail(format!("{addr}: {e}")))?)?,
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let stream = TcpStream::connect(listener.local_addr()?)?;
            let (sender, _) = listener.accept()?;
            let sending = std::thread::spawn(move || send(sender, limit));
            let rate = receive(stream)?;
            sending.join().map_err(|_| Fail("the sender has panicked".into()))??;
            rate
        }
    };
    println!("{}", json!({"bench": "tcp", "bytes_s": rate}));
    Ok(ExitCode::SUCCESS)
}

/// Sends zeros until the time is over.
fn send(mut stream: TcpStream, limit: Duration) -> Res<()> {
    let (chunk, end) = (vec![0; CHUNK_BYTES], clock::now() + limit);
    while clock::now() < end {
        match stream.write_all(&chunk) {
            // The receiver has enough data and closed the connection.
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => break,
            other => other?,
        }
    }
    Ok(())
}

/// Receives until the sender closes. Returns bytes per second.
fn receive(mut stream: TcpStream) -> Res<f64> {
    let (mut chunk, mut sum, begun) = (vec![0; CHUNK_BYTES], 0_u64, clock::now());
    loop {
        match stream.read(&mut chunk)? {
            0 => return Ok(sum as f64 / begun.elapsed().as_secs_f64()),
            n => sum += n as u64,
        }
    }
}
