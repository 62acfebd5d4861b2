//! Random Caddyfiles; equal seeds give equal sites.

use std::fmt::Write;

use crate::grammar::Dice;

/// Paths of matchers.
const PATHS: [&str; 16] = [
    "/a/*",
    "/a",
    "/a*",
    "/private/*",
    "/private*",
    "*.txt",
    "*.json",
    "/public/*",
    "/A/*",
    "/private/keys.json",
    "/sub/*",
    "/sub",
    "*/keys.json",
    "/api/*",
    "/*.txt",
    "*secret*",
];
/// Expressions of matchers.
const EXPRESSIONS: [&str; 6] =
    [r"^/private", r"\.(txt|json)$", r"^/a/([a-z]+)\.txt$", r"^/(a|sub)/", r"(?i)secret", r"/$"];
/// Prefixes that handlers remove.
const PREFIXES: [&str; 4] = ["/a", "/api", "/sub", "/private"];
/// Header fields of requests, with the values that matchers ask for.
const FIELDS: [(&str, &str); 3] = [("X-Key", "k"), ("X-Auth", "yes"), ("User-Agent", "*bot*")];
/// Number of nested blocks.
const DEPTH_MAX: usize = 3;

struct Writer {
    dice: Dice,
    out: String,
    depth: usize,
    matchers: usize,
    /// Folder of the files.
    folder: String,
    /// Address of the upstream server.
    upstream: String,
}

/// Returns the site of a seed, at a port.
pub(crate) fn site(seed: u64, port: u16, folder: &str, upstream: &str) -> String {
    let mut writer = Writer {
        dice: Dice::new(seed),
        out: String::new(),
        depth: 0,
        matchers: 0,
        folder: folder.to_owned(),
        upstream: upstream.to_owned(),
    };
    let _ = writeln!(writer.out, "http://s{seed}x.test:{port} {{");
    writer.line(&format!("root * {folder}/www"));
    for _ in 0..1 + writer.dice.below(6) {
        writer.directive();
    }
    let dice = writer.dice.below(10);
    match dice {
        0..=5 => writer.line("file_server"),
        6 | 7 => writer.proxy(""),
        _ => {}
    }
    writer.out.push_str("}\n");
    writer.out
}

