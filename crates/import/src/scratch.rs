//! Scratch copies of a configuration: every address, directory and file is replaced, so that the original
//! server can run beside Komainu for a comparison. Describes the stubs, listeners and files that the copy
//! needs, and the requests to compare.

use std::path::PathBuf;

use crate::findings::ImportError;

/// Protocol spoken by a stub that replaces an upstream server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StubProtocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/1.1 over TLS.
    Https,
    /// FastCGI.
    FastCgi,
    /// A protocol that no stub implements: its routes are not compared.
    Unknown,
}

/// A stub that replaces an upstream server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StubServer {
    /// The address in the original configuration.
    pub name: String,
    /// Protocol that the stub speaks.
    pub protocol: StubProtocol,
    /// Port on 127.0.0.1.
    pub port: u16,
}

impl StubServer {
    /// Name of the upstream group that the copy has for a stub that replaces a server of scripts. The importer
    /// recognizes such servers by the "php" in their addresses.
    pub(crate) fn script_group(&self) -> Option<String> {
        let is_it = self.protocol == StubProtocol::FastCgi
            && !self.name.starts_with(GROUP_STUB_PREFIX)
            && self.name.contains("php");
        is_it.then(|| format!("php-{}", self.port))
    }
}

/// Begins the names of stubs that replace servers of an upstream group.
pub(crate) const GROUP_STUB_PREFIX: &str = "the group ";

/// A listening address of both servers, each of which uses a loopback address of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchListener {
    /// The address in the original configuration.
    pub name: String,
    /// Port, the same for both servers.
    pub port: u16,
    /// Whether connections use TLS.
    pub tls: bool,
}

/// Body of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestContent {
    /// No body.
    Absent,
    /// A body with `Content-Length`.
    Sized(Vec<u8>),
    /// A body with `Transfer-Encoding: chunked`.
    Chunked(Vec<u8>),
}

/// A request that is sent to both servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyRequest {
    /// Index in the list of listeners.
    pub listener_index: usize,
    /// Request method.
    pub method: String,
    /// Request target as sent on the wire.
    pub target: String,
    /// HTTP version: "1.1" or "1.0".
    pub version: &'static str,
    /// Value of `Host`; `None` omits the field.
    pub host: Option<String>,
    /// Other header fields.
    pub fields: Vec<(String, String)>,
    /// Body.
    pub content: RequestContent,
    /// Purpose of the request, in a few words.
    pub purpose: String,
}

/// A file of the scratch directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchFile {
    /// Path below the scratch directory; a trailing slash denotes a directory.
    pub path: String,
    /// Content of the file.
    pub content: Vec<u8>,
}

/// Position of a directive in the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourcePosition {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The directive, shortened.
    pub directive: String,
}

/// A property in which two responses, or the upstream requests that they caused, can differ.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Aspect {
    /// Response status.
    Status,
    /// A response header field, in lower case.
    Field(String),
    /// Response body.
    Content,
    /// The number of upstream requests and the servers that received them.
    UpstreamRequests,
    /// Method of the upstream request.
    UpstreamMethod,
    /// Target of the upstream request.
    UpstreamTarget,
    /// A header field or FastCGI parameter of the upstream request, in lower case.
    UpstreamField(String),
    /// Body of the upstream request.
    UpstreamContent,
}

impl std::fmt::Display for Aspect {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status => out.write_str("status"),
            Self::Field(name) => write!(out, "field {name}"),
            Self::Content => out.write_str("content"),
            Self::UpstreamRequests => out.write_str("upstream requests"),
            Self::UpstreamMethod => out.write_str("upstream method"),
            Self::UpstreamTarget => out.write_str("upstream target"),
            Self::UpstreamField(name) => write!(out, "upstream field {name}"),
            Self::UpstreamContent => out.write_str("upstream content"),
        }
    }
}

/// Addresses and directories of a scratch copy.
pub struct ScratchOptions<'a> {
    /// The directory for all files that the copy names.
    pub folder: PathBuf,
    /// The loopback address of the original server.
    pub old_address: String,
    /// The loopback address of Komainu.
    pub new_address: String,
    /// Returns a port that is free on all loopback addresses.
    pub port: &'a mut dyn FnMut() -> Result<u16, ImportError>,
    /// The password of the scratch user `verify`, hashed for an `htpasswd` file.
    pub password: String,
    /// Maximum number of requests.
    pub requests_max: usize,
    /// Whether to request many paths and omit most other variations.
    pub only_paths: bool,
}

/// Value of `Authorization` in requests with credentials: user `verify`, password `verify`.
pub const CREDENTIALS: &str = "Basic dmVyaWZ5OnZlcmlmeQ==";

/// Responses of the two servers where they differ.
#[derive(Debug, Clone, Copy)]
pub struct DifferingResponses<'a> {
    /// Statuses of the original server and of Komainu; 0 if there was no response.
    pub statuses: (u16, u16),
    /// Value in the response of the original server.
    pub old: &'a str,
    /// Value in Komainu's response; `-` if absent.
    pub new: &'a str,
}
