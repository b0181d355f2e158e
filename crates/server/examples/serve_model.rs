//! Serves an empty file system in memory: the cost of the server alone, and a server without a disk
//! to try clients on.
//!
//! `serve_model ADDR:PORT`, until it is interrupted.

use hither_rpc::server::{Acceptor, ServerLimits};
use hither_server::access::{Asker, Rights, Squash};
use hither_server::table::{ExportSpec, Others, Table};
use hither_server::{Options, Server};
use hither_vfs::Env;
use hither_vfs::model::Model;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).ok_or("usage: serve_model ADDR:PORT")?;
    #[expect(clippy::disallowed_methods, reason = "a program's main has a clock")]
    let wall = || std::time::SystemTime::now();
    let env = Env { random: Arc::new(rand::random), wall: Arc::new(wall) };
    let vfs = Arc::new(Model::new(env.clone(), Duration::ZERO, 1 << 33));
    let rights = Rights { read_only: false, squash: Squash::None, secure: false, ..Rights::default() };
    let admit = Arc::new(move |_: &Asker<'_>| Some(rights.clone()));
    let table = Table::new(vec![ExportSpec {
        path: "/".into(),
        aliases: vec![],
        vfs: vfs.clone(),
        extra: Some(vfs),
        admit,
        epoch: None,
        others: Others::Nobody,
        covers: None,
    }])?;
    let options = Options { state_dir: std::env::args().nth(2).map(Into::into), ..Options::new(env) };
    let server = Server::new(options, table)?;
    tokio::spawn(server.clone().tend());
    let acceptor = Acceptor::new(server, ServerLimits::default());
    acceptor.listen(TcpListener::bind(&addr).await?).await;
    Ok(())
}
