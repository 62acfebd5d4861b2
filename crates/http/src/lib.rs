//! The HTTP vocabulary and the HTTP/1 machine.
//!
//! This crate owns what HTTP means on the wire: names of methods, statuses and fields, request targets,
//! dates, ranges and conditions, and the HTTP/1.0 and 1.1 machine for both ends (bytes in, events out). It
//! never does I/O, reads a clock or allocates per header: heads are [`Span`]s into the caller's buffer, so
//! the same code serves plain sockets, TLS, tests and fuzzers.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod append;
pub mod span;
pub mod scan;
pub mod form;
pub mod status;
pub mod method;
pub mod name;
pub mod reject;
pub mod field_list;
pub mod fields;
pub mod target;
pub mod path;
pub mod line;
pub mod framing;
pub mod head;
pub mod request;
pub mod forwarded;
pub mod response;
pub mod body;
pub mod machine;
pub mod encode;
pub mod ids;
pub mod log_variable;
pub mod template;
pub mod coding;
pub mod media;
pub mod range;
pub mod condition;
pub mod dictionary;

pub use coding::Coding;
pub use field_list::{Field, FieldList};
pub use fields::Fields;
pub use forwarded::Dialect;
pub use framing::{BodySize, ContentLength, Length};
pub use head::{Head, HeadRef, Version};
pub use ids::{RequestId, RequestIds, TraceSpan};
pub use line::Limits;
pub use log_variable::LogVariable;
pub use method::Method;
pub use name::{Name, NameSet, has_confusable_prefix, is_confusable, is_internal};
pub use path::EmptySegments;
pub use reject::Reject;
pub use request::RequestHead;
pub use response::ResponseHead;
pub use span::Span;
pub use status::Status;
pub use target::{Target, TargetForm};
pub use template::{Template, TemplatePart, Variable, VariableKind};
