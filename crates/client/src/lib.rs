//! An NFS server becomes a Vfs.
