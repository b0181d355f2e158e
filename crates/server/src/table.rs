//! The exports of a server, and the directories that lead to them.
//!
//! The module knows nothing of protocols. NFSv4 has one tree with one root (RFC 8881 section 7.3).
//! Above the exports, directories that exist in no file system join them to that root. A table
//! never changes. A reload builds a new table. Exports keep their numbers across reloads because a
//! number is computed from the path.

use crate::access::{Admit, Asker, Rights};
use crate::numbers::Numbers;
use hither_rpc::server::Peer;
use hither_vfs::{Cred, Error, Extra, Fh, Name, Node, RequestContext, Vfs, Watch};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The description of an export.
#[derive(Clone)]
pub struct ExportSpec {
    /// The export's name for clients: an absolute path, `/` or `/srv/data`.
    pub path: String,
    /// Further paths under which NFSv3 clients may mount the export.
    pub aliases: Vec<String>,
    /// The files.
    pub vfs: Arc<dyn Vfs>,
    /// Further abilities of the layer that has the files.
    pub extra: Option<Arc<dyn Extra>>,
    /// Decides which clients may use the export.
    pub admit: Arc<Admit>,
    /// A number that changes when the layer below has lost UNSTABLE data. `None`: the data is lost
    /// only with the process.
    pub epoch: Option<Arc<Epoch>>,
    /// Other programs that change the files.
    pub others: Others,
    /// The directory of another export over which this export lies.
    pub covers: Option<Covers>,
}

/// A directory of an export over which another export lies. A LOOKUP of its name leads to the root
/// of the other export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Covers {
    /// Name of the export that has the directory.
    pub export: String,
    /// The directory.
    pub dir: Fh,
    /// The directory's inode number.
    pub fileid: u64,
    /// NFSv3 clients see the directory and not the other export (exports(5), `hide`).
    pub hidden: bool,
}

/// Whether programs other than this server's clients change the files of an export. Files can be
/// delegated to clients only when the server learns of every such change.
#[derive(Clone)]
pub enum Others {
    /// Other programs may change files, and the server does not learn of it.
    Unseen,
    /// The files are those of an origin, behind the caches of a gateway. Its other clients may
    /// change them. Files that the origin delegates to the gateway can be watched.
    Origin(Arc<dyn Watch>),
    /// No other program changes files.
    Nobody,
    /// Other programs may change files, and the server can watch files for changes.
    Watched(Arc<dyn Watch>),
}

impl Others {
    /// Whether the server can learn of every change by another program.
    pub fn are_seen(&self) -> bool {
        !matches!(self, Self::Unseen)
    }

    /// The watch, if other programs may change files.
    pub fn watch(&self) -> Option<&Arc<dyn Watch>> {
        match self {
            Self::Origin(watch) | Self::Watched(watch) => Some(watch),
            Self::Unseen | Self::Nobody => None,
        }
    }
}

/// See [`ExportSpec::epoch`].
pub type Epoch = dyn Fn() -> u64 + Send + Sync;

