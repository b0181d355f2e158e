//! Tests with a small trace whose results are known.

use super::*;

fn line(op: &str, path: &str, range: (u64, u64), took_us: u64, asked: (u64, u64)) -> Line {
    Line {
        at_us: 0,
        took_us,
        op: op.into(),
        path: Some(path.into()),
        object: 0,
        offset: range.0,
        bytes: range.1,
        asked: asked.0,
        asked_us: asked.1,
    }
}

/// One lookup, a file of 1 MiB that is read twice from the server, and a file that is written.
fn trace() -> Trace {
    let lines = [
        line("LOOKUP", "/m/./a", (0, 0), 500, (1, 400)),
        line("READ", "/m/./a", (0, 1 << 20), 3000, (2, 2800)),
        line("READ", "/m/./a", (0, 1 << 20), 3000, (2, 2800)),
        line("WRITE", "/m/./b", (0, 1 << 16), 50, (0, 0)),
        line("READ", "/m/./b", (0, 1 << 16), 20, (0, 0)),
        line("FLUSH", "/m/./b", (0, 0), 900, (1, 850)),
    ];
    Trace::of(lines.into_iter().map(Ok)).unwrap()
}

/// Another round trip changes the total time by the difference for each request.
#[test]
fn round_trip_changes_total_time() {
    let trace = trace();
    assert_eq!((trace.calls, trace.files, trace.reads()), (6, 2, 3));
    assert_eq!((trace.asked, trace.rtt_us), ([4, 2], Some(400)));
    // With the trace's own round trip the sum is the measured time.
    assert_eq!(trace.waited_us(4, 400.0) as u64, trace.took_us);
    assert_eq!(trace.waited_us(4, 10_400.0) as u64, trace.took_us + 6 * 10_000);
}

/// A cache for all data serves the second read. A small cache serves none.
#[test]
fn large_cache_serves_second_read() {
    let trace = trace();
    for policy in Policy::ALL {
        let (score, waited) = trace.play(policy, trace.all_bytes());
        assert_eq!((score.hits, score.calls, waited), (2, 1, 1), "{}", policy.name());
        let (score, waited) = trace.play(policy, 256 << 10);
        assert_eq!((score.hits, waited), (0, 3), "{}: it is full of the first file", policy.name());
    }
}

/// A sequential read of a file three times as large as the cache, between reads of hot files. The
/// hot files stay cached under every policy, as in the disk cache.
#[test]
fn large_scan_keeps_hot_files() {
    const CHUNK: u64 = 128 << 10;
    let hot = || (0..100).map(|n| line("READ", &format!("/m/./hot{n}"), (0, 200_000), 10, (0, 0)));
    let scan = (0..1600).map(|n| line("READ", "/m/./large", (n * CHUNK, CHUNK), 10, (0, 0)));
    let lines: Vec<Line> = hot().chain(hot()).chain(hot()).chain(scan).chain(hot()).collect();
    let trace = Trace::of(lines.into_iter().map(Ok)).unwrap();
    for policy in Policy::ALL {
        let (score, waited) = trace.play(policy, 64 << 20);
        assert!(score.hits >= 200 + 90 && waited <= 1800 - 90, "{}: {}", policy.name(), score.hits);
    }
}

/// The output contains the figures of the evaluation, as JSON and as text.
#[test]
fn output_has_evaluated_figures() {
    let args = |json| TraceWhatIf {
        file: "t".into(),
        cache_sizes: vec![4 << 20],
        policies: vec![Policy::Lru],
        rtts_ms: vec![0.4, 100.0],
        json,
    };
    let told: Vec<serde_json::Value> =
        tell(&trace(), &args(true)).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.len(), 2);
    assert_eq!(told[0]["at"][0]["waited_us"], 7470.0);
    assert_eq!(told[1]["hits"], 2);
    let (with, without) = (&told[1]["at"][1]["waited_us"], &told[0]["at"][1]["waited_us"]);
    assert!(
        with.as_f64().unwrap() < without.as_f64().unwrap() - 290_000.0,
        "three round trips less: {with} {without}"
    );
    let text = tell(&trace(), &args(false));
    assert!(text.contains("6 calls") && text.contains("4.0 MiB  lru"), "{text}");
}

/// A line that is not a traced call is refused with its number. An overlong line and an offset
/// beyond all files are refused too.
#[test]
fn invalid_trace_line_is_refused() {
    let list = &b"/m/./a\n"[..];
    assert!(lines(list).next().unwrap().unwrap_err().starts_with("line 1: "));
    let endless = vec![b'x'; 1 << 20];
    assert!(lines(&endless[..]).next().unwrap().is_err());
    let beyond = line("READ", "/m/./a", (u64::MAX, 2), 1, (0, 0));
    assert!(Trace::of(std::iter::once(Ok(beyond))).is_err());
}
