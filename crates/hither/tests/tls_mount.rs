//! Mounts with TLS: direct TLS to nfs-ganesha behind stunnel, and RPC-with-TLS (RFC 9289) to
//! `hither serve`.
//!
//! The tests need root, nfs-ganesha and stunnel: `cargo test -p hither --test tls_mount --
//! --include-ignored`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::stunnel::{Authority, MOUNT_PORT, PORT, Stunnel};
use common::{Ganesha, HITHER, Said, is_mounted, own_files, run, wait_for};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// nfs-ganesha behind stunnel, whose certificate is for 127.0.0.1.
fn ganesha_with(authority: &Authority, more: &str) -> (Ganesha, Stunnel) {
    let ganesha = Ganesha::start();
    authority.issue("server", &["127.0.0.1"]);
    let stunnel = Stunnel::start(authority, (2049, 20048), more, |program| ganesha.inside(program));
    (ganesha, stunnel)
}

/// The options of a version that lead to stunnel.
fn through_stunnel(version: &str) -> String {
    let mount = if version == "3" { format!(",mountport={MOUNT_PORT}") } else { String::new() };
    format!("vers={version},port={PORT}{mount}")
}

fn report(dir: &Path) -> Value {
    let said = run(Command::new(HITHER).args(["stat", "--json"]).arg(dir)).ok();
    serde_json::from_str(&said.out).unwrap()
}

fn umount(dir: &Path) {
    run(Command::new(HITHER).arg("umount").arg(dir)).ok();
}

/// Asserts that a mount failed with one line that has these words, without `retry=`.
#[track_caller]
fn assert_refused(said: &Said, words: &[&str]) {
    assert_eq!((said.code, said.err.lines().count()), (32, 1), "{said:?}");
    assert!(words.iter().all(|word| said.err.contains(word)), "{words:?}: {said:?}");
}

/// Calls whose number depends on the time: the kernel reads ahead, attributes expire, and a file is
/// opened for reading before or after the CLOSE of its writer. A CLOSE waits for others, and
/// travels with a removal that comes in that time.
const TIMED: [&str; 6] = ["READ", "LOOKUP", "GETATTR", "ACCESS", "CLOSE", "OPEN_DOWNGRADE"];

