//! Kerberos (RPCSEC_GSS, RFC 2203): mounts of nfs-ganesha and of `hither serve`, with a realm of
//! MIT Kerberos.
//!
//! The tests need root, nfs-ganesha and krb5-kdc: `cargo test --workspace --test kerberos --
//! --include-ignored`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::kdc::{Kdc, User};
use common::serve::Serve;
use common::{Ganesha, HITHER, Random, Said, own_files, pause, run, wait_for};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A failed context is not tried again for this long.
const FAILURE_HOLDS: Duration = Duration::from_millis(1_100);

const FLAVORS: [&str; 3] = ["krb5", "krb5i", "krb5p"];

/// A server whose export accepts Kerberos.
enum Server {
    Ganesha(Ganesha),
    Hither(Serve),
}

impl Server {
    /// nfs-ganesha, with all flavors.
    fn ganesha(kdc: &mut Kdc) -> Self {
        let mut ganesha = Ganesha::prepare();
        let path = ganesha.dir.path().join("ganesha.conf");
        let conf =
            fs::read_to_string(&path).unwrap().replace("SecType = sys", "SecType = krb5,krb5i,krb5p,sys");
        let keytab = kdc.path("server.keytab");
        let kerberos = format!(
            "NFS_KRB5 {{ PrincipalName = nfs; KeytabPath = {}; Active_krb5 = true; }}\n",
            keytab.display()
        );
        fs::write(path, conf + &kerberos).unwrap();
        kdc.serve(|program| ganesha.inside(program));
        ganesha.serve();
        Self::Ganesha(ganesha)
    }

    /// `hither serve`, with these flavors.
    fn hither(kdc: &mut Kdc, flavors: &str) -> Self {
        let keytab = kdc.path("server.keytab").display().to_string();
        let mut server =
            Serve::of_directory().with(&["-o", &format!("rw,sec={flavors}"), "--keytab", &keytab]);
        kdc.serve(|program| Command::new(program));
        server.serve();
        Self::Hither(server)
    }

    fn inside(&self, program: &str) -> Command {
        match self {
            Self::Ganesha(ganesha) => ganesha.inside(program),
            Self::Hither(_) => Command::new(program),
        }
    }

    fn mount(&self, options: &str) -> Said {
        match self {
            Self::Ganesha(ganesha) => ganesha.mount(options, &self.mnt()),
            Self::Hither(server) => server.mount(options, &self.mnt()),
        }
    }

    fn mnt(&self) -> PathBuf {
        match self {
            Self::Ganesha(ganesha) => ganesha.mnt(),
            Self::Hither(server) => server.mnt("mnt"),
        }
    }

    fn export(&self, name: &str) -> PathBuf {
        match self {
            Self::Ganesha(ganesha) => ganesha.export(name),
            Self::Hither(server) => server.export(name),
        }
    }

    fn umount(&self) {
        run(Command::new(HITHER).arg("umount").arg(self.mnt())).ok();
    }

    fn kinit(&self, kdc: &Kdc, user: &User, lifetime: &str) {
        kdc.kinit(user, lifetime, |program| self.inside(program));
        std::thread::sleep(FAILURE_HOLDS);
    }

    /// The flavor in use.
    fn flavor(&self) -> String {
        let said = run(Command::new(HITHER).args(["stat", "--json"]).arg(self.mnt())).ok();
        let report: Value = serde_json::from_str(&said.out).unwrap();
        let options = report["mount"]["options"].as_str().unwrap();
        options.split(',').find_map(|word| word.strip_prefix("sec=")).unwrap().to_owned()
    }

    /// A directory of a user in the export.
    fn home(&self, user: &User) {
        let dir = self.export(user.name);
        let _ = fs::create_dir(&dir);
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(dir, Some(user.uid), Some(user.uid)).unwrap();
    }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..len).map(|_| random.next() as u8).collect()
}

