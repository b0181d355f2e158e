//! Two clients that share a file (`lab/bench-sharing.sh`): a table for each kind of sharing.

use serde_json::Value;
use std::fmt::Write;

/// The kinds of sharing, in the order of tables.
const KINDS: [(&str, &str); 3] = [
    ("reads", "Both open and read a file that nobody writes"),
    ("sequential", "In turn each opens and reads what the other has just closed, then writes it"),
    ("tight", "Both keep the files open; each writes one and reads the other's"),
];

/// The tables of all results. A newer line of a label replaces an older one.
pub fn render(all: &[Value]) -> String {
    let mut out = String::from("# Two clients that share a file\n");
    for (kind, title) in KINDS {
        let mut labels: Vec<&str> = Vec::new();
        for label in all.iter().filter(|v| v["kind"] == kind).filter_map(|v| v["label"].as_str()) {
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        if labels.is_empty() {
            continue;
        }
        let _ = write!(
            out,
            "\n## {title}\n\n| client | operations/s | calls/operation | stale reads | oldest, ms | read, ms (p50 / p99) | write, ms (p50 / p99) |\n|---|---:|---:|---:|---:|---:|---:|\n"
        );
        for label in labels {
            let newest = all.iter().rev().find(|v| v["kind"] == kind && v["label"] == label);
            let Some(line) = newest else { continue };
            let number = |key: &str| line[key].as_f64();
            let shown = |key: &str, digits: usize| {
                number(key).map_or_else(|| "-".into(), |n| format!("{n:.digits$}"))
            };
            let both = |what: &str| {
                let [p50, p99] = ["p50", "p99"].map(|part| shown(&format!("{what}_{part}_ms"), 2));
                if number(&format!("{what}s")) == Some(0.0) { "-".into() } else { format!("{p50} / {p99}") }
            };
            let stale = format!("{} of {}", shown("stale", 0), shown("reads", 0));
            let _ = writeln!(
                out,
                "| {label} | {} | {} | {stale} | {} | {} | {} |",
                shown("ops_s", 0),
                shown("calls_op", 2),
                shown("oldest_ms", 1),
                both("read"),
                both("write"),
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn newest_line_of_label_counts() {
        let line = |kind: &str, stale: u32, writes: u32| {
            json!({"bench": "sharing", "label": "x", "kind": kind, "ops_s": 12.4, "calls_op": 0.5, "reads": 3, "writes": writes, "stale": stale,
                   "oldest_ms": 0.25, "read_p50_ms": 1.0, "read_p99_ms": 2.0, "write_p50_ms": 3.0, "write_p99_ms": 4.0})
        };
        let text = render(&[line("tight", 9, 1), line("tight", 1, 1), line("reads", 0, 0)]);
        assert!(text.contains("| x | 12 | 0.50 | 1 of 3 | 0.2 | 1.00 / 2.00 | 3.00 / 4.00 |"), "{text}");
        assert!(text.contains("| x | 12 | 0.50 | 0 of 3 | 0.2 | 1.00 / 2.00 | - |"), "{text}");
        assert!(!text.contains("9 of 3") && !text.contains("## In turn"), "{text}");
    }
}
