//! Calls from the server to its client.

use super::*;

impl Server {
    /// Sends CB_SEQUENCE and CB_RECALL.
    pub fn recall(&self, stateid: Stateid, file: &str) {
        self.call_back(CbOp::Recall(CbRecallArgs { stateid, truncate: false, fh: handle(file) }));
    }

    /// Sends CB_GETATTR for `change`, length and times to the holder of a file.
    pub fn ask_holder(&self, file: &str) {
        let attr_request =
            Bitmap4::of(&[attr::CHANGE, attr::SIZE, attr::TIME_DELEG_ACCESS, attr::TIME_DELEG_MODIFY]);
        self.call_back(CbOp::Getattr(CbGetattrArgs { fh: handle(file), attr_request }));
    }

    /// Records the client's reply to a callback.
    pub fn was_answered(&self, reply: &CbCompoundReply) {
        let mut s = self.0.lock();
        s.callbacks_answered.push(reply.status);
        if let Some(CbRes::Getattr(Ok(a))) = reply.results.0.last() {
            s.told.push((a.change, a.size));
            s.told_times.push([a.time_deleg_access(), a.time_deleg_modify()].map(|t| t.copied()));
        }
    }

    /// Locks a whole file as another client.
    pub fn lock_by_another(&self, file: &str) {
        let mut s = self.0.lock();
        let (client, owner, other) = (u64::MAX, Bytes::from_static(b"another"), s.other());
        s.locks.insert(other, Lock { client, owner, file: file.to_owned(), ranges: vec![(0, u64::MAX)] });
    }

    fn call_back(&self, op: CbOp) {
        let (sender, call) = {
            let mut s = self.0.lock();
            s.cb_seq += 1;
            let (&sessionid, _) = s.sessions.iter().next().expect("a session");
            let seq = CbSequenceArgs {
                sessionid,
                sequenceid: s.cb_seq,
                slotid: 0,
                highest_slotid: 0,
                cachethis: false,
                referring_call_lists: Vec::new().into(),
            };
            let call = CbCompound {
                tag: Tag::default(),
                minorversion: 2,
                callback_ident: 0,
                ops: vec![CbOp::Sequence(seq), op],
            };
            (s.senders.last().cloned().expect("a connection"), call)
        };
        let body = Enc::of(&call);
        sender.send(rpc::call(77, 0x4000_0000, CB_VERSION, CB_PROC_COMPOUND, &OpaqueAuth::none(), body));
    }
}