impl Writer {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{}{text}", "\t".repeat(self.depth + 1));
    }

    fn path(&mut self) -> &'static str {
        self.dice.pick(&PATHS)
    }

    /// Returns a matcher with a space behind it, or an empty text. Named matchers are defined in the lines before.
    fn matcher(&mut self) -> String {
        let path = self.path();
        match self.dice.below(10) {
            0 => String::new(),
            1..=4 if path.starts_with('/') => format!("{path} "),
            _ => {
                self.matchers += 1;
                let name = format!("@m{}", self.matchers);
                self.line(&format!("{name} {{"));
                self.depth += 1;
                for _ in 0..1 + usize::from(self.dice.chance(30)) {
                    self.condition(true);
                }
                self.depth -= 1;
                self.line("}");
                format!("{name} ")
            }
        }
    }

    fn condition(&mut self, may_exclude: bool) {
        let (field, value) = FIELDS[self.dice.below(FIELDS.len())];
        let line = match self.dice.below(14) {
            0..=2 => format!("path {} {}", self.path(), self.path()),
            3 => format!("path {}", self.path()),
            4 => "method GET POST".to_owned(),
            5 => "method POST".to_owned(),
            6 => format!("header {field} {value}"),
            7 => format!("header !{field}"),
            8 => "query token=1".to_owned(),
            9 => "query token=*".to_owned(),
            10 => format!("path_regexp r {}", self.dice.pick(&EXPRESSIONS)),
            11 => "remote_ip 127.0.0.0/8".to_owned(),
            12 => "expression {method} == \"GET\"".to_owned(),
            _ if may_exclude => {
                if self.dice.chance(50) {
                    format!("not path {}", self.path())
                } else {
                    self.line("not {");
                    self.depth += 1;
                    self.condition(false);
                    if self.dice.chance(30) {
                        self.condition(false);
                    }
                    self.depth -= 1;
                    "}".to_owned()
                }
            }
            _ => "protocol http".to_owned(),
        };
        self.line(&line);
    }

    fn block(&mut self, head: &str) {
        self.line(&format!("{head} {{"));
        self.depth += 1;
        for _ in 0..1 + self.dice.below(3) {
            self.directive();
        }
        if self.dice.chance(60) {
            self.answer("");
        }
        self.depth -= 1;
        self.line("}");
    }

    fn proxy(&mut self, matcher: &str) {
        let upstream = self.upstream.clone();
        match self.dice.below(5) {
            0 => {
                self.line(&format!("reverse_proxy {matcher}{upstream} {{"));
                let inner = self.dice.pick(&[
                    "\theader_up X-Up set",
                    "\theader_up -X-Key",
                    "\theader_down X-Down set",
                    "\trewrite /other{uri}",
                    "\tmethod GET",
                ]);
                self.line(inner);
                self.line("}");
            }
            _ => self.line(&format!("reverse_proxy {matcher}{upstream}")),
        }
    }

    /// Writes a directive that answers.
    fn answer(&mut self, matcher: &str) {
        match self.dice.below(12) {
            0 => self.line(&format!("respond {matcher}\"closed\" 403")),
            1 => self.line(&format!("respond {matcher}401")),
            2 => self.line(&format!("respond {matcher}\"open\" 200")),
            3 => self.line(&format!("error {matcher}404")),
            4 => {
                let to = self.dice.pick(&["/login", "/public/{uri}", "https://{host}{uri}", "/x 301"]);
                // A target without a matcher would be one.
                let matcher = if matcher.is_empty() { "* " } else { matcher };
                self.line(&format!("redir {matcher}{to}"));
            }
            5 => self.line(&format!("abort {matcher}")),
            6..=8 => {
                if self.dice.chance(30) {
                    self.line(&format!("file_server {matcher}{{"));
                    let inner = self.dice.pick(&[
                        "\thide *.json",
                        "\thide secret.txt sub",
                        "\tindex page.txt",
                        "\tbrowse",
                        "\tstatus 200",
                        "\tpass_thru",
                        "\tdisable_canonical_uris",
                    ]);
                    self.line(inner);
                    self.line("}");
                } else {
                    self.line(&format!("file_server {matcher}"));
                }
            }
            _ => self.proxy(matcher),
        }
    }

    fn directive(&mut self) {
        let may_nest = self.depth < DEPTH_MAX;
        match self.dice.below(22) {
            0..=2 if may_nest => {
                let matcher = self.matcher();
                let kind = self.dice.pick(&["handle", "route", "handle"]);
                self.block(format!("{kind} {matcher}").trim_end());
            }
            3 if may_nest => {
                let prefix = self.dice.pick(&PREFIXES);
                let end = self.dice.pick(&["/*", "*"]);
                self.block(&format!("handle_path {prefix}{end}"));
            }
            4..=8 => {
                let matcher = self.matcher();
                self.answer(&matcher);
            }
            9 => {
                let matcher = self.matcher();
                let matcher = if matcher.is_empty() { "* ".to_owned() } else { matcher };
                let to = self.dice.pick(&[
                    "/public{uri}",
                    "/private/keys.json",
                    "/index.html",
                    "/a.txt?token=1",
                    "{path}.txt",
                ]);
                self.line(&format!("rewrite {matcher}{to}"));
            }
            10 => {
                let matcher = self.matcher();
                let matcher = if matcher.is_empty() { "* ".to_owned() } else { matcher };
                let what = self.dice.pick(&[
                    "strip_prefix /a",
                    "strip_prefix /private",
                    "strip_suffix .txt",
                    "replace private public",
                    "path_regexp /a /b",
                ]);
                self.line(&format!("uri {matcher}{what}"));
            }
            11 | 12 => {
                let tries = self.dice.pick(&[
                    "{path} /index.html",
                    "{path} {path}/ /index.html",
                    "{path}.txt {path} /index.html",
                    "{path} {path}/page.txt =404",
                    "/maintenance.html {path}",
                    "{path} {path}.html",
                    "/sub{path} {path}",
                ]);
                self.line(&format!("try_files {tries}"));
            }
            13 => {
                let matcher = self.matcher();
                let matcher = if matcher.is_empty() { "* ".to_owned() } else { matcher };
                let what = self.dice.pick(&[
                    "X-A a",
                    "+X-A b",
                    "-X-Down",
                    "?X-A c",
                    "Cache-Control no-store",
                    "X-Path {path}",
                ]);
                self.line(&format!("header {matcher}{what}"));
            }
            14 => {
                let matcher = self.matcher();
                let matcher = if matcher.is_empty() { "* ".to_owned() } else { matcher };
                self.line(&format!("basicauth {matcher}{{"));
                self.line("\tu $2a$04$tsJHE68Zw8lBJmTF9W8rCOdBm1aVPPj6gGSLmZyz3MUVTOUYbUDeq");
                self.line("}");
            }
            15 | 16 => {
                let matcher = self.matcher();
                let upstream = self.upstream.clone();
                self.line(&format!("forward_auth {matcher}{upstream} {{"));
                self.line("\turi /auth");
                if self.dice.chance(50) {
                    self.line("\tcopy_headers X-User");
                }
                self.line("}");
            }
            17 => {
                let matcher = self.matcher();
                self.line(&format!("request_body {matcher}{{"));
                self.line("\tmax_size 10");
                self.line("}");
            }
            18 => {
                let matcher = self.matcher();
                let matcher = if matcher.is_empty() { "* ".to_owned() } else { matcher };
                let what = self.dice.pick(&["X-Auth yes", "-X-Auth", "X-Key other", "Host other.test"]);
                self.line(&format!("request_header {matcher}{what}"));
            }
            19 => {
                let matcher = self.matcher();
                let matcher = if matcher.is_empty() { "* ".to_owned() } else { matcher };
                let folder = match self.dice.below(2) {
                    0 => format!("{}/empty", self.folder),
                    _ => "{http.vars.root}/sub".to_owned(),
                };
                self.line(&format!("root {matcher}{folder}"));
            }
            20 if self.depth == 0 => {
                self.line("handle_errors {");
                self.line("\trespond \"error\" 500");
                self.line("}");
            }
            _ => self.line("encode gzip"),
        }
    }
}
