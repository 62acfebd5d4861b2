//! Handlers of configured fixed responses.

use http::{Fields, Name, Status};

use crate::route::Handler;
use crate::templates::{BodyEscape, TemplateResponse};

/// Creates the handler of a `respond` directive.
pub fn fixed_response(respond: &config::Respond) -> Handler {
    let mut fields = Fields::new();
    fields.push(Name::ContentType, respond.media_type.as_bytes());
    if let Some(body) = &respond.filled {
        let status = status(respond.status);
        let escape = BodyEscape::of(&respond.media_type);
        return Handler::RespondTemplate(Box::new(TemplateResponse {
            status,
            fields,
            body: body.clone(),
            escape,
        }));
    }
    Handler::Respond { status: status(respond.status), fields, body: respond.body.clone().into_bytes() }
}

/// Converts a status of a checked configuration.
pub fn status(code: u16) -> Status {
    Status::of(code).expect("the configuration holds statuses of three digits")
}
