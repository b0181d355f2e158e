//! A Kerberos realm: MIT's key distribution center, and users of this machine.

use super::{own_mount_namespace, run, wait_for};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The realm.
pub const REALM: &str = "TEST.HITHER";

/// A user of the machine, with a principal of the same name.
#[derive(Debug, Clone)]
pub struct User {
    /// Name.
    pub name: &'static str,
    /// Number of the user and of its group.
    pub uid: u32,
}

/// The realm, in the network of a server. The thread has its own `/etc` with the realm's
/// configuration, the machine's keytab and the users.
pub struct Kdc {
    dir: tempfile::TempDir,
    users: Vec<User>,
    process: Option<Child>,
}

impl Kdc {
    /// Makes the realm with users whose numbers begin at `uid`, and the keys of nfs/127.0.0.1 and
    /// of this machine. The center does not run yet.
    pub fn new(uid: u32, names: &[&'static str]) -> Self {
        own_mount_namespace();
        let dir = tempfile::tempdir().unwrap();
        // All users read the configuration.
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let etc = dir.path().join("etc");
        run(Command::new("cp").args(["-a", "/etc"]).arg(&etc)).ok();
        let users: Vec<User> = names.iter().zip(uid..).map(|(name, uid)| User { name, uid }).collect();
        let d = dir.path().display();
        // The first line of a name counts.
        let add = |file: &str, line: String| {
            let path = etc.join(file);
            let before = fs::read_to_string(&path).unwrap_or_default();
            fs::write(path, line + &before).unwrap();
        };
        for User { name, uid } in &users {
            add("passwd", format!("{name}:x:{uid}:{uid}::/:/bin/sh\n"));
            add("group", format!("{name}:x:{uid}:\n"));
        }
        fs::write(
            etc.join("krb5.conf"),
            format!(
                "[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n rdns = false\n \
                 dns_canonicalize_hostname = false\n clockskew = 1\n[realms]\n {REALM} = {{\n  kdc = 127.0.0.1\n }}\n"
            ),
        )
        .unwrap();
        fs::write(
            etc.join("idmapd.conf"),
            format!(
                "[General]\nDomain = test.hither\nLocal-Realms = {REALM}\n[Mapping]\nNobody-User = nobody\n"
            ),
        )
        .unwrap();
        fs::write(
            dir.path().join("kdc.conf"),
            format!(
                "[kdcdefaults]\n kdc_listen = 127.0.0.1:88\n kdc_tcp_listen = 127.0.0.1:88\n[realms]\n {REALM} = {{\n  \
                 database_name = {d}/principal\n  key_stash_file = {d}/stash\n  acl_file = {d}/acl\n }}\n[logging]\n \
                 kdc = FILE:{d}/kdc.log\n"
            ),
        )
        .unwrap();
        run(Command::new("mount").arg("--bind").arg(&etc).arg("/etc")).ok();
        let kdc = Self { dir, users, process: None };
        run(kdc.admin("kdb5_util").args(["create", "-s", "-P", "master"])).ok();
        for service in ["nfs/127.0.0.1", "host/client"] {
            run(kdc.admin("kadmin.local").args(["addprinc", "-randkey", service])).ok();
        }
        kdc.keytab("/etc/krb5.keytab", "host/client");
        kdc.keytab(&kdc.path("server.keytab").display().to_string(), "nfs/127.0.0.1");
        for user in &kdc.users {
            run(kdc.admin("kadmin.local").args(["addprinc", "-pw", "secret", user.name])).ok();
        }
        kdc
    }

    fn admin(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("KRB5_KDC_PROFILE", self.path("kdc.conf"));
        command
    }

    fn keytab(&self, file: &str, principal: &str) {
        run(self.admin("kadmin.local").args(["ktadd", "-k", file, principal])).ok();
    }

    /// Path of a file of the realm: `server.keytab` has the keys of nfs/127.0.0.1.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A user.
    pub fn user(&self, name: &str) -> &User {
        self.users.iter().find(|user| user.name == name).unwrap()
    }

    /// Starts the center with `inside`, which makes commands in the network of the test.
    pub fn serve(&mut self, inside: impl Fn(&str) -> Command) {
        let mut command = inside("krb5kdc");
        command.arg("-n").env("KRB5_KDC_PROFILE", self.path("kdc.conf"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().unwrap());
        let log = self.path("kdc.log");
        wait_for("a key distribution center", 20, || {
            fs::read_to_string(&log).is_ok_and(|said| said.contains("commencing operation"))
        });
    }

    /// Stops the center.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // nsenter(1) becomes the program.
            let _ = process.kill();
            let _ = process.wait();
            let _ = fs::remove_file(self.path("kdc.log"));
        }
    }

    /// Gives a user a ticket for so long, by a command in the network of the test.
    pub fn kinit(&self, user: &User, lifetime: &str, inside: impl Fn(&str) -> Command) {
        let mut command = inside("setpriv");
        let id = user.uid.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c"]);
        run(command.arg(format!("echo secret | kinit -l {lifetime} {}", user.name))).ok();
    }
}

impl User {
    /// The file with the user's tickets.
    pub fn cache(&self) -> PathBuf {
        Path::new("/tmp").join(format!("krb5cc_{}", self.uid))
    }

    /// Runs a shell command as the user.
    pub fn sh(&self, script: &str) -> super::Said {
        run(Command::new("sh").args(["-c", script]).uid(self.uid).gid(self.uid))
    }
}

impl Drop for Kdc {
    fn drop(&mut self) {
        self.stop();
        for user in &self.users {
            let _ = fs::remove_file(user.cache());
        }
        let _ = Command::new("umount").args(["-l", "/etc"]).status();
    }
}
