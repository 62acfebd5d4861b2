//! Status of certificates.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use failure::Failure;

use crate::certificate::{CertificateFacts, KeyedChain};
use crate::state_folder::{CertificateRecord, StateFolder};
use crate::subject::Subject;

/// Status of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateStatus {
    /// Name or address of the certificate.
    pub name: String,
    /// Issuer and validity period; `None` if there is no certificate yet.
    pub info: Option<CertificateFacts>,
    /// Directory that issued it; `None` for the local authority.
    pub directory: Option<String>,
    /// Time of the renewal.
    pub renew_at: Option<SystemTime>,
    /// Time of the next order, if the last one failed.
    pub retry_at: Option<SystemTime>,
    /// Time and reason of the last failure.
    pub last_error: Option<(SystemTime, String)>,
}

impl CertificateStatus {
    /// Returns the status of a subject without a certificate.
    pub(crate) fn unknown(subject: &Subject) -> CertificateStatus {
        CertificateStatus::of_record(subject, None, &CertificateRecord::default())
    }

    /// Returns the status of a stored certificate.
    pub(crate) fn of_record(
        subject: &Subject,
        info: Option<CertificateFacts>,
        record: &CertificateRecord,
    ) -> CertificateStatus {
        CertificateStatus {
            name: subject.to_string(),
            info,
            directory: record.directory.clone(),
            renew_at: record.renew_at,
            retry_at: record.retry_at,
            last_error: record.last_error.clone(),
        }
    }
}

/// Returns the contents of a state folder, sorted by name, whether or not a server is running.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn list(state: &Path) -> io::Result<Vec<CertificateStatus>> {
    let store = StateFolder::existing(state);
    let status = |subject: Subject| {
        let mut record = store.record(&subject);
        let pem = store.certificate(&subject).map_err(Failure::new);
        let read = pem.and_then(|pem| pem.map(|(pem, _)| KeyedChain::parse(pem)).transpose());
        let info = read.unwrap_or_else(|error| {
            let written = store.certificate_time(&subject).unwrap_or(SystemTime::UNIX_EPOCH);
            record.last_error = Some((written, format!("the stored certificate is not used: {error}")));
            // The stored time of the next attempt concerns a failed order, not this failure.
            (record.renew_at, record.retry_at) = (None, None);
            None
        });
        CertificateStatus::of_record(&subject, info.map(|chain| chain.info), &record)
    };
    Ok(store.subjects()?.into_iter().map(status).collect())
}
