//! Each has a name, the servers of nginx, and requests; those with `=` are answered alike.

/// A configuration of nginx and requests; in `servers`, `LISTEN` is the address.
pub(super) struct RefusedCase {
    pub(super) name: &'static str,
    pub(super) servers: &'static str,
    pub(super) requests: &'static [&'static str],
}

const fn case(name: &'static str, servers: &'static str, requests: &'static [&'static str]) -> RefusedCase {
    RefusedCase { name, servers, requests }
}

pub(super) const CASES: &[RefusedCase] = &[
    case(
        "exact names before expressions",
        r#"server { LISTEN server_name admin.test; location / { return 403; } } server { LISTEN server_name "~^(?<sub>.+)\.test$"; location / { return 200 ok; } }"#,
        &["=/|Host: admin.test", "=/|Host: other.test", "=/|Host: ADMIN.test:99", "=/|Host: admin.test."],
    ),
    case(
        "names with and without a label before expressions",
        "server { LISTEN server_name .adm.test; location / { return 403; } } server { LISTEN server_name ~test$; location / { return 200 ok; } }",
        &["=/|Host: adm.test", "=/|Host: x.adm.test", "=/|Host: x.test"],
    ),
    case(
        "names that begin with a star before expressions",
        "server { LISTEN server_name *.internal.test; location / { return 403; } } server { LISTEN server_name ~^a; location / { return 200 ok; } }",
        &["=/|Host: a.internal.test", "=/|Host: a.test", "=/|Host: b.internal.test", "=/|Host: b.test"],
    ),
    case(
        "names of both kinds",
        "server { LISTEN server_name x.test admin.*; location / { return 403; } } server { LISTEN server_name ~.; location / { return 200 ok; } }",
        &["=/|Host: x.test", "=/|Host: admin.test", "=/|Host: b.test"],
    ),
    case(
        "names that begin with a star before those that end with one",
        "server { LISTEN server_name *.b.test; location / { return 403; } } server { LISTEN server_name a.*; location / { return 200 ok; } }",
        &["=/|Host: a.b.test", "=/|Host: a.c.test", "=/|Host: c.b.test"],
    ),
    case(
        "exact names before those with a star",
        "server { LISTEN server_name a.b.test; location / { return 403; } } server { LISTEN server_name *.b.test; location / { return 200 ok; } }",
        &["=/|Host: a.b.test", "=/|Host: c.b.test", "=/|Host: x"],
    ),
    case(
        "longer names with a star first",
        "server { LISTEN server_name *.a.b.test; location / { return 403; } } server { LISTEN server_name *.b.test; location / { return 200 ok; } }",
        &["=/|Host: x.a.b.test", "=/|Host: a.b.test"],
    ),
    case(
        "expressions of few hosts after all other names",
        r#"server { LISTEN server_name z; location / { return 200 ok; } } server { LISTEN server_name "~^(www|api)\.b\.test$"; location / { return 200 ok; } } server { LISTEN server_name *.b.test; location / { return 403; } }"#,
        &["=/|Host: www.b.test", "=/|Host: x.b.test", "=/|Host: other"],
    ),
    case(
        "expressions in their order",
        r#"server { LISTEN server_name z; location / { return 200 ok; } } server { LISTEN server_name ~^www; location / { return 403; } } server { LISTEN server_name "~^www\.b\.test$"; location / { return 200 ok; } }"#,
        &["=/|Host: www.b.test", "=/|Host: www.c.test"],
    ),
    case(
        "exact names before expressions of few hosts",
        r#"server { LISTEN server_name "~^(www|api)\.b\.test$"; location / { return 200 ok; } } server { LISTEN server_name api.b.test; location / { return 403; } }"#,
        &["=/|Host: www.b.test", "=/|Host: api.b.test", "=/|Host: other"],
    ),
    case(
        "expressions do not look at ports",
        "server { LISTEN server_name z; location / { return 403; } } server { LISTEN server_name ~80; location / { return 200 ok; } }",
        &["=/|Host: x.test:80", "=/|Host: 80.test", "=/|Host: [::1]:80"],
    ),
    case(
        "expressions of the default server",
        "server { LISTEN server_name ~^a; location / { return 403; } } server { LISTEN server_name ~b; location / { return 200 ok; } }",
        &["=/|Host: ab.test", "=/|Host: b.test", "=/|Host: c"],
    ),
    case(
        "absolute targets",
        "server { LISTEN server_name z; location / { return 403; } } server { LISTEN server_name ~^open; location / { return 200 ok; } }",
        &[
            "/|Host: open.test",
            "GET http://closed.test/|Host: open.test",
            "GET http://open.test/|Host: closed.test",
        ],
    ),
    case(
        "expression: hexadecimal",
        r#" server { LISTEN location ~ "^/\\x61b" { deny all; } location / { return 200 ok; } }"#,
        &["=/ab", "=/x61b", "=/c"],
    ),
    case(
        "expression in `if`: hexadecimal",
        r#" server { LISTEN if ($uri ~ "^/\\x61b") { return 403; } location / { return 200 ok; } }"#,
        &["/ab", "/x61b", "/c"],
    ),
    case(
        "expression: hexadecimal in braces",
        r#" server { LISTEN location ~ "^/\\x{61}b" { deny all; } location / { return 200 ok; } }"#,
        &["/ab"],
    ),
    case(
        "expression in `if`: hexadecimal in braces",
        r#" server { LISTEN if ($uri ~ "^/\\x{61}b") { return 403; } location / { return 200 ok; } }"#,
        &["/ab"],
    ),
    case(
        "expression: a hexadecimal dot",
        r#" server { LISTEN location ~ "^/a\\x2eb" { deny all; } location / { return 200 ok; } }"#,
        &["=/a.b", "=/axb"],
    ),
    case(
        "expression in `if`: a hexadecimal dot",
        r#" server { LISTEN if ($uri ~ "^/a\\x2eb") { return 403; } location / { return 200 ok; } }"#,
        &["/a.b", "/axb"],
    ),
    case(
        "expression: a hexadecimal ending",
        r#" server { LISTEN location ~ "^/\\w+\\.\\x70hp" { deny all; } location / { return 200 ok; } }"#,
        &["=/a.php", "=/a.xphp"],
    ),
    case(
        "expression in `if`: a hexadecimal ending",
        r#" server { LISTEN if ($uri ~ "^/\\w+\\.\\x70hp") { return 403; } location / { return 200 ok; } }"#,
        &["/a.php", "/a.xphp"],
    ),
    case(
        "expression: octal",
        r#" server { LISTEN location ~ "^/\\141b" { deny all; } location / { return 200 ok; } }"#,
        &["/ab"],
    ),
    case(
        "expression in `if`: octal",
        r#" server { LISTEN if ($uri ~ "^/\\141b") { return 403; } location / { return 200 ok; } }"#,
        &["/ab"],
    ),
    case(
        "expression: octal in braces",
        r#" server { LISTEN location ~ "^/\\o{141}b" { deny all; } location / { return 200 ok; } }"#,
        &["/ab"],
    ),
    case(
        "expression in `if`: octal in braces",
        r#" server { LISTEN if ($uri ~ "^/\\o{141}b") { return 403; } location / { return 200 ok; } }"#,
        &["/ab"],
    ),
    case(
        "expression: a match that begins later",
        r#" server { LISTEN location ~ "^/ad\\Kmin" { deny all; } location / { return 200 ok; } }"#,
        &["/admin"],
    ),
    case(
        "expression in `if`: a match that begins later",
        r#" server { LISTEN if ($uri ~ "^/ad\\Kmin") { return 403; } location / { return 200 ok; } }"#,
        &["/admin"],
    ),
    case(
        "expression: horizontal blanks",
        r#" server { LISTEN location ~ "^/\\hx" { deny all; } location / { return 200 ok; } }"#,
        &["/%20x", "/%09x"],
    ),
    case(
        "expression in `if`: horizontal blanks",
        r#" server { LISTEN if ($uri ~ "^/\\hx") { return 403; } location / { return 200 ok; } }"#,
        &["/%20x", "/%09x"],
    ),
    case(
        "expression: no horizontal blanks",
        r#" server { LISTEN location ~ "^/\\H+$" { deny all; } location / { return 200 ok; } }"#,
        &["/ab"],
    ),
    case(
        "expression in `if`: no horizontal blanks",
        r#" server { LISTEN if ($uri ~ "^/\\H+$") { return 403; } location / { return 200 ok; } }"#,
        &["/ab"],
    ),
    case(
        "expression: any but a line feed",
        r#" server { LISTEN location ~ "^/\\Nx" { deny all; } location / { return 200 ok; } }"#,
        &["/ax"],
    ),
    case(
        "expression in `if`: any but a line feed",
        r#" server { LISTEN if ($uri ~ "^/\\Nx") { return 403; } location / { return 200 ok; } }"#,
        &["/ax"],
    ),
    case(
        "expression: a cluster",
        r#" server { LISTEN location ~ "^/\\Xx" { deny all; } location / { return 200 ok; } }"#,
        &["/ax"],
    ),
    case(
        "expression in `if`: a cluster",
        r#" server { LISTEN if ($uri ~ "^/\\Xx") { return 403; } location / { return 200 ok; } }"#,
        &["/ax"],
    ),
    case(
        "expression: vertical blanks",
        r#" server { LISTEN location ~ "^/\\vx" { deny all; } location / { return 200 ok; } }"#,
        &["/%0bx", "/%0cx"],
    ),
    case(
        "expression in `if`: vertical blanks",
        r#" server { LISTEN if ($uri ~ "^/\\vx") { return 403; } location / { return 200 ok; } }"#,
        &["/%0bx", "/%0cx"],
    ),
    case(
        "expression: no vertical blanks",
        r#" server { LISTEN location ~ "^/\\Vx" { deny all; } location / { return 200 ok; } }"#,
        &["/ax"],
    ),
    case(
        "expression in `if`: no vertical blanks",
        r#" server { LISTEN if ($uri ~ "^/\\Vx") { return 403; } location / { return 200 ok; } }"#,
        &["/ax"],
    ),
    case(
        "expression: a control character",
        r#" server { LISTEN location ~ "^/\\cAx" { deny all; } location / { return 200 ok; } }"#,
        &["/%01x"],
    ),
    case(
        "expression in `if`: a control character",
        r#" server { LISTEN if ($uri ~ "^/\\cAx") { return 403; } location / { return 200 ok; } }"#,
        &["/%01x"],
    ),
    case(
        "expression: an escape character",
        r#" server { LISTEN location ~ "^/\\ex" { deny all; } location / { return 200 ok; } }"#,
        &["/%1bx"],
    ),
    case(
        "expression in `if`: an escape character",
        r#" server { LISTEN if ($uri ~ "^/\\ex") { return 403; } location / { return 200 ok; } }"#,
        &["/%1bx"],
    ),
    case(
        "expression: a bell",
        r#" server { LISTEN location ~ "^/\\ax" { deny all; } location / { return 200 ok; } }"#,
        &["/%07x"],
    ),
    case(
        "expression in `if`: a bell",
        r#" server { LISTEN if ($uri ~ "^/\\ax") { return 403; } location / { return 200 ok; } }"#,
        &["/%07x"],
    ),
    case(
        "expression: a property",
        r#" server { LISTEN location ~ "^/\\pL" { deny all; } location / { return 200 ok; } }"#,
        &["/a"],
    ),
    case(
        "expression in `if`: a property",
        r#" server { LISTEN if ($uri ~ "^/\\pL") { return 403; } location / { return 200 ok; } }"#,
        &["/a"],
    ),
    case(
        "expression: a property in braces",
        r#" server { LISTEN location ~ "^/\\p{L}+$" { deny all; } location / { return 200 ok; } }"#,
        &["/abc"],
    ),
    case(
        "expression in `if`: a property in braces",
        r#" server { LISTEN if ($uri ~ "^/\\p{L}+$") { return 403; } location / { return 200 ok; } }"#,
        &["/abc"],
    ),
    case(
        "expression: a named reference",
        r#" server { LISTEN location ~ "^/(?<a>a)\\k<a>" { deny all; } location / { return 200 ok; } }"#,
        &["/aa"],
    ),
    case(
        "expression in `if`: a named reference",
        r#" server { LISTEN if ($uri ~ "^/(?<a>a)\\k<a>") { return 403; } location / { return 200 ok; } }"#,
        &["/aa"],
    ),
    case(
        "expression: a numbered reference",
        r#" server { LISTEN location ~ "^/(a)\\g1" { deny all; } location / { return 200 ok; } }"#,
        &["/aa"],
    ),
    case(
        "expression in `if`: a numbered reference",
        r#" server { LISTEN if ($uri ~ "^/(a)\\g1") { return 403; } location / { return 200 ok; } }"#,
        &["/aa"],
    ),
    case(
        "expression: line endings",
        r#" server { LISTEN location ~ "^/a\\Rb" { deny all; } location / { return 200 ok; } }"#,
        &["/a%0db"],
    ),
    case(
        "expression in `if`: line endings",
        r#" server { LISTEN if ($uri ~ "^/a\\Rb") { return 403; } location / { return 200 ok; } }"#,
        &["/a%0db"],
    ),
    case(
        "expression: quoted text",
        r#" server { LISTEN location ~ "^/\\Qa.b\\E" { deny all; } location / { return 200 ok; } }"#,
        &["/a.b"],
    ),
    case(
        "expression in `if`: quoted text",
        r#" server { LISTEN if ($uri ~ "^/\\Qa.b\\E") { return 403; } location / { return 200 ok; } }"#,
        &["/a.b"],
    ),
    case(
        "expression: a class with horizontal blanks",
        r#" server { LISTEN location ~ "^/[\\h]x" { deny all; } location / { return 200 ok; } }"#,
        &["/%20x"],
    ),
    case(
        "expression in `if`: a class with horizontal blanks",
        r#" server { LISTEN if ($uri ~ "^/[\\h]x") { return 403; } location / { return 200 ok; } }"#,
        &["/%20x"],
    ),
    case(
        "expression: a class with hexadecimal members",
        r#" server { LISTEN location ~ "^/[\\x61-\\x63]dmin" { deny all; } location / { return 200 ok; } }"#,
        &["=/admin", "=/xdmin"],
    ),
    case(
        "expression in `if`: a class with hexadecimal members",
        r#" server { LISTEN if ($uri ~ "^/[\\x61-\\x63]dmin") { return 403; } location / { return 200 ok; } }"#,
        &["/admin", "/xdmin"],
    ),
    case(
        "expression: escaped angle brackets",
        r#" server { LISTEN location ~ "^/\\<a\\>b" { deny all; } location / { return 200 ok; } }"#,
        &["=/%3Ca%3Eb", "=/ab"],
    ),
    case(
        "expression in `if`: escaped angle brackets",
        r#" server { LISTEN if ($uri ~ "^/\\<a\\>b") { return 403; } location / { return 200 ok; } }"#,
        &["/%3Ca%3Eb", "/ab"],
    ),
    case(
        "expression: an escaped parenthesis",
        r#" server { LISTEN location ~ "^/\\(?!a" { deny all; } location / { return 200 ok; } }"#,
        &["=/(!a", "=/!a", "=/a"],
    ),
    case(
        "expression in `if`: an escaped parenthesis",
        r#" server { LISTEN if ($uri ~ "^/\\(?!a") { return 403; } location / { return 200 ok; } }"#,
        &["/(!a", "/!a", "/a"],
    ),
    case(
        "expression: escaped signs",
        r#" server { LISTEN location ~ "^/a\\++$" { deny all; } location / { return 200 ok; } }"#,
        &["=/a+", "=/a++", "=/a"],
    ),
    case(
        "expression in `if`: escaped signs",
        r#" server { LISTEN if ($uri ~ "^/a\\++$") { return 403; } location / { return 200 ok; } }"#,
        &["/a+", "/a++", "/a"],
    ),
    case(
        "expression: a class of signs",
        r#" server { LISTEN location ~ "^/[a++]+$" { deny all; } location / { return 200 ok; } }"#,
        &["=/a+", "=/++", "=/b"],
    ),
    case(
        "expression in `if`: a class of signs",
        r#" server { LISTEN if ($uri ~ "^/[a++]+$") { return 403; } location / { return 200 ok; } }"#,
        &["/a+", "/++", "/b"],
    ),
    case(
        "expression: possessive repetition",
        r#" server { LISTEN location ~ "^/a++ab" { deny all; } location / { return 200 ok; } }"#,
        &["/aab", "/ab"],
    ),
    case(
        "expression in `if`: possessive repetition",
        r#" server { LISTEN if ($uri ~ "^/a++ab") { return 403; } location / { return 200 ok; } }"#,
        &["/aab", "/ab"],
    ),
    case(
        "expression: an optional possessive",
        r#" server { LISTEN location ~ "^/a?+ab" { deny all; } location / { return 200 ok; } }"#,
        &["/ab", "/aab"],
    ),
    case(
        "expression in `if`: an optional possessive",
        r#" server { LISTEN if ($uri ~ "^/a?+ab") { return 403; } location / { return 200 ok; } }"#,
        &["/ab", "/aab"],
    ),
    case(
        "expression: recursion",
        r#" server { LISTEN location ~ "^/(a(?R)?b)" { deny all; } location / { return 200 ok; } }"#,
        &["/ab", "/aabb"],
    ),
    case(
        "expression in `if`: recursion",
        r#" server { LISTEN if ($uri ~ "^/(a(?R)?b)") { return 403; } location / { return 200 ok; } }"#,
        &["/ab", "/aabb"],
    ),
    case(
        "expression: ignored blanks",
        r#" server { LISTEN location ~ "^/(?x)[ ]a b" { deny all; } location / { return 200 ok; } }"#,
        &["/%20ab"],
    ),
    case(
        "expression in `if`: ignored blanks",
        r#" server { LISTEN if ($uri ~ "^/(?x)[ ]a b") { return 403; } location / { return 200 ok; } }"#,
        &["/%20ab"],
    ),
    case(
        "expression: branch reset",
        r#" server { LISTEN location ~ "^/(?|(a)|(b))x" { deny all; } location / { return 200 ok; } }"#,
        &["/ax", "/bx"],
    ),
    case(
        "expression in `if`: branch reset",
        r#" server { LISTEN if ($uri ~ "^/(?|(a)|(b))x") { return 403; } location / { return 200 ok; } }"#,
        &["/ax", "/bx"],
    ),
    case(
        "expression: a comment",
        r#" server { LISTEN location ~ "^/(?#c)ab" { deny all; } location / { return 200 ok; } }"#,
        &["/ab"],
    ),
    case(
        "expression in `if`: a comment",
        r#" server { LISTEN if ($uri ~ "^/(?#c)ab") { return 403; } location / { return 200 ok; } }"#,
        &["/ab"],
    ),
    case(
        "expression: repeated octets",
        r#" server { LISTEN location ~ "^/é+x" { deny all; } location / { return 200 ok; } }"#,
        &["/%c3%a9%a9x", "/%c3%a9x"],
    ),
    case(
        "expression in `if`: repeated octets",
        r#" server { LISTEN if ($uri ~ "^/é+x") { return 403; } location / { return 200 ok; } }"#,
        &["/%c3%a9%a9x", "/%c3%a9x"],
    ),
    case(
        "expression that lets in: possessive repetition",
        r#"server { LISTEN location ~ "^/a?+ab" { return 200 ok; } location / { return 403; } }"#,
        &["/ab", "/aab"],
    ),
    case(
        "expression that lets in: an escaped word",
        r#"server { LISTEN location ~ "^/[\\h]dmin" { return 200 ok; } location / { return 403; } }"#,
        &["/hdmin"],
    ),
    case(
        "geo of a field that lets in",
        "geo $http_x_real_ip $good { default 0; 203.0.113.0/24 1; } server { LISTEN if ($good = 0) { return 403; } location / { return 200 ok; } }",
        &["/|X-Real-Ip: 203.0.113.5", "/"],
    ),
    case(
        "geo of a map",
        "map $http_a $ip { default $remote_addr; ~. $http_a; } geo $ip $bad { default 0; 203.0.113.0/24 1; } server { LISTEN if ($bad) { return 403; } location / { return 200 ok; } }",
        &["/|A: 203.0.113.5"],
    ),
    case(
        "geo of the client",
        "geo $bad { default 0; 127.0.0.0/8 1; } server { LISTEN if ($bad) { return 403; } location / { return 200 ok; } }",
        &["=/"],
    ),
    case(
        "geo of the client by name",
        "geo $remote_addr $bad { default 0; 127.0.0.0/8 1; } server { LISTEN if ($bad) { return 403; } location / { return 200 ok; } }",
        &["=/"],
    ),
    case(
        "request_uri anchored",
        r#" server { LISTEN if ($request_uri ~ "^/private") { return 403; } location / { return 200 ok; } }"#,
        &["=/private", "=/x", "=/?/private", "/private?x"],
    ),
    case(
        "request_uri anchored with an end",
        r#" server { LISTEN if ($request_uri ~ "^/private$") { return 403; } location / { return 200 ok; } }"#,
        &["=/private"],
    ),
    case(
        "request_uri that is equal",
        r#" server { LISTEN if ($request_uri = "/private") { return 403; } location / { return 200 ok; } }"#,
        &["/private"],
    ),
    case(
        "request_uri that is equal, with a query",
        "map $request_uri $b { default 0; /q?z=1 1; } server { LISTEN if ($b) { return 403; } location / { return 200 ok; } }",
        &["/q?z=1"],
    ),
    case(
        "request_uri in any case",
        "map $request_uri $b { default 0; ~*^/private 1; } server { LISTEN if ($b) { return 403; } location / { return 200 ok; } }",
        &["=/PRIVATE", "=/x"],
    ),
    case(
        "request_uri that lets in",
        "map $request_uri $b { default 1; ~^/public 0; } server { LISTEN if ($b) { return 403; } location / { return 200 ok; } }",
        &["/x", "/%70ublic"],
    ),
    case(
        "field: equal",
        r#" server { LISTEN if ($http_x_a = "ok") { return 403; } location / { return 200 ok; } }"#,
        &[
            "/",
            "/|X-A: ok",
            "/|X-A: no",
            "/|X-A: OK",
            "/|X-A: no|X-A: ok",
            "/|X-A: ok|X-A: no",
            "/|X-A: ok, no",
            "/|X-A: 0",
            "/|X-A: 0|X-A: 0",
            "/|X-A: 1|X-A: 0",
            "/|X-A:",
        ],
    ),
    case(
        "field: true",
        " server { LISTEN if ($http_x_a) { return 403; } location / { return 200 ok; } }",
        &[
            "/",
            "/|X-A: ok",
            "/|X-A: no",
            "/|X-A: OK",
            "/|X-A: no|X-A: ok",
            "/|X-A: ok|X-A: no",
            "/|X-A: ok, no",
            "/|X-A: 0",
            "/|X-A: 0|X-A: 0",
            "/|X-A: 1|X-A: 0",
            "/|X-A:",
        ],
    ),
    case(
        "field: expression",
        r#" server { LISTEN if ($http_x_a ~ "^ok$") { return 403; } location / { return 200 ok; } }"#,
        &[
            "/",
            "/|X-A: ok",
            "/|X-A: no",
            "/|X-A: OK",
            "/|X-A: no|X-A: ok",
            "/|X-A: ok|X-A: no",
            "/|X-A: ok, no",
            "/|X-A: 0",
            "/|X-A: 0|X-A: 0",
            "/|X-A: 1|X-A: 0",
            "/|X-A:",
        ],
    ),
    case(
        "field: empty",
        r#" server { LISTEN if ($http_x_a = "") { return 403; } location / { return 200 ok; } }"#,
        &[
            "/",
            "/|X-A: ok",
            "/|X-A: no",
            "/|X-A: OK",
            "/|X-A: no|X-A: ok",
            "/|X-A: ok|X-A: no",
            "/|X-A: ok, no",
            "/|X-A: 0",
            "/|X-A: 0|X-A: 0",
            "/|X-A: 1|X-A: 0",
            "/|X-A:",
        ],
    ),
    case(
        "field: of both",
        r#" server { LISTEN if ($http_x_a ~ "^ok, no$") { return 403; } location / { return 200 ok; } }"#,
        &[
            "/",
            "/|X-A: ok",
            "/|X-A: no",
            "/|X-A: OK",
            "/|X-A: no|X-A: ok",
            "/|X-A: ok|X-A: no",
            "/|X-A: ok, no",
            "/|X-A: 0",
            "/|X-A: 0|X-A: 0",
            "/|X-A: 1|X-A: 0",
            "/|X-A:",
        ],
    ),
    case(
        "field: any",
        " server { LISTEN if ($http_x_a ~ no) { return 403; } location / { return 200 ok; } }",
        &[
            "/",
            "/|X-A: ok",
            "/|X-A: no",
            "/|X-A: OK",
            "/|X-A: no|X-A: ok",
            "/|X-A: ok|X-A: no",
            "/|X-A: ok, no",
            "/|X-A: 0",
            "/|X-A: 0|X-A: 0",
            "/|X-A: 1|X-A: 0",
            "/|X-A:",
        ],
    ),
    case(
        "limit by parameter",
        "limit_req_zone $arg_k zone=z:1m rate=1r/m; server { LISTEN location /x { limit_req zone=z; proxy_pass http://127.0.0.1:1; } }",
        &["/x?k=1"],
    ),
    case(
        "http_host that is equal",
        r#" server { LISTEN if ($http_host = "a.test") { return 403; } location / { return 200 ok; } }"#,
        &["/|Host: a.test", "/|Host: A.test", "/|Host: b.test"],
    ),
    case(
        "http_host with a port",
        r#" server { LISTEN if ($http_host = "a.test:80") { return 403; } location / { return 200 ok; } }"#,
        &["/|Host: a.test:80", "/|Host: a.test"],
    ),
    case(
        "host that differs",
        r#" server { LISTEN if ($host != "a.test") { return 403; } location / { return 200 ok; } }"#,
        &["=/|Host: a.test", "=/|Host: A.test", "=/|Host: a.test:99", "=/|Host: a.test.", "=/|Host: b.test"],
    ),
    case(
        "addresses in X-Real-IP",
        "set_real_ip_from 127.0.0.1; server { LISTEN location /x/ { allow 10.0.0.0/8; deny all; proxy_pass http://127.0.0.1:1; } location /y/ { deny 10.0.0.0/8; proxy_pass http://127.0.0.1:1; } location / { return 200 ok; } }",
        &["/x/|X-Real-IP: 10.0.0.1", "/y/|X-Real-IP: 10.0.0.1", "/y/"],
    ),
    case(
        "addresses in X-Real-IP for one location",
        " server { LISTEN location /y/ { set_real_ip_from 127.0.0.1; deny 10.0.0.0/8; root /; } location / { return 200 ok; } }",
        &["/y/|X-Real-IP: 10.0.0.1"],
    ),
    case(
        "addresses in X-Forwarded-For",
        "set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; server { LISTEN if ($remote_addr = 10.0.0.1) { return 403; } location / { return 200 ok; } }",
        &["=/|X-Forwarded-For: 10.0.0.1", "=/"],
    ),
    case(
        "all addresses of IPv6",
        " server { LISTEN location /x { allow ::/0; deny all; root /; } location /y { deny ::/0; return 200 y; } location / { return 200 ok; } }",
        &["/x", "=/y"],
    ),
];
