//! Properties of responses and upstream requests that directives determine.

use super::tree::NginxDirective;
use crate::scratch::Aspect;

/// Property of a response or an upstream request that a directive determines.
pub(super) enum DecidedProperty {
    /// Every property.
    Everything,
    /// The location that responds, and with it everything that comes from there.
    Location,
    Nothing,
    /// The response of the same location.
    SameLocation,
    /// The decision to accept or refuse the request; does not matter if both servers decide alike.
    Access,
    Field(String),
    UpstreamField(String),
    Coding,
    Retries,
}

pub(super) fn decided_property(directive: &NginxDirective) -> DecidedProperty {
    let first = directive.first_arg().to_ascii_lowercase();
    match directive.name.as_str() {
        "add_header" | "proxy_hide_header" | "proxy_pass_header" | "fastcgi_hide_header" => {
            DecidedProperty::Field(first)
        }
        "upstream" => DecidedProperty::Field("location".to_owned()),
        "more_set_headers" | "more_clear_headers" => {
            DecidedProperty::Field(first.split(':').next().unwrap_or("").trim().to_owned())
        }
        "expires" => DecidedProperty::Field("cache-control expires".to_owned()),
        "proxy_redirect" | "absolute_redirect" | "port_in_redirect" | "server_name_in_redirect" => {
            DecidedProperty::Field("location".to_owned())
        }
        "proxy_cookie_domain" | "proxy_cookie_path" | "proxy_cookie_flags" => {
            DecidedProperty::Field("set-cookie".to_owned())
        }
        "charset" | "charset_types" | "override_charset" | "default_type" | "types" => {
            DecidedProperty::Field("content-type".to_owned())
        }
        "etag" => DecidedProperty::Field("etag".to_owned()),
        "if_modified_since" => DecidedProperty::SameLocation,
        "proxy_set_header" | "grpc_set_header" => DecidedProperty::UpstreamField(first),
        "fastcgi_param" => DecidedProperty::UpstreamField(first),
        "proxy_http_version" => DecidedProperty::UpstreamField("connection".to_owned()),
        name if name.starts_with("gzip") || name.starts_with("brotli") || name.starts_with("zstd") => {
            DecidedProperty::Coding
        }
        name if name.starts_with("proxy_next_upstream") || name.starts_with("fastcgi_next_upstream") => {
            DecidedProperty::Retries
        }
        "sub_filter"
        | "sub_filter_types"
        | "sub_filter_once"
        | "autoindex"
        | "addition_types"
        | "autoindex_exact_size"
        | "autoindex_localtime"
        | "autoindex_format"
        | "ssi" => DecidedProperty::SameLocation,
        "keepalive_timeout"
        | "listen"
        | "keepalive_requests"
        | "sendfile"
        | "access_log"
        | "error_log"
        | "log_format"
        | "user"
        | "worker_processes"
        | "log_not_found"
        | "log_subrequest"
        | "server_tokens"
        | "proxy_buffering"
        | "proxy_request_buffering"
        | "keepalive"
        | "zone"
        | "proxy_ssl_verify" => DecidedProperty::Nothing,
        // The response of the authorization server has fields of its own.
        "auth_request" | "auth_request_set" => DecidedProperty::Everything,
        "auth_basic"
        | "auth_basic_user_file"
        | "auth_jwt"
        | "satisfy"
        | "allow"
        | "deny"
        | "error_page"
        | "recursive_error_pages"
        | "internal"
        | "limit_except"
        | "client_max_body_size" => DecidedProperty::Access,
        name if name.starts_with("ssl_")
            || name.ends_with("_timeout")
            || name.ends_with("_ignore_client_abort")
            || name.starts_with("limit_") =>
        {
            DecidedProperty::Nothing
        }
        _ => DecidedProperty::Location,
    }
}

/// Fields that describe the content, or its location.
const CONTENT_FIELDS: [&str; 11] = [
    "content-type",
    "content-length",
    "content-encoding",
    "content-language",
    "content-range",
    "etag",
    "last-modified",
    "accept-ranges",
    "location",
    "allow",
    "www-authenticate",
];

impl DecidedProperty {
    /// Returns the weight of the directive as an explanation of a difference; it is larger the fewer other
    /// properties the directive determines. `None` if it does not determine `aspect`. `differing` are all
    /// differences of this request.
    pub(super) fn weight(&self, aspect: &Aspect, differing: &[Aspect]) -> Option<u8> {
        let is_of_content = |name: &String| CONTENT_FIELDS.contains(&name.as_str());
        let is_of_answer = |one: &Aspect| match one {
            Aspect::Field(name) => name == "location",
            Aspect::UpstreamField(_) => false,
            _ => true,
        };
        let answers_differ = || differing.iter().any(is_of_answer);
        match (self, aspect) {
            // Another location may set other fields, but then the rest of the response differs as well.
            (Self::Location | Self::SameLocation, Aspect::Field(name)) if !is_of_content(name) => {
                answers_differ().then_some(0)
            }
            (Self::Everything | Self::Location, _) => Some(1),
            (Self::SameLocation, Aspect::Status | Aspect::Content | Aspect::Field(_)) => Some(2),
            (Self::Access, Aspect::Status | Aspect::Content | Aspect::UpstreamRequests) => Some(2),
            (Self::Access, Aspect::Field(name)) if is_of_content(name) => Some(1),
            (Self::Access, _) => answers_differ().then_some(0),
            (Self::Field(names), Aspect::Field(name)) => {
                names.split(' ').any(|known| known == name).then_some(3)
            }
            (Self::UpstreamField(known), Aspect::UpstreamField(name)) => {
                let is_it = name == known
                    || name.strip_prefix("http_").is_some_and(|name| name.replace('_', "-") == *known);
                is_it.then_some(3)
            }
            (Self::Coding, Aspect::Field(name)) => matches!(
                name.as_str(),
                "content-encoding" | "vary" | "etag" | "content-length" | "accept-ranges"
            )
            .then_some(3),
            (Self::Retries, Aspect::Status | Aspect::UpstreamRequests | Aspect::Content) => Some(2),
            _ => None,
        }
    }
}