/// A user with a ticket works, as the owner of its files at the server. A user without one learns
/// nothing, also from caches that others filled, and also of public files.
fn users_need_tickets(kdc: &Kdc, server: &Server, version: &str, flavor: &str) {
    let (alice, bob) = (kdc.user("alice"), kdc.user("bob"));
    let _ = fs::remove_file(alice.cache());
    server.home(alice);
    fs::write(server.export("public"), "public").unwrap();
    server.mount(&format!("vers={version},sec={flavor}")).ok();
    assert_eq!(server.flavor(), flavor);
    let mnt = server.mnt().display().to_string();
    let denied = |user: &User| {
        for what in ["ls {}", "ls -l {}/alice", "cat {}/public", "stat {}/public", "echo x > {}/alice/x"] {
            let said = user.sh(&what.replace("{}", &mnt));
            assert!(
                said.code != 0 && said.err.contains("ermission denied"),
                "{} {what}: {said:?}",
                user.name
            );
        }
    };
    denied(alice);
    server.kinit(kdc, alice, "1h");
    // The bytes travel in several calls at once, more than once.
    let (big, copy) = (bytes(7, 5_000_003), format!("/tmp/{}-{flavor}-{version}", alice.uid));
    fs::write(&copy, &big).unwrap();
    let script = format!(
        "set -e; cd {mnt}/alice; cp {copy} big; cmp {copy} big; for i in 1 2 3 4 5 6 7 8; do cp big big$i & done; wait; \
         for i in 1 2 3 4 5 6 7 8; do cmp {copy} big$i & done; wait; mkdir d; echo hello > d/f; mv d/f d/g; \
         test $(cat d/g) = hello; ls -l {mnt} > /dev/null; cat {mnt}/public; rm big?"
    );
    let said = alice.sh(&script).ok();
    assert_eq!(said.out, "public");
    let there = fs::metadata(server.export("alice/big")).unwrap();
    assert_eq!((there.uid(), there.len()), (alice.uid, big.len() as u64));
    assert!(fs::read(server.export("alice/big")).unwrap() == big);
    // The caches are warm now.
    denied(bob);
    alice.sh(&format!("rm -r {mnt}/alice/big {mnt}/alice/d")).ok();
    server.umount();
    fs::remove_file(copy).unwrap();
}

/// All flavors and versions, with nfs-ganesha.
/// Promise: 21c
#[test]
#[ignore = "needs root, nfs-ganesha and krb5-kdc"]
fn users_need_tickets_on_ganesha() {
    let mut kdc = Kdc::new(47_110, &["alice", "bob"]);
    let server = Server::ganesha(&mut kdc);
    for version in ["4.2", "4.1", "3"] {
        FLAVORS.iter().for_each(|flavor| users_need_tickets(&kdc, &server, version, flavor));
    }
}

/// The same, with `hither serve`.
/// Promise: 21c, S17b
#[test]
#[ignore = "needs root and krb5-kdc"]
fn users_need_tickets_on_hither_serve() {
    let mut kdc = Kdc::new(47_120, &["alice", "bob"]);
    let server = Server::hither(&mut kdc, "krb5:krb5i:krb5p");
    for version in ["4.2", "4.1", "3"] {
        FLAVORS.iter().for_each(|flavor| users_need_tickets(&kdc, &server, version, flavor));
    }
}

/// A server restart loses all contexts. Programs see no error, and no byte is lost.
/// Promise: 21c
#[test]
#[ignore = "needs root and krb5-kdc"]
fn lost_contexts_are_made_again() {
    own_files();
    let mut kdc = Kdc::new(47_130, &["alice"]);
    let mut server = Server::hither(&mut kdc, "krb5p");
    let alice = kdc.user("alice").clone();
    server.home(&alice);
    server.kinit(&kdc, &alice, "1h");
    for version in ["4.2", "3"] {
        server.mount(&format!("vers={version},sec=krb5p,timeo=20")).ok();
        let dir = server.mnt().join("alice").display().to_string();
        let script = format!(
            "set -e; cd {dir}; i=0; while [ $i -lt 120 ]; do echo $i > f$i; test $(cat f$i) = $i; \
             echo $i >> log; i=$((i+1)); sleep 0.05; done; sync log; rm f*"
        );
        let Server::Hither(serve) = &mut server else { unreachable!() };
        std::thread::scope(|s| {
            let work = s.spawn(|| alice.sh(&script));
            for _ in 0..3 {
                pause(1_500);
                serve.kill();
                serve.serve();
            }
            work.join().unwrap().ok();
        });
        let log = fs::read_to_string(server.export("alice/log")).unwrap();
        let all: Vec<String> = (0..120).map(|i| i.to_string()).collect();
        assert_eq!(log.lines().collect::<Vec<_>>(), all, "vers={version}");
        server.umount();
        fs::remove_file(server.export("alice/log")).unwrap();
    }
}

