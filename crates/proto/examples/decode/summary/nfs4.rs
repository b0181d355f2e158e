//! Summaries of NFSv4 compounds and operations.

use super::nfs4_attrs::{attrs, bitmap_attrs, time};
use super::{ACCESS_SHOWN, Fields};
use hither_proto::nfs4::*;

pub fn call(f: &mut Fields, call: &Call4) {
    let Call4::Compound(c) = call else { return };
    f.text("nfs.tag", &c.tag);
    f.num("nfs.minorversion", c.minorversion);
    f.num("nfs.ops.count", c.ops.len());
    for op in &c.ops {
        f.num("nfs.opcode", op.number().0);
        let _known =
            args40(f, op) || args_state(f, op) || args41(f, op) || args_layout(f, op) || args42(f, op);
    }
}

pub fn reply(f: &mut Fields, reply: &Reply4) {
    let Reply4::Compound(c) = reply else { return };
    f.num("nfs.nfsstat4", c.status.0);
    f.text("nfs.tag", &c.tag);
    f.num("nfs.ops.count", c.results.len());
    for r in c.results.iter() {
        f.num("nfs.opcode", r.number().0);
        f.num("nfs.nfsstat4", r.status().0);
        let _known = res40(f, r) || res41(f, r) || res42(f, r);
    }
}

/// Operations of NFSv4.0 on names, data and attributes.
fn args40(f: &mut Fields, op: &Op) -> bool {
    match op {
        Op::Access(bits) => f.num("nfs.access_check", bits & ACCESS_SHOWN),
        Op::Commit(a) => {
            f.num("nfs.offset4", a.offset);
            f.num("nfs.count4", a.count);
        }
        Op::Create(a) => {
            f.num("nfs.nfs_ftype4", a.objtype.discriminant());
            match &a.objtype {
                CreateType::Link(to) => f.text("nfs.symlink.linktext", to),
                CreateType::Block(s) | CreateType::Char(s) => {
                    f.num("nfs.specdata1", s.major);
                    f.num("nfs.specdata2", s.minor);
                }
                _ => {}
            }
            name(f, &a.objname);
            attrs(f, &a.createattrs);
        }
        Op::Getattr(mask) => bitmap_attrs(f, *mask),
        Op::Link(n) | Op::Lookup(n) | Op::Remove(n) | Op::Secinfo(n) => name(f, n),
        Op::Nverify(a) | Op::Verify(a) => attrs(f, a),
        Op::Openattr(createdir) => f.flag("nfs.openattr4.createdir", *createdir),
        Op::Putfh(handle) => fh(f, handle),
        Op::Read(a) | Op::ReadPlus(a) => {
            stateid(f, &a.stateid);
            f.num("nfs.offset4", a.offset);
            f.num("nfs.count4", a.count);
        }
        Op::Readdir(a) => {
            f.num("nfs.cookie4", a.cookie);
            f.verifier("nfs.cookie_verf4", &a.cookieverf);
            f.num("nfs.dircount", a.dircount);
            f.num("nfs.maxcount", a.maxcount);
            bitmap_attrs(f, a.attr_request);
        }
        Op::Rename(a) => {
            name(f, &a.oldname);
            name(f, &a.newname);
        }
        Op::Setattr(a) => {
            stateid(f, &a.stateid);
            attrs(f, &a.attrs);
        }
        Op::Write(a) => {
            stateid(f, &a.stateid);
            f.num("nfs.offset4", a.offset);
            f.num("nfs.stable_how4", a.stable.0);
            f.num("nfs.write.data_length", a.data.len());
            f.hex("nfs.data", &a.data);
        }
        Op::Getfh
        | Op::Lookupp
        | Op::Putpubfh
        | Op::Putrootfh
        | Op::Readlink
        | Op::Restorefh
        | Op::Savefh
        | Op::Illegal(_) => {}
        _ => return false,
    }
    true
}

