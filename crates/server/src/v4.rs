//! NFSv4.1 and 4.2.

use crate::server::{Options, Server};
use hither_rpc::server::{Incoming, Outcome, Peer};
use std::sync::Arc;

pub(crate) struct Nfs4;

impl Nfs4 {
    pub fn new(_: &Options) -> std::io::Result<Self> {
        Ok(Self)
    }
    pub async fn tend(&self, _: &Arc<Server>) {
        std::future::pending().await
    }
    pub fn exports_changed(&self) {}
    pub fn closed(&self, _: &Peer) {}
}

pub(crate) async fn answer(_: &Arc<Server>, _: Incoming) -> Outcome {
    Outcome::ProcUnavail
}
