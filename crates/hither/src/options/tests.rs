//! Tests of the table, the parser and the generated documentation.

use super::*;
use hither_cache::data::Fill;
use hither_cache::policy::Policy;
use hither_rpc::tls::TlsStart;

fn parse(list: &str) -> Result<Wanted, String> {
    Wanted::parse(&[list.to_string()], false)
}

fn refusal(list: &str) -> String {
    parse(list).map(|_| ()).unwrap_err()
}

#[test]
fn defaults_match_nfs5() {
    let w = parse("").unwrap();
    assert_eq!(w.versions, Versions::Any);
    assert_eq!(w.recovery, Recovery::Hard);
    assert_eq!(w.timeo, Duration::from_secs(60));
    assert_eq!((w.retrans, w.nconnect, w.resvport), (2, 1, true));
    assert_eq!((w.rsize_bytes, w.wsize_bytes), (None, None));
    assert_eq!(w.attr_cache, AttrCache::default());
    assert_eq!((w.close_to_open, w.sync, w.readdirplus, w.acl), (true, false, true, true));
    assert_eq!(w.retry(), Duration::from_secs(120));
    assert!(w.flags.is_empty());
}

/// Each option of a long list has its effect.
#[test]
fn long_option_list_takes_effect() {
    let w = parse(
        "rw,vers=4.1,soft,timeo=14,retrans=5,nconnect=4,noresvport,rsize=65536,wsize=1000,\
         acregmin=1,acregmax=2,acdirmin=3,acdirmax=4,lookupcache=pos,nocto,nordirplus,noacl,\
         idmap_domain=example.org,port=3049,bg,nosuid,nodev,noexec,noatime,ro",
    )
    .unwrap();
    assert_eq!(w.versions, Versions::Only(Version::V41));
    assert_eq!(w.recovery, Recovery::Soft);
    assert_eq!(w.timeo, Duration::from_millis(1400));
    assert_eq!((w.retrans, w.nconnect, w.resvport), (5, 4, false));
    assert_eq!((w.rsize_bytes, w.wsize_bytes), (Some(65536), Some(4096)));
    assert_eq!(w.attr_cache.regular_max, Duration::from_secs(2));
    assert_eq!(w.attr_cache.directory_min, Duration::from_secs(3));
    assert_eq!(w.lookup_cache, LookupCache::Positive);
    assert!(!w.close_to_open && !w.readdirplus && !w.acl);
    assert_eq!(w.idmap_domain.as_deref(), Some("example.org"));
    assert_eq!(w.port, Some(3049));
    assert_eq!(w.retry(), Duration::from_secs(600_000));
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    assert_eq!(w.flags, flags | MountFlags::NOATIME | MountFlags::RDONLY);
}

/// Several lists count as one, and the last value of an option counts.
#[test]
fn last_option_value_counts() {
    let lists = ["timeo=10,ro".to_string(), "timeo=20,rw".to_string()];
    let w = Wanted::parse(&lists, false).unwrap();
    assert_eq!(w.timeo, Duration::from_secs(2));
    assert!(w.flags.is_empty());
}

#[test]
fn fstab_words_are_accepted() {
    parse(
        "defaults,_netdev,nofail,x-systemd.automount,x-systemd.requires=network-online.target,noauto,user=joe,\
         X-mount.mkdir,comment=a,intr,tcp,mountproto=tcp,mountvers=3,nolock,clientaddr=10.0.0.1,local_lock=none,\
         nosharecache,nofsc,retry=1,context",
    )
    .map(|_| ())
    .unwrap_err();
    parse(
        "defaults,_netdev,nofail,x-systemd.automount,x-systemd.requires=network-online.target,noauto,user=joe,\
         X-mount.mkdir,comment=a,intr,tcp,mountproto=tcp,mountvers=3,nolock,clientaddr=10.0.0.1,local_lock=none,\
         nosharecache,nofsc,retry=1",
    )
    .unwrap();
}

