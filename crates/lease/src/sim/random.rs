//! Reproducible random numbers: equal for equal seeds on all machines.

/// xorshift64*.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator. Every seed is valid.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`, which is at least 1.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.number() >> 11) % n
    }

    /// True `times` times in a thousand.
    pub fn one_in_thousand(&mut self, times: u32) -> bool {
        self.below(1000) < u64::from(times)
    }
}