/// Operations of NFSv4.0 on opens, locks and clients.
fn args_state(f: &mut Fields, op: &Op) -> bool {
    match op {
        Op::Close(a) => {
            f.num("nfs.seqid", a.seqid);
            stateid(f, &a.stateid);
        }
        Op::Delegpurge(id) | Op::Renew(id) | Op::DestroyClientid(id) => f.num("nfs.clientid", id),
        Op::Delegreturn(s) | Op::FreeStateid(s) | Op::OffloadCancel(s) | Op::OffloadStatus(s) => {
            stateid(f, s)
        }
        Op::Lock(a) => {
            f.num("nfs.locktype4", a.locktype.0);
            f.flag("nfs.lock.reclaim", a.reclaim);
            span(f, a.offset, a.length);
            f.flag("nfs.lock.locker.new_lock_owner", a.locker.discriminant() == 1);
            match &a.locker {
                Locker::New(new) => {
                    f.num("nfs.seqid", new.open_seqid);
                    stateid(f, &new.open_stateid);
                    f.num("nfs.lock_seqid", new.lock_seqid);
                    lock_owner(f, &new.lock_owner);
                }
                Locker::Existing(old) => {
                    stateid(f, &old.lock_stateid);
                    f.num("nfs.lock_seqid", old.lock_seqid);
                }
            }
        }
        Op::Lockt(a) => {
            f.num("nfs.locktype4", a.locktype.0);
            span(f, a.offset, a.length);
            lock_owner(f, &a.owner);
        }
        Op::Locku(a) => {
            f.num("nfs.locktype4", a.locktype.0);
            f.num("nfs.seqid", a.seqid);
            stateid(f, &a.lock_stateid);
            span(f, a.offset, a.length);
        }
        Op::Open(a) => open(f, a),
        Op::OpenConfirm(a) => {
            stateid(f, &a.stateid);
            f.num("nfs.seqid", a.seqid);
        }
        Op::OpenDowngrade(a) => {
            stateid(f, &a.stateid);
            f.num("nfs.seqid", a.seqid);
            share(f, a.share_access, a.share_deny);
        }
        Op::Setclientid(a) => {
            f.verifier("nfs.verifier4", &a.client.verifier);
            f.hex("nfs.nfs_client_id4.id", &a.client.ownerid);
            f.num("nfs.cb_program", a.cb_program);
            f.text("nfs.r_netid", &a.cb_location.netid);
            f.text("nfs.r_addr", &a.cb_location.addr);
            f.num("nfs.callback.ident", a.callback_ident);
        }
        Op::SetclientidConfirm(a) => {
            f.num("nfs.clientid", a.clientid);
            f.verifier("nfs.verifier4", &a.confirm);
        }
        Op::ReleaseLockowner(owner) => lock_owner(f, owner),
        _ => return false,
    }
    true
}

fn open(f: &mut Fields, a: &OpenArgs) {
    f.num("nfs.seqid", a.seqid);
    share(f, a.share_access, a.share_deny);
    f.num("nfs.clientid", a.owner.clientid);
    f.hex("nfs.open_owner4", &a.owner.owner);
    f.flag("nfs.open.opentype", a.how.is_some());
    if let Some(how) = &a.how {
        f.num("nfs.createmode4", how.discriminant());
        match how {
            CreateHow::Unchecked(s) | CreateHow::Guarded(s) => attrs(f, s),
            CreateHow::Exclusive(verf) => f.verifier("nfs.verifier4", verf),
            CreateHow::Exclusive41(both) => {
                f.verifier("nfs.verifier4", &both.verf);
                attrs(f, &both.attrs);
            }
        }
    }
    f.num("nfs.open.claim_type", a.claim.discriminant());
    match &a.claim {
        OpenClaim::Null(n) | OpenClaim::DelegatePrev(n) => name(f, n),
        OpenClaim::Previous(kind) => f.num("nfs.delegate_type", kind.0),
        OpenClaim::DelegateCur(cur) => {
            stateid(f, &cur.delegate_stateid);
            name(f, &cur.file);
        }
        OpenClaim::DelegCurFh(s) => stateid(f, s),
        OpenClaim::Fh | OpenClaim::DelegPrevFh => {}
    }
}

