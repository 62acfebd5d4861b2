//! Verification of signed URLs; signatures are implemented in `admission`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use admission::auth::{Auth, AuthKind};
use admission::{SignedRefusal, UrlKeys};
use failure::IoFailure;
use http::{EmptySegments, Fields, Name, Status};
use net::{Exchange, Fault, Peer};
use process::config_files::ConfigFiles;
use times::UnixSeconds;

const GONE: Status = Status::of(410).expect("three digits");

/// Keys of all `signed` directives of a configuration.
#[derive(Default)]
pub(super) struct SignedPlan(Vec<(Auth, Arc<SignedUrls>)>);

/// Keys of one `signed` directive.
pub(crate) struct SignedUrls {
    keys: UrlKeys,
    is_client_bound: bool,
}

impl SignedPlan {
    pub(super) fn new(auths: &[&Auth], files: &ConfigFiles) -> io::Result<SignedPlan> {
        let mut plan = SignedPlan::default();
        for &auth in auths {
            let Some(AuthKind::Signed(signed)) = auth.kind().filter(|_| plan.of(auth).is_none()) else {
                continue;
            };
            let keys = match (&signed.secret, &signed.secret_file) {
                (Some(secret), _) => UrlKeys::new([secret]),
                (None, Some(file)) => parse_keys(&files.read(file)?, file)?,
                (None, None) => UrlKeys::new::<&str>([]),
            };
            plan.0.push((auth.clone(), Arc::new(SignedUrls { keys, is_client_bound: signed.client })));
        }
        Ok(plan)
    }

    pub(super) fn of(&self, auth: &Auth) -> Option<Arc<SignedUrls>> {
        self.0.iter().find(|(of, _)| of == auth).map(|(_, urls)| urls.clone())
    }
}

/// Parses a file of keys with one secret per line.
///
/// # Errors
/// The file has no secret, or one that is too easy to guess. The message names the line and the remedy.
pub fn parse_keys(bytes: &[u8], file: &Path) -> io::Result<UrlKeys> {
    let invalid = |text: String| {
        let title = format!("`auth.signed` {}: {text}", file.display());
        io::Error::new(io::ErrorKind::InvalidData, title).about(file)
    };
    let text = std::str::from_utf8(bytes).map_err(|_| invalid("it is not text".into()))?;
    let mut secrets = Vec::new();
    for (at, line) in text.lines().map(str::trim_end).enumerate().filter(|(_, line)| !line.is_empty()) {
        secrets
            .push(shapes::names::token(line).map_err(|fault| invalid(format!("line {}: {fault}", at + 1)))?);
    }
    if secrets.is_empty() {
        Err(invalid("it has no secret: `openssl rand -hex 32` makes one".into()))
    } else {
        Ok(UrlKeys::new(secrets))
    }
}

impl SignedUrls {
    /// Verifies the URL of a request. Returns `false` if it had no valid signature or has expired: the
    /// request has then been answered with 403 or 410.
    pub(super) async fn authenticate(&self, exchange: &mut Exchange<'_>) -> Result<bool, Fault> {
        let request = exchange.request();
        let address = match request.client().address {
            Peer::Tcp(address) => address.ip().to_canonical().to_string(),
            Peer::Unix => String::new(),
        };
        let client = self.is_client_bound.then_some(address.as_str());
        // Empty segments are part of the signature, because a handler may see them.
        let path = request.matched_path(EmptySegments::AsSent)?;
        let query = request.query().unwrap_or_default();
        let now = UnixSeconds(exchange.core().unix_s());
        let (status, reason) = match self.keys.verify(&path, query, client, now) {
            Ok(()) => {
                exchange.set_authorized();
                return Ok(true);
            }
            Err(SignedRefusal::Invalid) => (Status::FORBIDDEN, "this address has no valid signature"),
            Err(SignedRefusal::Expired) => (GONE, "this address is no longer valid"),
        };
        let mut fields = Fields::new();
        fields.push(Name::CacheControl, b"no-store");
        exchange.refuse_with(status, reason, &fields).await?;
        Ok(false)
    }
}
