//! The control interface and the permissions of its clients.

use net::Listen;
use net::listen::Address;
use net::tls::directives::{CertificateSource, SiteTls, site_tls};
use settings::checker::{Checker, InvalidValue};
use settings::directive_table::table;
use settings::directives;
use settings::node::Node;
use settings::shape::{AccountName, Flag, List, Maybe, PathShape, Text, Word};
use std::path::PathBuf;

/// The longest name of a token, in characters.
const NAME_CHARS_MAX: usize = 64;
/// The shortest token for the control listener, in characters.
const TOKEN_CHARS_MIN: usize = 20;
/// The longest.
const TOKEN_CHARS_MAX: usize = 1_024;

/// Permissions of a token or certificate. Each role includes those before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TokenRole {
    /// Read everything: the configuration and the audit log too.
    #[default]
    Read,
    /// Operate the server as it is configured.
    Operate,
    /// Change the configuration.
    Admin,
}

directives! {
    /// The control interface for administrators: `GET /metrics` is for Prometheus, `GET /v1/status` is the
    /// output of `komainu status --json`, and below `/v1/` is the control API. Unless `open = false`, all
    /// clients that reach the address can read metrics and status: choose an address of this machine or of a
    /// private network. Everything else needs a Unix socket, or over TCP a token or a client certificate.
    ///
    /// ```toml
    /// [control]
    /// listen = "127.0.0.1:9180"
    /// audit  = "/var/log/komainu/audit.log"
    ///
    /// [[control.token]]
    /// name       = "deploy"
    /// role       = "operate"
    /// token_file = "/etc/komainu/deploy.token"
    /// ```
    Control in "`[control]`", check control_agrees {
        /// Address of the control interface: TCP, or a Unix socket (`unix:PATH`). The Unix socket allows
        /// everything: its file permissions decide who may open it.
        "listen" listen: Option<Listen> = absent("none"), Maybe(Address);
        /// TLS over TCP: the listener's certificate and key, in files, and with `client` the authorities that sign certificates of clients.
        /// `client.required = false` lets clients without one in, as without TLS. A reload reads the files again.
        "tls" tls: Option<SiteTls> = absent("requests in the clear"), site_tls();
        /// Whether metrics and status (the API's role `open`, `/metrics`, `/v1/events`) can be read over TCP
        /// without a token. With `false`, each request over TCP needs a token, at least of the role `read`.
        /// Only the dashboard's page, which shows nothing without a token, is sent to everybody.
        "open" is_open: bool = true, Flag;
        /// Tokens, with which the control listener can be used over TCP: `[[control.token]]`.
        "token" tokens: Vec<ControlToken> = [], List(table());
        /// Permissions of clients by their certificates, which `tls` has verified: `[[control.client]]`. The
        /// first that matches decides. If a client sends a token, the token decides instead.
        "client" clients: Vec<ControlClient> = [], List(table());
        /// Permissions of the Unix socket, in octal digits. Users with write permission may do everything.
        "mode" mode: Option<u32> = absent("those of the process's umask, as a rule \"0755\": its owner alone may connect"),
            Maybe(Text { what: "permissions in octal digits such as \"0660\"", parse: mode });
        /// The group of the Unix socket, by name or number. A server that was started as root has its supervisor set
        /// it; another one must belong to it.
        "group" group: Option<String> = absent("that of the process"), Maybe(AccountName { is_group: true });
        /// Audit log: a file to which each change by the control API, and each refused request (401, 403,
        /// 429), is appended as a line of JSON. It is opened again with the logs.
        "audit" audit: Option<PathBuf> = absent("the error log"), Maybe(PathShape("a file"));
    }
}

directives! {
    /// A token for the control listener over TCP: requests carry it as `Authorization: Bearer TOKEN`. Its file is read again by a reload.
    ControlToken in "`[[control.token]]`" {
        /// Name in the audit log.
        "name" name: String = required(""), Text { what: "a name of at most 64 characters", parse: name };
        /// Permissions of the holder. `read`: status, configuration and audit log. `operate`: also all that
        /// leaves the configuration unchanged (reload, drain, restart, purge). `admin`: everything.
        "role" role: TokenRole = required(""), ROLES;
        /// The file that holds it: 20 to 1,024 visible ASCII characters. A credential of systemd's is `"${CREDENTIALS_DIRECTORY}/NAME"`.
        "token_file" token_file: PathBuf = required(""), PathShape("a file");
    }
}

