//! Pictures of results, as SVG: round trips by depth, and RPCs by workload.

use super::table::{client_name, operations};
use crate::lab::{Fail, Res};
use plotters::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The kernel's client is grey. The other colours can be distinguished with any colour vision
/// (Okabe and Ito, 2008).
const GREYS: [RGBColor; 4] =
    [RGBColor(60, 60, 60), RGBColor(140, 140, 140), RGBColor(100, 100, 100), RGBColor(180, 180, 180)];
pub(super) const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];

/// Draws `what` of the results: "depth" or "rpcs" with one server, a "sweep", servers side by side
/// ("serve"), or the figures of "Not Quite NFS" ("nqnfs").
pub fn draw(file: &Path, what: &str, server: &str, lines: &[Value]) -> Res<()> {
    if what == "sweep" {
        return super::sweep::draw(file, lines).map_err(|e| Fail(format!("{}: {e}", file.display())));
    }
    if what == "serve" {
        return super::serve::draw(file, lines).map_err(|e| Fail(format!("{}: {e}", file.display())));
    }
    if what == "nqnfs" {
        return super::nqnfs::draw(file, lines).map_err(|e| Fail(format!("{}: {e}", file.display())));
    }
    let lines: Vec<&Value> = lines.iter().filter(|v| v["server"] == server).collect();
    let drawn = match what {
        "depth" => by_depth(file, server, &lines),
        "rpcs" => by_workload(file, server, &lines),
        _ => return Err(Fail(format!("--what {what}: depth, rpcs, sweep, serve or nqnfs"))),
    };
    drawn.map_err(|e| Fail(format!("{}: {e}", file.display())))
}

/// The result of drawing a picture.
pub(super) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A curve per client: (depth, round trips).
type Curves = BTreeMap<String, Vec<(f64, f64)>>;

/// The names of all clients. The kernel comes first, and the others follow in alphabetical order.
fn clients<'a>(lines: impl Iterator<Item = &'a Value>) -> Vec<String> {
    let mut all: Vec<String> = lines.map(client_name).collect();
    all.sort_by(|a, b| (!is_kernel(a), a).cmp(&(!is_kernel(b), b)));
    all.dedup();
    all
}

fn is_kernel(client: &str) -> bool {
    client.starts_with("kernel")
}

fn colour(names: &[String], client: &str) -> RGBColor {
    let mut family = names.iter().filter(|n| is_kernel(n) == is_kernel(client));
    let at = family.position(|n| n == client).unwrap_or_default();
    if is_kernel(client) { GREYS[at % GREYS.len()] } else { COLOURS[at % COLOURS.len()] }
}

/// Round trips of one operation in one phase. Only results with the longest delay count, because
/// other costs matter least there.
fn curves(lines: &[&Value], phase: &str) -> (f64, Curves) {
    let of_phase = || {
        lines.iter().filter(|v| v["workload"] == "opendepth" && v["phase"] == phase && v["depth"].is_u64())
    };
    let rtt = |v: &Value| v["rtt"].as_f64().unwrap_or_default();
    let longest = of_phase().map(|v| rtt(v)).fold(0.0, f64::max);
    let mut all = Curves::new();
    for v in of_phase().filter(|v| longest > 0.0 && rtt(v) == longest) {
        let depth = v["depth"].as_f64().unwrap_or_default();
        let trips = v["secs"].as_f64().unwrap_or_default() * 1e3 / operations(v) / longest;
        all.entry(client_name(v)).or_default().push((depth, trips));
    }
    for points in all.values_mut() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    (longest, all)
}

