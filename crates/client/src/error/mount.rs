//! Reasons for a failed mount. Each is one line: the failure, the place, and the remedy.

use hither_proto::rpc::AuthStat;
use hither_rpc::tls::TlsError;
use hither_rpc::{CallError, Flavor, PortmapError};
use std::io;
use std::net::SocketAddr;

/// A program on the server, as named in error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// The NFS server itself.
    Nfs,
    /// mountd, which gives out the root filehandle of NFSv3 exports.
    Mount,
    /// rpcbind, which knows the ports of the other programs.
    Rpcbind,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Service::Nfs => "NFS",
            Service::Mount => "mountd (MOUNT v3)",
            Service::Rpcbind => "rpcbind",
        }
    }
}

impl std::fmt::Display for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason for the refusal of a flavor, and the remedy. A server that offers the flavor refuses
/// the connection.
fn security_hint(wanted: Flavor, flavors: &[Flavor], offered: &str) -> String {
    if flavors.contains(&wanted) {
        return format!(
            "the server offers sec={offered} and refuses this connection; the export may require xprtsec=tls, or \
             xprtsec=mtls with a client certificate"
        );
    }
    format!(
        "the server asks for sec={offered}, and the mount uses sec={wanted}; mount with a flavor of the server, \
         allow `{wanted}` in the export, or mount with xprtsec=tls if the export requires TLS"
    )
}

/// Reason for a failed mount. `Display` gives the line for the user. [`MountError::exit_code`]
/// gives the exit status of a mount(8) helper.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The name does not resolve.
    #[error("{server}: no such host ({cause}); check the name, /etc/hosts and DNS")]
    NoSuchHost {
        /// Server as written.
        server: String,
        /// Error text of the resolver.
        cause: String,
    },
    /// The server refuses the connection: no program listens on the port.
    #[error(
        "{server}: {service} at {addr} refuses connections; is it running, and is the port right ({option})?"
    )]
    Refused {
        /// Server as written.
        server: String,
        /// Program that should listen.
        service: Service,
        /// Address of the program.
        addr: SocketAddr,
        /// The option that changes the port.
        option: &'static str,
    },
    /// The address is unreachable: for example no route, or the network is down.
    #[error("{server}: {service} at {addr} cannot be reached ({cause}); check network, routes and firewalls")]
    Unreachable {
        /// Server as written.
        server: String,
        /// Program that the client called.
        service: Service,
        /// Address of the program.
        addr: SocketAddr,
        /// Error text of the system.
        cause: String,
    },
    /// No answer in time.
    #[error(
        "{server}: {service} at {addr} does not answer; the server may be down or a firewall drops the packets"
    )]
    TimedOut {
        /// Server as written.
        server: String,
        /// Program that the client called.
        service: Service,
        /// Address of the program.
        addr: SocketAddr,
    },
    /// The connection needs a local port below 1024, and none is available.
    #[error(
        "{server}: no privileged local port for the connection ({cause}); run as root, or use noresvport if the \
         server allows it (export option `insecure`)"
    )]
    NoPrivilegedPort {
        /// Server as written.
        server: String,
        /// Error text of the system.
        cause: String,
    },
    /// There is no TLS session with the server.
    #[error("{server}: {service} at {addr}: {cause}{}", tls_hint(*service, cause))]
    Tls {
        /// Server as written.
        server: String,
        /// Program that the client called.
        service: Service,
        /// Address of the program.
        addr: SocketAddr,
        /// The reason, with the remedy.
        cause: TlsError,
    },
    /// The export exists, but the server denies it to this client.
    #[error("{server}:{path}: access denied by the server; {hint}")]
    AccessDenied {
        /// Server as written.
        server: String,
        /// Exported path.
        path: String,
        /// The remedy.
        hint: String,
    },
    /// The machine has no Kerberos context with the server.
    #[error(
        "{server}:{path}: {cause}; a mount needs the machine's keys in /etc/krb5.keytab (see: klist -k), and the \
         server those of nfs/{server}"
    )]
    Kerberos {
        /// Server as written.
        server: String,
        /// Exported path.
        path: String,
        /// The reason, in the words of the Kerberos library.
        cause: String,
    },
    /// The server requires another security flavor.
    #[error("{server}:{path}: {}", security_hint(*wanted, flavors, offered))]
    WrongSecurity {
        /// Server as written.
        server: String,
        /// Exported path.
        path: String,
        /// The flavor of the mount.
        wanted: Flavor,
        /// Flavors that the server offers and mounts can use.
        flavors: Vec<Flavor>,
        /// Flavors that the server offers, joined by `:`.
        offered: String,
    },
    /// The server has no such path, or hides the path from this client. Many servers do not
    /// distinguish the two cases.
    #[error("{server}:{path}: no such export or directory for this client{}", exports_hint(exports.as_deref()))]
    NoSuchExport {
        /// Server as written.
        server: String,
        /// The requested path.
        path: String,
        /// The server's exports, when the server lists them.
        exports: Option<Vec<String>>,
    },
    /// The path is a file.
    #[error("{server}:{path}: not a directory; mount the directory that contains it")]
    NotDirectory {
        /// Server as written.
        server: String,
        /// The requested path.
        path: String,
    },
    /// The server does not speak this version.
    #[error("{server}: the server does not offer {what}{}", offered_hint(offered.as_deref()))]
    VersionNotSupported {
        /// Server as written.
        server: String,
        /// The requested protocol and version: `NFS version 4.2`.
        what: String,
        /// Versions that the server offers, when the server lists them.
        offered: Option<String>,
    },
    /// A program is not registered with rpcbind.
    #[error(
        "{server}: {service} over TCP is not registered with the server's rpcbind; start it there, or set {option}"
    )]
    NotRegistered {
        /// Server as written.
        server: String,
        /// The program.
        service: Service,
        /// The option that replaces the query to rpcbind.
        option: &'static str,
    },
    /// The server does not follow the protocol.
    #[error("{server}: {service} does not follow the protocol: {cause}")]
    Protocol {
        /// Server as written.
        server: String,
        /// The program.
        service: Service,
        /// The violation.
        cause: String,
    },
    /// Any other refusal.
    #[error("{server}:{path}: {cause}")]
    Failed {
        /// Server as written.
        server: String,
        /// Exported path.
        path: String,
        /// The server's reason.
        cause: String,
    },
    /// The user interrupted the mount.
    #[error("interrupted")]
    Interrupted,
}

