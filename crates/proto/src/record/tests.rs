//! Tests of record marking: any cuts of the stream give the same records, payloads are received in
//! place, and memory and work stay bounded.

use super::*;
use proptest::prelude::*;

fn mark(len: usize, last: bool) -> [u8; 4] {
    (len as u32 | if last { LAST } else { 0 }).to_be_bytes()
}

fn message(bytes: &[u8]) -> Enc {
    let mut e = Enc::new();
    e.raw(bytes);
    e
}

fn read_all(reader: &mut Reader, mut input: &[u8]) -> Result<Vec<Bytes>, RecordError> {
    let mut out = Vec::new();
    while let Some(record) = reader.feed(&mut input)? {
        out.push(record);
    }
    Ok(out)
}

proptest! {
    /// The reader returns the same records for any fragment length and any cuts of the stream.
    #[test]
    fn fragments_and_cuts_keep_records(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
        fragment_max in 1usize..200,
        cuts in prop::collection::vec(1usize..64, 1..40),
    ) {
        let stream: Vec<u8> =
            records.iter().flat_map(|r| frame_in(message(r), fragment_max).concat()).collect();
        let mut reader = Reader::new(Limits::default());
        let mut got = Vec::new();
        let mut rest = &stream[..];
        for n in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*n).min(rest.len()));
            got.extend(read_all(&mut reader, now).unwrap());
            rest = later;
        }
        prop_assert_eq!(got, records);
        prop_assert!(reader.is_between_records());
    }
}

/// A frame is the record mark and the message's segments by reference.
#[test]
fn frame_keeps_message_by_reference() {
    let payload = Bytes::from(vec![5u8; 5000]);
    let mut e = Enc::new();
    e.opaque(&payload);
    let framed = frame(e);
    assert_eq!(&framed[0][..], mark(5004, true));
    assert!(framed.iter().any(|s| s.as_ptr() == payload.as_ptr()));
    assert_eq!(frame(Enc::new()), [Bytes::copy_from_slice(&mark(0, true))]);
}

/// Simulates a socket that delivers at most `chunk` bytes per `read_buf`.
fn receive(reader: &mut Reader, stream: &[u8], chunk: usize) -> Vec<(Bytes, usize)> {
    let mut rest = stream;
    let mut records = Vec::new();
    let mut reads = 0;
    while !rest.is_empty() {
        let mut space = reader.space();
        let n = space.remaining_mut().min(chunk).min(rest.len());
        assert!(n > 0);
        space.put_slice(&rest[..n]);
        rest.advance(n);
        reads += 1;
        while let Some(r) = reader.next_record().unwrap() {
            records.push((r, std::mem::take(&mut reads)));
        }
    }
    records
}

/// A large reply is received in place: after the first read its buffer does not move.
#[test]
fn large_reply_arrives_in_place() {
    let body: Vec<u8> = (0..1 << 20).map(|i| i as u8).collect();
    let stream = frame(message(&body)).concat();
    let mut reader = Reader::new(Limits::default());
    let mut rest = &stream[..];
    let mut place = None;
    loop {
        let mut space = reader.space();
        let n = space.remaining_mut().min(100_000).min(rest.len());
        space.put_slice(&rest[..n]);
        rest.advance(n);
        if let Some(record) = reader.next_record().unwrap() {
            assert_eq!(record, body);
            assert_eq!(place, Some(record.as_ptr()), "the record moved while it arrived");
            break;
        }
        // After the first read the length is known, and the buffer does not move.
        if n == 100_000 {
            place.get_or_insert(reader.buf.as_ptr());
            assert_eq!(place, Some(reader.buf.as_ptr()));
        }
    }
}

/// A large reply takes two reads if all its bytes have arrived.
#[test]
fn large_reply_takes_two_reads() {
    let stream = frame(message(&vec![1; 1 << 20])).concat();
    let reads: Vec<usize> =
        receive(&mut Reader::new(Limits::default()), &stream, usize::MAX).iter().map(|r| r.1).collect();
    assert_eq!(reads, [2]);
}

/// One read receives fifty small replies.
#[test]
fn small_replies_share_one_read() {
    let stream: Vec<u8> = (0..50u8).flat_map(|i| frame(message(&[i; 200])).concat()).collect();
    let reads: Vec<usize> =
        receive(&mut Reader::new(Limits::default()), &stream, usize::MAX).iter().map(|r| r.1).collect();
    assert_eq!(reads.iter().sum::<usize>(), 1);
    assert_eq!(reads.len(), 50);
}

