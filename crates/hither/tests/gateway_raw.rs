//! Single NFSv3 calls to `hither gateway`, which no kernel would send in this way.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::wire::Wire;
use common::{own_files, pause, wait_for};
use hither_proto::nfs3::{
    CommitArgs, Diropargs3, Fh3, LookupArgs, Nfsstat3, ReadArgs, RemoveArgs, RmdirArgs, StableHow, WriteArgs,
};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// Bytes that one client writes.
const PIECE_BYTES: usize = 4096;

/// A client that writes one piece of a file.
struct Writer {
    wire: Wire,
    file: Fh3,
    number: usize,
    /// The verifier of the last WRITE.
    verifier: [u8; 8],
}

impl Writer {
    /// A writer of the file `w`, in the export at `path` if that is not the only one.
    fn new(port: u16, path: &str, number: usize) -> Self {
        let mut wire = Wire::connect_from(port, 777 + number as u16);
        let dir = wire.root_of(path);
        let what = Diropargs3 { dir, name: b"w"[..].into() };
        let file = wire.call(&LookupArgs { what }).into_result().unwrap().object;
        Self { wire, file, number, verifier: [0; 8] }
    }

    fn write(&mut self, stable: StableHow) {
        let data = vec![b'A' + self.number as u8; PIECE_BYTES][..].into();
        let offset = (self.number * PIECE_BYTES) as u64;
        let args = WriteArgs { file: self.file.clone(), offset, count: PIECE_BYTES as u32, stable, data };
        self.verifier = self.wire.call(&args).into_result().unwrap().verf;
    }

    fn commit(&mut self) -> Result<[u8; 8], Nfsstat3> {
        let args = CommitArgs { file: self.file.clone(), offset: 0, count: 0 };
        let done = self.wire.call(&args).into_result();
        done.map(|ok| ok.verf).map_err(|(status, _)| status)
    }

    /// Whether the client may forget its bytes after a COMMIT.
    fn is_told_stable(&mut self) -> bool {
        self.commit() == Ok(self.verifier)
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        let piece = bytes.get(self.number * PIECE_BYTES..(self.number + 1) * PIECE_BYTES);
        piece.is_some_and(|piece| piece.iter().all(|&byte| byte == b'A' + self.number as u8))
    }
}

/// No client of a gateway forgets unstable bytes that the origin lacks, or gets the rights of
/// another export. One test, because clients of several threads with their own file descriptors
/// would share a descriptor of the runtime.
/// Promise: G3, G4
#[test]
#[ignore = "needs root"]
fn raw_clients_keep_bytes_and_rights() {
    refused_by_origin();
    origin_replaced();
    handle_of_another_export();
    given_up_read_is_closed();
    removals_have_types();
}

/// RMDIR removes directories alone, and REMOVE all other objects. REMOVE of NFSv4 at the origin has
/// no type.
fn removals_have_types() {
    for version in ["vers=4.2", "vers=4.1", "vers=3"] {
        own_files();
        let mut origin = Serve::of_directory().with(&["-o", "rw,no_root_squash,insecure"]);
        origin.serve();
        fs::write(origin.export("w"), "precious").unwrap();
        fs::create_dir(origin.export("empty")).unwrap();
        let mut gateway = Serve::gateway(&origin, version);
        gateway.serve();
        let mut wire = Wire::connect_from(gateway.port, 777);
        let dir = wire.root_of("/");
        let object = |name: &str| Diropargs3 { dir: dir.clone(), name: name.as_bytes().into() };
        let mut rmdir = |name| {
            let done = wire.call(&RmdirArgs { object: object(name) }).into_result();
            done.map(drop).map_err(|(status, _)| status)
        };
        assert_eq!(rmdir("w"), Err(Nfsstat3::NOTDIR), "{version}");
        assert_eq!(rmdir("none"), Err(Nfsstat3::NOENT), "{version}");
        assert_eq!(rmdir("empty"), Ok(()), "{version}");
        assert_eq!(fs::read(origin.export("w")).unwrap(), b"precious", "{version}");
        assert!(!origin.export("empty").exists(), "{version}");
        fs::create_dir(origin.export("empty")).unwrap();
        std::os::unix::fs::symlink("nothing", origin.export("link")).unwrap();
        let mut remove = |name| {
            let done = wire.call(&RemoveArgs { object: object(name) }).into_result();
            done.map(drop).map_err(|(status, _)| status)
        };
        assert_eq!(remove("empty"), Err(Nfsstat3::ISDIR), "{version}");
        assert_eq!(remove("none"), Err(Nfsstat3::NOENT), "{version}");
        assert_eq!((remove("link"), remove("w")), (Ok(()), Ok(())), "{version}");
        assert!(origin.export("empty").is_dir(), "{version}");
        assert!(!origin.export("w").exists(), "{version}");
    }
}