directives! {
    /// A client of the control listener, identified by its certificate: by one of `subject`, `san` and
    /// `fingerprint`.
    ///
    /// ```toml
    /// [control]
    /// listen = "10.0.0.5:9180"
    /// open   = false
    ///
    /// [control.tls]
    /// certificate = "/etc/komainu/control.pem"
    /// client      = "/etc/komainu/operators-ca.pem"
    ///
    /// [[control.client]]
    /// name = "deploy"
    /// role = "operate"
    /// san  = "DNS:deploy.example.com"
    /// ```
    ControlClient in "`[[control.client]]`", check client_agrees {
        /// Name in the audit log.
        "name" name: String = required(""), Text { what: "a name of at most 64 characters", parse: name };
        /// Permissions, as of a token.
        "role" role: TokenRole = required(""), ROLES;
        /// The subject of its certificate, as RFC 4514 writes it and `$tls_client_subject` has it: `"CN=alice,O=Example"`.
        "subject" subject: Option<String> = absent("any"), Maybe(Text { what: "a distinguished name such as \"CN=alice\"", parse: subject });
        /// One of the alternative names of its certificate: `"DNS:deploy.example.com"`, `"email:alice@example.com"`,
        /// `"URI:spiffe://example.com/deploy"` or `"IP:10.0.0.7"`.
        "san" san: Option<String> = absent("any"), Maybe(Text { what: "an alternative name such as \"DNS:deploy.example.com\"", parse: san });
        /// The SHA-256 of its certificate in hexadecimal digits, with colons or without (`openssl x509 -noout -fingerprint -sha256 -in FILE`).
        "fingerprint" fingerprint: Option<String> = absent("any"), Maybe(Text { what: "a SHA-256 in hexadecimal digits", parse: fingerprint });
    }
}

const ROLES: Word<TokenRole> =
    Word(&[("read", TokenRole::Read), ("operate", TokenRole::Operate), ("admin", TokenRole::Admin)]);

/// The token in the text of a file for the control listener, without white space around it.
///
/// # Errors
/// The token is too short or too long, or has characters that no token has.
pub fn parse_control_token(text: &str) -> Result<&str, InvalidValue> {
    let remedy = "`openssl rand -hex 32` makes one";
    let text = text.trim();
    let count = text.chars().count();
    if count < TOKEN_CHARS_MIN {
        let message = format!(
            "this token has {count} characters, and needs at least {TOKEN_CHARS_MIN}: it could be guessed"
        );
        return Err(InvalidValue::new(message, remedy));
    }
    if count > TOKEN_CHARS_MAX {
        let message = format!("this token has {count} characters, and may have at most {TOKEN_CHARS_MAX}");
        return Err(InvalidValue::new(message, remedy));
    }
    if text.chars().all(|c| c.is_ascii_graphic()) {
        Ok(text)
    } else {
        Err(InvalidValue::new("a token has visible ASCII characters alone, on one line", remedy))
    }
}

fn name(text: &str) -> Result<String, InvalidValue> {
    if text.is_empty() || text.chars().count() > NAME_CHARS_MAX {
        return Err(InvalidValue::new("this is not a name", "write 1 to 64 characters, such as \"deploy\""));
    }
    match text.find(|c: char| c.is_control()) {
        Some(at) => Err(InvalidValue::new("a control character", "").within(at..at + 1)),
        None => Ok(text.to_owned()),
    }
}

fn subject(text: &str) -> Result<String, InvalidValue> {
    let remedy = "write it as `openssl x509 -noout -subject -nameopt RFC2253 -in FILE` does, such as \"CN=alice,O=Example\"";
    if text.contains('=') && !text.contains(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not a distinguished name", remedy))
    }
}

/// Kinds of alternative names, as OpenSSL writes them.
const SAN_KINDS: [&str; 4] = ["DNS", "email", "URI", "IP"];

