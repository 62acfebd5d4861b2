//! Annotations of ingress-nginx: what becomes of each, where Komainu serves Ingresses and where it translates them.

/// Prefix of the names.
pub const INGRESS_PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// What becomes of an annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressVerdict {
    /// As in ingress-nginx.
    Done,
    /// Something else has the same purpose, or a part is missing: the text says which.
    Different,
    /// Nothing has to be done for it.
    NotNeeded,
    /// Not followed: the text says what to do instead.
    Refused,
}

/// An annotation of ingress-nginx.
#[derive(Debug, Clone, Copy)]
pub struct IngressAnnotation {
    /// Name, without the prefix.
    pub name: &'static str,
    /// Verdict of `komainu kubernetes`.
    pub verdict: IngressVerdict,
    /// Equivalent, difference, or remedy.
    pub text: &'static str,
    /// A value that is followed, or refused if the verdict says so.
    pub example: &'static str,
    /// Whether it may refuse requests: if it is not followed, the paths of its Ingress are closed (403).
    pub guards: bool,
    /// Whether `komainu import ingress` writes it in a configuration. If not, it is reported, and closes the routes that it guards.
    pub is_imported: bool,
}

impl IngressAnnotation {
    const fn new(
        verdict: IngressVerdict,
        name: &'static str,
        example: &'static str,
        text: &'static str,
    ) -> IngressAnnotation {
        IngressAnnotation { name, verdict, text, example, guards: false, is_imported: false }
    }

    const fn guard(mut self) -> IngressAnnotation {
        self.guards = true;
        self
    }

    const fn imported(mut self) -> IngressAnnotation {
        self.is_imported = true;
        self
    }
}

const fn done(name: &'static str, example: &'static str, text: &'static str) -> IngressAnnotation {
    IngressAnnotation::new(IngressVerdict::Done, name, example, text)
}

const fn differs(name: &'static str, example: &'static str, text: &'static str) -> IngressAnnotation {
    IngressAnnotation::new(IngressVerdict::Different, name, example, text)
}

const fn unneeded(name: &'static str, example: &'static str, text: &'static str) -> IngressAnnotation {
    IngressAnnotation::new(IngressVerdict::NotNeeded, name, example, text)
}

const fn refused(name: &'static str, example: &'static str, text: &'static str) -> IngressAnnotation {
    IngressAnnotation::new(IngressVerdict::Refused, name, example, text)
}

const SNIPPET: &str = "lines of nginx are not read, because they would give a tenant the rights of the server: use an annotation, or the application";
const MODSECURITY: &str =
    "there is no ModSecurity here: put a firewall of web applications in front of the Service";

