//! The security flavors that mounts and exports name (`sec=`).

use hither_proto::rpc::AuthFlavor;
use hither_proto::rpc::gss::GssService;
use std::fmt;
use std::str::FromStr;

/// How calls prove the identity of their users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flavor {
    /// User and group numbers, which the server trusts (RFC 5531 appendix A).
    #[default]
    Sys,
    /// Kerberos 5 (RFC 2623).
    Krb5,
    /// Kerberos 5 with checksums of all data.
    Krb5i,
    /// Kerberos 5 with encryption of all data.
    Krb5p,
}

impl Flavor {
    /// All flavors, the weakest first.
    pub const ALL: [Self; 4] = [Self::Sys, Self::Krb5, Self::Krb5i, Self::Krb5p];

    /// The flavor with this number, if this crate supports it.
    pub fn of(number: AuthFlavor) -> Option<Self> {
        Some(match number {
            AuthFlavor::SYS => Self::Sys,
            AuthFlavor::KRB5 => Self::Krb5,
            AuthFlavor::KRB5I => Self::Krb5i,
            AuthFlavor::KRB5P => Self::Krb5p,
            _ => return None,
        })
    }

    /// The flavor with this service of RPCSEC_GSS.
    pub fn of_service(service: GssService) -> Self {
        match service {
            GssService::INTEGRITY => Self::Krb5i,
            GssService::PRIVACY => Self::Krb5p,
            _ => Self::Krb5,
        }
    }

    /// Number of the flavor in lists of servers.
    pub fn number(self) -> AuthFlavor {
        match self {
            Self::Sys => AuthFlavor::SYS,
            Self::Krb5 => AuthFlavor::KRB5,
            Self::Krb5i => AuthFlavor::KRB5I,
            Self::Krb5p => AuthFlavor::KRB5P,
        }
    }

    /// The service of RPCSEC_GSS; `None`: the flavor does not use it.
    pub fn service(self) -> Option<GssService> {
        match self {
            Self::Sys => None,
            Self::Krb5 => Some(GssService::NONE),
            Self::Krb5i => Some(GssService::INTEGRITY),
            Self::Krb5p => Some(GssService::PRIVACY),
        }
    }

    /// Name of the flavor in options of mounts and exports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sys => "sys",
            Self::Krb5 => "krb5",
            Self::Krb5i => "krb5i",
            Self::Krb5p => "krb5p",
        }
    }
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Flavor {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|flavor| flavor.name() == name).ok_or(())
    }
}
