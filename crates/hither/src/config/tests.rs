//! Each fault is reported at its place with a remedy, and correct lines are not reported.

use super::*;
use crate::cli::{Cli, Command};
use clap::Parser;
use std::fs;

fn args(words: &[&str]) -> ConfigCheck {
    let Command::Config(args) = Cli::parse_from([&["hither", "config", "check"], words].concat()).command
    else {
        panic!("it is config")
    };
    let ConfigCommand::Check(args) = args.what;
    args
}

/// A root directory with these files and directories. Names of directories end in a slash.
fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if name.ends_with('/') { fs::create_dir_all(path).unwrap() } else { fs::write(path, text).unwrap() }
    }
    root
}

/// The number of faults and the report, with file names relative to the system's root.
fn said(root: &tempfile::TempDir) -> (usize, String) {
    let at = root.path().to_str().unwrap();
    let checked = check(&args(&["--root", at])).unwrap();
    (checked.faults(), text(&checked).replace(at, ""))
}

/// Correct fstab lines and exports are not reported, nor are backup files and hidden files.
#[test]
fn correct_configuration_has_no_faults() {
    let fstab = "# a comment with hither in it\n\
                 UUID=1 / ext4 defaults 0 1\n\
                 tmpfs /tmp/hither tmpfs size=1G 0 0\n\
                 \n\
                 s:/a  /mnt/a  hither  rw,_netdev,nofail,vers=4.2,x-systemd.automount 0 0\n\
                 [fe80::1%eth0]:/b\\040c /mnt/b\\040c fuse.hither noauto\n\
                 s:/c /mnt/c hither cache,_netdev 0 0 # a comment\n\
                 t:/c /mnt/c hither noauto\n\
                 u:/c /mnt/c hither noauto,users,nosymfollow,norelatime,uhelper=x\n";
    let root = system(&[
        ("etc/fstab", fstab),
        ("etc/hither/exports", "/srv/a 192.0.2.0/24(rw) *(ro)\n# (rw)\n/srv/b -ro 192.0.2.1\n"),
        ("etc/hither/exports.d/more.exports", "/srv/a.b *\n"),
        ("etc/hither/exports.d/.hidden", ""),
        ("etc/hither/exports.d/README", "what is here"),
        ("etc/hither/exports.d/more.exports~", "/nonsense"),
        ("etc/hither/exports.dpkg-old", "nonsense"),
        ("srv/a/", ""),
        ("srv/b/", ""),
        ("srv/a.b/", ""),
        ("mnt/a/", ""),
        ("mnt/b c/", ""),
        ("mnt/c/", ""),
    ]);
    assert_eq!(said(&root), (0, "no faults in 3 exports and 5 mounts\n".into()));
    assert_eq!(said(&system(&[])), (0, "no faults in 0 exports and 0 mounts\n".into()));
}

/// The report counts the options of `-o`, and exports and mounts if files were checked too.
#[test]
fn given_options_are_counted() {
    let root = system(&[("mnt/a/", "")]);
    let fstab = root.path().join("fstab");
    let line = format!("s:/a {}/mnt/a hither _netdev,nofail\n", root.path().display());
    fs::write(&fstab, line).unwrap();
    let said = |words: &[&str]| text(&check(&args(words)).unwrap());
    assert_eq!(said(&["-o", "vers=4.2,noatime"]), "no faults in 2 options\n");
    assert_eq!(said(&["-o", "ro"]), "no faults in 1 option\n");
    let both = said(&["-o", "ro", "--fstab", fstab.to_str().unwrap()]);
    assert_eq!(both, "no faults in 1 option, 0 exports and 1 mount\n");
}

