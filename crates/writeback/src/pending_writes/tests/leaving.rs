//! Tests of opens, links and requests during a call that removes a name of an unsent file.

use super::super::leaving::ABANDONED_MAX;
use super::*;
use hither_vfs::{BatchOps, RenameFlags};

/// The ways to close a file before it is sent.
const MODES: [&str; 3] = ["close=lazy", "close=delegated", "close=wait"];

async fn stack(mode: &str) -> Stack {
    let options = WriteBackOptions {
        lazy_close: mode == "close=lazy",
        delegated_close: mode == "close=delegated",
        dirty_age: Duration::from_secs(3600),
        ..WriteBackOptions::default()
    };
    let s = Stack::new(options).await;
    s.gate.delegate(mode == "close=delegated");
    s
}

/// Removes the name `f` of a file, by an unlink, or by a rename of `over`.
async fn lose(s: &Stack, fh: &Fh, replaced: bool) {
    let (root, f) = (&s.root, name("f"));
    if replaced {
        let (from, flags) = ((root, &name("over")), RenameFlags::empty());
        s.dirty.rename(&cx(), from, (root, &f), Some(fh), flags).await.unwrap();
    } else {
        s.dirty.unlink(&cx(), root, &f, Some(fh)).await.unwrap();
    }
}

/// An open that found the file before its name was removed reads the written bytes, whatever
/// happens meanwhile.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn open_under_way_keeps_bytes() {
    for mode in MODES {
        for (by_name, replaced) in [(true, false), (true, true), (false, false), (false, true)] {
            let s = stack(mode).await;
            let (f, over) = (s.open("f").await, s.open("over").await);
            s.close(&over).await.unwrap();
            s.write(&f, 0, "bytes").await.unwrap();
            let waits = mode == "close=wait";
            if !waits {
                s.close(&f).await.unwrap();
            }
            s.gate.shut("open answer");
            let (dirty, root, fh) = (s.dirty.clone(), s.root.clone(), f.0.clone());
            let open = tokio::spawn(async move {
                let (path, how) = (name("f"), OpenHow::existing(OpenAccess::READ));
                let at = if by_name { PathRef::name(&root, &path) } else { PathRef::fh(&fh) };
                dirty.open(&cx(), at, &how).await.unwrap()
            });
            settle().await;
            lose(&s, &f.0, replaced).await;
            if waits {
                s.close(&f).await.unwrap();
            }
            settle().await;
            s.gate.open_all();
            let opened = open.await.unwrap();
            let what = format!("{mode}, by name: {by_name}, replaced: {replaced}");
            assert_eq!(opened.node.attrs.attr.size_bytes, 5, "{what}");
            let reader = (opened.node.fh, opened.open);
            settle().await;
            assert_eq!(
                (s.read(&reader, 0, 10).await, s.size(&reader).await),
                (b"bytes".to_vec(), 5),
                "{what}"
            );
            s.close(&reader).await.unwrap();
            s.dirty.sync().await.unwrap();
            settle().await;
            assert!(s.dirty.holds_no_file(), "{what}");
        }
    }
}

/// An answer that was in flight during the removal of the name shows the former length.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn late_answer_tells_length() {
    for mode in ["close=lazy", "close=delegated"] {
        let s = stack(mode).await;
        let f = s.open("f").await;
        s.write(&f, 0, "bytes").await.unwrap();
        s.close(&f).await.unwrap();
        s.gate.shut("walk answer");
        let (dirty, root) = (s.dirty.clone(), s.root.clone());
        let walk = tokio::spawn(async move {
            let path = name("f");
            dirty.walk(&cx(), PathRef::name(&root, &path), hither_vfs::WalkRequest::default()).await.unwrap()
        });
        settle().await;
        lose(&s, &f.0, false).await;
        settle().await;
        s.gate.open_all();
        assert_eq!(walk.await.unwrap().steps[0].attrs.attr.size_bytes, 5, "{mode}");
        settle().await;
        assert_eq!((s.gate.calls("write"), s.dirty.stats().bytes_unsent), (0, 5), "{mode}");
        assert!(s.dirty.holds_no_file(), "{mode}");
    }
}

