//! Replies of the store, and the reasons why there is none.

use std::fmt;
use std::io;
use std::time::Duration;

use redis::{ErrorKind, RedisError, Value};

/// Longest text of the store that a message shows, in bytes.
const SHOWN_BYTES_MAX: usize = 200;

const NO_CLUSTER: &str = "Redis Cluster is not supported; use a primary with replicas, and Sentinels";

/// Reason why a command has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// The store cannot be reached, or the connection broke.
    Unreachable(String),
    /// The store did not answer in time.
    TimedOut(Duration),
    /// The store refused the command; the connection may be used further.
    Refused(String),
    /// The reply is too long, or has another form than the command requires.
    Invalid(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Unreachable(why) => f.write_str(why),
            StoreError::TimedOut(time) => write!(f, "no whole answer within {time:?}"),
            StoreError::Refused(why) => write!(f, "it answers: {why}"),
            StoreError::Invalid(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> StoreError {
        match error.kind() {
            io::ErrorKind::InvalidData => StoreError::Invalid(printable(&error.to_string())),
            _ => StoreError::Unreachable(printable(&error.to_string())),
        }
    }
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> StoreError {
        let text = printable(&error.to_string());
        if matches!(error.code(), Some("MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN")) {
            return StoreError::Refused(format!("{text}: {NO_CLUSTER}"));
        }
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
                StoreError::Refused(text)
            }
            ErrorKind::Io => StoreError::Unreachable(text),
            _ => StoreError::Invalid(text),
        }
    }
}

/// Returns a text of the store for messages: one line, not too long.
fn printable(text: &str) -> String {
    let end = (0..=SHOWN_BYTES_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].replace(|c: char| c.is_control(), " ")
}

/// The parts of RESP that the commands of this crate have as replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// There is no such value.
    Nil,
    /// An integer.
    Integer(i64),
    /// A string.
    Bytes(Vec<u8>),
    /// An array.
    List(Vec<Reply>),
}

impl Reply {
    /// Converts a parsed value.
    ///
    /// # Errors
    /// The value is of RESP3, which was not asked for, or an error, perhaps within an array.
    pub(crate) fn of_value(value: Value) -> Result<Reply, StoreError> {
        Ok(match value {
            Value::Nil => Reply::Nil,
            Value::Int(number) => Reply::Integer(number),
            Value::BulkString(bytes) => Reply::Bytes(bytes),
            Value::SimpleString(text) => Reply::Bytes(text.into_bytes()),
            Value::Okay => Reply::Bytes(b"OK".to_vec()),
            Value::Array(values) => {
                Reply::List(values.into_iter().map(Reply::of_value).collect::<Result<_, _>>()?)
            }
            Value::ServerError(error) => return Err(RedisError::from(error).into()),
            _ => return Err(unexpected("a string, a number or a list")),
        })
    }

    /// The value as a list.
    ///
    /// # Errors
    /// It is none.
    pub fn list(self) -> Result<Vec<Reply>, StoreError> {
        match self {
            Reply::List(list) => Ok(list),
            _ => Err(unexpected("a list")),
        }
    }

    /// The value as an array of this length.
    ///
    /// # Errors
    /// It is none, or has another length.
    pub fn array<const N: usize>(self) -> Result<[Reply; N], StoreError> {
        self.list()?.try_into().map_err(|_| unexpected("a list of another length"))
    }

    /// The value as bytes; `None` if there is none.
    ///
    /// # Errors
    /// It is a number or a list.
    pub fn bytes(self) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Reply::Nil => Ok(None),
            Reply::Bytes(bytes) => Ok(Some(bytes)),
            _ => Err(unexpected("a string")),
        }
    }

    /// The value as text; empty if there is none.
    ///
    /// # Errors
    /// It is no text.
    pub fn text(self) -> Result<String, StoreError> {
        let bytes = self.bytes()?.unwrap_or_default();
        String::from_utf8(bytes).map_err(|_| unexpected("text"))
    }

    /// The value as a number that is not negative, also if it is written as a string; 0 if there is none.
    ///
    /// # Errors
    /// It is none.
    pub fn number(self) -> Result<u64, StoreError> {
        match self {
            Reply::Nil => Ok(0),
            Reply::Integer(number) => u64::try_from(number).map_err(|_| unexpected("a number")),
            Reply::Bytes(bytes) => {
                let text = std::str::from_utf8(&bytes).ok();
                text.and_then(|text| text.parse().ok()).ok_or_else(|| unexpected("a number"))
            }
            Reply::List(_) => Err(unexpected("a number")),
        }
    }
}

/// The error of a reply that is not of the form that the command requires.
fn unexpected(what: &str) -> StoreError {
    StoreError::Invalid(format!("its reply is not {what}"))
}