#[test]
fn faults_of_exports_are_found() {
    let root = system(&[
        (
            "etc/hither/exports",
            "/srv/a *(rot)\nsrv/b\n/srv/c *.example.org(rw)\n/srv/d 192.0.2.1 (rw)\n/srv/none *(ro)\n/srv/c/e *(ro)\n/srv/f *\n",
        ),
        ("etc/hither/exports.d/forgotten.conf", ""),
        ("etc/hither/hither.conf", ""),
        ("srv/c/e/", ""),
        ("srv/d/", ""),
        ("srv/f", "a file"),
    ]);
    let (faults, text) = said(&root);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((faults, lines.len()), (5, 7), "{text}");
    for (at, part) in [
        ("/etc/hither/exports:1: ", "rot"),
        ("/etc/hither/exports:2: ", "'srv/b': a path from / is needed"),
        ("/etc/hither/exports:4: ", "'(rw)' stands alone and admits all clients"),
        ("/etc/hither/exports:5: ", "/srv/none does not exist: create it (mkdir -p /srv/none)"),
        ("/etc/hither/exports:7: ", "/srv/f is not a directory"),
        ("note: /etc/hither/hither.conf: ", "nothing reads it"),
        (
            "note: /etc/hither/exports.d/forgotten.conf: ",
            "nothing reads it: exports are in files whose names end",
        ),
    ] {
        assert!(lines.iter().any(|line| line.starts_with(at) && line.contains(part)), "{at}{part} in {text}");
    }
}

#[test]
fn faults_of_fstab_are_found() {
    let fstab = "/no/server /mnt hither _netdev\n\
                 s:/x mnt hither _netdev\n\
                 s:/x /none hither _netdev\n\
                 s:/x /mnt hither _netdev,vers=5\n\
                 s:/x /other hither _netdev,sofft\n\
                 s:/x /other/ hither _netdev\n\
                 s:/x /etc/fstab hither _netdev\n\
                 s:/x /one hither _netdev 0 2\n\
                 s:/x /two hither _netdev, vers=4.2 0 0\n\
                 s:/a b /three hither _netdev 0 0\n\
                 s:/x /four hither _netdev,cache=/etc/fstab\n\
                 s:/x /five hither\n";
    let dirs = ["mnt/", "other/", "one/", "two/", "three/", "four/", "five/"];
    let files: Vec<_> = dirs.iter().map(|dir| (*dir, "")).chain([("etc/fstab", fstab)]).collect();
    let (faults, text) = said(&system(&files));
    let lines: Vec<&str> = text.lines().collect();
    for (number, part) in [
        (1, "'/no/server' names no server: write SERVER:/PATH"),
        (2, "the mount point 'mnt' is not absolute"),
        (3, "the mount point /none does not exist: create it (mkdir -p /none)"),
        (4, "line 1 has the mount point /mnt too"),
        (4, "vers=5"),
        (5, "unknown option 'sofft', did you mean 'soft'?"),
        (6, "line 5 has the mount point /other/ too"),
        (7, "the mount point /etc/fstab is not a directory: name another one"),
        (8, "fsck(8)"),
        (9, "more than six fields"),
        (10, "write a blank in a path as \\040"),
        (11, "/etc/fstab is not a directory: name another one"),
    ] {
        let at = format!("/etc/fstab:{number}: ");
        assert!(
            lines.iter().any(|line| line.starts_with(&at) && line.contains(part)),
            "{at}{part} in {text}"
        );
    }
    assert!(lines.contains(&"note: /etc/fstab:12: without the option _netdev it may be mounted at boot before there is a network: add it"));
    assert_eq!((faults, lines.len()), (12, 13), "{text}");
}

