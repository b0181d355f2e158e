//! A small NFSv3 server on the simulated network: files, directories, and a script that may replace
//! any reply.

use crate::v3::V3;
use crate::{Options, testing};
use bytes::Bytes;
use hither_proto::nfs3::*;
use hither_proto::rpc::{AuthSys, CallHeader, OpaqueAuth, reply};
use hither_proto::xdr::{Chain, Enc, Opaque, Xdr};
use hither_rpc::{Client, ClientConfig, Mode, RetryPolicy, Stats, sim};
use hither_vfs::{Cred, Env, Fh, Name, RequestContext};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The script's reply to a call.
#[allow(clippy::large_enum_variant)] // one at a time
pub(crate) enum Act {
    /// The server's own reply.
    Serve,
    /// This reply.
    Say(Reply3),
    /// No reply.
    Ignore,
    /// The server's own execution, but the reply is lost.
    ServeAndLose,
    /// These bytes as results.
    Bytes(Bytes),
}

type Script = Box<dyn FnMut(&Call3, usize) -> Act + Send>;

pub(crate) struct Server {
    pub net: sim::Net,
    state: Mutex<State>,
}

struct State {
    script: Script,
    /// Names of the procedures called, with their xids and users.
    calls: Vec<Received>,
    /// By path from the root, which is also each object's filehandle.
    objects: BTreeMap<Bytes, Object>,
    boot: u64,
    clock: u32,
    bare: bool,
    unstable: bool,
    case_insensitive: Option<bool>,
    torn: bool,
    mode: u32,
}

struct Object {
    kind: Ftype3,
    data: Vec<u8>,
    changed: u32,
    atime: Nfstime3,
    /// The modification time of a creation, until a change.
    mtime: Option<Nfstime3>,
}

/// A time that a client sets.
fn given(time: SetTime) -> Option<Nfstime3> {
    match time {
        SetTime::ToClientTime(time) => Some(time),
        _ => None,
    }
}

/// A call that arrived.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub proc: Proc3,
    pub xid: u32,
    pub auth: Option<AuthSys>,
}

pub(crate) const ROOT: &[u8] = b"root";

impl Server {
    pub fn new() -> Arc<Self> {
        let state = State {
            script: Box::new(|_, _| Act::Serve),
            calls: Vec::new(),
            objects: BTreeMap::new(),
            boot: 1,
            clock: 1,
            bare: false,
            unstable: true,
            case_insensitive: Some(false),
            torn: false,
            mode: 0o755,
        };
        let root = Object {
            kind: Ftype3::DIR,
            data: Vec::new(),
            changed: 1,
            atime: Nfstime3::default(),
            mtime: None,
        };
        let state = State { objects: [(Bytes::from_static(ROOT), root)].into(), ..state };
        let net = sim::Net::new(7, sim::Conditions::default());
        let server = Arc::new(Self { net: net.clone(), state: Mutex::new(state) });
        let answering = Arc::downgrade(&server);
        net.answer(move |_, header, args| {
            let server = answering.upgrade();
            async move { server?.answer(header, &args) }
        });
        server
    }

    /// Calls `script` for each further call, with the number of calls of the same procedure so far.
    pub fn script(&self, script: impl FnMut(&Call3, usize) -> Act + Send + 'static) {
        let mut s = self.state.lock();
        s.script = Box::new(script);
        s.calls.clear();
    }

    /// Omits all optional attributes and filehandles.
    pub fn bare(&self) {
        self.state.lock().bare = true;
    }

    /// Answers every WRITE with FILE_SYNC.
    pub fn write_through(&self) {
        self.state.lock().unstable = false;
    }

    /// The case insensitivity in PATHCONF; `None` refuses PATHCONF.
    pub fn case_insensitive(&self, yes: Option<bool>) {
        self.state.lock().case_insensitive = yes;
    }

    /// Changes each file and directory between the read of its contents and the read of its
    /// attributes.
    pub fn torn(&self, torn: bool) {
        self.state.lock().torn = torn;
    }

    /// Sets the mode of all objects. The server does not check it.
    pub fn mode(&self, mode: u32) {
        self.state.lock().mode = mode;
    }

    /// Changes the write verifier. The files lose the bytes that `lose` removes.
    pub fn restart(&self, lose: impl Fn(&mut Vec<u8>)) {
        let mut s = self.state.lock();
        s.boot += 1;
        s.objects.values_mut().for_each(|o| lose(&mut o.data));
    }