/// A handle with the number of another export of the same origin is stale. A handle outlives a
/// restart of the gateway.
fn handle_of_another_export() {
    own_files();
    let mut origin = Serve::of_directory().with(&["-o", "rw,no_root_squash,insecure"]);
    origin.serve();
    fs::write(origin.export("w"), "secret").unwrap();
    let (origins, exports) = (origin.dir.path().join("origins"), origin.dir.path().join("rules"));
    let line = |path: &str| format!("127.0.0.1:/ {path} hither retry=0,port=2049,vers=4.2\n");
    fs::write(&origins, line("/open") + &line("/closed")).unwrap();
    fs::write(&exports, "/open *(rw,no_root_squash,insecure)\n/closed *(ro,all_squash,insecure)\n").unwrap();
    fs::set_permissions(origin.export("w"), Permissions::from_mode(0o600)).unwrap();
    let words = ["--origins", origins.to_str().unwrap(), "--config", exports.to_str().unwrap()];
    let mut gateway = Serve::gateway_at(3049, &words);
    gateway.serve();
    let mut writer = Writer::new(gateway.port, "/open", 0);
    let closed = Writer::new(gateway.port, "/closed", 1).file;
    let read = |wire: &mut Wire, file: &[u8]| {
        let args = ReadArgs { file: file.into(), offset: 0, count: 100 };
        wire.call(&args).into_result().map(|ok| ok.data.to_vec()).map_err(|(status, _)| status)
    };
    assert_eq!(read(&mut writer.wire, &closed), Err(Nfsstat3::ACCES));
    let forged = [&writer.file[..4], &closed[4..]].concat();
    assert_eq!(read(&mut writer.wire, &forged), Err(Nfsstat3::STALE));
    gateway.kill();
    gateway.serve();
    writer.wire.reconnect();
    assert_eq!(read(&mut writer.wire, &writer.file.to_vec()), Ok(b"secret".to_vec()));
    assert_eq!(read(&mut writer.wire, &forged), Err(Nfsstat3::STALE));
}

/// With `stale-ok`, a read that begins before the origin is away is begun again. Its first open is
/// closed: the file can be removed.
fn given_up_read_is_closed() {
    own_files();
    let mut origin = Serve::of_directory().with(&["-o", "rw,no_root_squash,insecure"]);
    origin.serve();
    fs::write(origin.export("w"), vec![7; 8 << 20]).unwrap();
    let mut gateway = Serve::gateway(&origin, "vers=4.2,stale-ok=60");
    gateway.serve();
    let mut writer = Writer::new(gateway.port, "/", 0);
    let mut read = |offset| {
        let args = ReadArgs { file: writer.file.clone(), offset, count: 4096 };
        writer.wire.call(&args).into_result().map(|ok| ok.data.len())
    };
    read(0).unwrap();
    let pid = origin.pid();
    std::thread::scope(|scope| {
        // SAFETY: kill(2) with the id of the origin.
        unsafe { libc::kill(pid as i32, libc::SIGSTOP) };
        scope.spawn(|| {
            pause(8_000);
            // SAFETY: as above.
            unsafe { libc::kill(pid as i32, libc::SIGCONT) };
        });
        read(6 << 20).unwrap();
    });
    let dir = writer.wire.root();
    let object = Diropargs3 { dir, name: b"w"[..].into() };
    assert_eq!(writer.wire.call(&RemoveArgs { object }).status(), Nfsstat3::OK);
    wait_for("the removal of the file", 10, || fs::read_dir(origin.export("")).unwrap().next().is_none());
}

