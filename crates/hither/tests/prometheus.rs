//! The alert rules and the dashboard of `packaging/` in a real Prometheus, with a mount and a
//! server that it scrapes.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{HITHER, own_files, pause, run, wait_for};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Seconds in the place of a minute of the rules.
const MINUTE_SECONDS: u32 = 5;
/// Port of Prometheus in the network of the test.
const PORT: u16 = 9090;

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

/// The rules with seconds instead of minutes.
fn quick_rules() -> String {
    let mut rules = fs::read_to_string(packaging("prometheus/hither.rules.yml")).unwrap();
    rules = rules.replace("[1h]", "[60m]");
    for minutes in [1, 2, 5, 10, 15, 30, 60] {
        let seconds = minutes * MINUTE_SECONDS;
        rules = rules.replace(&format!("for: {minutes}m\n"), &format!("for: {seconds}s\n"));
        rules = rules.replace(&format!("[{minutes}m]"), &format!("[{seconds}s]"));
    }
    assert!(!rules.contains("m]") && !rules.contains("m\n        labels"), "{rules}");
    rules
}

/// A Prometheus that scrapes a mount and a server each second. It ends with this value.
struct Prometheus(Child);

impl Prometheus {
    fn start(dir: &Path, targets: &[&str]) -> Self {
        fs::write(dir.join("rules.yml"), quick_rules()).unwrap();
        let config = serde_json::json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": ["rules.yml"],
            "scrape_configs": [{ "job_name": "hither", "static_configs": [{ "targets": targets }] }],
        });
        // Each JSON text is YAML.
        fs::write(dir.join("prometheus.yml"), config.to_string()).unwrap();
        let log = fs::File::create(dir.join("prometheus.log")).unwrap();
        let child = Command::new("prometheus")
            .current_dir(dir)
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=prometheus"])
            .arg(format!("--web.listen-address=127.0.0.1:{PORT}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("prometheus: {e}; run lab/packages.sh"));
        let prometheus = Self(child);
        wait_for("Prometheus, see prometheus.log", 60, || {
            TcpStream::connect(("127.0.0.1", PORT)).is_ok() && get("/-/ready").0.contains(" 200 ")
        });
        prometheus
    }

    /// The data of an answer of the API.
    #[track_caller]
    fn ask(&self, path: &str) -> Value {
        let (head, body) = get(&format!("/api/v1/{path}"));
        let answer: Value = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {head}\n{body}"));
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The samples of an expression.
    #[track_caller]
    fn query(&self, expression: &str) -> Vec<Value> {
        let mut path = "query?query=".to_string();
        for c in expression.chars() {
            match c {
                'a'..='z' | 'A'..='Z' | '_' => path.push(c),
                c => path.push_str(&format!("%{:02X}", u32::from(c))),
            }
        }
        self.ask(&path)["result"].as_array().unwrap().clone()
    }

    /// Whether an expression has a sample that is a number.
    fn has_data(&self, expression: &str) -> bool {
        self.query(expression).iter().any(|sample| {
            let value: f64 = sample["value"][1].as_str().unwrap().parse().unwrap();
            value.is_finite()
        })
    }

    /// The alert of this name and label that fires.
    fn firing(&self, name: &str, label: &str, value: &str) -> Option<Value> {
        let alerts = self.ask("alerts")["alerts"].as_array().unwrap().clone();
        alerts.into_iter().find(|alert| {
            let labels = &alert["labels"];
            alert["state"] == "firing" && labels["alertname"] == name && labels[label] == value
        })
    }

    /// Asserts that each rule is evaluated without an error.
    fn assert_rules_are_healthy(&self) {
        let rules = self.ask("rules");
        let groups = rules["groups"].as_array().unwrap();
        let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
        assert!(rules.len() > 20, "{} rules", rules.len());
        rules.iter().for_each(|rule| assert_eq!(rule["health"], "ok", "{rule}"));
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The head and the body of a page of Prometheus.
fn get(path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (head.to_string(), body.to_string())
}

/// The expressions of the dashboard, with values for its variables.
fn panel_expressions() -> Vec<String> {
    let text = fs::read_to_string(packaging("grafana/hither.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions = targets.map(|target| target["expr"].as_str().unwrap());
    let expressions = expressions.map(|e| e.replace("$instance", ".*").replace("$__rate_interval", "1m"));
    let expressions: Vec<String> = expressions.collect();
    assert!(expressions.iter().all(|e| !e.contains('$')), "{expressions:?}");
    expressions
}

/// One round of calls of each kind that the panels show.
fn work(server: &Serve, mnt: &Path, round: usize) {
    fs::write(server.export(&format!("far{round}")), vec![7; 300_000]).unwrap();
    for _ in 0..2 {
        assert_eq!(fs::read(mnt.join(format!("far{round}"))).unwrap().len(), 300_000);
    }
    fs::write(mnt.join(format!("new{round}")), vec![8; 100_000]).unwrap();
    assert!(fs::metadata(mnt.join(format!("absent{round}"))).is_err());
    assert!(fs::create_dir(mnt.join(format!("new{round}"))).is_err());
    assert!(fs::read_dir(mnt).unwrap().count() > round);
}

/// A program that reads a file. It ends with this value.
struct Reader(Child);

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Opens a file while the server is away, and returns when the alert of the mount fires.
fn read_in_vain(prometheus: &Prometheus, mnt: &Path, name: &str) -> Reader {
    let reader = Command::new("cat").arg(mnt.join(name)).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let reader = Reader(reader.unwrap());
    let dir = mnt.to_str().unwrap();
    let mut alert = None;
    wait_for("an alert of the mount", 60, || {
        alert = prometheus.firing("HitherMountWaits", "mountpoint", dir);
        alert.is_some()
    });
    let alert = alert.unwrap();
    let summary = alert["annotations"]["summary"].as_str().unwrap();
    assert!(summary.contains(&format!("`hither doctor {dir}` names the cause")), "{alert}");
    assert_eq!(alert["labels"]["export"], "127.0.0.1:/", "{alert}");
    reader
}

/// Waits for the reader, and until no alert fires.
#[track_caller]
fn end_of_alerts(prometheus: &Prometheus, mut reader: Reader) {
    assert!(reader.0.wait().unwrap().success());
    let firing = "ALERTS{alertstate=\"firing\"}";
    wait_for("the end of all alerts", 60, || prometheus.query(firing).is_empty());
}

/// Prometheus accepts the rules, and each alert fires in its unit test and stays silent in the
/// healthy one.
#[test]
#[ignore = "needs prometheus"]
fn alert_rules_pass_promtool() {
    let promtool = |words: [&str; 2], file: &str| {
        let mut command = Command::new("promtool");
        run(command.args(words).arg(packaging(file))).ok();
    };
    promtool(["check", "rules"], "prometheus/hither.rules.yml");
    promtool(["test", "rules"], "prometheus/hither.rules.test.yml");
}

/// Each panel of the dashboard has data of a mount and a server, and no alert fires. A killed
/// server makes the alerts of the mount and of the server fire, and its restart ends them. A
/// stopped server makes the mount's alert fire, although the connection stays.
#[test]
#[ignore = "needs root and prometheus"]
fn prometheus_shows_mount_and_server() {
    own_files();
    let mut server = Serve::of_directory();
    let journal = server.dir.path().join("journal").display().to_string();
    server = server.with(&["--metrics", "127.0.0.1:9311", "--journal", &journal, "--journal-size", "8"]);
    server.serve();
    let mnt = server.mnt("mnt");
    let cache = server.dir.path().join("cache").display().to_string();
    let options = "vers=4.2,metrics=127.0.0.1:9310,cache-age=0,cache-min-free=1M,writeback=journal";
    server.mount(&format!("{options},cache={cache}"), &mnt).ok();
    let prometheus = Prometheus::start(server.dir.path(), &["127.0.0.1:9310", "127.0.0.1:9311"]);

    let expressions = panel_expressions();
    let mut empty: Vec<&String> = Vec::new();
    for round in 0..60 {
        work(&server, &mnt, round);
        pause(1000);
        empty = expressions.iter().filter(|e| !prometheus.has_data(e)).collect();
        // This machine has no server of the kernel.
        empty.retain(|e| !e.contains("node_nfsd_"));
        if round > 10 && empty.is_empty() {
            break;
        }
    }
    assert!(empty.is_empty(), "no data: {empty:#?}");
    prometheus.assert_rules_are_healthy();
    let fired = prometheus.query("count_over_time(ALERTS{alertstate=\"firing\"}[1h])");
    assert!(fired.is_empty(), "{fired:#?}");

    server.kill();
    let killed = read_in_vain(&prometheus, &mnt, "far0");
    wait_for("an alert of the server", 60, || {
        prometheus.firing("HitherDown", "instance", "127.0.0.1:9311").is_some()
    });
    server.serve();
    end_of_alerts(&prometheus, killed);

    server.freeze();
    let frozen = read_in_vain(&prometheus, &mnt, "far1");
    assert!(prometheus.has_data("hither_connection_up == 1"), "a stopped process keeps its connections");
    server.signal(libc::SIGCONT);
    end_of_alerts(&prometheus, frozen);
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    assert_eq!(server.stop(), 0);
}
