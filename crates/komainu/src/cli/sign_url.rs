//! `komainu sign-url`: signs a URL for routes with `auth = { signed = … }`, valid until a given time.

use std::time::{SystemTime, UNIX_EPOCH};

use admission::{EXPIRES, SIGNATURE};
use failure::{Failure, FailureContext};
use http::EmptySegments;
use http::path::{encoded_path, matched_path};
use steps::auth;
use times::UnixSeconds;

use crate::cli::sign_url_arguments::SignUrlArguments;

/// Returns the signed URL.
///
/// # Errors
/// The secret cannot be read, or the URL has no valid path.
pub(crate) fn sign_url(arguments: &SignUrlArguments) -> Result<String, Failure> {
    let file = &arguments.secret_file;
    let bytes = std::fs::read(file).with_context(|| file.display())?;
    let keys = auth::url_keys(&bytes, file)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let until = match arguments.until {
        Some(until_s) => UnixSeconds(until_s),
        None => UnixSeconds(now.as_secs()) + config::parse_duration(&arguments.valid).context("--for")?,
    };
    let url = arguments.url.split('#').next().unwrap_or_default();
    let begin = match url.split_once("://").filter(|(scheme, _)| !scheme.contains(['/', '?'])) {
        None => 0,
        Some((scheme, rest)) if ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) => {
            url.len() - rest.len() + rest.find(['/', '?']).unwrap_or(rest.len())
        }
        Some((scheme, _)) => {
            return Err(Failure::new(format!(
                "{url}: `{scheme}` is not a scheme of a web server: write https://HOST/PATH or /PATH"
            )));
        }
    };
    let (origin, rest) = url.split_at(begin);
    let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
    if !path.starts_with('/') {
        return Err(Failure::new(format!("{url}: this has no path: write https://HOST/PATH or /PATH")));
    }
    if query.is_some_and(|query| {
        query.split('&').any(|part| {
            part.starts_with(&format!("{EXPIRES}=")) || part.starts_with(&format!("{SIGNATURE}="))
        })
    }) {
        return Err(Failure::new(format!("{url}: it has `{EXPIRES}` or `{SIGNATURE}` already")));
    }
    let refused = |reject: http::Reject| Failure::new(reject.reason).context(url);
    let path = path.replace(' ', "%20");
    let decoded = matched_path(path.as_bytes(), EmptySegments::AsSent).map_err(refused)?;
    let encoded = encoded_path(path.as_bytes(), EmptySegments::AsSent).map_err(refused)?;
    let signature = keys.sign(&decoded, until, arguments.client.map(|ip| ip.to_string()).as_deref());
    let signature = signature.ok_or("there is no secret")?;
    let query = query.filter(|query| !query.is_empty()).map(|query| format!("{query}&")).unwrap_or_default();
    let path = String::from_utf8_lossy(&encoded);
    Ok(format!("{origin}{path}?{query}{EXPIRES}={until}&{SIGNATURE}={signature}\n"))
}
