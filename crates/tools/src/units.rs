//! Quantities as text, and from text.

/// `17 B`, `1.2 KiB`, `345 MiB`.
pub fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0);
    format!("{value:.digits$} {}", units[unit])
}

/// `17 µs`, `1.2 ms`, `3.4 s`.
pub fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// Parses bytes with an optional K, M, G or T.
///
/// # Errors
/// A message with the expected form and the limits.
pub fn size(value: &str, low: u64, high: u64) -> Result<u64, String> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match value[digits.len()..].to_ascii_lowercase().as_str() {
        "" => Some(1),
        "k" | "kib" => Some(1_u64 << 10),
        "m" | "mib" => Some(1 << 20),
        "g" | "gib" => Some(1 << 30),
        "t" | "tib" => Some(1 << 40),
        _ => None,
    };
    let bytes = unit.and_then(|unit| digits.parse::<u64>().ok()?.checked_mul(unit));
    match bytes {
        Some(bytes) if bytes >= low && bytes <= high => Ok(bytes),
        _ => Err(format!("expected a size such as 64M, from {low} to {high} bytes")),
    }
}

/// Parses the size of a disk cache like `cache-size=`, at least 1 MiB.
///
/// # Errors
/// A message with the expected form.
pub fn cache_size(value: &str) -> Result<u64, String> {
    size(value, 1 << 20, 1 << 50)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_short() {
        let shown: Vec<String> = [0, 1023, 1024, 120 << 10, 5 << 30].into_iter().map(bytes).collect();
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "120 KiB", "5.0 GiB"]);
    }
}
