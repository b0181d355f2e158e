//! Measures the memory of a table by counting allocations: `cargo run --release -p hither-lease
//! --example memory [LEASES]`.

use hither_lease::{Access, Boot, ClientId, Config, Decision, FileKey, Kind, Op, Table, Term, Want};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes per lease, with this number of clients per file.
fn bytes_a_lease(leases: u64, clients: u64) -> f64 {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    let mut table = Table::new(Config::default(), Boot::FIRST, 0);
    table.reserved(1 << 32, 1);
    while table.poll_action().is_some() {}
    let want = Some(Want { kind: Kind::Read, term: Term::For(0), optional: false });
    for i in 0..leases {
        let (client, file) = (Some(ClientId((i % clients) as u32)), FileKey([1, i / clients]));
        let decision = table.begin(0, Access { client, file, op: Op::Read, lease: want, claim: None });
        assert!(matches!(decision, Decision::Go(go) if go.grant.is_some()));
    }
    assert_eq!(table.usage().leases as u64, leases);
    (LIVE_BYTES.load(Ordering::Relaxed) - before) as f64 / leases as f64
}

fn main() {
    let leases = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1_000_000);
    println!("records in bytes: {:?}", Table::SIZES);
    println!(
        "{leases} leases, one on each file: {:.1} bytes a lease, file records included",
        bytes_a_lease(leases, 1)
    );
    println!(
        "{leases} leases, ten on each file: {:.1} bytes a lease, file records included",
        bytes_a_lease(leases, 10)
    );
}
