//! Error pages, and edits that a route makes to response fields.

use std::collections::HashMap;

use http::{Fields, Name, Status};

/// Fields that a route removes from, sets on and adds to every response.
#[derive(Clone, Debug, Default)]
pub struct FieldEdits {
    remove: Vec<Vec<u8>>,
    /// Fields to write in place of those that [`FieldEdits::replace`] drops.
    pub set: Fields,
    /// Fields to add beside those of the same name.
    pub add: Fields,
}

impl FieldEdits {
    /// Drops every field of that name: the response's own, and what earlier edits set or added.
    pub fn replace(&mut self, name: &[u8]) {
        self.set.remove(name);
        self.add.remove(name);
        self.remove.push(name.to_ascii_lowercase());
    }

    /// The edited copy of a response's fields.
    #[must_use]
    pub fn apply(&self, fields: &Fields) -> Fields {
        let mut edited = fields.clone();
        for name in &self.remove {
            edited.remove(name);
        }
        edited.extend(&self.set);
        edited.extend(&self.add);
        edited
    }

    /// Whether a line that every response carries (`Server`) is removed or set here.
    pub(crate) fn replaces(&self, name: Name) -> bool {
        let name = name.text().as_bytes();
        self.remove.iter().any(|other| other.eq_ignore_ascii_case(name))
    }
}

/// Pages of a site for statuses that the server itself answers.
#[derive(Clone, Debug, Default)]
pub struct ErrorPages {
    exact: HashMap<u16, Page>,
    /// By first digit: `5xx`.
    class: HashMap<u16, Page>,
}

/// A page held in memory.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its `Content-Type`.
    pub content_type: String,
    /// Its bytes.
    pub body: Vec<u8>,
}

impl ErrorPages {
    /// The page for one status code.
    pub fn insert(&mut self, code: u16, page: Page) {
        self.exact.insert(code, page);
    }

    /// The page for a class of codes, by their first digit (4 or 5).
    pub fn insert_class(&mut self, first_digit: u16, page: Page) {
        self.class.insert(first_digit, page);
    }

    pub(crate) fn find(&self, status: Status) -> Option<&Page> {
        let code = status.code();
        self.exact.get(&code).or_else(|| self.class.get(&(code / 100)))
    }
}

/// The page that a client gets where the site has none: JSON for those who ask for it, HTML for all others.
pub(crate) fn plain(status: Status, reason: &str, accept: Option<&[u8]>) -> Page {
    let (code, title) = (status.code(), status.reason());
    let accept = accept.unwrap_or_default();
    let wants = |what: &[u8]| accept.windows(what.len()).any(|window| window.eq_ignore_ascii_case(what));
    if wants(b"json") && !wants(b"text/html") {
        // Reasons are static texts of this project, without quotes or control bytes.
        let body = format!("{{\"status\":{code},\"title\":\"{title}\",\"detail\":\"{reason}\"}}\n");
        return Page { content_type: "application/problem+json".into(), body: body.into_bytes() };
    }
    let body = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{code} {title}</title><style>:root{{color-scheme:light dark}}body{{font:1rem/1.5 system-ui,sans-serif;\
         margin:18vh auto;max-width:32rem;padding:0 1.5rem}}h1{{font-size:1.5rem;margin:0}}p{{opacity:.75}}</style>\
         <h1>{code} {title}</h1><p>{reason}</p>\n"
    );
    Page { content_type: "text/html; charset=utf-8".into(), body: body.into_bytes() }
}
