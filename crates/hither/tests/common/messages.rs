//! Mounts of two servers, with the number of messages that programs on them cost.

use super::serve::Serve;
use super::{Ganesha, hither, is_mounted, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Kinds of servers.
pub const SERVERS: [&str; 2] = ["ganesha", "hither"];

/// A server of one of the kinds.
pub enum Server {
    /// nfs-ganesha.
    Ganesha(Ganesha),
    /// `hither serve`.
    Hither(Serve),
}

impl Server {
    /// Starts a server of this kind.
    pub fn start(kind: &str) -> Self {
        match kind {
            "ganesha" => Self::Ganesha(Ganesha::start()),
            _ => {
                let mut server = Serve::of_directory();
                server.serve();
                Self::Hither(server)
            }
        }
    }

    /// A path in the server's own file system.
    pub fn exported(&self, path: &str) -> PathBuf {
        match self {
            Self::Ganesha(ganesha) => ganesha.export(path),
            Self::Hither(server) => server.export(path),
        }
    }

    /// Mounts the server on a directory of this name.
    pub fn mount(&self, options: &str, name: &str) -> Mount {
        let mnt = match self {
            Self::Ganesha(ganesha) => ganesha.dir.path().join(name),
            Self::Hither(server) => server.mnt(name),
        };
        let _ = fs::create_dir(&mnt);
        match self {
            Self::Ganesha(ganesha) => ganesha.mount(options, &mnt).ok(),
            Self::Hither(server) => server.mount(options, &mnt).ok(),
        };
        Mount(mnt)
    }
}

/// A mount that ends with this value.
pub struct Mount(pub PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            hither(&["umount", self.0.to_str().unwrap()]).ok();
        }
    }
}

impl Mount {
    /// Number of calls of each operation since the start of the mount.
    fn operations(&self) -> BTreeMap<String, u64> {
        let said = hither(&["stat", "--json", self.0.to_str().unwrap()]).ok();
        let report: Value = serde_json::from_str(&said.out).unwrap();
        let all = report["operations"].as_array().unwrap().iter();
        all.map(|op| (op["name"].as_str().unwrap().to_string(), op["calls"].as_u64().unwrap())).collect()
    }

    /// The output of a script in a directory of the mount, and the number of its messages.
    pub fn messages(&self, dir: &str, script: &str) -> (String, u64) {
        let before = self.operations();
        let said = run(Command::new("sh").args(["-ec", script]).current_dir(self.0.join(dir))).ok();
        let mut sent = self.operations();
        for (name, calls) in before {
            sent.entry(name).and_modify(|n| *n -= calls);
        }
        sent.retain(|_, n| *n > 0);
        let total = sent.values().sum();
        println!("{script}: {total} {sent:?}");
        (said.out, total)
    }
}
