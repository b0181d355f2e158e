//! Lines and words of exports, their quoting, and patterns of host names.

/// A word without its quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub text: Vec<u8>,
}

impl Word {
    pub fn utf8(&self) -> Result<&str, String> {
        std::str::from_utf8(&self.text).map_err(|_| format!("'{}': no such host", self.text.escape_ascii()))
    }
}

/// The words of each line that is not empty, with the number of the line. A continued line has the
/// number of its first line.
pub(super) fn lines(text: &[u8]) -> Vec<(usize, Result<Vec<Word>, String>)> {
    let mut out = Vec::new();
    let mut physical = text.split(|&b| b == b'\n').enumerate();
    while let Some((number, first)) = physical.next() {
        let mut line = first.strip_suffix(b"\r").unwrap_or(first).to_vec();
        while continues(&line) {
            line.pop();
            let Some((_, more)) = physical.next() else { break };
            line.extend_from_slice(more.strip_suffix(b"\r").unwrap_or(more));
        }
        let words = words(&line);
        if !matches!(&words, Ok(words) if words.is_empty()) {
            out.push((number + 1, words));
        }
    }
    out
}

/// Whether a line ends in an odd number of backslashes and not in a comment.
fn continues(line: &[u8]) -> bool {
    let slashes = line.iter().rev().take_while(|&&b| b == b'\\').count();
    slashes % 2 == 1 && comment_at(line).is_none()
}

/// The position of a comment: a `#` that is not quoted and begins a word.
fn comment_at(line: &[u8]) -> Option<usize> {
    let (mut quoted, mut before) = (false, b' ');
    for (i, &b) in line.iter().enumerate() {
        match b {
            b'"' => quoted = !quoted,
            b'#' if !quoted && before.is_ascii_whitespace() => return Some(i),
            _ => {}
        }
        before = b;
    }
    None
}

fn words(line: &[u8]) -> Result<Vec<Word>, String> {
    let line = &line[..comment_at(line).unwrap_or(line.len())];
    let (mut out, mut word, mut quoted) = (Vec::new(), None::<Vec<u8>>, false);
    let mut rest = line.iter().copied();
    while let Some(b) = rest.next() {
        match b {
            b'"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            b'\\' => {
                let digits: Vec<u8> = rest.clone().take(3).take_while(|d| matches!(d, b'0'..=b'7')).collect();
                let byte = match digits[..] {
                    [a, b, c] => {
                        u8::try_from(u32::from(a - b'0') * 64 + u32::from(b - b'0') * 8 + u32::from(c - b'0'))
                            .map_err(|_| "a backslash and three octal digits above 377".to_string())?
                    }
                    _ => return Err("a backslash must be followed by three octal digits, as in \\040".into()),
                };
                word.get_or_insert_default().push(byte);
                rest.nth(2);
            }
            b if b.is_ascii_whitespace() && !quoted => out.extend(word.take().map(|text| Word { text })),
            b => word.get_or_insert_default().push(b),
        }
    }
    if quoted {
        return Err("a quote is not closed".into());
    }
    out.extend(word.map(|text| Word { text }));
    Ok(out)
}

/// Whether a name matches a pattern with `*`, `?` and `[a-z]`. `*` and `?` also match dots, as in
/// exports(5).
pub(super) fn fits(pattern: &[u8], name: &[u8]) -> bool {
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
