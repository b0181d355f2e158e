//! Command-line words: options anywhere, then positional words, then everything after `--`.

use crate::lab::Fail;

/// The arguments that were not consumed yet.
pub struct Args {
    words: Vec<String>,
    /// Words after `--`, unchanged.
    tail: Option<Vec<String>>,
}

impl Args {
    /// Splits at the first `--`.
    pub fn new(mut words: Vec<String>) -> Self {
        let tail = words.iter().position(|w| w == "--").map(|at| {
            let tail = words.split_off(at + 1);
            words.pop();
            tail
        });
        Self { words, tail }
    }

    /// Takes `--flag`, if present.
    pub fn flag(&mut self, name: &str) -> bool {
        let at = self.words.iter().position(|w| w == name);
        at.map(|i| self.words.remove(i)).is_some()
    }

    /// Takes `--name VALUE` or `--name=VALUE`.
    pub fn value(&mut self, name: &str) -> Result<Option<String>, Fail> {
        let eq = format!("{name}=");
        if let Some(i) = self.words.iter().position(|w| w.starts_with(&eq)) {
            return Ok(Some(self.words.remove(i)[eq.len()..].to_string()));
        }
        let Some(i) = self.words.iter().position(|w| w == name) else { return Ok(None) };
        if i + 1 >= self.words.len() {
            return Err(Fail(format!("{name} needs a value")));
        }
        self.words.remove(i);
        Ok(Some(self.words.remove(i)))
    }

    /// Takes every `--name VALUE`.
    pub fn values(&mut self, name: &str) -> Result<Vec<String>, Fail> {
        let mut all = vec![];
        while let Some(v) = self.value(name)? {
            all.push(v);
        }
        Ok(all)
    }

    /// Takes a comma-separated `--name A,B,C`. Returns `default` when it is absent.
    pub fn list(&mut self, name: &str, default: &[&str]) -> Result<Vec<String>, Fail> {
        Ok(match self.value(name)? {
            Some(v) => v.split(',').map(str::to_string).collect(),
            None => default.iter().map(|s| s.to_string()).collect(),
        })
    }

    /// Takes a number.
    pub fn number(&mut self, name: &str) -> Result<Option<f64>, Fail> {
        let Some(v) = self.value(name)? else { return Ok(None) };
        v.parse().map(Some).map_err(|_| Fail(format!("{name} {v}: not a number")))
    }

    /// Takes the next positional word.
    pub fn word(&mut self) -> Option<String> {
        (!self.words.is_empty()).then(|| self.words.remove(0))
    }

    /// Takes all remaining words. With `--`, takes the words after it.
    pub fn rest(&mut self) -> Vec<String> {
        let mut all = std::mem::take(&mut self.words);
        all.extend(self.tail.take().unwrap_or_default());
        all
    }

    /// Number of words that were not taken yet.
    pub fn words_left(&self) -> usize {
        self.words.len()
    }

    /// Refuses unknown options, so that no typing error is ignored.
    pub fn no_more_options(&self) -> Result<(), Fail> {
        match self.words.iter().find(|w| w.starts_with('-')) {
            Some(w) => Err(Fail(format!("unknown option {w}"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        Args::new(line.split_whitespace().map(str::to_string).collect())
    }

    /// Options are found anywhere before `--`. Words after it are not options.
    #[test]
    fn options_stop_at_double_dash() {
        let mut a = args("suite --vers 4.2,3 git --quick -- --quick x");
        assert_eq!(a.list("--vers", &["3"]).unwrap(), ["4.2", "3"]);
        assert!(a.flag("--quick"));
        assert!(!a.flag("--quick"));
        assert_eq!(a.word().unwrap(), "suite");
        assert_eq!(a.rest(), ["git", "--quick", "x"]);
    }

    /// An option without its value and an unknown option are errors.
    #[test]
    fn invalid_options_are_refused() {
        assert!(args("bench --rtt").value("--rtt").is_err());
        assert_eq!(args("bench --rtt=10").value("--rtt").unwrap().unwrap(), "10");
        assert!(args("bench --rt 10").no_more_options().is_err());
    }
}
