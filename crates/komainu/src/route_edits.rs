//! Edits of the fields of a route's responses.

use std::rc::Rc;

use http::template::Values;
use http::{Fields, Template};
use net::{Exchange, FieldEdits};

use crate::access;

/// Edits of response fields; most are the same for every request.
pub(crate) enum RouteEdits {
    None,
    Fixed(Rc<FieldEdits>),
    /// In the order in which they are made.
    Templates(Vec<TemplateEdits>),
    /// Others for clients that use `https`.
    Secure {
        plain: Box<RouteEdits>,
        secure: Box<RouteEdits>,
    },
}

/// Edits with variables of the request.
pub(crate) struct TemplateEdits {
    pub(crate) remove: Vec<String>,
    pub(crate) set: Vec<(String, Template)>,
    pub(crate) add: Vec<(String, Template)>,
}

impl TemplateEdits {
    /// The edits for one request. A value that is invalid because of the request is left out.
    pub(crate) fn resolve(all: &[TemplateEdits], values: &Values<'_>) -> FieldEdits {
        TemplateEdits::made(all, |fields, name, template| {
            let mut value = Vec::new();
            template.write(&mut value, values);
            let _ = fields.try_push(name.as_bytes(), &value);
        })
    }

    /// The edits of all levels in order; `push` adds a field with the value of a template.
    pub(crate) fn made(
        all: &[TemplateEdits],
        mut push: impl FnMut(&mut Fields, &str, &Template),
    ) -> FieldEdits {
        let mut edits = FieldEdits::default();
        for level in all {
            for name in &level.remove {
                edits.replace(name.as_bytes());
            }
            for (name, template) in &level.set {
                edits.replace(name.as_bytes());
                push(&mut edits.set, name, template);
            }
            for (name, template) in &level.add {
                push(&mut edits.add, name, template);
            }
        }
        edits
    }
}

impl RouteEdits {
    /// Applies the edits to all responses from now on.
    pub(crate) fn make(&self, exchange: &mut Exchange<'_>, prefix: &[u8]) {
        match self {
            RouteEdits::None => {}
            RouteEdits::Fixed(edits) => exchange.set_edits(Some(edits.clone())),
            RouteEdits::Templates(templates) => {
                let edits = TemplateEdits::resolve(templates, &values(exchange, prefix));
                exchange.set_edits(Some(Rc::new(edits)));
            }
            RouteEdits::Secure { plain, secure } => {
                let edits = if exchange.request().client().secure { secure } else { plain };
                edits.make(exchange, prefix);
            }
        }
    }
}

/// What the variables of a request stand for, with the prefix of its route.
pub(crate) fn values<'x>(exchange: &'x Exchange<'_>, prefix: &'x [u8]) -> Values<'x> {
    Values { prefix, ..access::values(&exchange.request()) }
}
