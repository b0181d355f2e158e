//! The figures of "Not Quite NFS" (Macklem 1994) with the clients of this project.
//! `lab/bench-nqnfs.sh` measures, and this module draws.
//!
//! Each figure has a panel. Table 3 has one too, because it is a series. The numbers of the paper's
//! Table 4 are drawn in grey beside the measured ones.

use super::plot::{COLOURS, Drawn};
use plotters::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Curves in the order of the legend: name, points.
type Curves = Vec<(String, Vec<Point>)>;

/// Value and deviation of each run, by x.
type Runs = BTreeMap<u64, Vec<(f64, f64)>>;

/// A point: x, y, and the standard deviation of y.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    x: f64,
    y: f64,
    sd: f64,
}

/// The value of a line that a panel shows.
#[derive(Debug, Clone, Copy)]
enum Of {
    /// Seconds of a phase.
    Phase(&'static str),
    /// Seconds of all phases.
    Whole,
    /// Messages of one client in all phases.
    Messages,
    /// Use of the processor during the compile phase, in percent.
    Utilisation,
}

struct Panel {
    title: &'static str,
    series: &'static str,
    /// The name of the varied parameter in the lines and on the axis.
    key: &'static str,
    axis: &'static str,
    unit: &'static str,
    of: Of,
}

const PANELS: [Panel; 8] = [
    panel(
        "Figure 1: all phases, by memory",
        "memory",
        ("memory", "MiB for the client's machine"),
        "s",
        Of::Whole,
    ),
    panel("Figure 2: copy", "clients", ("clients", "clients"), "s", Of::Phase("2.copy")),
    panel("Figure 3: stat", "clients", ("clients", "clients"), "s", Of::Phase("3.stat")),
    panel("Figure 4: grep", "clients", ("clients", "clients"), "s", Of::Phase("4.grep")),
    panel("Figure 5: compile", "clients", ("clients", "clients"), "s", Of::Phase("5.compile")),
    panel("Messages of each client", "clients", ("clients", "clients"), "messages", Of::Messages),
    panel(
        "Table 3: processor, compiling",
        "speeds",
        ("share", "% of a processor"),
        "% used",
        Of::Utilisation,
    ),
    panel("Figure 6, Table 4: compile, by delay", "delays", ("rtt", "ms"), "s", Of::Phase("5.compile")),
];

const fn panel(
    title: &'static str,
    series: &'static str,
    (key, axis): (&'static str, &'static str),
    unit: &'static str,
    of: Of,
) -> Panel {
    Panel { title, series, key, axis, unit, of }
}

/// The paper's Table 4 for TCP: round trip in ms, seconds with NFS, seconds with leases.
const PAPER: [(f64, f64, f64); 6] = [
    (5.0, 139.0, 108.0),
    (40.0, 208.0, 139.0),
    (80.0, 213.0, 210.0),
    (120.0, 273.0, 238.0),
    (160.0, 328.0, 274.0),
    (200.0, 506.0, 379.0),
];

fn name_of(line: &Value) -> String {
    let word = |key: &str| line[key].as_str().unwrap_or_default();
    let granted = if word("server") == "hither-deleg" { ", delegations" } else { "" };
    let opts = if word("opts").is_empty() { String::new() } else { format!(" {}", word("opts")) };
    let v = if word("vers").starts_with(char::is_numeric) { "v" } else { "" };
    format!("{v}{}{opts}{granted}", word("vers"))
}

/// The median of repeated measurements. A single measurement keeps the deviation of its line.
fn median(mut all: Vec<(f64, f64)>) -> Option<(f64, f64)> {
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let middle = *all.get(all.len() / 2)?;
    let mean = all.iter().map(|v| v.0).sum::<f64>() / all.len() as f64;
    let variance = all.iter().map(|v| (v.0 - mean).powi(2)).sum::<f64>() / all.len() as f64;
    Some((middle.0, if all.len() > 1 { variance.sqrt() } else { middle.1 }))
}

/// The value and deviation of one run of all phases for a panel.
fn value(of: Of, phases: &[&Value]) -> Option<(f64, f64)> {
    let number = |v: &Value, key: &str| v[key].as_f64();
    let named = |name: &str| phases.iter().copied().find(|v| v["phase"] == name);
    let sum = |key: fn(&Value) -> Option<f64>| phases.iter().map(|v| key(v)).sum::<Option<f64>>();
    match of {
        Of::Phase(name) => {
            let v = named(name)?;
            Some((number(v, "secs")?, number(v, "sd").unwrap_or_default()))
        }
        Of::Whole => Some((sum(|v| v["secs"].as_f64())?, 0.0)),
        Of::Messages => Some((sum(|v| Some(v["rpc"]["total"].as_f64()? / v["clients"].as_f64()?))?, 0.0)),
        Of::Utilisation => {
            let v = named("5.compile")?;
            Some((number(v, "cpu")? / number(v, "secs")? / number(v, "share")? * 1e4, 0.0))
        }
    }
}

/// The curves of a panel, in the order in which they were measured.
fn curves(all: &[Value], panel: &Panel) -> Curves {
    // A run has five lines. The first phase begins a run.
    let mut runs: Vec<Vec<&Value>> = Vec::new();
    let mut open: BTreeMap<String, usize> = BTreeMap::new();
    for v in all.iter().filter(|v| v["series"] == panel.series) {
        let who = name_of(v);
        if v["phase"] == "1.mkdir" {
            open.insert(who.clone(), runs.len());
            runs.push(Vec::new());
        }
        if let Some(run) = open.get(&who).and_then(|at| runs.get_mut(*at)) {
            run.push(v);
        }
    }
    let mut curves: Vec<(String, Runs)> = Vec::new();
    for run in &runs {
        let Some(first) = run.first() else { continue };
        let (Some(x), Some(y)) = (first[panel.key].as_f64(), value(panel.of, run)) else { continue };
        let who = name_of(first);
        let at = curves.iter().position(|(name, _)| *name == who).unwrap_or_else(|| {
            curves.push((who, BTreeMap::new()));
            curves.len() - 1
        });
        // All values of x are whole numbers.
        curves[at].1.entry(x as u64).or_default().push(y);
    }
    let point = |(x, all): (u64, Vec<(f64, f64)>)| {
        let (y, sd) = median(all)?;
        Some(Point { x: x as f64, y, sd })
    };
    curves.into_iter().map(|(name, of)| (name, of.into_iter().filter_map(point).collect())).collect()
}

/// Draws all panels that have results.
pub fn draw(file: &Path, all: &[Value]) -> Drawn {
    let shown: Vec<_> = PANELS.iter().map(|p| (p, curves(all, p))).filter(|(_, c)| !c.is_empty()).collect();
    if shown.is_empty() {
        return Err("no results of bench-nqnfs.sh".into());
    }
    let rows = shown.len().div_ceil(2);
    let area = SVGBackend::new(file, (1080, 60 + 330 * rows as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let area =
        area.titled("Not Quite NFS, with hither: the Modified Andrew Benchmark", ("sans-serif", 22))?;
    let names: Vec<String> = shown.iter().flat_map(|(_, c)| c.iter().map(|(name, _)| name.clone())).fold(
        Vec::new(),
        |mut names, name| {
            if !names.contains(&name) {
                names.push(name);
            }
            names
        },
    );
    for (place, (panel, curves)) in area.split_evenly((rows, 2)).iter().zip(&shown) {
        draw_panel(place, panel, curves, &names)?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel(
    place: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    panel: &Panel,
    curves: &Curves,
    names: &[String],
) -> Drawn {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let widest = points().map(|p| p.x).fold(1.0, f64::max);
    let highest = points().map(|p| p.y + p.sd).fold(0.0, f64::max).max(0.01) * 1.6;
    let mut chart = ChartBuilder::on(place)
        .caption(panel.title, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..widest * 1.04, 0.0..highest)?;
    chart
        .configure_mesh()
        .x_desc(panel.axis)
        .y_desc(panel.unit)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{}", (y * 100.0).round() / 100.0))
        .light_line_style(WHITE)
        .draw()?;
    for (name, points) in curves {
        let at = names.iter().position(|n| n == name).unwrap_or_default();
        let c = COLOURS[at % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(points.iter().map(|p| (p.x, p.y)), c.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], c.stroke_width(2)));
        let bars = points.iter().filter(|p| p.sd > 0.0);
        chart.draw_series(bars.map(|p| PathElement::new([(p.x, p.y - p.sd), (p.x, p.y + p.sd)], c)))?;
    }
    if panel.series == "delays" {
        // The paper's curves are scaled to the measured time with NFSv3 at the shortest delay, so
        // that the growth of the curves is compared.
        let ours = curves.iter().find(|(name, _)| name == "v3").and_then(|(_, points)| points.first());
        let scale = ours.map_or(0.0, |p| p.y / PAPER[0].1);
        for (label, pick) in [("NFS in the paper, scaled", 0), ("leases in the paper, scaled", 1)] {
            let c = if pick == 0 { RGBColor(60, 60, 60) } else { RGBColor(160, 160, 160) };
            let of =
                PAPER.iter().map(|(x, nfs, leases)| (*x, if pick == 0 { *nfs } else { *leases } * scale));
            chart
                .draw_series(LineSeries::new(of.filter(|(x, _)| *x <= widest), c.stroke_width(1)))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], c.stroke_width(1)));
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 11))
        .background_style(WHITE.mix(0.7))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(vers: &str, series: &str, key: &str, x: u64, secs: f64) -> Vec<Value> {
        ["1.mkdir", "2.copy", "3.stat", "4.grep", "5.compile"]
            .map(|phase| {
                let mut v = json!({"workload": "mab-clients", "series": series, "vers": vers, "opts": "", "server": "hither",
                    "clients": 2, "rtt": 5, "phase": phase, "secs": secs, "sd": 0.5, "cpu": 1.0, "share": 50, "memory": 0,
                    "rpc": {"total": 20}});
                v[key] = json!(x);
                v
            })
            .to_vec()
    }

    /// Repeated runs become one point at their median. Messages are those of one client.
    #[test]
    fn repeated_runs_become_one_point() {
        let all = [1.0, 3.0, 2.0].map(|secs| run("3", "clients", "clients", 2, secs)).concat();
        let of = |n: usize| curves(&all, &PANELS[n]);
        assert_eq!(of(1)[0].1[0].y, 2.0);
        assert!((of(1)[0].1[0].sd - 0.8165).abs() < 1e-3, "of three runs, not of one");
        assert_eq!(of(5), [("v3".to_string(), vec![Point { x: 2.0, y: 50.0, sd: 0.0 }])]);
        assert!(of(0).is_empty());
        // One second of processor time in two seconds, of which half may be used.
        let all = run("3", "speeds", "share", 50, 2.0);
        assert_eq!(curves(&all, &PANELS[6])[0].1[0].y, 100.0);
    }

    #[test]
    fn every_series_has_its_panel() {
        let file = std::env::temp_dir().join(format!("hither-nqnfs-{}.svg", std::process::id()));
        let all = [("memory", "memory"), ("clients", "clients"), ("speeds", "share"), ("delays", "rtt")]
            .map(|(series, key)| [run("3", series, key, 5, 2.0), run("nqnfs", series, key, 10, 1.0)].concat())
            .concat();
        draw(&file, &all).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        for p in PANELS {
            assert!(svg.contains(p.title), "{}", p.title);
        }
        assert!(svg.contains("NFS in the paper") && svg.contains("nqnfs"));
        assert!(draw(&file, &[]).is_err());
        std::fs::remove_file(file).unwrap();
    }
}