/// Operations of NFSv4.1 on sessions and clients.
fn args41(f: &mut Fields, op: &Op) -> bool {
    match op {
        Op::BackchannelCtl(a) => {
            f.num("nfs.cb_program", a.cb_program);
            a.sec_parms.iter().for_each(|sec| callback_sec(f, sec));
        }
        Op::BindConnToSession(a) => {
            f.hex("nfs.session_id4", &a.sessionid);
            f.num("nfs.bctsa_dir", a.dir.0);
            f.flag("nfs.bctsa_use_conn_in_rdma_mode", a.use_conn_in_rdma_mode);
        }
        Op::ExchangeId(a) => {
            f.verifier("nfs.verifier4", &a.clientowner.verifier);
            f.hex("nfs.data", &a.clientowner.ownerid);
            f.num("nfs.exchange_id.call_flags", a.flags);
            f.num("nfs.exchange_id.state_protect", a.state_protect.discriminant());
            match &a.state_protect {
                StateProtectArgs::None => {}
                StateProtectArgs::MachCred(ops) => protected(f, ops),
                StateProtectArgs::Ssv(ssv) => protected(f, &ssv.ops),
            }
            impl_id(f, a.impl_id.as_ref());
        }
        Op::CreateSession(a) => {
            f.num("nfs.clientid", a.clientid);
            f.num("nfs.seqid", a.sequence);
            f.num("nfs.create_session_flags", a.flags);
            channel(f, &a.fore_chan_attrs);
            channel(f, &a.back_chan_attrs);
            f.num("nfs.cb_program", a.cb_program);
            a.sec_parms.iter().for_each(|sec| callback_sec(f, sec));
        }
        Op::DestroySession(id) => f.hex("nfs.session_id4", id),
        Op::SecinfoNoName(style) => f.num("nfs.secinfo.style", style.0),
        Op::Sequence(a) => {
            f.hex("nfs.session_id4", &a.sessionid);
            slots(f, a.sequenceid, a.slotid, a.highest_slotid);
            f.flag("nfs.cachethis4", a.cachethis);
        }
        Op::TestStateid(list) => list.iter().for_each(|s| stateid(f, s)),
        Op::ReclaimComplete(one_fs) => f.flag("nfs.reclaim_one_fs4", *one_fs),
        _ => return false,
    }
    true
}

/// Operations on layouts and devices. Their bodies are not decoded.
fn args_layout(f: &mut Fields, op: &Op) -> bool {
    match op {
        Op::Getdeviceinfo(a) => {
            f.hex("nfs.deviceid", &a.device_id);
            f.num("nfs.layouttype", a.layout_type.0);
            f.num("nfs.maxcount", a.maxcount);
        }
        Op::Getdevicelist(a) => {
            f.num("nfs.layouttype", a.layout_type.0);
            f.num("nfs.maxcount", a.maxdevices);
            f.num("nfs.cookie4", a.cookie);
            f.verifier("nfs.cookie_verf4", &a.cookieverf);
        }
        Op::Layoutcommit(a) => {
            span(f, a.offset, a.length);
            f.flag("nfs.reclaim4", a.reclaim);
            stateid(f, &a.stateid);
            f.flag("nfs.newoffset", a.last_write_offset.is_some());
            if let Some(offset) = a.last_write_offset {
                f.num("nfs.offset4", offset);
            }
            f.flag("nfs.newtime", a.time_modify.is_some());
            if let Some(t) = &a.time_modify {
                time(f, t);
            }
            f.num("nfs.layouttype", a.layoutupdate.layout_type.0);
        }
        Op::Layoutget(a) => {
            f.flag("nfs.layoutavail", a.signal_layout_avail);
            f.num("nfs.layouttype", a.layout_type.0);
            f.num("nfs.iomode", a.iomode.0);
            span(f, a.offset, a.length);
            f.num("nfs.minlength4", a.minlength);
            stateid(f, &a.stateid);
            f.num("nfs.maxcount", a.maxcount);
        }
        Op::Layoutreturn(a) => {
            f.flag("nfs.reclaim4", a.reclaim);
            f.num("nfs.layouttype", a.layout_type.0);
            f.num("nfs.iomode", a.iomode.0);
            f.num("nfs.returntype", a.layoutreturn.discriminant());
            if let LayoutReturn::File(file) = &a.layoutreturn {
                span(f, file.offset, file.length);
                stateid(f, &file.stateid);
            }
        }
        Op::Layouterror(a) => {
            span(f, a.offset, a.length);
            stateid(f, &a.stateid);
            for e in a.errors.iter() {
                f.hex("nfs.deviceid", &e.deviceid);
                f.num("nfs.nfsstat4", e.status.0);
                f.num("nfs.ff_ioerrs_op", e.opnum.0);
            }
        }
        Op::Layoutstats(a) => {
            span(f, a.offset, a.length);
            stateid(f, &a.stateid);
            for io in [&a.read, &a.write] {
                f.num("nfs.io_count", io.count);
                f.num("nfs.io_bytes", io.bytes);
            }
            f.hex("nfs.deviceid", &a.deviceid);
            f.num("nfs.layouttype", a.layoutupdate.layout_type.0);
        }
        _ => return false,
    }
    true
}

