//! What is wrong with an Ingress, and whether its paths are closed.

use crate::objects::{Kind, ObjectKey};

/// Bytes of a note; the API server takes 1,024.
const NOTE_BYTES_MAX: usize = 1000;
/// Faults of one Ingress that are reported.
const FAULTS_MAX: usize = 16;

/// A warning about an object, which is written as an Event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectEvent {
    /// Kind of the object.
    pub kind: Kind,
    /// The object.
    pub key: ObjectKey,
    /// Identity of the object.
    pub uid: String,
    /// A word for programs.
    pub reason: &'static str,
    /// The fault and its remedy.
    pub note: String,
}

/// The faults of an Ingress.
#[derive(Debug, Default, Clone)]
pub(crate) struct Faults {
    list: Vec<(&'static str, String)>,
    is_closed: bool,
}

impl Faults {
    /// Notes a fault without which requests are served.
    pub(crate) fn warn(&mut self, reason: &'static str, note: &str) {
        let note: String = note.chars().filter(|c| !c.is_control()).collect();
        let mut end = note.len().min(NOTE_BYTES_MAX);
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        let fault = (reason, note[..end].to_owned());
        if self.list.len() < FAULTS_MAX && !self.list.contains(&fault) {
            self.list.push(fault);
        }
    }

    /// Notes a fault for which the paths of the Ingress are closed: nobody can be refused as the Ingress asks.
    pub(crate) fn close(&mut self, reason: &'static str, note: &str) {
        self.is_closed = true;
        self.warn(reason, &format!("{note}; the paths of this Ingress are closed (403)"));
    }

    /// Whether the paths are closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns the warnings about the Ingress.
    pub(crate) fn events<'f>(
        &'f self,
        key: &'f ObjectKey,
        uid: &'f str,
    ) -> impl Iterator<Item = ObjectEvent> + 'f {
        self.list.iter().map(|(reason, note)| ObjectEvent {
            kind: Kind::Ingress,
            key: key.clone(),
            uid: uid.to_owned(),
            reason,
            note: note.clone(),
        })
    }
}
