//! The status of certificates.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use crate::certificate::{CertificateFacts, KeyedChain};
use crate::store::{CertificateRecord, StateFolder};
use crate::subject::Subject;

/// The status of one certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateStatus {
    /// The name or address that it is for.
    pub name: String,
    /// Who issued it, and its lifetime; `None` where there is none yet.
    pub info: Option<CertificateFacts>,
    /// The directory that issued it; `None` for one of the local authority.
    pub directory: Option<String>,
    /// When it is renewed.
    pub renew_at: Option<SystemTime>,
    /// When the next order is tried, where the last one failed.
    pub retry_at: Option<SystemTime>,
    /// When the last order failed, and why.
    pub last_error: Option<(SystemTime, String)>,
}

impl CertificateStatus {
    /// Nothing is known yet.
    pub(crate) fn unknown(subject: &Subject) -> CertificateStatus {
        CertificateStatus::of_record(subject, None, &CertificateRecord::default())
    }

    /// By what is stored.
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

/// What a state folder holds, in the order of names, whether a server runs or not.
///
/// # Errors
/// Where the folder cannot be read.
pub fn list(state: &Path) -> io::Result<Vec<CertificateStatus>> {
    let store = StateFolder::existing(state);
    let status = |subject: Subject| {
        let mut record = store.record(&subject);
        let pem = store.certificate(&subject).map_err(|error| error.to_string());
        let read = pem.and_then(|pem| pem.map(|(pem, _)| KeyedChain::parse(pem)).transpose());
        let info = read.unwrap_or_else(|error| {
            let written = store.certificate_time(&subject).unwrap_or(SystemTime::UNIX_EPOCH);
            record.last_error = Some((written, format!("the stored certificate is not used: {error}")));
            // The time of the next attempt is that of a failed order, not of this.
            (record.renew_at, record.retry_at) = (None, None);
            None
        });
        CertificateStatus::of_record(&subject, info.map(|chain| chain.info), &record)
    };
    Ok(store.subjects()?.into_iter().map(status).collect())
}
