//! Compression: of files, and of all responses.

use http::Coding;
use settings::checker::Checker;
use settings::directive_table::table;
use settings::directives;
use settings::node::Node;
use settings::shape::{Flag, List, Maybe, OneOrMore, Size, Toggle, Word};
use settings::units::{GIB, MIB};
use shapes::media::{CODINGS, TYPE};

/// Compression effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// The least CPU time.
    Fast,
    /// Most of the gain for little of the time.
    Balanced,
    /// The smallest result.
    Small,
}

const EFFORTS: Word<Effort> =
    Word(&[("fast", Effort::Fast), ("balanced", Effort::Balanced), ("small", Effort::Small)]);

/// `compress` of the server, a site or a route; if absent, the level above applies.
pub(crate) fn responses() -> impl settings::shape::Shape<Out = Option<Option<CompressResponses>>> {
    Maybe(Toggle {
        on: Some(|| Some(CompressResponses::default())),
        off: || None,
        shape: Maybe(table::<CompressResponses>()),
    })
}

directives! {
    /// Compression while sending, in threads separate from those that serve requests.
    Compress in "`compress`", check compress_agrees {
        /// Codings in the order of preference, for clients that accept several equally.
        "codings" codings: Vec<Coding> = ["zstd", "br", "gzip"], OneOrMore(Word(CODINGS));
        /// Smaller files are sent as they are.
        "min" min_bytes: u64 = "1KiB", Size { min: 0, max: GIB };
        /// Larger files are sent as they are.
        "max" max_bytes: u64 = "8MiB", Size { min: 0, max: 64 * MIB };
        /// Compression effort: `"fast"`, `"balanced"` or `"small"`.
        "level" effort: Effort = "balanced",
            EFFORTS;
        /// Media types that are compressed.
        "types" types: Vec<String> = [
            "text/*", "application/javascript", "application/json", "application/xml", "application/manifest+json",
            "application/rss+xml", "application/atom+xml", "application/wasm", "image/svg+xml"
        ], List(TYPE);
    }
}

fn compress_agrees(compress: &mut Compress, node: &Node, check: &mut Checker) {
    if compress.min_bytes <= compress.max_bytes {
        return;
    }
    let at =
        ["min", "max"].iter().find_map(|key| node.entry(key)).map_or(&node.span, |entry| &entry.value.span);
    check.error(
        at,
        format!("`min` is above `max` in `{}`", check.directive_path_text()),
        "no size is between them",
    );
}

directives! {
    /// Compression of responses of files, upstream servers and applications. `true` is `{}`: all defaults.
    ///
    /// ```toml
    /// compress = true
    ///
    /// [[route]]
    /// path  = "/api/*"
    /// proxy = { to = "http://127.0.0.1:3000" }
    /// compress = { codings = ["gzip"], min = "2KiB" }
    /// ```
    ///
    /// A response is not compressed if it has a `Content-Encoding` or `no-transform`, is a part (206), or if the client
    /// uses HTTP/1.0. A compressed response has `Vary: Accept-Encoding` and a weak `ETag`. Event streams and other
    /// responses without a length are sent at once, event by event. Compressed files are kept in memory; see `compress`
    /// of `files`.
    CompressResponses in "`compress`" {
        /// Codings in the order of preference, for clients that accept several equally.
        "codings" codings: Vec<Coding> = ["zstd", "br", "gzip"], OneOrMore(Word(CODINGS));
        /// Responses of a known length below this are sent uncompressed.
        "min" min_bytes: u64 = "1KiB", Size { min: 0, max: GIB };
        /// Compression effort: `"fast"`, `"balanced"` or `"small"`.
        "level" effort: Effort = "balanced", EFFORTS;
        /// Media types that are compressed.
        "types" types: Vec<String> = [
            "text/*", "application/javascript", "application/json", "application/xml", "application/manifest+json",
            "application/rss+xml", "application/atom+xml", "application/wasm", "image/svg+xml"
        ], List(TYPE);
        /// Whether responses over HTTPS with a cookie and `Cache-Control: no-store` are compressed too. Their length
        /// then reveals their content to an attacker who can make the client send requests and can see the lengths (the
        /// BREACH attack).
        "secrets" secrets: bool = false, Flag;
    }
}