/// A file that lost its bytes with its last name cannot be opened, and keeps its length, also after
/// the close below. A new file with its handle is not affected.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn unlinked_lazy_file_keeps_length() {
    let s = stack("close=lazy").await;
    let f = s.open("f").await;
    s.write(&f, 0, "bytes").await.unwrap();
    s.close(&f).await.unwrap();
    s.gate.shut("close");
    lose(&s, &f.0, false).await;
    settle().await;
    assert_eq!(s.dirty.stats().bytes_unsent, 5);
    let how = OpenHow::existing(OpenAccess::READ);
    let again = s.dirty.open(&cx(), PathRef::fh(&f.0), &how).await.map(drop).map_err(|e| e.errno);
    assert_eq!(again, Err(libc::ESTALE));
    let attrs = s.dirty.getattr(&cx(), At { fh: &f.0, open: None }).await.unwrap();
    assert_eq!(attrs.attr.size_bytes, 5);
    s.gate.open_all();
    settle().await;
    assert!(s.dirty.holds_no_file());
    let again = s.dirty.open(&cx(), PathRef::fh(&f.0), &how).await.map(drop).map_err(|e| e.errno);
    assert_eq!(again, Err(libc::ESTALE));
    let record = s.dirty.known(&f.0).expect("the record stays");
    assert_eq!(record.state.lock().abandoned_bytes, Some(5));
    s.dirty.note_new(&f.0);
    assert!(s.dirty.known(&f.0).is_none());
}

/// Few records of removed files stay.
#[tokio::test(start_paused = true)]
async fn records_of_removed_files_are_bounded() {
    let s = stack("close=lazy").await;
    for n in 0..ABANDONED_MAX + 20 {
        let f = s.open("f").await;
        s.write(&f, 0, "bytes").await.unwrap();
        s.close(&f).await.unwrap();
        lose(&s, &f.0, false).await;
        settle().await;
        assert_eq!(s.dirty.files.read().len(), ABANDONED_MAX.min(n + 1));
    }
    assert!(s.dirty.holds_no_file());
}

/// The layer below learns that no program uses a file whose name is removed. No bytes are sent
/// before the result is known.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn unused_file_needs_no_hidden_name() {
    let s = Arc::new(stack("close=lazy").await);
    let used = s.open("f").await;
    s.write(&used, 0, "used").await.unwrap();
    lose(&s, &used.0, false).await;
    assert_eq!(s.gate.unused(), [false]);
    s.close(&used).await.unwrap();
    let f = s.open("f").await;
    s.write(&f, 0, "bytes").await.unwrap();
    s.close(&f).await.unwrap();
    s.gate.shut("unlink");
    s.gate.fail("unlink", libc::EACCES);
    let (this, fh) = (s.clone(), f.0.clone());
    let refused =
        tokio::spawn(async move { this.dirty.unlink(&cx(), &this.root, &name("f"), Some(&fh)).await });
    settle().await;
    let this = s.clone();
    let sync = tokio::spawn(async move { this.dirty.sync().await });
    settle().await;
    assert_eq!((s.gate.calls("write"), sync.is_finished()), (0, false));
    s.gate.open_all();
    assert_eq!(refused.await.unwrap().unwrap_err().errno, libc::EACCES);
    sync.await.unwrap().unwrap();
    assert_eq!(s.below(&f.0).await, b"bytes");
    s.gate.fail("unlink", 0);
    let again = s.open("f").await;
    s.write(&again, 0, "again").await.unwrap();
    s.close(&again).await.unwrap();
    lose(&s, &f.0, false).await;
    assert_eq!(s.gate.unused(), [false, true]);
}