fn san(text: &str) -> Result<String, InvalidValue> {
    let found = text.split_once(':').filter(|(kind, name)| SAN_KINDS.contains(kind) && !name.is_empty());
    let Some((kind, name)) = found.filter(|_| !text.contains(char::is_control)) else {
        let remedy =
            "write its kind and the name, such as \"DNS:deploy.example.com\" or \"email:alice@example.com\"";
        return Err(InvalidValue::new("this is not an alternative name", remedy));
    };
    match kind {
        "DNS" => Ok(format!("{kind}:{}", name.to_ascii_lowercase())),
        _ => Ok(text.to_owned()),
    }
}

fn fingerprint(text: &str) -> Result<String, InvalidValue> {
    let digits: String = text.chars().filter(|c| *c != ':').map(|c| c.to_ascii_lowercase()).collect();
    if digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(digits)
    } else {
        Err(InvalidValue::new(
            "this is not the SHA-256 of a certificate",
            "`openssl x509 -noout -fingerprint -sha256 -in FILE` shows it: 64 hexadecimal digits",
        ))
    }
}

fn client_agrees(client: &mut ControlClient, node: &Node, check: &mut Checker) {
    let given = [&client.subject, &client.san, &client.fingerprint].into_iter().flatten().count();
    if given != 1 {
        let title = match given {
            0 => "a `[[control.client]]` that names no certificate".to_owned(),
            _ => format!("{given} names of a certificate in one `[[control.client]]`"),
        };
        let finding = check.error(&node.span, title, "which clients?");
        finding.help("give one of `subject`, `san` and `fingerprint`");
    }
}

fn mode(text: &str) -> Result<u32, InvalidValue> {
    let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
    let remedy = "write three octal digits with a 0 before them, such as \"0660\"";
    mode.ok_or_else(|| InvalidValue::new("these are not permissions", remedy))
}

fn control_agrees(control: &mut Control, node: &Node, check: &mut Checker) {
    for (token, item) in control.tokens.iter().zip(node.items("token")) {
        check.check_unique("control token", token.name.clone(), &item.span);
    }
    for (client, item) in control.clients.iter().zip(node.items("client")) {
        check.check_unique("control client", client.name.clone(), &item.span);
    }
    let is_network = !matches!(control.listen, None | Some(Listen::Unix(_)));
    let has_callers = !control.tokens.is_empty() || !control.clients.is_empty();
    if let (true, false, false, Some(entry)) = (is_network, control.is_open, has_callers, node.entry("open"))
    {
        let title = "nobody can use the control listener".to_owned();
        let finding = check.error(&entry.value.span, title, "each request needs a token, and there is none");
        finding.help("give a `[[control.token]]` or a `[[control.client]]`, or listen at a Unix socket");
    }
    check_tls(control, node, check);
    for key in ["mode", "group"] {
        if let (true, Some(entry)) = (!matches!(control.listen, Some(Listen::Unix(_))), node.entry(key)) {
            let title = format!("`{key}` in `[control]` without a Unix socket");
            let finding = check.error(&entry.key_span, title, "only the file of a Unix socket has that");
            finding.help("write `listen = \"unix:PATH\"`");
        }
    }
    if let (Some(mode), Some(entry)) = (control.mode.filter(|mode| mode & 0o002 != 0), node.entry("mode")) {
        let title = "every user of this machine can change everything".to_owned();
        let finding =
            check.warning(&entry.value.span, title, format!("others may write to it by {mode:04o}"));
        finding.help("write \"0660\" and the `group` of those who operate the server");
    }
    if let Some(entry) = node.entry("listen") {
        warn_of_unprotected_network(control, entry, check);
    }
}

/// Checks that the control listener does not share an address with another listener.
pub(crate) fn check_separate_address(
    control: &Control,
    other_addresses: &[&Listen],
    node: &Node,
    check: &mut Checker,
) {
    let written = node.entry("control").and_then(|entry| entry.value.entry("listen"));
    let (Some(own), Some(entry)) = (&control.listen, written) else { return };
    if let Some(other) = other_addresses.iter().find(|other| other.overlaps(own)) {
        let title = format!("the control listener listens on `{own}`, where clients connect");
        let finding = check.error(&entry.value.span, title, format!("taken by `{other}` already"));
        finding.help("give it an address of its own: `listen = \"127.0.0.1:9180\"`, or a Unix socket, `\"unix:/run/komainu/control.sock\"`");
    }
}

