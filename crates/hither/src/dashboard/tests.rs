//! Access to the dashboard, and file names as plain text.

use super::*;
use crate::metrics::endpoint::{self, EndpointAddr};
use crate::report::sample::{op, report};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SECRET: u128 = 7;

fn source() -> Source {
    let calls = |from: u64| json!({"next": from + 1, "lost": 0, "calls": [{"path": "/<img src=x onerror=alert(1)>"}]});
    Source { report: Box::new(|| report(vec![op("READ", 5)])), calls: Box::new(calls) }
}

async fn ask(addr: SocketAddr, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let host = if host.is_empty() { String::new() } else { format!("hOsT: {host}\r\n") };
    stream.write_all(format!("GET {path} HTTP/1.1\r\n{host}\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[test]
fn only_loopback_is_served() {
    assert_eq!(address("127.0.0.1:0"), Ok("127.0.0.1:0".parse().unwrap()));
    assert_eq!(address("[::1]:80"), Ok("[::1]:80".parse().unwrap()));
    assert_eq!(address("127.1.2.3:80"), Ok("127.1.2.3:80".parse().unwrap()));
    for wrong in ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "localhost:80", "80", ""] {
        assert!(address(wrong).is_err(), "{wrong}");
    }
}

/// A reader of the secret path gets the page, with a new nonce for each page.
#[tokio::test]
async fn dashboard_serves_secret_path() {
    let bound = endpoint::bind(&EndpointAddr::Tcp("127.0.0.1:0".parse().unwrap())).await.unwrap();
    let addr = bound.address().unwrap();
    assert!(told(addr, SECRET).ends_with(&format!("{addr}/00000000000000000000000000000007/")));
    let _endpoint = bound.serve_site(site(SECRET, source()));
    let host = addr.to_string();
    let page = ask(addr, &path(SECRET), &host).await;
    assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"), "{page}");
    // The page loads nothing from other places, and its policy forbids additions.
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    let nonce = head.split_once("script-src 'nonce-").unwrap().1.split('\'').next().unwrap();
    assert!(
        nonce.len() == 32 && body.contains(&format!("<script nonce=\"{nonce}\">")) && !body.contains(NONCE)
    );
    assert!(head.contains("default-src 'none'") && !body.contains("http://") && !body.contains("https://"));
    for danger in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "onclick="] {
        assert!(!body.contains(danger), "{danger}");
    }
    let again = ask(addr, &path(SECRET), &host).await;
    assert!(!again.contains(nonce), "a word for each page");
    let data = ask(addr, &format!("{}data?x=1&from=41", path(SECRET)), "localhost:1").await;
    let (head, body) = data.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Type: application/json") && head.contains("nosniff"), "{head}");
    let data: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&data["calls"]["next"], &data["report"]["operations"][0]["calls"]), (&json!(42), &json!(5)));
    assert_eq!(data["calls"]["calls"][0]["path"], "/<img src=x onerror=alert(1)>");
}

/// A reader without the secret path or the right `Host` header gets no page.
#[tokio::test]
async fn dashboard_refuses_other_paths_and_hosts() {
    let bound = endpoint::bind(&EndpointAddr::Tcp("127.0.0.1:0".parse().unwrap())).await.unwrap();
    let addr = bound.address().unwrap();
    let _endpoint = bound.serve_site(site(SECRET, source()));
    let host = addr.to_string();
    let (right, wrong) = (path(SECRET), path(8));
    for asked in ["/", "/data", &wrong, &format!("{wrong}data"), &right[..right.len() - 1], "/metrics"] {
        assert!(ask(addr, asked, &host).await.starts_with("HTTP/1.1 404 "), "{asked}");
    }
    assert!(ask(addr, &format!("{right}x"), &host).await.starts_with("HTTP/1.1 404 "));
    for name in ["example.org", "example.org:80", "127.0.0.1.example.org", "[::2]:80", "192.0.2.1", ""] {
        assert!(ask(addr, &right, name).await.starts_with("HTTP/1.1 403 "), "{name}");
    }
    for name in ["127.0.0.1", "[::1]:80", "LOCALHOST"] {
        assert!(ask(addr, &right, name).await.starts_with("HTTP/1.1 200 "), "{name}");
    }
}
