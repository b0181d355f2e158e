//! Results of the laboratory and of `hither bench run`: JSON lines, read as comparable figures.
//!
//! Each line is one measurement of one phase of a workload with one client. Lines of other
//! measurements have other field names and are converted.

use super::Failure;
use crate::units::duration;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// One measurement of one phase.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the file without its directory.
    pub file: String,
    pub workload: String,
    /// The phase, with its depth if it has one.
    pub phase: String,
    pub client: String,
    pub vers: String,
    pub opts: String,
    pub server: String,
    /// Network delay in milliseconds.
    pub rtt_ms: f64,
    /// Calls of the client, if counted. If the phase contains several equal operations, the calls
    /// of one operation.
    pub rpcs: Option<f64>,
    /// Duration in seconds. If the phase contains several equal operations, the duration of one
    /// operation.
    pub secs: Option<f64>,
}

/// The quantity to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    Rpcs,
    Secs,
}

impl Sample {
    /// The samples of a line. A line about the machine or a mount has none.
    pub fn of(file: &str, line: &Value) -> Vec<Self> {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_string();
        let mut sample = Self {
            file: file.into(),
            workload: text("workload"),
            phase: text("phase"),
            client: text("client"),
            vers: text("vers"),
            opts: text("opts"),
            server: text("server"),
            rtt_ms: line["rtt"].as_f64().unwrap_or(0.0),
            rpcs: line["rpc"]["total"].as_f64(),
            secs: line["secs"].as_f64(),
        };
        if sample.phase == "mount" || line.get("about").is_some() {
            return Vec::new();
        }
        match sample.workload.as_str() {
            "" if line.get("bench").is_some() => sample.of_a_server(line),
            "" => sample.of_a_simulation(line),
            "mab-clients" => vec![sample.of_many_clients(line)],
            "overhead" => {
                sample.client = text("place");
                sample.secs = line["ns"].as_f64().map(|ns| ns / 1e9);
                sample.rpcs = line["rpcs"].as_f64();
                vec![sample]
            }
            "reread" => {
                sample.client = text("place");
                sample.phase = format!("{}, {}", text("way"), text("state"));
                let each = line["secs"].as_array().into_iter().flatten().filter_map(Value::as_f64);
                each.map(|secs| Self { secs: Some(secs), ..sample.clone() }).collect()
            }
            _ => {
                if let Some(depth) = line["depth"].as_u64() {
                    let n = line["n"].as_f64().unwrap_or(1.0).max(1.0);
                    sample.phase = format!("{}, depth {depth}", sample.phase);
                    sample.rpcs = sample.rpcs.map(|all| all / n);
                    sample.secs = sample.secs.map(|all| all / n);
                }
                vec![sample]
            }
        }
    }

    /// Converts a line about a server (`lab/bench-serve.sh`). The server becomes the client of the
    /// sample, and its disk the server. Seconds are those of one call: the mean response time at a
    /// fixed rate, otherwise one second divided by its calls. For reads it is one second of
    /// processor time.
    fn of_a_server(mut self, line: &Value) -> Vec<Self> {
        let number = |key: &str| line[key].as_f64().filter(|n| *n > 0.0);
        let word = |key: &str| line[key].as_str().unwrap_or_default();
        self.workload = word("bench").into();
        self.client = word("label").into();
        self.server = word("disk").into();
        let sized = number("size_bytes").map_or_else(String::new, |size| format!(" {size}"));
        let modifying = line["modifying"].as_u64().unwrap_or_default();
        (self.phase, self.secs) = match word("bench") {
            "nhfsstone" if line.get("capacity").is_some() => {
                (format!("capacity, {modifying} % modify"), number("capacity").map(f64::recip))
            }
            "nhfsstone" => {
                let rate = line["offered"].as_u64().unwrap_or_default();
                (format!("{rate} calls a second, {modifying} % modify"), number("mean_ms").map(|ms| ms / 1e3))
            }
            "sync" => {
                let clients = line["clients"].as_u64().unwrap_or_default();
                (format!("{}{sized}, {clients} clients", word("kind")), number("ops_s").map(f64::recip))
            }
            "reads" => (format!("{}{sized}", word("kind")), number("ops_cpu_s").map(f64::recip)),
            "sharing" => {
                self.rpcs = line["calls_op"].as_f64();
                (format!("{}{sized}", word("kind")), number("ops_s").map(f64::recip))
            }
            "stream" => {
                let tcp = Self {
                    client: format!("TCP beside {}", self.client),
                    phase: "a byte".into(),
                    secs: number("tcp_bytes_s").map(f64::recip),
                    ..self.clone()
                };
                (self.phase, self.secs) = ("a byte".into(), number("bytes_s").map(f64::recip));
                return [self, tcp].into_iter().filter(|sample| sample.secs.is_some()).collect();
            }
            // A memory figure has no time.
            _ => return Vec::new(),
        };
        if self.secs.is_some() { vec![self] } else { Vec::new() }
    }