#[test]
fn files_and_options_can_be_named() {
    let dir = system(&[("f", "s:/x /proc hither _netdev,soft,hard\n"), ("e", "/proc *(ro)\n"), ("none", "")]);
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let lines = |words: &[&str]| {
        let checked = check(&args(words)).unwrap();
        (checked.faults(), text(&checked))
    };
    let (faults, text) = lines(&["-f", &path("f"), "-e", &path("e"), "-o", "timeo=x"]);
    assert_eq!(faults, 2, "{text}");
    assert!(
        text.contains("f:1: options 'soft' and 'hard' contradict") && text.contains("-o: option 'timeo=x'"),
        "{text}"
    );
    assert_eq!(lines(&["-o", "vers=4.2,cache", "-o", "ro"]).0, 0);
    // All faults of the options are reported, each by itself and in combination.
    let (faults, text) = lines(&["-o", "sofft,ro,timeo=x", "-o", "vers=7,rdma"]);
    let begins = ["unknown option 'sofft'", "option 'timeo=x'", "option 'vers=7'", "option 'rdma'"];
    assert_eq!((faults, text.lines().count()), (4, 4), "{text}");
    for (line, begin) in text.lines().zip(begins) {
        assert!(line.starts_with(&format!("-o: {begin}")), "{line}");
    }
    let (faults, text) = lines(&["-o", "soft,hard,noac,actimeo=1,cache-size=1G,exclusive"]);
    assert_eq!((faults, text.lines().count()), (4, 4), "{text}");
    for part in ["'soft' and 'hard'", "'noac' and 'actimeo", "give 'cache'", "give 'writeback=journal'"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let (faults, text) = lines(&["-e", &path("none")]);
    assert!(faults == 0 && text.contains("nothing is exported"), "{text}");
    let missing = path("missing");
    for words in [["-f", &missing], ["-e", &missing], ["-f", "/proc"]] {
        let verdict = check(&args(&words)).and_then(|checked| verdict(&checked));
        assert_eq!(verdict.unwrap_err().code, exit::USAGE, "{words:?}");
    }
}

/// Faults are reported even if other files cannot be read. An unread file never counts as correct.
#[test]
fn unreadable_file_hides_no_fault() {
    let root = system(&[
        ("etc/hither/exports", "/srv/none *(ro)\n"),
        ("etc/hither/exports.d/b.exports/", ""),
        ("etc/hither/exports.d/c.exports", "/srv/a *(rot)\n"),
        ("etc/fstab", "s:/x /mnt hither _netdev,sofft\n"),
        ("mnt/", ""),
    ]);
    let checked = check(&args(&["--root", root.path().to_str().unwrap()])).unwrap();
    let text = text(&checked);
    for part in
        ["exports.d/b.exports: cannot be read: not a file\n", "/srv/none does not exist", "rot", "sofft"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!((checked.faults(), text.lines().count()), (4, 4), "{text}");
    let failure = verdict(&checked).unwrap_err();
    assert_eq!(failure.code, exit::USAGE);
    assert_eq!(failure.line, "1 file or directory could not be read, so there may be more faults");

    // A dangling link is reported; a missing file is not.
    let root = system(&[("etc/hither/", "")]);
    std::os::unix::fs::symlink("/nowhere/at/all", root.path().join("etc/hither/exports")).unwrap();
    let checked = check(&args(&["--root", root.path().to_str().unwrap()])).unwrap();
    assert!(
        super::text(&checked).contains("/etc/hither/exports: cannot be read: No such file"),
        "{checked:?}"
    );
    assert_eq!(verdict(&checked).unwrap_err().code, exit::USAGE);
    // A directory that cannot be read (in this test: a file) and a missing root directory are
    // reported.
    let root = system(&[("etc/hither", "")]);
    let checked = check(&args(&["--root", root.path().to_str().unwrap()])).unwrap();
    assert_eq!((checked.unread, verdict(&checked).unwrap_err().code), (2, exit::USAGE), "{checked:?}");
    for name in ["missing", "etc/hither"] {
        let at = root.path().join(name);
        let failure = check(&args(&["--root", at.to_str().unwrap()])).unwrap_err();
        assert_eq!(failure.code, exit::USAGE);
        assert!(failure.line.starts_with(&format!("--root {}: ", at.display())), "{failure:?}");
    }
}

/// The unit needs the first exports file. A file in exports.d does not replace it.
#[test]
fn unit_needs_first_exports_file() {
    let root = system(&[("etc/hither/exports.d/a.exports", "/srv *\n"), ("srv/", "")]);
    let (faults, text) = said(&root);
    assert!(
        faults == 1
            && text.starts_with(
                "/etc/hither/exports: does not exist: the unit hither-serve starts only with it"
            ),
        "{text}"
    );
    fs::write(root.path().join("etc/hither/exports"), "# none\n").unwrap();
    assert_eq!(said(&root).0, 0);
}

/// The exports are read like `hither serve` reads them. A fault is reported at its own line, also
/// after a continued line.
#[test]
fn export_faults_have_line_numbers() {
    let exports = "/srv/a 192.0.2.1 # not (this)\n\
                   /srv/\"b (c)\" 192.0.2.1\n\
                   /srv/a \\\n\
                   192.0.2.2 \\\n\
                   (rw)\n\
                   # a comment \\\n\
                   /srv/\"b (c)\" (ro)\n";
    let root = system(&[("etc/hither/exports", exports), ("srv/a/", ""), ("srv/b (c)/", "")]);
    let (faults, text) = said(&root);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((faults, lines.len()), (2, 2), "{text}");
    assert!(lines[0].starts_with("/etc/hither/exports:3: '(rw)' stands alone"), "{text}");
    assert!(lines[1].starts_with("/etc/hither/exports:7: '(ro)' stands alone"), "{text}");
}

/// An export outside the root (fsid=0) is reported. Exports inside others, and clients named by
/// wildcards and netgroups, are correct.
#[test]
fn exports_outside_root_are_found() {
    let exports = "/srv *(fsid=0)\n/srv/a *.example.org(rw) @builders(ro)\n/other *(ro)\n";
    let root = system(&[("etc/hither/exports", exports), ("srv/a/", ""), ("other/", "")]);
    let (faults, text) = said(&root);
    assert_eq!(faults, 1, "{text}");
    assert!(text.starts_with("/etc/hither/exports:3: /other is outside of /srv"), "{text}");
}

/// The fields of fstab lines are read like mount(8) reads them.
#[test]
fn fstab_fields_follow_mount() {
    let fstab = "hither:/x /mnt/a ext4 defaults 0 1\n\
                 hither /mnt/b hither _netdev\n\
                 s:/x /mnt/c hither _netdev # a comment\n\
                 s:/x /mnt/d hither _netdev 0 # a comment\n\
                 s:/x /mnt/e hither _netdev yes 0\n\
                 s:/x /mnt/f hither _netdev 0 no\n\
                 s:/x /mnt/g hither _netdev,x-mount.mkdir\n\
                 s:/x /mnt/h hither _netdev,X-mount.mkdir=0755\n\
                 s:/x /mnt/i hither _netdev,bg\n\
                 s:/x /mnt/file hither _netdev,bg\n\
                 s:/x /mnt/j hither hard,_netdev 0 0\n";
    let dirs = ["mnt/b/", "mnt/c/", "mnt/d/", "mnt/e/", "mnt/f/", "mnt/file"];
    let files: Vec<_> = dirs.iter().map(|dir| (*dir, "")).chain([("etc/fstab", fstab)]).collect();
    let (faults, text) = said(&system(&files));
    let lines: Vec<&str> = text.lines().collect();
    for (i, (number, part)) in [
        (2, "'hither' names no server"),
        (3, "a comment needs a line of its own"),
        (4, "a comment needs a line of its own"),
        (5, "the fifth and the sixth field are numbers"),
        (6, "the fifth and the sixth field are numbers"),
        (10, "the mount point /mnt/file is not a directory"),
        (11, "the mount point /mnt/j does not exist"),
    ]
    .into_iter()
    .enumerate()
    {
        let at = format!("/etc/fstab:{number}: ");
        assert!(
            lines.get(i).is_some_and(|line| line.starts_with(&at) && line.contains(part)),
            "{at}{part} in {text}"
        );
    }
    assert_eq!((faults, lines.len()), (7, 7), "{text}");
}

/// A path in a mount of hither is not accessed at any depth, because the server may be dead.
#[test]
fn check_skips_paths_in_mounts() {
    let mount = |point: &str, fstype: &str| mountinfo::Mount {
        id: 1,
        dev: (0, 1),
        root: "/".into(),
        point: point.into(),
        options: "rw".into(),
        fstype: fstype.into(),
        source: "s:/".into(),
    };
    let mounts = [mount("/", "ext4"), mount("/mnt", mountinfo::FSTYPE), mount("/srv", "nfs4")];
    for (path, spared) in
        [("/mnt", true), ("/mnt/sub/deep", true), ("/srv", true), ("/home/a", false), ("/mntx", false)]
    {
        assert_eq!(untouched(&mounts, Path::new(path)), spared, "{path}");
    }
}
