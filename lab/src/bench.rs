//! Comparisons of clients: the same workload, server and relay, one client after the other.
//!
//! The traffic of the relay (RPCs, bytes) is compared first, then round trips, then seconds.
//! Results are JSON lines. [`table`] makes Markdown of them, and [`plot`] makes pictures. Two
//! measurements differ. [`overhead`] measures a system call that needs no server. [`reread`]
//! measures reads from the disk cache.

mod nqnfs;
mod overhead;
mod plot;
mod reread;
mod serve;
mod sharing;
mod sweep;
mod table;
mod types;

use crate::args::Args;
use crate::client::{Ask, Client};
use crate::guest::{Agent, quote};
use crate::lab::{CTL_PORT, Fail, HOST_IP, KNFSD_IP, Lab, Res};
use crate::process::sh;
use crate::relay;
use crate::server::{Kind, Options, Server};
use crate::suite::{Tally, chosen};
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Workloads of `lab/work/workloads.py` and `lab/work/metadata.py`.
pub const WORKLOADS: [&str; 13] = [
    "opendepth",
    "pageopen",
    "profiles",
    "mab",
    "badros",
    "rereads",
    "postmark",
    "meta",
    "stream",
    "tree",
    "bigtree",
    "python",
    "bigdir",
];

/// Longest time of one workload with one client in seconds, unless `--limit` says otherwise.
const LIMIT_S: f64 = 3600.0;

/// A server with the configuration of a measurement.
struct Peer {
    /// The server's name in results. `-nodeleg` means that it grants no delegations. `-deleg` means
    /// that it grants those that it grants only on request.
    name: String,
    kind: Kind,
    options: Options,
}

impl Peer {
    fn parse(name: &str) -> Res<Self> {
        let (kind, delegations) = match (name.strip_suffix("-nodeleg"), name.strip_suffix("-deleg")) {
            (Some(kind), _) => (kind, "none"),
            (None, Some(kind)) => (kind, "all"),
            (None, None) => (name, "RW"),
        };
        let options = Options { delegations: delegations.into(), ..Options::default() };
        Ok(Self { name: name.into(), kind: Kind::parse(kind)?, options })
    }

    /// Starts the server with this configuration.
    fn start(&self, lab: &Lab) -> Res<()> {
        let server = Server::new(lab, self.kind);
        if server.running() && server.last_options() != self.options {
            server.stop()?;
        }
        server.start(&self.options, true)
    }
}

/// Mount options that are measured as a separate client.
struct OptionSet {
    /// The only client with these options. `None` means every client.
    only: Option<String>,
    /// The options. Empty for none.
    words: String,
}

impl OptionSet {
    /// Parses `default`, `nocto`, or `hither:prefetch=off` for hither alone.
    fn parse(text: &str) -> Self {
        let (only, words) = match text.split_once(':') {
            Some((client, words)) => (Some(client.to_string()), words),
            None => (None, text),
        };
        Self { only, words: if words == "default" { String::new() } else { words.to_string() } }
    }
}

struct Plan {
    workloads: Vec<String>,
    peers: Vec<Peer>,
    versions: Vec<String>,
    clients: Vec<Client>,
    rtts_ms: Vec<f64>,
    reps: usize,
    params: Value,
    /// Sets of mount options that are measured side by side.
    opts: Vec<OptionSet>,
    libnfs: bool,
    limit: Duration,
    out: PathBuf,
}

