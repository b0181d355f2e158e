//! `hither trace what-if`: evaluates a trace of calls with other disk caches, policies and round
//! trips.
//!
//! A call to the server waited for its requests. Each request took a round trip and the server's
//! time. The shortest request of the trace counts as its round trip. Another round trip changes
//! each request by the difference. The code of the cache itself ([`Model`]) determines the hits of
//! reads in a disk cache of another size or policy, starting empty. A read with a missing block
//! waits for one round trip, because its requests are sent together.

#[cfg(test)]
mod tests;

use super::Line;
use super::args::TraceWhatIf;
use crate::exit::Failure;
use crate::units::{bytes, duration};
use hither_cache::policy::Policy;
use hither_cache::policy::model::{BLOCK_BYTES, ENTRY_BYTES, Model, Score};
use serde_json::json;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, Write};

/// Longest line of a trace.
const LINE_MAX_BYTES: u64 = 64 << 10;
/// Smallest evaluated cache, in bytes.
const LEAST_BYTES: u64 = 1 << 20;

/// Parses a policy's name.
///
/// # Errors
/// A message with the known names.
pub fn policy(name: &str) -> Result<Policy, String> {
    Policy::of(name).ok_or_else(|| format!("expected one of {}", Policy::ALL.map(Policy::name).join(", ")))
}

/// The effect of a call on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Touch {
    Read,
    Write,
}

/// The evaluated parts of a trace.
#[derive(Debug, Default)]
struct Trace {
    calls: u64,
    files: usize,
    /// Duration of all calls in microseconds, and the end of the last one.
    took_us: u64,
    ended_us: u64,
    /// Number of requests of reads, and of all other calls.
    asked: [u64; 2],
    asked_us: [u64; 2],
    /// Duration of the shortest request, if there is one.
    rtt_us: Option<u64>,
    /// Reads and writes in order: file, offset and number of bytes.
    touches: Vec<(Touch, u32, u64, u64)>,
    /// Observed length of each file.
    sizes: Vec<u64>,
}

impl Trace {
    fn of(lines: impl Iterator<Item = Result<Line, String>>) -> Result<Self, String> {
        let (mut trace, mut numbers) = (Self::default(), HashMap::new());
        for line in lines {
            let line = line?;
            trace.calls += 1;
            trace.took_us = trace.took_us.saturating_add(line.took_us);
            trace.ended_us = trace.ended_us.max(line.at_us.saturating_add(line.took_us));
            let touch = match line.op.as_str() {
                "READ" => Some(Touch::Read),
                "WRITE" => Some(Touch::Write),
                _ => None,
            };
            let other = usize::from(touch != Some(Touch::Read));
            trace.asked[other] = trace.asked[other].saturating_add(line.asked);
            trace.asked_us[other] = trace.asked_us[other].saturating_add(line.asked_us.min(line.took_us));
            if let Some(each) = line.asked_us.checked_div(line.asked) {
                trace.rtt_us = Some(trace.rtt_us.map_or(each, |least| least.min(each)));
            }
            let Some(touch) = touch.filter(|_| line.bytes > 0) else { continue };
            let end = line.offset.checked_add(line.bytes).filter(|end| i64::try_from(*end).is_ok());
            let end = end.ok_or("a read or write beyond all files")?;
            let name = line.path.ok_or(line.object);
            let next = numbers.len() as u32;
            let file = *numbers.entry(name).or_insert(next);
            trace.sizes.resize(numbers.len(), 0);
            let size = &mut trace.sizes[file as usize];
            *size = end.max(*size);
            trace.touches.push((touch, file, line.offset, line.bytes));
        }
        trace.files = numbers.len();
        Ok(trace)
    }

    /// Time of requests beyond their round trips, for reads or for all other calls.
    fn service_us(&self, other: usize) -> u64 {
        self.asked_us[other].saturating_sub(self.asked[other].saturating_mul(self.rtt_us.unwrap_or(0)))
    }

    /// Time of calls without their requests.
    fn here_us(&self) -> u64 {
        self.took_us.saturating_sub(self.asked_us[0]).saturating_sub(self.asked_us[1])
    }

    /// Time of all calls if `reads` of them wait for a round trip of `rtt_us`.
    fn waited_us(&self, reads: u64, rtt_us: f64) -> f64 {
        // Each read takes the mean service time of the trace's requests of reads.
        let service = self.service_us(0) as f64 / self.asked[0].max(1) as f64 * reads as f64;
        let rounds = (self.asked[1] + reads) as f64;
        self.here_us() as f64 + self.service_us(1) as f64 + service + rounds * rtt_us
    }

    /// Size of a cache that holds all data.
    fn all_bytes(&self) -> u64 {
        let of = |size: &u64| size.saturating_add(ENTRY_BYTES);
        let all: u64 = self.sizes.iter().map(of).fold(0, u64::saturating_add);
        // Eviction starts at nine tenths of the size.
        all.saturating_add(all / 9).saturating_add(BLOCK_BYTES).max(LEAST_BYTES)
    }

    /// The hits of a cache, and the number of reads that wait.
    fn play(&self, policy: Policy, cache_bytes: u64) -> (Score, u64) {
        let (mut cache, mut waited) = (Model::new(policy, cache_bytes), 0);
        for &(touch, file, from, len) in &self.touches {
            let size = self.sizes[file as usize];
            match touch {
                Touch::Read => waited += u64::from(!cache.read(file, size, from, len)),
                Touch::Write => cache.wrote(file, size, from, len),
            }
        }
        (cache.score().clone(), waited)
    }

    fn reads(&self) -> u64 {
        self.touches.iter().filter(|(touch, ..)| *touch == Touch::Read).count() as u64
    }
}

