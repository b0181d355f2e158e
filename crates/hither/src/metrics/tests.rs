//! The page is well formed and documented, and the endpoint answers each valid request.

mod packaged;

use super::endpoint::{EndpointAddr, bind};
use super::*;
use crate::report::sample::{op, report};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Metric families of a page with their samples.
fn families(page: &str) -> BTreeMap<String, Vec<String>> {
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut family = String::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split(' ').next().unwrap().to_string();
            assert!(out.insert(family.clone(), Vec::new()).is_none(), "{family} comes twice");
        } else if !line.starts_with('#') {
            assert!(line.starts_with(&family), "{line} stands in {family}");
            let value = line.rsplit_once("} ").unwrap().1;
            assert!(value.parse::<f64>().is_ok(), "{line}");
            out.get_mut(&family).unwrap().push(line.to_string());
        }
    }
    out
}

/// The page contains the report's figures with escaped labels.
#[test]
fn metrics_page_has_report_figures() {
    let mut report = report(vec![op("READ", 4)]);
    report.mount.dir = "/a \"b\"\\c".into();
    let reasons = BTreeMap::from([("busy".to_string(), Counters::Count(3))]);
    let hints = BTreeMap::from([("missed".to_string(), Counters::Group(reasons))]);
    report.layers.insert("hints".into(), Counters::Group(hints));
    let families = families(&render(&report));
    let mount = "export=\"s:/x\",mountpoint=\"/a \\\"b\\\"\\\\c\"";
    let node = format!("{mount},protocol=\"tcp\",mountaddr=\"10.0.0.1\"");
    for (family, sample) in [
        ("node_mountstats_nfs_operations_requests_total", format!("{{{node},operation=\"READ\"}} 4")),
        ("node_mountstats_nfs_operations_transmissions_total", format!("{{{node},operation=\"READ\"}} 5")),
        ("node_mountstats_nfs_transport_sends_total", format!("{{{node},transport=\"0\"}} 3")),
        ("hither_operation_seconds", format!("{{{mount},operation=\"READ\",quantile=\"0.9\"}} 0.0015")),
        ("hither_fuse_requests_total", format!("{{{mount},request=\"lookup\"}} 5")),
        ("hither_meta_hits_total", format!("{{{mount}}} 3")),
        ("hither_meta_memory_bytes", format!("{{{mount}}} 2048")),
        ("hither_hints_missed_total", format!("{{{mount},reason=\"busy\"}} 3")),
    ] {
        let found = &families[family];
        assert!(found.contains(&format!("{family}{sample}")), "{family}: {found:?}");
    }
}

/// docs/METRICS.md lists each metric name without a rule, and no other name.
#[test]
fn metric_names_match_documentation() {
    let text = include_str!("../../../../docs/METRICS.md");
    let mut bare = report(vec![op("READ", 4)]);
    bare.layers.clear();
    let pages = [render(&bare), server::render(&server::tests::report())];
    let rendered: BTreeSet<String> = pages.iter().flat_map(|page| families(page).into_keys()).collect();
    let documented: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| !name.contains("LAYER"))
        .map(String::from)
        .collect();
    assert_eq!(documented, rendered);
}

#[test]
fn places_are_addresses_or_paths() {
    assert_eq!("127.0.0.1:9310".parse(), Ok(EndpointAddr::Tcp("127.0.0.1:9310".parse().unwrap())));
    assert_eq!("[::1]:1".parse(), Ok(EndpointAddr::Tcp("[::1]:1".parse().unwrap())));
    assert_eq!("/run/x".parse(), Ok(EndpointAddr::Unix("/run/x".into())));
    for wrong in ["", "9310", "host:1", "run/x"] {
        assert!(wrong.parse::<EndpointAddr>().is_err(), "{wrong}");
    }
}

async fn ask(path: &std::path::Path, request: &str) -> String {
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

/// The endpoint answers requests for its page and refuses other paths, methods and overlong
/// requests. A socket of a dead daemon is replaced.
#[tokio::test]
async fn endpoint_serves_its_page_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics");
    let page = || Arc::new(|| "x 1\n".to_string()) as endpoint::Page;
    let place = EndpointAddr::Unix(path.clone());
    let endpoint = bind(&place).await.unwrap().serve(page());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = ask(&path, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nx 1\n"), "{answer}");
    assert!(ask(&path, "HEAD /metrics HTTP/1.0\r\n\r\n").await.ends_with("Connection: close\r\n\r\n"));
    assert!(ask(&path, "GET /etc/passwd HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404 "));
    assert!(ask(&path, "POST /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405 "));
    assert_eq!(ask(&path, &"x".repeat(9000)).await, "", "a request without end is cut off");
    // The socket of a live daemon is kept, that of a dead one is replaced.
    assert!(bind(&place).await.is_err());
    drop(endpoint);
    assert!(!path.exists());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let _again = bind(&place).await.unwrap().serve(page());
    assert!(ask(&path, "GET / HTTP/1.1\r\n\r\n").await.contains("/metrics"));
    // A regular file of a user is not removed.
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(bind(&EndpointAddr::Unix(file.clone())).await.is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"x");
}

/// Silent readers block other readers at most for the endpoint's time limit.
#[tokio::test]
async fn silent_readers_are_disconnected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics");
    let page: endpoint::Page = Arc::new(|| "x 1\n".to_string());
    let _endpoint =
        bind(&EndpointAddr::Unix(path.clone())).await.unwrap().serve_within(page, Duration::from_millis(100));
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(UnixStream::connect(&path).await.unwrap());
    }
    let answer = ask(&path, "GET /metrics HTTP/1.1\r\n\r\n").await;
    assert!(answer.ends_with("x 1\n"), "{answer}");
}