/// `bench [WORKLOAD...] [--client kernel,hither] [--rtt 0,10] [--opts
/// 'default;nocto;hither:prefetch=off'] [--out F.jsonl] [--append] [--table F.md] [--quick]`;
/// `bench --table F.md --from A.jsonl,B.jsonl [--by-type 'knfsd: kernel 4.2']` or `bench --plot
/// F.svg --from ...` for earlier results (`--what serve` for those of servers, `--what sharing` for
/// those of two clients); `bench overhead`; `bench reread`.
pub fn main(lab: &Lab, args: &mut Args) -> Res<ExitCode> {
    if args.flag("reread") {
        return reread::main(lab, args);
    }
    if args.flag("overhead") {
        return overhead::main(lab, args);
    }
    if let Some(file) = args.value("--plot")? {
        let from = args.value("--from")?.ok_or_else(|| Fail("--plot needs --from A.jsonl,...".into()))?;
        let what = args.value("--what")?.unwrap_or_else(|| "depth".into());
        let server = args.value("--server")?.unwrap_or_else(|| "ganesha".into());
        plot::draw(Path::new(&file), &what, &server, &load(from.split(',').map(Path::new))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let table_file = args.value("--table")?;
    let by_type = args.value("--by-type")?;
    if let Some(files) = args.value("--from")? {
        if let Some(base) = by_type {
            let text = types::render(&load(files.split(',').map(Path::new))?, &base);
            return emit_table(table_file.as_deref(), &text).map(|()| ExitCode::SUCCESS);
        }
        let lines = load(files.split(',').map(Path::new))?;
        let text = match args.value("--what")?.as_deref() {
            Some("serve") => serve::render(&lines),
            Some("sharing") => sharing::render(&lines),
            _ => table::render(&lines),
        };
        return emit_table(table_file.as_deref(), &text).map(|()| ExitCode::SUCCESS);
    }
    let quick = args.flag("--quick");
    let servers = args.list("--server", if quick { &["ganesha"] } else { &["ganesha", "knfsd"] })?;
    let rtts = args.list("--rtt", &["0"])?;
    let params = match args.value("--params")? {
        Some(text) => serde_json::from_str(&text)?,
        None if quick => json!({"short": 1, "mib": 64, "number": 200, "transactions": 1000, "files": 200,
                                "single_only": 1}),
        None => json!({}),
    };
    let append = args.flag("--append");
    let out = args.value("--out")?.map_or_else(|| lab.run.join("bench.jsonl"), PathBuf::from);
    let plan = Plan {
        peers: servers.iter().map(|s| Peer::parse(s)).collect::<Res<_>>()?,
        versions: args.list("--vers", if quick { &["4.2"] } else { &["4.2", "3"] })?,
        clients: Client::from_args(lab, args, &["kernel", "hither"])?,
        rtts_ms: rtts
            .iter()
            .map(|r| r.parse().map_err(|_| Fail(format!("--rtt {r}: not a number"))))
            .collect::<Res<_>>()?,
        reps: args.number("--reps")?.unwrap_or(1.0) as usize,
        opts: args.value("--opts")?.unwrap_or_default().split(';').map(OptionSet::parse).collect(),
        limit: Duration::from_secs_f64(args.number("--limit")?.unwrap_or(LIMIT_S).max(1.0)),
        libnfs: !args.flag("--no-libnfs"),
        params,
        out: std::path::absolute(out)?,
        workloads: chosen(args, &WORKLOADS.map(String::from))?,
    };
    lab.enter()?;
    if !append {
        let _ = fs::remove_file(&plan.out);
    }
    let mut tally = Tally::default();
    let outcome = run_all(lab, &plan, &mut tally);
    relay::ctl("rtt 0")?;
    outcome?;
    emit_table(table_file.as_deref(), &table::render(&load([plan.out.as_path()].into_iter())?))?;
    Ok(tally.finish())
}

fn emit_table(file: Option<&str>, text: &str) -> Res<()> {
    match file {
        Some(f) => Ok(fs::write(f, text)?),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

fn load<'a>(files: impl Iterator<Item = &'a Path>) -> Res<Vec<Value>> {
    let mut all = vec![];
    for f in files {
        let text = fs::read_to_string(f).map_err(|e| Fail(format!("{}: {e}", f.display())))?;
        for line in text.lines() {
            all.push(serde_json::from_str(line)?);
        }
    }
    Ok(all)
}

fn run_all(lab: &Lab, plan: &Plan, tally: &mut Tally) -> Res<()> {
    for peer in &plan.peers {
        peer.start(lab)?;
        for w in &plan.workloads {
            prepare(lab, peer.kind, w)?;
            for rep in 0..plan.reps {
                for rtt_ms in &plan.rtts_ms {
                    one_row(lab, plan, peer, w, *rtt_ms, rep, tally)?;
                }
            }
        }
    }
    Ok(())
}

/// Runs one workload with every client and version, one directly after the other.
fn one_row(
    lab: &Lab,
    plan: &Plan,
    peer: &Peer,
    workload: &str,
    rtt_ms: f64,
    rep: usize,
    tally: &mut Tally,
) -> Res<()> {
    relay::ctl(&format!("rtt {rtt_ms}"))?;
    let mut results = vec![];
    for vers in &plan.versions {
        for client in &plan.clients {
            let fits = |o: &&OptionSet| o.only.as_deref().is_none_or(|only| only == client.name());
            for OptionSet { words: opts, .. } in plan.opts.iter().filter(fits) {
                let cell = Cell { lab, plan, peer, workload, rtt_ms, rep, client, vers, opts };
                results.push((format!("{} {vers} {opts}", client.name()).trim_end().to_string(), cell.run()));
            }
        }
    }
    // libnfs's NFSv4 (4.0) does not write large files, so it uses NFSv3.
    if workload == "stream" && plan.libnfs {
        results.push(("libnfs 3".into(), libnfs(lab, plan, peer.kind, rtt_ms, rep)));
    }
    let mut out = OpenOptions::new().create(true).append(true).open(&plan.out)?;
    for (who, result) in results {
        match result {
            Ok(lines) => {
                tally.passed += 1;
                println!("passed {workload} {} {who} rtt {rtt_ms} ms: {} phases", peer.name, lines.len());
                for l in lines {
                    writeln!(out, "{l}")?;
                }
            }
            Err(why) => {
                tally.failed += 1;
                println!("FAILED {workload} {} {who} rtt {rtt_ms} ms: {why}", peer.name);
            }
        }
    }
    Ok(())
}

/// Makes the workload's files once on the server's own disk.
fn prepare(lab: &Lab, kind: Kind, workload: &str) -> Res<()> {
    let program = quote(&lab.file("work/bench.py").display().to_string());
    on_server(lab, kind, |dir| format!("exec /usr/bin/python3 {program} prep {workload} {dir}"))
}

/// Runs a shell command on the server's machine, with the exported directory as its argument.
fn on_server(lab: &Lab, kind: Kind, script: impl Fn(&str) -> String) -> Res<()> {
    match kind {
        Kind::Ganesha | Kind::Hither | Kind::Gateway => {
            let dir = Server::new(lab, kind).export_dir()?.join("bench");
            sh(&script(&quote(&dir.display().to_string()))).map(drop)
        }
        Kind::Knfsd => {
            let mut last = String::new();
            let agent = Agent { ip: KNFSD_IP };
            match agent.run(&script("/srv/bench"), Duration::from_secs(1800), |l| last = l.into())? {
                0 => Ok(()),
                code => Err(Fail(format!("on knfsd's machine: code {code}: {last}"))),
            }
        }
    }
}

struct Cell<'a> {
    lab: &'a Lab,
    plan: &'a Plan,
    peer: &'a Peer,
    workload: &'a str,
    rtt_ms: f64,
    rep: usize,
    client: &'a Client,
    vers: &'a str,
    opts: &'a str,
}

impl Cell<'_> {
    /// Runs the workload. Returns a JSON line per phase.
    fn run(&self) -> Res<Vec<String>> {
        let ask =
            Ask { sub: "bench/{work}", opts: self.opts, ..Ask::new(self.peer.kind.relayed(), self.vers) };
        // The program mounts and unmounts itself, because only a fresh mount is cold.
        let (commands, place) = self.client.commands(self.lab, &ask)?;
        let tmp = place.scratch("bench")?;
        let meta = json!({"workload": self.workload, "server": self.peer.name, "client": self.client.name(),
                          "vers": self.vers, "opts": self.opts, "rtt": self.rtt_ms, "rep": self.rep});
        let mp = place.mp.display().to_string();
        let words = [
            ("--mount", commands.mount.as_str()),
            ("--umount", commands.umount.as_str()),
            ("--mp", &mp),
            ("--relay", &format!("{HOST_IP}:{CTL_PORT}")),
            ("--tmp", &tmp.display().to_string()),
            ("--meta", &meta.to_string()),
            ("--params", &self.plan.params.to_string()),
        ];
        let fscache = place.is_kernel() && self.opts.split(',').any(|word| word == "fsc");
        let mut script = format!("mkdir -p {mp}; umount -l {mp} 2>/dev/null; ");
        if fscache {
            // FS-Cache starts empty, as the caches of the others do.
            script += &format!("{} start || exit; ", fscache_sh(self.lab));
        }
        script += &format!(
            "exec /usr/bin/python3 {} run {}",
            quote(&self.lab.file("work/bench.py").display().to_string()),
            self.workload
        );
        for (flag, value) in words {
            script += &format!(" {flag} {}", quote(value));
        }
        let (mut lines, mut rest) = (vec![], vec![]);
        let code = place.run(&script, self.plan.limit, |l| match l.strip_prefix("DATA ") {
            Some(data) => lines.push(data.to_string()),
            None => rest.push(l.to_string()),
        })?;
        place.force_umount();
        if fscache {
            place.shell(&format!("{} stop", fscache_sh(self.lab)), Duration::from_secs(60))?;
        }
        match code {
            0 => Ok(lines),
            code => Err(Fail(format!("code {code}: {}", rest[rest.len().saturating_sub(3)..].join(" / ")))),
        }
    }
}

/// The command that starts and stops FS-Cache in the guest.
fn fscache_sh(lab: &Lab) -> String {
    format!("bash {}", quote(&lab.file("guest/fscache.sh").display().to_string()))
}

/// libnfs's copy tool, a peer for sequential transfer: a client in user space without a mount.
fn libnfs(lab: &Lab, plan: &Plan, kind: Kind, rtt_ms: f64, rep: usize) -> Res<Vec<String>> {
    let (at, vers) = (kind.relayed(), "3");
    let mib = plan.params["mib"].as_u64().unwrap_or(1024);
    // The tool refuses to overwrite a file.
    on_server(lab, kind, |dir| format!("rm -f {dir}/stream/libnfs*"))?;
    let url = format!(
        "nfs://{}{}/bench/stream/libnfs{rep}?nfsport={}&mountport={}&version={vers}",
        at.ip,
        at.export(vers),
        at.port,
        at.mountport
    );
    let tmp = format!("/dev/shm/hither-lab-{}-{}", lab.name, std::process::id());
    let mut lines = vec![];
    let begin = format!("head -c {mib}M /dev/urandom >{tmp}.src; rm -f {tmp}.dst");
    sh(&begin)?;
    for (phase, from, to) in
        [("write", format!("{tmp}.src"), url.clone()), ("read.cold", url, format!("{tmp}.dst"))]
    {
        relay::ctl("reset")?;
        let begun = crate::clock::now();
        let copied = sh(&format!("nfs-cp {} {} >/dev/null", quote(&from), quote(&to)));
        let secs = begun.elapsed().as_secs_f64();
        if let Err(why) = copied {
            let _ = sh(&format!("rm -f {tmp}.src {tmp}.dst"));
            return Err(why);
        }
        let snap: Value = serde_json::from_str(&relay::ctl("snap")?)?;
        let total: u64 =
            snap["calls"].as_object().into_iter().flatten().filter_map(|(_, c)| c["n"].as_u64()).sum();
        lines.push(
            json!({"workload": "stream", "server": kind.name(), "client": "libnfs", "vers": vers, "rtt": rtt_ms,
                   "rep": rep, "phase": phase, "secs": secs, "n": 1, "bytes": mib << 20,
                   "rpc": {"total": total}})
            .to_string(),
        );
    }
    on_server(lab, kind, |dir| format!("rm -f {dir}/stream/libnfs*"))?;
    let same = sh(&format!("cmp {tmp}.src {tmp}.dst; rm -f {tmp}.src {tmp}.dst"));
    same.map(|_| lines)
}
