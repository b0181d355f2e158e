//! A Vfs becomes a mount: the /dev/fuse layer.