/// An export.
pub struct Export {
    /// The export's number in filehandles.
    pub number: u32,
    /// The export's name for clients.
    pub path: String,
    aliases: Vec<String>,
    /// The files.
    pub vfs: Arc<dyn Vfs>,
    /// Further abilities of the layer that has the files.
    pub extra: Option<Arc<dyn Extra>>,
    admit: Arc<Admit>,
    epoch: Option<Arc<Epoch>>,
    /// Other programs that change the files.
    pub others: Others,
    /// The directory of another export over which this export lies.
    pub covers: Option<Covers>,
    root: Mutex<Option<Fh>>,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export")
            .field("path", &self.path)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Export {
    /// Whether the files are those of an origin, behind the caches of a gateway.
    pub fn is_of_gateway(&self) -> bool {
        matches!(self.others, Others::Origin(_))
    }

    /// The rights of a client. `None`: the client may not learn that the export exists.
    pub fn rights(&self, client: &Peer) -> Option<Rights> {
        (self.admit)(&Asker::of(client))
    }

    /// The root directory.
    ///
    /// # Errors
    /// Those of the `Vfs`.
    pub async fn root(&self) -> hither_vfs::Result<Node> {
        let node = self.vfs.root(&RequestContext::new(Arc::new(Cred::root()))).await?;
        *self.root.lock() = Some(node.fh.clone());
        Ok(node)
    }

    /// A number that changes when the layer below has lost UNSTABLE data.
    pub fn epoch(&self) -> u64 {
        self.epoch.as_ref().map_or(0, |epoch| epoch())
    }

    /// Whether `fh` is the handle of the root. False until [`Export::root`] has looked the root up.
    pub fn is_root(&self, fh: &Fh) -> bool {
        self.root.lock().as_ref() == Some(fh)
    }

    /// The fsid for clients, made of the file system's own number. The fsids of different exports
    /// differ, so that clients do not confuse them.
    pub fn fsid(&self, of: (u64, u64)) -> (u64, u64) {
        (of.0 ^ u64::from(self.number) << 40, of.1)
    }
}

/// A place in the tree above the exports.
#[derive(Debug)]
pub struct Above {
    /// The place's number in filehandles.
    pub number: u32,
    /// Index of the parent. The root's parent is the root.
    pub parent: usize,
    /// The place's name in its parent.
    pub name: Vec<u8>,
    /// Names and indices of the places one level down.
    pub children: BTreeMap<Vec<u8>, usize>,
    /// The export whose root is at this place.
    pub export: Option<Arc<Export>>,
}

/// All exports.
#[derive(Debug, Default)]
pub struct Table {
    exports: Vec<Arc<Export>>,
    by_number: HashMap<u32, Arc<Export>>,
    /// The first is the root.
    places: Vec<Above>,
    place_by_number: HashMap<u32, usize>,
    place_of_export: HashMap<u32, usize>,
    /// Exports over directories of another export, by the number of the other.
    crossings: HashMap<u32, HashMap<Fh, Arc<Export>>>,
}

impl Table {
    /// A table of exports.
    ///
    /// # Errors
    /// `EINVAL` and the reason: a path is not absolute or is there twice, or an export lies inside
    /// another export without a directory there that it covers.
    pub fn new(specs: Vec<ExportSpec>) -> Result<Self, Error> {
        Self::numbered(specs, &mut Numbers::default())
    }

    /// The same, with numbers from a state directory. New numbers are kept there before this
    /// returns.
    ///
    /// # Errors
    /// As [`Table::new`]; `EIO`: the numbers cannot be kept.
    pub fn numbered(specs: Vec<ExportSpec>, numbers: &mut Numbers) -> Result<Self, Error> {
        let mut table = Self::default();
        table.add_place(0, Vec::new(), "/", numbers);
        for spec in specs {
            table.add(spec, numbers)?;
        }
        numbers.keep().map_err(|e| Error::because(libc::EIO, format!("the numbers of exports: {e}")))?;
        for export in table.exports.clone() {
            table.add_crossing(&export)?;
        }
        Ok(table)
    }

    /// Records the crossing into `export` from the export around it.
    fn add_crossing(&mut self, export: &Arc<Export>) -> Result<(), Error> {
        let mut at = self.place_of(export);
        let around = loop {
            if at == 0 {
                return Ok(());
            }
            at = self.places[at].parent;
            if let Some(around) = &self.places[at].export {
                break around.clone();
            }
        };
        match &export.covers {
            Some(covers) if covers.export == around.path => {
                let crossings = self.crossings.entry(around.number).or_default();
                crossings.insert(covers.dir.clone(), export.clone());
                Ok(())
            }
            _ => Err(invalid(format!(
                "{} and {} inside it are both exported, and clients cannot reach the inner one: export one of them",
                around.path, export.path
            ))),
        }
    }

    /// The export over a directory of `from`.
    pub fn crossing(&self, from: &Export, dir: &Fh) -> Option<&Arc<Export>> {
        self.crossings.get(&from.number)?.get(dir)
    }

    /// Whether other exports lie over directories of this one.
    pub fn has_crossings(&self, from: &Export) -> bool {
        self.crossings.contains_key(&from.number)
    }

    /// The export around `inside`, and its directory over which `inside` lies.
    pub fn around<'a>(&'a self, inside: &'a Export) -> Option<(&'a Arc<Export>, &'a Fh)> {
        let covers = inside.covers.as_ref()?;
        self.exports.iter().find(|export| export.path == covers.export).map(|export| (export, &covers.dir))
    }

