//! Edits of response fields.

use std::rc::Rc;

use http::template::VariableValues;
use http::{Fields, Template, TemplatePart, Variable};
use logging::access;
use net::{Exchange, FieldEdits};

/// Response field edits of a route. Edits without variables are prepared once for all requests.
#[derive(Clone)]
pub enum RouteEdits {
    /// No edits.
    None,
    /// Edits without variables.
    Fixed(Rc<FieldEdits>),
    /// Edits with variables, in order of application.
    Templates(Vec<TemplateEdits>),
    /// Different edits for requests over TLS.
    Secure {
        /// Edits of responses without TLS.
        plain: Box<RouteEdits>,
        /// Edits of responses over TLS.
        secure: Box<RouteEdits>,
    },
}

/// Fields set by `security_headers`.
const SECURITY_HEADERS: [(&str, &str); 3] = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "SAMEORIGIN"),
    ("Referrer-Policy", "strict-origin-when-cross-origin"),
];

impl RouteEdits {
    /// Creates the edits of all levels, preceded by the site's security fields. `Strict-Transport-Security`
    /// is sent only over TLS (RFC 6797 section 7.2).
    pub fn of_site(levels: &[&config::ResponseHeaders], site: &config::Site) -> RouteEdits {
        let headers = if site.security_headers { &SECURITY_HEADERS[..] } else { &[] };
        let own = fields_set(headers);
        // Applied first, so that configured edits of the same fields take precedence.
        let plain: Vec<_> =
            Some(&own).filter(|own| !own.set.is_empty()).into_iter().chain(levels.iter().copied()).collect();
        let Some(hsts) = &site.hsts else { return RouteEdits::of(&plain) };
        let hsts = fields_set(&[("Strict-Transport-Security", hsts)]);
        let secure: Vec<_> = std::iter::once(&hsts).chain(plain.iter().copied()).collect();
        RouteEdits::Secure {
            plain: Box::new(RouteEdits::of(&plain)),
            secure: Box::new(RouteEdits::of(&secure)),
        }
    }

    /// Creates the edits of these levels, the outermost first.
    pub fn of(levels: &[&config::ResponseHeaders]) -> RouteEdits {
        if levels.is_empty() {
            return RouteEdits::None;
        }
        let templates: Vec<TemplateEdits> = levels
            .iter()
            .map(|level| TemplateEdits {
                remove: level.remove.clone(),
                set: level.set.clone(),
                add: level.add.clone(),
            })
            .collect();
        match fixed(&templates) {
            Some(edits) => RouteEdits::Fixed(Rc::new(edits)),
            None => RouteEdits::Templates(templates),
        }
    }
}

/// Edits with variables of the request.
#[derive(Clone)]
pub struct TemplateEdits {
    pub(crate) remove: Vec<String>,
    pub(crate) set: Vec<(String, Template)>,
    pub(crate) add: Vec<(String, Template)>,
}

impl TemplateEdits {
    /// Expands the edits for one request. A field is left out if its value is invalid, or if it is empty and
    /// has variables.
    pub(crate) fn resolve(all: &[TemplateEdits], values: &VariableValues<'_>) -> FieldEdits {
        TemplateEdits::combine(all, |fields, name, template| {
            let mut value = Vec::new();
            template.write(&mut value, values);
            if value.is_empty() && template.as_literal().is_none() {
                return;
            }
            let _ = fields.try_push(name.as_bytes(), &value);
        })
    }

    /// Combines the edits of all levels in order. `push` adds a field with the value of a template.
    pub(crate) fn combine(
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
    /// Applies the edits to all later responses of this exchange.
    pub(crate) fn apply(&self, exchange: &mut Exchange<'_>, prefix: &[u8]) {
        match self {
            RouteEdits::None => {}
            RouteEdits::Fixed(edits) => exchange.set_edits(Some(edits.clone())),
            RouteEdits::Templates(templates) => {
                let edits = TemplateEdits::resolve(templates, &template_values(exchange, prefix));
                exchange.set_edits(Some(Rc::new(edits)));
            }
            RouteEdits::Secure { plain, secure } => {
                let edits = if exchange.request().client().is_secure { secure } else { plain };
                edits.apply(exchange, prefix);
            }
        }
    }
}

impl RouteEdits {
    /// Repeats the edits whose values contain the user name, which is known only after `auth`. Repeating all
    /// edits would remove the fields that other steps have added since.
    pub(crate) fn apply_user_edits(&self, exchange: &mut Exchange<'_>, prefix: &[u8]) {
        let levels = match self {
            RouteEdits::None | RouteEdits::Fixed(_) => return,
            RouteEdits::Templates(levels) => levels,
            RouteEdits::Secure { plain, .. } => return plain.apply_user_edits(exchange, prefix),
        };
        for (name, template) in levels.iter().flat_map(|level| level.set.iter().chain(&level.add)) {
            let is_user = |part: &TemplatePart| matches!(part, TemplatePart::Variable(Variable::RemoteUser));
            if !template.parts().iter().any(is_user) {
                continue;
            }
            let mut value = Vec::new();
            let mut fields = Fields::new();
            template.write(&mut value, &template_values(exchange, prefix));
            if fields.try_push(name.as_bytes(), &value).is_ok() {
                exchange.replace_fields(&[name], &fields);
            }
        }
    }
}

/// Returns the values of the variables of a request; `prefix` is that of its route.
pub(crate) fn template_values<'x>(exchange: &'x Exchange<'_>, prefix: &'x [u8]) -> VariableValues<'x> {
    VariableValues { prefix, ..access::request_values(&exchange.request()) }
}

/// Creates edits that set these fields.
fn fields_set(fields: &[(&str, &str)]) -> config::ResponseHeaders {
    let set = fields.iter().map(|(name, value)| {
        let text = value.replace('$', "$$");
        let template = http::Template::parse(&text, |_| false);
        ((*name).to_owned(), template.expect("a value without variables is a template"))
    });
    config::ResponseHeaders { set: set.collect(), ..config::ResponseHeaders::default() }
}

/// Returns the edits as fixed fields. `None` if a value depends on the request.
fn fixed(levels: &[TemplateEdits]) -> Option<FieldEdits> {
    let mut depends = false;
    let edits = TemplateEdits::combine(levels, |fields, name, template| {
        let Some(text) = template.as_literal() else { return depends = true };
        fields.try_push(name.as_bytes(), text.as_bytes()).expect("the configuration checked it");
    });
    (!depends).then_some(edits)
}
