//! The text of a configuration, and changes to it by the control API.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

/// The text of all files of a configuration.
#[derive(Clone, Debug)]
pub struct ConfigText {
    /// The file that includes the others.
    pub path: PathBuf,
    /// All files as one text, as returned by [`config::join_files`].
    pub joined: Arc<str>,
}

impl ConfigText {
    /// Returns each file with its text.
    pub fn files(&self) -> Vec<(PathBuf, String)> {
        let mut parts = self.joined.split('\0');
        let main = (self.path.clone(), parts.next().unwrap_or_default().to_owned());
        let included = parts.map(|part| {
            let (name, text) = part.split_once('\n').unwrap_or((part, ""));
            (PathBuf::from(name), text.to_owned())
        });
        std::iter::once(main).chain(included).collect()
    }
}

/// A requested change of the configuration.
#[derive(Debug)]
pub struct ConfigEdit {
    /// The text that the change is based on.
    pub base_text: Arc<str>,
    /// The files of the configuration with their new texts.
    pub files: Vec<(PathBuf, String)>,
    /// Whether the change must be written to the files (`true`) or must not (`false`); `None` writes it if
    /// possible.
    pub persist: Option<bool>,
    /// Whether root requested the change.
    pub is_by_root: bool,
}

/// Reason that a change was rejected.
#[derive(Debug)]
pub struct EditError {
    /// HTTP status of the response.
    pub status: u16,
    /// JSON document of the response.
    pub document: Value,
}

impl EditError {
    /// Creates an error with this message.
    pub fn new(status: u16, text: impl Into<String>) -> EditError {
        EditError { status, document: json!({ "error": text.into() }) }
    }
}
