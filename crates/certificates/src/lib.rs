//! Certificates: those that the server presents, and how it obtains, renews and staples them.
//!
//! This crate owns the directives of ACME, certificate orders (ACME, RFC 8555), the state folder with accounts, keys and certificates,
//! the local authority for private names, the renewal schedule, OCSP responses, and the choice of a certificate
//! for a name. Its background threads use tokio. It never touches a request: serving threads receive
//! certificates through [`CertificateSink`], and look up tokens in [`HttpChallenges`].
//!
//! Modules, from low to high; a module uses only those above it.

pub mod directives;
pub mod certified_sites;
mod subject;

mod certificate;

mod schedule;

mod state_folder;

mod shared_files;

mod sink;

mod directory_client;

mod ocsp;

mod staple;

mod on_demand;

mod hook;

mod dns;

mod tsig;

mod dns_update;

mod dns_records;

mod problem;

mod order;

mod local;

mod trust;

mod status;

mod orders;

mod renewer;

pub mod staples;
pub mod tls;
pub mod managed;

pub use certificate::CertificateFacts;
pub use dns_records::DnsRecords;
pub use dns_update::DnsServer;
pub use local::LocalAuthority;
pub use on_demand::client_network;
pub use order::Options;
pub use orders::RenewerEnvironment;
pub use renewer::{CertificateRenewer, MissingNames};
pub use schedule::Intervals;
pub use sink::{CertificateSink, HttpChallenges};
pub use staple::{OcspStapler, StapleEnvironment, StapleOwner, StapledCertificate};
pub use state_folder::StateFolder;
pub use status::{CertificateStatus, list};
pub use subject::{Issuer, Subject};
pub use trust::{LocalRoot, TrustReport, TrustStores, trust, untrust};
pub use tsig::TsigKey;
