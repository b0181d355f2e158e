//! Changes that were executed, and whose session was lost with the reply.

use super::*;

async fn losing(op: NfsOpnum4, names: &[&str]) -> Test {
    let t = Test::new().await;
    for name in names {
        t.server.lock().files.insert((*name).to_owned(), server::File::default());
    }
    t.server.lock().lose_session = Some(op);
    let net = t.net.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        net.cut(Cut::Reset);
    });
    t
}

async fn rename(t: &Test, from: &str, to: &str, replaced: Option<&Fh>) -> Result<hither_vfs::Moved> {
    t.v4.rename(&cx(), (&t.root, &name(from)), (&t.root, &name(to)), replaced, RenameFlags::empty()).await
}

/// The server executes a RENAME and loses the session before the reply. The program gets success,
/// with and without a previous target.
/// Promise: 15
#[tokio::test(start_paused = true)]
async fn repeated_rename_succeeds() {
    for names in [&["a"][..], &["a", "b"]] {
        let t = losing(NfsOpnum4::RENAME, names).await;
        let replaced = (names.len() == 2).then(|| Fh(Bytes::from_static(b"fb")));
        let lookups = t.server.count("LOOKUP");
        rename(&t, "a", "b", replaced.as_ref()).await.unwrap();
        // One after the executed RENAME, and one for each name.
        assert_eq!((t.server.count("RENAME"), t.server.count("LOOKUP") - lookups), (2, 3));
        assert_eq!(t.server.lock().files.keys().collect::<Vec<_>>(), ["b"]);
        t.check();
    }
}

/// A RENAME without a source, and with an unchanged target, is an error after any number of
/// attempts.
#[tokio::test(start_paused = true)]
async fn rename_without_source_fails() {
    for names in [&[][..], &["b"]] {
        let t = losing(NfsOpnum4::RENAME, names).await;
        let replaced = (names.len() == 1).then(|| Fh(Bytes::from_static(b"fb")));
        assert_eq!(errno(rename(&t, "a", "b", replaced.as_ref()).await), libc::ENOENT);
        t.check();
    }
}

/// The server executes a RENAME over an open file and loses the session before the reply. The
/// replaced file gets a second name first, and the client recognises that half, too.
#[tokio::test(start_paused = true)]
async fn open_target_rename_is_recognised() {
    let t = losing(NfsOpnum4::RENAME, &["a"]).await;
    let open = t.create("b").await;
    rename(&t, "a", "b", Some(&open.node.fh)).await.unwrap();
    let names: Vec<_> = t.server.lock().files.keys().cloned().collect();
    assert!(names.len() == 2 && names[0].starts_with(".nfs") && names[1] == "b", "{names:?}");
    t.close(&open).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(t.server.lock().files.keys().collect::<Vec<_>>(), ["b"]);
    t.check();
}

/// The target of a rename is open. A server in its grace period makes the link and refuses the
/// rename, and the client waits as usual.
#[tokio::test(start_paused = true)]
async fn open_target_rename_waits_for_grace() {
    let t = Test::new().await;
    t.server.lock().files.insert("a".into(), server::File::default());
    let open = t.create("b").await;
    for status in [Nfsstat4::GRACE, Nfsstat4::DELAY] {
        t.server.lock().fail.extend([(NfsOpnum4::RENAME, status); 3]);
    }
    rename(&t, "a", "b", Some(&open.node.fh)).await.unwrap();
    assert_eq!(t.server.count("RENAME"), 7);
    t.close(&open).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(t.server.lock().files.keys().collect::<Vec<_>>(), ["b"]);
    t.check();
}

/// The server executes a LINK and loses the session before the reply. A second name of the same
/// file was made by this client. A name of another file existed before.
/// Promise: 15
#[tokio::test(start_paused = true)]
async fn repeated_link_succeeds() {
    for (names, errs) in [(&["a"][..], false), (&["a", "b"], true)] {
        let t = losing(NfsOpnum4::LINK, names).await;
        let made = t.v4.link(&cx(), &Fh(Bytes::from_static(b"fa")), &t.root, &name("b")).await;
        if errs {
            assert_eq!(errno(made), libc::EEXIST);
        } else {
            assert_eq!(&made.unwrap().node.fh.0[..], b"fa");
        }
        assert_eq!(t.server.count("LINK"), 2);
        t.check();
    }
}
