//! Markdown tables of results: a table per workload, server and delay; a row per phase; a column
//! per client. A cell is "RPCs / time", or throughput for big files; medians over repetitions.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What one client needed for one phase, once.
struct Sample {
    rpcs: f64,
    secs: f64,
    bytes: f64,
    n: f64,
}

#[derive(Default)]
struct Table {
    /// In the order of their first appearance.
    phases: Vec<String>,
    clients: Vec<String>,
    cells: BTreeMap<(String, String), Vec<Sample>>,
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
        let client = format!("{} {}", text("client"), text("vers"));
        let phase = match v["depth"].as_u64() {
            Some(d) => format!("{}, depth {d}", text("phase")),
            None => text("phase"),
        };
        let number = |x: &Value| x.as_f64().unwrap_or(0.0);
        let sample = Sample {
            rpcs: number(&v["rpc"]["total"]),
            secs: number(&v["secs"]),
            bytes: number(&v["bytes"]),
            n: if v["depth"].is_u64() { number(&v["n"]).max(1.0) } else { 1.0 },
        };
        let at = tables.iter().position(|(t, _)| *t == title).unwrap_or_else(|| {
            tables.push((title, Table::default()));
            tables.len() - 1
        });
        let table = &mut tables[at].1;
        remember(&mut table.phases, &phase);
        remember(&mut table.clients, &client);
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
        let mut s = format!("\n### {title}\n\n| phase | {} |\n", self.clients.join(" | "));
        s += &"|---".repeat(self.clients.len() + 1);
        s += "|\n";
        for phase in &self.phases {
            let _ = write!(s, "| {phase} |");
            for client in &self.clients {
                let samples = self.cells.get(&(phase.clone(), client.clone()));
                let _ = write!(s, " {} |", samples.map_or_else(String::new, |v| cell(v)));
            }
            s += "\n";
        }
        s
    }
}

fn cell(samples: &[Sample]) -> String {
    let median = |f: fn(&Sample) -> f64| {
        let mut v: Vec<f64> = samples.iter().map(f).collect();
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let (rpcs, secs, bytes) = (median(|s| s.rpcs / s.n), median(|s| s.secs / s.n), median(|s| s.bytes));
    let rpcs = if rpcs.fract() == 0.0 { format!("{rpcs:.0}") } else { format!("{rpcs:.1}") };
    if bytes > 0.0 {
        return format!("{rpcs} / {:.0} MB/s", bytes / secs / 1e6);
    }
    let time = match secs {
        s if s < 0.001 => format!("{:.2} ms", s * 1e3),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    };
    format!("{rpcs} / {time}")
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
    fn big_files_show_throughput() {
        let v = json!({"workload": "stream", "server": "s", "client": "c", "vers": "3", "rtt": 0.0,
                       "phase": "write", "n": 1, "secs": 2.0, "bytes": 1_000_000_000u64, "rpc": {"total": 7}});
        assert!(render(&[v]).contains("| write | 7 / 500 MB/s |"));
    }
}
