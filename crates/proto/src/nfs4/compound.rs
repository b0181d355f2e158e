//! COMPOUND: a list of operations in one call, and their results up to the first failure.
//!
//! This module gives the operations no meaning. The table of operations in this file is the only
//! one. The types of arguments and results are in the modules by minor version.

use super::ops40::*;
use super::ops41::*;
use super::ops42::*;
use super::pnfs::*;
use super::table::op_table;
use super::types::{
    ChangeInfo, Clientid, Component, Fh, Linktext, Sessionid, StateOwner, Stateid, Tag, Verifier,
};
use super::{Attrs, Bitmap4, Nfsstat4, Results};
use crate::xdr::{Dec, Enc, List, Result as XdrResult, Xdr};
use crate::xdr_struct;
use bytes::Bytes;

/// Most operations of a compound that are decoded or sent. Only the first operations of a longer
/// compound are decoded. They suffice to answer `NFS4ERR_TOO_MANY_OPS`.
pub const OPS_MAX: usize = 1024;

op_table! {
    /// `nfs_opnum4`. Names are those of the kernel's `mountstats`.
    number NfsOpnum4;
    /// An operation and its arguments (`nfs_argop4`).
    call Op;
    /// An operation's result (`nfs_resop4`).
    result OpRes;
    /// A type for each operation, for [`Results::outcome`].
    markers op;
    illegal 10044;
    /// Checks the user's access rights to the object.
    3 ACCESS Access access(u32) -> AccessOk;
    /// Closes an open.
    4 CLOSE Close close(CloseArgs) -> Stateid;
    /// Writes unstable data to stable storage.
    5 COMMIT Commit commit(CommitArgs) -> Verifier;
    /// Creates an object that is not a regular file.
    6 CREATE Create create(CreateArgs) -> CreateOk;
    /// Drops delegations of the client's earlier instance.
    7 DELEGPURGE Delegpurge delegpurge(Clientid) -> ();
    /// Returns a delegation.
    8 DELEGRETURN Delegreturn delegreturn(Stateid) -> ();
    /// Reads attributes of the current filehandle.
    9 GETATTR Getattr getattr(Bitmap4) -> Attrs;
    /// Returns the current filehandle.
    10 GETFH Getfh getfh() -> Fh;
    /// Adds a name in the current directory for the saved filehandle.
    11 LINK Link link(Component) -> ChangeInfo;
    /// Locks a range.
    12 LOCK Lock lock(LockArgs) -> Stateid, LockFail;
    /// Tests for a lock.
    13 LOCKT Lockt lockt(LocktArgs) -> (), LockFail;
    /// Unlocks a range.
    14 LOCKU Locku locku(LockuArgs) -> Stateid;
    /// Sets the current filehandle to a directory entry.
    15 LOOKUP Lookup lookup(Component) -> ();
    /// Sets the current filehandle to the parent.
    16 LOOKUPP Lookupp lookupp() -> ();
    /// Ends the compound if attributes are equal.
    17 NVERIFY Nverify nverify(Attrs) -> ();
    /// Opens and perhaps creates a regular file.
    18 OPEN Open open(OpenArgs) -> OpenOk;
    /// Sets the current filehandle to the named attribute directory; true creates it.
    19 OPENATTR Openattr openattr(bool) -> ();
    /// Confirms an open (NFSv4.0 only).
    20 OPEN_CONFIRM OpenConfirm open_confirm(OpenConfirmArgs) -> Stateid;
    /// Reduces the access of an open.
    21 OPEN_DOWNGRADE OpenDowngrade open_downgrade(OpenDowngradeArgs) -> Stateid;
    /// Sets the current filehandle.
    22 PUTFH Putfh putfh(Fh) -> ();
    /// Sets the current filehandle to the public filehandle.
    23 PUTPUBFH Putpubfh putpubfh() -> ();
    /// Sets the current filehandle to the root.
    24 PUTROOTFH Putrootfh putrootfh() -> ();
    /// Reads data.
    25 READ Read read(ReadArgs) -> ReadOk;
    /// Reads entries of the current directory.
    26 READDIR Readdir readdir(ReaddirArgs) -> ReaddirOk;
    /// Reads a symbolic link.
    27 READLINK Readlink readlink() -> Linktext;
    /// Removes a name from the current directory.
    28 REMOVE Remove remove(Component) -> ChangeInfo;
    /// Renames from the saved to the current directory.
    29 RENAME Rename rename(RenameArgs) -> RenameOk;
    /// Renews the lease (NFSv4.0 only).
    30 RENEW Renew renew(Clientid) -> ();
    /// Sets the current filehandle to the saved one.
    31 RESTOREFH Restorefh restorefh() -> ();
    /// Saves the current filehandle.
    32 SAVEFH Savefh savefh() -> ();
    /// Returns the security flavors for a name.
    33 SECINFO Secinfo secinfo(Component) -> SecinfoOk;
    /// Sets attributes; returns the attributes that were set.
    34 SETATTR Setattr setattr(SetattrArgs) -> Bitmap4, SetattrFail;
    /// Registers the client (NFSv4.0 only).
    35 SETCLIENTID Setclientid setclientid(SetclientidArgs) -> SetclientidOk, SetclientidFail;
    /// Confirms the registration (NFSv4.0 only).
    36 SETCLIENTID_CONFIRM SetclientidConfirm setclientid_confirm(SetclientidOk) -> ();
    /// Ends the compound if attributes differ.
    37 VERIFY Verify verify(Attrs) -> ();
    /// Writes data.
    38 WRITE Write write(WriteArgs) -> WriteOk;
    /// Drops a lock owner (NFSv4.0 only).
    39 RELEASE_LOCKOWNER ReleaseLockowner release_lockowner(StateOwner) -> ();
    /// Changes the security of callbacks.
    40 BACKCHANNEL_CTL BackchannelCtl backchannel_ctl(BackchannelCtlArgs) -> ();
    /// Binds this connection to the session.
    41 BIND_CONN_TO_SESSION BindConnToSession bind_conn_to_session(BindConnToSessionArgs) -> BindConnToSessionOk;
    /// Registers the client.
    42 EXCHANGE_ID ExchangeId exchange_id(ExchangeIdArgs) -> ExchangeIdOk;
    /// Creates a session.
    43 CREATE_SESSION CreateSession create_session(CreateSessionArgs) -> CreateSessionOk;
    /// Ends a session.
    44 DESTROY_SESSION DestroySession destroy_session(Sessionid) -> ();
    /// Releases a revoked stateid.
    45 FREE_STATEID FreeStateid free_stateid(Stateid) -> ();
    /// Requests a directory delegation.
    46 GET_DIR_DELEGATION GetDirDelegation get_dir_delegation(GetDirDelegationArgs) -> GetDirDelegationOk;
    /// Describes a pNFS device.
    47 GETDEVICEINFO Getdeviceinfo getdeviceinfo(GetdeviceinfoArgs) -> GetdeviceinfoOk, GetdeviceinfoFail;
    /// Lists pNFS devices.
    48 GETDEVICELIST Getdevicelist getdevicelist(GetdevicelistArgs) -> GetdevicelistOk;
    /// Publishes data that was written through a layout; returns the new size if it changed.
    49 LAYOUTCOMMIT Layoutcommit layoutcommit(LayoutcommitArgs) -> Option<u64>;
    /// Requests a layout.
    50 LAYOUTGET Layoutget layoutget(LayoutgetArgs) -> LayoutgetOk, LayoutgetFail;
    /// Returns a layout; the result is the stateid if layouts remain.
    51 LAYOUTRETURN Layoutreturn layoutreturn(LayoutreturnArgs) -> Option<Stateid>;
    /// Returns the security flavors for the current filehandle.
    52 SECINFO_NO_NAME SecinfoNoName secinfo_no_name(SecinfoStyle) -> SecinfoOk;
    /// Uses a slot; first operation of almost every compound.
    53 SEQUENCE Sequence sequence(SequenceArgs) -> SequenceOk;
    /// Changes the shared secret; returns the digest.
    54 SET_SSV SetSsv set_ssv(SetSsvArgs) -> crate::xdr::Opaque<1024>;
    /// Tests which stateids are valid.
    55 TEST_STATEID TestStateid test_stateid(TestStateidArgs) -> TestStateidOk;
    /// Requests a delegation.
    56 WANT_DELEGATION WantDelegation want_delegation(WantDelegationArgs) -> OpenDelegation;
    /// Removes the client.
    57 DESTROY_CLIENTID DestroyClientid destroy_clientid(Clientid) -> ();
    /// Ends the reclaims; true: on the current file system.
    58 RECLAIM_COMPLETE ReclaimComplete reclaim_complete(bool) -> ();
    /// Reserves space.
    59 ALLOCATE Allocate allocate(RangeArgs) -> ();
    /// Copies a range on the server.
    60 COPY Copy copy(CopyArgs) -> CopyOk, CopyFail;
    /// Prepares the source of a copy to another server.
    61 COPY_NOTIFY CopyNotify copy_notify(CopyNotifyArgs) -> CopyNotifyOk;
    /// Punches a hole.
    62 DEALLOCATE Deallocate deallocate(RangeArgs) -> ();
    /// Announces the use of data; returns the hints that the server observes.
    63 IO_ADVISE IoAdvise io_advise(IoAdviseArgs) -> Bitmap4;
    /// Reports a failing pNFS device.
    64 LAYOUTERROR Layouterror layouterror(LayouterrorArgs) -> ();
    /// Reports the use of a layout.
    65 LAYOUTSTATS Layoutstats layoutstats(LayoutstatsArgs) -> ();
    /// Stops a copy.
    66 OFFLOAD_CANCEL OffloadCancel offload_cancel(Stateid) -> ();
    /// Returns the progress of a copy.
    67 OFFLOAD_STATUS OffloadStatus offload_status(Stateid) -> OffloadStatusOk;
    /// Reads data and holes.
    68 READ_PLUS ReadPlus read_plus(ReadArgs) -> ReadPlusOk;
    /// Finds data or a hole.
    69 SEEK Seek seek(SeekArgs) -> SeekOk;
    /// Writes a pattern many times.
    70 WRITE_SAME WriteSame write_same(WriteSameArgs) -> WriteResponse;
    /// Shares a range's blocks.
    71 CLONE Clone clone_range(CloneArgs) -> ();
    /// Reads an extended attribute.
    72 GETXATTR Getxattr getxattr(Component) -> XattrValue;
    /// Sets an extended attribute.
    73 SETXATTR Setxattr setxattr(SetxattrArgs) -> XattrOk;
    /// Lists extended attributes.
    74 LISTXATTRS Listxattrs listxattrs(ListxattrsArgs) -> ListxattrsOk;
    /// Removes an extended attribute.
    75 REMOVEXATTR Removexattr removexattr(Component) -> XattrOk;
}

