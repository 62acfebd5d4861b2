//! OCSP stapling for the certificates that the server presents.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::{OcspStapler, StapleEnvironment, StapleOwner, StapledCertificate};
use logging::notice::ErrorLog;
use net::ServerCertificate;

/// Timeout of a request to a responder.
const REQUEST_MAX: Duration = Duration::from_secs(15);

/// The OCSP stapler, whose thread is started for the first certificate that names a responder. Clones share
/// it.
#[derive(Clone, Default)]
pub struct Staples(Arc<Mutex<Option<OcspStapler>>>);

impl Staples {
    /// Keeps OCSP responses for `certificates`, each with its name for the log, and for no others of this
    /// owner.
    pub(crate) fn watch(
        &self,
        owner: StapleOwner,
        certificates: &[(String, ServerCertificate)],
        log: &ErrorLog,
    ) {
        let named = certificates.iter().filter_map(|(name, certificate)| {
            let info = certificate.info();
            let theirs = certificate.clone();
            Some(StapledCertificate {
                name: name.clone(),
                chain: certificate.chain_der().map(<[u8]>::to_vec).collect(),
                responder: info.ocsp_responder.clone()?,
                is_required: info.is_staple_required,
                staple: Box::new(move |response| theirs.staple(response)),
            })
        });
        let named: Vec<_> = named.collect();
        let mut stapler = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stapler.is_none() && !named.is_empty() {
            match OcspStapler::start(environment(log)) {
                Ok(started) => *stapler = Some(started),
                Err(error) => log.error(&format!("no OCSP responses are fetched: {error}")),
            }
        }
        if let Some(stapler) = &*stapler {
            stapler.watch(owner, named);
        }
    }
}

fn environment(log: &ErrorLog) -> StapleEnvironment {
    let warn = log.clone();
    let info = log.clone();
    StapleEnvironment {
        now: Arc::new(SystemTime::now),
        request_max: REQUEST_MAX,
        retry_first: Duration::from_secs(30),
        retry_max: Duration::from_secs(3_600),
        check_interval: Duration::from_secs(60),
        warn: Arc::new(move |text| warn.warn(text)),
        info: Arc::new(move |text| info.info(text)),
    }
}

/// Explains why a must-staple certificate can never have an OCSP response; `None` if it can, or needs none.
pub(crate) fn must_staple_problem(certificate: &ServerCertificate) -> Option<&'static str> {
    let info = certificate.info();
    if !info.is_staple_required {
        return None;
    }
    match (&info.ocsp_responder, certificate.chain_der().count()) {
        (None, _) => Some("demands an OCSP response (must-staple) and names no responder: clients refuse it"),
        (Some(_), 1) => Some(
            "demands an OCSP response (must-staple), which takes its issuer's certificate: append that to the file",
        ),
        _ => None,
    }
}
