//! The connection to the server, the identity of callers, and the users that may use the mount's
//! socket.

use crate::common::{Ganesha, HITHER, hither, pause, run, wait_for};
use crate::{Bench, Mount};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn version(m: &Mount) -> String {
    m.report()["mount"]["nfs_version"].as_str().unwrap().to_string()
}

pub fn vers(b: &Bench<'_>) {
    for (word, is) in [("3", "3"), ("4", "4.2"), ("4.1", "4.1"), ("4.2", "4.2"), ("nqnfs", "nqnfs")] {
        assert_eq!(version(&b.mount(&format!("vers={word}"))), is);
    }
}

pub fn minorversion(b: &Bench<'_>) {
    for (word, is) in [("1", "4.1"), ("2", "4.2")] {
        assert_eq!(version(&b.mount(&format!("vers=4,minorversion={word}"))), is);
    }
}

/// The test names the server by an IPv4 address.
pub fn proto(b: &Bench<'_>) {
    drop(b.mount("proto=tcp"));
    b.refuses("proto=tcp6", "");
}

pub fn port(b: &Bench<'_>) {
    b.refuses("port=1", "");
    drop(b.mount(&format!("port=1,port={}", b.server.port)));
}

pub fn mountport(b: &Bench<'_>) {
    b.refuses("vers=3,mountport=1", "");
    drop(b.mount(&format!("vers=3,mountport={}", b.server.port)));
}

pub fn nconnect(b: &Bench<'_>) {
    for (options, count) in [("nconnect=3", 3), ("vers=3,nconnect=3", 3), ("nconnect=1", 1)] {
        assert_eq!(b.mount(options).report()["connections"].as_array().unwrap().len(), count);
    }
}

/// Time for which a call waits for a silent server.
fn patience(b: &Bench<'_>, options: &str) -> Duration {
    let m = b.mount(&format!("soft,noac,{options}"));
    wait_for("an answer in time", 20, || m.has("file"));
    b.server.freeze();
    let began = Instant::now();
    let seen = std::fs::metadata(m.at("file"));
    let waited = began.elapsed();
    b.server.signal(libc::SIGCONT);
    assert_eq!(seen.map(|_| ()).map_err(|e| e.raw_os_error()), Err(Some(libc::EIO)), "{options}");
    waited
}

pub fn timeo(b: &Bench<'_>) {
    b.put("file", "");
    for version in ["4.2", "3"] {
        let [short, long] =
            [5, 30].map(|timeo| patience(b, &format!("vers={version},retrans=0,timeo={timeo}")));
        assert!(long >= Duration::from_millis(3_000) && short < long, "{short:?} {long:?}");
    }
}

pub fn retrans(b: &Bench<'_>) {
    b.put("file", "");
    for version in ["4.2", "3"] {
        let [short, long] =
            [0, 4].map(|retrans| patience(b, &format!("vers={version},timeo=5,retrans={retrans}")));
        assert!(long >= Duration::from_millis(2_500) && short < long, "{short:?} {long:?}");
    }
}

pub fn rsize(b: &Bench<'_>) {
    b.put("file", vec![1; 1 << 20]);
    for version in ["4.2", "3"] {
        let reads = |size: &str| {
            let m = b.mount(&format!("vers={version}{size}"));
            assert_eq!(std::fs::read(m.at("file")).unwrap().len(), 1 << 20);
            m.calls(&["READ"])
        };
        let (small, usual) = (reads(",rsize=16384"), reads(""));
        assert!(small >= 56 && usual < 20, "vers={version}: {small} and {usual} READs");
    }
}

pub fn wsize(b: &Bench<'_>) {
    for version in ["4.2", "3"] {
        let writes = |size: &str| {
            let m = b.mount(&format!("vers={version}{size}"));
            std::fs::write(m.at("file"), vec![1; 1 << 20]).unwrap();
            m.calls(&["WRITE"])
        };
        let (small, usual) = (writes(",wsize=16384"), writes(""));
        assert!(small >= 60 && usual < 20, "vers={version}: {small} and {usual} WRITEs");
    }
}

