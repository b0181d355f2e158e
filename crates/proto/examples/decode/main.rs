//! Reads RPC messages in hexadecimal and prints their content, one JSON object per line.
//!
//! `decode [FILE]` reads one message per line, calls and replies mixed. A reply matches a call on
//! an earlier line. `decode --stream [FILE]` reads the bytes of a TCP connection with record marks.
//! Each line is a piece of the stream; lines that begin with a tab are the other direction. `tshark
//! -q -z follow,tcp,raw,0` prints this form after its header.
//!
//! `decode --pcap FILE` reads a capture (pcap, not pcapng: `tshark -F pcap -w FILE`) with any
//! number of TCP connections.
//!
//! The value names are those of Wireshark's fields, so that both outputs can be compared.

mod pcap;
mod summary;

use bytes::Bytes;
use hither_proto::record::{Limits, Reader as Records};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::error::Error;
use std::{env, fs, io};
use summary::{Reader, Summary};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = env::args().skip(1).collect();
    if let [option, file] = &args[..]
        && option == "--pcap"
    {
        return capture(&fs::read(file)?);
    }
    let stream = args.first().is_some_and(|a| a == "--stream");
    if stream {
        args.remove(0);
    }
    let input = match args.first() {
        Some(path) => fs::read_to_string(path)?,
        None => io::read_to_string(io::stdin())?,
    };
    let mut reader = Reader::default();
    let mut records = [Records::new(Limits::default()), Records::new(Limits::default())];
    for (n, line) in input.lines().enumerate() {
        let Some(bytes) = unhex(line.trim()) else { continue };
        if !stream {
            print(&mut reader, n, 0, &Bytes::from(bytes));
            continue;
        }
        let direction = usize::from(line.starts_with('\t'));
        let mut rest = &bytes[..];
        while let Some(record) = records[direction].feed(&mut rest)? {
            print(&mut reader, n, direction, &record);
        }
    }
    Ok(())
}

/// Decodes all RPC messages of a capture. A connection that began before the capture, or that lacks
/// bytes, ends at its first unreadable byte.
fn capture(file: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut readers: HashMap<pcap::Flow, Reader> = HashMap::new();
    let mut streams: HashMap<pcap::Flow, Option<Records>> = HashMap::new();
    for (n, segment) in pcap::segments(file)?.enumerate() {
        let records = streams.entry(segment.flow).or_insert_with(|| Some(Records::new(Limits::default())));
        // Calls and their replies flow in opposite directions. Both ends may make calls.
        let (both, back) = segment.flow.sorted();
        let mut rest = &segment.bytes[..];
        while let Some(reader) = records {
            match reader.feed(&mut rest) {
                Ok(Some(record)) => print(readers.entry(both).or_default(), n, usize::from(back), &record),
                Ok(None) => break,
                Err(e) => {
                    println!("{}", json!({ "segment": n + 1, "error": e.to_string() }));
                    *records = None;
                }
            }
        }
    }
    Ok(())
}

fn print(reader: &mut Reader, line: usize, direction: usize, message: &Bytes) {
    let value = match reader.read(message) {
        Ok(Some(summary)) => object(direction, &summary),
        Ok(None) => json!({ "line": line + 1, "skipped": "no call or no such procedure" }),
        Err(e) => json!({ "line": line + 1, "error": e.to_string() }),
    };
    println!("{value}");
}

fn object(direction: usize, s: &Summary) -> Value {
    let mut fields = Map::new();
    for (name, value) in &s.fields.0 {
        let list = fields.entry(*name).or_insert_with(|| json!([]));
        list.as_array_mut().expect("a list was inserted").push(json!(value));
    }
    let (prog, vers, proc) = s.proc;
    json!({
        "xid": s.xid, "direction": direction, "type": if s.call { "call" } else { "reply" },
        "program": prog, "version": vers, "procedure": proc, "name": s.name, "fields": fields,
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
