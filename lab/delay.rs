//! A TCP proxy that delays all bytes, for the demonstration: `delay LISTEN TARGET MILLISECONDS`.
//! Each direction has half of the time. It has no dependencies, so `rustc` alone builds it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of chunks under way in one direction.
const CHUNKS_MAX: usize = 1024;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen, target, milliseconds] = words.as_slice() else {
        eprintln!("delay: expected LISTEN TARGET MILLISECONDS");
        std::process::exit(2);
    };
    let round_trip = Duration::from_millis(milliseconds.parse().expect("a number of milliseconds"));
    let listener = TcpListener::bind(listen).expect("an address to listen on");
    for near in listener.incoming().flatten() {
        let Ok(far) = TcpStream::connect(target) else { continue };
        let ends = near.try_clone().and_then(|n| Ok(((n, far.try_clone()?), (far, near))));
        let Ok((there, back)) = ends else { continue };
        for (from, to) in [there, back] {
            let _ = to.set_nodelay(true);
            thread::spawn(move || carry(from, to, round_trip / 2));
        }
    }
}

/// Forwards the bytes of one direction, each `delay` after its arrival.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, chunks) = mpsc::sync_channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let writer = thread::spawn(move || {
        for (due, bytes) in chunks {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut buffer = vec![0; 256 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if sender.send((Instant::now() + delay, buffer[..count].to_vec())).is_err() {
            break;
        }
    }
    drop(sender);
    let _ = writer.join();
}