pub fn sec(b: &Bench<'_>) {
    // The server has no Kerberos. The tests of Kerberos have a server with all flavors.
    drop(b.mount("sec=krb5:sys"));
    b.refuses("sec=krb5", "Kerberos");
    b.refuses("sec=krb4", "unknown flavor 'krb4'");
    b.refuses("vers=nqnfs,sec=krb5", "NQNFS has no Kerberos");
}

/// The server sends owners as names. They become local owners when the domain matches.
pub fn idmap_domain(_: &Bench<'_>) {
    let ganesha = Ganesha::start();
    let (file, mnt) = (ganesha.export("file"), ganesha.mnt());
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::chown(&file, Some(1), Some(1)).unwrap();
    let owner = |domain: &str| {
        ganesha.mount(&format!("vers=4.2,idmap_domain={domain}"), &mnt).ok();
        let owner = std::fs::metadata(mnt.join("file")).unwrap().uid();
        hither(&["umount", mnt.to_str().unwrap()]).ok();
        owner
    };
    assert_eq!((owner("localdomain"), owner("other.example")), (1, 65_534));
}

/// No server listens at the address. The attempt ends at once, or goes on.
pub fn retry(b: &Bench<'_>) {
    let mnt = b.server.mnt("mnt-retry");
    let attempt = |retry: &str| {
        let mut command = Command::new(HITHER);
        command.args(["mount", "-o", &format!("port=1,retry={retry}"), "127.0.0.1:/"]).arg(&mnt);
        command.stderr(Stdio::null()).spawn().unwrap()
    };
    assert!(!attempt("0").wait().unwrap().success());
    let mut tries = attempt("1");
    pause(2_000);
    assert!(tries.try_wait().unwrap().is_none(), "the attempt goes on for a minute");
    tries.kill().unwrap();
    tries.wait().unwrap();
    run(Command::new("umount").arg(&mnt));
}

pub fn metrics(b: &Bench<'_>) {
    let socket = b.near("figures");
    let m = b.mount(&format!("metrics={}", socket.display()));
    let mut page = String::new();
    wait_for("the page", 60, || {
        let Ok(mut http) = UnixStream::connect(&socket) else { return false };
        page.clear();
        let asked = http.write_all(b"GET /metrics HTTP/1.1\r\nHost: mount\r\n\r\n");
        asked.is_ok() && http.read_to_string(&mut page).is_ok() && !page.is_empty()
    });
    assert!(page.contains(m.shown()), "{page}");
}

pub fn socket(b: &Bench<'_>) {
    let socket = b.near("programs");
    let m = b.mount(&format!("socket={}", socket.display()));
    UnixStream::connect(&socket).unwrap();
    drop(m);
    assert!(!socket.exists());
}

pub fn socket_mode(b: &Bench<'_>) {
    let socket = b.near("programs");
    let _m = b.mount(&format!("socket={},socket-mode=0640", socket.display()));
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o640);
}

pub fn socket_group(b: &Bench<'_>) {
    let socket = b.near("programs");
    for group in ["daemon", "1"] {
        let _m = b.mount(&format!("socket={},socket-group={group}", socket.display()));
        assert_eq!(std::fs::metadata(&socket).unwrap().gid(), 1);
    }
}

// Options of nfs(5) that change nothing. The value that always holds is accepted, and other values
// are refused.

pub fn mountproto(b: &Bench<'_>) {
    drop(b.mount("vers=3,mountproto=tcp"));
    b.refuses("vers=3,mountproto=udp", "mountproto");
}

pub fn mountvers(b: &Bench<'_>) {
    drop(b.mount("vers=3,mountvers=3"));
    b.refuses("vers=3,mountvers=2", "mountvers");
}

pub fn max_connect(b: &Bench<'_>) {
    drop(b.mount("max_connect=2"));
    b.refuses("max_connect=99", "max_connect");
}

pub fn local_lock(b: &Bench<'_>) {
    drop(b.mount("local_lock=none"));
    b.refuses("local_lock=all", "local_lock");
}