/// Runs the command.
///
/// # Errors
/// The file cannot be read or is not a trace of calls.
pub fn run(args: &TraceWhatIf) -> Result<(), Failure> {
    if let Some(wrong) = args.rtts_ms.iter().find(|rtt| !(rtt.is_finite() && (0.0..=1e6).contains(*rtt))) {
        return Err(Failure::usage(format!("--rtt: {wrong}: expected milliseconds")));
    }
    let shown = args.file.display();
    let file = std::fs::File::open(&args.file).map_err(|e| Failure::usage(format!("{shown}: {e}")))?;
    let trace = Trace::of(lines(std::io::BufReader::new(file))).map_err(|e| {
        Failure::usage(format!("{shown}: {e} (a trace of `hither trace record --calls` is wanted)"))
    })?;
    if trace.calls == 0 {
        return Err(Failure::usage(format!("{shown}: there is no call in it")));
    }
    let told = tell(&trace, args);
    // The reader of the output may stop early.
    let _ = std::io::stdout().write_all(told.as_bytes());
    Ok(())
}

fn lines(mut from: impl BufRead) -> impl Iterator<Item = Result<Line, String>> {
    let mut number = 0_u64;
    std::iter::from_fn(move || {
        number += 1;
        let mut line = Vec::new();
        let read = std::io::Read::take(&mut from, LINE_MAX_BYTES).read_until(b'\n', &mut line);
        match read {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_slice(&line).map_err(|e| format!("line {number}: {e}"))),
            Err(e) => Some(Err(format!("line {number}: {e}"))),
        }
    })
}

fn tell(trace: &Trace, args: &TraceWhatIf) -> String {
    let sizes = if args.cache_sizes.is_empty() {
        let all = trace.all_bytes();
        let mut sizes: Vec<u64> = [16, 8, 4, 2, 1].map(|part| (all / part).max(LEAST_BYTES)).into();
        sizes.dedup();
        sizes
    } else {
        args.cache_sizes.clone()
    };
    let policies = if args.policies.is_empty() { Policy::ALL.to_vec() } else { args.policies.clone() };
    let cells = sizes.iter().flat_map(|bytes| policies.iter().map(move |policy| (*bytes, *policy)));
    let cells: Vec<_> = cells.map(|(bytes, policy)| (bytes, policy, trace.play(policy, bytes))).collect();
    if args.json { as_json(trace, &cells, &args.rtts_ms) } else { as_text(trace, &cells, &args.rtts_ms) }
}

type Cell = (u64, Policy, (Score, u64));

fn waited(trace: &Trace, reads: u64, rtts_ms: &[f64]) -> Vec<f64> {
    rtts_ms.iter().map(|rtt| trace.waited_us(reads, rtt * 1e3)).collect()
}

fn as_json(trace: &Trace, cells: &[Cell], rtts_ms: &[f64]) -> String {
    let times = |reads: u64| -> Vec<_> {
        let waited = waited(trace, reads, rtts_ms);
        rtts_ms
            .iter()
            .zip(waited)
            .map(|(rtt, us)| json!({ "rtt_ms": rtt, "waited_us": us.round() }))
            .collect()
    };
    let mut out = String::new();
    let recorded = json!({
        "cache": "as recorded", "calls": trace.calls, "files": trace.files, "reads": trace.reads(), "waited_us": trace.took_us,
        "asked": trace.asked[0] + trace.asked[1], "asked_for_reads": trace.asked[0], "rtt_us": trace.rtt_us, "at": times(trace.asked[0]),
    });
    let _ = writeln!(out, "{recorded}");
    for (bytes, policy, (score, reads)) in cells {
        let line = json!({
            "cache_bytes": bytes, "policy": policy.name(), "hits": score.hits, "hit_bytes": score.hit_bytes,
            "fetched_bytes": score.fetched_bytes, "calls": score.calls, "evictions": score.evictions, "at": times(*reads),
        });
        let _ = writeln!(out, "{line}");
    }
    out
}

fn as_text(trace: &Trace, cells: &[Cell], rtts_ms: &[f64]) -> String {
    let mut out = String::new();
    let asked = trace.asked[0] + trace.asked[1];
    let _ = writeln!(
        out,
        "{} calls in {}, {} of them reads, of {} files that were read or written; they took {} in all, and waited for {asked} round trips{}",
        trace.calls,
        duration(trace.ended_us),
        trace.reads(),
        trace.files,
        duration(trace.took_us),
        trace.rtt_us.map(|rtt| format!(", the shortest of {}", duration(rtt))).unwrap_or_default(),
    );
    let _ =
        write!(out, "\n{:>10}  {:<8} {:>8} {:>10} {:>8}", "disk cache", "policy", "hits", "fetched", "READs");
    for rtt in rtts_ms {
        let _ = write!(out, " {:>12}", format!("at {rtt} ms"));
    }
    let _ = writeln!(out);
    let mut row = |cache: &str, policy: &str, hits: String, fetched: String, calls: u64, reads: u64| {
        let _ = write!(out, "{cache:>10}  {policy:<8} {hits:>8} {fetched:>10} {calls:>8}");
        for us in waited(trace, reads, rtts_ms) {
            let _ = write!(out, " {:>12}", duration(us as u64));
        }
        let _ = writeln!(out);
    };
    row("recorded", "", String::new(), String::new(), trace.asked[0], trace.asked[0]);
    for (size, policy, (score, reads)) in cells {
        let part = 100.0 * score.hits as f64 / trace.reads().max(1) as f64;
        row(
            &bytes(*size),
            policy.name(),
            format!("{part:.0} %"),
            bytes(score.fetched_bytes),
            score.calls,
            *reads,
        );
    }
    out
}
