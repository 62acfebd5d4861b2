use super::*;
use crate::RequestHead;
use crate::line::Limits;

fn parse(text: &str) -> Result<Template, TemplateError<'_>> {
    Template::parse(text, |_| true)
}

fn filled_for(head: &str, text: &str) -> String {
    let bytes = head.as_bytes();
    let mut head = RequestHead::default();
    assert!(head.parse(bytes, &Limits::default()).unwrap());
    let values = VariableValues {
        head: &head,
        bytes,
        empty_segments: EmptySegments::Merge,
        client: Some("[::ffff:192.0.2.7]:5555".parse().unwrap()),
        is_secure: true,
        tls: None,
        ids: RequestIds::default(),
        user: b"",
        prefix: b"/a/",
        upstream: "127.0.0.1:3000",
        custom: Some(&Encodings),
    };
    let mut out = Vec::new();
    Template::parse_with(text, |_| true, |name| name == "1" || name == "id")
        .unwrap()
        .write(&mut out, &values);
    String::from_utf8(out).unwrap()
}

/// Values that report the requested encoding.
struct Encodings;

impl CustomVariables for Encodings {
    fn write(&self, name: &str, is_strict: bool, _: &VariableValues<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("({name}{})", if is_strict { " strict" } else { "" }).as_bytes());
    }
}

#[test]
fn custom_variables_are_encoded_for_their_position() {
    for (text, want) in [
        ("/a/$id/$1x?b=$id", "/a/(id)/(1)x?b=(id strict)"),
        ("https://$id.test/$id", "https://(id strict).test/(id)"),
        ("https://a.test$id#$1", "https://a.test(id strict)#(1 strict)"),
        ("$scheme://$id/$id", "https://(id strict)/(id)"),
    ] {
        assert_eq!(filled(text), want, "{text}");
    }
    assert!(parse("$1").is_err() && parse("$id").is_err());
    let kept = Template::parse_with("a${id}b", |_| true, |name| name == "id").unwrap();
    assert_eq!(kept.to_string(), "a${id}b");
}

fn filled(text: &str) -> String {
    let head = "GET /a//b%20c?x=1 HTTP/1.1\r\nHost: X.test:8080\r\nX-Id: 7\r\nCookie: a=1; sid=abc\r\n\r\n";
    filled_for(head, text)
}

#[test]
fn variables_are_filled_in() {
    for (text, want) in [
        ("", ""),
        ("plain", "plain"),
        ("$client_ip:$client_port", "192.0.2.7:5555"),
        ("$remote_addr", "192.0.2.7"),
        ("${scheme}s", "httpss"),
        ("$scheme://$host$uri", "https://x.test/a/b%20c?x=1"),
        ("$http_host", "X.test:8080"),
        ("$method $path $rest $query $args", "GET /a/b%20c b%20c ?x=1 x=1"),
        ("$http_x_id/$http_none/$cookie_sid/$cookie_x", "7//abc/"),
        ("a$$b$upstream", "a$b127.0.0.1:3000"),
    ] {
        assert_eq!(filled(text), want, "{text}");
    }
}

#[test]
fn variables_without_a_value_are_empty() {
    let bare = "GET http://h.test/\u{e9} HTTP/1.1\r\nHost: other\r\n\r\n";
    assert_eq!(filled_for(bare, "$query|$args|$uri|$http_host|$rest"), "||/%C3%A9|h.test|");
    assert_eq!(filled_for("GET / HTTP/1.0\r\n\r\n", "<$host><$http_host><$cookie_a>"), "<><><>");
}

#[test]
fn templates_print_as_parsed() {
    for text in ["", "a", "$$", "${path}", "https://${host}${path}${query}", "a$$${rest}b", "${http_x-id}"] {
        assert_eq!(parse(text).unwrap().to_string(), text);
    }
    let short = parse("$path.html").unwrap();
    assert_eq!(short.parts(), [TemplatePart::Variable(Variable::Path), TemplatePart::Text(".html".into())]);
    assert_eq!(parse("a$$b").unwrap().as_literal(), Some("a$b"));
    assert_eq!(short.as_literal(), None);
}

#[test]
fn every_variable_is_found_by_its_names() {
    for (name, variable) in &VARIABLES_BY_NAME {
        let found = Variable::named(name).unwrap();
        assert_eq!(found.canonical_name(), variable.canonical_name(), "{name}");
    }
}

#[test]
fn template_errors_report_their_position() {
    for (text, at, fault) in [
        ("x/$pth/y", 2..6, TemplateFault::Unknown("pth")),
        ("${hots}", 0..7, TemplateFault::Unknown("hots")),
        ("${$}", 0..4, TemplateFault::Unknown("$")),
        ("a$http_", 1..7, TemplateFault::Unknown("http_")),
        ("${cookie_a=b}", 0..13, TemplateFault::Unknown("cookie_a=b")),
        ("$query", 0..6, TemplateFault::Unknown("query")),
        ("a$", 1..2, TemplateFault::MissingName),
        ("$-", 0..1, TemplateFault::MissingName),
        ("a${b", 1..4, TemplateFault::Unclosed),
        ("a\r\nb", 1..2, TemplateFault::Control),
    ] {
        let found = Template::parse(text, |variable| *variable != Variable::Query).unwrap_err();
        assert_eq!(found, TemplateError { at, fault }, "{text}");
    }
}
