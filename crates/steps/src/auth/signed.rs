//! Signed URLs in front of routes: `admission` signs and verifies.

use std::io;
use std::path::Path;
use std::sync::Arc;

use admission::{SignedRefusal, UrlKeys};
use config::{Auth, AuthKind, Config};
use http::{EmptySegments, Fields, Name, Status};
use net::{Exchange, Fault, Peer};

use process::config_files::ConfigFiles;

const GONE: Status = Status::of(410).expect("three digits");

/// The keys that a configuration signs with.
#[derive(Default)]
pub(super) struct SignedPlan(Vec<(Auth, Arc<SignedUrls>)>);

/// The keys of one `signed`.
pub(crate) struct SignedUrls {
    keys: UrlKeys,
    of_client: bool,
}

impl SignedPlan {
    pub(super) fn new(config: &Config, files: &ConfigFiles) -> io::Result<SignedPlan> {
        let mut plan = SignedPlan::default();
        for auth in config.auths() {
            let Some(AuthKind::Signed(signed)) = auth.kind().filter(|_| plan.of(auth).is_none()) else {
                continue;
            };
            let keys = match (&signed.secret, &signed.secret_file) {
                (Some(secret), _) => UrlKeys::new([secret]),
                (None, Some(file)) => keys_of(&files.read(file)?, file)?,
                (None, None) => UrlKeys::new::<&str>([]),
            };
            plan.0.push((auth.clone(), Arc::new(SignedUrls { keys, of_client: signed.client })));
        }
        Ok(plan)
    }

    pub(super) fn of(&self, auth: &Auth) -> Option<Arc<SignedUrls>> {
        self.0.iter().find(|(of, _)| of == auth).map(|(_, urls)| urls.clone())
    }
}

/// The keys in a file: one secret on a line.
///
/// # Errors
/// There is none, or one that could be guessed, with its line and the remedy.
pub fn keys_of(bytes: &[u8], file: &Path) -> io::Result<UrlKeys> {
    let invalid = |text: String| {
        io::Error::new(io::ErrorKind::InvalidData, format!("`auth.signed` {}: {text}", file.display()))
    };
    let text = std::str::from_utf8(bytes).map_err(|_| invalid("it is not text".into()))?;
    let mut secrets = Vec::new();
    for (at, line) in text.lines().map(str::trim_end).enumerate().filter(|(_, line)| !line.is_empty()) {
        secrets.push(config::token(line).map_err(|fault| invalid(format!("line {}: {fault}", at + 1)))?);
    }
    match secrets.is_empty() {
        true => Err(invalid("it has no secret: `openssl rand -hex 32` makes one".into())),
        false => Ok(UrlKeys::new(secrets)),
    }
}

impl SignedUrls {
    /// Answers a request whose URL is not signed, or no longer. Returns whether it may be served.
    pub(super) async fn admit(&self, x: &mut Exchange<'_>) -> Result<bool, Fault> {
        let request = x.request();
        let address = match request.client().address {
            Peer::Tcp(address) => address.ip().to_canonical().to_string(),
            Peer::Unix => String::new(),
        };
        let client = self.of_client.then_some(address.as_str());
        // Empty segments are signed as any other part of the path: a handler may get them.
        let path = request.matched_path(EmptySegments::AsSent)?;
        let query = request.query().unwrap_or_default();
        let (status, reason) = match self.keys.verify(&path, query, client, x.core().unix_s()) {
            Ok(()) => {
                x.set_authorized();
                return Ok(true);
            }
            Err(SignedRefusal::Invalid) => (Status::FORBIDDEN, "this address has no valid signature"),
            Err(SignedRefusal::Expired) => (GONE, "this address is no longer valid"),
        };
        let mut fields = Fields::new();
        fields.push(Name::CacheControl, b"no-store");
        x.refuse_with(status, reason, &fields).await?;
        Ok(false)
    }
}
