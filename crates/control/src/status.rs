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
        let pem = store.certificate(&subject)?;
        let mut record = store.record(&subject);
        let read = pem.map(|(pem, _)| KeyedChain::parse(pem)).transpose();
        let info = read.unwrap_or_else(|error| {
            record.last_error = Some((SystemTime::UNIX_EPOCH, error));
            None
        });
        Ok(CertificateStatus::of_record(&subject, info.map(|chain| chain.info), &record))
    };
    store.subjects()?.into_iter().map(status).collect()
}
