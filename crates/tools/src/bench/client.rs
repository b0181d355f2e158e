//! A minimal NFSv3 client: one connection, one call at a time.

use bytes::Bytes;
use futures_util::future::try_join_all;
use hither_proto::mount::MntArgs;
use hither_proto::nfs3::*;
use hither_proto::record::{self, Limits, Reader};
use hither_proto::rpc::{self, AuthSys, Message, OpaqueAuth, Procedure};
use hither_proto::xdr::{Dec, Enc, List, Opaque};
use hither_rpc::{Connect, Endpoint, Link, TcpConnect};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longest wait for a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a directory listing in one reply.
const LISTING_BYTES: u32 = 64 << 10;

/// The addresses and the path of the measured export.
pub struct BenchExport {
    /// Address of the NFS service.
    pub nfs: SocketAddr,
    /// Address of the MOUNT service.
    pub mount: SocketAddr,
    /// Path of the export.
    pub path: String,
}

/// A connection to the server.
pub struct Conn {
    link: Link,
    records: Reader,
    cred: OpaqueAuth,
    xid: u32,
}

/// The filehandle of the export's root.
pub async fn root(place: &BenchExport) -> io::Result<Fh3> {
    let mut conn = Conn::open(place.mount).await?;
    let granted = conn.call(&MntArgs { dirpath: Opaque::copy(place.path.as_bytes()) }).await?.into_result();
    let granted = granted.map_err(|s| io::Error::other(format!("the server refuses the mount: {s:?}")))?;
    Ok(Opaque(granted.fhandle.0))
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

fn good<T, F>(what: &str, res: Res<T, F>) -> io::Result<T> {
    res.into_result().map_err(|(status, _)| io::Error::other(format!("{what}: {status:?}")))
}

/// A name in a directory.
pub fn entry(dir: &Fh3, name: &str) -> Diropargs3 {
    Diropargs3 { dir: dir.clone(), name: Opaque::copy(name.as_bytes()) }
}

impl Conn {
    /// Connects, from a privileged port if possible.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        let endpoint = |resvport| Endpoint { addr, resvport, keepalive: true, connect_timeout: PATIENCE };
        let resvport = rustix::process::geteuid().is_root();
        let link = TcpConnect::new(endpoint(resvport)).connect(None).await?;
        let sys = AuthSys {
            stamp: 0,
            machinename: Opaque::copy(b"hither-bench"),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            gids: List(Vec::new()),
        };
        let records = Reader::new(Limits::default());
        // Servers recognise retransmissions by address and xid.
        Ok(Self { link, records, cred: OpaqueAuth::sys(&sys), xid: rand::random() })
    }

    /// Opens several connections one after another, because a server may refuse many at once.
    pub async fn open_many(addr: SocketAddr, count: usize) -> io::Result<Vec<Self>> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            all.push(Self::open(addr).await?);
        }
        Ok(all)
    }

    /// Calls a procedure and waits for its results.
    pub async fn call<P: Procedure>(&mut self, args: &P) -> io::Result<P::Reply> {
        self.xid = self.xid.wrapping_add(1);
        let message = rpc::call(self.xid, P::PROG, P::VERS, P::PROC, &self.cred, Enc::of(args));
        self.link.writer.write_all(&record::frame(message).concat()).await?;
        self.link.writer.flush().await?;
        loop {
            while let Some(record) = self.records.next_record().map_err(|e| wrong(e.to_string()))? {
                let message = Message::decode(&record).map_err(|e| wrong(e.to_string()))?;
                let Message::Reply(header, body) = message else { continue };
                if header.xid != self.xid {
                    continue;
                }
                if !header.is_success() {
                    return Err(wrong(format!("{}: {:?}", P::NAME, header.body)));
                }
                let mut dec = Dec::new(&body);
                return hither_proto::xdr::Xdr::dec(&mut dec).map_err(|e| wrong(e.to_string()));
            }
            if self.link.reader.read_buf(&mut self.records.space()).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Makes a directory.
    pub async fn mkdir(&mut self, dir: &Fh3, name: &str) -> io::Result<Fh3> {
        let attributes = Sattr3 { mode: Some(0o755), ..Sattr3::default() };
        let made = self.call(&MkdirArgs { r#where: entry(dir, name), attributes }).await?;
        match good(name, made)?.obj {
            Some(fh) => Ok(fh),
            None => self.lookup(dir, name).await,
        }
    }

    /// Makes an empty file.
    pub async fn create(&mut self, dir: &Fh3, name: &str) -> io::Result<Fh3> {
        let sattr = Sattr3 { mode: Some(0o644), ..Sattr3::default() };
        let made =
            self.call(&CreateArgs { r#where: entry(dir, name), how: Createhow3::Unchecked(sattr) }).await?;
        match good(name, made)?.obj {
            Some(fh) => Ok(fh),
            None => self.lookup(dir, name).await,
        }
    }

    /// Makes a symbolic link.
    pub async fn symlink(&mut self, dir: &Fh3, name: &str, target: &str) -> io::Result<Fh3> {
        let args = SymlinkArgs {
            r#where: entry(dir, name),
            symlink_attributes: Sattr3::default(),
            symlink_data: Opaque::copy(target.as_bytes()),
        };
        let made = self.call(&args).await?;
        match good(name, made)?.obj {
            Some(fh) => Ok(fh),
            None => self.lookup(dir, name).await,
        }
    }

    /// Handle of a name.
    pub async fn lookup(&mut self, dir: &Fh3, name: &str) -> io::Result<Fh3> {
        Ok(good(name, self.call(&LookupArgs { what: entry(dir, name) }).await?)?.object)
    }

    /// Writes all of the data.
    pub async fn write(
        &mut self,
        file: &Fh3,
        offset: u64,
        data: &Bytes,
        stable: StableHow,
    ) -> io::Result<()> {
        let args = WriteArgs {
            file: file.clone(),
            offset,
            count: data.len() as u32,
            stable,
            data: Opaque(data.clone()),
        };
        let wrote = good("WRITE", self.call(&args).await?)?;
        let enough = wrote.count as usize == data.len() && wrote.committed.0 >= stable.0;
        if enough { Ok(()) } else { Err(wrong("the server wrote only a part of a WRITE")) }
    }

    /// Commits the file's written data to stable storage.
    pub async fn commit(&mut self, file: &Fh3) -> io::Result<()> {
        good("COMMIT", self.call(&CommitArgs { file: file.clone(), offset: 0, count: 0 }).await?).map(drop)
    }

    /// Removes a file.
    pub async fn remove(&mut self, dir: &Fh3, name: &str) -> io::Result<()> {
        good(name, self.call(&RemoveArgs { object: entry(dir, name) }).await?).map(drop)
    }

    /// Renames an entry within a directory.
    pub async fn rename(&mut self, dir: &Fh3, old: &str, new: &str) -> io::Result<()> {
        let args = RenameArgs { from: entry(dir, old), to: entry(dir, new) };
        good(old, self.call(&args).await?).map(drop)
    }

    /// Sets the permission bits.
    pub async fn chmod(&mut self, file: &Fh3, mode: u32) -> io::Result<()> {
        let new_attributes = Sattr3 { mode: Some(mode), ..Sattr3::default() };
        let args = SetattrArgs { object: file.clone(), new_attributes, guard: None };
        good("SETATTR", self.call(&args).await?).map(drop)
    }

    /// Removes a directory.
    pub async fn rmdir(&mut self, dir: &Fh3, name: &str) -> io::Result<()> {
        good(name, self.call(&RmdirArgs { object: entry(dir, name) }).await?).map(drop)
    }

    /// Some names in a directory; none if it is empty.
    pub async fn names(&mut self, dir: &Fh3) -> io::Result<Vec<String>> {
        let (mut cookie, mut cookieverf) = (0, [0; 8]);
        loop {
            let args = ReaddirArgs { dir: dir.clone(), cookie, cookieverf, count: LISTING_BYTES };
            let page = good("READDIR", self.call(&args).await?)?;
            let before = cookie;
            let mut names = Vec::new();
            for e in &page.entries.0 {
                cookie = e.cookie;
                let name = String::from_utf8_lossy(&e.name.0).into_owned();
                if name != "." && name != ".." {
                    names.push(name);
                }
            }
            cookieverf = page.cookieverf;
            if !names.is_empty() || page.eof || cookie == before {
                return Ok(names);
            }
        }
    }
}

/// Removes the entries of a directory, with everything in them. Several connections share the work,
/// because a server may make each removal durable.
pub async fn clear(conns: &mut [Conn], dir: &Fh3) -> io::Result<()> {
    let mut open = vec![(dir.clone(), None::<(Fh3, String)>)];
    while let Some((here, _)) = open.last().cloned() {
        let names = conns[0].names(&here).await?;
        let shares = names.chunks(names.len().div_ceil(conns.len()).max(1));
        let removals = conns.iter_mut().zip(shares).map(|(conn, share)| remove_files(conn, &here, share));
        let dirs = try_join_all(removals).await?;
        for name in dirs.into_iter().flatten() {
            let fh = conns[0].lookup(&here, &name).await?;
            open.push((fh, Some((here.clone(), name))));
        }
        if names.is_empty()
            && let Some((_, Some((above, name)))) = open.pop()
        {
            conns[0].rmdir(&above, &name).await?;
        }
    }
    Ok(())
}

/// Removes files. Returns the names that are directories.
async fn remove_files(conn: &mut Conn, dir: &Fh3, names: &[String]) -> io::Result<Vec<String>> {
    let mut dirs = Vec::new();
    for name in names {
        let removed = conn.call(&RemoveArgs { object: entry(dir, name) }).await?.status();
        if matches!(removed, Nfsstat3::ISDIR | Nfsstat3::PERM | Nfsstat3::INVAL) {
            dirs.push(name.clone());
        }
    }
    Ok(dirs)
}
