//! What the server asks of its client.

use super::*;

impl Server {
    /// Sends CB_SEQUENCE and CB_RECALL.
    pub fn recall(&self, stateid: Stateid, file: &str) {
        self.call_back(CbOp::Recall(CbRecallArgs { stateid, truncate: false, fh: handle(file) }));
    }

    /// Asks the holder of a file for its `change` and length.
    pub fn ask_holder(&self, file: &str) {
        let attr_request = Bitmap4::of(&[attr::CHANGE, attr::SIZE]);
        self.call_back(CbOp::Getattr(CbGetattrArgs { fh: handle(file), attr_request }));
    }

    /// Notes what the client says to a call.
    pub fn was_answered(&self, reply: &CbCompoundReply) {
        let mut s = self.0.lock();
        s.callbacks_answered.push(reply.status);
        if let Some(CbRes::Getattr(Ok(a))) = reply.results.0.last() {
            s.told.push((a.change, a.size));
        }
    }

    /// Another client locks all of a file.
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
