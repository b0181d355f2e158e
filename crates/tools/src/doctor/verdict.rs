//! Judges the measurements and names remedies, with rules over numbers only.
//!
//! The tolerable loss follows Moran and others, who judged NFS over UDP ("Breaking Through the NFS
//! Performance Barrier", 1990). Retransmissions are tolerable if they add at most a tenth to the
//! mean time of a call. That is a tenth of the call's time for each timeout. Their 30 ms and 0.7 s
//! gave 0.42 %; the doctor measures both.

use super::measured::{Measured, Mix};
use super::tcp::Tcp;
use crate::units::{bytes, duration};
use serde::Serialize;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing to change.
    Fine,
    /// Useful to know.
    Note,
    /// Something to change.
    Problem,
}

/// Location of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// This machine.
    Client,
    /// The network between this machine and the server.
    Network,
    /// The server.
    Server,
    /// A disk of this machine or of the server.
    Disk,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// See [`Level`].
    pub level: Level,
    /// See [`Part`].
    pub part: Part,
    /// The finding, with its numbers.
    pub what: String,
    /// The remedy.
    pub change: Option<String>,
}

fn fine(part: Part, what: String) -> Finding {
    Finding { level: Level::Fine, part, what, change: None }
}

fn note(part: Part, what: String, change: &str) -> Finding {
    Finding { level: Level::Note, part, what, change: Some(change.to_string()) }
}

fn problem(part: Part, what: String, change: &str) -> Finding {
    Finding { level: Level::Problem, ..note(part, what, change) }
}

/// From this round-trip time on each call to the server is noticeable.
const LONG_RTT_US: u64 = 5_000;
/// Data rate that the TCP window should allow: 1 Gbit/s.
const USUAL_BYTES_PER_S: u64 = 125_000_000;
/// A slower stable write indicates a rotating disk or worse.
const SLOW_STABLE_US: u64 = 20_000;
/// A larger difference of the clocks misleads programs that compare times.
const SKEW_US: u64 = 1_000_000;
/// Retransmission timeout when TCP reports none: Linux' minimum.
const RTO_US: u64 = 200_000;

/// All findings.
pub fn judge(m: &Measured) -> Vec<Finding> {
    let mut out = Vec::new();
    round_trips(m, &mut out);
    losses(m, &mut out);
    windows(m, &mut out);
    offers(m, &mut out);
    stable_storage(m, &mut out);
    clocks(m, &mut out);
    local(m, &mut out);
    if let Some(mix) = &m.mount {
        mounted(m, mix, &mut out);
    }
    out
}

fn round_trips(m: &Measured, out: &mut Vec<Finding>) {
    let Some(rtt) = m.rtt_us else { return };
    let what = format!(
        "a round trip takes {} ({} to {} in {})",
        duration(rtt.median),
        duration(rtt.min),
        duration(rtt.max),
        rtt.samples
    );
    out.push(if rtt.median >= LONG_RTT_US {
        note(
            Part::Network,
            what,
            "save round trips: keep `chain` and `prefetch` on, use `cache`, and for trees that change \
             seldom `consistency=bounded=SECONDS` or `frozen`",
        )
    } else if rtt.max > 10 * rtt.median.max(1) && rtt.max > 10_000 {
        note(
            Part::Network,
            what,
            "some answers take far longer than most: look for a full link, a busy server or Wi-Fi",
        )
    } else {
        fine(Part::Network, what)
    });
}

/// Tolerable retransmissions per call, which add a tenth to the mean time of a call.
pub fn tolerable(mean_call_us: f64, timeout_us: u64) -> f64 {
    0.1 * mean_call_us / timeout_us.max(1) as f64
}

fn losses(m: &Measured, out: &mut Vec<Finding>) {
    let Some(tcp) = &m.tcp else { return };
    let mean = m.getattr_us.or(m.rtt_us).map_or(0, |spread| spread.median) as f64;
    lost(tcp, m.calls, mean, "the connection of this measurement", out);
}

