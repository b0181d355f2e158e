//! The experiments: contents, origin and requirements of each.

use super::Failure;
use crate::exit::print;
use std::fmt::Write;

/// The requirements of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// A directory in any file system: `hither bench run`.
    Directory,
    /// Another environment; the command that runs the experiment.
    Other(&'static str),
}

/// An experiment.
pub struct Experiment {
    /// Name of the experiment. For an experiment in a directory also the workload in `lab/work`.
    pub name: &'static str,
    /// The paper; empty for an experiment of this project.
    pub paper: &'static str,
    /// Description.
    pub what: &'static str,
    /// The requirements.
    pub needs: Needs,
    /// A program that the experiment starts and that a machine may lack.
    pub program: Option<&'static str>,
}

const BADROS: &str = "Badros 1999, Figures 4-7";
const IRTEGOV: &str = "Irtegov 2017";
const MACKLEM: &str = "Macklem 1994";
const MORAN: &str = "Moran 1990, Figures 2 and 3";
const CACHE: &str = "Effectiveness of an NFS cache";

const fn directory(name: &'static str, paper: &'static str, what: &'static str) -> Experiment {
    Experiment { name, paper, what, needs: Needs::Directory, program: None }
}

const fn with(experiment: Experiment, program: &'static str) -> Experiment {
    Experiment { program: Some(program), ..experiment }
}

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    with(
        directory(
            "badros",
            BADROS,
            "13 tests: make, copy, stat, grep, build, untar, list, read, write; alone and four at a time",
        ),
        "gcc",
    ),
    directory("rereads", BADROS, "its tests that read, cold, warm, after a remount"),
    directory(
        "opendepth",
        "Irtegov 2017, Figures 2 and 5",
        "open, stat, and read of 1 KB, by the depth of the path",
    ),
    directory(
        "pageopen",
        "Irtegov 2017, Table 1",
        "a page of a content management system: 200 small files, 600 absent names",
    ),
    with(directory("postmark", IRTEGOV, "2,000 small files, 20,000 transactions"), "postmark"),
    with(
        directory(
            "mab",
            "Macklem 1994, Tables 1 and 2, Figures 2-5",
            "the Modified Andrew Benchmark: mkdir, copy, stat, grep, compile",
        ),
        "gcc",
    ),
    Experiment {
        name: "nhfsstone",
        paper: MORAN,
        what: "a mix of operations at fixed rates: response times of a server",
        needs: Needs::Other("hither bench nhfsstone SERVER:/PATH"),
        program: None,
    },
    directory(
        "profiles",
        CACHE,
        "several small files, few large ones, both interspersed, read again and again",
    ),
    Experiment {
        name: "cache-sizes",
        paper: CACHE,
        what: "the profiles with caches of each size, by each policy",
        needs: Needs::Other("make bench-cache"),
        program: None,
    },
    Experiment {
        name: "nqnfs",
        paper: "Macklem 1994, Tables 2-4, Figures 1-6",
        what: "the same by ways of caching, memory, clients, parts of a processor, round trips",
        needs: Needs::Other("lab/bench.sh nqnfs"),
        program: None,
    },
    Experiment {
        name: "side-by-side",
        paper: MACKLEM,
        what: "all of these with hither and the kernel's client, on nfs-ganesha and knfsd, at each round trip",
        needs: Needs::Other("make bench"),
        program: None,
    },
    with(directory("meta", "", "untar, ls -lR, grep -r, git clone and status, rm -rf of 1,000 files"), "git"),
    with(
        directory(
            "tree",
            "",
            "ls -lR, grep -r, find, du, git status of 1,000 files, cold, again, after the timeouts",
        ),
        "git",
    ),
    with(directory("bigtree", "", "find, du, git status of 10,000 files"), "git"),
    directory("python", "", "Python starts and imports 100 modules"),
    directory("bigdir", "", "ls -l of 100,000 entries"),
    directory("stream", "", "a file of 1 GiB: written, read, read again, overwritten"),
    Experiment {
        name: "sync",
        paper: "",
        what: "stable writes and other changes, as fast as a server answers",
        needs: Needs::Other("hither bench sync SERVER:/PATH"),
        program: None,
    },
];

impl Experiment {
    fn command(&self) -> String {
        match self.needs {
            Needs::Directory => format!("hither bench run DIR {}", self.name),
            Needs::Other(command) => command.into(),
        }
    }
}

/// Prints the list of experiments.
pub fn list(json: bool) -> Result<(), Failure> {
    if json {
        let all: Vec<_> = EXPERIMENTS
            .iter()
            .map(|e| {
                serde_json::json!({ "name": e.name, "paper": e.paper, "what": e.what, "command": e.command(), "program": e.program })
            })
            .collect();
        return print(&format!("{}\n", serde_json::json!(all)));
    }
    let mut text = String::new();
    for e in EXPERIMENTS {
        let paper = if e.paper.is_empty() { String::new() } else { format!(" ({})", e.paper) };
        let program = e.program.map_or_else(String::new, |p| format!("; needs {p}"));
        let _ = writeln!(text, "{:<13}{}{paper}\n{:13}{}{program}", e.name, e.what, "", e.command());
    }
    print(&text)
}
