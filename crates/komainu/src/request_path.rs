//! The path of a request, as routes and handlers see it.

use std::borrow::Cow;
use std::rc::Rc;

use http::Reject;
use http::path::has_encoded_slash;
use net::{Exchange, Request};
use proxy::Script;

/// The path of a request.
#[derive(Clone, Default)]
pub(crate) struct RequestPath {
    /// It decoded; `None` where that changes nothing, so that nothing needs to be copied.
    pub(crate) decoded: Option<Vec<u8>>,
    /// Whether it has an encoded slash or backslash.
    pub(crate) has_encoded_slash: bool,
    /// The script that it is for, on a route with scripts.
    pub(crate) script: Option<Rc<Script>>,
}

impl RequestPath {
    /// The path of `request`.
    ///
    /// # Errors
    /// 400 where it has no normal form.
    pub(crate) fn of(request: &Request<'_>) -> Result<RequestPath, Reject> {
        Ok(match request.normal_path()? {
            Cow::Borrowed(_) => RequestPath::default(),
            Cow::Owned(decoded) => {
                let has_encoded_slash = has_encoded_slash(request.path());
                RequestPath { decoded: Some(decoded), has_encoded_slash, script: None }
            }
        })
    }

    /// It decoded, for as long as the request may be looked at.
    pub(crate) fn bytes<'p>(&'p self, request: &Request<'p>) -> &'p [u8] {
        self.decoded.as_deref().unwrap_or_else(|| request.path())
    }

    /// It decoded, for a handler that needs it while it changes the exchange.
    pub(crate) fn kept(&self, exchange: &Exchange<'_>) -> Vec<u8> {
        self.bytes(&exchange.request()).to_vec()
    }
}

/// The prefix to remove from a path.
pub(crate) struct Strip(pub(crate) Vec<u8>);

impl Strip {
    /// The path below the prefix, empty for the prefix itself; the whole path if it is not below it.
    pub(crate) fn below<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        match path.strip_prefix(self.0.as_slice()) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest,
            _ => path,
        }
    }
}