fn lost(tcp: &Tcp, calls: u64, mean_call_us: f64, whose: &str, out: &mut Vec<Finding>) {
    let rto = if tcp.rto_us > 0 { u64::from(tcp.rto_us) } else { RTO_US };
    let limit = tolerable(mean_call_us, rto);
    let rate = f64::from(tcp.segments_resent) / calls.max(1) as f64;
    let what = format!(
        "{whose}: {} of {} segments sent again, {:.3} % of {calls} calls; up to {:.3} % are tolerable",
        tcp.segments_resent,
        tcp.segments_sent,
        rate * 100.0,
        limit * 100.0
    );
    // One or two retransmissions may be chance.
    out.push(if rate > limit && tcp.segments_resent > 2 {
        problem(
            Part::Network,
            what,
            "the network loses packets: compare `ethtool -S` and `ip -s link` here, at the server and at the switches; \
             check cables, duplex, and that the MTU is the same everywhere",
        )
    } else {
        fine(Part::Network, what)
    });
    let (odd, all) = (tcp.segments_out_of_order, tcp.segments_received);
    if odd > 10 && u64::from(odd) * 100 > u64::from(all) {
        out.push(note(
            Part::Network,
            format!("{whose}: {odd} of {all} segments from the server came out of order"),
            "the way from the server loses or reorders packets: look at the server's `nstat TcpRetransSegs`, and for \
             links that are bonded per packet",
        ));
    }
    if tcp.path_mtu_bytes > 0 && tcp.path_mtu_bytes < 1400 {
        out.push(note(
            Part::Network,
            format!("{whose}: packets of {} bytes at most", tcp.path_mtu_bytes),
            "a tunnel or a wrong MTU on the way makes packets small: `tracepath SERVER` shows where",
        ));
    }
}

fn windows(m: &Measured, out: &mut Vec<Finding>) {
    let rtt_us = m.rtt_us.map_or(0, |rtt| rtt.min);
    let needed = (u128::from(USUAL_BYTES_PER_S) * u128::from(rtt_us) / 1_000_000) as u64;
    // The kernel uses about half of a receive buffer for its own structures.
    for (name, room, what) in [
        ("tcp_rmem", m.kernel.tcp_rmem_max_bytes.map(|b| b / 2), "reads"),
        ("tcp_wmem", m.kernel.tcp_wmem_max_bytes.map(|b| b / 2), "writes"),
    ] {
        if let Some(room) = room
            && room < needed
        {
            out.push(note(
                Part::Client,
                format!(
                    "1 Gbit/s over this round trip needs {} in flight, this machine allows {} for {what}",
                    bytes(needed),
                    bytes(room)
                ),
                &format!("sysctl -w net.ipv4.{name}=\"4096 131072 {}\", here and at the server", needed * 4),
            ));
        }
    }
    let Some(tcp) = &m.tcp else { return };
    if tcp.busy_us > 100_000 && tcp.window_limited_us * 5 > tcp.busy_us {
        out.push(note(
            Part::Server,
            format!(
                "{} % of the sending time waited for the server's receive window",
                percent(tcp.window_limited_us, tcp.busy_us)
            ),
            "the server reads its connection too slowly, or its tcp_rmem is small",
        ));
    }
    if tcp.busy_us > 100_000 && tcp.buffer_limited_us * 5 > tcp.busy_us {
        out.push(note(
            Part::Client,
            format!(
                "{} % of the sending time waited for room in the send buffer",
                percent(tcp.buffer_limited_us, tcp.busy_us)
            ),
            "raise the third number of net.ipv4.tcp_wmem",
        ));
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100 / u128::from(whole.max(1))) as u64
}

