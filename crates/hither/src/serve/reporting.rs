//! The reports of a running server: over its control socket, as metrics, and as health checks.
//!
//! The control socket is `control.sock` in the state directory. The lock of that directory admits
//! one server, so the socket of a killed server can be replaced. A server whose socket cannot be
//! made serves nevertheless.

use super::report::{ServerReport, Sources};
use crate::control::{Ask, Control};
use crate::metrics::endpoint::{Reply, Request};
use crate::metrics::server;
use hither_localfs::local::Local;
use hither_rpc::server::Acceptor;
use hither_server::Server;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::time::Instant;

/// Name of the control socket in the state directory.
pub const SOCKET: &str = "control.sock";

/// Makes reports of a server.
pub struct Reporter {
    /// The server.
    pub server: Arc<Server>,
    /// Its connections.
    pub acceptor: Arc<Acceptor>,
    /// The directory with a journal.
    pub journaled: Option<Arc<Local>>,
    /// Addresses on which it listens.
    pub listen: Vec<SocketAddr>,
    /// Its start.
    pub began: Instant,
}

impl Reporter {
    /// The present report.
    pub fn report(&self) -> ServerReport {
        ServerReport::new(Sources {
            acceptor: self.acceptor.figures(),
            server: self.server.figures(),
            operations: self.server.operations(),
            journal: self.journaled.as_ref().and_then(|local| local.journal_stats()),
            listen: &self.listen,
            age: self.began.elapsed(),
        })
    }

    /// Settles the journal.
    async fn flush(&self) -> Result<(), String> {
        let local = self.journaled.clone().ok_or("the server has no journal (--journal)")?;
        let flush = move || local.flush_journal().map_err(|e| e.to_string());
        tokio::task::spawn_blocking(flush).await.map_err(|e| e.to_string())?
    }

    /// Answers requests on the control socket in `state_dir`.
    pub fn control(self: &Arc<Self>, state_dir: &Path) -> Option<Control> {
        let (path, reporter) = (state_dir.join(SOCKET), self.clone());
        let answer = move |ask| {
            let reporter = reporter.clone();
            Box::pin(async move {
                match ask {
                    Ask::Stat => {}
                    Ask::Flush => reporter.flush().await?,
                    _ => return Err("a server has only figures (stat) and its journal".to_string()),
                }
                serde_json::to_value(reporter.report()).map_err(|e| e.to_string())
            }) as hither_vfs::BoxFuture<_>
        };
        Control::start_at(path.clone(), Arc::new(answer))
            .inspect_err(|e| {
                tracing::warn!(
                    "control socket {}: {e}; `hither stat --server` does not work",
                    path.display()
                );
            })
            .ok()
    }

    /// Answers HTTP requests: `/metrics`, `/healthz` and `/readyz`.
    pub fn page(&self, request: &Request<'_>) -> Reply {
        match request.path {
            "/metrics" => Reply::plain("200 OK", server::render(&self.report())),
            "/healthz" => Reply::plain("200 OK", "ok\n"),
            "/readyz" => ready(&self.report()),
            "/" => Reply::plain("200 OK", "/metrics has the figures, /healthz and /readyz the health\n"),
            _ => Reply::plain("404 Not Found", "try /metrics, /healthz or /readyz\n"),
        }
    }
}

/// The answer to `/readyz`: each trouble in a line. A grace period is no trouble.
fn ready(report: &ServerReport) -> Reply {
    let troubles = report.troubles();
    let status = if troubles.is_empty() { "200 OK" } else { "503 Service Unavailable" };
    let mut text = if troubles.is_empty() {
        "ready\n".to_string()
    } else {
        troubles.iter().map(|trouble| format!("not ready: {trouble}\n")).collect()
    };
    text.push_str(&format!("exports: {}\n", report.exports.len()));
    match &report.grace {
        Some(grace) => text.push_str(&format!(
            "grace: {} s left, {} clients may reclaim\n",
            grace.left_ms.div_ceil(1000),
            grace.reclaimers
        )),
        None => text.push_str("grace: over\n"),
    }
    text.push_str(match &report.journal {
        None => "journal: none\n",
        Some(journal) if journal.has_failed || journal.disk_fails => "journal: failing\n",
        Some(_) => "journal: healthy\n",
    });
    Reply::plain(status, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::server::tests::report;

    /// A failed journal, a failing disk and an absent export each refuse traffic. A grace period
    /// does not.
    #[test]
    fn readiness_names_each_trouble() {
        let ok = ready(&report());
        assert_eq!(ok.status, "200 OK");
        assert!(ok.body.starts_with("ready\nexports: 1\ngrace: 7 s left, 2 clients"), "{}", ok.body);
        type Break = fn(&mut ServerReport);
        let breaks: [(Break, &str); 3] = [
            (|r| r.exports.clear(), "not ready: no export is served\n"),
            (|r| r.journal.as_mut().unwrap().has_failed = true, "not ready: the journal has failed\n"),
            (|r| r.journal.as_mut().unwrap().disk_fails = true, "not ready: the disk below"),
        ];
        for (change, line) in breaks {
            let mut broken = report();
            change(&mut broken);
            let reply = ready(&broken);
            assert_eq!(reply.status, "503 Service Unavailable");
            assert!(reply.body.starts_with(line), "{}", reply.body);
        }
    }
}
