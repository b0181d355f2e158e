//! The simulated network behaves as documented.

use super::*;
use tokio::time::Instant;

const MS: Duration = Duration::from_millis(1);

/// Serves `net` with a server that echoes its input.
fn echo(net: &Net) {
    net.serve(|mut peer| async move {
        while let Some(record) = peer.recv().await {
            let mut e = Enc::new();
            e.raw(&record);
            peer.send(e);
        }
    });
}

async fn link(net: &Net) -> Link {
    net.connect(None).await.unwrap()
}

async fn exchange(link: &mut Link, payload: &[u8]) -> io::Result<()> {
    let mark = (payload.len() as u32 | 1 << 31).to_be_bytes();
    link.writer.write_all(&[&mark[..], payload].concat()).await?;
    let mut back = vec![0; payload.len() + 4];
    link.reader.read_exact(&mut back).await?;
    assert_eq!(&back[4..], payload);
    Ok(())
}

/// A round trip takes twice the latency, and so does connecting. Bandwidth adds transmission time.
#[tokio::test(start_paused = true)]
async fn latency_and_bandwidth() {
    let net = Net::new(1, Conditions { latency: 50 * MS, ..Conditions::default() });
    echo(&net);
    let started = Instant::now();
    let mut link = link(&net).await;
    assert_eq!(started.elapsed(), 100 * MS);
    exchange(&mut link, b"abc").await.unwrap();
    assert_eq!(started.elapsed(), 200 * MS);
    net.set_conditions(Conditions { latency: 50 * MS, bandwidth: Some(1000), ..Conditions::default() });
    let started = Instant::now();
    exchange(&mut link, &[7; 496]).await.unwrap();
    assert_eq!(started.elapsed().as_millis(), 1100);
}

/// Bytes of one connection stay in order under any jitter and loss. Loss costs time.
#[tokio::test(start_paused = true)]
async fn order_is_kept() {
    let net = Net::new(3, Conditions { jitter: 100 * MS, loss: 0.3, ..Conditions::default() });
    echo(&net);
    let Link { mut reader, mut writer, .. } = link(&net).await;
    let started = Instant::now();
    let expected: Vec<u8> = (0..200u8).collect();
    tokio::spawn(async move {
        for i in 0..200u8 {
            writer.write_all(&[0x80, 0, 0, 1, i]).await.unwrap();
        }
        sleep(Duration::from_secs(1000)).await;
    });
    let mut got = Vec::new();
    for _ in 0..200 {
        let mut record = [0; 5];
        reader.read_exact(&mut record).await.unwrap();
        got.push(record[4]);
    }
    assert_eq!(got, expected);
    assert!(started.elapsed() > 200 * MS);
}

/// Equal seeds give equal runs, and different seeds give different runs. Connections overtake each
/// other.
#[tokio::test(start_paused = true)]
async fn seeds_and_reordering_across_connections() {
    let mut runs = Vec::new();
    for seed in [1, 1, 2] {
        let net = Net::new(seed, Conditions { jitter: 100 * MS, loss: 0.2, ..Conditions::default() });
        echo(&net);
        let mut order = Vec::new();
        let (send, mut recv) = mpsc::unbounded_channel();
        for i in 0..20 {
            let (mut link, send) = (link(&net).await, send.clone());
            tokio::spawn(async move {
                exchange(&mut link, b"x").await.unwrap();
                send.send(i).unwrap();
            });
        }
        for _ in 0..20 {
            order.push(recv.recv().await.unwrap());
        }
        runs.push(order);
    }
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0], runs[2]);
    assert!(!runs[0].is_sorted());
}

/// No end notices a black hole, and all bytes arrive after it heals. Both ends notice a reset at
/// once.
#[tokio::test(start_paused = true)]
async fn cuts() {
    let net = Net::new(1, Conditions::default());
    echo(&net);
    let mut link = link(&net).await;
    net.cut(Cut::BlackHole);
    let late = net.clone();
    tokio::spawn(async move {
        sleep(Duration::from_secs(100)).await;
        late.heal();
    });
    let started = Instant::now();
    exchange(&mut link, b"abc").await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 100);
    net.cut(Cut::Reset);
    let error = exchange(&mut link, b"abc").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

/// A writer waits when its reader does not read. The end of a stream arrives after its bytes.
#[tokio::test(start_paused = true)]
async fn window_and_end() {
    let net = Net::new(1, Conditions { window_bytes: 100, ..Conditions::default() });
    net.serve(|mut peer| async move {
        sleep(Duration::from_secs(5)).await;
        while peer.recv().await.is_some() {}
        peer.send_raw(Bytes::from_static(b"bye"));
    });
    let Link { mut reader, mut writer, .. } = link(&net).await;
    let started = Instant::now();
    let mut message = vec![0x80, 0, 1, 0];
    message.extend([0; 256]);
    writer.write_all(&message).await.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(5));
    drop(writer);
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"bye");
}
