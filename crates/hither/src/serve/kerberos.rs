//! The option for Kerberos: the keys of the server.

use crate::exit::Failure;
use crate::kerberos;
use clap::Args;
use hither_rpc::Flavor;
use hither_rpc::gss::GssAcceptor;
use hither_server::exports::{Client, Exports};
use std::path::PathBuf;
use std::sync::Arc;

/// The options.
#[derive(Debug, Args, Clone, Default)]
pub struct KerberosArgs {
    /// The keys of nfs/HOST for exports with `sec=krb5`, `krb5i` or `krb5p`; by default
    /// /etc/krb5.keytab
    #[arg(long, value_name = "FILE")]
    pub keytab: Option<PathBuf>,
}

impl KerberosArgs {
    /// Accepts contexts, also for exports that are added later. `None`: this build has no Kerberos.
    ///
    /// # Errors
    /// The named file has no usable keys.
    pub fn open(&self) -> Result<Option<Arc<GssAcceptor>>, Failure> {
        let keytab = self.keytab.as_deref();
        if keytab.is_some() {
            kerberos::check_keys(keytab).map_err(|why| Failure::usage(format!("--keytab: {why}")))?;
        }
        let mechanism = kerberos::mechanism(keytab).ok();
        Ok(mechanism.map(|mechanism| GssAcceptor::new(mechanism, Box::new(kerberos::ids_of))))
    }

    /// Checks that the server has keys if an export accepts Kerberos, and that exports to some
    /// principals accept Kerberos only.
    ///
    /// # Errors
    /// A line that names the first such entry and the reason.
    pub fn check(&self, exports: &Exports) -> Result<(), Failure> {
        let mut clients = exports.entries.iter().flat_map(|entry| &entry.clients);
        let trusts = |client: &&Client| {
            let unproven = |flavor: Flavor| flavor.service().is_none();
            !client.rights.principals.are_all() && client.rights.flavors.iter().any(unproven)
        };
        if let Some(client) = clients.clone().find(trusts) {
            return Err(Failure::usage(format!(
                "{}: principal={}: callers with sec=sys have no principal: give sec=krb5, krb5i or krb5p, without sys",
                client.at, client.rights.principals
            )));
        }
        let Some(client) = clients.find(|client| client.rights.flavors.uses_kerberos()) else {
            return Ok(());
        };
        kerberos::check_keys(self.keytab.as_deref())
            .map_err(|why| Failure::usage(format!("{}: sec={}: {why}", client.at, client.rights.flavors)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A principal proves nothing where the server also believes numbers.
    #[test]
    fn principal_needs_kerberos_alone() {
        for (line, is_refused) in [
            ("/a *(principal=alice@R)", true),
            ("/a *(sec=krb5:sys,principal=alice@R)", true),
            ("/a *(sec=sys)", false),
        ] {
            let mut exports = Exports::default();
            exports.add("exports", line.as_bytes()).unwrap();
            let refused = KerberosArgs::default().check(&exports).err().map(|failure| failure.line);
            assert_eq!(refused.is_some(), is_refused, "{line}: {refused:?}");
            assert!(refused.is_none_or(|why| why.starts_with("exports:1: principal=alice@R: ")), "{line}");
        }
    }
}