/// Transfer sizes are rounded as nfs(5) defines.
#[test]
fn transfer_sizes_follow_nfs5_rounding() {
    for (given, taken) in
        [("1", 4096), ("1024", 1024), ("5000", 4096), ("1048577", 1048576), ("99999999", 1048576)]
    {
        assert_eq!(parse(&format!("rsize={given}")).unwrap().rsize_bytes, Some(taken), "{given}");
    }
}

#[test]
fn minorversion_joins_vers() {
    assert_eq!(parse("vers=4,minorversion=1").unwrap().versions, Versions::Only(Version::V41));
    assert_eq!(parse("minorversion=2").unwrap().versions, Versions::Only(Version::V42));
    assert_eq!(parse("vers=4").unwrap().versions, Versions::Any4);
    assert_eq!(
        refusal("vers=3,minorversion=1"),
        "options 'vers=3' and 'minorversion=1' contradict each other: keep 'vers'"
    );
    assert_eq!(refusal("vers=4,minorversion=0"), "NFSv4.0 is not supported: use vers=4.1 or vers=4.2");
}

/// `noac` disables the attribute cache and makes writes stable. Times of the attribute cache
/// contradict it.
#[test]
fn noac_disables_cache_and_delays() {
    let w = parse("noac").unwrap();
    assert_eq!(w.attr_cache, AttrCache::NONE);
    assert!(w.sync);
    assert_eq!(refusal("noac,actimeo=3"), "options 'noac' and 'actimeo=3' contradict each other: keep one");
}

/// Each refusal is one line with a remedy.
#[test]
fn refusals_name_the_right_option() {
    for (list, line) in [
        ("acregmn=3", "unknown option 'acregmn', did you mean 'acregmin'?"),
        ("harrd", "unknown option 'harrd', did you mean 'hard'?"),
        ("nfsver=3", "unknown option 'nfsver', did you mean 'nfsvers'?"),
        ("RO", "unknown option 'RO', did you mean 'ro'?"),
        ("zzz", "unknown option 'zzz': `hither mount --help` lists the options"),
        ("soft,hard", "options 'soft' and 'hard' contradict each other: keep one"),
        ("hard,softerr", "options 'hard' and 'softerr' contradict each other: keep one"),
        ("ac,noac", "options 'ac' and 'noac' contradict each other: keep one"),
        ("lock,nolock", "options 'lock' and 'nolock' contradict each other: keep one"),
        ("timeo", "option 'timeo' needs a value: timeo=TENTHS"),
        ("timeo=", "option 'timeo' needs a value: timeo=TENTHS"),
        ("hard=1", "option 'hard' takes no value: write 'hard' alone"),
        ("timeo=x", "option 'timeo=x': expected a whole number from 1 to 6000 tenths of a second"),
        ("nconnect=17", "option 'nconnect=17': expected a whole number from 1 to 16"),
        ("lookupcache=some", "option 'lookupcache=some': expected all, pos or none"),
        ("vers=4.0", "option 'vers=4.0': NFSv4.0 is not supported: use vers=4.1 or vers=4.2"),
        ("vers=2", "option 'vers=2': NFSv2 is not supported: use vers=3, or leave vers out to negotiate"),
        ("vers=5", "option 'vers=5': there is no NFS version 5 here: use 3, 4.1 or 4.2"),
        ("proto=udp", "option 'proto=udp': NFS over UDP is not supported: use proto=tcp"),
        ("proto=rdma", "option 'proto=rdma': NFS over RDMA is not supported: use proto=tcp"),
        ("udp", "option 'udp' is not supported: NFS over UDP loses data under load; use proto=tcp"),
        ("cache=here", "option 'cache=here': expected an absolute path"),
        ("cache-age=1", "option 'cache-age' concerns a disk cache: give 'cache' as well"),
        ("cache,nofsc", "options 'cache' and 'nofsc' contradict each other: keep one"),
        (
            "sec=krb5:typo:sys",
            "option 'sec=krb5:typo:sys': unknown flavor 'typo', expected sys, krb5, krb5i or krb5p",
        ),
        ("xprtsec=krb5", "option 'xprtsec=krb5': expected none, tls, mtls or direct"),
        ("xprtsec=tls,tls-ca=ca.pem", "option 'tls-ca=ca.pem': expected an absolute path"),
        ("tls-ca=/c", "option 'tls-ca' concerns TLS: give 'xprtsec=tls', 'mtls' or 'direct' as well"),
        (
            "tls-server-name=s,xprtsec=none",
            "option 'tls-server-name' concerns TLS: give 'xprtsec=tls', 'mtls' or 'direct' as well",
        ),
        (
            "xprtsec=mtls,tls-key=/k",
            "option 'xprtsec=mtls' needs a client certificate: give tls-cert=FILE and tls-key=FILE",
        ),
        ("xprtsec=direct,tls-cert=/c", "option 'tls-cert' needs its private key: give tls-key=FILE"),
        ("xprtsec=tls,tls-key=/k", "option 'tls-key' needs its certificate: give tls-cert=FILE"),
        (
            "xprtsec=tls,tls-cert=/c,tls-key=/k",
            "options 'xprtsec=tls' and 'tls-cert' contradict each other: xprtsec=mtls uses the certificate",
        ),
        ("mountvers=1", "option 'mountvers=1': only MOUNT version 3 is spoken: use mountvers=3"),
        ("acregmin=90", "acregmin=90 exceeds acregmax=60: give a larger acregmax"),
        ("acdirmin=50,acdirmax=40", "acdirmin=50 exceeds acdirmax=40: give a larger acdirmax"),
        (
            "vers=nqnfs,sec=krb5p",
            "options 'vers=nqnfs' and 'sec=krb5p' contradict each other: NQNFS has no Kerberos",
        ),
        (
            "lock,vers=3",
            "option 'lock' is not supported with vers=3, where locks are local to this machine: use 'nolock', \
             or vers=4.2 for locks at the server",
        ),
    ] {
        assert_eq!(refusal(list), line, "{list}");
    }
    assert!(parse("sec=krb5:sys").is_ok());
    assert!(parse("lock,vers=4.2").is_ok());
}

