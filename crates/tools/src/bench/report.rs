//! The papers' claims and the measurements. The report has the paper's figure, the measured figure
//! and a verdict for each claim. It also has every case in which hither is worse than the kernel's
//! client.
//!
//! Claims are data (`bench/claims.json`): the results for the paper's subject (`ours`), their
//! divisor (`against`: other results or a number), and the bounds of the ratio. No verdict is made
//! by hand. A claim without results is not measured.

use super::Failure;
use super::plot::escape;
use super::results::{Metric, Sample, Spread, calls, load, time};
use crate::bench::args::ReportArgs;
use crate::exit::print;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Selects results of one client.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    file: String,
    workload: String,
    phases: Vec<String>,
    client: String,
    #[serde(default)]
    vers: String,
    #[serde(default)]
    opts: String,
    #[serde(default)]
    server: String,
    #[serde(default)]
    rtt: f64,
}

/// The divisor of the results.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Against {
    Number(f64),
    Results(Which),
}

/// How the figures of several phases are combined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum How {
    /// The sum of the phases.
    #[default]
    Sum,
    /// The phase with the highest ratio.
    Worst,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unit {
    Rpcs,
    Secs,
}

/// A claim of a paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    paper: String,
    /// Figure or table of the paper.
    at: String,
    says: String,
    /// The paper's figures.
    theirs: String,
    /// The comparison of this project.
    here: String,
    /// The test, or the reason why the claim is not measured.
    test: Result<Test, String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Test {
    unit: Unit,
    ours: Which,
    against: Against,
    /// Least ratio for "reproduced"; 0 by default.
    #[serde(default)]
    least: f64,
    /// Greatest ratio for "reproduced".
    most: f64,
    #[serde(default)]
    how: How,
}

/// The verdict on a claim.
#[derive(Debug, Clone, PartialEq)]
enum Verdict {
    Reproduced,
    Not,
    Unmeasured,
}

struct Judged<'a> {
    claim: &'a Claim,
    figure: String,
    verdict: Verdict,
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Verdict::Reproduced => "reproduced",
            Verdict::Not => "not reproduced",
            Verdict::Unmeasured => "not measured",
        }
    }
}

/// All results in a directory.
struct Results(Vec<Sample>);

impl Results {
    fn read(dir: &Path) -> Result<Self, Failure> {
        let cannot = |e| Failure::usage(format!("{}: {e}", dir.display()));
        let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
            .map_err(cannot)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
            .collect();
        files.sort();
        let all = files.iter().map(|file| load(file)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(all.concat()))
    }

    fn spread(&self, which: &Which, phase: &str, metric: Metric) -> Option<Spread> {
        let is = |s: &&Sample| {
            s.file == which.file
                && s.workload == which.workload
                && s.phase == phase
                && s.client == which.client
                && s.vers == which.vers
                && s.opts == which.opts
                && s.server == which.server
                && s.rtt_ms == which.rtt
        };
        Spread::of(self.0.iter().filter(is).filter_map(|s| s.value(metric)))
    }

    /// Medians of all phases; `None` when one is missing.
    fn medians(&self, which: &Which, metric: Metric) -> Option<Vec<f64>> {
        which.phases.iter().map(|phase| self.spread(which, phase, metric).map(|s| s.median)).collect()
    }
}

fn ratio(ours: f64, against: f64) -> f64 {
    if ours == 0.0 {
        0.0
    } else if against == 0.0 {
        f64::INFINITY
    } else {
        ours / against
    }
}

fn judge<'a>(claim: &'a Claim, results: &Results) -> Judged<'a> {
    let unmeasured = |why: &str| Judged { claim, figure: why.into(), verdict: Verdict::Unmeasured };
    let test = match &claim.test {
        Ok(test) => test,
        Err(why) => return unmeasured(why),
    };
    let metric = if test.unit == Unit::Rpcs { Metric::Rpcs } else { Metric::Secs };
    let Some(ours) = results.medians(&test.ours, metric) else { return unmeasured("no results") };
    let against = match &test.against {
        Against::Number(n) => vec![*n; if test.how == How::Sum { 1 } else { ours.len() }],
        Against::Results(which) => match results.medians(which, metric) {
            Some(medians) => medians,
            None => return unmeasured("no results to compare with"),
        },
    };
    let (ours, against) = match test.how {
        How::Sum => (ours.iter().sum::<f64>(), against.iter().sum::<f64>()),
        How::Worst => {
            let pairs = ours.into_iter().zip(against);
            match pairs.max_by(|a, b| ratio(a.0, a.1).total_cmp(&ratio(b.0, b.1))) {
                Some(pair) => pair,
                None => return unmeasured("no phases"),
            }
        }
    };
    let ratio = ratio(ours, against);
    let said = |n: f64| if metric == Metric::Rpcs { calls(n) } else { time(n) };
    let figure = format!("{} against {}: {ratio:.2}", said(ours), said(against));
    let fits = test.least <= ratio && ratio <= test.most;
    Judged { claim, figure, verdict: if fits { Verdict::Reproduced } else { Verdict::Not } }
}

