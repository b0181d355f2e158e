//! The syntax and meaning of exports, as in exports(5).

use super::*;
use crate::access::{Squash, Transports};

fn read(text: &str) -> Result<Exports, ExportsError> {
    let mut exports = Exports::default();
    exports.add("exports", text.as_bytes())?;
    Ok(exports)
}

fn entry(text: &str) -> Entry {
    let mut exports = read(text).unwrap();
    assert_eq!(exports.entries.len(), 1, "{exports:?}");
    exports.entries.remove(0)
}

fn wrong(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

fn rights(entry: &Entry, client: &str) -> Option<Rights> {
    let addresses = |name: &str| match name {
        "one" => vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        _ => vec![],
    };
    let names = |addr: IpAddr| match addr.to_string().as_str() {
        "203.0.113.7" => vec!["Build7.Example.ORG".to_string()],
        _ => vec![],
    };
    let hosts = |group: &str| match group {
        "builders" => Some(vec![Some("one".to_string()), Some("nowhere".to_string())]),
        "all" => Some(vec![None]),
        _ => None,
    };
    let look_ups = LookUps { addresses_of: &addresses, hosts_of: &hosts, names_of: Arc::new(names) };
    let (addr, subjects) = client.split_once('/').unwrap_or((client, ""));
    let subjects = [subjects.to_string()];
    let addr = addr.parse::<IpAddr>().unwrap().to_canonical();
    entry.admit(&look_ups).0(&Asker { addr, subjects: &subjects })
}

/// A line has a path and clients with their rights. A client that the line does not list has no
/// rights.
#[test]
fn export_line_names_client_rights() {
    let e = entry("/srv 192.0.2.0/24(rw,no_root_squash,anonuid=5,anongid=-2) 10.0.0.1\n");
    assert_eq!((&e.path[..], e.at.line), (&b"/srv"[..], 1));
    let far = rights(&e, "192.0.2.200").unwrap();
    assert!(!far.read_only && far.squash == Squash::None && far.secure);
    assert_eq!((far.anon_uid, far.anon_gid), (5, 65534));
    assert_eq!(rights(&e, "10.0.0.1"), Some(Rights::default()));
    assert_eq!(rights(&e, "10.0.0.2"), None);
    assert_eq!(rights(&e, "::ffff:10.0.0.1"), Some(Rights::default()), "the same host");
}

/// The most specific of several matching clients gives the rights, in any order of the line.
/// Promise: S2b
#[test]
fn most_specific_client_wins() {
    let e = entry(
        "/s *(ro) *.example.org(rw,insecure) 192.0.2.0/24(rw,all_squash) 192.0.2.0/255.255.255.240(rw) one(ro,insecure)",
    );
    let r = |client| rights(&e, client).unwrap();
    assert!(r("198.51.100.1").read_only);
    assert!(!r("203.0.113.7").read_only && !r("203.0.113.7").secure);
    assert_eq!(r("192.0.2.77").squash, Squash::All);
    assert_eq!(r("192.0.2.2").squash, Squash::Root);
    assert!(!r("192.0.2.1").secure && r("192.0.2.1").read_only);
    assert!(!r("2001:db8::1").secure);
}

/// Host names without an address are reported, and admit no client.
#[test]
fn unknown_hosts_are_reported() {
    let e = entry("/s nowhere(rw) one");
    let names_of: Arc<NamesOf> = Arc::new(|_| Vec::new());
    let look_ups = LookUps { addresses_of: &|_| Vec::new(), hosts_of: &|_| None, names_of };
    let (admit, unknown) = e.admit(&look_ups);
    assert_eq!(unknown, ["nowhere", "one"]);
    assert_eq!(admit(&Asker { addr: "192.0.2.1".parse().unwrap(), subjects: &[] }), None);
}

/// As in exports(5), options after a space apply to all clients, and the host before the space gets
/// the defaults.
#[test]
fn space_before_bracket_admits_everybody() {
    let e = entry("/s one (rw)");
    assert!(rights(&e, "192.0.2.1").unwrap().read_only);
    assert!(!rights(&e, "198.51.100.1").unwrap().read_only);
    assert_eq!(rights(&entry("/s"), "198.51.100.1"), Some(Rights::default()));
}

#[test]
fn defaults_comments_quotes_and_continued_lines() {
    let text = "# all\n\"/with space\" \\\n  -rw,insecure one 10.0.0.0/8(ro) # here\n/o\\040ct \"one\"(rw)\n/a#b one\r\n";
    let all = read(text).unwrap().entries;
    let paths: Vec<_> = all.iter().map(|e| String::from_utf8_lossy(&e.path).into_owned()).collect();
    assert_eq!(paths, ["/with space", "/o ct", "/a#b"]);
    assert_eq!(all.iter().map(|e| e.at.line).collect::<Vec<_>>(), [2, 4, 5]);
    let r = rights(&all[0], "192.0.2.1").unwrap();
    assert!(!r.read_only && !r.secure);
    let r = rights(&all[0], "10.1.1.1").unwrap();
    assert!(r.read_only && !r.secure);
}

#[test]
fn a_directory_mentioned_twice_is_one() {
    let e = entry("/s one(rw)\n/s//  10.0.0.0/8(fsid=7,crossmnt)\n");
    assert_eq!((e.clients.len(), e.fsid, e.crossmnt, e.at.line), (2, Some(7), true, 1));
    assert!(wrong("/s one\n/s one(rw)").starts_with("exports:2: "), "{}", wrong("/s one\n/s one(rw)"));
    assert!(wrong("/s one(fsid=1) two(fsid=2)").contains("fsid"));
    assert_eq!(entry("/s *(fsid=root)").fsid, Some(0));
    assert!(entry("/s *(fsid=12345678-9abc-def0-1234-56789abcdef0)").fsid.is_some());
}

/// The error of a wrong line names its place or the wrong word. A wrong text adds no export.
#[test]
fn parse_error_names_wrong_word() {
    for (text, word) in [
        ("/s\n\nsrv *(rw)", "exports:3: 'srv'"),
        ("/s *(rw,rot)", "'rot'"),
        ("/s *(sec=krb4)", "sec=krb4"),
        ("/s *(rw", ")"),
        ("/s gss/krb5(rw)", "sec=krb5"),
        ("/s 192.0.2.0/33", "bits"),
        ("/s 192.0.2.0/255.0.255.0", "netmask"),
        ("/s 192.0.2.0/ffff::", "netmask"),
        ("/s host/24", "address"),
        ("/s a$b", "neither"),
        ("/s *(anonuid=4294967295)", "number"),
        ("/s *(fsid=x)", "fsid"),
        ("/a/../b *", ".."),
        ("\"/s *", "quote"),
        ("/s\\9 *", "octal"),
        ("/s\\777 *", "377"),
        ("/s *(refer=/x@y)", "not known"),
    ] {
        assert!(wrong(text).contains(word), "{text}: {}", wrong(text));
    }
    // No export of a wrong text is added.
    let mut exports = read("/a *").unwrap();
    assert!(exports.add("more", b"/b *\n/c *(x)").is_err());
    assert_eq!(exports, read("/a *").unwrap());
}

#[test]
fn networks_by_bits_and_mask() {
    let contains = |net: &str, client: &str| rights(&entry(&format!("/s {net}")), client).is_some();
    assert!(contains("0.0.0.0/0", "198.51.100.1") && !contains("0.0.0.0/0", "2001:db8::1"));
    assert!(contains("10.0.0.0/255.0.0.0", "10.255.0.1") && !contains("10.0.0.0/255.0.0.0", "11.0.0.1"));
    assert!(contains("10.0.0.5/0.0.0.0", "11.0.0.1"));
    assert!(contains("2001:db8::/32", "2001:db8:1::1") && !contains("2001:db8::/32", "2001:db9::1"));
    assert!(contains("10.0.0.1/255.255.255.255", "10.0.0.1"));
    assert!(contains("[2001:db8::5]", "2001:db8::5"));
}

#[test]
fn patterns_fit_names() {
    let fits = |p: &str, n: &str| matches_pattern(p.as_bytes(), n.as_bytes());
    assert!(fits("*.example.org", "a.example.org") && fits("*.example.org", "a.b.example.org"));
    assert!(!fits("*.example.org", "example.org") && !fits("*.example.org", "a.example.org.evil"));
    assert!(fits("h?[0-9].x", "ha7.x") && !fits("h?[0-9].x", "hab.x") && fits("h[!a-c]", "hd"));
    assert!(!fits("h[!a-c]", "hb") && fits("a*b*c", "a-b-b-c") && !fits("a*b*c", "a-c-b"));
    // A pattern made to take long fails quickly.
    assert!(!fits(&"*a".repeat(200), &"a".repeat(150)));
}

/// A wrong line does not affect the other lines, and every fault is reported.
#[test]
fn every_wrong_line_is_found() {
    let mut exports = Exports::default();
    let text = "/a *(rw)\nrelative *(ro)\n/b \\\n *(rot)\n/c *(ro)\n/c *(rw)\n";
    let wrong = exports.add_what_is_right("f", text.as_bytes());
    let lines: Vec<_> = wrong.iter().map(|e| e.at.line).collect();
    assert_eq!(lines, [2, 3, 6], "{wrong:?}");
    let paths: Vec<_> = exports.entries.iter().map(|e| &e.path[..]).collect();
    assert_eq!(paths, [b"/a", b"/c"]);
    let mut none = Exports::default();
    assert_eq!(none.add("f", text.as_bytes()).unwrap_err(), wrong[0]);
    assert!(none.entries.is_empty(), "all or nothing");
}

/// Promise: S2b
#[test]
fn netgroups_come_after_patterns() {
    let e = entry("/s *(ro) @builders(rw) 2001:db8::1(ro,insecure)\n");
    assert!(!rights(&e, "192.0.2.1").unwrap().read_only, "a host of the group");
    assert!(!rights(&e, "2001:db8::1").unwrap().secure, "an address takes precedence");
    assert!(rights(&e, "192.0.2.2").unwrap().read_only);
    let e = entry("/s @all(rw) *.example.org(ro)\n");
    assert!(rights(&e, "203.0.113.7").unwrap().read_only);
    assert!(!rights(&e, "198.51.100.1").unwrap().read_only, "any host");
    assert_eq!(rights(&entry("/s @missing(rw)\n"), "192.0.2.1"), None);
    assert!(entry("/s *.example.org(rw)\n").needs_names() && !entry("/s @all(rw)\n").needs_names());
    assert!(wrong("/s @(rw)\n").contains("name of a netgroup"));
}

/// `sec` lists the accepted flavors in their order. Without it, only `sys` is accepted.
#[test]
fn sec_lists_flavors() {
    let flavors =
        |options: &str| rights(&entry(&format!("/s *({options})")), "10.0.0.1").unwrap().flavors.to_string();
    assert_eq!(flavors("rw"), "sys");
    assert_eq!(flavors("sec=krb5p:sys:krb5p"), "krb5p:sys");
    assert_eq!(flavors("sec=krb5,sec=krb5i"), "krb5i");
    let each = entry("/s *(sec=krb5p) 10.0.0.0/8(sec=sys)");
    assert_eq!(rights(&each, "10.0.0.1").unwrap().flavors.to_string(), "sys");
}

/// `xprtsec` lists the accepted transports. Without it, all are accepted.
#[test]
fn xprtsec_lists_transports() {
    let transports =
        |options: &str| rights(&entry(&format!("/s *({options})")), "10.0.0.1").unwrap().transports;
    assert_eq!(transports("rw"), Transports::ALL);
    assert_eq!(transports("xprtsec=mtls"), Transports { none: false, tls: false, mtls: true });
    assert_eq!(transports("xprtsec=tls:none"), Transports { none: true, tls: true, mtls: false });
    assert_eq!(transports("xprtsec=none:tls:mtls").to_string(), "none:tls:mtls");
    for options in ["xprtsec=", "xprtsec=ssl", "xprtsec=tls:"] {
        assert!(wrong(&format!("/s *({options})")).contains("none, tls and mtls"));
    }
}

/// The name in a certificate decides before the address. Clients without the name have the rights
/// of their address, or none.
#[test]
fn certificate_subject_admits_client() {
    let e = entry("/s 10.0.0.0/8(ro) subject:build-farm(rw)");
    assert!(!rights(&e, "10.0.0.1/build-farm").unwrap().read_only);
    assert!(!rights(&e, "198.51.100.1/build-farm").unwrap().read_only);
    assert!(rights(&e, "10.0.0.1/build").unwrap().read_only);
    assert_eq!(rights(&e, "198.51.100.1/Build-farm"), None);
    assert!(wrong("/s subject:(rw)").contains("must follow"));
}
