//! Summaries of NFSv4 attributes.

use super::Fields;
use hither_proto::nfs4::{Acl, Attrs, Bitmap4, LayoutTypes, Pathname, SetTime, Time, attr};

/// Appends the attribute numbers in a mask.
pub fn bitmap_attrs(f: &mut Fields, mask: Bitmap4) {
    mask.iter().for_each(|n| f.num("nfs.attr", n));
}

pub fn time(f: &mut Fields, t: &Time) {
    f.num("nfs.nfstime4.seconds", t.seconds);
    f.num("nfs.nfstime4.nseconds", t.nseconds);
}

/// Appends the attribute numbers and the values of simple attributes, in ascending order.
pub fn attrs(f: &mut Fields, a: &Attrs) {
    for n in a.mask().iter() {
        f.num("nfs.attr", n);
        let _known = numbers(f, a, n) || flags(f, a, n) || others(f, a, n);
    }
}

fn numbers(f: &mut Fields, a: &Attrs, n: u32) -> bool {
    macro_rules! one {
        ($name:literal, $value:expr) => {
            $value.into_iter().for_each(|v| f.num($name, v))
        };
    }
    match n {
        attr::CHANGE => one!("nfs.changeid4", a.change()),
        attr::SIZE => one!("nfs.fattr4.size", a.size()),
        attr::LEASE_TIME => one!("nfs.fattr4.lease_time", a.lease_time()),
        attr::FILEID => one!("nfs.fattr4.fileid", a.fileid()),
        attr::FILES_AVAIL => one!("nfs.fattr4.files_avail", a.files_avail()),
        attr::FILES_FREE => one!("nfs.fattr4.files_free", a.files_free()),
        attr::FILES_TOTAL => one!("nfs.fattr4.files_total", a.files_total()),
        attr::MAXFILESIZE => one!("nfs.fattr4.maxfilesize", a.maxfilesize()),
        attr::MAXLINK => one!("nfs.fattr4.maxlink", a.maxlink()),
        attr::MAXNAME => one!("nfs.fattr4.maxname", a.maxname()),
        attr::MAXREAD => one!("nfs.fattr4.maxread", a.maxread()),
        attr::MAXWRITE => one!("nfs.fattr4.maxwrite", a.maxwrite()),
        attr::MODE => one!("nfs.mode", a.mode()),
        attr::NUMLINKS => one!("nfs.fattr4.numlinks", a.numlinks()),
        attr::QUOTA_AVAIL_HARD => one!("nfs.fattr4.quota_hard", a.quota_avail_hard()),
        attr::QUOTA_AVAIL_SOFT => one!("nfs.fattr4.quota_soft", a.quota_avail_soft()),
        attr::QUOTA_USED => one!("nfs.fattr4.quota_used", a.quota_used()),
        attr::SPACE_AVAIL => one!("nfs.fattr4.space_avail", a.space_avail()),
        attr::SPACE_FREE => one!("nfs.fattr4.space_free", a.space_free()),
        attr::SPACE_TOTAL => one!("nfs.fattr4.space_total", a.space_total()),
        attr::SPACE_USED => one!("nfs.fattr4.space_used", a.space_used()),
        attr::MOUNTED_ON_FILEID => one!("nfs.fattr4.mounted_on_fileid", a.mounted_on_fileid()),
        attr::LAYOUT_BLKSIZE => one!("nfs.fattr4.layout_blksize", a.layout_blksize()),
        attr::CLONE_BLKSIZE => one!("nfs.fattr4.clone_block_size", a.clone_blksize()),
        attr::SPACE_FREED => one!("nfs.fattr4.space_freed", a.space_freed()),
        _ => return false,
    }
    true
}

fn flags(f: &mut Fields, a: &Attrs, n: u32) -> bool {
    macro_rules! one {
        ($name:literal, $value:expr) => {
            $value.into_iter().for_each(|v| f.flag($name, *v))
        };
    }
    match n {
        attr::LINK_SUPPORT => one!("nfs.fattr4_link_support", a.link_support()),
        attr::SYMLINK_SUPPORT => one!("nfs.fattr4_symlink_support", a.symlink_support()),
        attr::NAMED_ATTR => one!("nfs.fattr4_named_attr", a.named_attr()),
        attr::UNIQUE_HANDLES => one!("nfs.fattr4_unique_handles", a.unique_handles()),
        attr::ARCHIVE => one!("nfs.fattr4_archive", a.archive()),
        attr::CANSETTIME => one!("nfs.fattr4_cansettime", a.cansettime()),
        attr::CASE_INSENSITIVE => one!("nfs.fattr4_case_insensitive", a.case_insensitive()),
        attr::CASE_PRESERVING => one!("nfs.fattr4_case_preserving", a.case_preserving()),
        attr::CHOWN_RESTRICTED => one!("nfs.fattr4_chown_restricted", a.chown_restricted()),
        attr::HIDDEN => one!("nfs.fattr4_hidden", a.hidden()),
        attr::HOMOGENEOUS => one!("nfs.fattr4_homogeneous", a.homogeneous()),
        attr::NO_TRUNC => one!("nfs.fattr4_no_trunc", a.no_trunc()),
        attr::SYSTEM => one!("nfs.fattr4_system", a.system()),
        attr::XATTR_SUPPORT => one!("nfs.fattr4_xattr_support", a.xattr_support()),
        _ => return false,
    }
    true
}