    fn add(&mut self, spec: ExportSpec, numbers: &mut Numbers) -> Result<(), Error> {
        if !spec.path.starts_with('/') {
            return Err(invalid(format!("export {}: the path must begin with /", spec.path)));
        }
        let (mut at, mut path) = (0, String::new());
        for name in spec.path.split('/').filter(|n| !n.is_empty()) {
            if name == "." || name == ".." {
                return Err(invalid(format!("export {}: '.' and '..' have no place in the path", spec.path)));
            }
            path.push('/');
            path.push_str(name);
            at = match self.places[at].children.get(name.as_bytes()) {
                Some(child) => *child,
                None => self.add_place(at, name.as_bytes().to_vec(), &path, numbers),
            };
        }
        if path.is_empty() {
            path.push('/');
        }
        let number = numbers.of(&path);
        let export = Arc::new(Export {
            number,
            path,
            aliases: spec.aliases,
            vfs: spec.vfs,
            admit: spec.admit,
            extra: spec.extra,
            epoch: spec.epoch,
            others: spec.others,
            covers: spec.covers,
            root: Mutex::new(None),
        });
        if self.places[at].export.replace(export.clone()).is_some() {
            return Err(invalid(format!("{} is exported twice", export.path)));
        }
        self.place_of_export.insert(number, at);
        self.by_number.insert(number, export.clone());
        self.exports.push(export);
        Ok(())
    }

    fn add_place(&mut self, parent: usize, name: Vec<u8>, path: &str, numbers: &mut Numbers) -> usize {
        let at = self.places.len();
        let number = numbers.of(path);
        self.places.push(Above {
            number,
            parent,
            name: name.clone(),
            children: BTreeMap::new(),
            export: None,
        });
        self.place_by_number.insert(number, at);
        if at != parent {
            self.places[parent].children.insert(name, at);
        }
        at
    }

    /// All exports.
    pub fn exports(&self) -> &[Arc<Export>] {
        &self.exports
    }

    /// The export with this number.
    pub fn export(&self, number: u32) -> Option<&Arc<Export>> {
        self.by_number.get(&number)
    }

    /// Whether this table has an export with the same number and the same `Vfs`. `export` may come
    /// from an earlier table.
    pub fn serves(&self, export: &Export) -> bool {
        let now = self.export(export.number);
        now.is_some_and(|now| std::ptr::addr_eq(Arc::as_ptr(&now.vfs), Arc::as_ptr(&export.vfs)))
    }

    /// A place by its index.
    pub fn place(&self, at: usize) -> &Above {
        &self.places[at]
    }

    /// Index of the place with this number.
    pub fn place_numbered(&self, number: u32) -> Option<usize> {
        self.place_by_number.get(&number).copied()
    }

    /// Index of the place at which an export begins.
    pub fn place_of(&self, export: &Export) -> usize {
        self.place_of_export.get(&export.number).copied().unwrap_or(0)
    }

    /// Whether a client may see a place: the place leads to an export that the client may use.
    pub fn is_visible(&self, at: usize, client: &Peer) -> bool {
        let place = &self.places[at];
        place.export.as_ref().is_some_and(|e| e.rights(client).is_some())
            || place.children.values().any(|c| self.is_visible(*c, client))
    }

    /// The innermost export that contains a path, and the names from the export's root to the path.
    pub fn find(&self, path: &[u8]) -> Option<(&Arc<Export>, Vec<Name>)> {
        let wanted: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|n| !n.is_empty()).collect();
        let below = |of: &str| {
            let mut names = wanted.iter();
            of.split('/')
                .filter(|n| !n.is_empty())
                .all(|n| names.next() == Some(&n.as_bytes()))
                .then(|| names.copied().collect::<Vec<_>>())
        };
        let candidates =
            self.exports.iter().flat_map(|e| std::iter::once(&e.path).chain(&e.aliases).map(move |p| (e, p)));
        let mut found: Vec<(&Arc<Export>, Vec<&[u8]>)> =
            candidates.filter_map(|(e, p)| Some((e, below(p)?))).collect();
        found.sort_by_key(|(_, names)| names.len());
        let (export, names) = found.into_iter().next()?;
        let names = names.into_iter().map(|n| Name::new(bytes::Bytes::copy_from_slice(n)));
        Some((export, names.collect::<Result<_, _>>().ok()?))
    }
}

fn invalid(why: String) -> Error {
    Error::because(libc::EINVAL, why)
}
