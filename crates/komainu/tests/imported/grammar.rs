//! Random nginx configurations generated from its grammar; equal seeds give equal configurations.

mod guards;

use std::fmt::Write;

/// The first seed whose configuration may have the directives of [`guards`]; those of seeds before it are as they were
/// when they revealed a fault.
const GUARDED_FROM: u64 = 400_000;

/// A pseudo-random number generator (SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    /// Returns true with a probability of `percent` in 100.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.below(all.len())]
    }
}

/// A generated configuration, with the files that it includes.
#[derive(Default)]
pub(crate) struct Generated {
    /// Directives of the `http` block.
    pub(crate) http: String,
    /// Names and contents of the included files.
    pub(crate) files: Vec<(String, String)>,
}

const PREFIXES: [&str; 12] = [
    "/a",
    "/a/",
    "/a/b",
    "/a/b/",
    "/public/",
    "/private/",
    "/img/",
    "/p.q/",
    "/c/",
    "/priv",
    "/a/b/c/",
    "/x%y/",
];
const CHILDREN: [&str; 4] = ["b/", "c/", "sub", "b/c/"];
const REGEXES: [&str; 22] = [
    r"\.txt$",
    r"\.(txt|json)$",
    r"\.html$",
    r"^/a/",
    r"^/public/",
    r"^/priv",
    r"/b",
    r"^/(a|c)/",
    r"^/img/(\w+)\.png$",
    r"^/a/(?<rest>.*)$",
    r"\.PHP$",
    r"/\.",
    r"^/a/?b",
    r"^/[^/]+/verify",
    r"(sub|folder)",
    r"^/p.q/",
    r"/$",
    r"^/(?!public)",
    r"^/c/.+\.css$",
    r"verify$|^/private",
    r"^/private/(?!open)[a-z]+$",
    r"^/(.)\1",
];

/// Context of a location.
#[derive(Clone, Copy, PartialEq)]
enum Around<'p> {
    Server,
    Prefix(&'p str),
    Regex,
}

struct Writer {
    dice: Dice,
    seed: u64,
    out: String,
    depth: usize,
    number: usize,
    named: usize,
    files: Vec<(String, String)>,
    /// Whether the directives of [`guards`] are written.
    has_guards: bool,
    /// Addresses that have a default server.
    defaults: Vec<String>,
}

/// Generates the configuration of a seed.
pub(crate) fn generated(seed: u64) -> Generated {
    let mut writer = Writer {
        dice: Dice::new(seed),
        seed,
        out: String::new(),
        depth: 0,
        number: 0,
        named: 0,
        files: Vec::new(),
        has_guards: seed >= GUARDED_FROM,
        defaults: Vec::new(),
    };
    writer.maps();
    if writer.has_guards {
        writer.zones();
    }
    let servers = 1 + usize::from(writer.dice.chance(25)) + usize::from(writer.dice.chance(8));
    let servers = servers + usize::from(writer.has_guards && writer.dice.chance(30));
    let has_own_address = servers > 1 || writer.dice.chance(20);
    for at in 0..servers {
        writer.server(at, has_own_address);
    }
    Generated { http: writer.out, files: writer.files }
}

