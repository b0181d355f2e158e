//! Markdown tables of results: a table per workload, server and delay, a row per phase, and a
//! column per client and its options. A cell is "RPCs / round trips / time", or the throughput of
//! large files, as medians over repetitions. Round trips are the time divided by the delay, so they
//! appear only with a delay. Where a target is known (`lab/work/bounds.py`), a mark says whether
//! the RPCs meet it.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The cost of one phase with one client, in one repetition.
struct Sample {
    rpcs: f64,
    secs: f64,
    bytes: f64,
    n: f64,
    /// The target: the most RPCs.
    target: Option<f64>,
}

#[derive(Default)]
struct Table {
    rtt_ms: f64,
    /// Phases in the order of their first appearance.
    phases: Vec<String>,
    clients: Vec<String>,
    /// Targets by phase. A phase has several where the target depends on mount options.
    targets: BTreeMap<String, Vec<f64>>,
    cells: BTreeMap<(String, String), Vec<Sample>>,
}

/// The name of a client with its options in tables and pictures.
pub fn client_name(line: &Value) -> String {
    let word = |k: &str| line[k].as_str().unwrap_or_default();
    format!("{} {} {}", word("client"), word("vers"), word("opts")).trim_end().to_string()
}

/// Number of equal operations in a phase. The phase's numbers are divided by it.
pub fn operations(line: &Value) -> f64 {
    if line["depth"].is_u64() { line["n"].as_f64().unwrap_or(1.0).max(1.0) } else { 1.0 }
}

/// All tables.
pub fn render(lines: &[Value]) -> String {
    let mut tables: Vec<(String, Table)> = vec![];
    for v in lines {
        let text = |k: &str| v[k].as_str().unwrap_or_default().to_string();
        if text("phase") == "mount" {
            continue;
        }
        let rtt_ms = v["rtt"].as_f64().unwrap_or(0.0);
        let title = format!("{}, {}, round trip {rtt_ms} ms", text("workload"), text("server"));
        let client = client_name(v);
        let phase = match v["depth"].as_u64() {
            Some(d) => format!("{}, depth {d}", text("phase")),
            None => text("phase"),
        };
        let number = |x: &Value| x.as_f64().unwrap_or(0.0);
        let sample = Sample {
            rpcs: number(&v["rpc"]["total"]),
            secs: number(&v["secs"]),
            bytes: number(&v["bytes"]),
            n: operations(v),
            target: v["target"].as_f64(),
        };
        let at = tables.iter().position(|(t, _)| *t == title).unwrap_or_else(|| {
            tables.push((title, Table { rtt_ms, ..Table::default() }));
            tables.len() - 1
        });
        let table = &mut tables[at].1;
        remember(&mut table.phases, &phase);
        remember(&mut table.clients, &client);
        if let Some(target) = sample.target {
            let known = table.targets.entry(phase.clone()).or_default();
            if !known.contains(&target) {
                known.push(target);
            }
        }
        table.cells.entry((phase, client)).or_default().push(sample);
    }
    tables.iter().map(|(title, t)| t.render(title)).collect()
}

fn remember(list: &mut Vec<String>, item: &str) {
    if !list.iter().any(|x| x == item) {
        list.push(item.to_string());
    }
}

impl Table {
    fn render(&self, title: &str) -> String {
        let aimed = !self.targets.is_empty();
        let target_head = if aimed { " target |" } else { "" };
        let mut s = format!("\n### {title}\n\n| phase |{target_head} {} |\n", self.clients.join(" | "));
        s += &"|---".repeat(self.clients.len() + 1 + usize::from(aimed));
        s += "|\n";
        let mut met = vec![(0, 0); self.clients.len()];
        for phase in &self.phases {
            let _ = write!(s, "| {phase} |");
            if aimed {
                let targets = self.targets.get(phase).into_iter().flatten();
                let _ = write!(s, " {} |", targets.map(|t| count(*t)).collect::<Vec<_>>().join(" or "));
            }
            for (client, (good, all)) in self.clients.iter().zip(&mut met) {
                let Some(samples) = self.cells.get(&(phase.clone(), client.clone())) else {
                    s += "  |";
                    continue;
                };
                if let Some(t) = samples[0].target {
                    *all += 1;
                    *good += usize::from(rpcs(samples) <= t);
                }
                let _ = write!(s, " {} |", cell(samples, self.rtt_ms));
            }
            s += "\n";
        }
        if aimed {
            let each = self.clients.iter().zip(met).map(|(c, (good, all))| format!("{c} {good} of {all}"));
            let _ = write!(s, "\nTargets met: {}.\n", each.collect::<Vec<_>>().join(", "));
        }
        s
    }
}

