//! Servers side by side (`lab/bench-serve.sh`): a table of all results, and a picture of response
//! time against load (P3, figure 2).

use super::plot::{COLOURS, Drawn};
use plotters::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Servers in the order of columns and legends, with their descriptions.
const SERVERS: [(&str, &str); 5] = [
    ("hither-journal", "hither, journal on a fast disk"),
    ("hither-journal-same", "hither, journal on the same disk"),
    ("hither", "hither without a journal"),
    ("knfsd", "knfsd (sync, in a guest)"),
    ("ganesha", "nfs-ganesha"),
];
/// Disks, in the order of columns and legends, with their descriptions.
const DISKS: [(&str, &str); 2] =
    [("slow", "emulated hard disk, 8 ms a seek and a flush"), ("fast", "this machine's disk")];
/// The acceptable response time (P3).
const ACCEPTABLE_MS: f64 = 40.0;

/// Lines of a measurement on a disk.
fn lines<'a>(all: &'a [Value], bench: &'a str, disk: &'a str) -> impl Iterator<Item = &'a Value> {
    all.iter().filter(move |v| v["bench"] == bench && v["disk"] == disk)
}

/// A row of the table: its sort key and its name.
type Row = (Vec<u64>, String);

/// The runs of a cell by row and server. Each run has its sort key and its text.
type Rows<'a> = BTreeMap<Row, BTreeMap<&'a str, Vec<(f64, String)>>>;

/// Writes a table. A cell with several runs shows the run with the median sort key.
fn table(out: &mut String, head: &str, rows: &Rows<'_>) {
    let known = |name: &str| rows.values().any(|cells| cells.contains_key(name));
    let servers: Vec<_> = SERVERS.iter().filter(|(name, _)| known(name)).collect();
    let titles: Vec<&str> = servers.iter().map(|(_, title)| *title).collect();
    let _ = writeln!(out, "| {head} | {} |\n|---{}|", titles.join(" | "), "|---".repeat(titles.len()));
    for ((_, name), cells) in rows {
        let cell = |server: &str| {
            let mut runs = cells.get(server)?.clone();
            runs.sort_by(|a, b| a.0.total_cmp(&b.0));
            Some(runs.get(runs.len() / 2)?.1.clone())
        };
        let cells: Vec<String> =
            servers.iter().map(|(server, _)| cell(server).unwrap_or_else(|| "-".into())).collect();
        let _ = writeln!(out, "| {name} | {} |", cells.join(" | "));
    }
}