/// `sloppy` ignores unknown options before and after it, but not contradictions.
#[test]
fn sloppy_ignores_unknown_options() {
    assert!(Wanted::parse(&["frobnicate,ro".into()], true).unwrap().flags.contains(MountFlags::RDONLY));
    assert!(parse("frobnicate,sloppy").is_ok());
    assert!(parse("soft,hard,sloppy").is_err());
}

/// Without `xprtsec` there is no TLS. The name in the certificate is that of the mount.
#[test]
fn transport_security_has_settings() {
    let settings = |list: &str, host: &str| parse(list).unwrap().security.settings(host);
    assert_eq!(settings("", "s"), None);
    assert_eq!(settings("xprtsec=none", "s"), None);
    let tls = settings("xprtsec=tls", "fe80::1%eth0").unwrap();
    assert_eq!((tls.start, tls.server_name.as_str()), (TlsStart::Probe, "fe80::1"));
    assert_eq!((tls.authorities, tls.identity, tls.revocations), (None, None, None));
    let files = "tls-ca=/a,tls-cert=/c,tls-key=/k,tls-crl=/r,tls-server-name=other";
    for (policy, start) in [("mtls", TlsStart::Probe), ("direct", TlsStart::Direct)] {
        let tls = settings(&format!("{files},xprtsec={policy}"), "s").unwrap();
        assert_eq!((tls.start, tls.server_name.as_str()), (start, "other"));
        assert_eq!((tls.authorities, tls.revocations), (Some("/a".into()), Some("/r".into())));
        let identity = tls.identity.unwrap();
        assert_eq!((identity.certificate, identity.key), ("/c".into(), "/k".into()));
    }
}