/// Writes, reads, lists and removes. Returns the calls of the mount by name, without [`TIMED`].
fn work(dir: &Path) -> BTreeMap<String, u64> {
    let contents: Vec<u8> = (0..3_000_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    std::fs::create_dir(dir.join("d")).unwrap();
    std::fs::write(dir.join("d/file"), &contents).unwrap();
    assert!(std::fs::read(dir.join("d/file")).unwrap() == contents);
    std::fs::rename(dir.join("d/file"), dir.join("d/other")).unwrap();
    assert_eq!(std::fs::read_dir(dir.join("d")).unwrap().count(), 1);
    std::fs::remove_file(dir.join("d/other")).unwrap();
    std::fs::remove_dir(dir.join("d")).unwrap();
    let report = report(dir);
    let operations = report["operations"].as_array().unwrap().iter();
    let calls = operations.map(|op| (op["name"].as_str().unwrap(), op["calls"].as_u64().unwrap()));
    calls.filter(|(name, _)| !TIMED.contains(name)).map(|(name, calls)| (name.into(), calls)).collect()
}

/// A mount through TLS makes the same calls as a mount in clear text.
#[test]
#[ignore = "needs root, nfs-ganesha and stunnel"]
fn tls_costs_no_calls() {
    let authority = Authority::new();
    let (ganesha, _stunnel) = ganesha_with(&authority, "");
    let mnt = ganesha.mnt();
    for version in ["4.2", "3"] {
        ganesha.mount(&format!("vers={version}"), &mnt).ok();
        let plain = work(&mnt);
        assert!(report(&mnt)["mount"]["transport"].is_null());
        umount(&mnt);
        let options = format!("{},{}", through_stunnel(version), authority.options("direct", None));
        ganesha.mount(&options, &mnt).ok();
        assert_eq!(work(&mnt), plain, "vers={version}");
        let mount = &report(&mnt)["mount"];
        let transport = &mount["transport"];
        assert_eq!(
            (&transport["protocol"], &transport["server_name"]),
            (&"TLS 1.3".into(), &"127.0.0.1".into())
        );
        assert!(mount["options"].as_str().unwrap().contains("xprtsec=direct"), "{mount}");
        let text = run(Command::new(HITHER).arg("stat").arg(&mnt)).ok().out;
        assert!(text.contains("TLS 1.3, AES-256-GCM, server 127.0.0.1; handshakes"), "{text}");
        umount(&mnt);
    }
}

/// All connections of a mount have TLS, and data through several of them arrives.
/// Promise: 21b
#[test]
#[ignore = "needs root, nfs-ganesha and stunnel"]
fn all_connections_have_tls() {
    let authority = Authority::new();
    let (ganesha, _stunnel) = ganesha_with(&authority, "");
    let mnt = ganesha.mnt();
    let options = |version: &str| {
        format!("{},{},nconnect=4", through_stunnel(version), authority.options("direct", None))
    };
    for version in ["4.2", "3"] {
        ganesha.mount(&options(version), &mnt).ok();
        std::thread::scope(|scope| {
            for i in 0_u8..8 {
                let file = mnt.join(format!("file{i}"));
                scope.spawn(move || {
                    std::fs::write(&file, vec![i; 2 << 20]).unwrap();
                    assert!(std::fs::read(&file).unwrap() == vec![i; 2 << 20]);
                });
            }
        });
        let report = report(&mnt);
        let transport = &report["mount"]["transport"];
        let sessions = transport["handshakes"].as_u64().unwrap() + transport["resumptions"].as_u64().unwrap();
        // A mount of NFSv3 has a connection to mountd as well.
        assert_eq!(report["connections"].as_array().unwrap().len(), 4);
        assert!(sessions >= 4, "{transport}");
        umount(&mnt);
        for i in 0_u8..8 {
            assert!(std::fs::read(ganesha.export(&format!("file{i}"))).unwrap() == vec![i; 2 << 20]);
        }
    }
}

/// After a lost connection the mount goes on with a resumed session.
/// Promise: 21b
#[test]
#[ignore = "needs root, nfs-ganesha and stunnel"]
fn lost_connection_resumes_tls() {
    let authority = Authority::new();
    let (ganesha, mut stunnel) = ganesha_with(&authority, "");
    let mnt = ganesha.mnt();
    for version in ["4.2", "3"] {
        let options = format!("{},{}", through_stunnel(version), authority.options("direct", None));
        ganesha.mount(&options, &mnt).ok();
        let count = |what: &str| report(&mnt)["mount"]["transport"][what].as_u64().unwrap();
        let sessions = || count("handshakes") + count("resumptions");
        let before = count("resumptions");
        let file = mnt.join(format!("file of {version}"));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                // A new stunnel would otherwise close a copy of the file, and wait for itself.
                own_files();
                for round in 0_u8..40 {
                    std::fs::write(&file, vec![round; 1 << 20]).unwrap();
                }
            });
            for _ in 0..3 {
                // The ticket of a session comes with its first replies.
                common::pause(300);
                let had = sessions();
                stunnel.restart(|program| ganesha.inside(program));
                common::wait_for("another session", 60, || sessions() > had || writer.is_finished());
            }
            writer.join().unwrap();
        });
        assert!(std::fs::read(&file).unwrap() == vec![39; 1 << 20]);
        let transport = report(&mnt)["mount"]["transport"].clone();
        assert!(count("resumptions") > before, "{transport}");
        umount(&mnt);
        assert!(std::fs::read(ganesha.export(&format!("file of {version}"))).unwrap() == vec![39; 1 << 20]);
    }
}

/// A certificate that fails a check fails the mount at once, and no clear text goes to the server.
/// Promise: 21b
#[test]
#[ignore = "needs root, nfs-ganesha and stunnel"]
fn faulty_certificate_fails_mount() {
    let authority = Authority::new();
    let (ganesha, mut stunnel) = ganesha_with(&authority, "");
    let mnt = ganesha.mnt();
    let direct = authority.options("direct", None);
    let attempt = |version: &str, options: &str| {
        let began = Instant::now();
        // The last value counts: without the check, the mount would be tried for two minutes.
        let said = ganesha.mount(&format!("retry=2,{},{options}", through_stunnel(version)), &mnt);
        assert!(began.elapsed() < Duration::from_secs(60) && !is_mounted(&mnt), "{said:?}");
        said
    };
    let other = Authority::new();
    for version in ["4.2", "3"] {
        assert_refused(&attempt(version, "xprtsec=direct"), &["no trusted authority", "tls-ca=FILE"]);
        assert_refused(&attempt(version, &other.options("direct", None)), &["no trusted authority"]);
        let named = attempt(version, &format!("{direct},tls-server-name=files.test"));
        assert_refused(&named, &["is for 127.0.0.1 and not for files.test", "tls-server-name=NAME"]);
        authority.revoke(true);
        let crl = format!("{direct},tls-crl={}", authority.path("crl.pem").display());
        assert_refused(&attempt(version, &crl), &["is revoked"]);
        authority.revoke(false);
        attempt_ok(&ganesha, &format!("{},{crl}", through_stunnel(version)), &mnt);
    }
    authority.issue_until("server", &["127.0.0.1"], 2021);
    stunnel.restart(|program| ganesha.inside(program));
    assert_refused(&attempt("4.2", &direct), &["has expired"]);
}