/// The reader reuses the memory of dropped records.
#[test]
fn buffer_of_dropped_records_is_reused() {
    let mut reader = Reader::new(Limits::default());
    let one = frame(message(&[7; 9000])).concat();
    let first = receive(&mut reader, &one, usize::MAX)[0].0.as_ptr();
    for _ in 0..20 {
        let again = receive(&mut reader, &one, usize::MAX)[0].0.as_ptr();
        assert_eq!(first, again);
    }
}

#[test]
fn a_claimed_length_is_not_allocated() {
    let mut reader = Reader::new(Limits { record_max_bytes: FRAGMENT_MAX_BYTES, fragments_max: 10 });
    assert_eq!(read_all(&mut reader, &mark(FRAGMENT_MAX_BYTES, true)), Ok(vec![]));
    let room = reader.space().remaining_mut();
    assert!(room <= TRUST_BYTES);
    assert!(reader.buf.capacity() <= TRUST_BYTES + READ_AHEAD_BYTES);
    // The buffer grows as data arrives.
    let data = vec![0; 5 << 20];
    assert_eq!(read_all(&mut reader, &data), Ok(vec![]));
    assert!(reader.buf.capacity() <= 4 * data.len());
}

/// A record over the limit is refused when its mark arrives.
#[test]
fn overlong_record_is_refused_early() {
    let limits = Limits { record_max_bytes: 100, fragments_max: 10 };
    let ok = [&mark(100, true)[..], &[0; 100]].concat();
    assert_eq!(read_all(&mut Reader::new(limits), &ok).unwrap().len(), 1);
    assert_eq!(
        read_all(&mut Reader::new(limits), &mark(101, true)),
        Err(RecordError::TooLong { len: 101, max: 100 })
    );
    let sum = [&mark(60, false)[..], &[0; 60], &mark(41, true)].concat();
    assert_eq!(read_all(&mut Reader::new(limits), &sum), Err(RecordError::TooLong { len: 101, max: 100 }));
}

#[test]
fn endless_empty_fragments_end() {
    let limits = Limits { record_max_bytes: 100, fragments_max: 10 };
    let stream = mark(0, false).repeat(1000);
    assert_eq!(read_all(&mut Reader::new(limits), &stream), Err(RecordError::TooManyFragments { max: 10 }));
    let ten = [mark(0, false).repeat(9), mark(0, true).to_vec()].concat().repeat(3);
    assert_eq!(read_all(&mut Reader::new(limits), &ten), Ok(vec![Bytes::new(); 3]));
}

/// A stream that ends inside a record is not between records.
#[test]
fn stream_end_inside_record_is_noticed() {
    let mut reader = Reader::new(Limits::default());
    assert!(reader.is_between_records());
    for part in [&mark(4, false)[..2], &mark(4, false)[2..], b"abcd", &mark(1, true)] {
        assert_eq!(read_all(&mut reader, part), Ok(vec![]));
        assert!(!reader.is_between_records());
    }
    assert_eq!(read_all(&mut reader, b"e"), Ok(vec![Bytes::from_static(b"abcde")]));
    assert!(reader.is_between_records());
}

/// Many fragments of 4000 bytes move the buffer only a few times.
#[test]
fn many_fragments_move_few_bytes() {
    // Old RPC libraries send fragments of 4000 bytes. The buffer doubles, so it moves a few times.
    let body: Vec<u8> = (0..3 << 20).map(|i| (i / 7) as u8).collect();
    let stream = frame_in(message(&body), 4000).concat();
    let mut reader = Reader::new(Limits::default());
    let (mut rest, mut moves, mut place) = (&stream[..], 0, reader.buf.as_ptr());
    loop {
        let mut space = reader.space();
        let n = space.remaining_mut().min(rest.len());
        space.put_slice(&rest[..n]);
        rest.advance(n);
        if let Some(record) = reader.next_record().unwrap() {
            assert_eq!(record, body);
            break;
        }
        moves += usize::from(std::mem::replace(&mut place, reader.buf.as_ptr()) != place);
    }
    assert!(moves < 12, "moved {moves} times");
}