fn exports_hint(exports: Option<&[String]>) -> String {
    const SHOWN: usize = 8;
    match exports {
        None => "; check the path against the server's exports".to_owned(),
        Some([]) => "; the server exports nothing".to_owned(),
        Some(list) => {
            let more = if list.len() > SHOWN { ", ..." } else { "" };
            format!("; the server exports {}{more}", list[..list.len().min(SHOWN)].join(", "))
        }
    }
}

/// MOUNT servers often lack TLS where the NFS server has it.
fn tls_hint(service: Service, cause: &TlsError) -> &'static str {
    match (service, cause) {
        (Service::Mount, TlsError::NotOffered(_) | TlsError::NoSuchVersion { .. }) => {
            "; NFSv4 needs no MOUNT service: vers=4.2"
        }
        _ => "",
    }
}

fn offered_hint(offered: Option<&str>) -> String {
    match offered {
        None => "; try another vers=, or none to negotiate".to_owned(),
        Some(o) => format!(" (it offers {o}); try another vers=, or none to negotiate"),
    }
}

impl MountError {
    /// Exit status of a mount(8) helper: 2 for an error of this system, 8 for an interrupt, 32 for
    /// a failed mount.
    pub fn exit_code(&self) -> u8 {
        match self {
            MountError::NoPrivilegedPort { .. } => 2,
            MountError::Interrupted => 8,
            _ => 32,
        }
    }

    /// Whether the server may speak another version of NFS. In that case negotiation continues.
    pub fn other_version_may_work(&self) -> bool {
        matches!(self, MountError::VersionNotSupported { .. })
    }

