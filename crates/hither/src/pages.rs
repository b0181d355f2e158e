//! Manual pages and shell completions, generated from the definitions of the command line and the
//! mount options.

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::exit::Failure;
use crate::options;
use crate::stat::print;
use clap::{Command, CommandFactory};
use std::io;

/// The command line, with the list of mount options at the end of `mount --help`.
pub fn command() -> Command {
    Cli::command().mut_subcommand("mount", |mount| mount.after_long_help(options::help()))
}

/// Prints completions.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "hither", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Writes a manual page for the program and for each of its commands.
///
/// # Errors
/// A page cannot be written.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let dir = args.dir.display();
    let failed = |e: io::Error| Failure::system(format!("{dir}: {e}"));
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    for (name, page) in pages().map_err(failed)? {
        std::fs::write(args.dir.join(name), page).map_err(failed)?;
    }
    Ok(())
}

/// All pages by file name.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut program = Cli::command();
    program.build();
    let mut out = vec![page(&program)?];
    for command in shown(&program) {
        out.push(page(command)?);
        for inner in shown(command) {
            out.push(page(inner)?);
        }
    }
    Ok(out)
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
}

fn page(command: &Command) -> io::Result<(String, Vec<u8>)> {
    // The page of `hither cache ls` is hither-cache-ls(1).
    let name = command.get_bin_name().unwrap_or(command.get_name()).replace(' ', "-");
    let mount = command.get_name() == "mount";
    // clap takes names that live as long as the program. The commands need two dozen.
    let titled = command.clone().name(&*name.clone().leak()).display_name(name.clone());
    let mut page = Vec::new();
    clap_mangen::Man::new(titled).render(&mut page)?;
    if mount {
        page.extend(preformatted("MOUNT OPTIONS", &options::help()).into_bytes());
    }
    Ok((format!("{name}.1"), page))
}

/// A section with preserved line breaks.
fn preformatted(title: &str, text: &str) -> String {
    let mut out = format!(".SH \"{title}\"\n.nf\n");
    for line in text.lines() {
        // troff takes a line that begins with a dot or an apostrophe for a request.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        out.push_str(guard);
        out.push_str(&line.replace('\\', "\\e").replace('-', "\\-"));
        out.push('\n');
    }
    out.push_str(".fi\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap_complete::Shell;
    use std::collections::BTreeMap;

    /// Each command has a page with all its flags. The page of mount has each option.
    #[test]
    fn pages_are_complete() {
        let pages: BTreeMap<String, String> = pages()
            .unwrap()
            .into_iter()
            .map(|(name, page)| (name, String::from_utf8(page).unwrap().replace("\\-", "-")))
            .collect();
        for name in
            ["hither.1", "hither-mount.1", "hither-doctor.1", "hither-cache-evict.1", "hither-serve.1"]
        {
            assert!(pages.contains_key(name), "{name} of {:?}", pages.keys());
        }
        let mut program = Cli::command();
        program.build();
        for command in shown(&program) {
            let page = &pages[&format!("hither-{}.1", command.get_name())];
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                if let Some(long) = arg.get_long() {
                    assert!(page.contains(&format!("--{long}")), "--{long} in {page}");
                }
            }
        }
        for def in options::OPTIONS {
            assert!(pages["hither-mount.1"].contains(def.name), "{}", def.name);
        }
        for (name, page) in &pages {
            assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}");
            assert!(
                !name.contains(' ') && page.contains(&format!(".TH {} ", name.trim_end_matches(".1"))),
                "{page}"
            );
        }
    }

    /// The completions are a valid bash program.
    #[test]
    fn completions_are_read_by_bash() {
        let mut text = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "hither", &mut text);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &text).unwrap();
        let script = format!(
            ". {}; COMP_WORDS=(hither doc); COMP_CWORD=1; _hither hither doc hither; echo ${{COMPREPLY[@]}}",
            file.path().display()
        );
        let out = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "doctor", "{out:?}");
        assert_eq!(preformatted("X", ".a\\b-c"), ".SH \"X\"\n.nf\n\\&.a\\eb\\-c\n.fi\n");
    }
}
