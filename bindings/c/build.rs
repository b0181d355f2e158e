//! Names the shared library for the run-time linker: a program asks for the name that it was linked
//! with.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // With the first number of the version, which changes when the header's promises do.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhither.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
    // Its threads run until the daemon's end is read: dlclose(3) leaves their code where it is.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
