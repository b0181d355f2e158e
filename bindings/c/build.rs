//! Names the shared library for the run-time linker. A program asks for the name with which it was
//! linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The name carries the major version, which changes with the promises of the header.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhither.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
    // The library's threads run until they have read the end of the connection. dlclose(3) must
    // therefore leave their code loaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