    pub fn received(&self) -> Vec<Received> {
        self.state.lock().calls.clone()
    }

    /// Procedures called since the script was set, by name.
    pub fn called(&self) -> Vec<&'static str> {
        self.state.lock().calls.iter().filter_map(|c| c.proc.name()).collect()
    }

    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.state.lock().objects.get(name.as_bytes()).map(|o| o.data.clone())
    }

    /// Creates or changes a file as another client. `path` is relative to the root.
    pub fn put(&self, path: &str, content: &[u8]) {
        self.state.lock().put(Bytes::copy_from_slice(path.as_bytes()), Ftype3::REG, content);
    }

    /// Creates a directory or another object without contents.
    pub fn put_kind(&self, path: &str, kind: Ftype3) {
        self.state.lock().put(Bytes::copy_from_slice(path.as_bytes()), kind, &[]);
    }

    fn answer(&self, header: CallHeader, args: &Bytes) -> Option<Enc> {
        let mut s = self.state.lock();
        let proc = Proc3(header.proc);
        let call = Call3::decode(proc, args).expect("our own calls are well-formed")?;
        let auth = OpaqueAuth::as_sys(&header.cred).ok().flatten();
        s.calls.push(Received { proc, xid: header.xid, auth });
        let number = s.calls.iter().filter(|c| c.proc == proc).count();
        let act = (s.script)(&call, number);
        let said = match act {
            Act::Serve => s.serve(call),
            Act::Say(said) => said,
            Act::Ignore => return None,
            Act::ServeAndLose => {
                s.serve(call);
                return None;
            }
            Act::Bytes(bytes) => {
                let mut e = Enc::new();
                e.raw(&bytes);
                return Some(reply(header.xid, e));
            }
        };
        let mut e = Enc::new();
        said.encode(&mut e);
        Some(reply(header.xid, e))
    }
}

/// The path of a name in the directory with this handle.
fn path(what: &Diropargs3) -> Bytes {
    match &what.dir[..] {
        dir if &what.name[..] == b".." => Bytes::copy_from_slice(parent(dir)),
        ROOT => what.name.0.clone(),
        dir => [dir, b"/", &what.name].concat().into(),
    }
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(ROOT, |slash| &path[..slash])
}

impl State {
    fn touch(&mut self, fh: &[u8]) {
        self.clock += 1;
        let clock = self.clock;
        if let Some(o) = self.objects.get_mut(fh) {
            (o.changed, o.mtime) = (clock, None);
        }
    }

    fn put(&mut self, path: Bytes, kind: Ftype3, content: &[u8]) {
        let atime = Nfstime3::default();
        let object = Object { kind, data: content.to_vec(), changed: 0, atime, mtime: None };
        if self.objects.insert(path.clone(), object).is_none() {
            self.touch(parent(&path));
        }
        self.touch(&path);
    }

    fn children(&self, dir: &[u8]) -> Vec<Bytes> {
        self.objects.keys().filter(|p| &p[..] != ROOT && parent(p) == dir).cloned().collect()
    }

    fn attr(&self, fh: &[u8]) -> Option<Fattr3> {
        let object = self.objects.get(fh)?;
        let size = match object.kind {
            // The size of a server that counts entries.
            Ftype3::DIR => 32 * self.children(fh).len() as u64,
            _ => object.data.len() as u64,
        };
        let t = Nfstime3 { seconds: object.changed, nseconds: 0 };
        let ftype = object.kind;
        Some(Fattr3 {
            ftype,
            mode: self.mode,
            nlink: 1,
            size,
            fileid: 1,
            atime: object.atime,
            mtime: object.mtime.unwrap_or(t),
            ctime: t,
            ..Fattr3::default()
        })
    }

    fn came(&self, fh: &[u8]) -> PostOpAttr {
        if self.bare { None } else { self.attr(fh) }
    }

    fn wcc(&self, fh: &[u8]) -> WccData {
        WccData { before: None, after: self.came(fh) }
    }

