//! Tests without a daemon, or with a peer that answers every request with an empty reply. Tests
//! with real mounts are in crates/hither/tests/socket.rs.

use super::*;
use std::io::{Read, Write};
use std::thread::JoinHandle;
use wire::{HEADER_BYTES, Header, Hello, op};

/// A client, and a peer that answers as the daemon would. An invalid request ends the connection.
/// Walks and watches are only answered when they are cancelled. The thread returns the requested
/// operations.
fn strict() -> (Client, JoinHandle<Vec<u16>>) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let answers = std::thread::spawn(move || {
        let (mut asked, mut header) = (Vec::new(), [0; HEADER_BYTES]);
        while theirs.read_exact(&mut header).is_ok() {
            let header = Header::decode(&header).unwrap();
            let mut body = vec![0; header.len as usize];
            if theirs.read_exact(&mut body).is_err() {
                break;
            }
            asked.push(header.op);
            let (mut out, mut id) = (Vec::new(), header.id);
            match Request::decode(header.op, &body) {
                Err(_) => break,
                Ok(Request::Hello(version)) => {
                    let hello =
                        Hello { version, read_only: false, dir: b"/mnt".into(), source: b"s:/".into() };
                    hello.encode(&mut out);
                }
                Ok(Request::Walk(..) | Request::Watch(_)) => continue,
                Ok(Request::Cancel(which)) => id = which,
                Ok(_) => {}
            }
            let header = Header { len: out.len() as u32, id, op: header.op, flags: 0 };
            // A caller that has gone needs no answer.
            if theirs.write_all(&[&header.encode()[..], &out].concat()).is_err() {
                break;
            }
        }
        asked
    });
    (Client { conn: Arc::new(Connection::greet(ours).unwrap()) }, answers)
}

/// A frame from the daemon.
fn frame(id: u32, op: u16, flags: u16, encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = Vec::new();
    encode(&mut body);
    let header = Header { len: body.len() as u32, id, op, flags };
    [&header.encode()[..], &body].concat()
}

/// Both ends of a connection on which the daemon has sent its greeting.
fn greeted() -> (UnixStream, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let hello = Hello { version: 1, read_only: false, dir: b"/mnt".into(), source: b"s:/".into() };
    theirs.write_all(&frame(0, op::HELLO, 0, |out| hello.encode(out))).unwrap();
    (ours, theirs)
}