/// A number with its significant digits.
fn short(n: f64) -> String {
    match n {
        n if n >= 100.0 => format!("{n:.0}"),
        n if n >= 10.0 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

/// The table of all results.
pub fn render(all: &[Value]) -> String {
    let mut out = String::from("# Servers side by side\n");
    for (disk, title) in DISKS {
        response_times(&mut out, all, disk, title);
        capacities(&mut out, all, disk, title);
        changes(&mut out, all, disk, title);
    }
    reads(&mut out, all);
    others(&mut out, all);
    out
}

fn response_times(out: &mut String, all: &[Value], disk: &str, title: &str) {
    let mut rows = Rows::new();
    for v in lines(all, "nhfsstone", disk).filter(|v| v["modifying"] == 19) {
        let (Some(server), Some(rate)) = (v["label"].as_str(), v["offered"].as_u64()) else { continue };
        let number = |key: &str| v[key].as_f64().unwrap_or_default();
        let times = ["mean_ms", "p50_ms", "p99_ms"].map(|key| short(number(key))).join(" / ");
        let late = number("answered") < rate as f64 * 0.8;
        let said = if late { format!("{times}, {} answered", short(number("answered"))) } else { times };
        let row = rows.entry((vec![rate], rate.to_string())).or_default();
        row.entry(server).or_default().push((number("mean_ms"), said));
    }
    if !rows.is_empty() {
        let _ = write!(out, "\n## nhfsstone, {title}: response time in ms, mean / p50 / p99\n\n");
        table(out, "calls a second", &rows);
    }
}

fn capacities(out: &mut String, all: &[Value], disk: &str, title: &str) {
    let mut rows = Rows::new();
    for v in lines(all, "nhfsstone", disk) {
        let (Some(server), Some(n)) = (v["label"].as_str(), v["capacity"].as_f64()) else { continue };
        let modifying = v["modifying"].as_u64().unwrap_or_default();
        let said = if v["reached"] == true { format!("{n:.0}") } else { format!("{n:.0} or more") };
        let row = rows.entry((vec![modifying], format!("{modifying} %"))).or_default();
        row.entry(server).or_default().push((n, said));
    }
    if !rows.is_empty() {
        let _ = write!(out, "\n## nhfsstone, {title}: calls a second with a mean of {ACCEPTABLE_MS} ms\n\n");
        table(out, "calls that modify", &rows);
    }
}

fn changes(out: &mut String, all: &[Value], disk: &str, title: &str) {
    let mut rows = Rows::new();
    let mut kinds: Vec<String> = Vec::new();
    for v in lines(all, "sync", disk) {
        let (Some(server), Some(kind)) = (v["label"].as_str(), v["kind"].as_str()) else { continue };
        let number = |key: &str| v[key].as_f64().unwrap_or_default();
        let (clients, size) = (v["clients"].as_u64().unwrap_or(1), v["size_bytes"].as_u64().unwrap_or(0));
        let sized = ["write", "commit", "create-write"].contains(&kind);
        let kind = if sized { format!("{kind}, {size} bytes") } else { kind.to_string() };
        let at = kinds.iter().position(|k| *k == kind).unwrap_or(kinds.len());
        if at == kinds.len() {
            kinds.push(kind.clone());
        }
        let plural = if clients == 1 { "" } else { "s" };
        let row =
            rows.entry((vec![at as u64, clients], format!("{kind}, {clients} client{plural}"))).or_default();
        let said = format!("{} ({})", short(number("ops_s")), short(number("p99_ms")));
        row.entry(server).or_default().push((number("ops_s"), said));
    }
    if !rows.is_empty() {
        let _ = write!(out, "\n## Stable changes, {title}: a second (p99 in ms)\n\n");
        table(out, "", &rows);
    }
}

fn reads(out: &mut String, all: &[Value]) {
    let mut rows = Rows::new();
    let mut kinds: Vec<String> = Vec::new();
    for v in all.iter().filter(|v| v["bench"] == "reads") {
        let (Some(server), Some(kind)) = (v["label"].as_str(), v["kind"].as_str()) else { continue };
        let size = v["size_bytes"].as_u64().unwrap_or(0);
        let kind = if size > 0 { format!("{kind}, {size} bytes") } else { kind.to_string() };
        let at = kinds.iter().position(|k| *k == kind).unwrap_or(kinds.len());
        if at == kinds.len() {
            kinds.push(kind.clone());
        }
        let number = |key: &str| v[key].as_f64().unwrap_or_default();
        let said = format!("{} ({})", short(number("ops_cpu_s")), short(number("ops_s")));
        rows.entry((vec![at as u64], kind))
            .or_default()
            .entry(server)
            .or_default()
            .push((number("ops_cpu_s"), said));
    }
    if !rows.is_empty() {
        out.push_str("\n## Reads from memory: in a second of the server's processor time (in a second)\n\n");
        table(out, "", &rows);
    }
}

/// Sequential reads beside TCP, and memory. Each has its own kind of line.
fn others(out: &mut String, all: &[Value]) {
    let of = |bench: &'static str| all.iter().filter(move |v| v["bench"] == bench);
    if of("stream").next().is_some() {
        out.push_str(
            "\n## Sequential read of a file in the server's memory\n\n| client | MB/s | TCP beside it, MB/s | ratio |\n|---|---|---|---|\n",
        );
    }
    for v in of("stream") {
        let (ours, tcp) =
            (v["bytes_s"].as_f64().unwrap_or_default(), v["tcp_bytes_s"].as_f64().unwrap_or_default());
        let name = v["label"].as_str().unwrap_or_default();
        let _ =
            writeln!(out, "| {name} | {:.0} | {:.0} | {:.2} |", ours / 1e6, tcp / 1e6, ours / tcp.max(1.0));
    }
    if of("memory").next().is_some() {
        out.push_str("\n## Memory of hither serve\n\n| what | how many | resident before, MiB | after, MiB | bytes each |\n|---|---|---|---|---|\n");
    }
    for v in of("memory") {
        let number = |key: &str| v[key].as_f64().unwrap_or_default();
        let (before, after, count) = (number("before_bytes"), number("after_bytes"), number("count"));
        let mib = |n: f64| n / f64::from(1 << 20);
        let each = (after - before) / count.max(1.0);
        let what = v["kind"].as_str().unwrap_or_default();
        let _ = writeln!(out, "| {what} | {count} | {:.1} | {:.1} | {each:.0} |", mib(before), mib(after));
    }
}

/// Rate and time (ms) by server.
type Curves<'a> = Vec<(usize, &'a str, Vec<(f64, f64)>)>;

fn curves<'a>(all: &[Value], disk: &str, key: &str) -> Curves<'a> {
    let curve = |(at, (name, title)): (usize, &(&str, &'static str))| {
        let mut points: Vec<(f64, f64)> = lines(all, "nhfsstone", disk)
            .filter(|v| v["label"] == *name && v["modifying"] == 19)
            .filter_map(|v| Some((v["offered"].as_f64()?, v[key].as_f64()?.max(0.01))))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!points.is_empty()).then_some((at, *title, points))
    };
    SERVERS.iter().enumerate().filter_map(curve).collect()
}

/// Response time against offered load: a row for each disk, with the mean and the 99th percentile
/// side by side.
pub fn draw(file: &Path, all: &[Value]) -> Drawn {
    let disks: Vec<_> = DISKS.iter().filter(|(disk, _)| !curves(all, disk, "mean_ms").is_empty()).collect();
    if disks.is_empty() {
        return Err("no results of nhfsstone".into());
    }
    let area = SVGBackend::new(file, (1080, 60 + 380 * disks.len() as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let area = area.titled("nhfsstone: response time against offered load", ("sans-serif", 22))?;
    let mut panels = area.split_evenly((disks.len(), 2)).into_iter();
    for (disk, title) in disks {
        for (key, what) in [("mean_ms", "mean"), ("p99_ms", "99th percentile")] {
            if let Some(panel) = panels.next() {
                draw_panel(&panel, &format!("{what}, {title}"), &curves(all, disk, key), key == "mean_ms")?;
            }
        }
    }
    area.present()?;
    Ok(())
}

/// A number that begins with 1, 2 or 5. The axis has no room for other labels.
fn round(n: f64) -> String {
    let text = format!("{n}");
    if text.starts_with(['1', '2', '5']) { text } else { String::new() }
}

fn draw_panel(
    panel: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    caption: &str,
    curves: &Curves<'_>,
    legend: bool,
) -> Drawn {
    let points = || curves.iter().flat_map(|(_, _, points)| points);
    let x = points().map(|p| p.0).fold(f64::MAX, f64::min)..points().map(|p| p.0).fold(1.0, f64::max);
    let y = points().map(|p| p.1).fold(ACCEPTABLE_MS, f64::min) / 1.5
        ..points().map(|p| p.1).fold(ACCEPTABLE_MS, f64::max) * 1.5;
    let mut chart = ChartBuilder::on(panel)
        .caption(caption, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(56)
        .build_cartesian_2d(x.clone().log_scale(), y.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("calls a second")
        .y_desc("ms")
        .x_label_formatter(&|x| round(*x))
        .y_label_formatter(&|y| format!("{y}"))
        .light_line_style(WHITE)
        .draw()?;
    let limit = [(x.start, ACCEPTABLE_MS), (x.end, ACCEPTABLE_MS)];
    chart.draw_series(LineSeries::new(limit, BLACK.mix(0.5)))?;
    for (at, title, points) in curves {
        let c = [COLOURS[0], COLOURS[1], COLOURS[4], COLOURS[3], COLOURS[2]][*at];
        chart
            .draw_series(LineSeries::new(points.iter().copied(), c.stroke_width(2)).point_size(3))?
            .label(*title)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], c.stroke_width(2)));
    }
    if legend {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn some() -> Vec<Value> {
        let mut all = Vec::new();
        for (server, mean) in [("ganesha", 90.0), ("hither-journal", 0.25)] {
            for rate in [20, 200] {
                all.push(json!({"bench": "nhfsstone", "disk": "slow", "label": server, "modifying": 19, "offered": rate,
                    "answered": 20, "mean_ms": mean, "p50_ms": 0.2, "p99_ms": 300.0}));
            }
            all.push(json!({"bench": "nhfsstone", "disk": "slow", "label": server, "modifying": 19, "capacity": mean, "reached": mean > 40.0}));
            for ops in [3.0, 1.0, 2.0] {
                all.push(json!({"bench": "sync", "disk": "slow", "label": server, "kind": "write", "clients": 1, "size_bytes": 512,
                    "ops_s": ops, "p99_ms": 7.0}));
            }
            all.push(json!({"bench": "reads", "disk": "fast", "label": server, "kind": "read", "size_bytes": 65536, "ops_s": 5.0, "ops_cpu_s": 6.0}));
        }
        all.push(json!({"bench": "stream", "disk": "fast", "label": "hither 4.2", "bytes_s": 8e8, "tcp_bytes_s": 1e9}));
        all.push(json!({"bench": "memory", "disk": "fast", "kind": "open", "count": 4, "before_bytes": 1048576, "after_bytes": 2097152}));
        all
    }

    #[test]
    fn every_measurement_is_in_the_table() {
        let text = render(&some());
        for row in [
            "| 20 | 0.25 / 0.20 / 300 | 90.0 / 0.20 / 300 |",
            "| 200 | 0.25 / 0.20 / 300, 20.0 answered | 90.0 / 0.20 / 300, 20.0 answered |",
            "| 19 % | 0 or more | 90 |",
            // The median of three runs.
            "| write, 512 bytes, 1 client | 2.00 (7.00) | 2.00 (7.00) |",
            "| read, 65536 bytes | 6.00 (5.00) | 6.00 (5.00) |",
            "| hither 4.2 | 800 | 1000 | 0.80 |",
            "| open | 4 | 1.0 | 2.0 | 262144 |",
        ] {
            assert!(text.contains(row), "{row} in {text}");
        }
    }

    #[test]
    fn picture_shows_measured_servers() {
        let file = std::env::temp_dir().join(format!("hither-serve-{}.svg", std::process::id()));
        draw(&file, &some()).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        assert!(
            svg.contains("nfs-ganesha") && svg.contains("journal on a fast disk") && !svg.contains("knfsd")
        );
        assert!(draw(&file, &[]).is_err());
        std::fs::remove_file(file).unwrap();
    }
}