/// Figures of hither and of the kernel's client for the same workload, file, server, round-trip
/// time and version.
struct Pair {
    title: String,
    phases: Vec<Phase>,
}

struct Phase {
    name: String,
    rpcs: Option<(f64, f64)>,
    secs: Option<(f64, f64)>,
}

/// All pairs, with the kernel's figure first. The kernel's client counts with its default options
/// and with any other options that were measured.
fn pairs(results: &Results) -> Vec<Pair> {
    let key = |s: &Sample| {
        (s.file.clone(), s.workload.clone(), s.server.clone(), format!("{:>4}", s.rtt_ms), s.vers.clone())
    };
    let mut groups: BTreeMap<_, Vec<&Sample>> = BTreeMap::new();
    for s in results.0.iter().filter(|s| s.client == "kernel" || s.client == "hither") {
        groups.entry(key(s)).or_default().push(s);
    }
    let mut out = Vec::new();
    for ((file, workload, server, rtt, vers), samples) in groups {
        let options = |client: &str| -> BTreeSet<&str> {
            samples.iter().filter(|s| s.client == client).map(|s| s.opts.as_str()).collect()
        };
        for (theirs, ours) in
            options("kernel").into_iter().flat_map(|k| options("hither").into_iter().map(move |h| (k, h)))
        {
            let of = |client: &str, opts: &str, phase: &str, metric| {
                let here = |s: &&&Sample| s.client == client && s.opts == opts && s.phase == phase;
                Spread::of(samples.iter().filter(here).filter_map(|s| s.value(metric))).map(|s| s.median)
            };
            let mut seen = BTreeSet::new();
            let phases: Vec<Phase> = samples
                .iter()
                .map(|s| s.phase.as_str())
                .filter(|phase| seen.insert(*phase))
                .map(|phase| {
                    let both =
                        |metric| of("kernel", theirs, phase, metric).zip(of("hither", ours, phase, metric));
                    Phase { name: phase.into(), rpcs: both(Metric::Rpcs), secs: both(Metric::Secs) }
                })
                .filter(|phase| phase.rpcs.is_some())
                .collect();
            if phases.is_empty() {
                continue;
            }
            let shown = |opts: &str| if opts.is_empty() { String::new() } else { format!(" `{opts}`") };
            let title = format!(
                "{file}: {workload}, {server}, {} ms, NFSv{vers}, hither{}, kernel{}",
                rtt.trim(),
                shown(ours),
                shown(theirs)
            );
            out.push(Pair { title, phases });
        }
    }
    out
}

const CLAIM_HEAD: [&str; 6] = ["paper", "claim", "the paper's figures", "what is compared here", "ours", ""];

fn claim_row(judged: &Judged<'_>) -> [String; 6] {
    let c = judged.claim;
    [
        format!("{}, {}", c.paper, c.at),
        c.says.clone(),
        c.theirs.clone(),
        c.here.clone(),
        judged.figure.clone(),
        judged.verdict.word().into(),
    ]
}

const PAIR_HEAD: [&str; 5] = ["measurement", "phases", "fewer RPCs", "as many", "more RPCs"];

fn pair_row(pair: &Pair) -> [String; 5] {
    let count = |is: fn(f64, f64) -> bool| {
        pair.phases
            .iter()
            .filter(|p| p.rpcs.is_some_and(|(kernel, hither)| is(hither, kernel)))
            .count()
            .to_string()
    };
    [
        pair.title.clone(),
        pair.phases.len().to_string(),
        count(|h, k| h < k),
        count(|h, k| h == k),
        count(|h, k| h > k),
    ]
}

const LOSS_HEAD: [&str; 4] = ["measurement", "phase", "kernel", "hither"];

/// Cases in which hither is worse.
fn losses(pairs: &[Pair], metric: Metric) -> Vec<[String; 4]> {
    let said = |n: f64| if metric == Metric::Rpcs { calls(n) } else { time(n) };
    let mut out = Vec::new();
    for pair in pairs {
        for phase in &pair.phases {
            let both = if metric == Metric::Rpcs { phase.rpcs } else { phase.secs };
            if let Some((kernel, hither)) = both.filter(|(kernel, hither)| hither > kernel) {
                out.push([pair.title.clone(), phase.name.clone(), said(kernel), said(hither)]);
            }
        }
    }
    out
}

const INTRO: &str = "Generated by `hither bench report` from bench/claims.json and bench/*.jsonl: nothing here is written by hand. bench/README.md says how each \
    file was measured, on what, and what its times are worth: the kernel's client runs in a guest whose system calls are slow, so that times in which hither is ahead \
    say little, and those in which it is behind are listed below. Counts of RPCs are right for both.";
const LOSSES: &str = "More RPCs than the kernel's client";
const SLOWER: &str = "Longer than the kernel's client";

/// A page under construction.
trait Page {
    fn section(&mut self, title: &str, text: &str);
    fn table(&mut self, head: &[&str], rows: &mut dyn Iterator<Item = Vec<String>>);
}

