//! The option table as text, for `hither mount --help` and docs/CONFIGURATION.md.

use super::{Arg, Def, GROUPS, Group, OPTIONS};
use std::fmt::Write;

/// The spelling of an option with its other names: `vers=VERSION, nfsvers=VERSION`.
fn spelling(def: &Def) -> String {
    let one = |name: &str| match def.arg {
        Arg::Needed(arg) => format!("{name}={arg}"),
        Arg::Optional(arg) if !arg.is_empty() => format!("{name}[={arg}]"),
        _ => name.to_string(),
    };
    std::iter::once(&def.name).chain(def.also).map(|name| one(name)).collect::<Vec<_>>().join(", ")
}

fn of(group: Group) -> impl Iterator<Item = &'static Def> {
    OPTIONS.iter().filter(move |def| def.group == group)
}

/// The options by group, for a terminal of 100 columns. Options without effect appear only by name.
pub fn help() -> String {
    let mut text = String::from("Options of -o, with the names and defaults of nfs(5):\n");
    for &(group, heading) in GROUPS {
        let _ = write!(text, "\n{heading}:\n");
        if matches!(group, Group::Harmless | Group::Refused) {
            let names: Vec<String> = of(group).map(spelling).collect();
            wrap(&mut text, "  ", &names.join(", "));
            continue;
        }
        for def in of(group) {
            let default = match def.default {
                "" => String::new(),
                "on" => " [default]".into(),
                value => format!(" [default: {value}]"),
            };
            let spelling = spelling(def);
            let line = format!("{}{default}", def.help);
            if spelling.len() <= 20 {
                wrap(&mut text, &format!("  {spelling:<20}  "), &line);
            } else {
                let _ = writeln!(text, "  {spelling}");
                wrap(&mut text, &" ".repeat(24), &line);
            }
        }
    }
    text.push_str("\ndocs/CONFIGURATION.md has the details.\n");
    text
}

/// Appends `words` after `lead`, wrapped at 100 columns. Further lines are indented by the width of
/// `lead`.
fn wrap(text: &mut String, lead: &str, words: &str) {
    let indent = " ".repeat(lead.len());
    let mut line = lead.to_string();
    for word in words.split(' ') {
        if line.len() + 1 + word.len() > 100 {
            text.push_str(line.trim_end());
            text.push('\n');
            line = indent.clone();
        }
        line.push_str(word);
        line.push(' ');
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

/// The table of docs/CONFIGURATION.md.
#[cfg(test)]
pub fn markdown() -> String {
    let mut text = String::new();
    for &(group, heading) in GROUPS {
        let plain = matches!(group, Group::Harmless | Group::Refused);
        let _ = write!(text, "### {heading}\n\n");
        text.push_str(match group {
            Group::Harmless => "| option | why it needs nothing |\n|---|---|\n",
            Group::Refused => "| option | instead |\n|---|---|\n",
            _ => "| option | default | meaning |\n|---|---|---|\n",
        });
        for def in of(group) {
            let spelling = spelling(def).replace('|', "\\|").replace(", ", "`, `");
            let _ = if plain {
                writeln!(text, "| `{spelling}` | {} |", def.help)
            } else {
                writeln!(text, "| `{spelling}` | {} | {} |", def.default, def.help)
            };
        }
        text.push('\n');
    }
    text
}