    /// Whether a later attempt may succeed (`retry=` of nfs(5)), because the server was absent.
    pub fn is_transient(&self) -> bool {
        match self {
            MountError::Refused { .. }
            | MountError::Unreachable { .. }
            | MountError::TimedOut { .. }
            | MountError::NotRegistered { .. } => true,
            MountError::Tls { cause, .. } => cause.is_transient(),
            _ => false,
        }
    }

    /// The reason for a failed mount of `server:path`, from a failed call to `service` at `addr`.
    /// `what` is the protocol and version of the call, for example `NFS version 3`.
    pub fn from_call(
        server: &str,
        path: &str,
        service: Service,
        addr: SocketAddr,
        what: &str,
        e: CallError,
    ) -> Self {
        let server = server.to_owned();
        match e {
            CallError::Connect(e) => match TlsError::of(&e) {
                Some(TlsError::NoSuchVersion { offered }) => Self::VersionNotSupported {
                    server,
                    what: what.to_owned(),
                    offered: offered.map(|(low, high)| versions(low, high)),
                },
                Some(cause) => Self::Tls { server, service, addr, cause: cause.clone() },
                None => Self::from_io(server, service, addr, &e),
            },
            CallError::TimedOut(_) | CallError::DeadlinePassed => Self::TimedOut { server, service, addr },
            CallError::Cancelled | CallError::Shutdown => Self::Interrupted,
            CallError::Denied(stat) => {
                Self::AccessDenied { server, path: path.to_owned(), hint: denied_hint(stat) }
            }
            CallError::ProgUnavail => {
                Self::VersionNotSupported { server, what: what.to_owned(), offered: None }
            }
            CallError::ProgMismatch { low, high } => Self::VersionNotSupported {
                server,
                what: what.to_owned(),
                offered: Some(versions(low, high)),
            },
            CallError::Gss(e) => Self::Kerberos { server, path: path.to_owned(), cause: e.to_string() },
            e => Self::Protocol { server, service, cause: e.to_string() },
        }
    }

    /// The reason for a failed mount, from a failed query to rpcbind at `addr`. `option` names the
    /// mount option that replaces the query.
    pub fn from_portmap(
        server: &str,
        service: Service,
        addr: SocketAddr,
        option: &'static str,
        e: PortmapError,
    ) -> Self {
        let server = server.to_owned();
        match e {
            PortmapError::NotRegistered { .. } => Self::NotRegistered { server, service, option },
            PortmapError::Unreachable { cause: CallError::Connect(e), .. } => {
                match Self::from_io(server, Service::Rpcbind, addr, &e) {
                    Self::Refused { server, service, addr, .. } => {
                        Self::Refused { server, service, addr, option }
                    }
                    other => other,
                }
            }
            PortmapError::Unreachable { .. } => Self::TimedOut { server, service: Service::Rpcbind, addr },
            PortmapError::Refused { cause, .. } => {
                Self::Protocol { server, service: Service::Rpcbind, cause: cause.to_string() }
            }
        }
    }

    fn from_io(server: String, service: Service, addr: SocketAddr, e: &io::Error) -> Self {
        match (e.kind(), e.raw_os_error()) {
            (io::ErrorKind::ConnectionRefused, _) => Self::Refused {
                server,
                service,
                addr,
                option: match service {
                    Service::Nfs => "port=",
                    Service::Mount => "mountport=",
                    Service::Rpcbind => "port= and mountport=",
                },
            },
            (io::ErrorKind::TimedOut, _) => Self::TimedOut { server, service, addr },
            // Error of bind(2) to a port below 1024: the port is forbidden, or no port is free.
            (
                io::ErrorKind::PermissionDenied | io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable,
                _,
            ) => Self::NoPrivilegedPort { server, cause: e.to_string() },
            _ => Self::Unreachable { server, service, addr, cause: e.to_string() },
        }
    }
}

fn versions(low: u32, high: u32) -> String {
    if low == high { format!("{low}") } else { format!("{low} to {high}") }
}

fn denied_hint(stat: AuthStat) -> String {
    match stat {
        AuthStat::TOOWEAK => {
            "the server requires stronger authentication (sec=), or a privileged source port (resvport)"
                .into()
        }
        stat => format!("the server refuses the credential ({stat:?})"),
    }
}