struct Markdown(String);
struct Html(String);

impl Page for Markdown {
    fn section(&mut self, title: &str, text: &str) {
        let _ = write!(self.0, "\n## {title}\n\n{text}{}", if text.is_empty() { "" } else { "\n\n" });
    }

    fn table(&mut self, head: &[&str], rows: &mut dyn Iterator<Item = Vec<String>>) {
        let _ = writeln!(self.0, "| {} |\n{}|", head.join(" | "), "|---".repeat(head.len()));
        for row in rows {
            let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            let _ = writeln!(self.0, "| {} |", cells.join(" | "));
        }
    }
}

impl Page for Html {
    fn section(&mut self, title: &str, text: &str) {
        let _ = writeln!(self.0, "<h2>{}</h2>\n<p>{}</p>", escape(title), escape(text));
    }

    fn table(&mut self, head: &[&str], rows: &mut dyn Iterator<Item = Vec<String>>) {
        let cells = |row: &mut dyn Iterator<Item = String>, tag: &str| -> String {
            row.map(|cell| {
                let class = cell.replace(' ', "-");
                let class = if ["reproduced", "not-reproduced", "not-measured"].contains(&class.as_str()) {
                    class
                } else {
                    String::new()
                };
                format!("<{tag} class=\"{class}\">{}</{tag}>", escape(&cell))
            })
            .collect()
        };
        let _ =
            writeln!(self.0, "<table><tr>{}</tr>", cells(&mut head.iter().map(ToString::to_string), "th"));
        for row in rows {
            let _ = writeln!(self.0, "<tr>{}</tr>", cells(&mut row.into_iter(), "td"));
        }
        self.0.push_str("</table>\n");
    }
}

/// Writes the report into `page`. The Markdown and the HTML page have the same content.
fn fill(page: &mut impl Page, judged: &[Judged<'_>], pairs: &[Pair]) {
    let count = |verdict: Verdict| judged.iter().filter(|j| j.verdict == verdict).count();
    let text = format!(
        "{} reproduced, {} not, {} not measured.",
        count(Verdict::Reproduced),
        count(Verdict::Not),
        count(Verdict::Unmeasured)
    );
    page.section("The papers' claims", &text);
    page.table(&CLAIM_HEAD, &mut judged.iter().map(|j| claim_row(j).to_vec()));
    page.section(LOSSES, "Every phase of every committed measurement, medians.");
    page.table(&LOSS_HEAD, &mut losses(pairs, Metric::Rpcs).into_iter().map(|row| row.to_vec()));
    page.section(SLOWER, "The same with times, in spite of the guest that the kernel's client runs in.");
    page.table(&LOSS_HEAD, &mut losses(pairs, Metric::Secs).into_iter().map(|row| row.to_vec()));
    page.section(
        "All measurements beside the kernel's client",
        "Phases by their RPCs. The figures themselves are in the tables beside the files.",
    );
    page.table(&PAIR_HEAD, &mut pairs.iter().map(|pair| pair_row(pair).to_vec()));
}

/// The Markdown page and the HTML page for the results in a directory.
pub fn pages(dir: &Path) -> Result<(String, String), Failure> {
    let file = dir.join("claims.json");
    let cannot = |e: String| Failure::usage(format!("{}: {e}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(|e| cannot(e.to_string()))?;
    let claims: Vec<Claim> = serde_json::from_str(&text).map_err(|e| cannot(e.to_string()))?;
    let results = Results::read(dir)?;
    let judged: Vec<Judged<'_>> = claims.iter().map(|claim| judge(claim, &results)).collect();
    let pairs = pairs(&results);
    let mut markdown = Markdown(format!("# Results\n\n{INTRO}\n"));
    fill(&mut markdown, &judged, &pairs);
    let mut html = Html(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>hither: results</title><style>{STYLE}</style></head><body>\n\
         <h1>Results</h1>\n<p>{}</p>\n",
        escape(INTRO)
    ));
    fill(&mut html, &judged, &pairs);
    html.0.push_str("</body></html>\n");
    Ok((markdown.0, html.0))
}

const STYLE: &str = "body{font:15px/1.45 sans-serif;margin:2em;max-width:1300px;color:#222}table{border-collapse:collapse;margin:1em 0}\
    th,td{border:1px solid #ccc;padding:4px 8px;text-align:left;vertical-align:top}th{background:#f2f2f2}\
    .reproduced{background:#d9efe3}.not-reproduced{background:#f7ddd3}.not-measured{background:#eee}";

/// Writes the requested files. Without a request the Markdown page is printed.
pub fn write(args: &ReportArgs) -> Result<(), Failure> {
    let (markdown, html) = pages(&args.dir)?;
    for (file, text) in [(&args.markdown, &markdown), (&args.html, &html)] {
        if let Some(file) = file {
            std::fs::write(file, text).map_err(|e| Failure::system(format!("{}: {e}", file.display())))?;
        }
    }
    if args.markdown.is_none() && args.html.is_none() { print(&markdown) } else { Ok(()) }
}
