//! Transaction ids (xids): unique among a client's live calls, and recognisable afterwards.
//!
//! The upper four bits are the connection; a client has at most 16. The lower 28 bits count from a
//! random start, so that a restarted client does not reuse ids in a server's reply cache. Ids are
//! consecutive. The client can therefore tell a late reply from a reply to a call that was never
//! made, without a record of past calls. A late reply answers an abandoned call, or repeats a reply
//! after a retransmission.

const COUNT_BITS: u32 = 28;
const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// Ids older than this count as never issued.
const MEMORY: u32 = 1 << (COUNT_BITS - 1);

/// Most connections of a client, as nfs(5) allows for `nconnect`.
pub(crate) const CONNECTIONS_MAX: usize = 16;

/// The ids of one connection.
#[derive(Debug)]
pub(super) struct Xids {
    prefix: u32,
    next: u32,
    issued: u32,
}

impl Xids {
    pub fn new(connection: usize, seed: u64) -> Self {
        assert!(connection < CONNECTIONS_MAX);
        let prefix = ((connection as u32) << COUNT_BITS) ^ ((seed >> 32) as u32 & !COUNT_MASK);
        Self { prefix, next: seed as u32 & COUNT_MASK, issued: 0 }
    }

    /// The next id that is not `taken`.
    pub fn allocate(&mut self, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            let xid = self.prefix | self.next;
            self.next = (self.next + 1) & COUNT_MASK;
            self.issued = (self.issued + 1).min(MEMORY);
            if !taken(xid) {
                return xid;
            }
        }
    }

    /// True when `xid` was allocated by this counter and is not too old.
    pub fn was_issued(&self, xid: u32) -> bool {
        let age = self.next.wrapping_sub(xid & COUNT_MASK).wrapping_sub(1) & COUNT_MASK;
        xid & !COUNT_MASK == self.prefix && age < self.issued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections never share an id for any seed. Ids stay unique across the wrap of the counter.
    #[test]
    fn unique_and_recognised() {
        let seed = 0xdead_beef_ffff_fffe;
        let mut all: Vec<Xids> = (0..CONNECTIONS_MAX).map(|i| Xids::new(i, seed)).collect();
        let mut seen = std::collections::HashSet::new();
        for xids in &mut all {
            let first = xids.prefix | xids.next;
            assert!(!xids.was_issued(first));
            for _ in 0..5 {
                let xid = xids.allocate(|_| false);
                assert!(xids.was_issued(xid));
                assert!(seen.insert(xid));
            }
            assert!(!xids.was_issued(xids.prefix | xids.next));
            assert!(!xids.was_issued(first.wrapping_sub(1)));
        }
        assert!(!all[0].was_issued(all[1].prefix | (all[1].next - 1)));
    }

    /// `allocate` skips an id that is still in use.
    #[test]
    fn live_ids_are_not_reused() {
        let mut xids = Xids::new(0, 0);
        let live = xids.prefix | 1;
        assert_eq!(xids.allocate(|x| x == live), xids.prefix);
        assert_eq!(xids.allocate(|x| x == live), xids.prefix | 2);
    }
}
