//! Mapping in both directions, and the number of look-ups in the user database.

use super::domain::{configured, in_hosts};
use super::*;
use std::sync::atomic::AtomicUsize;

/// A user database with one user and one group that counts look-ups.
#[derive(Default)]
struct Few {
    asked: AtomicUsize,
}

impl Directory for Few {
    fn id(&self, who: Who, name: &str) -> Option<u32> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match (who, name) {
            (Who::User, "alice") => Some(1000),
            (Who::Group, "staff") => Some(50),
            _ => None,
        }
    }

    fn name(&self, who: Who, id: u32) -> Option<String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        (who == Who::User && id == 1000).then(|| "alice".to_owned())
    }
}

fn map() -> (IdMap, Arc<Few>) {
    let few = Arc::new(Few::default());
    (IdMap::with_directory("example.org".into(), few.clone()), few)
}

#[tokio::test]
async fn owners_become_numbers() {
    let (map, _) = map();
    for (who, owner, id) in [
        (Who::User, "alice@example.org", 1000),
        (Who::User, "alice@EXAMPLE.org", 1000),
        (Who::Group, "staff@example.org", 50),
        (Who::User, "staff@example.org", NOBODY),
        (Who::User, "alice@elsewhere.org", NOBODY),
        (Who::User, "alice", NOBODY),
        (Who::User, "1234", 1234),
        (Who::User, "0", 0),
        (Who::User, "4294967294", 4_294_967_294),
        (Who::User, "4294967295", NOBODY),
        (Who::User, "99999999999999999999", NOBODY),
        (Who::User, "007", NOBODY),
        (Who::User, "", NOBODY),
        (Who::User, "@example.org", NOBODY),
    ] {
        assert_eq!(map.id(who, &Bytes::from(owner)).await, id, "{owner:?}");
    }
    assert_eq!(map.id(Who::User, &Bytes::from_static(b"\xff\xfe@example.org")).await, NOBODY);
}

/// The map remembers answers of the user database for ten minutes, absences too.
#[tokio::test(start_paused = true)]
async fn idmap_caches_user_database_answers() {
    let (map, few) = map();
    let (alice, bob) = (Bytes::from("alice@example.org"), Bytes::from("bob@example.org"));
    assert_eq!(map.known_id(Who::User, &alice), None);
    for _ in 0..5 {
        map.id(Who::User, &alice).await;
        map.id(Who::User, &bob).await;
    }
    assert_eq!(few.asked.load(Ordering::Relaxed), 2);
    assert_eq!(map.known_id(Who::User, &alice), Some(1000));
    tokio::time::advance(TTL).await;
    map.id(Who::User, &alice).await;
    assert_eq!(few.asked.load(Ordering::Relaxed), 3);
}

/// Numbers are sent until the server refuses them.
#[tokio::test]
async fn names_are_sent_after_badowner() {
    let (map, _) = map();
    assert_eq!(map.owner(Who::User, 1000).await, "1000");
    assert!(map.bad_owner());
    assert!(!map.bad_owner(), "the second call reports no change");
    assert_eq!(map.owner(Who::User, 1000).await, "alice@example.org");
    assert_eq!(map.owner(Who::User, 7).await, "7");
}

#[test]
fn root_is_root_on_this_machine() {
    assert_eq!(System.id(Who::User, "root"), Some(0));
    assert_eq!(System.name(Who::Group, 0).as_deref(), Some("root"));
    assert_eq!(System.id(Who::User, "no-such-user-here"), None);
}

#[test]
fn the_domain_is_found() {
    let conf =
        "# Domain = wrong\n[Mapping]\nDomain = wrong\n[General]\n Verbosity=0\n Domain = Right.Example\n";
    assert_eq!(configured(conf).as_deref(), Some("right.example"));
    assert_eq!(configured("[General]\n#Domain = localdomain\n"), None);
    let hosts = "127.0.0.1 localhost\n10.0.0.1 box.example.net box # here\n";
    assert_eq!(in_hosts(hosts, "box").as_deref(), Some("example.net"));
    assert_eq!(in_hosts(hosts, "other"), None);
}
