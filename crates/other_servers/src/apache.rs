//! Apache, and its common modules.

use crate::directive::{ForeignDirective, here, not_needed, not_there};
use crate::shared::{COMPRESS, COUNTRIES, REPLACE};

const DIRECTIVES: &[ForeignDirective] = &[
    here(&["VirtualHost"], "`[[site]]`"),
    here(&["Listen"], "`listen`").ambiguous(),
    here(&["ServerName", "ServerAlias"], "`hosts` of a `[[site]]`"),
    here(&["DocumentRoot"], "`files`"),
    here(&["Alias"], "`files = { root = \"...\", strip_prefix = true }`"),
    here(&["DirectoryIndex"], "`index` in `files = { ... }`"),
    here(
        &["Options", "Options +Indexes", "+FollowSymLinks"],
        "`listing`, `symlinks` and `index` in `files = { ... }`",
    ),
    here(
        &["FallbackResource", "RewriteRule . /index.php"],
        "`php` beside `files`, or `fallback` in `files = { ... }`",
    ),
    here(&["RewriteRule"], "`rewrite` or `redirect` in a `[[site.route]]`, or `try` in `files = { ... }`")
        .see("rewrites", "guide.md#regular-expressions-and-rewrites"),
    here(
        &["RewriteRule ^/old/(.*) /new/$1 [R=301]"],
        "`path = \"/old/*\"`, `redirect = { to = \"/new/$rest$query\", status = 301 }`",
    ),
    here(
        &["RewriteRule ^/u/([0-9]+)$ /user?id=$1"],
        "`path = '~ ^/u/([0-9]+)$'`, `rewrite = \"/user?id=$1\"`",
    ),
    here(&["RewriteMap"], "`[maps.NAME]`").see("maps", "guide.md#maps"),
    not_needed(&["RewriteCond %{HTTPS} off"], "sites with `tls` redirect"),
    here(&["ProxyPass"], "`proxy`"),
    here(&["ProxyPassReverse"], "`rewrite` in `proxy = { ... }`, which is on by default"),
    not_needed(&["ProxyPreserveHost"], "`Host` is passed on"),
    here(&["BalancerMember", "lbmethod"], "`to` and `balance` in `[upstreams.NAME]`"),
    here(&["mod_php"], "`app = \"NAME\"`, and `[apps.NAME]` with `php = \"FOLDER\"`")
        .see("PHP inside", "php.md#php-inside"),
    here(
        &["mod_wsgi", "WSGIScriptAlias", "WSGIDaemonProcess"],
        "`[apps.NAME]` with `wsgi`, `workers`, `threads`, `virtualenv`, `user`",
    ),
    here(&["(Passenger in Apache)"], "`rack` in `[apps.NAME]`").see("Passenger", "from/passenger.md"),
    here(&["(mod_perl with PSGI)"], "`psgi` in `[apps.NAME]`").see("Perl", "tasks/perl.md"),
    here(&["(an Apache module in C)"], "`handler` in `[apps.NAME]`").see("native handlers", "native.md"),
    here(&["ScriptAlias"], "`cgi = \"FOLDER\"` in a `[[route]]` with `path`").see("CGI", "cgi.md"),
    here(&["Require", "Require ip", "Require all denied"], "`allow`, `deny` or `auth` in a site or route"),
    here(
        &["AuthUserFile"],
        "`auth = { basic = \"FILE\" }`: bcrypt and Argon2 (`htpasswd -B`), not MD5 and SHA-1",
    )
    .see("passwords", "auth.md"),
    here(&["ErrorDocument"], "`error_pages = { 404 = \"FILE\" }` at the top of the file or in a site"),
    here(&["AddType"], "`types` in `files = { ... }`; common ones are known"),
    here(&["mod_md"], "`tls = \"auto\"`"),
    here(&["mod_deflate", "mod_brotli"], COMPRESS),
    here(&["mod_expires", "mod_headers"], "`cache_control` in `files = { ... }`, `response_headers`"),
    here(&["mod_cache_disk"], "`cache`").see("the cache", "cache.md"),
    here(&["mod_remoteip", "mod_ratelimit"], "`trusted_proxies`, `bandwidth`"),
    here(&["mod_status"], "`[control] listen`").see("operations", "operations.md"),
    here(&["Substitute"], REPLACE),
    here(&["GeoIPDBFile"], COUNTRIES),
    here(&["LimitRequestBody", "KeepAliveTimeout"], "`body` in `[limits]`, `idle` in `[timeouts]`"),
    here(&["Timeout"], "`[timeouts]`").ambiguous(),
    here(&["apachectl configtest", "apachectl graceful"], "`komainu check`, `komainu reload`"),
    not_there(&["AllowOverride"], "`.htaccess` files are not read; write their rules as routes"),
];

pub(crate) const TABLES: &[&[ForeignDirective]] = &[DIRECTIVES];