/// Operations of NFSv4.2 and on extended attributes.
fn args42(f: &mut Fields, op: &Op) -> bool {
    match op {
        Op::Allocate(a) | Op::Deallocate(a) => {
            stateid(f, &a.stateid);
            span(f, a.offset, a.length);
        }
        Op::Copy(a) => {
            stateid(f, &a.src_stateid);
            stateid(f, &a.dst_stateid);
            f.num("nfs.offset4", a.src_offset);
            f.num("nfs.offset4", a.dst_offset);
            f.num("nfs.length4", a.count);
            f.flag("nfs.consecutive", a.consecutive);
            f.flag("nfs.synchronous", a.synchronous);
            f.num("nfs.source_servers", a.source_server.len());
            a.source_server.iter().for_each(|n| netloc(f, n));
        }
        Op::CopyNotify(a) => {
            stateid(f, &a.src_stateid);
            netloc(f, &a.destination_server);
        }
        Op::IoAdvise(a) => {
            stateid(f, &a.stateid);
            span(f, a.offset, a.count);
            a.hints.iter().for_each(|hint| f.num("nfs.hint.hint", hint));
        }
        Op::Seek(a) => {
            stateid(f, &a.stateid);
            f.num("nfs.offset4", a.offset);
            f.num("nfs.data_content", a.what.0);
        }
        Op::Clone(a) => {
            stateid(f, &a.src_stateid);
            stateid(f, &a.dst_stateid);
            f.num("nfs.offset4", a.src_offset);
            f.num("nfs.offset4", a.dst_offset);
            f.num("nfs.length4", a.count);
        }
        Op::Getxattr(key) | Op::Removexattr(key) => f.text("nfs.xattr.key", key),
        Op::Setxattr(a) => {
            f.num("nfs.setxattr.options", a.option.0);
            f.text("nfs.xattr.key", &a.key);
            f.hex("nfs.data", &a.value);
        }
        Op::Listxattrs(a) => {
            f.num("nfs.lisxtattr.cookie", a.cookie);
            f.num("nfs.lisxtattr.maxcount", a.maxcount);
        }
        _ => return false,
    }
    true
}

