//! Cross-origin requests (CORS): answers to preflights, and the fields of all other responses.

use admission::{CorsRules, OriginPattern};
use config::{Cors, CorsOrigin};
use http::{Fields, Method, Name, Status};
use net::{Exchange, Fault, Request};

/// Returns the value of `Access-Control-Request-Method`; `None` if the request is not a preflight.
pub fn preflight_method<'x>(request: &Request<'x>) -> Option<&'x [u8]> {
    if request.method() != Method::Options || request.field(Name::Origin).is_none() {
        return None;
    }
    named(request, b"access-control-request-method")
}

fn named<'x>(request: &Request<'x>, wanted: &[u8]) -> Option<&'x [u8]> {
    let mut fields = request.fields().filter(|(id, _, _)| *id == Name::of(wanted));
    fields.find(|(_, name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, _, value)| value)
}

/// Converts the `cors` directive of a checked configuration to rules.
pub fn rules(cors: &Cors) -> CorsRules {
    let pattern = |origin: &CorsOrigin| match origin {
        CorsOrigin::Any => None,
        CorsOrigin::Exact(exact) => Some(OriginPattern::Exact(exact.clone())),
        CorsOrigin::Below { scheme, suffix } => {
            Some(OriginPattern::Below { scheme: scheme.clone(), suffix: suffix.clone() })
        }
    };
    CorsRules {
        origins: cors.origins.iter().map(pattern).collect(),
        methods: cors.methods.clone(),
        headers: cors.headers.clone(),
        expose: cors.expose.clone(),
        credentials: cors.credentials,
        max_age_s: cors.max_age.as_secs(),
    }
}

/// Sets the CORS fields of the response, including error responses. They replace those of upstream servers
/// and applications.
pub fn mark(rules: &CorsRules, x: &mut Exchange<'_>) {
    // The answer to a preflight already has them.
    if preflight_method(&x.request()).is_some() {
        return;
    }
    let fields = rules.response(x.request().field(Name::Origin));
    x.replace_fields(&CorsRules::REPLACED, &fields);
}

/// Answers a preflight. Returns `false` if the request has been answered.
///
/// # Errors
/// The client is gone.
pub async fn admit(rules: &CorsRules, x: &mut Exchange<'_>) -> Result<bool, Fault> {
    let request = x.request();
    let Some(method) = preflight_method(&request) else { return Ok(true) };
    let origin = request.field(Name::Origin).unwrap_or_default();
    match rules.preflight(origin, method, named(&request, b"access-control-request-headers")) {
        Ok(fields) => x.reply(Status::NO_CONTENT, &fields, b"").await?,
        Err(refusal) => {
            let mut fields = Fields::new();
            fields.push(Name::Vary, b"Origin");
            x.refuse_with(Status::FORBIDDEN, refusal.0, &fields).await?;
        }
    }
    Ok(false)
}