    /// Converts a line of the Modified Andrew Benchmark on many mounts (`lab/bench-nqnfs.sh`). The
    /// calls are those of one mount. The phase contains the varied parameter.
    fn of_many_clients(mut self, line: &Value) -> Self {
        let number = |key: &str| line[key].as_f64().filter(|n| *n > 0.0);
        self.workload = format!("mab {}", line["series"].as_str().unwrap_or_default());
        for (key, unit) in [("clients", "clients"), ("memory", "MiB"), ("share", "%")] {
            if let Some(n) = number(key) {
                self.phase = format!("{}, {n} {unit}", self.phase);
            }
        }
        self.rpcs = self.rpcs.zip(number("clients")).map(|(all, clients)| all / clients);
        self
    }

    /// Converts a line about a simulated cache. Its size becomes the phase, its policy the client.
    fn of_a_simulation(mut self, line: &Value) -> Vec<Self> {
        let Some(size) = line["cache_bytes"].as_u64() else { return Vec::new() };
        self.client = line["policy"].as_str().unwrap_or_default().into();
        let profile = line["profile"].as_str();
        self.workload = format!("cache-sizes {}", profile.unwrap_or("checked against a mount"));
        self.phase = format!("{size} bytes");
        match line["calls_8k"].as_f64() {
            Some(calls) => vec![Self { rpcs: Some(calls), ..self }],
            // The number of misses is the number of calls to the server.
            None => ["simulated", "mount"]
                .into_iter()
                .filter_map(|place| {
                    let missed = line["reads"].as_f64()? - line[place]["hits"].as_f64()?;
                    let client = format!("{} {place}", self.client);
                    Some(Self { client, rpcs: Some(missed), ..self.clone() })
                })
                .collect(),
        }
    }

    pub fn value(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::Rpcs => self.rpcs,
            Metric::Secs => self.secs,
        }
    }

    /// Client, version, options.
    pub fn who(&self) -> String {
        let all = [&self.client, &self.vers, &self.opts];
        let words: Vec<_> = all.into_iter().filter(|word| !word.is_empty()).map(String::as_str).collect();
        words.join(" ")
    }

    /// Whether a word of a selection matches this sample.
    fn has(&self, word: &str) -> bool {
        if let Some(word) = word.strip_prefix('!') {
            return !self.has(word);
        }
        let opts = if self.opts.is_empty() { "default" } else { &self.opts };
        let own = [&self.client, &self.vers, &self.server, &self.workload, &self.phase].map(String::as_str);
        own.into_iter().chain(opts.split(',')).any(|own| own == word)
            || word.strip_prefix("rtt").and_then(|n| n.parse::<f64>().ok()) == Some(self.rtt_ms)
    }
}

/// Minimum, median and maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
    pub count: usize,
}

impl Spread {
    /// The spread of the values, or `None` without values. For an even number of values the median
    /// is the mean of the middle two.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> = values.collect();
        all.sort_by(f64::total_cmp);
        let (min, max) = (*all.first()?, *all.last()?);
        let middle = all.len() / 2;
        let median =
            if all.len().is_multiple_of(2) { (all[middle - 1] + all[middle]) / 2.0 } else { all[middle] };
        Some(Self { min, median, max, count: all.len() })
    }
}

/// Some results of a file.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The selection as the user wrote it.
    pub name: String,
    pub samples: Vec<Sample>,
}

impl Selection {
    /// A selection of the given lines.
    pub fn of_lines(name: &str, lines: impl IntoIterator<Item = Value>) -> Self {
        let samples = lines.into_iter().flat_map(|line| Sample::of(name, &line)).collect();
        Self { name: name.into(), samples }
    }

    /// Reads `FILE` or `FILE#WORD,!WORD`. Samples must match every word and none after a `!`.
    pub fn read(asked: &str) -> Result<Self, Failure> {
        let (file, words) = asked.split_once('#').unwrap_or((asked, ""));
        let words: Vec<&str> = words.split(',').filter(|word| !word.is_empty()).collect();
        let mut all = load(Path::new(file))?;
        let found: BTreeSet<String> = all.iter().map(Sample::who).collect();
        all.retain(|sample| words.iter().all(|word| sample.has(word)));
        if all.is_empty() {
            let found: Vec<String> = found.into_iter().collect();
            return Err(Failure::usage(format!("{asked}: no results; the file has {}", found.join("; "))));
        }
        Ok(Self { name: asked.into(), samples: all })
    }

