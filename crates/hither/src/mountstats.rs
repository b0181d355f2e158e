//! The mount as a record of /proc/self/mountstats (statvers=1.1), for tools that read such records.
//!
//! The RPC layer writes the part that it counts (`hither_rpc::stats`). This module writes the head:
//! device, options, age, and the events that correspond to kernel requests. Events without such a
//! request are zero.

use crate::report::MountPart;
use hither_rpc::Flavor;
use hither_rpc::stats::Snapshot;
use std::collections::BTreeMap;
use std::fmt::Write;

/// `events:` in the order of the format. Each is the sum of the named kernel requests.
const EVENTS: [&[&str]; 27] = [
    &["GETATTR"],        // inode revalidations
    &[],                 // dentry revalidations
    &[],                 // data invalidations
    &[],                 // attribute invalidations
    &["OPEN", "CREATE"], // opens
    &["LOOKUP"],         // lookups
    &["ACCESS"],         // permission checks
    &[],                 // page updates
    &[],                 // single page reads
    &["READ"],           // page reads
    &[],                 // single page writes
    &["WRITE"],          // page writes
    &["READDIR", "READDIRPLUS"],
    &["SETATTR"],
    &["FLUSH"],
    &["FSYNC"],
    &["SETLK", "SETLKW"],
    &["RELEASE"],
    &[], // congestion waits
    &[], // truncations
    &[], // writes that extend
    &[], // silly renames
    &[], // short reads
    &[], // short writes
    &[], // delays
    &[], // pNFS reads
    &[], // pNFS writes
];

/// The whole record.
pub fn record(mount: &MountPart, flags: &str, rpc: &Snapshot, fuse: &BTreeMap<String, u64>) -> String {
    let (fstype, program) = match mount.nfs_version.as_str() {
        "nqnfs" => ("nfs", "300105/1"),
        "3" => ("nfs", "100003/3"),
        _ => ("nfs4", "100003/4"),
    };
    let mut out = format!(
        "device {} mounted on {} with fstype {fstype} statvers=1.1\n",
        escape(&mount.source),
        escape(&mount.dir)
    );
    let _ = writeln!(out, "\topts:\t{flags},{}", mount.options);
    let _ = writeln!(out, "\tage:\t{}", mount.age_s);
    let _ = writeln!(out, "\tcaps:\tcaps=0x0,wtmult=512,dtsize={},bsize=0,namlen=255", mount.rsize_bytes);
    if fstype == "nfs4" {
        out.push_str("\tnfsv4:\tbm0=0x0,bm1=0x0,bm2=0x0,acl=0x0,sessions,pnfs=not configured\n");
    }
    let named = mount.options.split(',').find_map(|word| word.strip_prefix("sec="));
    let flavor: Flavor = named.and_then(|name| name.parse().ok()).unwrap_or_default();
    let (number, real) = (flavor.number().0, if flavor.service().is_some() { 6 } else { 1 });
    let _ = writeln!(out, "\tsec:\tflavor={real},pseudoflavor={number}");
    let count = |names: &[&str]| names.iter().filter_map(|name| fuse.get(*name)).sum::<u64>().to_string();
    let events: Vec<String> = EVENTS.iter().map(|names| count(names)).collect();
    let _ = writeln!(out, "\tevents:\t{}", events.join(" "));
    let moved = |name: &str, of: fn(&hither_rpc::stats::OpSnapshot) -> u64| rpc.op(name).map_or(0, of);
    let (read, written) = (moved("READ", |op| op.bytes_received), moved("WRITE", |op| op.bytes_sent));
    // The fields for programs and for the server both contain the bytes of the RPC layer, with
    // headers.
    let (read_pages, written_pages) = (read / 4096, written / 4096);
    let _ = writeln!(out, "\tbytes:\t{read} {written} 0 0 {read} {written} {read_pages} {written_pages}");
    out.push_str(&rpc.mountstats(program));
    out.push('\n');
    out
}

/// Escapes blanks like the kernel.
fn escape(text: &str) -> String {
    text.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012")
}