fn check_tls(control: &Control, node: &Node, check: &mut Checker) {
    if let (Some(Listen::Unix(_)), Some(entry)) = (&control.listen, node.entry("tls")) {
        let title = "`tls` in `[control]` with a Unix socket".to_owned();
        let finding = check.error(&entry.key_span, title, "its permissions decide who may open it");
        finding.help("remove it, or write `listen = \"ADDRESS:PORT\"`");
    }
    if let (Some(CertificateSource::Auto), Some(entry)) =
        (control.tls.as_ref().map(|tls| &tls.certificate), node.entry("tls"))
    {
        let title = "the control listener obtains no certificates".to_owned();
        let finding = check.error(&entry.value.span, title, "of which name?");
        finding.help("name files: `tls = { certificate = \"control.pem\", key = \"control.key\" }`");
    }
    let asks = control.tls.as_ref().is_some_and(|tls| tls.client.is_some());
    if let (false, false, Some(entry)) = (control.clients.is_empty(), asks, node.entry("client")) {
        let title = "`[[control.client]]` without certificates of clients".to_owned();
        let finding = check.error(&entry.key_span, title, "the listener asks clients for none");
        finding.help("give their authority: `tls = { certificate = …, client = \"ca.pem\" }` in `[control]`");
    }
}

/// Warns if the listener is reachable from other machines without protection.
fn warn_of_unprotected_network(control: &Control, entry: &settings::node::Entry, check: &mut Checker) {
    let is_elsewhere = match &control.listen {
        Some(Listen::Any(_)) => true,
        Some(Listen::Tcp(address)) => !address.ip().to_canonical().is_loopback(),
        _ => false,
    };
    if !is_elsewhere {
        return;
    }
    let client = control.tls.as_ref().and_then(|tls| tls.client.as_ref());
    if control.is_open && control.tokens.is_empty() && !client.is_some_and(|client| client.required) {
        let title = "whoever reaches this address can read the server's metrics and status".to_owned();
        let finding = check.warning(&entry.value.span, title, "others than this machine reach it");
        finding.help(
            "write \"127.0.0.1:PORT\" or \"unix:PATH\"; or give a `[[control.token]]` and `open = false`",
        );
    }
    if !control.tokens.is_empty() && control.tls.is_none() {
        let title = "tokens cross the network in the clear".to_owned();
        let finding = check.warning(&entry.value.span, title, "there is no `tls` in `[control]`");
        finding.help(
            "give it a certificate: `tls = { certificate = \"control.pem\", key = \"control.key\" }`; or write \"127.0.0.1:PORT\" and use a tunnel (`ssh -L`)",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(text: &str) -> (Control, String) {
        let mut check = Checker::new(text, "test", Path::new("/etc"));
        let document = Node::parse_document(text).unwrap();
        let control = settings::shape::Shape::read(&table::<Control>(), &document, &mut check);
        (control.unwrap_or_default(), check.report.to_string())
    }

    #[test]
    fn control_tokens_have_a_minimum_length_and_no_spaces() {
        let exact = "x".repeat(20);
        assert_eq!(parse_control_token(&format!("  {exact}\n")).unwrap(), exact);
        for bad in
            ["", "x", &"x".repeat(19), &"x".repeat(1_025), &format!("{exact} {exact}"), &"é".repeat(20)]
        {
            assert!(parse_control_token(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn socket_modes_are_octal() {
        for (text, wanted) in [("0660", Some(0o660)), ("600", Some(0o600)), ("0777", Some(0o777))] {
            assert_eq!(mode(text).ok(), wanted);
        }
        for bad in ["", "66", "0668", "1777", "rw-rw----", "00660", "+660"] {
            assert!(mode(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn control_listener_needs_its_own_address() {
        let of = |listen: &str| match crate::Config::parse(
            &format!("{listen}\n[[route]]\nfiles = \"a\"\n"),
            "k",
            Path::new("."),
        ) {
            Ok(_) => String::new(),
            Err(report) => report.to_string(),
        };
        let control = "[control]\nlisten = \"127.0.0.1:9090\"\n[[site]]\nhosts = \"a.test\"\nlisten = ";
        for taken in ["\":9090\"", "\"127.0.0.1:9090\""] {
            let text = of(&format!("listen = {taken}\n[control]\nlisten = \"127.0.0.1:9090\""));
            assert!(text.contains("the control listener listens on `127.0.0.1:9090`"), "{text}");
        }
        let text = of(&format!("{control}[\":9090\"]\n[[site.route]]\nfiles = \"a\""));
        assert!(text.contains("taken by `:9090` already"), "{text}");
        assert_eq!(of("listen = \":9090\"\n[control]\nlisten = \"127.0.0.1:9180\""), "");
    }

    const TLS: &str = "tls = { certificate = \"a.pem\", client = \"ca.pem\" }\n";
    const CLIENT: &str = "[[client]]\nname = \"deploy\"\nrole = \"operate\"\n";

    #[test]
    fn certificate_names_are_normalized() {
        assert_eq!(san("DNS:Deploy.Example").unwrap(), "DNS:deploy.example");
        assert_eq!(san("email:A@b").unwrap(), "email:A@b");
        let digits = "AB:".repeat(32);
        assert_eq!(fingerprint(digits.trim_end_matches(':')).unwrap(), "ab".repeat(32));
    }

    #[test]
    fn insecure_or_invalid_control_settings_are_reported() {
        let token = "[[token]]\nname = \"a\"\nrole = \"read\"\ntoken_file = \"a.token\"\n";
        for (text, part) in [
            ("listen = \"0.0.0.0:9180\"\n".to_owned(), "can read the server's metrics"),
            ("listen = \"10.0.0.1:9180\"\n".to_owned(), "can read the server's metrics"),
            (format!("listen = \":9180\"\n{token}"), "in the clear"),
            ("listen = \"127.0.0.1:9180\"\nopen = false\n".to_owned(), "nobody can use"),
            ("listen = \"127.0.0.1:9180\"\nmode = \"0660\"\n".to_owned(), "without a Unix socket"),
            ("listen = \"unix:/a\"\nmode = \"0666\"\n".to_owned(), "every user of this machine"),
            (format!("{token}{token}"), "duplicate control token `a`"),
            ("[[token]]\nname = \"a\"\nrole = \"open\"\ntoken_file = \"a\"\n".to_owned(), "\"admin\""),
            ("[[token]]\nname = \"a\"\n".to_owned(), "token_file` is missing"),
            ("listen = \"unix:/a\"\ntls = \"a.pem\"\n".to_owned(), "with a Unix socket"),
            ("listen = \"127.0.0.1:1\"\ntls = \"auto\"\n".to_owned(), "obtains no certificates"),
            (format!("{CLIENT}san = \"DNS:a\"\n"), "without certificates of clients"),
            (format!("{TLS}{CLIENT}"), "names no certificate"),
            (format!("{TLS}{CLIENT}san = \"DNS:a\"\nsubject = \"CN=a\"\n"), "2 names"),
            (format!("{TLS}{CLIENT}san = \"deploy\"\n"), "not an alternative name"),
            (format!("{TLS}{CLIENT}subject = \"deploy\"\n"), "not a distinguished name"),
            (format!("{TLS}{CLIENT}fingerprint = \"ab:cd\"\n"), "64 hexadecimal digits"),
            ("listen = \"10.0.0.1:1\"\ntls = \"a.pem\"\n".to_owned(), "can read the server's metrics"),
        ] {
            let (_, said) = read(&text);
            assert!(said.contains(part), "{text}: {said}");
        }
        for fine in [
            format!("listen = \"127.0.0.1:9180\"\nopen = false\n{token}"),
            "listen = \"unix:/a\"\nmode = \"0660\"\ngroup = \"adm\"\naudit = \"audit.log\"\n".to_owned(),
            format!("listen = \"[::1]:9180\"\n{token}"),
            format!("listen = \"10.0.0.1:9180\"\ntls = \"a.pem\"\n{token}"),
            format!("listen = \"10.0.0.1:9180\"\nopen = false\n{TLS}{CLIENT}san = \"email:a@b\"\n"),
            format!("listen = \"10.0.0.1:9180\"\n{TLS}"),
        ] {
            let (control, said) = read(&fine);
            assert!(said.is_empty(), "{fine}: {said}");
            assert!(control.listen.is_some());
        }
    }
}
