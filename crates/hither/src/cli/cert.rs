//! The arguments of `hither cert`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `hither cert`.
#[derive(Debug, Args, Clone)]
pub struct CertArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: CertCommand,
}

/// Actions on a directory of certificates.
#[derive(Debug, Subcommand, Clone)]
pub enum CertCommand {
    /// Make or renew the certificate of a server, and the authority if the directory has none
    Server {
        /// The directory of the authority; its key ca.key stays secret
        dir: PathBuf,
        /// All names and addresses by which clients mount the server; the first one names the files
        #[arg(required = true, value_name = "NAME|ADDRESS")]
        names: Vec<String>,
        /// Days until the certificate expires
        #[arg(long, default_value_t = 397, value_parser = clap::value_parser!(u64).range(1..=3650))]
        days: u64,
    },
    /// Make or renew the certificate of a client, and the authority if the directory has none
    Client {
        /// The directory of the authority; its key ca.key stays secret
        dir: PathBuf,
        /// The name by which the server knows the client; it names the files
        name: String,
        /// Days until the certificate expires
        #[arg(long, default_value_t = 397, value_parser = clap::value_parser!(u64).range(1..=3650))]
        days: u64,
    },
    /// Add a certificate to the authority's list of revoked certificates, crl.pem
    Revoke {
        /// The directory of the authority
        dir: PathBuf,
        /// The certificate
        certificate: PathBuf,
    },
}
