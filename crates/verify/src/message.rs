//! Requests and answers as they are compared.

use std::hash::Hasher;

use http::Limits;

/// Bytes of a content that are kept.
pub(crate) const CONTENT_BYTES_MAX: usize = 4 << 20;

/// Limits of answers: far above what servers send.
pub(crate) const LIMITS: Limits = Limits {
    head_bytes_max: 256 << 10,
    start_line_bytes_max: 64 << 10,
    fields_max: 500,
    bare_lf: true,
    lenient_heads: true,
};

/// An answer of one server.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ServerAnswer {
    /// The status; 0 where there was no answer.
    pub(crate) status: u16,
    /// Names in small letters, in order.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) content: Vec<u8>,
    /// Why there is no answer, or no whole one.
    pub(crate) trouble: Option<String>,
}

impl ServerAnswer {
    /// Whether its end is known without that of the connection.
    pub(crate) fn is_framed(&self, method: &str) -> bool {
        let has = |name: &str| self.fields.iter().any(|(known, _)| known == name);
        self.status >= 200
            && (method == "HEAD"
                || matches!(self.status, 204 | 304)
                || has("content-length")
                || has("transfer-encoding"))
    }

    /// The values of a field, joined.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        joined(&self.fields, name)
    }
}

/// A request that an upstream server got.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ReceivedRequest {
    /// The address in the old configuration.
    pub(crate) server: String,
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in small letters, in order; for FastCGI the variables as they are.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) content: Vec<u8>,
    /// Why it is no request that could be read.
    pub(crate) trouble: Option<String>,
}

/// The values of a field, joined; none where it is absent.
pub(crate) fn joined(fields: &[(String, String)], name: &str) -> Option<String> {
    let values: Vec<&str> =
        fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect();
    (!values.is_empty()).then(|| values.join(", "))
}

/// A content in a few characters: itself where it is short and a text, else its length and a digest.
pub(crate) fn shown(content: &[u8]) -> String {
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