/// An expired ticket is an error for its user alone, at once. A new ticket ends the error.
/// Promise: 21c
#[test]
#[ignore = "needs root and krb5-kdc"]
fn expired_ticket_stops_its_user_only() {
    let mut kdc = Kdc::new(47_140, &["alice", "bob"]);
    let server = Server::hither(&mut kdc, "krb5i");
    let (alice, bob) = (kdc.user("alice"), kdc.user("bob"));
    for version in ["4.2", "3"] {
        [alice, bob].iter().for_each(|user| server.home(user));
        server.kinit(&kdc, bob, "1h");
        server.mount(&format!("vers={version},sec=krb5i")).ok();
        let write = |user: &User| {
            user.sh(&format!("echo {} > {}/{}/f", user.name, server.mnt().display(), user.name))
        };
        server.kinit(&kdc, alice, "12s");
        write(alice).ok();
        let ended = Instant::now() + Duration::from_secs(60);
        let said = loop {
            let began = Instant::now();
            let said = write(alice);
            assert!(began.elapsed() < Duration::from_secs(10), "a call waited for a ticket");
            write(bob).ok();
            if said.code != 0 || Instant::now() > ended {
                break said;
            }
            // Some calls meet the last second of the ticket.
            pause(20);
        };
        assert!(said.err.contains("expired"), "vers={version}: {said:?}");
        server.kinit(&kdc, alice, "1h");
        write(alice).ok();
        server.umount();
    }
}

