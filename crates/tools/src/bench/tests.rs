//! Tests of reading, comparing, drawing and judging results. The committed pages must match the
//! committed results.

use super::results::{Metric, Sample, Selection, Spread, compare, load};
use super::{papers, plot, report};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn line(client: &str, phase: &str, rpcs: u64, secs: f64) -> Value {
    json!({"workload": "w", "server": "s", "client": client, "vers": "4.2", "opts": "", "rtt": 0.0, "phase": phase, "n": 1,
           "secs": secs, "rpc": {"total": rpcs}})
}

fn written(dir: &Path, name: &str, lines: &[Value]) -> String {
    let file = dir.join(name);
    fs::write(&file, lines.iter().map(|l| format!("{l}\n")).collect::<String>()).unwrap();
    file.to_str().unwrap().to_string()
}

fn bench() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench"))
}

#[test]
fn medians_and_extremes() {
    let of = |values: &[f64]| Spread::of(values.iter().copied());
    assert_eq!(of(&[]), None);
    assert_eq!(of(&[3.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 3.0, count: 3 }));
    assert_eq!(of(&[4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
}

#[test]
fn lines_of_every_measurement_are_read() {
    let mut opened = line("kernel", "open", 16, 0.5);
    opened["depth"] = json!(4);
    opened["n"] = json!(2);
    let all = Sample::of("f", &opened);
    assert_eq!((all[0].phase.as_str(), all[0].rpcs, all[0].secs), ("open, depth 4", Some(8.0), Some(0.25)));
    // A local file system counts no calls.
    let mut local = line("ext4", "a", 0, 1.0);
    local["rpc"] = Value::Null;
    assert_eq!(Sample::of("f", &local)[0].rpcs, None);
    assert!(Sample::of("f", &json!({"about": {}})).is_empty());
    assert!(Sample::of("f", &line("kernel", "mount", 1, 1.0)).is_empty());
    // Lines about servers are converted, with their disk.
    for (server, phase, secs) in [
        (
            json!({"bench": "nhfsstone", "offered": 70, "modifying": 19, "mean_ms": 22.0}),
            "70 calls a second, 19 % modify",
            0.022,
        ),
        (json!({"bench": "nhfsstone", "modifying": 5, "capacity": 50.0}), "capacity, 5 % modify", 0.02),
        (
            json!({"bench": "sync", "kind": "write", "size_bytes": 512, "clients": 8, "ops_s": 4.0}),
            "write 512, 8 clients",
            0.25,
        ),
        (
            json!({"bench": "reads", "kind": "getattr", "size_bytes": 0, "ops_s": 4.0, "ops_cpu_s": 8.0}),
            "getattr",
            0.125,
        ),
        (json!({"bench": "stream", "bytes_s": 2.0, "tcp_bytes_s": 4.0}), "a byte", 0.5),
    ] {
        let mut server = server;
        server["label"] = json!("hither");
        server["disk"] = json!("slow");
        let of = Sample::of("f", &server);
        assert_eq!((of[0].phase.as_str(), of[0].secs), (phase, Some(secs)));
        assert_eq!((of[0].client.as_str(), of[0].server.as_str()), ("hither", "slow"));
    }
    // With many mounts the calls of one mount count.
    let mut many = line("hither", "5.compile", 40, 1.0);
    many["workload"] = json!("mab-clients");
    many["series"] = json!("speeds");
    many["clients"] = json!(4);
    many["share"] = json!(50);
    many["memory"] = json!(0);
    let of = Sample::of("f", &many);
    assert_eq!((of[0].workload.as_str(), of[0].phase.as_str()), ("mab speeds", "5.compile, 4 clients, 50 %"));
    assert_eq!((of[0].rpcs, of[0].secs), (Some(10.0), Some(1.0)));
    assert!(Sample::of("f", &json!({"bench": "memory", "label": "hither", "count": 1})).is_empty());
    assert!(Sample::of("f", &json!({"bench": "sync", "kind": "write", "ops_s": 0.0})).is_empty());
    // Each committed file has samples.
    for entry in fs::read_dir(bench()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "jsonl") {
            let all = load(&path).unwrap();
            assert!(!all.is_empty() && all.iter().all(|s| s.rpcs.is_some() || s.secs.is_some()), "{path:?}");
        }
    }
}

#[test]
fn comparisons_are_of_medians() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<Value> = [1.0, 3.0, 2.0]
        .into_iter()
        .flat_map(|secs| [line("kernel", "p", 10, secs), line("hither", "p", 5, secs / 4.0)])
        .collect();
    let file = written(dir.path(), "a.jsonl", &lines);
    let one = |word: &str| Selection::read(&format!("{file}#{word}")).unwrap().of_one().unwrap();
    let text = compare(&one("kernel"), &one("hither")).unwrap();
    let row: Vec<&str> = text.lines().find(|l| l.starts_with("w p")).unwrap().split_whitespace().collect();
    assert_eq!(&row[2..5], ["10", "5", "0.50"], "{text}");
    assert!(row.contains(&"0.25") && text.contains("1.0 s to 3.0 s; 250.0 ms to 750.0 ms"), "{text}");
    assert_eq!(one("!kernel").samples.len(), 3);
    // Results that cannot be compared give the reason.
    let both = Selection::read(&file).unwrap().of_one().unwrap_err();
    assert!(both.line.contains("#hither,4.2,default,s,rtt0 #kernel,4.2,default,s,rtt0"), "{both:?}");
    assert!(Selection::read(&format!("{file}#libnfs")).unwrap_err().line.contains("hither 4.2; kernel 4.2"));
    let other = written(dir.path(), "b.jsonl", &[line("kernel", "q", 1, 1.0)]);
    assert!(compare(&one("kernel"), &Selection::read(&other).unwrap()).is_err());
    fs::write(dir.path().join("c"), "{\n").unwrap();
    assert!(load(&dir.path().join("c")).unwrap_err().line.contains("c:1: not a JSON line"));
}

/// The chart shows each measured phase, and nothing for absent ones.
#[test]
fn chart_shows_measured_phases_only() {
    let lines = [line("a<b>\"&'", "p", 100, 0.5), line("a<b>\"&'", "q", 0, 0.5)];
    let selection = Selection::of_lines("n<script>", lines);
    for metric in [Metric::Rpcs, Metric::Secs] {
        let svg = plot::svg(std::slice::from_ref(&selection), metric).unwrap();
        assert!(svg.contains("n&lt;script&gt;") && !svg.contains("<script>"), "{svg}");
        assert_eq!(svg.matches(">w p</text>").count() + svg.matches(">w q</text>").count(), 2, "{svg}");
    }
    let svg = plot::svg(std::slice::from_ref(&selection), Metric::Rpcs).unwrap();
    assert!(svg.contains("width=\"590.0\"") && svg.contains("width=\"0.0\""), "{svg}");
    assert!(plot::svg(&[Selection::of_lines("x", [])], Metric::Rpcs).is_err());
}

/// Each experiment in a directory is a workload of the laboratory, and each such workload is an
/// experiment.
#[test]
fn experiments_match_laboratory() {
    let work =
        [include_str!("../../../../lab/work/workloads.py"), include_str!("../../../../lab/work/metadata.py")];
    let mut there: Vec<&str> = work
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.strip_prefix("    name = \"")?.strip_suffix('"'))
        .collect();
    let needs = |e: &&papers::Experiment| e.needs == papers::Needs::Directory;
    let mut listed: Vec<&str> = papers::EXPERIMENTS.iter().filter(needs).map(|e| e.name).collect();
    there.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, there);
}

