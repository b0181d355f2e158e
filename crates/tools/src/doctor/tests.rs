//! Tests of the verdicts: each rule on both sides of its limit.

use super::measured::{Kernel, Limits, LocalDisk, Measured, Mix, Offered, Spread, Throughput};
use super::tcp::Tcp;
use super::verdict::{Finding, Level, Part, judge, tolerable};
use super::{mix, text};
use crate::report::sample::{op, report};
use std::time::Duration;

fn spread(median: u64) -> Option<Spread> {
    Some(Spread { min: median, median, max: median, samples: 20 })
}

/// Measurements of a near server without faults.
fn healthy() -> Measured {
    Measured {
        target: "s:/x".into(),
        server: "10.0.0.1:2049".into(),
        rtt_us: spread(200),
        getattr_us: spread(300),
        versions: vec![Offered { version: "4.2", works: true, why: None }],
        limits: Some(Limits {
            rsize_bytes: 1 << 20,
            wsize_bytes: 1 << 20,
            slots: Some(64),
            operations: Some(96),
            ..Limits::default()
        }),
        tcp: Some(Tcp {
            segments_sent: 10_000,
            segments_received: 10_000,
            rto_us: 200_000,
            path_mtu_bytes: 1500,
            ..Tcp::default()
        }),
        calls: 1000,
        read: Some(Throughput { bytes: 64 << 20, took_us: 640_000 }),
        unstable_write_us: spread(300),
        stable_write_us: spread(1500),
        clock_ahead_us: Some((2_000, 11_000)),
        delegation: Some(true),
        disk: Some(LocalDisk {
            read: Throughput { bytes: 64 << 20, took_us: 64_000 },
            ..LocalDisk::default()
        }),
        kernel: Kernel {
            fuse: true,
            fuse_minor: Some(41),
            tcp_rmem_max_bytes: Some(6 << 20),
            tcp_wmem_max_bytes: Some(6 << 20),
            ..Kernel::default()
        },
        ..Measured::default()
    }
}

fn odd(m: &Measured) -> Vec<Finding> {
    judge(m).into_iter().filter(|f| f.level != Level::Fine).collect()
}

#[track_caller]
fn only(m: &Measured, level: Level, part: Part, words: &str) {
    let odd = odd(m);
    assert_eq!(odd.len(), 1, "{odd:#?}");
    assert_eq!((odd[0].level, odd[0].part), (level, part), "{odd:?}");
    assert!(odd[0].what.contains(words), "{odd:?}");
    assert!(odd[0].change.is_some());
}

/// Good measurements give no finding above `Fine`. Absent measurements give no finding.
#[test]
fn healthy_server_has_no_finding() {
    assert_eq!(odd(&healthy()), []);
    // Each measurement is reported.
    assert!(judge(&healthy()).len() >= 7);
    assert_eq!(
        judge(&Measured { kernel: Kernel { fuse: true, ..Kernel::default() }, ..Measured::default() }),
        []
    );
}

/// The paper's figure: with reads of 30 ms and a timeout of 0.7 s, 0.42 % is tolerable.
#[test]
fn tolerable_losses_match_paper() {
    assert!((tolerable(30_000.0, 700_000) - 0.0042).abs() < 0.0001);
    let mut m = healthy();
    // A tenth of 300 µs for each 200 ms is 0.015 % of the calls. That is three of 20,000 calls.
    m.calls = 20_000;
    m.tcp.as_mut().unwrap().segments_resent = 3;
    assert_eq!(odd(&m), []);
    m.tcp.as_mut().unwrap().segments_resent = 4;
    only(&m, Level::Problem, Part::Network, "4 of 10000 segments sent again");
    // A slow server tolerates more losses.
    m.getattr_us = spread(30_000);
    assert_eq!(odd(&m), []);
}

/// The network path is judged: round trip, window, packet size, loss and order.
#[test]
fn network_path_is_judged() {
    let mut m = healthy();
    (m.rtt_us, m.getattr_us) = (spread(20_000), spread(21_000));
    only(&m, Level::Note, Part::Network, "a round trip takes 20.0 ms");
    // 1 Gbit/s over 100 ms needs 12.5 MB in flight.
    (m.rtt_us, m.getattr_us) = (spread(100_000), spread(100_000));
    let found = odd(&m);
    assert!(found.iter().any(|f| f.part == Part::Client && f.what.contains("for reads")));
    m.kernel.tcp_rmem_max_bytes = Some(64 << 20);
    m.kernel.tcp_wmem_max_bytes = Some(64 << 20);
    assert_eq!(odd(&m).len(), 1);
    let mut m = healthy();
    m.tcp.as_mut().unwrap().path_mtu_bytes = 1280;
    only(&m, Level::Note, Part::Network, "packets of 1280 bytes");
    let mut m = healthy();
    m.tcp.as_mut().unwrap().segments_out_of_order = 200;
    only(&m, Level::Note, Part::Network, "200 of 10000 segments from the server came out of order");
    let mut m = healthy();
    let tcp = m.tcp.as_mut().unwrap();
    (tcp.busy_us, tcp.window_limited_us) = (1_000_000, 400_000);
    only(&m, Level::Note, Part::Server, "40 % of the sending time");
}