    /// The selection, if it concerns one client with one server.
    pub fn of_one(self) -> Result<Self, Failure> {
        let all: BTreeSet<String> = self
            .samples
            .iter()
            .map(|s| {
                let opts = if s.opts.is_empty() { "default" } else { &s.opts };
                let place = if s.server.is_empty() { String::new() } else { format!(",{}", s.server) };
                let vers = if s.vers.is_empty() { String::new() } else { format!(",{}", s.vers) };
                format!("#{}{vers},{opts}{place},rtt{}", s.client, s.rtt_ms)
            })
            .collect();
        match all.len() {
            0 | 1 => Ok(self),
            _ => {
                let all: Vec<String> = all.into_iter().collect();
                Err(Failure::usage(format!(
                    "{} has several clients or options, choose one: {}",
                    self.name,
                    all.join(" ")
                )))
            }
        }
    }

    /// Workloads and phases in the order of measurement.
    pub fn phases(&self) -> Vec<(&str, &str)> {
        let mut seen = BTreeSet::new();
        let all = self.samples.iter().map(|s| (s.workload.as_str(), s.phase.as_str()));
        all.filter(|at| seen.insert(*at)).collect()
    }

    /// The spread of a phase's figures.
    pub fn spread(&self, at: (&str, &str), metric: Metric) -> Option<Spread> {
        let here = self.samples.iter().filter(|s| (s.workload.as_str(), s.phase.as_str()) == at);
        Spread::of(here.filter_map(|s| s.value(metric)))
    }
}

/// All samples of a file.
///
/// # Errors
/// The file cannot be read or contains no results.
pub fn load(file: &Path) -> Result<Vec<Sample>, Failure> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| Failure::usage(format!("{shown}: {e}")))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut all = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let value = serde_json::from_str(line)
            .map_err(|e| Failure::usage(format!("{shown}:{}: not a JSON line of results: {e}", i + 1)))?;
        all.extend(Sample::of(&name, &value));
    }
    Ok(all)
}

/// Formats a number of calls.
pub fn calls(n: f64) -> String {
    if n.fract() == 0.0 { format!("{n:.0}") } else { format!("{n:.2}") }
}

/// Formats a time.
pub fn time(secs: f64) -> String {
    duration(Duration::from_secs_f64(secs.max(0.0)).as_micros() as u64)
}

/// One selection as a table.
pub fn summary(selection: &Selection) -> String {
    let mut out = format!("{:<44}{:>10}{:>12}{:>12}{:>12}\n", "", "RPCs", "median", "least", "most");
    for at in selection.phases() {
        let rpcs = selection.spread(at, Metric::Rpcs).map_or_else(|| "-".into(), |s| calls(s.median));
        let name = format!("{} {}", at.0, at.1);
        let Some(t) = selection.spread(at, Metric::Secs) else { continue };
        let _ =
            writeln!(out, "{name:<44}{rpcs:>10}{:>12}{:>12}{:>12}", time(t.median), time(t.min), time(t.max));
    }
    out
}

/// Two selections as a table, with the ratios of the second to the first.
pub fn compare(a: &Selection, b: &Selection) -> Result<String, Failure> {
    let mut out = format!(
        "A: {}\nB: {}\n\n{:<44}{:>10}{:>10}{:>7}{:>11}{:>11}{:>7}  {}\n",
        a.name, b.name, "", "RPCs A", "RPCs B", "B/A", "time A", "time B", "B/A", "least to most of A; of B"
    );
    let mut rows = 0;
    for at in a.phases() {
        let (Some(ta), Some(tb)) = (a.spread(at, Metric::Secs), b.spread(at, Metric::Secs)) else { continue };
        rows += 1;
        let (ra, rb) = (a.spread(at, Metric::Rpcs), b.spread(at, Metric::Rpcs));
        let count = |s: Option<Spread>| s.map_or_else(|| "-".into(), |s| calls(s.median));
        let ratio = |a: f64, b: f64| if a > 0.0 { format!("{:.2}", b / a) } else { "-".into() };
        let both = ra.zip(rb).map_or_else(|| "-".into(), |(a, b)| ratio(a.median, b.median));
        let name = format!("{} {}", at.0, at.1);
        let _ = writeln!(
            out,
            "{name:<44}{:>10}{:>10}{both:>7}{:>11}{:>11}{:>7}  {} to {}; {} to {}",
            count(ra),
            count(rb),
            time(ta.median),
            time(tb.median),
            ratio(ta.median, tb.median),
            time(ta.min),
            time(ta.max),
            time(tb.min),
            time(tb.max)
        );
    }
    match rows {
        0 => Err(Failure::usage(format!("{} and {} have no phase in common", a.name, b.name))),
        _ => Ok(out),
    }
}
