//! Results whose payload waits in a pipe: the bytes before the payload, the payload, and the bytes
//! after it.

use hither_proto::xdr::Enc;
use hither_rpc::server::Piped;
use hither_vfs::Pipe;
use std::os::fd::BorrowedFd;

#[derive(Debug)]
struct Payload(Box<dyn Pipe>);

impl Piped for Payload {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Wraps a pipe for the connection.
pub(crate) fn payload(pipe: Box<dyn Pipe>) -> Box<dyn Piped> {
    Box::new(Payload(pipe))
}

/// Inserts room for a payload of `len` bytes at the end of `before`, which ends in an empty opaque.
/// `after` receives the padding of the payload.
pub(crate) fn around(before: &mut Enc, len: u32, after: &mut Enc) {
    before.patch_u32(before.len() - 4, len);
    after.raw(&[0; 3][..(len as usize).wrapping_neg() & 3]);
}