/// `COMPOUND4args`.
///
/// An unknown operation number ends decoding with [`Op::Illegal`] as the last operation. Its
/// arguments have an unknown length, so the decoder drops the rest. The server answers
/// `NFS4ERR_OP_ILLEGAL` to that operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compound {
    /// Text for diagnostics. The reply contains the same tag.
    pub tag: Tag,
    /// Minor version: 0, 1 or 2. The decoder accepts the operations of all minor versions; the
    /// server checks which are legal.
    pub minorversion: u32,
    /// The operations.
    pub ops: Vec<Op>,
}

impl Compound {
    /// A compound without a tag.
    pub fn new(minorversion: u32, ops: Vec<Op>) -> Self {
        Self { tag: Tag::default(), minorversion, ops }
    }

    /// Decodes a whole message. Returns the compound and the encoded length of each operation in
    /// bytes.
    pub fn sized(buf: &Bytes) -> XdrResult<(Self, Vec<u32>)> {
        let mut d = Dec::new(buf);
        let mut sizes = Vec::with_capacity(16);
        let compound = Self::dec_sized(&mut d, |bytes| sizes.push(bytes))?;
        d.finish()?;
        Ok((compound, sizes))
    }

    fn dec_sized(d: &mut Dec<'_>, mut size: impl FnMut(u32)) -> XdrResult<Self> {
        let tag = Tag::dec(d)?;
        let minorversion = d.u32()?;
        let ops = dec_ops(d, |op, bytes| {
            size(bytes as u32);
            matches!(op, Op::Illegal(_))
        })?;
        Ok(Self { tag, minorversion, ops })
    }
}

