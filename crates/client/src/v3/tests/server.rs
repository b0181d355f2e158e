//! A small NFSv3 server on the simulated network: one directory of files, and a script that may answer
//! any call in another way.

use crate::v3::V3;
use crate::{Options, testing};
use bytes::Bytes;
use hither_proto::nfs3::*;
use hither_proto::rpc::{AuthSys, CallHeader, OpaqueAuth, reply};
use hither_proto::xdr::{Chain, Enc, Opaque, Xdr};
use hither_rpc::{Client, ClientConfig, Mode, RetryPolicy, Stats, sim};
use hither_vfs::{Cred, Cx, Env, Fh, Name};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How the script answers a call.
#[allow(clippy::large_enum_variant)] // one at a time
pub(crate) enum Act {
    /// As the server would.
    Serve,
    /// With this.
    Say(Reply3),
    /// Never.
    Ignore,
    /// As the server would, but the answer is lost.
    ServeAndLose,
    /// With these bytes for results.
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
    files: BTreeMap<Bytes, Vec<u8>>,
    next_file: u64,
    boot: u64,
    clock: u32,
    bare: bool,
    unstable: bool,
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
            files: BTreeMap::new(),
            next_file: 0,
            boot: 1,
            clock: 1,
            bare: false,
            unstable: true,
        };
        let net = sim::Net::new(7, sim::Conditions::default());
        let server = Arc::new(Self { net: net.clone(), state: Mutex::new(state) });
        let answering = Arc::downgrade(&server);
        net.answer(move |_, header, args| {
            let server = answering.upgrade();
            async move { server?.answer(header, &args) }
        });
        server
    }

    /// From now on `script` is asked about each call, with the number of calls of the same procedure so
    /// far.
    pub fn script(&self, script: impl FnMut(&Call3, usize) -> Act + Send + 'static) {
        let mut s = self.state.lock();
        s.script = Box::new(script);
        s.calls.clear();
    }

    /// Leaves out every attribute and handle that may be left out.
    pub fn bare(&self) {
        self.state.lock().bare = true;
    }

    /// Answers every WRITE with FILE_SYNC.
    pub fn write_through(&self) {
        self.state.lock().unstable = false;
    }

    /// A new write verifier, and the files lose what `lose` takes from them.
    pub fn restart(&self, lose: impl Fn(&mut Vec<u8>)) {
        let mut s = self.state.lock();
        s.boot += 1;
        s.files.values_mut().for_each(lose);
    }

    pub fn received(&self) -> Vec<Received> {
        self.state.lock().calls.clone()
    }

    /// Procedures called since the script was set, by name.
    pub fn called(&self) -> Vec<&'static str> {
        self.state.lock().calls.iter().filter_map(|c| c.proc.name()).collect()
    }

    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.state.lock().files.get(name.as_bytes()).cloned()
    }

    pub fn put(&self, name: &str, content: &[u8]) {
        self.state.lock().files.insert(Bytes::copy_from_slice(name.as_bytes()), content.to_vec());
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

impl State {
    fn attr(&mut self, fh: &[u8]) -> Option<Fattr3> {
        self.clock += 1;
        let t = Nfstime3 { seconds: self.clock, nseconds: 0 };
        let (ftype, size) = match fh {
            ROOT => (Ftype3::DIR, 4096),
            fh => (Ftype3::REG, self.files.get(fh)?.len() as u64),
        };
        Some(Fattr3 {
            ftype,
            mode: 0o755,
            nlink: 1,
            size,
            fileid: 1,
            mtime: t,
            ctime: t,
            ..Fattr3::default()
        })
    }

    fn came(&mut self, fh: &[u8]) -> PostOpAttr {
        if self.bare { None } else { self.attr(fh) }
    }

    fn wcc(&mut self, fh: &[u8]) -> WccData {
        WccData { before: None, after: self.came(fh) }
    }

    fn created(&mut self, name: &Bytes) -> CreateRes {
        if self.files.contains_key(name) {
            return Res::Err(Nfsstat3::EXIST, WccData::default());
        }
        self.next_file += 1;
        self.files.insert(name.clone(), Vec::new());
        Res::Ok(CreateOk {
            obj: (!self.bare).then(|| Opaque(name.clone())),
            obj_attributes: self.came(name),
            dir_wcc: self.wcc(ROOT),
        })
    }

    /// A file's handle is its name, which is enough for one directory.
    fn serve(&mut self, call: Call3) -> Reply3 {
        let boot = self.boot.to_be_bytes();
        match call {
            Call3::Getattr(a) => Reply3::Getattr(match self.attr(&a.object) {
                Some(attr) => Res::Ok(attr),
                None => Res::Err(Nfsstat3::STALE, ()),
            }),
            Call3::Setattr(a) => {
                if let (Some(size), Some(f)) = (a.new_attributes.size, self.files.get_mut(&a.object.0)) {
                    f.resize(size as usize, 0);
                }
                Reply3::Setattr(Res::Ok(self.wcc(&a.object)))
            }
            Call3::Lookup(a) => Reply3::Lookup(match self.files.contains_key(&a.what.name.0) {
                true => Res::Ok(LookupOk {
                    object: Opaque(a.what.name.0.clone()),
                    obj_attributes: self.came(&a.what.name),
                    dir_attributes: self.came(ROOT),
                }),
                false => Res::Err(Nfsstat3::NOENT, self.came(ROOT)),
            }),
            Call3::Access(a) => {
                Reply3::Access(Res::Ok(AccessOk { obj_attributes: self.came(&a.object), access: a.access }))
            }
            Call3::Read(a) => self.read(a),
            Call3::Write(a) => self.write(a, boot),
            Call3::Create(a) => Reply3::Create(self.created(&a.r#where.name.0)),
            Call3::Mkdir(a) => Reply3::Mkdir(self.created(&a.r#where.name.0)),
            Call3::Remove(a) => Reply3::Remove(match self.files.remove(&a.object.name.0) {
                Some(_) => Res::Ok(self.wcc(ROOT)),
                None => Res::Err(Nfsstat3::NOENT, WccData::default()),
            }),
            Call3::Rename(a) => {
                let both = RenameWcc { fromdir_wcc: self.wcc(ROOT), todir_wcc: self.wcc(ROOT) };
                Reply3::Rename(match self.files.remove(&a.from.name.0) {
                    Some(f) => {
                        self.files.insert(a.to.name.0.clone(), f);
                        Res::Ok(both)
                    }
                    None => Res::Err(Nfsstat3::NOENT, both),
                })
            }
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
            Call3::Pathconf(_) => Reply3::Pathconf(Res::Err(Nfsstat3::NOTSUPP, None)),
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
        let file = self.files.get(&a.file.0).cloned().unwrap_or_default();
        let from = file.len().min(a.offset as usize);
        let to = file.len().min(from + a.count as usize);
        Reply3::Read(Res::Ok(ReadOk {
            file_attributes: self.came(&a.file),
            count: (to - from) as u32,
            eof: to == file.len(),
            data: Opaque::copy(&file[from..to]),
        }))
    }

    fn write(&mut self, a: WriteArgs, boot: [u8; 8]) -> Reply3 {
        let Some(file) = self.files.get_mut(&a.file.0) else {
            return Reply3::Write(Res::Err(Nfsstat3::STALE, WccData::default()));
        };
        let end = a.offset as usize + a.data.len();
        file.resize(file.len().max(end), 0);
        file[a.offset as usize..end].copy_from_slice(&a.data);
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

pub(crate) fn cx() -> Cx {
    Cx::new(Arc::new(Cred::root()))
}

pub(crate) fn name(s: &str) -> Name {
    Name::new(s.to_owned()).unwrap()
}

/// The bytes of any value, for answers that fit no type.
pub(crate) fn wire(values: &[u32]) -> Bytes {
    let mut e = Enc::new();
    values.iter().for_each(|v| v.enc(&mut e));
    e.to_bytes()
}
