//! Where log lines go.

use crate::check::Checker;
use crate::node::{Data, Node};
use crate::shape::{PathShape, Shape, ShapeKind};
use serde_json::json;
use std::path::PathBuf;

/// Where log lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sink {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// This file, opened for appending.
    File(PathBuf),
}

/// "stdout", "stderr", or a file.
pub(crate) struct LogDestination;

impl Shape for LogDestination {
    type Out = Sink;

    fn kind(&self) -> ShapeKind {
        ShapeKind::new("\"stdout\", \"stderr\" or a file", json!({ "type": "string", "minLength": 1 }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Sink> {
        match &node.data {
            Data::Text(text) if text == "stdout" => Some(Sink::Stdout),
            Data::Text(text) if text == "stderr" => Some(Sink::Stderr),
            _ => PathShape("\"stdout\", \"stderr\" or a file").read(node, check).map(Sink::File),
        }
    }
}