/// Data of a user waits while no ticket of the user works, also over a restart of the server. It
/// arrives when a ticket works again, and an open file stays usable.
/// Promise: 21c, 6a, 6e
#[test]
#[ignore = "needs root and krb5-kdc"]
fn data_waits_for_usable_ticket() {
    own_files();
    let mut kdc = Kdc::new(47_200, &["alice"]);
    let mut server = Server::hither(&mut kdc, "krb5i");
    let alice = kdc.user("alice").clone();
    server.home(&alice);
    let journal = tempfile::tempdir().unwrap();
    let local = format!("durability=local,journal-dir={}", journal.path().display());
    for version in ["4.2", "3"] {
        for mode in ["durability=server", "durability=lazy", &local] {
            let shown = format!("vers={version},{mode}");
            server.kinit(&kdc, &alice, "1h");
            server.mount(&format!("vers={version},sec=krb5i,timeo=20,dirty-age=1,{mode}")).ok();
            let dir = server.mnt().join("alice").display().to_string();
            // The open file reports the failure once, at the first call that can.
            let closed = if mode == "durability=server" {
                String::new()
            } else {
                format!("echo closed > {dir}/closed;")
            };
            let steps = tempfile::tempdir().unwrap();
            fs::set_permissions(steps.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
            let (written, renewed) = (steps.path().join("written"), steps.path().join("renewed"));
            let script = format!(
                "exec 3>> {dir}/open; echo data >&3; {closed} touch {}; \
                 while [ ! -e {} ]; do sleep 0.1; done; sleep 2; sync {dir}/open; \
                 echo more >&3 || echo more >&3; sync {dir}/open",
                written.display(),
                renewed.display(),
            );
            let Server::Hither(serve) = &mut server else { unreachable!() };
            let said = std::thread::scope(|s| {
                let work = s.spawn(|| alice.sh(&script));
                while !written.exists() && !work.is_finished() {
                    pause(20);
                }
                alice.sh("kdestroy").ok();
                serve.kill();
                serve.serve();
                pause(4_000);
                kdc.kinit(&alice, "1h", |program| Command::new(program));
                fs::write(&renewed, "").unwrap();
                work.join().unwrap()
            });
            assert_eq!(said.code, 0, "{shown}: {said:?}");
            run(Command::new(HITHER).arg("sync").arg(server.mnt())).ok();
            assert_eq!(
                fs::read_to_string(server.export("alice/open")).unwrap(),
                "data\nmore\n",
                "{shown}: {said:?}"
            );
            if mode != "durability=server" {
                assert_eq!(fs::read_to_string(server.export("alice/closed")).unwrap(), "closed\n", "{shown}");
                fs::remove_file(server.export("alice/closed")).unwrap();
            }
            server.umount();
            fs::remove_file(server.export("alice/open")).unwrap();
        }
    }
}

/// Another user's tickets at the place of a user's own are not used.
/// Promise: 21c
#[test]
#[ignore = "needs root and krb5-kdc"]
fn planted_tickets_are_not_used() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let mut kdc = Kdc::new(47_190, &["alice", "bob"]);
    let server = Server::hither(&mut kdc, "krb5");
    let (alice, bob) = (kdc.user("alice"), kdc.user("bob"));
    let dir = server.export("all");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    server.mount("vers=4.2,sec=krb5").ok();
    let file = server.mnt().join("all/f").display().to_string();
    server.kinit(&kdc, bob, "1h");
    let planted = |is_link: bool| {
        let _ = fs::remove_file(alice.cache());
        if is_link {
            fs::set_permissions(bob.cache(), fs::Permissions::from_mode(0o644)).unwrap();
            symlink(bob.cache(), alice.cache()).unwrap();
            let (path, id) = (alice.cache(), Some(rustix::process::Uid::from_raw(bob.uid)));
            rustix::fs::chownat(rustix::fs::CWD, path, id, None, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
                .unwrap();
        } else {
            fs::copy(bob.cache(), alice.cache()).unwrap();
            fs::set_permissions(alice.cache(), fs::Permissions::from_mode(0o644)).unwrap();
            chown(alice.cache(), Some(bob.uid), Some(bob.uid)).unwrap();
        }
        std::thread::sleep(FAILURE_HOLDS);
        alice.sh(&format!("echo data > {file}"))
    };
    for is_link in [false, true] {
        let said = planted(is_link);
        assert!(said.code != 0 && said.err.contains("Permission denied"), "{is_link}: {said:?}");
        assert!(!dir.join("f").exists());
    }
    fs::remove_file(alice.cache()).unwrap();
    server.kinit(&kdc, alice, "1h");
    alice.sh(&format!("echo data > {file}")).ok();
    assert_eq!(fs::metadata(dir.join("f")).unwrap().uid(), alice.uid);
    server.umount();
}

/// SIGHUP makes the server read the groups of accounts again, without an error to programs.
/// Promise: S17b
#[test]
#[ignore = "needs root and krb5-kdc"]
fn reload_reads_groups_again() {
    let mut kdc = Kdc::new(47_170, &["alice", "team"]);
    let server = Server::hither(&mut kdc, "krb5i");
    let Server::Hither(serve) = &server else { unreachable!() };
    let (alice, team) = (kdc.user("alice"), kdc.user("team"));
    let file = server.export("shared");
    fs::write(&file, "of the team").unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&file, Some(0), Some(team.uid)).unwrap();
    server.kinit(&kdc, alice, "1h");
    let read = || alice.sh(&format!("cat {}/shared", server.mnt().display()));
    for version in ["4.2", "3"] {
        server.mount(&format!("vers={version},sec=krb5i,noac")).ok();
        assert_ne!(read().code, 0, "vers={version}: before");
        let groups = fs::read_to_string("/etc/group").unwrap();
        let line = format!("team:x:{}:", team.uid);
        fs::write("/etc/group", groups.replace(&line, &format!("{line}alice"))).unwrap();
        assert_ne!(read().code, 0, "vers={version}: the context has the old groups");
        serve.signal(libc::SIGHUP);
        wait_for("the new groups", 10, || read().out == "of the team");
        fs::write("/etc/group", groups).unwrap();
        serve.signal(libc::SIGHUP);
        wait_for("the old groups", 10, || read().code != 0);
        server.umount();
    }
}