/// A partly sent request is the last one. The daemon would take later bytes for its rest.
#[test]
fn partial_request_ends_connection() {
    let (ours, mut theirs) = greeted();
    // The other end reads only after the write has failed.
    ours.set_write_timeout(Some(std::time::Duration::from_millis(10))).unwrap();
    let conn = Arc::new(Connection::greet(ours).unwrap());
    theirs.read_exact(&mut [0; HEADER_BYTES + 6]).unwrap();
    let bytes = vec![b'x'; IO_MAX_BYTES as usize];
    // Keeps the calls whose requests fit.
    let mut taken = Vec::new();
    let failed = loop {
        match conn.begin(&Request::Write(7, 0, 0, &bytes)) {
            Ok(call) => taken.push(call),
            Err(e) => break e,
        }
    };
    assert_eq!(failed.kind(), ErrorKind::WouldBlock);
    assert_eq!(conn.begin(&Request::Sync(7)).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    let mut received = Vec::new();
    theirs.read_to_end(&mut received).unwrap();
    assert!(!received.is_empty());
    let head = HEADER_BYTES + 24;
    for write in received.chunks(head + bytes.len()) {
        assert!(write.iter().skip(head).all(|b| *b == b'x'));
    }
}

/// A daemon that reports an unrequested index does not lead a program out of its array.
#[test]
fn unrequested_change_is_refused() {
    let (ours, mut theirs) = greeted();
    let client = Client { conn: Arc::new(Connection::greet(ours).unwrap()) };
    let mut changes = client.watch(&["a", "b"]).unwrap();
    for index in [1, 2] {
        let gone = wire::Stated { index, attr: Err(2) };
        theirs.write_all(&frame(1, op::WATCH, wire::FLAG_MORE, |out| gone.encode(out))).unwrap();
    }
    let within = std::time::Duration::MAX;
    assert_eq!(changes.next_within(within).unwrap().0, 1);
    assert_eq!(changes.next_within(within).unwrap_err().kind(), ErrorKind::InvalidData);
}

/// A path that no request may contain is refused without sending it. The connection stays usable.
#[test]
fn unsendable_path_keeps_connection() {
    let (client, answers) = strict();
    let (fits, long) = ("x".repeat(PATH_MAX_BYTES), "x".repeat(PATH_MAX_BYTES + 1));
    let below = format!("/mnt/{long}");
    let number = |e: io::Error| e.raw_os_error();
    for path in [&long, &below] {
        assert_eq!(number(client.open(path).unwrap_err()), Some(ENAMETOOLONG));
        assert_eq!(number(client.stat(path).unwrap_err()), Some(ENAMETOOLONG));
        assert_eq!(number(client.create_dir(path).unwrap_err()), Some(ENAMETOOLONG));
        assert_eq!(number(client.rename("a", path).unwrap_err()), Some(ENAMETOOLONG));
        assert_eq!(number(client.symlink("target", path).unwrap_err()), Some(ENAMETOOLONG));
        assert_eq!(number(client.list(path).unwrap_err()), Some(ENAMETOOLONG));
        assert_eq!(number(client.watch(&[path]).unwrap_err()), Some(ENAMETOOLONG));
    }
    assert_eq!(number(client.symlink(&long, "link").unwrap_err()), Some(ENAMETOOLONG));
    for path in ["a\0b", "/mnt/a\0b"] {
        assert_eq!(client.remove_file(path).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(client.symlink(path, "link").unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    // In a call for many paths, each path has its own result.
    let stats = client.stat_many(&["a", &long[..], "a\0b"]).unwrap();
    assert_eq!(stats[0].as_ref().unwrap_err().kind(), ErrorKind::UnexpectedEof, "the peer sent no answer");
    assert_eq!(stats[1].as_ref().unwrap_err().raw_os_error(), Some(ENAMETOOLONG));
    assert_eq!(stats[2].as_ref().unwrap_err().kind(), ErrorKind::InvalidInput);
    let reads = client.read_many(&[&long]).unwrap();
    assert_eq!(reads[0].as_ref().unwrap_err().raw_os_error(), Some(ENAMETOOLONG));
    // A path of the greatest length is sent, and the daemon judges it.
    client.create_dir(&fits).unwrap();
    client.create_dir(format!("/mnt/{fits}")).unwrap();
    client.symlink(&fits, "link").unwrap();
    drop(client);
    assert_eq!(answers.join().unwrap(), [op::HELLO, op::STAT_MANY, op::MKDIR, op::MKDIR, op::SYMLINK]);
}

/// A watch with too many paths or bytes is refused. It sends nothing and takes no place among the
/// requests.
#[test]
fn oversized_watch_is_refused() {
    let (client, answers) = strict();
    assert_eq!(client.watch(&vec!["f"; 1025]).unwrap_err().kind(), ErrorKind::InvalidInput);
    // The largest number of paths, but more bytes than a request may have. Repeated more often than
    // requests may be under way.
    let long = vec!["x".repeat(1100); 1024];
    for _ in 0..200 {
        assert_eq!(client.watch(&long).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    client.create_dir("d").unwrap();
    drop(client);
    assert_eq!(answers.join().unwrap(), [op::HELLO, op::MKDIR], "no watch was sent or cancelled");
}

/// Held walks and watches leave room for other requests.
#[test]
fn held_walks_leave_room() {
    let (client, answers) = strict();
    let mut walks: Vec<Walk> = (1..calls::HELD_MAX).map(|_| client.walk("", 1).unwrap()).collect();
    let watch = client.watch(&["f"]).unwrap();
    for _ in 0..2 {
        assert_eq!(client.walk("", 1).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(client.watch(&["f"]).unwrap_err().kind(), ErrorKind::WouldBlock);
        client.create_dir("d").unwrap();
    }
    drop(watch);
    walks.push(client.walk("", 1).unwrap());
    assert_eq!(client.walk("", 1).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop((walks, client));
    assert_eq!(answers.join().unwrap().iter().filter(|o| **o == op::MKDIR).count(), 2);
}

/// Batches of paths stay within the limits of a request, in number and in bytes.
#[test]
fn batches_stay_within_limits() {
    let few = vec![vec![b'x'; 10]; 5];
    assert_eq!(batches(&few, Vec::len).map(<[_]>::len).collect::<Vec<_>>(), [5]);
    let many = vec![vec![b'x'; 3]; BATCH_PATHS + 1];
    assert_eq!(batches(&many, Vec::len).map(<[_]>::len).collect::<Vec<_>>(), [BATCH_PATHS, 1]);
    let long = vec![vec![b'x'; 4000]; 200];
    let lens: Vec<_> = batches(&long, Vec::len).map(<[_]>::len).collect();
    assert_eq!(lens.iter().sum::<usize>(), 200);
    assert!(lens.iter().all(|n| n * 4016 <= BATCH_BYTES), "{lens:?}");
    assert_eq!(batches(&[] as &[Vec<u8>], Vec::len).count(), 0);
}
