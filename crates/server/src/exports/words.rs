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