fn attempt_ok(ganesha: &Ganesha, options: &str, mnt: &Path) {
    ganesha.mount(options, mnt).ok();
    umount(mnt);
}

/// A running mount survives a certificate that cannot be checked: it goes on after its renewal.
/// Promise: 21b
#[test]
#[ignore = "needs root, nfs-ganesha and stunnel"]
fn running_mount_waits_for_certificate() {
    let authority = Authority::new();
    let (ganesha, mut stunnel) = ganesha_with(&authority, "");
    let mnt = ganesha.mnt();
    ganesha.mount(&format!("{},{}", through_stunnel("4.2"), authority.options("direct", None)), &mnt).ok();
    std::fs::write(mnt.join("file"), "before").unwrap();
    // Tickets outlive the certificate, so the authority of the client changes as well.
    let ca = std::fs::read(authority.path("ca.pem")).unwrap();
    std::fs::copy(Authority::new().path("ca.pem"), authority.path("ca.pem")).unwrap();
    stunnel.restart(|program| ganesha.inside(program));
    let log = ganesha.dir.path().join("log");
    let file = mnt.join("file");
    let writer = std::thread::spawn(move || {
        own_files();
        std::fs::write(file, "after").unwrap();
    });
    wait_for("a warning", 60, || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("no trusted authority signed") && said.contains("trying again")
    });
    assert!(!writer.is_finished());
    std::fs::write(authority.path("ca.pem"), ca).unwrap();
    writer.join().unwrap();
    umount(&mnt);
    assert_eq!(std::fs::read_to_string(ganesha.export("file")).unwrap(), "after");
}

/// A server that requires a client certificate accepts one of its authority and names the lack.
#[test]
#[ignore = "needs root, nfs-ganesha and stunnel"]
fn client_certificate_is_presented() {
    let authority = Authority::new();
    let ca = authority.path("ca.pem");
    let (ganesha, _stunnel) =
        ganesha_with(&authority, &format!("CAfile = {}\nverifyChain = yes\nrequireCert = yes", ca.display()));
    let mnt = ganesha.mnt();
    authority.issue("client", &["client.test"]);
    for version in ["4.2", "3"] {
        let ports = through_stunnel(version);
        let missing = ganesha.mount(&format!("retry=2,{ports},{}", authority.options("direct", None)), &mnt);
        assert_refused(&missing, &["requires a client certificate", "tls-cert=FILE"]);
        let foreign = Authority::new();
        foreign.issue("client", &["client.test"]);
        std::fs::copy(&ca, foreign.path("ca.pem")).unwrap();
        let refused =
            ganesha.mount(&format!("retry=2,{ports},{}", foreign.options("direct", Some("client"))), &mnt);
        assert_refused(&refused, &["refuses the client certificate"]);
        ganesha.mount(&format!("{ports},{}", authority.options("direct", Some("client"))), &mnt).ok();
        work(&mnt);
        assert_eq!(report(&mnt)["mount"]["transport"]["client_certificate"], true);
        umount(&mnt);
    }
}

/// A server without TLS gets the probe and nothing after it.
/// Promise: 21b
#[test]
#[ignore = "needs root, nfs-ganesha and stunnel"]
fn server_without_tls_is_refused() {
    let authority = Authority::new();
    let (ganesha, _stunnel) = ganesha_with(&authority, "");
    let mnt = ganesha.mnt();
    let tls = authority.options("tls", None);
    for version in ["4.2", "4.1", "3"] {
        let said = ganesha.mount(&format!("retry=2,vers={version},{tls}"), &mnt);
        assert_refused(&said, &["offers no TLS", "xprtsec=none"]);
        assert_eq!(said.err.contains("needs no MOUNT service"), version == "3", "{said:?}");
    }
    // TLS of the wrong kind.
    let direct = authority.options("direct", None);
    assert_refused(&ganesha.mount(&format!("vers=4.2,{direct}"), &mnt), &["xprtsec=tls"]);
    let said = ganesha.mount(&format!("{},{tls}", through_stunnel("4.2")), &mnt);
    assert_refused(&said, &["xprtsec=direct"]);
    assert!(!is_mounted(&mnt));
}