#[test]
fn names_are_unique_and_described() {
    let mut names: Vec<&str> =
        OPTIONS.iter().flat_map(|d| std::iter::once(d.name).chain(d.also.iter().copied())).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    for def in OPTIONS {
        assert!(!def.help.is_empty() && !def.help.ends_with('.'), "{}", def.name);
    }
}

/// The help text contains each option in lines of at most 100 columns.
#[test]
fn help_lists_options_in_100_columns() {
    let text = help();
    assert!(text.lines().all(|line| line.len() <= 100));
    for def in OPTIONS {
        assert!(text.contains(def.name), "{}", def.name);
    }
}

/// docs/CONFIGURATION.md contains exactly the generated table. Renew it with `HITHER_WRITE_DOCS=1
/// cargo test -p hither documentation`.
#[test]
fn documentation_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- options: begin -->\n", "<!-- options: end -->");
    let (head, rest) = text.split_once(begin).expect("a begin mark");
    let (table, tail) = rest.split_once(end).expect("an end mark");
    let wanted = format!("\n{}", markdown());
    if std::env::var_os("HITHER_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{head}{begin}{wanted}{end}{tail}")).unwrap();
    } else {
        assert!(table == wanted, "docs/CONFIGURATION.md is out of date: run the command above");
    }
}

#[test]
fn consistency_sets_the_times_of_nfs5() {
    let w = parse("consistency=bounded=7").unwrap();
    let a = w.attr_cache;
    assert!(!w.close_to_open);
    assert_eq!([a.regular_min, a.regular_max, a.directory_min, a.directory_max], [Duration::from_secs(7); 4]);
    let w = parse("consistency=frozen").unwrap();
    assert!(!w.close_to_open && w.attr_cache.regular_min > Duration::from_secs(86400 * 365));
    assert!(parse("consistency=cto").unwrap().close_to_open);
    assert!(refusal("consistency=bounded=7,acregmin=1").contains("'acregmin=1' contradict"));
    assert!(refusal("noac,consistency=frozen").contains("'noac' contradict"));
    assert!(refusal("cto,consistency=frozen").contains("'cto' contradict"));
    assert!(refusal("consistency=bounded").contains("bounded=SECONDS"));
    let w =
        parse("consistency=strict,sync,nochain,prefetch=off,lookupcache=none,close=wait,nocache").unwrap();
    assert!(w.is_strict() && w.delegations() && !w.prefetch && w.attr_cache == AttrCache::NONE);
    assert_eq!(parse("consistency=strict").unwrap().lookup_cache, LookupCache::None);
    for other in [
        "cache",
        "writeback=journal",
        "close=lazy",
        "lookupcache=pos",
        "acnegmax=5",
        "prefetch=small",
        "chain",
        "actimeo=1",
        "noac",
        "cto",
        "nocto",
    ] {
        let refused = refusal(&format!("consistency=strict,{other}"));
        assert!(refused.contains(other) && refused.contains("contradict"), "{refused}");
    }
}

/// `durability` is the same as the options that it sets. Of several, the last one counts.
#[test]
fn durability_sets_other_options() {
    let same = |one: &str, other: &str| {
        let shown = |list: &str| format!("{:?}", Wanted { given: Vec::new(), ..parse(list).unwrap() });
        let [one, other] = [one, other].map(shown);
        assert_eq!(one, other);
    };
    same("durability=server", "close=wait");
    same("durability=delegated", "close=delegated");
    same("durability=lazy", "close=lazy");
    same("durability=local", "writeback=journal,exclusive");
    same("durability=local-names", "writeback=journal,exclusive,creates=here");
    same("durability=lazy,durability=server", "close=wait");
    same("durability=local-names,durability=local", "writeback=journal,exclusive");
    same("durability=lazy,close=wait", "close=wait");
    assert!(parse("durability=soon").is_err());
    for bad in [
        "durability=local,writeback=memory",
        "durability=lazy,writeback=journal",
        "durability=local-names,sync",
        "durability=delegated,consistency=strict",
    ] {
        let word = bad.split(',').next().unwrap();
        assert!(refusal(bad).contains(&format!("('{word}' sets some of these)")), "{}", refusal(bad));
    }
    assert!(!refusal("close=lazy,writeback=journal").contains("durability"));
}

