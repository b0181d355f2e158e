//! Mounts the in-memory reference file system: `mount_model DIR [validity in ms] [threads]`. It
//! ends when it is unmounted. For manual tests and test suites of the frontend, without a server.

use hither_fuse::{Config, Layers, mount};
use hither_vfs::{Env, model::Model};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: mount_model DIR [VALIDITY_MS] [THREADS]")?;
    let validity = Duration::from_millis(args.next().map_or(Ok(1000), |ms| ms.parse())?);
    let mut config = Config { source: "model:/".into(), mount_flags: 0, ..Config::default() };
    if let Some(threads) = args.next() {
        config.threads = threads.parse()?;
    }
    #[allow(clippy::disallowed_methods)] // The only read of the machine's clock.
    let wall = || std::time::SystemTime::now();
    let env = Env { random: Arc::new(|| 4), wall: Arc::new(wall) };
    let model = Arc::new(Model::new(env, validity, 1 << 40));
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let mounted = mount(Path::new(&dir), config, Layers::alone(model.clone())).await?;
        println!("mounted on {dir}, device {:?}", mounted.device());
        mounted.wait().await;
        for c in mounted.stats() {
            println!("{:16} {:8} {:8}", c.op, c.count, c.errors);
        }
        println!("left open: {}", model.open_count());
        Ok(())
    })
}
