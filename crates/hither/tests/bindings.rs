//! The libraries on real mounts: libhither with C and C++ programs, and the examples of both.
//!
//! The tests build the libraries with their own cargo run, into the directory that holds this test.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, Said, daemons, run, sh, wait_for};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn umount(dir: &Path) {
    run(Command::new(HITHER).arg("umount").arg(dir)).ok();
}

/// Builds the targets of these arguments and returns their directory. The build may take long,
/// because another cargo may hold the lock of the directory. It therefore runs before the test's
/// time limit begins.
fn built(words: &[&str]) -> PathBuf {
    let to = Path::new(HITHER).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline", "--locked", "--target-dir"]).arg(to.parent().unwrap());
    if to.ends_with("release") {
        cargo.arg("--release");
    }
    // The environment of the cargo that runs this test describes another package.
    run(cargo.args(words).current_dir(ROOT).env_remove("CARGO_MANIFEST_DIR")).ok();
    to.to_path_buf()
}

/// Compiles a program with warnings as errors and links it with the shared library.
fn compiled(compiler: &[&str], source: &str, library: &Path, to: &Path) {
    let c = Path::new(ROOT).join("bindings/c");
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-g", "-I"]);
    command.arg(c.join("include")).arg(c.join(source)).args(["-x", "none", "-o"]).arg(to);
    command.arg("-L").arg(library).args(["-lhither", "-lpthread"]);
    run(&mut command).ok();
}

/// Removes the files that only the compiler needs. Programs must then find the library by its
/// versioned name.
fn without_link(lib: &Path) {
    std::fs::remove_file(lib.join("libhither.so")).unwrap();
}

/// The command of README that links a program with the static library.
fn static_words(program: &Path, include: &Path, archive: &Path, to: &Path) -> String {
    let readme = include_str!("../../../bindings/c/README.md");
    let line = readme.lines().find(|line| line.contains("--variable=archive")).unwrap();
    assert!(include_str!("../../../bindings/c/hither.pc.in").contains("\narchive=${libdir}/libhither.a\n"));
    line.replace("cc program.c", &format!("cc -std=c11 -o {} {}", to.display(), program.display()))
        .replace("$(pkg-config --cflags hither)", &format!("-I{}", include.display()))
        .replace("$(pkg-config --variable=archive hither)", &archive.display().to_string())
}

/// Installs the library under its versioned name, by which programs find it at run time.
fn installed(dir: &Path) -> PathBuf {
    let from = built(&["-p", "hither-c"]);
    let lib = dir.join("lib");
    std::fs::create_dir(&lib).unwrap();
    std::fs::copy(from.join("libhither.so"), lib.join("libhither.so.0")).unwrap();
    std::os::unix::fs::symlink("libhither.so.0", lib.join("libhither.so")).unwrap();
    std::fs::copy(from.join("libhither.a"), lib.join("libhither.a")).unwrap();
    // A thread of the library may still run after the program has unloaded it.
    let dynamic = run(Command::new("readelf").arg("-d").arg(lib.join("libhither.so.0"))).ok().out;
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    lib
}

const C: &[&str] = &["cc", "-std=c11"];
const CXX: &[&str] = &["c++", "-x", "c++", "-std=c++17"];

#[test]
#[ignore = "needs root, nfs-ganesha and a C compiler"]
fn programs_of_c() {
    built(&["-p", "hither-c"]);
    let ganesha = Ganesha::start();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().to_path_buf());
    let lib = installed(&dir);
    compiled(C, "examples/tour.c", &lib, &dir.join("tour"));
    compiled(CXX, "examples/tour.c", &lib, &dir.join("tour++"));
    // A program with the static library must not depend on the shared library.
    let c = Path::new(ROOT).join("bindings/c");
    let words = static_words(
        &c.join("examples/tour.c"),
        &c.join("include"),
        &lib.join("libhither.a"),
        &dir.join("tour-static"),
    );
    sh(&words).ok();
    without_link(&lib);
    let tour = |program: &str| -> Said {
        run(Command::new(dir.join(program)).arg(&mnt).env("LD_LIBRARY_PATH", &lib)).ok()
    };
    for version in ["4.2", "3"] {
        ganesha.mount(&format!("vers={version},acregmin=1,acregmax=1,acdirmin=1,acdirmax=1"), &mnt).ok();
        for program in if version == "3" { &["tour++", "tour-static"][..] } else { &["tour"] } {
            let said = tour(program);
            let first =
                format!("libhither {}: 127.0.0.1:/export on {}\n", env!("CARGO_PKG_VERSION"), mnt.display());
            assert!(said.out.starts_with(&first), "{said:?}");
            for part in [
                "30 files read",
                "32 files below it, 3145962 bytes\n",
                "as it should be: unlink tour/sub: Is a directory\n",
            ] {
                assert!(said.out.contains(part), "{part}: {said:?}");
            }
            assert!(!ganesha.export("tour").exists());
        }
        umount(&mnt);
    }
    // Without a mount, the program prints one readable line.
    let said = run(Command::new(dir.join("tour")).arg(&mnt).env("LD_LIBRARY_PATH", &lib));
    let line = format!("tour: connect {0}: {0} is not in a mount of hither that has a socket", mnt.display());
    said.fails(1, &line);
}