fn res40(f: &mut Fields, res: &OpRes) -> bool {
    match res {
        OpRes::Access(Ok(r)) => {
            f.num("nfs.access_supported", r.supported & ACCESS_SHOWN);
            f.num("nfs.access_rights", r.access & ACCESS_SHOWN);
        }
        OpRes::Commit(Ok(verf)) => f.verifier("nfs.verifier4", verf),
        OpRes::Create(Ok(r)) => {
            change(f, &r.cinfo);
            bitmap_attrs(f, r.attrset);
        }
        OpRes::Getattr(Ok(a)) => attrs(f, a),
        OpRes::Getfh(Ok(handle)) => fh(f, handle),
        OpRes::Link(Ok(c)) | OpRes::Remove(Ok(c)) | OpRes::Setxattr(Ok(c)) | OpRes::Removexattr(Ok(c)) => {
            change(f, c);
        }
        // The stateid in a CLOSE result has no meaning (RFC 8881), and Wireshark does not show it.
        OpRes::Close(_) => {}
        OpRes::Lock(Ok(s))
        | OpRes::Locku(Ok(s))
        | OpRes::OpenConfirm(Ok(s))
        | OpRes::OpenDowngrade(Ok(s)) => {
            stateid(f, s);
        }
        OpRes::Lock(Err(LockFail::Denied(d))) | OpRes::Lockt(Err(LockFail::Denied(d))) => {
            span(f, d.offset, d.length);
            f.num("nfs.locktype4", d.locktype.0);
            lock_owner(f, &d.owner);
        }
        OpRes::Open(Ok(r)) => opened(f, r),
        OpRes::Read(Ok(r)) => {
            f.flag("nfs.eof", r.eof);
            f.num("nfs.read.data_length", r.data.len());
            f.hex("nfs.data", &r.data);
        }
        OpRes::Readdir(Ok(r)) => {
            f.verifier("nfs.verifier4", &r.cookieverf);
            for e in r.entries.iter() {
                f.num("nfs.cookie4", e.cookie);
                f.text("nfs.entry_name", &e.name);
                attrs(f, &e.attrs);
            }
            f.flag("nfs.dirlist4.eof", r.eof);
        }
        OpRes::Readlink(Ok(to)) => f.text("nfs.symlink.linktext", to),
        OpRes::Rename(Ok(r)) => {
            change(f, &r.source_cinfo);
            change(f, &r.target_cinfo);
        }
        OpRes::Secinfo(Ok(list)) | OpRes::SecinfoNoName(Ok(list)) => {
            list.iter().for_each(|s| f.num("nfs.secinfo.flavor", s.discriminant()));
        }
        OpRes::Setattr(Ok(set)) => bitmap_attrs(f, *set),
        OpRes::Setattr(Err(failed)) => bitmap_attrs(f, failed.attrsset),
        OpRes::Setclientid(Ok(r)) => {
            f.num("nfs.clientid", r.clientid);
            f.verifier("nfs.verifier4", &r.confirm);
        }
        OpRes::Setclientid(Err(SetclientidFail::InUse(addr))) => {
            f.text("nfs.r_netid", &addr.netid);
            f.text("nfs.r_addr", &addr.addr);
        }
        OpRes::Write(Ok(r)) => {
            f.num("nfs.count4", r.count);
            f.num("nfs.stable_how4", r.committed.0);
            f.verifier("nfs.verifier4", &r.writeverf);
        }
        _ => return false,
    }
    true
}

fn opened(f: &mut Fields, r: &OpenOk) {
    stateid(f, &r.stateid);
    change(f, &r.cinfo);
    f.num("nfs.open_rflags", r.rflags);
    bitmap_attrs(f, r.attrset);
    f.num("nfs.open.delegation_type", r.delegation.discriminant());
    match &r.delegation {
        OpenDelegation::None => {}
        OpenDelegation::NoneExt(why) => f.num("nfs.open.why_no_delegation", why.discriminant()),
        OpenDelegation::Read(d) | OpenDelegation::ReadAttrs(d) => {
            stateid(f, &d.stateid);
            f.flag("nfs.recall4", d.recall);
            ace(f, &d.permissions);
        }
        OpenDelegation::Write(d) | OpenDelegation::WriteAttrs(d) => {
            stateid(f, &d.stateid);
            f.flag("nfs.recall", d.recall);
            f.num("nfs.open.limit_by", d.space_limit.discriminant());
            match &d.space_limit {
                SpaceLimit::Size(bytes) => f.num("nfs.filesize", bytes),
                SpaceLimit::Blocks(limit) => {
                    f.num("nfs.num_blocks", limit.num_blocks);
                    f.num("nfs.bytes_per_block", limit.bytes_per_block);
                }
            }
            ace(f, &d.permissions);
        }
    }
}

