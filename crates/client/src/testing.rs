//! Options that several tests of this crate share.

use crate::{AttrCache, LookupCache, Options, Recovery};
use std::time::Duration;

/// The defaults of nfs(5).
pub(crate) fn options() -> Options {
    Options {
        server: "server".into(),
        addrs: vec!["127.0.0.1:0".parse().expect("this is an address")],
        path: "/export".into(),
        version: None,
        port: None,
        mount_port: None,
        recovery: Recovery::Hard,
        timeo: Duration::from_secs(60),
        retrans: 2,
        nconnect: 1,
        resvport: false,
        tls: None,
        security: Default::default(),
        rsize_bytes: None,
        wsize_bytes: None,
        attr_cache: AttrCache::default(),
        lookup_cache: LookupCache::All,
        delegations: true,
        withdraw_max: std::time::Duration::from_secs(2),
        close_to_open: true,
        sync: false,
        readdirplus: true,
        chains: true,
        chain_max: None,
        acl: true,
        idmap_domain: None,
        client_name: None,
        retry: Duration::ZERO,
    }
}
