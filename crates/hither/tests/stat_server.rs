//! The figures of a server, by `hither stat --server`, `hither top --server` and HTTP.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{HITHER, hither, own_files, run};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

fn report(server: &Serve) -> Value {
    let state = server.dir.path().join("state");
    let said = hither(&["stat", "--server", state.to_str().unwrap(), "--json"]).ok();
    serde_json::from_str(&said.out).unwrap()
}

/// A figure of an operation; 0 when the operation was never called.
fn figure(report: &Value, protocol: &str, name: &str, field: &str) -> u64 {
    let operations = report["operations"].as_array().unwrap();
    let found = operations.iter().find(|op| op["protocol"] == protocol && op["name"] == name);
    found.map_or(0, |op| op[field].as_u64().unwrap())
}

fn http(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The calls of clients are counted exactly, by procedure and by operation, and bytes and clients
/// are shown.
#[test]
#[ignore = "needs root"]
fn server_figures_are_exact() {
    own_files();
    let mut server = Serve::of_directory().with(&["--metrics", "127.0.0.1:9311"]);
    server.serve();
    fs::write(server.export("f"), vec![7; 5_000]).unwrap();
    let (three, four) = (server.mnt("three"), server.mnt("four"));
    server.mount("vers=3,noac", &three).ok();
    server.mount("vers=4.2", &four).ok();
    let before = report(&server);
    let mounted = figure(&before, "mount", "MNT", "calls");
    assert!(mounted >= 1, "{before}");
    assert_eq!(fs::read(three.join("f")).unwrap().len(), 5_000);
    fs::create_dir(four.join("d")).unwrap();
    let open = fs::File::create(four.join("d/new")).unwrap();
    assert!(fs::remove_dir(four.join("d")).is_err(), "it is not empty");
    let after = report(&server);
    let more = |protocol: &str, name: &str, field: &str| {
        figure(&after, protocol, name, field) - figure(&before, protocol, name, field)
    };
    assert_eq!(more("nfs3", "READ", "calls"), 1);
    let (bytes, room) = (more("nfs3", "READ", "sent_bytes"), 5_000..5_400);
    assert!(room.contains(&bytes), "{bytes} bytes of READ");
    assert_eq!(more("nfs4op", "CREATE", "calls"), 1);
    assert_eq!(more("nfs4op", "OPEN", "calls"), 1);
    let operations = after["operations"].as_array().unwrap();
    let remove = operations.iter().find(|op| op["name"] == "REMOVE" && op["protocol"] == "nfs4op").unwrap();
    let errors: Vec<_> = remove["errors"].as_object().unwrap().values().collect();
    assert_eq!(errors, [1], "{remove}");
    let clients = after["clients"].as_array().unwrap();
    assert_eq!((clients.len(), clients[0]["opens"].as_u64()), (1, Some(1)), "{clients:?}");
    assert_eq!(clients[0]["nfs_version"], "4.2");
    assert!(after["connections"]["list"].as_array().unwrap().len() >= 2);
    assert_eq!(after["exports"][0], "/");
    drop(open);
    let metrics = http(9311, "/metrics");
    let line = r#"hither_server_requests_total{protocol="nfs3",operation="READ"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
    assert!(http(9311, "/healthz").contains("200 OK"));
    let ready = http(9311, "/readyz");
    assert!(ready.contains("200 OK") && ready.contains("exports: 1"), "{ready}");
    let state = server.dir.path().join("state");
    let text = hither(&["stat", "--server", state.to_str().unwrap()]).ok().out;
    assert!(text.contains("exports     /") && text.contains("READ"), "{text}");
    let top = ["top", "--server", state.to_str().unwrap(), "--rounds", "1"];
    let shown = hither(&top).ok().out;
    assert!(shown.contains("calls       ") && shown.contains("connections "), "{shown}");
    for dir in [three, four] {
        run(Command::new(HITHER).arg("umount").arg(dir)).ok();
    }
    assert_eq!(server.stop(), 0);
    let said = hither(&["stat", "--server", state.to_str().unwrap()]);
    assert!(said.code == 1 && said.err.contains("no server has its control socket"), "{said:?}");
}
