//! A mount's report of its figures in every format, with a real server.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, Said, run, wait_for};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

fn stat(words: &[&str], dir: &Path) -> String {
    let said: Said = run(Command::new(HITHER).arg("stat").args(words).arg(dir));
    said.ok().out
}

fn json(dir: &Path) -> serde_json::Value {
    serde_json::from_str(&stat(&["--json"], dir)).unwrap()
}

/// The sample of a metrics page whose name and labels contain all of `parts`.
#[track_caller]
fn sample(page: &str, parts: &[&str]) -> f64 {
    let mut found = page.lines().filter(|l| !l.starts_with('#') && parts.iter().all(|p| l.contains(p)));
    let line = found.next().unwrap_or_else(|| panic!("{parts:?} in {page}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// All formats have the same figures, also over HTTP. The figures grow by the calls made.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn all_formats_tell_the_same() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    for name in ["a", "b", "c"] {
        std::fs::write(ganesha.export(name), vec![7_u8; 300_000]).unwrap();
    }
    // An address in use is refused before anything is mounted.
    let taken = ganesha.mount("vers=4.2,metrics=127.0.0.1:2049", &mnt);
    assert_eq!(taken.code, 1, "{taken:?}");
    assert!(taken.err.starts_with("hither: option 'metrics=127.0.0.1:2049': "), "{taken:?}");
    assert_eq!(taken.err.lines().count(), 1, "{taken:?}");
    let socket = ganesha.dir.path().join("metrics");
    for version in ["4.2", "3"] {
        ganesha.mount(&format!("vers={version},metrics={}", socket.display()), &mnt).ok();
        for name in ["a", "b", "c"] {
            assert_eq!(std::fs::read(mnt.join(name)).unwrap().len(), 300_000);
        }
        // Compares all formats at a moment without reads, because prefetched data may come later.
        let read_of = |report: serde_json::Value| {
            let operations = report["operations"].as_array().unwrap();
            operations.iter().find(|op| op["name"] == "READ").unwrap().clone()
        };
        let (read, page, nfsstat) = loop {
            let read = read_of(json(&mnt));
            let page = stat(&["--format", "prometheus"], &mnt);
            let nfsstat = stat(&["--format", "nfsstat"], &mnt);
            if read_of(json(&mnt))["calls"] == read["calls"] {
                break (read, page, nfsstat);
            }
        };
        let calls = read["calls"].as_u64().unwrap();
        assert!(calls > 0 && read["rtt_us"]["p50"].as_u64().unwrap() > 0, "{read}");
        assert!(read["rtt_us"]["max"].as_u64() <= read["latency_us"]["max"].as_u64(), "{read}");

        let requests = "node_mountstats_nfs_operations_requests_total";
        assert_eq!(sample(&page, &[requests, "operation=\"READ\""]) as u64, calls);
        assert!(sample(&page, &["hither_fuse_requests_total", "request=\"read\""]) >= 3.0);
        assert!(sample(&page, &["node_mountstats_nfs_transport_receives_total"]) >= calls as f64);
        assert!(sample(&page, &["hither_meta_memory_bytes"]) > 0.0);
        assert!(page.contains(&format!("mountpoint=\"{}\"", mnt.display())));

        // The server cuts off a reader that asks for nothing for seconds. On a busy machine this
        // reader may be cut off too.
        let mut served = String::new();
        wait_for("the page", 60, || {
            let mut http = UnixStream::connect(&socket).unwrap();
            let asked = http.write_all(b"GET /metrics HTTP/1.1\r\nHost: mount\r\n\r\n");
            served.clear();
            asked.is_ok() && http.read_to_string(&mut served).is_ok() && !served.is_empty()
        });
        let (head, body) = served.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let names = |page: &str| {
            page.lines().filter(|l| l.starts_with("# TYPE")).map(String::from).collect::<Vec<_>>()
        };
        assert_eq!(names(body), names(&page));

        assert!(nfsstat.starts_with("Client rpc stats:\ncalls      retrans    authrefrsh\n"), "{nfsstat}");
        let major = &version[..1];
        let columns = nfsstat.split_once(&format!("Client nfs v{major}:\n")).unwrap().1;
        let names: Vec<&str> = columns.lines().step_by(2).flat_map(str::split_whitespace).collect();
        let counts: Vec<u64> = columns
            .lines()
            .skip(1)
            .step_by(2)
            .flat_map(str::split_whitespace)
            .filter_map(|word| word.parse().ok())
            .collect();
        assert_eq!(names.len(), counts.len(), "{nfsstat}");
        let at = names.iter().position(|name| *name == "read").unwrap();
        assert_eq!(counts[at], calls, "{nfsstat}");

        let text = stat(&[], &mnt);
        assert!(text.contains("answered    ") && text.contains(" opens"), "{text}");
        run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
        assert!(!socket.exists(), "the socket goes with the mount");
    }
}