#[test]
fn sizes_have_units() {
    let w =
        parse("meta-cache-size=64M,dirty-max=1g,dirty-age=9,close=lazy,chain-max=12,prefetch=off,nochain")
            .unwrap();
    assert_eq!((w.meta_cache_bytes, w.dirty_max_bytes), (64 << 20, 1 << 30));
    assert_eq!((w.dirty_age, w.chain_max), (Duration::from_secs(9), Some(12)));
    assert!(
        w.lazy_close && !parse("close=lazy,close=wait").unwrap().lazy_close && parse("close=soon").is_err()
    );
    assert!(!w.prefetch && !w.chains);
    let w = parse("close=lazy,close=delegated,writeback=journal").unwrap();
    assert!(w.delegated_close && !w.lazy_close);
    assert!(!parse("close=delegated,close=lazy").unwrap().delegated_close);
    let e = parse("consistency=strict,close=delegated").unwrap_err();
    assert!(format!("{e:?}").contains("close=delegated"), "{e:?}");
    for bad in
        ["meta-cache-size=1", "meta-cache-size=99999999999G", "dirty-max=-1", "dirty-max=2Q", "chain-max=0"]
    {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

/// The disk cache is off by default. Options about the cache need `cache`.
#[test]
fn disk_cache_is_off_by_default() {
    assert_eq!(parse("").unwrap().cache.dir, None);
    assert_eq!(parse("nofsc").unwrap().cache.dir, None);
    for list in ["cache", "fsc", "fsc=tag"] {
        assert_eq!(parse(list).unwrap().cache.dir.unwrap().to_str(), Some("/var/cache/hither"));
    }
    let w = parse(
        "cache=/c,cache-size=5G,cache-min-free=2M,cache-min-file=4K,cache-max-file=1g,cache-age=0,cache-read-only",
    );
    let c = w.unwrap().cache;
    assert_eq!(c.dir.unwrap().to_str(), Some("/c"));
    assert_eq!((c.size_bytes, c.min_free_bytes), (5 << 30, 2 << 20));
    assert_eq!((c.min_file_bytes, c.max_file_bytes, c.age), (4096, Some(1 << 30), Duration::ZERO));
    assert!(c.read_only);
    assert_eq!((c.dir_size_bytes, c.soft_percent), (None, 90));
    let c = parse("cache,cache-dir-size=20G,cache-soft=75").unwrap().cache;
    assert_eq!((c.size_bytes, c.dir_size_bytes, c.soft_percent), (10 << 30, Some(20 << 30), 75));
    for (value, fill) in [("off", Fill::Off), ("idle", Fill::Idle), ("10M/s", Fill::Rate(10 << 20))] {
        assert_eq!(parse(&format!("cache,fill={value}")).unwrap().cache.fill, fill);
    }
    assert_eq!(parse("cache").unwrap().cache.fill, Fill::Idle);
    for policy in Policy::ALL {
        assert_eq!(parse(&format!("cache,cache-policy={}", policy.name())).unwrap().cache.policy, policy);
    }
    assert_eq!(parse("cache").unwrap().cache.policy, Policy::Lru);
    for bad in [
        "cache,fill=on",
        "cache,fill=10M",
        "cache,fill=/s",
        "fill=idle",
        "cache,cache-policy=fifo",
        "cache,cache-dir-size=1K",
        "cache,cache-soft=0",
        "cache,cache-soft=101",
        "cache-dir-size=1G",
        "cache-policy=lru",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}
