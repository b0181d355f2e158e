//! The dashboard of a mount: `hither mount --dashboard`, a page for a browser on this machine.
//!
//! The page shows the figures of `hither stat` and `hither top`. It is one page with all its parts.
//! Every two seconds it fetches the figures and computes rates from two answers.
//!
//! Three rules limit access. The server listens on loopback addresses only. The path is secret,
//! because other users of the machine can reach loopback and must not see file names. The `Host`
//! header must name this machine, because a foreign web page can make its own name resolve to
//! 127.0.0.1. File names and program names are untrusted, so the page inserts them as text only.

#[cfg(test)]
mod tests;

use crate::metrics::endpoint::{Reply, Request, Site};
use crate::report::Report;
use crate::stat::text::questions;
use serde_json::{Value, json};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

const PAGE: &str = include_str!("dashboard/page.html");
/// Placeholder in `PAGE` for the nonce that admits the page's own script.
const NONCE: &str = "@NONCE@";

/// Parses the value of `--dashboard=`.
///
/// # Errors
/// The value is not a loopback address with a port.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let addr: SocketAddr = text.parse().map_err(|_| {
        "expected ADDRESS:PORT, such as 127.0.0.1:9311, or nothing for any free port".to_string()
    })?;
    if addr.ip().is_loopback() {
        Ok(addr)
    } else {
        Err("the page shows names of files: use 127.0.0.1 or [::1]".into())
    }
}

/// Sources of the displayed figures.
pub struct Source {
    /// Returns the report.
    pub report: Box<dyn Fn() -> Report + Send + Sync>,
    /// Returns the calls to the server since a position ([`crate::control::Ask::Calls`]).
    pub calls: Box<dyn Fn(u64) -> Value + Send + Sync>,
}

/// The site of the dashboard. Its path is derived from `secret`.
pub fn site(secret: u128, source: Source) -> Site {
    let secret = path(secret);
    Arc::new(move |request: &Request<'_>| answer(&secret, &source, request))
}

/// The path of the page: `/…/`.
pub fn path(secret: u128) -> String {
    format!("/{secret:032x}/")
}

fn answer(secret: &str, source: &Source, request: &Request<'_>) -> Reply {
    if !this_machine(request.host) {
        return Reply::plain("403 Forbidden", "open this page by a loopback address\n");
    }
    let Some(below) = request.path.strip_prefix(secret) else {
        return Reply::plain("404 Not Found", "use the address that the mount command printed\n");
    };
    match below {
        "" => page(),
        "data" => Reply {
            status: "200 OK",
            kind: "application/json; charset=utf-8",
            headers: "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n".into(),
            body: data(source, request.query).to_string(),
        },
        _ => Reply::plain("404 Not Found", "no such page\n"),
    }
}

fn page() -> Reply {
    let nonce = format!("{:032x}", rand::random::<u128>());
    let headers = format!(
        "Content-Security-Policy: default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
         Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n"
    );
    Reply { status: "200 OK", kind: "text/html; charset=utf-8", headers, body: PAGE.replace(NONCE, &nonce) }
}

/// Whether a `Host` header names this machine by loopback. An absent header (HTTP/1.0) does not; a
/// browser always sends one.
fn this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The figures, and the calls since position `from=`.
fn data(source: &Source, query: &str) -> Value {
    let from = query.split('&').find_map(|pair| pair.strip_prefix("from=")?.parse().ok()).unwrap_or(0);
    let report = (source.report)();
    let answered: Vec<Value> = questions(&report)
        .into_iter()
        .map(|q| json!({ "what": q.what, "here": q.here, "asked": q.asked }))
        .collect();
    json!({ "answered": answered, "calls": (source.calls)(from), "report": report })
}

/// The line about the dashboard that the mount command prints.
pub fn told(addr: SocketAddr, secret: u128) -> String {
    let mut line = String::from("dashboard: ");
    let _ = write!(line, "http://{addr}{}", path(secret));
    line
}
