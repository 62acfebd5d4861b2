//! A copy of an old configuration in which every address, folder and file is a scratch one, so that the old server can run beside
//! Komainu for a comparison: what the copy needs around it, and the requests to compare.

use std::path::PathBuf;

/// What a stub in the place of an upstream server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StubProtocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/1.1 through TLS.
    Https,
    /// FastCGI.
    FastCgi,
    /// A protocol that no stub speaks: its routes are not compared.
    Unknown,
}

/// A stub in the place of an upstream server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StubServer {
    /// The address in the old configuration.
    pub name: String,
    /// What it speaks.
    pub protocol: StubProtocol,
    /// Its port on 127.0.0.1.
    pub port: u16,
}

/// An address at which both servers listen, each with a loopback address of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchListener {
    /// The address in the old configuration.
    pub name: String,
    /// The port, the same for both servers.
    pub port: u16,
    /// Whether connections speak TLS.
    pub tls: bool,
}

/// The content of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestContent {
    /// None.
    Absent,
    /// With Content-Length.
    Sized(Vec<u8>),
    /// With `Transfer-Encoding: chunked`.
    Chunked(Vec<u8>),
}

/// A request that both servers get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyRequest {
    /// The listener, by its place in the list.
    pub listener: usize,
    /// The method.
    pub method: String,
    /// The target, as it is sent.
    pub target: String,
    /// The version: "1.1" or "1.0".
    pub version: &'static str,
    /// `Host`, or none.
    pub host: Option<String>,
    /// Other header fields.
    pub fields: Vec<(String, String)>,
    /// The content.
    pub content: RequestContent,
    /// What the request tries, in a few words.
    pub what: String,
}

/// A file of the scratch folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchFile {
    /// Its path below the scratch folder; a folder where it ends with a slash.
    pub path: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// Where a directive stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourcePlace {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The directive, shortened.
    pub directive: String,
}

/// One thing in which two answers, or the requests that an upstream server got, can differ.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Aspect {
    /// The status of the answer.
    Status,
    /// A header field of the answer, in small letters.
    Field(String),
    /// The content of the answer.
    Content,
    /// How many requests upstream servers got, and which of them.
    UpstreamRequests,
    /// The method that the upstream server got.
    UpstreamMethod,
    /// The target that the upstream server got.
    UpstreamTarget,
    /// A header field, or a variable of FastCGI, that the upstream server got, in small letters.
    UpstreamField(String),
    /// The content that the upstream server got.
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

/// Addresses and folders for a scratch copy.
pub struct ScratchOptions<'a> {
    /// The folder for everything that the copy names.
    pub folder: PathBuf,
    /// The loopback address of the old server.
    pub old_address: String,
    /// The loopback address of Komainu.
    pub new_address: String,
    /// Returns a port that is free on all loopback addresses.
    pub port: &'a mut dyn FnMut() -> Result<u16, String>,
    /// The password of the scratch user `verify`, hashed for a file of `htpasswd`.
    pub password: String,
    /// The most requests.
    pub requests_max: usize,
    /// Whether many paths are asked for, and little else.
    pub paths_alone: bool,
}

/// The user and password that requests with credentials have, as `Authorization` carries them: `verify` and `verify`.
pub const CREDENTIALS: &str = "Basic dmVyaWZ5OnZlcmlmeQ==";

/// What two servers have answered, where it differs.
#[derive(Debug, Clone, Copy)]
pub struct DifferingAnswers<'a> {
    /// The statuses, of the old server and of Komainu; 0 without an answer.
    pub statuses: (u16, u16),
    /// What the old server has.
    pub old: &'a str,
    /// What Komainu has; `-` for nothing.
    pub new: &'a str,
}