fn median(samples: &[Sample], f: impl Fn(&Sample) -> f64) -> f64 {
    let mut v: Vec<f64> = samples.iter().map(f).collect();
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn rpcs(samples: &[Sample]) -> f64 {
    median(samples, |s| s.rpcs / s.n)
}

fn count(x: f64) -> String {
    if x.fract() == 0.0 { format!("{x:.0}") } else { format!("{}", (x * 100.0).round() / 100.0) }
}

/// A time in a readable form.
pub fn duration(secs: f64) -> String {
    match secs {
        s if s < 0.000_01 => format!("{:.2} µs", s * 1e6),
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

fn cell(samples: &[Sample], rtt_ms: f64) -> String {
    let (rpcs, secs, bytes) =
        (rpcs(samples), median(samples, |s| s.secs / s.n), median(samples, |s| s.bytes));
    let mark = match samples[0].target {
        Some(t) if rpcs <= t => " ✓",
        Some(_) => " ✗",
        None => "",
    };
    let rpcs = count(rpcs) + mark;
    if bytes > 0.0 {
        return format!("{rpcs} / {:.0} MB/s", bytes / secs / 1e6);
    }
    let trips = if rtt_ms > 0.0 { format!("{:.1} rt / ", secs * 1e3 / rtt_ms) } else { String::new() };
    format!("{rpcs} / {trips}{}", duration(secs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn medians_per_file_and_empty_cells() {
        let line = |client: &str, phase: &str, rpcs: u64, secs: f64| {
            json!({"workload": "w", "server": "s", "client": client, "vers": "4.2", "rtt": 0, "phase": phase,
                   "depth": 4, "n": 2, "secs": secs, "rpc": {"total": rpcs}})
        };
        let text = render(&[
            line("kernel", "open", 16, 0.004),
            line("kernel", "open", 18, 0.008),
            line("kernel", "open", 100, 0.002),
            line("hither", "stat", 3, 3.0),
        ]);
        assert!(text.contains("### w, s, round trip 0 ms"), "{text}");
        assert!(text.contains("| open, depth 4 | 9 / 2.0 ms |  |"), "{text}");
        assert!(text.contains("| stat, depth 4 |  | 1.5 / 1.50 s |"), "{text}");
    }

    #[test]
    fn targets_and_round_trips() {
        let line = |opts: &str, rpcs: u64| {
            json!({"workload": "w", "server": "s", "client": "hither", "vers": "4.2", "opts": opts, "rtt": 10, "phase": "a",
                   "n": 1000, "secs": 0.025, "target": 1.25, "rpc": {"total": rpcs}})
        };
        let text = render(&[line("", 2), line("nocto", 1)]);
        assert!(text.contains("| phase | target | hither 4.2 | hither 4.2 nocto |"), "{text}");
        assert!(text.contains("| a | 1.25 | 2 ✗ / 2.5 rt / 25.0 ms | 1 ✓ / 2.5 rt / 25.0 ms |"), "{text}");
        assert!(text.contains("Targets met: hither 4.2 0 of 1, hither 4.2 nocto 1 of 1."), "{text}");
    }

    #[test]
    fn big_files_show_throughput() {
        let v = json!({"workload": "stream", "server": "s", "client": "c", "vers": "3", "rtt": 0.0,
                       "phase": "write", "n": 1, "secs": 2.0, "bytes": 1_000_000_000u64, "rpc": {"total": 7}});
        assert!(render(&[v]).contains("| write | 7 / 500 MB/s |"));
    }
}
