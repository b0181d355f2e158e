//! Results whose payload waits in a pipe: what is before it and after it, and the payload itself.

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

/// As the connection takes it.
pub(crate) fn payload(pipe: Box<dyn Pipe>) -> Box<dyn Piped> {
    Box::new(Payload(pipe))
}

/// Makes room for a payload of `len` bytes at the end of `before`, which ends in one without any;
/// `after` begins with its padding.
pub(crate) fn around(before: &mut Enc, len: u32, after: &mut Enc) {
    before.patch_u32(before.len() - 4, len);
    after.raw(&[0; 3][..(len as usize).wrapping_neg() & 3]);
}