impl Xdr for Compound {
    fn enc(&self, e: &mut Enc) {
        self.tag.enc(e);
        self.minorversion.enc(e);
        e.u32(self.ops.len() as u32);
        self.ops.iter().for_each(|op| op.enc(e));
    }
    fn dec(d: &mut Dec<'_>) -> XdrResult<Self> {
        Self::dec_sized(d, |_| ())
    }
}

/// Reads operations until one satisfies `last` or there are [`OPS_MAX`]. Later operations are
/// dropped. `last` gets each operation with its encoded length in bytes.
pub(super) fn dec_ops<T: Xdr>(d: &mut Dec<'_>, mut last: impl FnMut(&T, usize) -> bool) -> XdrResult<Vec<T>> {
    let n = d.count(u32::MAX as usize, 4)?;
    let mut ops = Vec::with_capacity(n.min(16));
    for i in 0..n {
        let began = d.position();
        let op = T::dec(d)?;
        let is_last = last(&op, d.position() - began);
        ops.push(op);
        if i + 1 == OPS_MAX || is_last {
            d.rest();
            break;
        }
    }
    Ok(ops)
}

xdr_struct! {
    /// `COMPOUND4res`: results up to the first failure.
    pub struct CompoundReply {
        /// Status of the last result, or the reason why there are no results.
        pub status: Nfsstat4,
        /// Tag of the call.
        pub tag: Tag,
        /// The results.
        pub results: List<OpRes, OPS_MAX>,
    }
}

impl CompoundReply {
    /// A cursor over the results.
    pub fn results(self) -> Results<OpRes> {
        Results::new(self.status, self.results.0)
    }
}
