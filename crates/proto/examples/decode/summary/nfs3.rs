//! Summaries of NFSv3 messages.

use super::{ACCESS_SHOWN, Fields};
use hither_proto::nfs3::*;

pub fn call(f: &mut Fields, call: &Call3) {
    match call {
        Call3::Null(_) => {}
        Call3::Getattr(a) => fh(f, &a.object),
        Call3::Setattr(a) => {
            fh(f, &a.object);
            sattr(f, &a.new_attributes);
            f.flag("nfs.sattrguard3", a.guard.is_some());
            if let Some(t) = &a.guard {
                time(f, CTIME, t);
            }
        }
        Call3::Lookup(a) => dirop(f, &a.what),
        Call3::Access(a) => {
            fh(f, &a.object);
            f.num("nfs.access_check", a.access & ACCESS_SHOWN);
        }
        Call3::Readlink(a) => fh(f, &a.symlink),
        Call3::Read(a) => range(f, &a.file, a.offset, a.count),
        Call3::Write(a) => {
            range(f, &a.file, a.offset, a.count);
            f.num("nfs.write.stable", a.stable.0);
            f.hex("nfs.data", &a.data);
        }
        Call3::Create(a) => {
            dirop(f, &a.r#where);
            f.num("nfs.createmode", a.how.discriminant());
            match &a.how {
                Createhow3::Unchecked(s) | Createhow3::Guarded(s) => sattr(f, s),
                Createhow3::Exclusive(verf) => f.hex("nfs.verifier", verf),
            }
        }
        Call3::Mkdir(a) => {
            dirop(f, &a.r#where);
            sattr(f, &a.attributes);
        }
        Call3::Symlink(a) => {
            dirop(f, &a.r#where);
            sattr(f, &a.symlink_attributes);
            f.text("nfs.symlink.to", &a.symlink_data);
        }
        Call3::Mknod(a) => {
            dirop(f, &a.r#where);
            f.num("nfs.type", a.what.discriminant());
            match &a.what {
                Mknoddata3::Blk(d) | Mknoddata3::Chr(d) => {
                    sattr(f, &d.dev_attributes);
                    specdata(f, &d.spec);
                }
                Mknoddata3::Sock(s) | Mknoddata3::Fifo(s) => sattr(f, s),
                Mknoddata3::Other(_) => {}
            }
        }
        Call3::Remove(a) => dirop(f, &a.object),
        Call3::Rmdir(a) => dirop(f, &a.object),
        Call3::Rename(a) => {
            dirop(f, &a.from);
            dirop(f, &a.to);
        }
        Call3::Link(a) => {
            fh(f, &a.file);
            dirop(f, &a.link);
        }
        Call3::Readdir(a) => {
            fh(f, &a.dir);
            f.num("nfs.cookie3", a.cookie);
            f.hex("nfs.verifier", &a.cookieverf);
            f.num("nfs.count3", a.count);
        }
        Call3::Readdirplus(a) => {
            fh(f, &a.dir);
            f.num("nfs.cookie3", a.cookie);
            f.hex("nfs.verifier", &a.cookieverf);
            f.num("nfs.count3_dircount", a.dircount);
            f.num("nfs.count3_maxcount", a.maxcount);
        }
        Call3::Fsstat(a) => fh(f, &a.fsroot),
        Call3::Fsinfo(a) => fh(f, &a.fsroot),
        Call3::Pathconf(a) => fh(f, &a.object),
        Call3::Commit(a) => range(f, &a.file, a.offset, a.count),
    }
}

pub fn reply(f: &mut Fields, reply: &Reply3) {
    match reply {
        Reply3::Null(()) => {}
        Reply3::Getattr(r) => res(f, r, fattr, |_, ()| {}),
        Reply3::Setattr(r) => res(f, r, wcc, wcc),
        Reply3::Lookup(r) => res(f, r, lookup, post_op),
        Reply3::Access(r) => res(f, r, access, post_op),
        Reply3::Readlink(r) => res(f, r, readlink, post_op),
        Reply3::Read(r) => res(f, r, read, post_op),
        Reply3::Write(r) => res(f, r, write, wcc),
        Reply3::Create(r) | Reply3::Mkdir(r) | Reply3::Symlink(r) | Reply3::Mknod(r) => {
            res(f, r, create, wcc)
        }
        Reply3::Remove(r) | Reply3::Rmdir(r) => res(f, r, wcc, wcc),
        Reply3::Rename(r) => res(f, r, rename, rename),
        Reply3::Link(r) => res(f, r, link, link),
        Reply3::Readdir(r) => res(f, r, readdir, post_op),
        Reply3::Readdirplus(r) => res(f, r, readdirplus, post_op),
        Reply3::Fsstat(r) => res(f, r, fsstat, post_op),
        Reply3::Fsinfo(r) => res(f, r, fsinfo, post_op),
        Reply3::Pathconf(r) => res(f, r, pathconf, post_op),
        Reply3::Commit(r) => res(f, r, commit, wcc),
    }
}

fn res<T, F>(f: &mut Fields, r: &Res<T, F>, ok: fn(&mut Fields, &T), failed: fn(&mut Fields, &F)) {
    f.num("nfs.status3", r.status().0);
    match r {
        Res::Ok(v) => ok(f, v),
        Res::Err(_, v) => failed(f, v),
    }
}

fn lookup(f: &mut Fields, ok: &LookupOk) {
    fh(f, &ok.object);
    post_op(f, &ok.obj_attributes);
    post_op(f, &ok.dir_attributes);
}

fn access(f: &mut Fields, ok: &AccessOk) {
    post_op(f, &ok.obj_attributes);
    f.num("nfs.access_rights", ok.access & ACCESS_SHOWN);
}

fn readlink(f: &mut Fields, ok: &ReadlinkOk) {
    post_op(f, &ok.symlink_attributes);
    f.text("nfs.readlink.data", &ok.data);
}

fn read(f: &mut Fields, ok: &ReadOk) {
    post_op(f, &ok.file_attributes);
    f.num("nfs.count3", ok.count);
    f.flag("nfs.read.eof", ok.eof);
    f.hex("nfs.data", &ok.data);
}

fn write(f: &mut Fields, ok: &WriteOk) {
    wcc(f, &ok.file_wcc);
    f.num("nfs.count3", ok.count);
    f.num("nfs.write.committed", ok.committed.0);
    f.hex("nfs.verifier", &ok.verf);
}

fn create(f: &mut Fields, ok: &CreateOk) {
    post_op_fh(f, &ok.obj);
    post_op(f, &ok.obj_attributes);
    wcc(f, &ok.dir_wcc);
}

fn rename(f: &mut Fields, both: &RenameWcc) {
    wcc(f, &both.fromdir_wcc);
    wcc(f, &both.todir_wcc);
}

fn link(f: &mut Fields, both: &LinkWcc) {
    post_op(f, &both.file_attributes);
    wcc(f, &both.linkdir_wcc);
}

fn readdir(f: &mut Fields, ok: &ReaddirOk) {
    post_op(f, &ok.dir_attributes);
    f.hex("nfs.verifier", &ok.cookieverf);
    for e in ok.entries.iter() {
        f.num("nfs.readdir.entry3.fileid", e.fileid);
        f.text("nfs.readdir.entry3.name", &e.name);
        f.num("nfs.readdir.entry3.cookie", e.cookie);
    }
    f.flag("nfs.readdir.eof", ok.eof);
}

fn readdirplus(f: &mut Fields, ok: &ReaddirplusOk) {
    post_op(f, &ok.dir_attributes);
    f.hex("nfs.verifier", &ok.cookieverf);
    for e in ok.entries.iter() {
        f.num("nfs.readdirplus.entry.fileid", e.fileid);
        f.text("nfs.readdirplus.entry.name", &e.name);
        f.num("nfs.readdirplus.entry.cookie", e.cookie);
        post_op(f, &e.name_attributes);
        post_op_fh(f, &e.name_handle);
    }
    f.flag("nfs.readdir.eof", ok.eof);
}

fn fsstat(f: &mut Fields, ok: &FsstatOk) {
    post_op(f, &ok.obj_attributes);
    f.num("nfs.fsstat3_resok.tbytes", ok.tbytes);
    f.num("nfs.fsstat3_resok.fbytes", ok.fbytes);
    f.num("nfs.fsstat3_resok.abytes", ok.abytes);
    f.num("nfs.fsstat3_resok.tfiles", ok.tfiles);
    f.num("nfs.fsstat3_resok.ffiles", ok.ffiles);
    f.num("nfs.fsstat3_resok.afiles", ok.afiles);
    f.num("nfs.fsstat.invarsec", ok.invarsec);
}

fn fsinfo(f: &mut Fields, ok: &FsinfoOk) {
    post_op(f, &ok.obj_attributes);
    f.num("nfs.fsinfo.rtmax", ok.rtmax);
    f.num("nfs.fsinfo.rtpref", ok.rtpref);
    f.num("nfs.fsinfo.rtmult", ok.rtmult);
    f.num("nfs.fsinfo.wtmax", ok.wtmax);
    f.num("nfs.fsinfo.wtpref", ok.wtpref);
    f.num("nfs.fsinfo.wtmult", ok.wtmult);
    f.num("nfs.fsinfo.dtpref", ok.dtpref);
    f.num("nfs.fsinfo.maxfilesize", ok.maxfilesize);
    f.num("nfs.dtime.sec", ok.time_delta.seconds);
    f.num("nfs.dtime.nsec", ok.time_delta.nseconds);
    f.num("nfs.fsinfo.properties", ok.properties);
}

fn pathconf(f: &mut Fields, ok: &PathconfOk) {
    post_op(f, &ok.obj_attributes);
    f.num("nfs.pathconf.linkmax", ok.linkmax);
    f.num("nfs.pathconf.name_max", ok.name_max);
    f.flag("nfs.pathconf.no_trunc", ok.no_trunc);
    f.flag("nfs.pathconf.chown_restricted", ok.chown_restricted);
    f.flag("nfs.pathconf.case_insensitive", ok.case_insensitive);
    f.flag("nfs.pathconf.case_preserving", ok.case_preserving);
}

fn commit(f: &mut Fields, ok: &CommitOk) {
    wcc(f, &ok.file_wcc);
    f.hex("nfs.verifier", &ok.verf);
}

fn fh(f: &mut Fields, fh: &Fh3) {
    f.num("nfs.fh.length", fh.len());
    f.hex("nfs.fhandle", fh);
}

fn post_op_fh(f: &mut Fields, h: &PostOpFh3) {
    f.flag("nfs.handle_follow", h.is_some());
    if let Some(h) = h {
        fh(f, h);
    }
}

fn dirop(f: &mut Fields, what: &Diropargs3) {
    fh(f, &what.dir);
    f.text("nfs.name", &what.name);
}

fn range(f: &mut Fields, file: &Fh3, offset: u64, count: u32) {
    fh(f, file);
    f.num("nfs.offset3", offset);
    f.num("nfs.count3", count);
}

type TimeNames = (&'static str, &'static str);
const ATIME: TimeNames = ("nfs.atime.sec", "nfs.atime.nsec");
const MTIME: TimeNames = ("nfs.mtime.sec", "nfs.mtime.nsec");
const CTIME: TimeNames = ("nfs.ctime.sec", "nfs.ctime.nsec");

fn time(f: &mut Fields, (sec, nsec): TimeNames, t: &Nfstime3) {
    f.num(sec, t.seconds);
    f.num(nsec, t.nseconds);
}

fn specdata(f: &mut Fields, s: &Specdata3) {
    f.num("nfs.specdata1", s.specdata1);
    f.num("nfs.specdata2", s.specdata2);
}

fn fattr(f: &mut Fields, a: &Fattr3) {
    f.num("nfs.fattr3.type", a.ftype.0);
    f.num("nfs.mode3", a.mode);
    f.num("nfs.fattr3.nlink", a.nlink);
    f.num("nfs.fattr3.uid", a.uid);
    f.num("nfs.fattr3.gid", a.gid);
    f.num("nfs.fattr3.size", a.size);
    f.num("nfs.fattr3.used", a.used);
    specdata(f, &a.rdev);
    f.num("nfs.fattr3.fsid", a.fsid);
    f.num("nfs.fattr3.fileid", a.fileid);
    time(f, ATIME, &a.atime);
    time(f, MTIME, &a.mtime);
    time(f, CTIME, &a.ctime);
}

fn post_op(f: &mut Fields, a: &PostOpAttr) {
    f.flag("nfs.attributes_follow", a.is_some());
    if let Some(a) = a {
        fattr(f, a);
    }
}

fn wcc(f: &mut Fields, w: &WccData) {
    f.flag("nfs.attributes_follow", w.before.is_some());
    if let Some(before) = &w.before {
        f.num("nfs.wcc_attr.size", before.size);
        time(f, MTIME, &before.mtime);
        time(f, CTIME, &before.ctime);
    }
    post_op(f, &w.after);
}

fn sattr(f: &mut Fields, s: &Sattr3) {
    for (name, value) in [("nfs.mode3", s.mode), ("nfs.uid3", s.uid), ("nfs.gid3", s.gid)] {
        f.flag("nfs.set_it", value.is_some());
        if let Some(v) = value {
            f.num(name, v);
        }
    }
    f.flag("nfs.set_it", s.size.is_some());
    if let Some(v) = s.size {
        f.num("nfs.set_size", v);
    }
    // Wireshark 4.0 uses the name of atime for set_mtime's time too.
    for set in [&s.atime, &s.mtime] {
        f.num("nfs.set_it", set.discriminant());
        if let SetTime::ToClientTime(t) = set {
            time(f, ATIME, t);
        }
    }
}
