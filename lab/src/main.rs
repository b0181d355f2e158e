//! `hither-lab`: real kernels, real servers, counted RPCs.
//!
//! The laboratory starts the peers of hither: nfs-ganesha, the kernel's nfsd and the kernel's NFS
//! client. The latter two run in User-mode Linux guests. A relay counts and delays every RPC
//! between them. Foreign test suites, fault scenarios and comparisons run on them. The laboratory
//! knows nothing of hither's internals. To the laboratory hither is a command that mounts a
//! directory, like any other client. All programs run as root in a network and mount namespace of
//! the laboratory. Two laboratories, and the machine, therefore do not see each other.

mod args;
mod bench;
mod client;
mod clock;
mod disk;
mod guest;
mod lab;
mod net;
mod nfs41;
mod process;
mod relay;
mod release;
mod scenario;
mod server;
mod suite;
mod tcp;

use args::Args;
use lab::{Fail, Lab};
use release::Releases;
use std::process::ExitCode;

const USAGE: &str = "hither-lab [--name NAME] COMMAND

  up | down                      namespace, bridge, taps and relay; down ends everything in it
  server start KIND [--sync|--async] [--deleg none|r|w|rw] [--disk FILE]    KIND: ganesha, knfsd, hither or gateway
  server stop|kill9|restart|sigstop|sigcont|status KIND
  guest start|stop               the guest with the kernel's NFS client
  guest exec -- CMD...           a command in the guest (booted when needed)
  guest run --script FILE        a bash script in the guest (booted when needed)
  link up|down guest|knfsd       the cable of a guest
  relay [--fwd LISTEN=TARGET]... --ctl ADDR [--rtt-ms N]      the relay, in the foreground
  ctl COMMAND...                 a command to the running relay: snap reset rtt cut heal break ping
  disk DIR --bytes-in FILE [--mib N] [--seek-ms N] [--flush-ms N] [--flush-by-record]      an emulated hard disk: DIR/disk
  tcp [--listen ADDR | --from ADDR] [--seconds N]    bytes a second of one TCP connection; without options on loopback
  exec [-u USER] -- CMD...       a command inside the namespace
  suite NAME... | all            foreign suites; --quick, --server, --vers, --client, --verbose
  nfs41                          each operation of NFSv4.1 and 4.2 and its statuses; --server, --vers, --only, --at ADDRESS:PORT/PATH
  scenario NAME... | all         fault scenarios; same selectors
  bench [WORKLOAD...]            kernel client and other clients side by side; --rtt, --out, --table
  list                           suites, scenarios and workloads

server, guest and the testing commands take --kernel 6.1|6.12 (of the guests) and --ganesha 4|6; lab/packages.sh newer
gets the later ones.

Every testing command ends with a line `N passed, N failed`, and fails if a case failed.";

fn main() -> ExitCode {
    let mut args = Args::new(std::env::args().skip(1).collect());
    match run(&mut args) {
        Ok(code) => code,
        Err(Fail(why)) => {
            eprintln!("hither-lab: {why}");
            println!("0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &mut Args) -> Result<ExitCode, Fail> {
    let mut lab = Lab::new(&args.value("--name")?.unwrap_or_else(|| "hither".into()))?;
    let command = args.word().unwrap_or_default();
    match command.as_str() {
        "server" | "guest" => lab.releases = Releases::from_args(args)?,
        "suite" | "scenario" | "nfs41" | "bench" => lab.releases = Releases::from_args(args)?.or_installed(),
        _ => {}
    }
    match command.as_str() {
        "up" => {
            net::up(&lab)?;
            println!("laboratory {} is up; state in {}", lab.name, lab.run.display());
            Ok(ExitCode::SUCCESS)
        }
        "down" => net::down(&lab),
        "list" => list(&lab),
        "relay" => relay::main(args),
        "server" => {
            lab.enter()?;
            server::main(&lab, args)
        }
        "guest" => {
            lab.enter()?;
            guest::main(&lab, args)
        }
        "link" => {
            lab.enter()?;
            net::link(args)
        }
        "ctl" => {
            lab.enter()?;
            println!("{}", relay::ctl(&args.rest().join(" "))?);
            Ok(ExitCode::SUCCESS)
        }
        "disk" => disk::main(args),
        "tcp" => tcp::main(args),
        "exec" => {
            lab.enter()?;
            net::exec(args)
        }
        "nfs41" => nfs41::main(&lab, args),
        "suite" => suite::main(&lab, args),
        "scenario" => scenario::main(&lab, args),
        "bench" => bench::main(&lab, args),
        "" | "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        other => Err(Fail(format!("no command {other:?}; `hither-lab help` lists them"))),
    }
}

fn list(lab: &Lab) -> Result<ExitCode, Fail> {
    println!("suites:    {}", suite::names(lab)?.join(" "));
    println!("scenarios: {}", scenario::names(lab)?.join(" "));
    println!("workloads: {}", bench::WORKLOADS.join(" "));
    Ok(ExitCode::SUCCESS)
}
