//! The exports of a gateway and their clients.
//!
//! This module has no protocol and connects to nothing. It gives each export of an origin the
//! rights of clients and a place in the [`Table`].

use super::nested::{self, Planned};
use super::what::{COMMAND_LINE, Files, Served, admit_of, describe, spec};
use crate::exit::Failure;
use crate::gateway::{Branch, Offered};
use futures_util::StreamExt;
use hither_server::access::Admit;
use hither_server::exports::{Entry, Exports};
use hither_server::table::{Covers, Others, Table};
use hither_vfs::{Cred, Error, Name, PathRef, RequestContext, Stop, Vfs, WalkRequest};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Longest wait for the directory over which an export lies.
const COVERED_WITHIN: Duration = Duration::from_secs(5);
/// Directories that are looked up at a time.
const LOOKUPS: usize = 64;
/// Most exports that are listed one by one for the user.
const SHOWN_MAX: usize = 16;

/// The rights of an export's clients, and the number of the rule that gives them.
struct Ruled {
    entry: Entry,
    rule: usize,
}

impl Served {
    /// Reads the exports of a gateway. Blocks.
    ///
    /// # Errors
    /// A message for the user. The earlier exports stay.
    pub(super) fn load_branches(&mut self) -> Result<Table, Failure> {
        let rules = self.rules()?;
        let Some(gateway) = self.gateway.as_mut() else { return Ok(Table::default()) };
        let offered = gateway.offered()?;
        let ruled: Vec<Ruled> = offered.iter().map(|export| ruled(&rules, &export.path)).collect();
        let entries = ruled.iter().map(|r| (path_of(&r.entry), r.entry.clone())).collect();
        let plan = nested::plan(entries, &[]);
        let files: Vec<Files> =
            plan.iter().zip(&offered).map(|(planned, export)| self.branch(&planned.dir, export)).collect();
        let mut admits: HashMap<usize, Arc<Admit>> = HashMap::new();
        let covers = Handle::current().block_on(covers(&plan, &files));
        let (mut specs, mut open, mut lines) = (Vec::new(), BTreeMap::new(), Vec::new());
        for (((planned, files), covers), ruled) in plan.iter().zip(files).zip(covers).zip(&ruled) {
            // Clients reach an export inside another one only through the directory that it covers.
            if planned.above.is_some() && covers.is_none() {
                continue;
            }
            let admit = admits.entry(ruled.rule).or_insert_with(|| admit_of(&planned.entry, &self.names));
            open.insert(planned.dir.clone(), files.clone());
            if let Some(branch) = &files.branch {
                let (source, rights) = (branch.shown(), describe(&planned.entry));
                lines.push(format!("{source} as {} {rights}", planned.name));
            }
            specs.push(spec(planned, files, covers, admit.clone()));
        }
        let mounted = match &specs[..] {
            [only] => only.path.clone(),
            _ => "/".into(),
        };
        let table = Table::numbered(specs, &mut self.numbers).map_err(|e| Failure::usage(e.to_string()))?;
        if lines.len() > SHOWN_MAX {
            let more = lines.len() - SHOWN_MAX;
            lines.truncate(SHOWN_MAX);
            lines.push(format!("{more} more exports"));
        }
        (self.open, self.lines, self.mounted) = (open, lines, mounted);
        self.names.want(rules.entries.iter().any(Entry::needs_names));
        if let Some(gateway) = self.gateway.as_mut() {
            gateway.end_unused();
        }
        Ok(table)
    }

    /// Lets a gateway look for exports of its origins now.
    pub fn search_again(&self) {
        if let Some(gateway) = &self.gateway {
            gateway.search_again();
        }
    }

    /// The rules for clients: lines of exports(5), and last the rule of the command line.
    fn rules(&self) -> Result<Exports, Failure> {
        let mut rules = self.listed()?;
        let mut usual = Exports::default();
        usual.add(COMMAND_LINE, self.own_line().as_bytes()).map_err(|e| Failure::usage(e.to_string()))?;
        // NFSv3 clients cross into exports inside exports, as NFSv4 clients do.
        rules.entries.extend(usual.entries.into_iter().map(|entry| Entry { crossmnt: true, ..entry }));
        self.args.tls.check(&rules)?;
        self.args.kerberos.check(&rules)?;
        Ok(rules)
    }

    /// The files of an export: the open ones or new ones.
    fn branch(&self, dir: &Path, export: &Offered) -> Files {
        let same = |branch: &Branch| Arc::ptr_eq(&branch.origin, &export.origin) && branch.at == export.at;
        if let Some(files) = self.open.get(dir).filter(|files| files.branch.as_deref().is_some_and(same)) {
            return files.clone();
        }
        let branch = Arc::new(Branch::new(export.origin.clone(), export.at.clone()));
        let origin = export.origin.clone();
        Files {
            vfs: branch.clone(),
            extra: None,
            epoch: Some(Arc::new(move || origin.write_epoch())),
            others: Others::Origin(export.origin.clone()),
            local: None,
            branch: Some(branch),
            mount: None,
        }
    }
}

fn path_of(entry: &Entry) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(&entry.path).into_owned())
}

/// The rule with the longest path that is or contains the export. The last rule is for all others.
fn ruled(rules: &Exports, path: &str) -> Ruled {
    let listed = &rules.entries[..rules.entries.len() - 1];
    let contains = |entry: &Entry| Path::new(path).starts_with(path_of(entry));
    let nearest = (0..listed.len()).filter(|i| contains(&listed[*i])).max_by_key(|i| listed[*i].path.len());
    let rule = nearest.unwrap_or(listed.len());
    let entry = Entry { path: path.as_bytes().to_vec(), fsid: None, ..rules.entries[rule].clone() };
    Ruled { entry, rule }
}

/// The directory that each export covers in the export around it, if the origin has it.
async fn covers(plan: &[Planned], files: &[Files]) -> Vec<Option<Covers>> {
    let each = plan.iter().map(|planned| async move {
        let (above, files) = planned.above.map(|above| (&plan[above], &files[above]))?;
        let found = tokio::time::timeout(COVERED_WITHIN, covered(planned, above, &*files.vfs)).await;
        let found = found.unwrap_or_else(|_| Err(Error::new(libc::ETIMEDOUT)));
        let not = |e: &Error| {
            tracing::warn!("{}: clients cannot reach it: {} inside {}", planned.name, e, above.name);
        };
        found.inspect_err(not).ok()
    });
    futures_util::stream::iter(each).buffered(LOOKUPS).collect().await
}

/// Looks up the directory of `above` over which an export lies.
async fn covered(planned: &Planned, above: &Planned, around: &dyn Vfs) -> hither_vfs::Result<Covers> {
    let inside = planned.dir.strip_prefix(&above.dir).unwrap_or(&planned.dir);
    let names = Name::of_path(&inside.to_string_lossy()).map_err(|_| Error::new(libc::EINVAL))?;
    let cx = RequestContext::new(Arc::new(Cred::root()));
    let root = around.root(&cx).await?;
    let at = PathRef { base: &root.fh, path: &names };
    let found = around.walk(&cx, at, WalkRequest::default()).await?;
    match (found.stop, found.steps.into_iter().last()) {
        (Stop::Complete, Some(dir)) => Ok(Covers {
            export: above.name.clone(),
            dir: dir.fh,
            fileid: dir.attrs.attr.fileid,
            hidden: planned.hidden,
        }),
        (Stop::Failed(e), _) => Err(e),
        _ => Err(Error::new(libc::ENOENT)),
    }
}