#[test]
fn the_server_is_judged() {
    let mut m = healthy();
    m.stable_write_us = spread(304);
    only(&m, Level::Note, Part::Disk, "no difference");
    m.stable_write_us = spread(30_000);
    only(&m, Level::Problem, Part::Disk, "30.0 ms");
    let mut m = healthy();
    m.clock_ahead_us = Some((-2_000_000, 11_000));
    only(&m, Level::Problem, Part::Server, "2.0 s behind");
    m.clock_ahead_us = Some((1_005_000, 11_000));
    assert_eq!(odd(&m), [], "within the error");
    let mut m = healthy();
    m.delegation = Some(false);
    only(&m, Level::Note, Part::Server, "no delegation");
    let mut m = healthy();
    m.versions = vec![
        Offered { version: "4.2", works: false, why: Some("no".into()) },
        Offered { version: "3", works: true, why: None },
    ];
    only(&m, Level::Note, Part::Server, "NFS versions: 3");
    let mut m = healthy();
    m.limits = Some(Limits { rsize_bytes: 65_536, slots: Some(8), ..m.limits.unwrap() });
    assert_eq!(odd(&m).len(), 2);
}

#[test]
fn this_machine_is_judged() {
    let mut m = healthy();
    m.disk.as_mut().unwrap().read.took_us = 6_400_000;
    only(&m, Level::Note, Part::Disk, "the server gives 100 MiB/s");
    let mut m = healthy();
    m.kernel.fuse = false;
    only(&m, Level::Problem, Part::Client, "/dev/fuse");
    let mut m = healthy();
    m.kernel.fuse_minor = Some(38);
    only(&m, Level::Note, Part::Client, "FUSE 7.38");
}

/// The verdict names the part with most of the time: waiting, network, data transfer or server.
#[test]
fn doctor_names_mount_bottleneck() {
    let with = |mix: Mix| Measured { mount: Some(mix), ..healthy() };
    let calls = Mix { calls: 10_000, most: vec![("LOOKUP".into(), 10_000, 1)], ..Mix::default() };
    // The network path takes 0.2 ms of each call.
    only(
        &with(Mix { rtt_ms: 2500, execute_ms: 2600, queue_ms: 100, ..calls.clone() }),
        Level::Note,
        Part::Network,
        "10000 calls (LOOKUP 10000), 260 µs each, 76 % of the time went by travelling",
    );
    only(
        &with(Mix { rtt_ms: 20_000, execute_ms: 20_000, ..calls.clone() }),
        Level::Note,
        Part::Server,
        "90 % of the time went by in the server",
    );
    only(
        &with(Mix { rtt_ms: 2500, execute_ms: 9000, queue_ms: 6500, ..calls.clone() }),
        Level::Note,
        Part::Client,
        "waiting at the client",
    );
    only(
        &with(Mix { rtt_ms: 20_000, execute_ms: 20_000, bytes: 1500 << 20, ..calls.clone() }),
        Level::Note,
        Part::Network,
        "75 % of the time went by moving bytes",
    );
    // Too few calls for a verdict.
    assert_eq!(odd(&with(Mix { calls: 50, rtt_ms: 1000, execute_ms: 1000, ..Mix::default() })), []);
    only(&with(Mix { timeouts: 1, ..Mix::default() }), Level::Problem, Part::Server, "1 calls timed out");
}

#[test]
fn a_mounts_figures_are_summed() {
    let mix = mix(&report(vec![op("READ", 4), op("LOOKUP", 6)]));
    assert_eq!((mix.calls, mix.resent, mix.drops, mix.timeouts), (10, 2, 1, 0));
    assert_eq!(mix.bytes, 2 * (2048 + (3 << 20)));
}

#[test]
fn spreads_are_of_all_samples() {
    let times = [5, 1, 9].map(Duration::from_micros).to_vec();
    assert_eq!(Spread::of(times), Some(Spread { min: 1, median: 5, max: 9, samples: 3 }));
    assert_eq!(Spread::of(Vec::new()), None);
}

/// The text contains each measurement and each finding.
#[test]
fn doctor_text_is_complete() {
    let mut m = healthy();
    m.skipped.push("something".into());
    m.write = Some(Throughput { bytes: 1 << 20, took_us: 1_000_000 });
    let findings = judge(&m);
    let text = text(&m, &findings);
    for words in [
        "round trip      200 µs",
        "NFS 4.2         works",
        "limits          READ 1.0 MiB, WRITE 1.0 MiB",
        "reading         100 MiB/s",
        "writing         1.0 MiB/s",
        "not measured    something",
        "\nok       network  a round trip",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert_eq!(text.matches("\nok ").count(), findings.len());
}
