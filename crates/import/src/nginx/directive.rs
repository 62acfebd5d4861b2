//! Columns of the table of directives: the blocks in which nginx allows a directive, its number of arguments, and
//! the part of the translation that reads it.

/// Set of the blocks in which nginx allows a directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contexts(u16);

impl Contexts {
    /// Outside all blocks.
    pub(crate) const MAIN: Self = Self(1);
    pub(crate) const EVENTS: Self = Self(1 << 1);
    pub(crate) const HTTP: Self = Self(1 << 2);
    pub(crate) const SERVER: Self = Self(1 << 3);
    pub(crate) const LOCATION: Self = Self(1 << 4);
    pub(crate) const SERVER_IF: Self = Self(1 << 5);
    pub(crate) const LOCATION_IF: Self = Self(1 << 6);
    pub(crate) const LIMIT_EXCEPT: Self = Self(1 << 7);
    pub(crate) const UPSTREAM: Self = Self(1 << 8);
    pub(crate) const STREAM: Self = Self(1 << 9);
    pub(crate) const STREAM_SERVER: Self = Self(1 << 10);
    pub(crate) const STREAM_UPSTREAM: Self = Self(1 << 11);
    /// Blocks that are not looked into, such as `mail`.
    pub(crate) const OPAQUE: Self = Self(1 << 12);

    /// All blocks whose directives are looked into.
    pub(crate) const ANYWHERE: Self = Self((1 << 12) - 1);
    /// `http` and `server`.
    pub(crate) const CONNECTION: Self = Self::HTTP.or(Self::SERVER);
    /// `http`, `server` and `location`.
    pub(crate) const PLACES: Self = Self::CONNECTION.or(Self::LOCATION);
    /// [`PLACES`](Self::PLACES), and `if` in a location.
    pub(crate) const PLACES_AND_IF: Self = Self::PLACES.or(Self::LOCATION_IF);
    /// `stream` and its servers.
    pub(crate) const STREAMS: Self = Self::STREAM.or(Self::STREAM_SERVER);

    /// Returns the union of two sets.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the sets have a block in common.
    pub(crate) const fn includes(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the context of the directives in the block of `name`, which is in this context.
    pub(crate) fn within(self, name: &str) -> Self {
        let is_in = |context: Self| self.includes(context);
        match name {
            "events" => Self::EVENTS,
            "http" => Self::HTTP,
            "stream" => Self::STREAM,
            "server" if is_in(Self::STREAMS) => Self::STREAM_SERVER,
            "server" => Self::SERVER,
            "location" => Self::LOCATION,
            "if" if is_in(Self::LOCATION) => Self::LOCATION_IF,
            "if" => Self::SERVER_IF,
            "limit_except" => Self::LIMIT_EXCEPT,
            "upstream" if is_in(Self::STREAMS) => Self::STREAM_UPSTREAM,
            "upstream" => Self::UPSTREAM,
            _ => Self::OPAQUE,
        }
    }
}

/// Number of arguments that nginx accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl Arguments {
    pub(crate) const NONE: Self = Self::between(0, 0);
    pub(crate) const ONE: Self = Self::between(1, 1);
    pub(crate) const TWO: Self = Self::between(2, 2);
    pub(crate) const ONE_OR_TWO: Self = Self::between(1, 2);
    pub(crate) const TWO_OR_THREE: Self = Self::between(2, 3);
    pub(crate) const ANY: Self = Self::at_least(0);
    pub(crate) const SOME: Self = Self::at_least(1);

    pub(crate) const fn between(min: usize, max: usize) -> Self {
        Self { min, max }
    }

    pub(crate) const fn at_least(min: usize) -> Self {
        Self { min, max: usize::MAX }
    }

    /// Whether nginx accepts so many arguments.
    pub(crate) fn accepts(self, count: usize) -> bool {
        (self.min..=self.max).contains(&count)
    }
}

impl std::fmt::Display for Arguments {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.min, self.max) {
            (0, 0) => out.write_str("no argument"),
            (1, 1) => out.write_str("1 argument"),
            (min, usize::MAX) => write!(out, "at least {min}"),
            (min, max) if min == max => write!(out, "{min} arguments"),
            (min, max) => write!(out, "{min} to {max} arguments"),
        }
    }
}

/// Part of the translation that reads a directive, with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Blocks, addresses and names: which requests a place is for.
    Places,
    /// `rewrite`, `if`, `return`, `set` and `break`, in the order in which nginx executes them.
    RewritePhase,
    /// Settings of the process.
    Process,
    /// Settings that Komainu has once for all sites; the first one counts.
    Everywhere,
    /// Timeouts and limits of connections.
    Connections,
    /// Limits of requests and responses of a route.
    Limits,
    /// Restrictions of access.
    Access,
    /// Certificates of a site.
    Tls,
    /// Error pages, logs and other settings of a site.
    Site,
    /// Client addresses behind trusted proxies.
    ClientAddresses,
    /// Folders and pages.
    Files,
    /// Further settings of `files`.
    FileSettings,
    /// Response fields.
    Headers,
    /// Texts that are replaced in responses.
    Replacements,
    Compression,
    /// Upstream servers of `proxy_pass` and `grpc_pass`.
    Proxy,
    /// Further settings of `proxy`.
    ProxySettings,
    /// TLS to upstream servers.
    UpstreamTls,
    /// Repeated requests, and how requests are passed on.
    ProxyRequests,
    /// Servers of FastCGI, uwsgi and SCGI.
    Cgi,
    /// Further settings of FastCGI.
    FastCgi,
    /// Further settings of uwsgi.
    Uwsgi,
    /// Further settings of SCGI.
    Scgi,
    Cache,
    /// Groups of upstream servers.
    Upstream,
    /// Zones, maps and formats that other directives name.
    Definitions,
    /// Streams.
    Stream,
    /// Further settings of streams.
    StreamSettings,
    /// Groups of servers of streams.
    StreamUpstream,
}
