//! Cross-origin requests (CORS): answers to preflights, and the fields of all other responses.

use admission::cors::Cors;
use http::{Fields, Method, Name, Status};
use net::{Exchange, Fault, Request};

use crate::flow::Flow;

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

/// CORS rules of a route.
pub struct RouteCors(pub Cors);

impl RouteCors {
    /// Sets the CORS fields of the response, including error responses. They replace those of upstream
    /// servers and applications.
    pub fn set_fields(&self, exchange: &mut Exchange<'_>) {
        // The answer to a preflight already has them.
        if preflight_method(&exchange.request()).is_some() {
            return;
        }
        let fields = self.0.response(exchange.request().field(Name::Origin));
        exchange.replace_fields(&Cors::REPLACED_FIELDS, &fields);
    }

    /// Answers preflights.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn run(&self, exchange: &mut Exchange<'_>) -> Result<Flow, Fault> {
        let request = exchange.request();
        let Some(method) = preflight_method(&request) else { return Ok(Flow::Continue) };
        let origin = request.field(Name::Origin).unwrap_or_default();
        match self.0.preflight(origin, method, named(&request, b"access-control-request-headers")) {
            Ok(fields) => exchange.reply(Status::NO_CONTENT, &fields, b"").await?,
            Err(refusal) => {
                let mut fields = Fields::new();
                fields.push(Name::Vary, b"Origin");
                exchange.refuse_with(Status::FORBIDDEN, refusal.0, &fields).await?;
            }
        }
        Ok(Flow::Answered)
    }
}