fn offers(m: &Measured, out: &mut Vec<Finding>) {
    let works: Vec<&str> = m.versions.iter().filter(|v| v.works).map(|v| v.version).collect();
    if !m.versions.is_empty() {
        let what =
            format!("NFS versions: {}", if works.is_empty() { "none".into() } else { works.join(", ") });
        out.push(if works.iter().any(|v| v.starts_with("4.")) {
            fine(Part::Server, what)
        } else {
            note(
                Part::Server,
                what,
                "chains of names, delegations, locks at the server and exactly-once calls need NFSv4.1 or 4.2: \
                 turn it on at the server",
            )
        });
    }
    if let Some(limits) = &m.limits {
        let least = limits.rsize_bytes.min(limits.wsize_bytes);
        if least < 256 << 10 {
            out.push(note(
                Part::Server,
                format!("at most {} in a READ, {} in a WRITE", bytes(limits.rsize_bytes.into()), bytes(limits.wsize_bytes.into())),
                "raise the server's transfer size: /proc/fs/nfsd/max_block_size on Linux (before nfsd starts), \
                 MaxRead and MaxWrite of nfs-ganesha",
            ));
        }
        if let Some(slots) = limits.slots.filter(|&slots| slots < 16) {
            out.push(note(
                Part::Server,
                format!("the server takes {slots} requests at a time from this client"),
                "parallel programs wait in line: give the server more memory or threads",
            ));
        }
        if let Some(n) = limits.operations.filter(|&n| n < 16) {
            out.push(note(
                Part::Server,
                format!("the server takes {n} operations in a message"),
                "a deep path takes several round trips; nothing to change here",
            ));
        }
    }
    match m.delegation {
        Some(true) => out.push(fine(Part::Server, "delegations are granted: open files need no revalidation".into())),
        Some(false) => out.push(note(
            Part::Server,
            "no delegation for an open file: each open of a file that is cached costs a round trip".into(),
            "Linux: fs.leases-enable=1, and the server must reach this client's connection; nfs-ganesha: Delegations = \
             true in NFSV4 and Delegations = RW in the export",
        )),
        None => {}
    }
}

fn stable_storage(m: &Measured, out: &mut Vec<Finding>) {
    let (Some(stable), Some(unstable)) = (m.stable_write_us, m.unstable_write_us) else { return };
    let what = format!(
        "4 KiB to stable storage takes {} ({} to {}), into the server's memory {}",
        duration(stable.median),
        duration(stable.min),
        duration(stable.max),
        duration(unstable.median)
    );
    let more = stable.median.saturating_sub(unstable.median);
    // The fastest drives with a power-loss protected write cache acknowledge a flush after about 20
    // µs.
    out.push(if more < 20.max(unstable.median / 20) {
        note(
            Part::Disk,
            format!("{what}: no difference"),
            "the server has memory that survives a power cut, or it acknowledges data that a power cut destroys: look for \
             `async` in its exports(5), sync=disabled of ZFS, nobarrier, and disks that lie about their cache",
        )
    } else if stable.median > SLOW_STABLE_US {
        problem(
            Part::Disk,
            what,
            "the server's disk limits fsync, close and databases: give it flash for its journal or log device",
        )
    } else {
        fine(Part::Disk, what)
    });
}

fn clocks(m: &Measured, out: &mut Vec<Finding>) {
    let Some((ahead, error)) = m.clock_ahead_us else { return };
    let direction = if ahead < 0 { "behind" } else { "ahead" };
    let what = format!(
        "the server's clock is {} {direction} (±{})",
        duration(ahead.unsigned_abs()),
        duration(error)
    );
    out.push(if ahead.unsigned_abs() > SKEW_US + error {
        problem(
            Part::Server,
            what,
            "make, rsync and backups compare times: run NTP (chrony) on both machines",
        )
    } else {
        fine(Part::Server, what)
    });
}