/// A client returns the delegation of a file together with the removal of its name, of one or of
/// several. The file is not sent for that. When the removal fails, other clients may see the file,
/// and it is sent.
/// Promise: 6a'
#[tokio::test(start_paused = true)]
async fn returned_delegation_sends_no_removed_file() {
    for (errno, batch) in [(0, false), (libc::EACCES, false), (0, true), (libc::EACCES, true)] {
        let options = WriteBackOptions { delegated_close: true, ..WriteBackOptions::default() };
        let s = Stack::new(options).await;
        s.dirty.subscribe(Arc::new(super::histories::Nobody));
        s.gate.delegate(true);
        let f = s.open("f").await;
        s.write(&f, 0, pattern(1, 100)).await.unwrap();
        s.close(&f).await.unwrap();
        s.gate.shut("unlink");
        let (dirty, root, fh) = (s.dirty.clone(), s.root.clone(), f.0.clone());
        let unlink = tokio::spawn(async move {
            if !batch {
                return dirty.unlink(&cx(), &root, &name("f"), Some(&fh)).await;
            }
            let gone = hither_vfs::Removal { name: name("f"), target: Some(fh), is_dir: false };
            dirty.remove_many(&cx(), &root, &[gone]).await.pop().unwrap()
        });
        settle().await;
        s.gate.fail("unlink", errno);
        s.gate.delegate(false);
        s.gate.upcalls().withdraw_unused(&f.0).await;
        assert_eq!(s.gate.calls("write"), 0);
        s.gate.open_all();
        let removed = unlink.await.unwrap();
        assert_eq!(removed.err().map_or(0, |e| e.errno), errno);
        settle().await;
        assert_eq!(s.gate.calls("write"), usize::from(errno != 0), "batch: {batch}");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(s.gate.calls("write"), usize::from(errno != 0));
        assert!(s.dirty.holds_no_file());
    }
}

/// A frozen part keeps its answers when a delegation is returned with a removal. Its delayed bytes
/// are sent when another part of the mount removes the name, and not when it removes the name
/// itself.
/// Promise: 6a'
#[tokio::test(start_paused = true)]
async fn removal_elsewhere_sends_delayed_bytes() {
    for own in [false, true] {
        let s = Stack::new(WriteBackOptions { delegated_close: true, ..WriteBackOptions::default() }).await;
        s.dirty.subscribe(Arc::new(super::histories::Nobody));
        s.gate.delegate(true);
        let f = s.open("f").await;
        s.write(&f, 0, pattern(1, 100)).await.unwrap();
        s.close(&f).await.unwrap();
        s.gate.shut("unlink");
        let (dirty, root, fh) = (s.dirty.clone(), s.root.clone(), f.0.clone());
        let unlink = own.then(|| {
            tokio::spawn(async move { dirty.unlink(&cx(), &root, &name("f"), Some(&fh)).await.map(drop) })
        });
        settle().await;
        s.gate.upcalls().flush_unused(&f.0).await;
        assert_eq!(s.gate.calls("write"), usize::from(!own), "own removal: {own}");
        s.gate.open_all();
        if let Some(unlink) = unlink {
            unlink.await.unwrap().unwrap();
        }
    }
}

/// A file with two names is sent before one of them is removed in a batch, because its delegation
/// goes with the name.
/// Promise: 6a'
#[tokio::test(start_paused = true)]
async fn batch_sends_hard_linked_file_first() {
    let s = Stack::new(WriteBackOptions { delegated_close: true, ..WriteBackOptions::default() }).await;
    s.dirty.subscribe(Arc::new(super::histories::Nobody));
    s.gate.delegate(true);
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    s.dirty.link(&cx(), &f.0, &s.root, &name("g")).await.unwrap();
    s.close(&f).await.unwrap();
    s.gate.shut("unlink");
    let (dirty, root, fh) = (s.dirty.clone(), s.root.clone(), f.0.clone());
    let gone = hither_vfs::Removal { name: name("f"), target: Some(fh), is_dir: false };
    let unlink = tokio::spawn(async move { dirty.remove_many(&cx(), &root, &[gone]).await.pop().unwrap() });
    settle().await;
    assert_eq!(s.gate.calls("write"), 1);
    s.gate.open_all();
    unlink.await.unwrap().unwrap();
}
