//! Background work on dedicated threads: certificates, and the export of spans, metrics and logs to a
//! collector.
//!
//! This crate owns certificate orders (ACME, RFC 8555), the state folder with accounts, keys and
//! certificates, the local authority for private names, and the renewal schedule of each certificate. It is
//! the only crate that uses tokio. It never touches a request: serving threads receive certificates
//! through [`CertificateSink`], and look up tokens in [`HttpChallenges`].
//!
//! Modules, from low to high; a module uses only those above it.

mod subject;

mod certificate;

mod schedule;

mod store;

mod sink;

mod client;

mod otlp;

mod spans;

mod ocsp;

mod staple;

mod demand;

mod hook;

mod dns;

mod tsig;

mod dns_update;

mod records;

mod problem;

mod order;

mod local;

mod trust;

mod status;

mod orders;

mod renewer;

pub use certificate::CertificateFacts;
pub use demand::client_network;
pub use dns_update::DnsServer;
pub use local::LocalAuthority;
pub use order::{ChallengeKind, Directory, ExternalAccount, Options};
pub use orders::RenewerEnvironment;
pub use otlp::{
    OtlpSendError, OtlpClient, OtlpLog, OtlpOptions, OtlpReport, OtlpSignal, RefusedItems, attribute,
    attribute_number,
};
pub use records::DnsRecords;
pub use renewer::{CertificateRenewer, MissingNames};
pub use schedule::Intervals;
pub use sink::{CertificateSink, HttpChallenges};
pub use spans::{EndedSpan, SpanExporter, SpanKind, SpanValue};
pub use staple::{OcspStapler, StapleEnvironment, StapleOwner, StapledCertificate};
pub use status::{CertificateStatus, list};
pub use store::StateFolder;
pub use subject::{Issuer, Subject};
pub use trust::{LocalRoot, TrustReport, TrustStores, trust, untrust};
pub use tsig::TsigKey;