/// All annotations that ingress-nginx documents, by name.
pub static INGRESS_ANNOTATIONS: &[IngressAnnotation] = &[
    done("affinity", "cookie", "`balance = \"sticky:NAME\"`").imported(),
    done("affinity-canary-behavior", "legacy", "`by` of `split`: with `legacy` each request is split by chance"),
    differs("affinity-mode", "persistent", "a client stays with its server for as long as that one serves; new servers get new clients"),
    done("allowlist-source-range", "10.0.0.0/8", "`allow`").guard().imported(),
    done("app-root", "/app", "a redirect (302) of `/`").imported(),
    unneeded("auth-always-set-cookie", "true", "cookies of the answer that lets a request in are added to the response in any case"),
    differs("auth-cache-duration", "200 202 5m", "`remember` of `auth`, with `auth-cache-key`; only positive answers are remembered, for at most an hour"),
    differs("auth-cache-key", "$http_authorization", "`remember_by`: the key is made of fields and cookies (`$http_NAME`, `$cookie_NAME`), and has the client and the URL in it as well"),
    unneeded("auth-keepalive", "10", "connections to the server are kept in any case"),
    unneeded("auth-keepalive-requests", "1000", "connections to the server are kept in any case"),
    unneeded("auth-keepalive-share-vars", "true", "both requests have the same `X-Request-ID`"),
    unneeded("auth-keepalive-timeout", "60", "connections to the server are kept in any case"),
    differs("auth-method", "GET", "the server is asked by GET; paths with another method are closed").guard(),
    refused("auth-proxy-set-headers", "default/headers", "the server that is asked gets the fields of the request and those of `ask` alone: let it do without").guard(),
    done("auth-realm", "shop", "`realm` of `auth`"),
    refused("auth-request-redirect", "/back", "the server that is asked finds the URL in `X-Original-URL`"),
    done("auth-response-headers", "Remote-User", "`response_headers` of `auth`").imported(),
    done("auth-secret", "users", "users and their hashed passwords, by `basic` of `auth`. Passwords have bcrypt or Argon2 (`htpasswd -B`): with others the paths are closed. A Secret of another namespace needs a ReferenceGrant").guard(),
    done("auth-secret-type", "auth-map", "`auth-file`, or `auth-map`").guard(),
    done("auth-signin", "https://auth.example.com/start", "`sign_in` of `auth`").imported(),
    done("auth-signin-redirect-param", "rd", "the parameter of `auth-signin`").imported(),
    refused("auth-snippet", "proxy_set_header X y;", SNIPPET).guard(),
    differs("auth-tls-error-page", "https://example.com/help", "a client without a valid certificate is refused in the handshake, where no page can be sent"),
    done("auth-tls-match-cn", "CN=(alice|bob)", "`subject` of `client` in `tls`").guard(),
    done("auth-tls-pass-certificate-to-upstream", "true", "`ssl-client-cert` with `$tls_client_certificate`"),
    done("auth-tls-secret", "default/staff", "`client` of `tls`, for the whole host. A Secret of another namespace needs a ReferenceGrant").guard().imported(),
    differs("auth-tls-verify-client", "optional", "`on`, `optional` and `off`; `optional_no_ca` closes the paths, because nobody would verify").guard().imported(),
    differs("auth-tls-verify-depth", "1", "chains are verified up to the authority, however long they are").imported(),
    differs("auth-type", "basic", "`basic`; paths with `digest` are closed").guard(),
    done("auth-url", "http://auth.example.com/verify", "`ask` of `auth`. A Service of another namespace needs a ReferenceGrant; names that lead to this machine or a link are refused").guard().imported(),
    done("backend-protocol", "HTTPS", "HTTP, HTTPS, GRPC, GRPCS and FCGI; AUTO_HTTP is HTTP").imported(),
    done("canary", "true", "a branch of `split`"),
    done("canary-by-cookie", "canary", "`when` of a branch"),
    done("canary-by-header", "X-Canary", "`when` of a branch"),
    done("canary-by-header-pattern", "^(a|b)$", "`when` of a branch"),
    done("canary-by-header-value", "yes", "`when` of a branch"),
    done("canary-weight", "10", "`weight` of a branch"),
    done("canary-weight-total", "1000", "the sum of the weights"),
    unneeded("client-body-buffer-size", "8k", "buffers have the size that a request needs").imported(),
    refused("configuration-snippet", "more_set_headers \"X: y\";", SNIPPET).guard(),
    unneeded("connection-proxy-header", "keep-alive", "`Connection` belongs to each connection, and is written by the proxy"),
    done("cors-allow-credentials", "true", "`credentials` of `cors`; not with every origin").imported(),
    done("cors-allow-headers", "X-Token", "`headers` of `cors`").imported(),
    done("cors-allow-methods", "GET, PUT", "`methods` of `cors`").imported(),
    done("cors-allow-origin", "https://app.example.com", "`origins` of `cors`").imported(),
    done("cors-expose-headers", "X-Total", "`expose` of `cors`").imported(),
    differs("cors-max-age", "600", "`max_age` of `cors`, at most a day").imported(),
    differs("custom-headers", "default/fields", "`response_headers` from a ConfigMap of the same namespace, or with a ReferenceGrant; there is no list of permitted names, but fields of the connection are left out"),
    differs("custom-http-errors", "404,503", "`error_server`: the Service of `default-backend` of the same Ingress answers in place of these errors; without it they reach the client as they are").imported(),
    done("default-backend", "fallback", "the Service that answers if the one of the path has no endpoint, and in place of `custom-http-errors`"),
    done("denylist-source-range", "192.0.2.0/24", "`deny`").guard().imported(),
    unneeded("disable-proxy-intercept-errors", "true", "errors of the Service reach the client as they are"),
    done("enable-access-log", "false", "`log` of a route"),
    done("enable-cors", "true", "`cors`").imported(),
    unneeded("enable-global-auth", "true", "there is no authentication for all Ingresses"),
    refused("enable-modsecurity", "true", MODSECURITY).guard(),
    unneeded("enable-opentelemetry", "true", "tracing is a setting of the server"),
    refused("enable-owasp-core-rules", "true", MODSECURITY).guard(),
    unneeded("enable-rewrite-log", "true", "`komainu check --explain` shows the route of a request"),
    refused("fastcgi-index", "index.php", "write the script in `SCRIPT_FILENAME` of `fastcgi-params-configmap`"),
    differs("fastcgi-params-configmap", "fcgi", "`variables` of `proxy`, from a ConfigMap of the same namespace; of nginx's variables only `$fastcgi_script_name`"),
    done("force-ssl-redirect", "true", "a redirect (308) to `https`").imported(),
    done("from-to-www-redirect", "true", "a site for the other name, which redirects (308)"),
    unneeded("http2-push-preload", "true", "no browser takes pushed responses; `early_hints` passes 103 on"),
    done("limit-allowlist", "10.0.0.0/8", "`except` of `limit`"),
    done("limit-burst-multiplier", "3", "`burst` of `limit`").imported(),
    done("limit-connections", "10", "`concurrent` of `limit`; 503").imported(),
    done("limit-rate", "100", "`bandwidth`").imported(),
    done("limit-rate-after", "500", "`after` of `bandwidth`"),
    done("limit-rpm", "300", "`rate` of `limit`; 503").imported(),
    done("limit-rps", "10", "`rate` of `limit`; 503").imported(),
    done("limit-whitelist", "10.0.0.0/8", "`except` of `limit`"),
    differs("load-balance", "ewma", "`round_robin`, and `ewma` as `two-choices`: the less busy of two servers").imported(),
    done("mirror-host", "copy.example.com", "`host` of `mirror`"),
    differs("mirror-request-body", "off", "with `off` requests with a body are not copied"),
    done("mirror-target", "https://copy.example.com$request_uri", "`mirror`; a Service of another namespace needs a ReferenceGrant"),
    refused("modsecurity-snippet", "SecRuleEngine On", MODSECURITY).guard(),
    unneeded("modsecurity-transaction-id", "$request_id", "there is no ModSecurity here"),
    unneeded("opentelemetry-operation-name", "shop", "tracing is a setting of the server"),
    unneeded("opentelemetry-trust-incoming-span", "false", "tracing is a setting of the server"),
    done("permanent-redirect", "https://new.example.com", "`redirect` (301)").imported(),
    done("permanent-redirect-code", "308", "301, 302, 303, 307 and 308"),
    unneeded("preserve-trailing-slash", "true", "redirects to `https` keep the path as it is"),
    done("proxy-body-size", "8m", "`limits.body`; 1 MiB without it").imported(),
    differs("proxy-buffer-size", "8k", "heads of responses may have 32 KiB").imported(),
    differs("proxy-buffering", "on", "responses are sent as they come, and up to `read_ahead` of them are read ahead").imported(),
    unneeded("proxy-buffers-number", "4", "buffers have the size that a response needs").imported(),
    unneeded("proxy-busy-buffers-size", "16k", "buffers have the size that a response needs"),
    done("proxy-connect-timeout", "5", "`connect` of `timeouts`").imported(),
    done("proxy-cookie-domain", "old.example.com new.example.com", "`cookie_domains`"),
    refused("proxy-cookie-path", "/a /b", "paths of cookies follow `rewrite-target`'s prefix alone: let the application write them"),
    differs("proxy-http-version", "1.1", "HTTP/1.1, and HTTP/2 for GRPC").imported(),
    done("proxy-max-temp-file-size", "1024m", "`spill`"),
    done("proxy-next-upstream", "error timeout http_502", "`retry`: `statuses`, `non_idempotent`; `off` for none"),
    differs("proxy-next-upstream-timeout", "10", "retries end with `proxy-connect-timeout` and `proxy-read-timeout`"),
    done("proxy-next-upstream-tries", "3", "`attempts` of `retry`").imported(),
    done("proxy-read-timeout", "120", "`head` and `between` of `timeouts`").imported(),
    done("proxy-redirect-from", "http://old.example.com/", "`locations`"),
    done("proxy-redirect-to", "/", "`locations`"),
    differs("proxy-request-buffering", "off", "a body that fits in `read_ahead` is complete before the Service is asked; a longer one is passed on as it comes").imported(),
    differs("proxy-send-timeout", "60", "`between` of `timeouts`, from `proxy-read-timeout`").imported(),
    differs("proxy-ssl-ciphers", "HIGH", "the cipher suites of TLS 1.2 and 1.3 that are not broken"),
    done("proxy-ssl-name", "inner.example.com", "`name` of `tls`").imported(),
    differs("proxy-ssl-protocols", "TLSv1.3", "TLS 1.2 and 1.3"),
    done("proxy-ssl-secret", "default/client", "`ca`, `certificate` and `key` of `tls`. A Secret of another namespace needs a ReferenceGrant; without the Secret, the paths are closed").guard().imported(),
    differs("proxy-ssl-server-name", "on", "the name is always sent").imported(),
    done("proxy-ssl-verify", "on", "`verify` of `tls`; off without it").imported(),
    differs("proxy-ssl-verify-depth", "2", "chains are verified up to the authority, however long they are"),
    unneeded("relative-redirects", "true", "redirects of a path are relative"),
    done("rewrite-target", "/$1", "`rewrite`, with the groups of the path").imported(),
    done("satisfy", "any", "`any` lets in the clients of `allowlist-source-range` without `auth`").guard(),
    done("server-alias", "shop.example.net", "further `hosts`, unless another Ingress has them").imported(),
    refused("server-snippet", "return 301 /;", SNIPPET).guard(),
    done("service-upstream", "true", "the Service's own address"),
    unneeded("session-cookie-change-on-failure", "true", "a client whose server has failed always gets another one"),
    unneeded("session-cookie-conditional-samesite-none", "true", "browsers that misread `SameSite=None` are gone"),
    done("session-cookie-domain", "example.com", "`domain` of `sticky`"),
    differs("session-cookie-expires", "3600", "`max_age` of `sticky`, in place of `Expires`"),
    done("session-cookie-max-age", "3600", "`max_age` of `sticky`"),
    done("session-cookie-name", "route", "the cookie's name; `INGRESSCOOKIE` without it"),
    done("session-cookie-path", "/shop", "`path` of `sticky`; `/` without it"),
    done("session-cookie-samesite", "Strict", "`same_site` of `sticky`"),
    done("session-cookie-secure", "true", "`secure` of `sticky`"),
    differs("ssl-ciphers", "HIGH", "the cipher suites of TLS 1.2 and 1.3 that are not broken"),
    done("ssl-passthrough", "true", "a `[[stream]]` by the name that the client asks for").guard(),
    unneeded("ssl-prefer-server-ciphers", "true", "all cipher suites are good; the client's order counts"),
    done("ssl-redirect", "false", "a redirect (308) to `https` where the host has a certificate; `false` for none").imported(),
    refused("stream-snippet", "server { listen 8000; }", "write a TCPRoute or a UDPRoute of Gateway API"),
    done("temporal-redirect", "https://new.example.com", "`redirect` (302)").imported(),
    done("temporal-redirect-code", "307", "301, 302, 303, 307 and 308"),
    differs("upstream-hash-by", "$request_uri", "`balance` by one of `$request_uri`, `$uri`, `$remote_addr`, `$binary_remote_addr`, `$http_NAME` and `$cookie_NAME`"),
    differs("upstream-hash-by-subset", "true", "a key has one server, not a set of them"),
    differs("upstream-hash-by-subset-size", "3", "a key has one server, not a set of them"),
    done("upstream-vhost", "inner.example.com", "`host` of `proxy`").imported(),
    unneeded("use-port-in-redirects", "true", "redirects have the port that the client asked"),
    done("use-regex", "true", "regular expressions, which ignore case, for all paths of the host").imported(),
    done("whitelist-source-range", "10.0.0.0/8", "`allow`").guard().imported(),
    done("x-forwarded-prefix", "/shop", "`request_headers`").imported(),
];

/// Finds an annotation by its name without the prefix.
#[must_use]
pub fn ingress_annotation(name: &str) -> Option<&'static IngressAnnotation> {
    let at = INGRESS_ANNOTATIONS.binary_search_by(|row| row.name.cmp(name));
    at.ok().map(|at| &INGRESS_ANNOTATIONS[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_stand_once() {
        for pair in INGRESS_ANNOTATIONS.windows(2) {
            assert!(pair[0].name < pair[1].name, "{} {}", pair[0].name, pair[1].name);
        }
        assert_eq!(ingress_annotation("auth-url").map(|row| row.guards), Some(true));
        assert!(ingress_annotation("frobnicate").is_none());
    }
}
