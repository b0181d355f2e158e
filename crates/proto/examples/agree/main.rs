//! Compares this crate's decoders with tshark on captured traffic: `agree CAPTURE [TCP-STREAM...]`.
//!
//! This program and tshark both decode every RPC message of every TCP connection, or of the given
//! ones. The named values of both must be equal, in order, per connection, direction and field. The
//! program prints the number of equal values and the first difference of each field. Any difference
//! is a failure.

#[path = "../decode/summary/mod.rs"]
#[allow(dead_code, reason = "some of it is for decode only")]
mod summary;

use bytes::Bytes;
use hither_proto::record::{Limits, Reader as Records};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::process::{Command, ExitCode};
use summary::Reader;

type Any<T> = Result<T, Box<dyn Error>>;

/// Values by direction and field. The direction is true for messages from the second node.
type Values = BTreeMap<(bool, String), Vec<String>>;

/// Fields that tshark repeats in replies and at the start of the program's own part.
const REPEATED: [&str; 3] = ["rpc.program", "rpc.programversion", "rpc.procedure"];

/// Fields by which tshark reports that it could not read a message completely.
const TROUBLE: [&str; 3] = ["_ws.malformed", "nfs.bitmap_no_dissector", "rpc.unknown_body"];

/// The NFSACL program, which this crate does not decode.
const NFSACL: u32 = 100_227;

/// The ways in which tshark shows an empty value.
const EMPTY: [&str; 3] = ["", "<EMPTY>", "<MISSING>"];

/// Separates values of one field. No field name contains this character.
const SEPARATOR: char = '\u{1}';

fn main() -> Any<ExitCode> {
    let mut args = std::env::args().skip(1);
    let capture = args.next().ok_or("usage: agree CAPTURE [TCP-STREAM...]")?;
    let mut streams: BTreeSet<String> = args.collect();
    if streams.is_empty() {
        let all = tshark(&["-r", &capture, "-Y", "rpc", "-T", "fields", "-e", "tcp.stream"])?;
        streams = all.lines().filter(|l| !l.is_empty()).map(str::to_string).collect();
    }
    let mut wrong = 0;
    for stream in &streams {
        let (ours, messages, unread) = decode(&follow(&capture, stream)?)?;
        let theirs = fields(&capture, stream, &ours)?;
        let mut agree = 0;
        for (key, values) in &ours.values {
            let empty = Vec::new();
            let seen = theirs.get(key).unwrap_or(&empty);
            match values.iter().zip(seen).position(|(a, b)| a != b) {
                None if values.len() == seen.len() => agree += values.len(),
                at => {
                    wrong += 1;
                    let i = at.unwrap_or(values.len().min(seen.len()));
                    let (mine, their) = (values.get(i), seen.get(i));
                    println!(
                        "stream {stream}, from {}: {} differs at {i} of {}: tshark {their:?} of {}, we {mine:?}",
                        u8::from(key.0),
                        key.1,
                        values.len(),
                        seen.len()
                    );
                }
            }
        }
        println!(
            "stream {stream}: {messages} messages, {unread} of unknown procedures, {agree} values agree"
        );
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tshark(args: &[&str]) -> Any<String> {
    let output = Command::new("tshark").arg("-n").args(args).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The bytes of a connection in pieces with their direction, and the address of the first node.
struct Stream {
    first: String,
    pieces: Vec<(bool, Vec<u8>)>,
}

fn follow(capture: &str, stream: &str) -> Any<Stream> {
    let text = tshark(&["-r", capture, "-q", "-z", &format!("follow,tcp,raw,{stream}")])?;
    let mut found = Stream { first: String::new(), pieces: Vec::new() };
    for line in text.lines() {
        if let Some(node) = line.strip_prefix("Node 0: ") {
            found.first = node.to_string();
        } else if let Some(bytes) = unhex(line.trim()) {
            found.pieces.push((line.starts_with('\t'), bytes));
        }
    }
    Ok(found)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.is_empty() || !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok()).collect()
}

/// This crate's reading of a connection.
struct Ours {
    first: String,
    values: Values,
}

fn decode(stream: &Stream) -> Any<(Ours, usize, usize)> {
    let mut records = [Records::new(Limits::default()), Records::new(Limits::default())];
    let mut reader = Reader::default();
    let mut values = Values::new();
    let (mut messages, mut unknown) = (0, 0);
    // Replies match calls by xid. All calls of a piece are read before their replies.
    for (second, bytes) in &stream.pieces {
        let mut rest = &bytes[..];
        while let Some(record) = records[usize::from(*second)].feed(&mut rest)? {
            messages += 1;
            match reader.read(&record).map_err(|e| format!("{e}: {}", hex(&record)))? {
                None => unknown += 1,
                Some(summary) => {
                    let shown =
                        summary.fields.0.iter().filter(|f| !REPEATED.contains(&f.0) && !f.1.is_empty());
                    for (name, value) in shown {
                        values.entry((*second, name.to_string())).or_default().push(value.clone());
                    }
                }
            }
        }
    }
    Ok((Ours { first: stream.first.clone(), values }, messages, unknown))
}

fn hex(message: &Bytes) -> String {
    message.iter().take(200).map(|b| format!("{b:02x}")).collect()
}

/// tshark's reading of the same fields of a connection.
fn fields(capture: &str, stream: &str, ours: &Ours) -> Any<Values> {
    let names: BTreeSet<&str> = ours.values.keys().map(|(_, name)| name.as_str()).chain(TROUBLE).collect();
    // Linux queries POSIX ACLs with the NFSACL program on the same connection.
    let filter = format!("tcp.stream == {stream} && rpc && !(rpc.program == {NFSACL})");
    let aggregator = format!("aggregator={SEPARATOR}");
    let mut args =
        vec!["-r", capture, "-Y", &filter, "-T", "fields", "-E", "occurrence=a", "-E", &aggregator];
    args.extend(["-E", "separator=/t", "-e", "ip.src", "-e", "tcp.srcport"]);
    args.extend(names.iter().flat_map(|n| ["-e", *n]));
    let text = tshark(&args)?;
    let mut values = Values::new();
    for line in text.lines() {
        let mut columns = line.split('\t');
        let from = format!("{}:{}", columns.next().unwrap_or_default(), columns.next().unwrap_or_default());
        for (name, list) in names.iter().zip(columns).filter(|(_, list)| !list.is_empty()) {
            if TROUBLE.contains(name) {
                println!("stream {stream}: tshark reports {name}");
            }
            let all = values.entry((from != ours.first, name.to_string())).or_default();
            all.extend(list.split(SEPARATOR).filter(|v| !EMPTY.contains(v)).map(normal));
        }
    }
    Ok(values)
}

/// Numbers in decimal, flags as 0 or 1.
fn normal(value: &str) -> String {
    match value {
        "True" => "1".into(),
        "False" => "0".into(),
        _ => match value.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
            Some(number) => number.to_string(),
            None => value.to_string(),
        },
    }
}
