//! Requests and responses in the form in which they are compared.

use std::hash::Hasher;

use http::Limits;

/// Maximum number of content bytes that are kept.
pub(crate) const CONTENT_BYTES_MAX: usize = 4 << 20;

/// Parser limits for responses, far above what servers send.
pub(crate) const LIMITS: Limits = Limits {
    head_bytes_max: 256 << 10,
    start_line_bytes_max: 64 << 10,
    fields_max: 500,
    bare_lf: true,
    lenient_heads: true,
};

/// Response of one server.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ServerResponse {
    /// Status; 0 if there was no response.
    pub(crate) status: u16,
    /// Field names in lower case and values, in order.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) content: Vec<u8>,
    /// Reason why the response is missing or incomplete.
    pub(crate) failure: Option<String>,
}

impl ServerResponse {
    /// Whether the end of the response is known without the connection being closed.
    pub(crate) fn is_framed(&self, method: &str) -> bool {
        let has = |name: &str| self.fields.iter().any(|(known, _)| known == name);
        self.status >= 200
            && (method == "HEAD"
                || matches!(self.status, 204 | 304)
                || has("content-length")
                || has("transfer-encoding"))
    }

    /// Returns the values of a field, joined.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        joined_values(&self.fields, name)
    }
}

/// Request that an upstream server received.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ReceivedRequest {
    /// Address of the upstream server in the old configuration.
    pub(crate) server: String,
    pub(crate) method: String,
    pub(crate) target: String,
    /// Field names in lower case and values, in order; for FastCGI the unchanged variables.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) content: Vec<u8>,
    /// Reason why the request could not be parsed.
    pub(crate) failure: Option<String>,
}

/// Returns the values of a field, joined; `None` if it is absent.
pub(crate) fn joined_values(fields: &[(String, String)], name: &str) -> Option<String> {
    let values: Vec<&str> =
        fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect();
    (!values.is_empty()).then(|| values.join(", "))
}

/// Formats content for display: short text as it is, other content as its length and a digest.
pub(crate) fn format_content(content: &[u8]) -> String {
    match std::str::from_utf8(content) {
        Ok(text) if text.chars().count() <= 60 => text.escape_debug().to_string(),
        _ => {
            let mut hasher = twox_hash::XxHash3_64::with_seed(0);
            hasher.write(content);
            let start: String = String::from_utf8_lossy(content).chars().take(30).collect();
            format!("{} bytes, {:016x}: {}…", content.len(), hasher.finish(), start.escape_debug())
        }
    }
}