fn res41(f: &mut Fields, res: &OpRes) -> bool {
    match res {
        OpRes::BindConnToSession(Ok(r)) => {
            f.hex("nfs.session_id4", &r.sessionid);
            f.num("nfs.bctsr_dir", r.dir.0);
            f.flag("nfs.bctsr_use_conn_in_rdma_mode", r.use_conn_in_rdma_mode);
        }
        OpRes::ExchangeId(Ok(r)) => {
            f.num("nfs.clientid", r.clientid);
            f.num("nfs.seqid", r.sequenceid);
            f.num("nfs.exchange_id.reply_flags", r.flags);
            f.num("nfs.exchange_id.state_protect", r.state_protect.discriminant());
            match &r.state_protect {
                StateProtectOk::None => {}
                StateProtectOk::MachCred(ops) => protected(f, ops),
                StateProtectOk::Ssv(ssv) => protected(f, &ssv.ops),
            }
            f.num("nfs.minorid4", r.server_owner.minor_id);
            f.hex("nfs.majorid4", &r.server_owner.major_id);
            impl_id(f, r.impl_id.as_ref());
        }
        OpRes::CreateSession(Ok(r)) => {
            f.hex("nfs.session_id4", &r.sessionid);
            f.num("nfs.seqid", r.sequence);
            f.num("nfs.create_session_flags", r.flags);
            channel(f, &r.fore_chan_attrs);
            channel(f, &r.back_chan_attrs);
        }
        OpRes::Getdevicelist(Ok(r)) => {
            f.num("nfs.cookie4", r.cookie);
            f.verifier("nfs.cookie_verf4", &r.cookieverf);
            r.deviceid_list.iter().for_each(|id| f.hex("nfs.deviceid", id));
            f.flag("nfs.eof", r.eof);
        }
        OpRes::Layoutcommit(Ok(newsize)) => {
            f.flag("nfs.newsize", newsize.is_some());
            if let Some(size) = newsize {
                f.num("nfs.length4", size);
            }
        }
        OpRes::Layoutget(Ok(r)) => {
            f.flag("nfs.retclose4", r.return_on_close);
            stateid(f, &r.stateid);
            for l in r.layouts.iter() {
                span(f, l.offset, l.length);
                f.num("nfs.iomode", l.iomode.0);
                f.num("nfs.layouttype", l.content.layout_type.0);
            }
        }
        OpRes::Layoutreturn(Ok(left)) => {
            f.flag("nfs.lrs_present", left.is_some());
            if let Some(s) = left {
                stateid(f, s);
            }
        }
        OpRes::Sequence(Ok(r)) => {
            f.hex("nfs.session_id4", &r.sessionid);
            slots(f, r.sequenceid, r.slotid, r.highest_slotid);
            f.num("nfs.target_high_slotid", r.target_highest_slotid);
            f.num("nfs.sequence.flags", r.status_flags);
        }
        OpRes::TestStateid(Ok(list)) => list.iter().for_each(|s| f.num("nfs.nfsstat4", s.0)),
        _ => return false,
    }
    true
}

fn res42(f: &mut Fields, res: &OpRes) -> bool {
    match res {
        OpRes::Copy(Ok(r)) => {
            write_response(f, &r.response);
            f.flag("nfs.consecutive", r.requirements.consecutive);
            f.flag("nfs.synchronous", r.requirements.synchronous);
        }
        OpRes::WriteSame(Ok(r)) => write_response(f, r),
        OpRes::CopyNotify(Ok(r)) => {
            time(f, &r.lease_time);
            stateid(f, &r.stateid);
            f.num("nfs.source_servers", r.source_server.len());
            r.source_server.iter().for_each(|n| netloc(f, n));
        }
        OpRes::IoAdvise(Ok(hints)) => hints.iter().for_each(|hint| f.num("nfs.hint.hint", hint)),
        OpRes::OffloadStatus(Ok(r)) => {
            f.num("nfs.length4", r.count);
            f.num("nfs.num_offload_status", u8::from(r.complete.is_some()));
            if let Some(status) = r.complete {
                f.num("nfs.nfsstat4", status.0);
            }
        }
        OpRes::ReadPlus(Ok(r)) => {
            f.flag("nfs.eof", r.eof);
            for piece in r.contents.iter() {
                f.num("nfs.content.type", piece.discriminant());
                match piece {
                    ReadPlusContent::Data(d) => {
                        f.num("nfs.offset4", d.offset);
                        f.num("nfs.read.data_length", d.data.len());
                        f.hex("nfs.data", &d.data);
                    }
                    ReadPlusContent::Hole(h) => span(f, h.offset, h.length),
                    ReadPlusContent::Other(_) => {}
                }
            }
        }
        OpRes::Seek(Ok(r)) => {
            f.flag("nfs.eof", r.eof);
            f.num("nfs.offset4", r.offset);
        }
        OpRes::Getxattr(Ok(value)) => f.hex("nfs.data", value),
        OpRes::Listxattrs(Ok(r)) => {
            f.num("nfs.lisxtattr.cookie", r.cookie);
            f.num("nfs.listxattr.names.count", r.names.len());
            r.names.iter().for_each(|key| f.text("nfs.xattr.key", key));
            f.flag("nfs.lisxtattr.eof", r.eof);
        }
        _ => return false,
    }
    true
}

