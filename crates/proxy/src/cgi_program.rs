//! The `cgi` action: a program for each request.

use settings::checker::InvalidValue;
use settings::directives;
use settings::shape::{Count, Flag, Map, PathShape, Text, Time};
use shapes::names::parse_variable_name;
use std::path::PathBuf;
use std::time::Duration;

const ENV: Map<String, Text<String>> = Map {
    what: "names of environment variables",
    key: parse_variable_name,
    value: Text { what: "a value", parse: parse_env_value },
};

directives! {
    /// Runs a program for each request, by CGI (RFC 3875). A folder, or a single program, is shorthand for `root`.
    ///
    /// ```toml
    /// [[route]]
    /// path = "/cgi-bin/*"
    /// cgi  = "/srv/cgi-bin"
    /// ```
    ///
    /// In a folder, the path below the route's names the program, and the rest of the path is `PATH_INFO`. A
    /// program must be an executable file within the folder; symbolic links are followed as long as they stay
    /// in it. Names that begin with a dot are not found. Programs that write the whole head of the response
    /// themselves (`nph-…`) are not supported.
    Cgi in "`cgi`" {
        /// The folder of the programs, or one program.
        "root" root: PathBuf = required(""), PathShape("a folder or a program");
        /// Programs that run at the same time; further requests wait, for up to 10 s, and then get 503.
        "processes" processes_max: u32 = 16, Count { min: 1, max: 10_000 };
        /// Maximum time for a request. When it expires, or the client disconnects, the program and all that
        /// it has started get SIGTERM, and a second later SIGKILL.
        "time" time: Duration = "60s", Time { min: Duration::from_millis(100), max: Duration::from_secs(86_400) };
        /// Environment variables of the programs, besides those of CGI and `PATH`. The server's environment
        /// is not passed on.
        "env" env: Vec<(String, String)> = {}, ENV;
        /// Whether response heads with faults that can be repaired are accepted, as by `lenient_heads` of `proxy`.
        "lenient_heads" lenient_heads: bool = false, Flag;
    }
}

fn parse_env_value(text: &str) -> Result<String, InvalidValue> {
    if text.contains('\0') {
        Err(InvalidValue::new("a value must not contain NUL", ""))
    } else {
        Ok(text.to_owned())
    }
}