impl Writer {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{}{text}", "  ".repeat(self.depth));
    }

    fn block(&mut self, head: &str, inner: impl FnOnce(&mut Self)) {
        self.line(&format!("{head} {{"));
        self.depth += 1;
        inner(self);
        self.depth -= 1;
        self.line("}");
    }

    /// Returns a unique response text that identifies its location.
    fn answer(&mut self) -> String {
        self.number += 1;
        format!("s{}n{}", self.seed, self.number)
    }

    fn maps(&mut self) {
        let seed = self.seed;
        if self.dice.chance(25) {
            let source = self.dice.pick(&["$uri", "$http_x_key", "$request_method", "$arg_key", "$host"]);
            let default = self.dice.pick(&["0", "1", ""]);
            self.block(&format!("map {source} $m{seed}"), |w| {
                w.line(&format!("default \"{default}\";"));
                for key in ["/a/verify.txt", "verify", "POST", "~^/private", "~*\\.TXT$", "~^1"] {
                    if w.dice.chance(40) {
                        let value = w.dice.pick(&["0", "1", "two"]);
                        w.line(&format!("{key} {value};"));
                    }
                }
            });
        }
        if self.dice.chance(12) {
            let value = self.dice.pick(&["0", "1"]);
            self.block(&format!("geo $g{seed}"), |w| {
                w.line(&format!("default {value};"));
                w.line(&format!("127.0.0.0/8 {};", 1 - value.parse::<u8>().unwrap()));
            });
        }
    }

    fn server(&mut self, at: usize, has_own_address: bool) {
        let seed = self.seed;
        self.block("server", |w| {
            if w.has_guards && has_own_address {
                w.addresses();
            } else {
                let port = if has_own_address { 10_000 + seed % 50_000 } else { 80 };
                let kind =
                    if has_own_address && at == 1 && w.dice.chance(50) { " default_server" } else { "" };
                w.line(&format!("listen {port}{kind};"));
                if has_own_address && w.dice.chance(20) {
                    w.line(&format!("listen 127.0.0.1:{};", 10_000 + (seed + 1) % 50_000));
                }
            }
            let name = match w.dice.below(12) {
                0 => format!("s{seed}x{at}.*"),
                1 => format!("*.s{seed}x{at}.test"),
                2 => format!(".s{seed}x{at}.test"),
                3 => format!("~^r\\d\\.s{seed}x{at}\\.test$"),
                4 => format!("~^(www\\.)?s{seed}x{at}\\.test$"),
                5 => format!("s{seed}x{at}.test www.s{seed}x{at}.test"),
                6 if has_own_address => "\"\"".to_owned(),
                _ => format!("s{seed}x{at}.test"),
            };
            w.line(&format!("server_name {name};"));
            if w.dice.chance(85) {
                w.line(&format!("root /srv/www{};", w.seed % 3));
            }
            w.settings(Around::Server);
            if w.dice.chance(6) {
                let value =
                    w.dice.pick(&["merge_slashes off", "absolute_redirect off", "port_in_redirect off"]);
                w.line(&format!("{value};"));
            }
            w.executed(Around::Server);
            if w.has_guards {
                w.guarded_places();
            }
            for _ in 0..1 + w.dice.below(5) {
                w.location(Around::Server, 0);
            }
            let has_root = w.has_guards
                && w.out.rsplit("server {").next().is_some_and(|own| own.contains("  location / {"));
            if !has_root && w.dice.chance(60) {
                w.block("location /", |w| w.content(Around::Prefix("/"), 0));
            }
            for number in 0..w.named {
                w.block(&format!("location @n{number}"), |w| {
                    w.settings(Around::Regex);
                    let text = w.answer();
                    match w.dice.below(5) {
                        0 => w.line(&format!("return 200 {text};")),
                        1 => w.line("deny all;"),
                        2 => w.line("return 302 /login;"),
                        _ => w.line("proxy_pass http://127.0.0.1:3001;"),
                    }
                });
            }
            w.named = 0;
        });
    }

    fn location(&mut self, around: Around<'_>, depth: usize) {
        if self.dice.chance(6) {
            return self.included(around, depth);
        }
        self.written(around, depth);
    }

    /// Writes a location into an included file.
    fn included(&mut self, around: Around<'_>, depth: usize) {
        let outside = std::mem::take(&mut self.out);
        self.written(around, depth);
        let text = std::mem::replace(&mut self.out, outside);
        let name = format!("parts/{}-{}.inc", self.seed, self.files.len());
        self.line(&format!("include {name};"));
        self.files.push((name, text));
    }

    fn written(&mut self, around: Around<'_>, depth: usize) {
        let is_regex = around == Around::Regex || self.dice.chance(45);
        if is_regex {
            let regex = self.dice.pick(&REGEXES);
            let operator = if self.dice.chance(25) { "~*" } else { "~" };
            let space = if self.dice.chance(25) { "" } else { " " };
            let word = if regex.contains('{') || self.dice.chance(15) && space == " " {
                format!("\"{}\"", regex.replace('\\', "\\\\"))
            } else {
                regex.to_owned()
            };
            self.block(&format!("location {operator}{space}{word}"), |w| w.content(Around::Regex, depth + 1));
            return;
        }
        let path = match around {
            Around::Prefix(prefix) => {
                let child = self.dice.pick(&CHILDREN);
                let slash = if prefix.ends_with('/') { "" } else { "/" };
                format!("{prefix}{slash}{child}")
            }
            _ => self.dice.pick(&PREFIXES).to_owned(),
        };
        let space = if self.dice.chance(30) { "" } else { " " };
        if self.dice.chance(20) {
            let path = if self.dice.chance(50) {
                path
            } else {
                format!("{}verify.txt", path.trim_end_matches('/').to_owned() + "/")
            };
            self.block(&format!("location ={space}{path}"), |w| w.content(Around::Server, depth + 9));
            return;
        }
        let operator = if self.dice.chance(25) { format!("^~{space}") } else { String::new() };
        self.block(&format!("location {operator}{path}"), |w| w.content(Around::Prefix(&path), depth + 1));
    }

    /// Writes the content of a location. A location with `=` has no nested locations.
    fn content(&mut self, around: Around<'_>, depth: usize) {
        self.settings(around);
        if self.dice.chance(5) {
            self.line("internal;");
        }
        if self.has_guards {
            self.guards(15);
        }
        self.executed(around);
        if self.dice.chance(8) {
            let methods = self.dice.pick(&["GET", "GET POST", "POST"]);
            let inner = self.dice.pick(&[
                "deny all;",
                "allow 127.0.0.0/8; deny all;",
                "auth_basic x; auth_basic_user_file users;",
            ]);
            self.line(&format!("limit_except {methods} {{ {inner} }}"));
        }
        let text = self.answer();
        if self.has_guards && self.dice.chance(10) {
            return self.scripts();
        }
        match self.dice.below(20) {
            0..3 => self.line(&format!("return 200 {text};")),
            3 => {
                let code = self.dice.pick(&["403", "404", "410", "444", "204", "418"]);
                self.line(&format!("return {code};"));
            }
            4 => {
                let target = self.dice.pick(&[
                    "301 /moved",
                    "302 http://other.test$request_uri",
                    "308 $scheme://$host/x$uri",
                    "302 /plain/$arg_key",
                ]);
                self.line(&format!("return {target};"));
            }
            5..10 => {
                let uri = match around {
                    Around::Prefix(_) => self.dice.pick(&["", "", "", "/", "/up/", "/up", "$request_uri"]),
                    _ => self.dice.pick(&["", "", "$request_uri"]),
                };
                let server = self.dice.below(2);
                self.line(&format!("proxy_pass http://127.0.0.1:300{server}{uri};"));
            }
            10 => match around {
                Around::Prefix(path) => {
                    let slash = if path.ends_with('/') { "/" } else { "" };
                    let folder = self.dice.below(2);
                    self.line(&format!("alias /srv/alias{folder}{slash};"));
                }
                _ => self.line("root /srv/other;"),
            },
            11 => self.line("root /srv/other;"),
            12..15 => {
                let tries =
                    self.dice.pick(&["$uri", "$uri $uri/", "$uri $uri/index.html", "/fixed.html $uri"]);
                let last = match self.dice.below(5) {
                    0 => "/index.html".to_owned(),
                    1 => "/a/verify.txt".to_owned(),
                    2 => {
                        let name = format!("@n{}", self.named);
                        self.named += 1;
                        name
                    }
                    _ => "=404".to_owned(),
                };
                self.line(&format!("try_files {tries} {last};"));
            }
            _ => {}
        }
        if self.dice.chance(8) {
            let value = self.dice.pick(&[
                "index index.html;",
                "index verify.txt index.html;",
                "autoindex on;",
                "index start.html;",
            ]);
            self.line(value);
        }
        let children = if depth < 3 && self.dice.chance(30) { 1 + self.dice.below(2) } else { 0 };
        for _ in 0..children {
            self.location(around, depth);
        }
    }

    /// Writes directives that nested locations inherit.
    fn settings(&mut self, around: Around<'_>) {
        let is_server = around == Around::Server;
        if self.dice.chance(if is_server { 5 } else { 15 }) {
            let rules = self.dice.pick(&[
                "deny all;",
                "allow 127.0.0.0/8; deny all;",
                "deny 127.0.0.1; allow all;",
                "allow 10.0.0.0/8; deny all;",
                "allow 10.0.0.0/8; deny 127.0.0.0/8;",
                "allow all;",
            ]);
            self.line(rules);
        }
        if self.dice.chance(if is_server { 4 } else { 12 }) {
            let realm = self.dice.pick(&["x", "x", "x", "off"]);
            self.line(&format!("auth_basic {realm}; auth_basic_user_file users;"));
        }
        if self.dice.chance(4) {
            let value = self.dice.pick(&["any", "all"]);
            self.line(&format!("satisfy {value};"));
        }
        if self.dice.chance(15) {
            let always = self.dice.pick(&["", " always"]);
            let number = self.answer();
            self.line(&format!("add_header X-At {number}{always};"));
        }
        if self.dice.chance(6) {
            let value = self.dice.pick(&["1h", "-1", "max", "off", "epoch"]);
            self.line(&format!("expires {value};"));
        }
        if self.dice.chance(8) {
            let value = self.dice.pick(&[
                "proxy_set_header Host $host;",
                "proxy_set_header X-Key set;",
                "proxy_set_header X-Key \"\";",
                "proxy_set_header X-User $remote_user;",
                "proxy_set_header X-Odd $connection_requests;",
                "proxy_hide_header X-Powered-By;",
                "proxy_pass_request_headers off;",
                "proxy_intercept_errors on;",
                "proxy_method POST;",
            ]);
            self.line(value);
        }
        if self.dice.chance(5) {
            let value = self.dice.pick(&[
                "error_page 404 /404.html;",
                "error_page 403 =200 /index.html;",
                "error_page 404 = @e;",
                "error_page 418 = @n0;",
                "error_page 401 =302 /login;",
            ]);
            if value.contains("@n0") {
                self.named = self.named.max(1);
            }
            if !value.contains("@e") {
                self.line(value);
            }
        }
        if self.dice.chance(4) {
            let value = self.dice.pick(&[
                "default_type text/plain;",
                "types { text/x-own txt; }",
                "client_max_body_size 4;",
                "made_up_by_nobody on;",
            ]);
            if !value.starts_with("made_up") {
                self.line(value);
            }
        }
    }

    /// Writes `rewrite`, `if`, `set` and similar directives.
    fn executed(&mut self, around: Around<'_>) {
        let is_server = around == Around::Server;
        let count =
            if self.dice.chance(if is_server { 30 } else { 25 }) { 1 + self.dice.below(2) } else { 0 };
        for _ in 0..count {
            match self.dice.below(10) {
                0 => {
                    let value = self.dice.pick(&["0", "1", "$uri", "/up"]);
                    self.line(&format!("set $v{} {value};", self.seed));
                }
                1 if !is_server => self.line("break;"),
                2..5 => {
                    let line = self.rewrite();
                    self.line(&line);
                }
                _ => self.condition(),
            }
        }
    }

    fn rewrite(&mut self) -> String {
        let from = self.dice.pick(&[
            "^/a/(.*)$",
            "^/public/(.*)$",
            "^/old$",
            "^(.*)\\.txt$",
            "^/(.+)/verify",
            "^",
            "^/c/(?<part>\\w+)",
            "^/private/open",
        ]);
        let groups = from.contains("(.");
        let to = match (groups, self.dice.below(5)) {
            (true, 0) => "/b/$1",
            (true, 1) => "/public/$1",
            (true, 2) => "/private/$1",
            (_, 3) => "/a/verify.txt",
            (_, 4) => "/c/?x=1",
            _ => "/public/verify.txt",
        };
        let flag = self.dice.pick(&[" last", " break", " redirect", " permanent", "", " last"]);
        format!("rewrite {from} {to}{flag};")
    }

    fn condition(&mut self) {
        let seed = self.seed;
        let map = format!("$m{seed}");
        let geo = format!("$g{seed}");
        let set = format!("$v{seed} = 1");
        let mut all = vec![
            "$request_method = POST",
            "$request_method != GET",
            "$request_method !~ ^(GET|HEAD)$",
            "$http_x_key = verify",
            "$http_x_key",
            "$http_x_key != verify",
            "$arg_key = 1",
            "$arg_key",
            "$cookie_session",
            "$uri ~ \\.txt$",
            "$uri !~ ^/public/",
            "$request_uri ~ ^/private",
            "$request_uri !~ ^/public",
            "$args ~ a=1",
            "$scheme = http",
            "$scheme != https",
            "$remote_addr != 127.0.0.1",
            "$remote_user = verify",
            "$host ~ ^www",
            "-f $request_filename",
            "!-e $request_filename",
            "$query_string",
        ];
        if self.out.contains(&format!("{map} {{")) {
            all.extend([map.as_str(), map.as_str()]);
        }
        if self.has_guards {
            all.push("$ssl_client_verify != SUCCESS");
        }
        if self.out.contains(&format!("{geo} {{")) {
            all.extend([geo.as_str(), geo.as_str()]);
        }
        if self.out.contains(&format!("set $v{seed} ")) {
            all.extend([set.as_str(), set.as_str()]);
        }
        let condition = self.dice.pick(&all).to_owned();
        let rewrite = self.rewrite();
        let text = self.answer();
        let inner = match self.dice.below(9) {
            0..4 => "return 403;".to_owned(),
            4 => format!("return 200 {text};"),
            5 => "return 302 /login;".to_owned(),
            6 => rewrite,
            7 => format!("set $w{seed} 1;"),
            _ => "return 404;".to_owned(),
        };
        self.line(&format!("if ({condition}) {{ {inner} }}"));
    }
}
