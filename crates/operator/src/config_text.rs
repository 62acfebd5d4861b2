//! The text of a configuration, and changes of it that the control API asks for.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

/// The text of a configuration: all of its files.
#[derive(Clone, Debug)]
pub struct ConfigText {
    /// The file that includes the others.
    pub path: PathBuf,
    /// As [`config::joined`] returns it.
    pub joined: Arc<str>,
}

impl ConfigText {
    /// Each file with its text.
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

/// A change of the configuration.
#[derive(Debug)]
pub struct ConfigEdit {
    /// The text that it was made from.
    pub before: Arc<str>,
    /// The same files as they are to be.
    pub files: Vec<(PathBuf, String)>,
    /// Whether it has to be written to the files, or is not to be; where nothing is said, it is if it can be.
    pub persist: Option<bool>,
    /// Whether root asks for it.
    pub by_root: bool,
}

/// Why a change was not made.
#[derive(Debug)]
pub struct EditError {
    /// The status of the response.
    pub status: u16,
    /// The configuration as JSON.
    pub document: Value,
}

impl EditError {
    /// With this text for people.
    pub fn new(status: u16, text: impl Into<String>) -> EditError {
        EditError { status, document: json!({ "error": text.into() }) }
    }
}
