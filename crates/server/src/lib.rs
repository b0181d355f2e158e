//! A [`Vfs`](hither_vfs::Vfs) becomes an NFS server.
//!
//! It knows nothing of disks, caches or FUSE, and of sockets only what `hither-rpc` hands it. Calls come in decoded as far
//! as their RPC header; each program version has a module that decodes the arguments, maps the caller to the identity that
//! the export gives him, calls the `Vfs`, and encodes the answer.

#![forbid(unsafe_code)]
