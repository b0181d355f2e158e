//! Charts of results: a bar for each phase and selection on a logarithmic scale from zero, and a
//! line from the minimum to the maximum.

use super::Failure;
use super::results::{Metric, Selection, Spread, calls, time};
use crate::bench::args::{PlotArgs, PlotMetric};
use std::fmt::Write;

/// Colours that colour-blind readers can distinguish (Okabe and Ito, 2008).
const COLOURS: [&str; 7] = ["#505050", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const BAR: usize = 12;
const GAP: usize = 12;
const LEFT: usize = 300;
const WIDTH: usize = 1000;

/// Draws a chart.
pub fn draw(args: &PlotArgs) -> Result<(), Failure> {
    let all = args.results.iter().map(|one| Selection::read(one)?.of_one()).collect::<Result<Vec<_>, _>>()?;
    let metric = match args.metric {
        PlotMetric::Rpcs => Metric::Rpcs,
        PlotMetric::Secs => Metric::Secs,
    };
    let picture = svg(&all, metric)?;
    std::fs::write(&args.out, picture).map_err(|e| Failure::system(format!("{}: {e}", args.out.display())))
}

/// Escapes text for XML content and attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// The chart as SVG.
pub fn svg(all: &[Selection], metric: Metric) -> Result<String, Failure> {
    let mut phases: Vec<(&str, &str)> = Vec::new();
    for at in all.iter().flat_map(Selection::phases) {
        if !phases.contains(&at) {
            phases.push(at);
        }
    }
    let spreads = |at| -> Vec<Option<Spread>> { all.iter().map(|one| one.spread(at, metric)).collect() };
    phases.retain(|at| spreads(*at).iter().any(Option::is_some));
    if phases.is_empty() {
        return Err(Failure::usage("nothing to draw: the results lack this metric"));
    }
    // The scale must contain zero: RPCs are drawn as 1 + n, times in microseconds.
    let scaled = |value: f64| match metric {
        Metric::Rpcs => (1.0 + value).log10(),
        Metric::Secs => (1.0 + value * 1e6).log10(),
    };
    let most = phases.iter().flat_map(|at| spreads(*at)).flatten().map(|s| scaled(s.max)).fold(1.0, f64::max);
    let x = |value: f64| LEFT as f64 + scaled(value) / most * (WIDTH - LEFT - 110) as f64;
    let top = 20 + 18 * all.len();
    let row = BAR * all.len() + GAP;
    let height = top + row * phases.len() + 20;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (i, one) in all.iter().enumerate() {
        let (y, colour) = (10 + 18 * i, COLOURS[i % COLOURS.len()]);
        let _ = writeln!(
            out,
            "<rect x=\"10\" y=\"{y}\" width=\"16\" height=\"{BAR}\" fill=\"{colour}\"/><text x=\"32\" y=\"{}\">{}</text>",
            y + 10,
            escape(&one.name)
        );
    }
    for (r, at) in phases.iter().enumerate() {
        let y = top + r * row;
        let name = escape(&format!("{} {}", at.0, at.1));
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>", LEFT - 8, y + 10);
        for (i, spread) in spreads(*at).into_iter().enumerate() {
            let Some(s) = spread else { continue };
            let (y, colour) = (y + i * BAR, COLOURS[i % COLOURS.len()]);
            let said = if metric == Metric::Rpcs { calls(s.median) } else { time(s.median) };
            let _ = writeln!(
                out,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\" fill=\"{colour}\"/>\
                 <path d=\"M{:.1} {1}H{:.1}\" transform=\"translate(0 {})\" stroke=\"black\"/><text x=\"{:.1}\" y=\"{}\">{said}</text>",
                x(s.median) - LEFT as f64,
                BAR - 2,
                x(s.min),
                x(s.max),
                y - BAR / 2 + 1,
                x(s.max) + 4.0,
                y + 9
            );
        }
    }
    out.push_str("</svg>\n");
    Ok(out)
}
