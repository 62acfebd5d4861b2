//! Restrictions and places that only some seeds have.

use super::Writer;

/// Names of the locations that `auth_request` asks, and their content.
const ASKED: [(&str, &str); 5] = [
    ("/ask/yes", "return 204;"),
    ("/ask/no", "return 401;"),
    ("/ask/never", "return 403;"),
    // Without the empty field, the server that is asked waits for the content of the request.
    ("/ask/proxy", "internal; proxy_pass http://127.0.0.1:3002/check; proxy_set_header Content-Length \"\";"),
    (
        "/ask/whole",
        "internal; proxy_pass http://127.0.0.1:3002; proxy_pass_request_body off; proxy_set_header Content-Length \"\";",
    ),
];

impl Writer {
    /// Writes the zone of `limit_req`.
    pub(super) fn zones(&mut self) {
        self.line(&format!("limit_req_zone $binary_remote_addr zone=l{}:1m rate=100000r/s;", self.seed));
    }

    /// Writes some addresses that servers of this seed share, and what belongs to TLS.
    pub(super) fn addresses(&mut self) {
        let (high, low) = (self.seed / 256 % 256, self.seed % 256);
        let mut has_tls = false;
        let mut count = 0;
        for (number, port) in [(1, 80), (2, 80), (1, 443), (2, 443)] {
            let is_last = count == 0 && (number, port) == (2, 443);
            if !is_last && !self.dice.chance(40) {
                continue;
            }
            let address = format!("10.{high}.{low}.{number}:{port}");
            let is_default = !self.defaults.contains(&address) && self.dice.chance(20);
            if is_default {
                self.defaults.push(address.clone());
            }
            let tls = if port == 443 { " ssl" } else { "" };
            let default = if is_default { " default_server" } else { "" };
            self.line(&format!("listen {address}{tls}{default};"));
            has_tls |= port == 443;
            count += 1;
        }
        if !has_tls {
            return;
        }
        self.line("ssl_certificate certificate.pem; ssl_certificate_key key.pem;");
        if self.dice.chance(25) {
            let mode = self.dice.pick(&["on", "optional", "off"]);
            self.line(&format!("ssl_client_certificate ca.pem; ssl_verify_client {mode};"));
        }
        if self.dice.chance(10) {
            self.line("ssl_reject_handshake on;");
        }
    }

    /// Writes restrictions, each with a probability of `percent` in 100.
    pub(super) fn guards(&mut self, percent: usize) {
        if self.dice.chance(percent) {
            let (name, _) = ASKED[self.dice.below(ASKED.len())];
            let name = if self.dice.chance(15) { "off" } else { name };
            self.line(&format!("auth_request {name};"));
        }
        if self.dice.chance(percent / 2) {
            self.line(&format!("limit_req zone=l{} burst=100000 nodelay;", self.seed));
        }
        if self.dice.chance(percent / 2) {
            let index = self.dice.pick(&[
                "index start.html index.html;",
                "index index.php index.html;",
                "index index.html index.php;",
                "index missing.html verify.txt;",
                "index $arg_key.html index.html;",
                "index index.html /a/verify.txt;",
                "index /private/verify.txt;",
            ]);
            self.line(index);
        }
    }

    /// Writes the locations that restrictions name, those of scripts, and some in which restrictions apply together.
    pub(super) fn guarded_places(&mut self) {
        self.guards(5);
        for (name, content) in ASKED {
            self.line(&format!("location = {name} {{ {content} }}"));
        }
        if self.dice.chance(30) {
            self.block("location ^~ /both/", |w| {
                w.line("satisfy any;");
                let addresses = w.dice.pick(&[
                    "deny all;",
                    "allow 10.0.0.0/8; deny all;",
                    "allow 127.0.0.0/8; deny all;",
                ]);
                w.line(addresses);
                if w.dice.chance(60) {
                    w.line("auth_basic x; auth_basic_user_file users;");
                }
                w.guards(25);
                if w.dice.chance(30) {
                    w.scripts();
                }
                if w.dice.chance(30) {
                    w.block("location /both/sub/", |w| w.guards(30));
                }
            });
        }
        if self.dice.chance(30) {
            self.block("location /inner/", |w| {
                w.line("internal;");
                let folder = w.dice.pick(&[
                    "",
                    "root /srv/other;",
                    "alias /srv/alias0/;",
                    "proxy_pass http://127.0.0.1:3001;",
                ]);
                w.line(folder);
            });
        }
        if !self.dice.chance(40) {
            return;
        }
        // The form of most sites of PHP.
        self.block("location /", |w| {
            w.guards(10);
            let tries = w.dice.pick(&[
                "try_files $uri $uri/ /index.php?$args;",
                "try_files $uri /index.php?$args;",
                "try_files $uri $uri/ =404;",
                "index index.php;",
                "index index.php index.html;",
                "index index.html index.php;",
                "try_files $uri $uri/ /front.php$is_args$args;",
            ]);
            w.line(tries);
        });
        let regex = self.dice.pick(&[r"\.php$", r"\.php(/|$)", r"^/index\.php$", r"^(.+\.php)(.*)$"]);
        self.block(&format!("location ~ {regex}"), |w| {
            w.settings(super::Around::Regex);
            w.guards(15);
            w.executed(super::Around::Regex);
            if w.dice.chance(15) {
                w.line("limit_except GET { deny all; }");
            }
            if w.dice.chance(10) {
                w.line("internal;");
            }
            w.scripts();
        });
        if self.dice.chance(40) {
            self.block("location ^~ /staff/", |w| {
                w.settings(super::Around::Prefix("/staff/"));
                w.guards(30);
                w.block(r"location ~ \.php$", |w| {
                    w.guards(10);
                    w.scripts();
                });
            });
        }
    }

    /// Writes the directives of a location that runs scripts.
    pub(super) fn scripts(&mut self) {
        if self.dice.chance(25) {
            let tries = self.dice.pick(&["try_files $uri =404;", "try_files $uri =403;"]);
            self.line(tries);
        }
        self.line("include /etc/nginx/fastcgi_params;");
        self.line("fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;");
        let server = self.dice.pick(&["127.0.0.1:3009", "unix:/run/php/php-fpm.sock"]);
        self.line(&format!("fastcgi_pass {server};"));
    }
}
