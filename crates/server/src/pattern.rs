//! Patterns with `*`, `?` and `[a-z]`.

/// Whether a name, path or principal matches a pattern. `*` and `?` match any byte, also a dot, as
/// in exports(5).
pub fn matches_pattern(pattern: &[u8], name: &[u8]) -> bool {
    // Positions in pattern and name from which the match continues when the star takes one byte
    // more.
    let (mut p, mut n, mut star) = (0, 0, None::<(usize, usize)>);
    while n < name.len() {
        match one(&pattern[p..], name[n]) {
            Step::Star => {
                star = Some((p + 1, n));
                p += 1;
            }
            Step::Fits(len) => {
                p += len;
                n += 1;
            }
            Step::No => match star {
                Some((after, at)) => {
                    star = Some((after, at + 1));
                    (p, n) = (after, at + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&b| b == b'*')
}

enum Step {
    Star,
    Fits(usize),
    No,
}

fn one(pattern: &[u8], byte: u8) -> Step {
    match pattern {
        [b'*', ..] => Step::Star,
        [b'?', ..] => Step::Fits(1),
        [b'[', rest @ ..] if rest.contains(&b']') => {
            let end = rest.iter().position(|&b| b == b']').unwrap_or(0);
            let (not, set) = match &rest[..end] {
                [b'!' | b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            if in_set(set, byte) != not { Step::Fits(end + 2) } else { Step::No }
        }
        [b, ..] if *b == byte => Step::Fits(1),
        _ => Step::No,
    }
}

fn in_set(set: &[u8], byte: u8) -> bool {
    let mut rest = set;
    while let [first, tail @ ..] = rest {
        match tail {
            [b'-', last, after @ ..] => {
                if (*first..=*last).contains(&byte) {
                    return true;
                }
                rest = after;
            }
            _ => {
                if *first == byte {
                    return true;
                }
                rest = tail;
            }
        }
    }
    false
}