fn others(f: &mut Fields, a: &Attrs, n: u32) -> bool {
    match n {
        attr::SUPPORTED_ATTRS => a.supported_attrs().into_iter().for_each(|m| bitmap_attrs(f, *m)),
        attr::SUPPATTR_EXCLCREAT => a.suppattr_exclcreat().into_iter().for_each(|m| bitmap_attrs(f, *m)),
        attr::TYPE => a.ftype().into_iter().for_each(|t| f.num("nfs.nfs_ftype4", t.0)),
        attr::MODE_UMASK => {
            if let Some(both) = a.mode_umask() {
                f.num("nfs.mode", both.mode);
                f.num("nfs.fattr4.umask", both.umask);
            }
        }
        attr::FS_LAYOUT_TYPES => a.fs_layout_types().into_iter().for_each(|l| layout_types(f, l)),
        attr::LAYOUT_TYPES => a.layout_types().into_iter().for_each(|l| layout_types(f, l)),
        attr::MDSTHRESHOLD => {
            if let Some(items) = a.mdsthreshold() {
                items.iter().for_each(|i| f.num("nfs.layouttype", i.layout_type.0));
            }
        }
        attr::FS_LOCATIONS => {
            if let Some(at) = a.fs_locations() {
                pathname(f, &at.fs_root);
                for location in at.locations.iter() {
                    location.server.iter().for_each(|s| f.text("nfs.server", s));
                    pathname(f, &location.rootpath);
                }
            }
        }
        attr::SEC_LABEL => {
            if let Some(label) = a.sec_label() {
                f.num("nfs.fattr4.security_label.lfs", label.lfs);
                f.num("nfs.fattr4.security_label.pi", label.pi);
            }
        }
        attr::RDATTR_ERROR => a.rdattr_error().into_iter().for_each(|e| f.num("nfs.nfsstat4", e.0)),
        attr::FSID => {
            if let Some(fsid) = a.fsid() {
                f.num("nfs.fsid4.major", fsid.major);
                f.num("nfs.fsid4.minor", fsid.minor);
            }
        }
        attr::ACL => a.acl().into_iter().for_each(|acl| aces(f, acl)),
        attr::DACL => a.dacl().into_iter().for_each(|acl| aces(f, &acl.aces)),
        attr::SACL => a.sacl().into_iter().for_each(|acl| aces(f, &acl.aces)),
        attr::FILEHANDLE => {
            if let Some(fh) = a.filehandle() {
                f.num("nfs.fh.length", fh.len());
                f.hex("nfs.fhandle", fh);
            }
        }
        attr::OWNER => a.owner().into_iter().for_each(|o| f.text("nfs.fattr4_owner", o)),
        attr::OWNER_GROUP => a.owner_group().into_iter().for_each(|o| f.text("nfs.fattr4_owner_group", o)),
        attr::RAWDEV => {
            if let Some(dev) = a.rawdev() {
                f.num("nfs.specdata1", dev.major);
                f.num("nfs.specdata2", dev.minor);
            }
        }
        attr::TIME_ACCESS => a.time_access().into_iter().for_each(|t| time(f, t)),
        attr::TIME_BACKUP => a.time_backup().into_iter().for_each(|t| time(f, t)),
        attr::TIME_CREATE => a.time_create().into_iter().for_each(|t| time(f, t)),
        attr::TIME_DELTA => a.time_delta().into_iter().for_each(|t| time(f, t)),
        attr::TIME_METADATA => a.time_metadata().into_iter().for_each(|t| time(f, t)),
        attr::TIME_MODIFY => a.time_modify().into_iter().for_each(|t| time(f, t)),
        attr::TIME_ACCESS_SET => a.time_access_set().into_iter().for_each(|t| set_time(f, t)),
        attr::TIME_MODIFY_SET => a.time_modify_set().into_iter().for_each(|t| set_time(f, t)),
        attr::TIME_DELEG_ACCESS => a.time_deleg_access().into_iter().for_each(|t| time(f, t)),
        attr::TIME_DELEG_MODIFY => a.time_deleg_modify().into_iter().for_each(|t| time(f, t)),
        attr::DIR_NOTIF_DELAY => a.dir_notif_delay().into_iter().for_each(|t| time(f, t)),
        attr::DIRENT_NOTIF_DELAY => a.dirent_notif_delay().into_iter().for_each(|t| time(f, t)),
        _ => return false,
    }
    true
}

fn aces(f: &mut Fields, acl: &Acl) {
    for ace in acl.iter() {
        f.num("nfs.acetype4", ace.ace_type);
        f.text("nfs.who", &ace.who);
    }
}

fn set_time(f: &mut Fields, t: &SetTime) {
    if let SetTime::Client(t) = t {
        time(f, t);
    }
}

fn layout_types(f: &mut Fields, types: &LayoutTypes) {
    types.iter().for_each(|t| f.num("nfs.layouttype", t.0));
}

fn pathname(f: &mut Fields, path: &Pathname) {
    path.iter().for_each(|name| f.text("nfs.pathname.component", name));
}