pub fn write_response(f: &mut Fields, r: &WriteResponse) {
    f.num("nfs.callback_ids", u8::from(r.callback_id.is_some()));
    if let Some(s) = &r.callback_id {
        stateid(f, s);
    }
    f.num("nfs.length4", r.count);
    f.num("nfs.stable_how4", r.committed.0);
    f.verifier("nfs.verifier4", &r.writeverf);
}

fn callback_sec(f: &mut Fields, sec: &CallbackSec) {
    f.num("nfs.flavor4", sec.discriminant());
    match sec {
        CallbackSec::None => {}
        CallbackSec::Sys(sys) => {
            f.num("nfs.stamp4", sys.stamp);
            f.text("nfs.machinename4", &sys.machinename);
            f.num("nfs.uid4", sys.uid);
            f.num("nfs.gid4", sys.gid);
            sys.gids.iter().for_each(|gid| f.num("nfs.gid4", gid));
        }
        CallbackSec::Gss(gss) => {
            f.num("nfs.service4", gss.service.0);
            f.hex("nfs.data", &gss.handle_from_server);
            f.hex("nfs.data", &gss.handle_from_client);
        }
    }
}

fn protected(f: &mut Fields, ops: &StateProtectOps) {
    for mask in [ops.must_enforce, ops.must_allow] {
        mask.iter().for_each(|op| f.num("nfs.opcode", op));
    }
}

fn ace(f: &mut Fields, ace: &Ace) {
    f.num("nfs.acetype4", ace.ace_type);
    f.text("nfs.who", &ace.who);
}

pub fn fh(f: &mut Fields, fh: &Fh) {
    f.num("nfs.fh.length", fh.len());
    f.hex("nfs.fhandle", fh);
}

fn name(f: &mut Fields, name: &Component) {
    f.text("nfs.pathname.component", name);
}

pub fn stateid(f: &mut Fields, s: &Stateid) {
    f.num("nfs.stateid.seqid", s.seqid);
    f.hex("nfs.stateid.other", &s.other);
}

pub fn span(f: &mut Fields, offset: u64, length: u64) {
    f.num("nfs.offset4", offset);
    f.num("nfs.length4", length);
}

fn share(f: &mut Fields, access: u32, deny: u32) {
    f.num("nfs.open4.share_access", access & open::SHARE_ACCESS_BOTH);
    f.num("nfs.open4.share_deny", deny);
}

pub fn lock_owner(f: &mut Fields, owner: &StateOwner) {
    f.num("nfs.clientid", owner.clientid);
    f.hex("nfs.lock_owner4", &owner.owner);
}

fn change(f: &mut Fields, c: &ChangeInfo) {
    f.flag("nfs.change_info.atomic", c.atomic);
    f.num("nfs.changeid4.before", c.before);
    f.num("nfs.changeid4.after", c.after);
}

pub fn slots(f: &mut Fields, sequenceid: u32, slotid: u32, highest_slotid: u32) {
    f.num("nfs.seqid", sequenceid);
    f.num("nfs.slotid", slotid);
    f.num("nfs.high_slotid", highest_slotid);
}

fn channel(f: &mut Fields, c: &ChannelAttrs) {
    f.num("nfs.padsize4", c.headerpadsize);
    f.num("nfs.maxreqsize4", c.maxrequestsize);
    f.num("nfs.maxrespsize4", c.maxresponsesize);
    f.num("nfs.maxrespsizecached4", c.maxresponsesize_cached);
    f.num("nfs.maxops4", c.maxoperations);
    f.num("nfs.maxreqs4", c.maxrequests);
    if let Some(ird) = c.rdma_ird {
        f.num("nfs.rdmachanattrs4", ird);
    }
}

fn impl_id(f: &mut Fields, id: Option<&ImplId>) {
    if let Some(id) = id {
        f.text("nfs.nii_domain4", &id.domain);
        f.text("nfs.nii_name4", &id.name);
        time(f, &id.date);
    }
}

fn netloc(f: &mut Fields, n: &Netloc) {
    f.num("nfs.netloctype", n.discriminant());
    match n {
        Netloc::Name(text) => f.text("nfs.nl_name", text),
        Netloc::Url(text) => f.text("nfs.nl_url", text),
        Netloc::Addr(addr) => {
            f.text("nfs.r_netid", &addr.netid);
            f.text("nfs.r_addr", &addr.addr);
        }
    }
}
