//! Writes seeds for every target to `corpus/TARGET/`: `cargo run --bin seeds [COUNT]`.
//!
//! Seeds are encoded sample values. Each run makes the same ones.

use hither_fuzz::TARGETS;
use hither_proto::sample::Source;
use std::{env, fs, io};

/// Number of bytes of decisions for one seed.
const DECISIONS: usize = 800;

fn main() -> io::Result<()> {
    let count: u32 = env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(400);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for (name, check, seed) in TARGETS {
        let dir = format!("corpus/{name}");
        fs::create_dir_all(&dir)?;
        for n in 0..count {
            let decisions: Vec<u8> = (0..DECISIONS).map(|_| byte(&mut random)).collect();
            let input = seed(&mut Source::new(&decisions));
            check(&input);
            fs::write(format!("{dir}/seed-{n:04}"), input)?;
        }
        println!("{dir}: {count} seeds");
    }
    Ok(())
}

/// The next byte of a xorshift generator.
fn byte(state: &mut u64) -> u8 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 24) as u8
}
