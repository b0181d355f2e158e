//! Counts by type of message, as in Table 1 of "Not Quite NFS": a row per type, a column per server
//! and client, all phases of a workload together. A message of NFSv4 has several operations. For
//! NFSv4 the rows count operations, and only the total counts messages.

use super::table::client_name;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The rows, each with the calls that it counts. The names are those of procedures of all versions
/// and of operations of NFSv4. All other calls are `other`.
const ROWS: [(&str, &[&str]); 9] = [
    ("lookup", &["LOOKUP", "LOOKUPP"]),
    ("getattr", &["GETATTR"]),
    ("access", &["ACCESS"]),
    ("read", &["READ"]),
    ("write, commit", &["WRITE", "COMMIT"]),
    ("listing", &["READDIR", "READDIRPLUS", "READDIRLOOK"]),
    ("lease", &["GETLEASE", "VACATED", "DELEGRETURN"]),
    ("open, close", &["OPEN", "CLOSE", "OPEN_DOWNGRADE"]),
    (
        "change of names and attributes",
        &["CREATE", "MKDIR", "MKNOD", "SYMLINK", "LINK", "REMOVE", "RMDIR", "RENAME", "SETATTR"],
    ),
];
/// Operations that only name the object or the caller of other operations.
const FRAME: [&str; 8] =
    ["SEQUENCE", "PUTFH", "PUTROOTFH", "GETFH", "SAVEFH", "RESTOREFH", "VERIFY", "NVERIFY"];

#[derive(Default)]
struct Column {
    rows: BTreeMap<&'static str, f64>,
    total: f64,
    runs: BTreeMap<u64, ()>,
}

/// The tables of all workloads. The totals are compared with those of the server and client `base`.
pub fn render(lines: &[Value], base: &str) -> String {
    let mut tables: BTreeMap<String, Vec<(String, Column)>> = BTreeMap::new();
    for v in lines.iter().filter(|v| v["phase"] != "mount") {
        let word = |k: &str| v[k].as_str().unwrap_or_default().to_string();
        let columns = tables.entry(word("workload")).or_default();
        let name = format!("{}: {}", word("server"), client_name(v));
        let at = columns.iter().position(|(n, _)| *n == name).unwrap_or_else(|| {
            columns.push((name, Column::default()));
            columns.len() - 1
        });
        columns[at].1.add(v);
    }
    let mut out = String::new();
    for (workload, columns) in &tables {
        let _ = write!(out, "## {workload}\n\n| type |");
        out.extend(columns.iter().map(|(name, _)| format!(" {name} |")));
        let _ = write!(out, "\n|---|{}\n", "---:|".repeat(columns.len()));
        for row in ROWS.iter().map(|(row, _)| *row).chain(["other"]) {
            let cells =
                columns.iter().map(|(_, c)| format!(" {} |", c.mean(*c.rows.get(row).unwrap_or(&0.0))));
            let _ = writeln!(out, "| {row} |{}", cells.collect::<String>());
        }
        let totals = columns.iter().map(|(_, c)| format!(" **{}** |", c.mean(c.total)));
        let _ = writeln!(out, "| **messages in all** |{}", totals.collect::<String>());
        if let Some((_, base)) = columns.iter().find(|(name, _)| name == base) {
            let share = |c: &Column| c.mean(c.total) / base.mean(base.total).max(1.0);
            let shares = columns.iter().map(|(_, c)| format!(" {:.2} |", share(c)));
            let _ = writeln!(
                out,
                "| of those of {} |{}",
                columns_base(columns, base),
                shares.collect::<String>()
            );
        }
        out += "\n";
    }
    out
}

fn columns_base<'a>(columns: &'a [(String, Column)], base: &Column) -> &'a str {
    columns.iter().find(|(_, c)| std::ptr::eq(c, base)).map_or("", |(name, _)| name)
}

impl Column {
    fn add(&mut self, line: &Value) {
        let rpc = &line["rpc"];
        self.runs.insert(line["rep"].as_u64().unwrap_or(0), ());
        self.total += rpc["total"].as_f64().unwrap_or(0.0);
        let calls = rpc["calls"].as_object().into_iter().flatten();
        let calls = calls
            .filter(|(name, _)| *name != "v4.COMPOUND")
            .map(|(name, n)| (name.rsplit_once('.').map_or(name.as_str(), |(_, procedure)| procedure), n));
        let ops = rpc["ops"].as_object().into_iter().flatten().map(|(name, n)| (name.as_str(), n));
        for (name, n) in calls.chain(ops).filter(|(name, _)| !FRAME.contains(name)) {
            let row = ROWS.iter().find(|(_, names)| names.contains(&name)).map_or("other", |(row, _)| *row);
            *self.rows.entry(row).or_default() += n.as_f64().unwrap_or(0.0);
        }
    }

    /// The mean over all repetitions.
    fn mean(&self, sum: f64) -> f64 {
        (sum / self.runs.len().max(1) as f64).round()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_are_counted_by_type() {
        let line = |server: &str, vers: &str, rep: u64, rpc: Value| {
            json!({"workload": "mab", "server": server, "client": "kernel", "vers": vers, "opts": "", "rep": rep,
                   "phase": "1.mkdir", "rpc": rpc})
        };
        let v3 = json!({"calls": {"v3.GETATTR": 3, "v3.MKDIR": 1}, "ops": {}, "total": 4});
        let v4 =
            json!({"calls": {"v4.COMPOUND": 8}, "ops": {"SEQUENCE": 8, "GETATTR": 6, "OPEN": 2}, "total": 8});
        let nq = json!({"calls": {"nqnfs.READDIRLOOK": 2, "nqnfs.VACATED": 1, "nqnfs.HELLO": 1}, "total": 4});
        let mut mount = line("knfsd", "3", 0, v3.clone());
        mount["phase"] = "mount".into();
        let lines = [
            mount,
            line("knfsd", "3", 0, v3.clone()),
            line("knfsd", "3", 1, v3),
            line("knfsd", "4.2", 0, v4),
            line("hither", "nqnfs", 0, nq),
        ];
        let text = render(&lines, "knfsd: kernel 4.2");
        let row = |name: &str| {
            let row = text
                .lines()
                .find(|l| l.starts_with(&format!("| {name} |")))
                .unwrap_or_else(|| panic!("{name}: {text}"));
            row.split('|').skip(2).map(|c| c.trim().to_string()).take(3).collect::<Vec<_>>()
        };
        assert_eq!(row("getattr"), ["3", "6", "0"]);
        assert_eq!(row("open, close"), ["0", "2", "0"]);
        assert_eq!(row("listing"), ["0", "0", "2"]);
        assert_eq!(row("lease"), ["0", "0", "1"]);
        assert_eq!(row("change of names and attributes"), ["1", "0", "0"]);
        assert_eq!(row("other"), ["0", "0", "1"]);
        assert_eq!(row("**messages in all**"), ["**4**", "**8**", "**4**"]);
        assert_eq!(row("of those of knfsd: kernel 4.2"), ["0.50", "1.00", "0.50"]);
    }
}