/// An export to some principals refuses the others, also those with a ticket, and also what the
/// caches have.
/// Promise: S17b
#[test]
#[ignore = "needs root and krb5-kdc"]
fn export_admits_named_principals() {
    let mut kdc = Kdc::new(47_180, &["alice", "bob"]);
    let server = Server::hither(&mut kdc, "krb5i,principal=a*@TEST.HITHER:host/*@TEST.HITHER");
    let (alice, bob) = (kdc.user("alice"), kdc.user("bob"));
    server.home(alice);
    fs::write(server.export("public"), "public").unwrap();
    for user in [alice, bob] {
        server.kinit(&kdc, user, "1h");
    }
    for version in ["4.2", "3"] {
        server.mount(&format!("vers={version},sec=krb5i")).ok();
        let mnt = server.mnt().display().to_string();
        alice.sh(&format!("cat {mnt}/public && ls -l {mnt} && echo new > {mnt}/alice/{version}")).ok();
        for what in ["ls {}", "cat {}/public", "stat {}/public", "ls -l {}/alice", "cat {}/alice/4.2"] {
            let said = bob.sh(&what.replace("{}", &mnt));
            assert!(said.code != 0 && said.err.contains("ermission denied"), "{version} {what}: {said:?}");
        }
        server.umount();
    }
}

/// The first flavor of the mount that the server offers is used. Without one, a line names those of
/// the server. Calls with another flavor are refused, with every version.
/// Promise: S17b
#[test]
#[ignore = "needs root and krb5-kdc"]
fn flavors_are_negotiated() {
    let mut kdc = Kdc::new(47_150, &["alice"]);
    let server = Server::hither(&mut kdc, "krb5i:krb5p");
    for version in ["4.2", "4.1", "3"] {
        for (wanted, used) in [("krb5p", "krb5p"), ("sys:krb5i", "krb5i"), ("krb5:krb5p:krb5i", "krb5p")] {
            server.mount(&format!("vers={version},sec={wanted}")).ok();
            assert_eq!(server.flavor(), used, "{wanted}");
            server.umount();
        }
        for wanted in ["sys", "krb5", "sys:krb5"] {
            let said = server.mount(&format!("vers={version},sec={wanted}"));
            assert_eq!((said.code, said.err.lines().count()), (32, 1), "{said:?}");
            assert!(said.err.contains("the server asks for sec=krb5i:krb5p"), "{said:?}");
        }
    }
}

/// Without a key distribution center or a keytab, a mount fails soon with one line.
#[test]
#[ignore = "needs root and krb5-kdc"]
fn missing_keys_fail_with_one_line() {
    let mut kdc = Kdc::new(47_160, &["alice"]);
    let server = Server::hither(&mut kdc, "krb5");
    let refused = |words: &[&str]| {
        let began = Instant::now();
        let said = server.mount("vers=4.2,sec=krb5");
        assert_eq!((said.code, said.err.lines().count()), (32, 1), "{said:?}");
        assert!(words.iter().all(|word| said.err.contains(word)), "{words:?} {said:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    };
    kdc.stop();
    refused(&["Kerberos", "KDC"]);
    kdc.serve(|program| Command::new(program));
    server.mount("vers=4.2,sec=krb5").ok();
    server.umount();
    fs::remove_file("/etc/krb5.keytab").unwrap();
    refused(&["No Kerberos credentials available", "/etc/krb5.keytab"]);
    let exported = |words: &[&str]| {
        run(Command::new(HITHER).args(["serve", "-l", "127.0.0.1:4049", "--rpcbind", "off"]).args(words))
    };
    let dir = server.export("").display().to_string();
    for words in [vec![dir.as_str(), "-o", "sec=krb5"], vec![&dir, "--keytab", "/none"]] {
        let said = exported(&words);
        assert_eq!((said.code, said.err.lines().count()), (1, 1), "{said:?}");
        assert!(said.err.contains("keytab /"), "{said:?}");
    }
    wait_for("no mount", 5, || !common::is_mounted(Path::new(&server.mnt())));
}