/// A panel per operation and phase.
fn by_depth(file: &Path, server: &str, lines: &[&Value]) -> Drawn {
    let operations = [("stat", "stat"), ("open", "open"), ("read1k", "open + read 1 KB")];
    let states = [("cold", "cold"), ("warm0", "at once again"), ("warm65s", "after the timeouts")];
    let shown: Vec<_> =
        states.iter().filter(|(tag, _)| !curves(lines, &format!("stat.{tag}")).1.is_empty()).collect();
    if shown.is_empty() {
        return Err("no results of opendepth with a delay".into());
    }
    let names = clients(lines.iter().filter(|v| v["workload"] == "opendepth").copied());
    let area = SVGBackend::new(file, (1080, 60 + 300 * shown.len() as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let area = area.titled(&format!("Round trips by depth, {server}"), ("sans-serif", 22))?;
    let mut panels = area.split_evenly((shown.len(), operations.len())).into_iter();
    for (row, (tag, state)) in shown.iter().enumerate() {
        for (column, (operation, title)) in operations.iter().enumerate() {
            let Some(panel) = panels.next() else { continue };
            let (rtt_ms, lines) = curves(lines, &format!("{operation}.{tag}"));
            let caption = format!("{title}, {state} ({rtt_ms} ms)");
            depth_panel(&panel, &caption, &names, &lines, row == 0 && column == 0)?;
        }
    }
    area.present()?;
    Ok(())
}

fn depth_panel(
    panel: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    caption: &str,
    names: &[String],
    curves: &Curves,
    legend: bool,
) -> Drawn {
    let points = || curves.values().flatten();
    let deepest = points().map(|p| p.0).fold(1.0, f64::max);
    let most = points().map(|p| p.1).fold(2.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(panel)
        .caption(caption, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(40)
        .build_cartesian_2d(0.0..deepest + 0.5, 0.0..most)?;
    chart
        .configure_mesh()
        .x_desc("components")
        .y_desc("round trips")
        .x_labels(9)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{}", (y * 10.0).round() / 10.0))
        .light_line_style(WHITE)
        .draw()?;
    for name in names {
        let Some(points) = curves.get(name) else { continue };
        let c = colour(names, name);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), c.stroke_width(2)).point_size(3))?
            .label(name)
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

/// Rows of the picture of RPCs: workload, phase.
const ROWS: [(&str, &str); 21] = [
    ("pageopen", "cold"),
    ("pageopen", "warm0"),
    ("pageopen", "warm65s"),
    ("tree", "ls-lR.cold"),
    ("tree", "grep-r.cold"),
    ("tree", "find.cold"),
    ("tree", "du.cold"),
    ("tree", "git-status.cold"),
    ("tree", "git-status.again"),
    ("tree", "git-status.expired"),
    ("bigtree", "git-status.cold"),
    ("bigtree", "find.cold"),
    ("python", "start.cold"),
    ("python", "start.again"),
    ("bigdir", "ls-l.cold"),
    ("bigdir", "ls-l.again"),
    ("mab", "3.stat"),
    ("mab", "4.grep"),
    ("badros", "t03_stat"),
    ("badros", "t04_grep"),
    ("badros", "t07_ls"),
];

/// Horizontal bars on a logarithmic scale that includes zero. A black tick marks the target.
fn by_workload(file: &Path, server: &str, lines: &[&Value]) -> Drawn {
    let wanted = |v: &&&Value| ROWS.iter().any(|(w, p)| v["workload"] == *w && v["phase"] == *p);
    let names = clients(lines.iter().filter(wanted).copied());
    let rows: Vec<_> = ROWS.iter().filter(|r| lines.iter().any(|v| is(v, r))).collect();
    if rows.is_empty() {
        return Err("no results of these workloads".into());
    }
    let (bar, gap) = (11, 12);
    let row_height = bar * names.len() as i32 + gap;
    let (left, top, width) = (190, 60 + 16 * names.len() as i32, 980);
    let height = top + row_height * rows.len() as i32 + 40;
    let area = SVGBackend::new(file, (width as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let grey = BLACK.mix(0.15);
    let font = ("sans-serif", 13).into_font();
    area.draw(&Text::new(format!("RPCs by workload, {server}"), (left, 14), ("sans-serif", 22)))?;
    // log10(1 + n), so that zero is at the origin of the axis.
    let x = |n: f64| left + ((1.0 + n).log10() / 6.0 * f64::from(width - left - 60)) as i32;
    for n in [0.0, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5] {
        area.draw(&PathElement::new([(x(n), top - 4), (x(n), height - 30)], grey))?;
        area.draw(&Text::new(format!("{n}"), (x(n) - 4, height - 26), font.clone()))?;
    }
    for (i, name) in names.iter().enumerate() {
        let y = 44 + 16 * i as i32;
        area.draw(&Rectangle::new([(left, y), (left + 16, y + bar)], colour(&names, name).filled()))?;
        area.draw(&Text::new(name.clone(), (left + 22, y - 1), font.clone()))?;
    }
    for (r, row) in rows.iter().enumerate() {
        let y = top + r as i32 * row_height;
        area.draw(&Text::new(format!("{} {}", row.0, row.1), (8, y + row_height / 2 - gap), font.clone()))?;
        let bars: Vec<_> = names
            .iter()
            .enumerate()
            .filter_map(|(i, name)| Some((name, y + i as i32 * bar, least_delay(lines, row, name)?)))
            .collect();
        for (name, y, rpcs) in &bars {
            let ends = [(x(0.0), *y), (x(*rpcs), y + bar - 1)];
            area.draw(&Rectangle::new(ends, colour(&names, name).filled()))?;
        }
        if let Some(target) = lines.iter().filter(|v| is(v, row)).find_map(|v| v["target"].as_f64()) {
            let (x, y2) = (x(target), y + row_height - gap + 2);
            area.draw(&PathElement::new([(x, y - 4), (x, y2)], BLACK.stroke_width(2)))?;
        }
        for (_, y, rpcs) in bars {
            let (text, end) = (format!("{rpcs}"), x(rpcs) + 2);
            let under = [(end, y), (end + 3 + 7 * text.len() as i32, y + bar - 1)];
            area.draw(&Rectangle::new(under, WHITE.filled()))?;
            area.draw(&Text::new(text, (end + 2, y - 1), ("sans-serif", 12).into_font()))?;
        }
    }
    area.draw(&Text::new("black: target", (width - 110, 44), font))?;
    area.present()?;
    Ok(())
}

fn is(line: &Value, row: &(&str, &str)) -> bool {
    line["workload"] == row.0 && line["phase"] == row.1
}

/// RPCs of one client in one row, from the run with the shortest delay. In longer runs more
/// timeouts expire and add RPCs.
fn least_delay(lines: &[&Value], row: &(&str, &str), client: &str) -> Option<f64> {
    let mut all: Vec<(f64, f64)> = lines
        .iter()
        .filter(|v| is(v, row) && client_name(v) == client)
        .filter_map(|v| Some((v["rtt"].as_f64()?, v["rpc"]["total"].as_f64()?)))
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.first().map(|(_, rpcs)| *rpcs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(client: &str, phase: &str, rtt: f64, depth: u64, secs: f64) -> Value {
        json!({"workload": "opendepth", "server": "s", "client": client, "vers": "4.2", "rtt": rtt, "phase": phase,
               "depth": depth, "n": 2, "secs": secs, "rpc": {"total": 4}})
    }

    #[test]
    fn longest_delay_gives_round_trips() {
        let lines = [
            line("kernel", "stat.cold", 1.0, 4, 9.9),
            line("kernel", "stat.cold", 50.0, 4, 0.7),
            line("kernel", "stat.cold", 50.0, 1, 0.1),
        ];
        let (rtt, all) = curves(&lines.iter().collect::<Vec<_>>(), "stat.cold");
        assert_eq!(rtt, 50.0);
        assert_eq!(all["kernel 4.2"], [(1.0, 1.0), (4.0, 7.0)]);
    }

    #[test]
    fn both_pictures_show_every_client() {
        let dir = std::env::temp_dir().join(format!("hither-plot-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut lines =
            vec![line("kernel", "stat.cold", 10.0, 1, 0.1), line("hither", "stat.cold", 10.0, 1, 0.1)];
        for client in ["kernel", "hither"] {
            lines.push(json!({"workload": "tree", "server": "s", "client": client, "vers": "3", "rtt": 0.0,
                              "phase": "du.cold", "target": 7.5, "rpc": {"total": 17}}));
        }
        for what in ["depth", "rpcs"] {
            let file = dir.join(what);
            draw(&file, what, "s", &lines).unwrap();
            let svg = std::fs::read_to_string(&file).unwrap();
            assert!(svg.contains("kernel ") && svg.contains("hither "), "{svg}");
            assert!(draw(&file, what, "another", &lines).is_err());
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
