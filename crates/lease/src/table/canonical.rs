//! A canonical form of the table's state, in which equal states are equal: without indices,
//! absolute times and absolute numbers. The model checker uses it to recognise visited states.

use super::Table;
use super::record::{NEVER, NONE};
use crate::Ms;

/// The parts of a state.
#[derive(Debug, Clone, Default)]
pub struct Canonical {
    /// Plain values.
    pub plain: Vec<u64>,
    /// Modify revisions, of which only the order counts.
    pub revisions: Vec<u64>,
    /// Numbers of leases, of which only the order counts.
    pub seqs: Vec<u64>,
}

impl Canonical {
    /// Appends a time, as the difference to `now`, limited to `window`.
    pub fn time(&mut self, now: Ms, t: Ms, window: Ms) {
        self.plain.push(match t {
            NEVER => u64::MAX,
            _ => t.saturating_add(window).saturating_sub(now).min(4 * window),
        });
    }
}

impl Table {
    /// Appends the state at `now`. All times more than `window` in the past are equal.
    pub fn canonical(&self, now: Ms, window: Ms, out: &mut Canonical) {
        out.plain.push(u64::from(self.idle_workers));
        out.plain.push(u64::from(self.writes_in_flight));
        match &self.recovery {
            None => out.plain.push(0),
            Some(r) => {
                out.plain.push(1);
                [r.until_ms, r.last_write_ms, r.recheck_ms].iter().for_each(|&t| out.time(now, t, window));
            }
        }
        out.revisions.push(self.revisions.floor());
        let mut files: Vec<_> = self.by_key.iter().copied().collect();
        files.sort_by_key(|&f| self.files[f].key);
        for f in files {
            self.canonical_file(now, window, f, out);
        }
        out.plain.push(u64::MAX);
        let mut clients: Vec<_> = self.by_client.iter().map(|&c| &self.clients[c]).collect();
        clients.sort_by_key(|c| c.id);
        for c in clients {
            out.plain.extend([u64::from(c.id.0), u64::from(c.known), u64::from(c.term_ms)]);
            out.time(now, c.renewed_ms, window);
        }
    }

    fn canonical_file(&self, now: Ms, window: Ms, f: u32, out: &mut Canonical) {
        let file = &self.files[f];
        out.plain.extend(file.key.0);
        out.plain.extend([
            u64::from(file.in_flight),
            u64::from(file.in_flight_client),
            u64::from(file.idle),
            u64::from(file.evicted_all),
        ]);
        out.revisions.push(file.revision);
        out.time(now, file.last_write_ms, window);
        match self.quiet.get(&f) {
            None => out.plain.push(0),
            Some(q) => {
                out.plain.push(1 + u64::from(q.times));
                out.time(now, q.until_ms, window);
                out.time(now, q.taken_ms, window);
            }
        }
        if file.idle {
            return;
        }
        let mut leases = Vec::new();
        let mut i = file.leases;
        while i != NONE {
            leases.push(i);
            i = self.leases[i].next_in_file;
        }
        leases.sort_by_key(|&i| self.clients[self.leases[i].client].id);
        for i in leases {
            let l = &self.leases[i];
            out.plain.extend([
                u64::from(self.clients[l.client].id.0),
                l.kind as u64,
                u64::from(l.cachable),
                u64::from(l.state.bits()),
                u64::from(l.attempts.min(4)),
            ]);
            out.seqs.push(u64::from(l.seq));
            out.time(now, l.expiry_ms, window);
            out.time(now, l.deadline_ms, window);
            out.time(now, l.evict_ms, window);
        }
        if file.waiters != NONE {
            let mut slot = self.waiters[file.waiters].next;
            loop {
                let w = &self.waiters[slot];
                let op = w.access.op as u64;
                let want = w.access.lease.map_or(0, |w| 1 + w.kind as u64);
                out.plain.extend([w.access.client.map_or(u64::MAX, |c| u64::from(c.0)), op, want]);
                if slot == file.waiters {
                    break;
                }
                slot = w.next;
            }
        }
    }
}
