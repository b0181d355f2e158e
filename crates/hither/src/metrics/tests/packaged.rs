//! The alert rules and the dashboard of `packaging/` use metrics that the program has.

use crate::metrics::{render, server};
use crate::report::Counters;
use crate::report::sample::{op, report};
use hither_cache::{data::DataCacheStats, metadata::MetadataCacheStats};
use hither_server::ErrorClass;
use hither_writeback::pending_creates::PendingCreatesStats;
use hither_writeback::pending_removes::PendingRemovesStats;
use hither_writeback::pending_writes::WriteBackStats;
use hither_writeback::wal::WalStats;
use serde_json::Value;
use std::collections::BTreeSet;

const RULES: &str = include_str!("../../../../../packaging/prometheus/hither.rules.yml");
const RULE_TESTS: &str = include_str!("../../../../../packaging/prometheus/hither.rules.test.yml");
const DASHBOARD: &str = include_str!("../../../../../packaging/grafana/hither.json");
const DOCUMENTATION: &str = include_str!("../../../../../docs/METRICS.md");

/// The names of all samples of mounts and servers, and the kernel's counterparts that
/// docs/METRICS.md names. `metric_names_match_documentation` compares the samples with that file.
fn existing_names() -> BTreeSet<String> {
    let mut mount = report(vec![op("READ", 4)]);
    mount.layers = [
        ("meta", Counters::of(&MetadataCacheStats::default())),
        ("dirty", Counters::of(&WriteBackStats::default())),
        ("ahead", Counters::of(&PendingCreatesStats::default())),
        ("removals", Counters::of(&PendingRemovesStats::default())),
        ("journal", Counters::of(&WalStats::default())),
        ("disk", Counters::of(&DataCacheStats::default())),
    ]
    .map(|(name, counters)| (name.to_string(), counters))
    .into();
    let pages = [render(&mount), server::render(&server::tests::report())];
    let samples = pages.iter().flat_map(|page| page.lines()).filter(|line| !line.starts_with('#'));
    let kernel = DOCUMENTATION.split('`').filter(|word| word.starts_with("node_nfsd_"));
    samples.filter_map(|line| line.split('{').next()).chain(kernel).map(String::from).collect()
}

/// The metrics of an expression of PromQL: words with an underscore outside of selectors and
/// strings that are not functions. `up` is a metric of Prometheus.
fn metrics_of(expression: &str) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut names = BTreeSet::new();
    let mut rest = expression;
    while let Some(start) = rest.find(|c: char| is_word(c) || "{[\"".contains(c)) {
        rest = &rest[start..];
        let closing = match rest.as_bytes()[0] {
            b'{' => Some('}'),
            b'[' => Some(']'),
            b'"' => Some('"'),
            _ => None,
        };
        if let Some(closing) = closing {
            rest = rest[1..].split_once(closing).expect("a closed selector or string").1;
            continue;
        }
        let word = rest.split(|c| !is_word(c)).next().unwrap_or_default();
        rest = &rest[word.len()..];
        if word.contains('_') && !rest.trim_start().starts_with('(') {
            names.insert(word);
        }
    }
    names
}

/// Values of a key of the rules: the rest of its line and the deeper lines that follow.
fn values(key: &str) -> Vec<String> {
    let lines: Vec<&str> = RULES.lines().collect();
    let value = |at: usize| {
        let (before, value) = lines[at].split_once(key)?;
        let is_key = before.trim_start_matches([' ', '-']).is_empty();
        let deeper = |line: &&&str| line.len() - line.trim_start().len() > before.len();
        let first = value.trim_start_matches(" >-").to_string();
        let all = lines[at + 1..].iter().take_while(deeper).fold(first, |all, next| all + " " + next.trim());
        is_key.then(|| all.trim().to_string())
    };
    (0..lines.len()).filter_map(value).collect()
}

/// Each metric of an alert or a panel exists, so a misspelt or removed one is found.
#[test]
fn packaged_metrics_exist() {
    let existing = existing_names();
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions = targets.map(|target| target["expr"].as_str().unwrap().to_string());
    let expressions: Vec<String> = expressions.chain(values("expr:")).collect();
    assert!(expressions.len() > 50, "{expressions:?}");
    for expression in &expressions {
        let used = metrics_of(expression);
        assert!(!used.is_empty() || expression.starts_with("up{"), "{expression} has no metric");
        for name in used {
            assert!(existing.contains(name), "{name} is no metric: {expression}");
        }
    }
}

/// Each alert has a severity, a summary with a command or an option, and a unit test in which it
/// fires. The classes of errors exist.
#[test]
fn packaged_alerts_are_whole() {
    let alerts = values("alert:");
    let summaries = values("summary:");
    let severities = values("labels:");
    assert!(alerts.len() > 20 && summaries.len() == alerts.len() && severities.len() == alerts.len());
    for (alert, summary) in alerts.iter().zip(&summaries) {
        assert!(summary.matches('`').count() >= 2, "{alert} names no command: {summary}");
        assert!(RULE_TESTS.contains(&format!("alertname=\"{alert}\"")), "{alert} has no unit test");
    }
    for severity in &severities {
        assert!(["{severity: critical}", "{severity: warning}"].contains(&severity.as_str()), "{severity}");
    }
    for class in RULES.split("class=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(ErrorClass::ALL.iter().any(|known| known.name() == class), "{class}");
    }
}

/// Each panel of the dashboard has its own number, a description, a unit and the chosen data
/// source.
#[test]
fn dashboard_panels_are_described() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        if panel["type"] != "row" {
            assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{panel}");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{panel}");
            assert_eq!(panel["datasource"]["uid"], "${DS_PROMETHEUS}", "{panel}");
        }
    }
    assert!(ids.len() > 15, "{ids:?}");
}
