//! Statuses of responses, and classes of them.

use serde_json::json;
use settings::checker::Checker;
use settings::node::{Node, NodeData};
use settings::shape::{Shape, ShapeKind, Word};

const CLASSES: Word<u8> = Word(&[("2xx", 2), ("3xx", 3), ("4xx", 4), ("5xx", 5)]);

/// Statuses to which a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusMatch {
    /// A single status, 200 to 599.
    One(u16),
    /// A class: 4 for 400 to 499.
    Class(u8),
}

impl StatusMatch {
    /// Whether it is this status.
    #[must_use]
    pub fn matches(self, status: u16) -> bool {
        match self {
            StatusMatch::One(one) => one == status,
            StatusMatch::Class(class) => u16::from(class) == status / 100,
        }
    }
}

/// A status, or a class of them.
pub struct StatusShape;

impl Shape for StatusShape {
    type Out = StatusMatch;

    fn kind(&self) -> ShapeKind {
        let number = json!({ "type": "integer", "minimum": 200, "maximum": 599 });
        let schema = json!({ "anyOf": [number, CLASSES.kind().schema] });
        ShapeKind::new("a status from 200 to 599, or a class such as \"5xx\"", schema)
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<StatusMatch> {
        match &node.data {
            NodeData::Integer(number @ 200..=599) => u16::try_from(*number).ok().map(StatusMatch::One),
            NodeData::Text(_) => CLASSES.read(node, check).map(StatusMatch::Class),
            NodeData::Integer(_) => {
                check
                    .report_invalid(&node.span, "no such status")
                    .help(format!("expected {}", self.kind().text));
                None
            }
            _ => {
                check.report_type_mismatch(node, &self.kind().text);
                None
            }
        }
    }
}