/// Verdicts follow from the results only. A claim without results is not measured.
#[test]
fn claims_are_judged_by_results_alone() {
    let dir = tempfile::tempdir().unwrap();
    written(
        dir.path(),
        "r.jsonl",
        &[
            line("kernel", "p", 10, 1.0),
            line("hither", "p", 5, 2.0),
            line("kernel", "q", 0, 1.0),
            line("hither", "q", 1, 1.0),
        ],
    );
    let of = |client: &str, phases: &[&str]| json!({"file": "r.jsonl", "workload": "w", "phases": phases, "client": client, "vers": "4.2", "server": "s"});
    let claim = |test: Value| json!({"paper": "P", "at": "F", "says": "<b>", "theirs": "t|", "here": "h", "test": test});
    let test = |phases: &[&str], most: f64, how: &str| {
        claim(
            json!({"Ok": {"unit": "rpcs", "most": most, "how": how, "ours": of("hither", phases), "against": of("kernel", phases)}}),
        )
    };
    let claims = json!([
        test(&["p"], 0.5, "sum"),
        test(&["p"], 0.49, "sum"),
        test(&["p", "q"], 0.6, "sum"),
        test(&["p", "q"], 100.0, "worst"),
        test(&["none"], 1.0, "sum"),
        claim(json!({"Err": "nobody did"})),
    ]);
    fs::write(dir.path().join("claims.json"), claims.to_string()).unwrap();
    let (markdown, html) = report::pages(dir.path()).unwrap();
    let verdicts: Vec<&str> = markdown
        .lines()
        .filter(|l| l.starts_with("| P, F"))
        .map(|l| l.trim_end_matches(" |").rsplit(" | ").next().unwrap())
        .collect();
    assert_eq!(
        verdicts,
        ["reproduced", "not reproduced", "reproduced", "not reproduced", "not measured", "not measured"],
        "{markdown}"
    );
    assert!(markdown.contains("2 reproduced, 2 not, 2 not measured.") && markdown.contains("nobody did"));
    // The report contains both cases in which hither is worse.
    let measured = "r.jsonl: w, s, 0 ms, NFSv4.2, hither, kernel";
    assert!(markdown.contains(&format!("| {measured} | q | 0 | 1 |")), "{markdown}");
    assert!(markdown.contains(&format!("| {measured} | p | 1.0 s | 2.0 s |")), "{markdown}");
    assert!(markdown.contains(&format!("| {measured} | 2 | 1 | 0 | 1 |")), "{markdown}");
    assert!(html.contains("&lt;b&gt;") && !html.contains("<b>") && html.contains("not-reproduced"), "{html}");
}

/// bench/RESULTS.md matches the committed results. Renew it with `hither bench report bench
/// --markdown bench/RESULTS.md`.
#[test]
fn committed_results_are_up_to_date() {
    let (markdown, _) = report::pages(bench()).unwrap();
    let committed = fs::read_to_string(bench().join("RESULTS.md")).unwrap();
    assert!(
        markdown == committed,
        "bench/RESULTS.md is out of date: hither bench report bench --markdown bench/RESULTS.md"
    );
    // Every claim refers to existing results.
    assert!(!markdown.contains("| no results"), "a claim of bench/claims.json has no results");
}