/// The doctor uses the options of TLS as a mount does, also those of an existing mount.
#[test]
#[ignore = "needs root, nfs-ganesha and stunnel"]
fn doctor_measures_through_tls() {
    let authority = Authority::new();
    let (ganesha, _stunnel) = ganesha_with(&authority, "");
    let mnt = ganesha.mnt();
    let options = format!("{},{}", through_stunnel("4.2"), authority.options("direct", None));
    let doctor = |words: &[&str]| {
        let said = run(ganesha.inside(HITHER).args(["doctor", "--json", "--size", "1"]).args(words));
        let json: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
        assert!(json["measured"]["versions"][0]["works"].as_bool().unwrap(), "{json}");
    };
    doctor(&["-o", &options, "127.0.0.1:/export"]);
    ganesha.mount(&options, &mnt).ok();
    doctor(&["-o", "vers=4.2", mnt.to_str().unwrap()]);
    umount(&mnt);
}

/// A `hither serve` that offers TLS with a certificate for 127.0.0.1.
fn served(authority: &Authority, more: &[&str]) -> Serve {
    authority.issue("server", &["127.0.0.1"]);
    let file = |name: &str| authority.path(name).display().to_string();
    let server =
        Serve::of_directory().with(&["--tls-cert", &file("server.pem"), "--tls-key", &file("server.key")]);
    let mut server = server.with(more);
    server.serve();
    server
}

/// RPC-with-TLS of each version, with the MOUNT protocol, several connections and the backchannel.
#[test]
#[ignore = "needs root"]
fn starttls_mount_works() {
    let authority = Authority::new();
    let mut server = served(&authority, &["--nqnfs", "--max-delegations", "1000"]);
    let mnt = server.mnt("mnt");
    for version in ["4.2", "4.1", "3", "nqnfs"] {
        server.mount(&format!("vers={version}"), &mnt).ok();
        let plain = work(&mnt);
        umount(&mnt);
        server.mount(&format!("vers={version},{}", authority.options("tls", None)), &mnt).ok();
        assert_eq!(work(&mnt), plain, "vers={version}");
        let shown = report(&mnt)["mount"].clone();
        assert_eq!(shown["transport"]["server_name"], "127.0.0.1");
        assert!(shown["options"].as_str().unwrap().contains("xprtsec=tls"), "{shown}");
        umount(&mnt);
    }
    // A restarted server has new ticket keys, so only the mount itself must survive.
    server.mount(&format!("vers=4.2,nconnect=3,{}", authority.options("tls", None)), &mnt).ok();
    std::fs::write(mnt.join("file"), "before").unwrap();
    server.kill();
    server.serve();
    std::fs::write(mnt.join("file"), "after").unwrap();
    umount(&mnt);
    assert_eq!(std::fs::read_to_string(server.export("file")).unwrap(), "after");
}

/// With an authority of clients, the server sees the client's certificate.
#[test]
#[ignore = "needs root"]
fn starttls_mount_presents_certificate() {
    let authority = Authority::new();
    let ca = authority.path("ca.pem").display().to_string();
    let server = served(&authority, &["--tls-client-ca", &ca]);
    let mnt = server.mnt("mnt");
    authority.issue("client", &["client.test"]);
    for version in ["4.2", "3"] {
        let with = |options: &str| format!("vers={version},{options}");
        server.mount(&with(&authority.options("mtls", Some("client"))), &mnt).ok();
        work(&mnt);
        let shown = report(&mnt)["mount"].clone();
        assert_eq!(shown["transport"]["client_certificate"], true, "{shown}");
        assert!(shown["options"].as_str().unwrap().contains("xprtsec=mtls"), "{shown}");
        umount(&mnt);
        let foreign = Authority::new();
        foreign.issue("client", &["client.test"]);
        std::fs::copy(&ca, foreign.path("ca.pem")).unwrap();
        let said = server.mount(&with(&foreign.options("mtls", Some("client"))), &mnt);
        assert_refused(&said, &["refuses the client certificate"]);
    }
}

/// A gateway reaches its origin through TLS.
#[test]
#[ignore = "needs root"]
fn starttls_origin_of_gateway() {
    let authority = Authority::new();
    let origin = served(&authority, &[]);
    let mut gateway = Serve::gateway(&origin, &format!("vers=4.2,{}", authority.options("tls", None)));
    gateway.serve();
    let mnt = gateway.mnt("mnt");
    gateway.mount("vers=4.2", &mnt).ok();
    work(&mnt);
    std::fs::write(mnt.join("file"), "through").unwrap();
    umount(&mnt);
    assert_eq!(std::fs::read_to_string(origin.export("file")).unwrap(), "through");
}