/// The program survives failures of its mount and concurrent calls of its threads.
#[test]
#[ignore = "needs root, nfs-ganesha and a C compiler"]
fn a_c_program_survives_its_mount() {
    built(&["-p", "hither-c"]);
    let ganesha = Ganesha::start();
    let (mnt, dir) = (ganesha.mnt(), ganesha.dir.path().to_path_buf());
    let lib = installed(&dir);
    compiled(C, "tests/rough.c", &lib, &dir.join("rough"));
    without_link(&lib);
    let body: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 249) as u8).collect();
    std::fs::write(ganesha.export("f"), body).unwrap();
    ganesha.mount("vers=4.2,consistency=bounded=60", &mnt).ok();
    let mut rough = Command::new(dir.join("rough"));
    rough.arg(&mnt).env("LD_LIBRARY_PATH", &lib).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut rough = rough.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(rough.stdout.take().unwrap()).lines();
    let ready = said.next();
    if ready.as_ref().is_some_and(|line| line.as_ref().is_ok_and(|line| line == "ready")) {
        rough.stdin.take().unwrap().write_all(b"\n").unwrap();
        let daemon = daemons(&mnt)[0].to_string();
        run(Command::new("kill").args(["-9", &daemon])).ok();
    }
    let rest: Vec<_> = said.map(Result::unwrap).collect();
    let end = Said::from(rough.wait_with_output().unwrap()).ok();
    assert_eq!(rest, ["survived"], "{end:?}");
    run(Command::new("umount").arg(&mnt));
}

/// The examples of the Rust crate work on a mount.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn examples_of_the_crate() {
    let examples = built(&["-p", "hither-client", "--examples"]).join("examples");
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    std::fs::write(ganesha.export("log"), "old\n").unwrap();
    ganesha.mount("vers=4.2,acregmin=1,acregmax=1,acdirmin=1,acdirmax=1", &mnt).ok();
    std::fs::create_dir_all(ganesha.export("src/sub")).unwrap();
    for i in 0..50 {
        std::fs::write(ganesha.export(&format!("src/f{i}.txt")), "four").unwrap();
        std::fs::write(ganesha.export(&format!("src/sub/g{i}.c")), "sixsix").unwrap();
    }
    std::fs::write(ganesha.export("src/plain"), "1").unwrap();
    let said = run(Command::new(examples.join("many")).arg(mnt.join("src"))).ok();
    assert_eq!(said.out, "c\t300\nnone\t1\ntxt\t200\n", "{said:?}");

    let state = mnt.join("state");
    for round in ["first", "second"] {
        let mut replace =
            Command::new(examples.join("replace")).arg(&state).stdin(Stdio::piped()).spawn().unwrap();
        replace.stdin.take().unwrap().write_all(round.as_bytes()).unwrap();
        assert!(replace.wait().unwrap().success());
        assert_eq!(std::fs::read_to_string(&state).unwrap(), round);
    }
    // The file of the first round may still count as open for a moment. It has a hidden name then.
    let names = || std::fs::read_dir(ganesha.export("")).unwrap().count();
    wait_for("a directory in which nothing is left behind", 60, || names() == 3);

    // Appends of another client, and changes by programs of this mount.
    let other = ganesha.dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    ganesha.mount("vers=4.2", &other).ok();
    let out = ganesha.dir.path().join("followed");
    let mut follow = Command::new(examples.join("follow"))
        .args([mnt.join("log"), mnt.join("later")])
        .stdout(std::fs::File::create(&out).unwrap())
        .spawn()
        .unwrap();
    let followed = || std::fs::read_to_string(&out).unwrap();
    // `follow` does not print bytes that existed at its start. The loop therefore appends until
    // there is output.
    let mut lines = 0;
    wait_for("the first line that is followed", 600, || {
        if followed().is_empty() {
            let mut log = std::fs::File::options().append(true).open(other.join("log")).unwrap();
            writeln!(log, "line {lines}").unwrap();
            lines += 1;
        }
        !followed().is_empty()
    });
    // The same with a file that did not exist at the start, written by a program of this mount.
    wait_for("a line of the file that was not there", 600, || {
        let found = followed().contains("later ");
        if !found {
            let mut later =
                std::fs::File::options().append(true).create(true).open(mnt.join("later")).unwrap();
            writeln!(later, "later {lines}").unwrap();
            lines += 1;
        }
        found
    });
    follow.kill().unwrap();
    follow.wait().unwrap();
    assert!(!followed().contains("old"), "{}", followed());
    umount(&other);
    umount(&mnt);
}