    fn created(&mut self, what: &Diropargs3, kind: Ftype3) -> CreateRes {
        let path = path(what);
        if self.objects.contains_key(&path) {
            return Res::Err(Nfsstat3::EXIST, WccData::default());
        }
        self.put(path.clone(), kind, &[]);
        Res::Ok(CreateOk {
            obj: (!self.bare).then(|| Opaque(path.clone())),
            obj_attributes: self.came(&path),
            dir_wcc: self.wcc(&what.dir),
        })
    }

    /// All entries from the cookie on that fit in the reply.
    fn readdirplus(&mut self, a: &ReaddirplusArgs) -> Reply3 {
        let all = self.children(&a.dir);
        let fit = (a.maxcount / 200) as usize;
        let entries: Vec<_> = all.iter().enumerate().skip(a.cookie as usize).take(fit).collect();
        let eof = a.cookie as usize + entries.len() == all.len();
        let entry = |(i, path): (usize, &Bytes)| Entryplus3 {
            fileid: 1,
            name: Opaque(path.slice(path.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1)..)),
            cookie: i as u64 + 1,
            name_attributes: self.came(path),
            name_handle: (!self.bare).then(|| Opaque(path.clone())),
        };
        let entries = Chain(entries.into_iter().map(entry).collect());
        if self.torn {
            self.touch(&a.dir);
        }
        let dir_attributes = self.came(&a.dir);
        Reply3::Readdirplus(Res::Ok(ReaddirplusOk { dir_attributes, cookieverf: [0; 8], entries, eof }))
    }

    fn pathconf(&self) -> Reply3 {
        Reply3::Pathconf(match self.case_insensitive {
            None => Res::Err(Nfsstat3::NOTSUPP, None),
            Some(case_insensitive) => Res::Ok(PathconfOk {
                obj_attributes: None,
                linkmax: 1000,
                name_max: 255,
                no_trunc: true,
                chown_restricted: true,
                case_insensitive,
                case_preserving: true,
            }),
        })
    }

    fn serve(&mut self, call: Call3) -> Reply3 {
        let boot = self.boot.to_be_bytes();
        match call {
            Call3::Getattr(a) => Reply3::Getattr(match self.attr(&a.object) {
                Some(attr) => Res::Ok(attr),
                None => Res::Err(Nfsstat3::STALE, ()),
            }),
            Call3::Setattr(a) => {
                if let (Some(size), Some(f)) = (a.new_attributes.size, self.objects.get_mut(&a.object.0)) {
                    f.data.resize(size as usize, 0);
                }
                if let (Some(time), Some(f)) =
                    (given(a.new_attributes.atime), self.objects.get_mut(&a.object.0))
                {
                    f.atime = time;
                }
                self.touch(&a.object);
                Reply3::Setattr(Res::Ok(self.wcc(&a.object)))
            }
            Call3::Lookup(a) => Reply3::Lookup(match path(&a.what) {
                object if self.objects.contains_key(&object) => Res::Ok(LookupOk {
                    obj_attributes: self.came(&object),
                    object: Opaque(object),
                    dir_attributes: self.came(&a.what.dir),
                }),
                _ => Res::Err(Nfsstat3::NOENT, self.came(&a.what.dir)),
            }),
            Call3::Access(a) => {
                Reply3::Access(Res::Ok(AccessOk { obj_attributes: self.came(&a.object), access: a.access }))
            }
            Call3::Read(a) => self.read(a),
            Call3::Write(a) => self.write(a, boot),
            Call3::Create(a) => {
                let mut created = self.created(&a.r#where, Ftype3::REG);
                if let (Createhow3::Guarded(set), Res::Ok(ok)) = (&a.how, &mut created)
                    && let (Some(time), Some(f)) = (given(set.atime), self.objects.get_mut(&path(&a.r#where)))
                {
                    (f.atime, f.mtime) = (time, given(set.mtime));
                    if let Some(attr) = &mut ok.obj_attributes {
                        attr.atime = time;
                    }
                }
                Reply3::Create(created)
            }
            Call3::Mkdir(a) => Reply3::Mkdir(self.created(&a.r#where, Ftype3::DIR)),
            Call3::Remove(a) => Reply3::Remove(match self.objects.remove(&path(&a.object)) {
                Some(_) => {
                    self.touch(&a.object.dir);
                    Res::Ok(self.wcc(&a.object.dir))
                }
                None => Res::Err(Nfsstat3::NOENT, WccData::default()),
            }),
            Call3::Rename(a) => {
                let moved = self.objects.remove(&path(&a.from));
                let found = moved.is_some();
                if let Some(o) = moved {
                    self.put(path(&a.to), o.kind, &o.data);
                    self.touch(&a.from.dir);
                }
                let (fromdir_wcc, todir_wcc) = (self.wcc(&a.from.dir), self.wcc(&a.to.dir));
                let both = RenameWcc { fromdir_wcc, todir_wcc };
                Reply3::Rename(if found { Res::Ok(both) } else { Res::Err(Nfsstat3::NOENT, both) })
            }
            Call3::Readdirplus(a) => self.readdirplus(&a),
            Call3::Commit(a) => Reply3::Commit(Res::Ok(CommitOk { file_wcc: self.wcc(&a.file), verf: boot })),
            Call3::Fsinfo(_) => Reply3::Fsinfo(Res::Ok(FsinfoOk {
                obj_attributes: None,
                rtmax: 1 << 20,
                rtpref: 4096,
                rtmult: 1,
                wtmax: 1 << 20,
                wtpref: 4096,
                wtmult: 1,
                dtpref: 4096,
                maxfilesize: 1 << 40,
                time_delta: Nfstime3::default(),
                properties: 0x1b,
            })),
            Call3::Pathconf(_) => self.pathconf(),
            Call3::Readdir(_) => Reply3::Readdir(Res::Ok(ReaddirOk {
                dir_attributes: None,
                cookieverf: [0; 8],
                entries: Chain(Vec::new()),
                eof: true,
            })),
            call => panic!("no test needs {:?}", call.procedure()),
        }
    }

    fn read(&mut self, a: ReadArgs) -> Reply3 {
        let file = self.objects.get(&a.file.0).map(|o| o.data.clone()).unwrap_or_default();
        let from = file.len().min(a.offset as usize);
        let to = file.len().min(from + a.count as usize);
        if self.torn {
            self.touch(&a.file);
        }
        Reply3::Read(Res::Ok(ReadOk {
            file_attributes: self.came(&a.file),
            count: (to - from) as u32,
            eof: to == file.len(),
            data: Opaque::copy(&file[from..to]),
        }))
    }

    fn write(&mut self, a: WriteArgs, boot: [u8; 8]) -> Reply3 {
        let Some(Object { data: file, .. }) = self.objects.get_mut(&a.file.0) else {
            return Reply3::Write(Res::Err(Nfsstat3::STALE, WccData::default()));
        };
        let end = a.offset as usize + a.data.len();
        file.resize(file.len().max(end), 0);
        file[a.offset as usize..end].copy_from_slice(&a.data);
        self.touch(&a.file);
        let committed = if self.unstable { a.stable } else { StableHow::FILE_SYNC };
        let file_wcc = self.wcc(&a.file);
        Reply3::Write(Res::Ok(WriteOk { file_wcc, count: a.count, committed, verf: boot }))
    }
}

/// A mount of the server.
pub(crate) async fn mount(server: &Arc<Server>, mode: Mode, change: impl FnOnce(&mut Options)) -> V3 {
    let mut opts = testing::options();
    change(&mut opts);
    let stats = Arc::new(Stats::new());
    let policy = RetryPolicy { timeo: Duration::from_secs(10), retrans: 2, mode };
    let cfg = ClientConfig { policy, seed: 1, ..ClientConfig::default() };
    let client = Client::new(server.net.connector(), cfg, stats.clone());
    let next = AtomicU64::new(1);
    let env = Env {
        random: Arc::new(move || next.fetch_add(1, Ordering::Relaxed)),
        wall: Arc::new(|| std::time::UNIX_EPOCH),
    };
    let root = Fh(Bytes::from_static(ROOT));
    V3::begin(&opts, &env, client, stats, root, None, Bytes::from_static(b"client"))
        .await
        .expect("the simulated server can be mounted")
}

pub(crate) fn root() -> Fh {
    Fh(Bytes::from_static(ROOT))
}

pub(crate) fn cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

pub(crate) fn name(s: &str) -> Name {
    Name::new(s.to_owned()).unwrap()
}

/// The encoding of `values`, for malformed replies.
pub(crate) fn wire(values: &[u32]) -> Bytes {
    let mut e = Enc::new();
    values.iter().for_each(|v| v.enc(&mut e));
    e.to_bytes()
}