/// The origin refuses to commit bytes that the gateway has acknowledged as unstable. One COMMIT, or
/// the close of a reader, gets the error. Each other COMMIT has an error or a new verifier.
fn refused_by_origin() {
    for (version, readers) in [("vers=4.2", 0), ("vers=4.2", 1), ("vers=3", 0), ("vers=3", 1)] {
        own_files();
        let origin = Serve::prepare();
        let (top, exports) = (origin.export("").display().to_string(), origin.dir.path().join("exports"));
        let line = |access: &str| {
            fs::write(&exports, format!("{top} *({access},no_root_squash,insecure)\n")).unwrap();
        };
        line("rw");
        fs::write(origin.export("w"), "").unwrap();
        let mut origin = origin.with(&["--config", "exports"]);
        origin.serve();
        let options = format!("retry=0,port=2049,mountport=2049,dirty-age=60,{version}");
        let mut gateway = Serve::gateway_at(3049, &[&format!("127.0.0.1:{top}"), "--mount", &options]);
        gateway.serve();
        let mut writers: Vec<_> = (0..3).map(|n| Writer::new(gateway.port, "/", n)).collect();
        writers.iter_mut().for_each(|writer| writer.write(StableHow::UNSTABLE));
        line("ro");
        origin.signal(libc::SIGHUP);
        pause(1_000);
        for n in 0..readers {
            let mnt = gateway.mnt(&format!("reader{n}"));
            gateway.mount("vers=4.2", &mnt).ok();
            // The close of the reader may get the error in place of the writers.
            let _ = fs::read(mnt.join("w"));
            pause(500);
        }
        for round in 0..2 {
            for writer in &mut writers {
                let (told, n) = (writer.is_told_stable(), writer.number);
                assert!(!told, "{version}, readers {readers}, writer {n}, round {round}: nothing is stable");
            }
        }
        line("rw");
        origin.signal(libc::SIGHUP);
        pause(1_000);
        // Clients send the bytes again.
        for writer in &mut writers {
            writer.write(StableHow::UNSTABLE);
            wait_for("the bytes", 20, || writer.is_told_stable());
            assert!(writer.is_in(&fs::read(origin.export("w")).unwrap()));
        }
    }
}

/// SIGHUP replaces the origin of an export while clients have unstable bytes at the old one. Their
/// COMMIT has a new verifier, whether the old origin got the bytes or not.
fn origin_replaced() {
    for is_away in [false, true] {
        own_files();
        let mut origin = Serve::of_directory().with(&["-o", "rw,no_root_squash,insecure"]);
        origin.serve();
        fs::write(origin.export("w"), "").unwrap();
        let origins = origin.dir.path().join("origins");
        let line = |retry: u32| {
            let options = format!("retry={retry},port=2049,dirty-age=60,vers=4.2");
            fs::write(&origins, format!("127.0.0.1:/ /x hither {options}\n")).unwrap();
        };
        line(0);
        let words = ["--origins", origins.to_str().unwrap(), "-o", "rw,no_root_squash,insecure"];
        let mut gateway = Serve::gateway_at(3049, &words);
        gateway.serve();
        let mut writer = Writer::new(gateway.port, "/x", 0);
        writer.write(StableHow::UNSTABLE);
        if is_away {
            origin.kill();
        }
        line(1);
        gateway.signal(libc::SIGHUP);
        wait_for("the new origin", 30, || gateway.complaints().contains("is no longer served"));
        if is_away {
            origin.serve();
        }
        assert!(!writer.is_told_stable(), "origin away: {is_away}");
        writer.write(StableHow::UNSTABLE);
        wait_for("the bytes", 30, || writer.is_told_stable());
        assert!(writer.is_in(&fs::read(origin.export("w")).unwrap()));
    }
}