fn local(m: &Measured, out: &mut Vec<Finding>) {
    if !m.kernel.fuse {
        out.push(problem(
            Part::Client,
            "there is no /dev/fuse".into(),
            "modprobe fuse; in a container give it the device",
        ));
    }
    if let Some(minor) = m.kernel.fuse_minor {
        let what = format!("Linux {}, FUSE 7.{minor}", m.kernel.release);
        out.push(match minor {
            40.. => fine(Part::Client, what),
            _ => note(
                Part::Client,
                what,
                "from Linux 6.9 on the kernel reads wholly cached files of frozen mounts itself",
            ),
        });
    }
    let Some(disk) = &m.disk else { return };
    let what = format!(
        "the local disk at {} reads {}/s, writes {}/s, flushes in {}",
        disk.dir,
        bytes(disk.read.per_second()),
        bytes(disk.write.per_second()),
        duration(disk.sync_us.median)
    );
    let network = m.read.map(|read| read.per_second());
    out.push(match network {
        Some(network) if disk.read.per_second() < network => note(
            Part::Disk,
            format!("{what}; the server gives {}/s", bytes(network)),
            "a cache on this disk reduces the load of the server but saves no time: use a faster disk",
        ),
        _ => fine(Part::Disk, what),
    });
}

fn mounted(m: &Measured, mix: &Mix, out: &mut Vec<Finding>) {
    let mean_us = mix.rtt_ms as f64 * 1e3 / mix.calls.max(1) as f64;
    for tcp in &mix.tcp {
        lost(
            tcp,
            mix.calls / mix.tcp.len().max(1) as u64,
            mean_us,
            &format!("port {} of the mount", tcp.local_port),
            out,
        );
    }
    if mix.timeouts > 0 || mix.drops > 0 {
        out.push(problem(
            Part::Server,
            format!(
                "{} calls timed out and {} connections were lost since the mount",
                mix.timeouts, mix.drops
            ),
            "the server or the network was unreachable: the log of the mount has the times",
        ));
    }
    if mix.pushbacks > 0 {
        out.push(note(
            Part::Server,
            format!("programs waited {} times for room to write", mix.pushbacks),
            "the server takes bytes more slowly than programs write them; a larger `dirty-max` helps with bursts only",
        ));
    }
    if let Some(bottleneck) = bottleneck(m, mix) {
        out.push(bottleneck);
    }
}

/// The part that takes most of the time of a mount's calls.
fn bottleneck(m: &Measured, mix: &Mix) -> Option<Finding> {
    let rtt_us = m.rtt_us?.median;
    if mix.calls < 100 || mix.execute_ms == 0 {
        return None;
    }
    let all = mix.execute_ms.max(mix.queue_ms + mix.rtt_ms).max(1);
    // A call takes at least the round trip, plus its bytes at the measured rate.
    let speed = m.read.map(|read| read.per_second()).filter(|&n| n > 0);
    let moving =
        speed.map_or(0, |speed| (u128::from(mix.bytes) * 1000 / u128::from(speed)) as u64).min(mix.rtt_ms);
    let travel = (mix.calls * rtt_us / 1000).min(mix.rtt_ms - moving);
    let server = mix.rtt_ms - moving - travel;
    let shares = [
        (
            mix.queue_ms,
            Part::Client,
            "waiting at the client for room in flight or a slot",
            "more `nconnect`, or more slots at the server",
        ),
        (
            travel,
            Part::Network,
            "travelling to the server and back",
            "save round trips: `cache`, `consistency=`, `prefetch`; no part is slow by itself",
        ),
        (
            moving,
            Part::Network,
            "moving bytes at the speed that was measured",
            "a disk cache (`cache`) for data that is read again; a faster link",
        ),
        (server, Part::Server, "in the server", "look at its disk (`iostat -x 1`), its threads and its load"),
    ];
    let (most, part, what, change) = shares.into_iter().max_by_key(|share| share.0)?;
    let named: Vec<String> =
        mix.most.iter().take(3).map(|(name, calls, _)| format!("{name} {calls}")).collect();
    let mean = mix.execute_ms as f64 * 1e3 / mix.calls as f64;
    Some(note(
        part,
        format!(
            "of {} calls ({}), {} each, {} % of the time went by {what}",
            mix.calls,
            named.join(", "),
            duration(mean as u64),
            percent(most, all)
        ),
        change,
    ))
}
