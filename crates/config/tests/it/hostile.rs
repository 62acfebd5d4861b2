//! Hostile input: no text makes the parser panic, hang or overflow its stack, and every finding can be
//! rendered.

use crate::laws::configuration;
use crate::place;
use config::TEXT_BYTES_MAX;
use http::Template;
use net::Listen;
use shapes::pattern::{PathPattern, ValuePattern};

#[test]
fn deeply_nested_texts_are_rejected() {
    let deep = |open: &str, close: &str| format!("a = {}{}", open.repeat(100_000), close.repeat(100_000));
    assert!(!configuration(&deep("[", "]")));
    assert!(!configuration(&deep("[", "")));
    assert!(!configuration(&deep("{a=", "}")));
    assert!(!configuration(&format!("{}a = 1", "a.".repeat(100_000))));
    assert!(!configuration(&format!("[{}a]", "a.".repeat(100_000))));
    assert!(!configuration(&format!("[[{}a]]", "site.".repeat(70))));
    assert!(!configuration(&(0..2000).map(|i| format!("[a{}]\n", ".b".repeat(i % 70))).collect::<String>()));
}

#[test]
fn large_texts_are_handled() {
    assert!(!configuration(&" ".repeat(TEXT_BYTES_MAX + 1)));
    assert!(configuration(&" ".repeat(TEXT_BYTES_MAX)));
    assert!(configuration(&"#\n".repeat(TEXT_BYTES_MAX / 2)));
    assert!(!configuration(&format!("{} = 1", "k".repeat(1 << 20))));
    assert!(!configuration(&format!("listen = \"{}\"", "9".repeat(1 << 20))));
    assert!(!configuration(&format!("limits.head = \"{}\"", "9".repeat(1 << 20))));
    assert!(!configuration(&(0..20_000).map(|i| format!("key{i} = 1\n")).collect::<String>()));
    assert!(!configuration(&format!("listen = [{}]", "\":80\",".repeat(300))));
    assert!(!configuration(&"[[site]]\n".repeat(10_000)));
    assert!(configuration(&"[[route]]\nrespond = 200\n".repeat(500)));
}

#[test]
fn ten_thousand_routes_are_accepted() {
    let route = |i: usize| format!("[[route]]\npath = \"/p{i}\"\nfiles = \"d\"\n");
    assert!(configuration(&(0..10_000).map(route).collect::<String>()));
}

#[test]
fn unusual_texts_do_not_panic() {
    for text in [
        "\u{feff}",
        "\u{feff}a",
        "\0",
        "\r",
        "a = \"\u{7f}\"",
        "\"\" = 1",
        "'\u{1b}[2J' = 1",
        "listen = \"\u{202e}:80\"",
        "listen = \"é:80\"",
        "listen = \"\\u0000:80\"",
        "limits.head = \"é\"",
        "timeouts.idle = \"1é\"",
        "site = [1, [2], {hosts = {}}]",
        "site = [{}, 5]",
        "route = [{files = {}}, {redirect = {}}, {respond = {}}]",
        "route = [{path = \"/é*é\", respond = \"é\"}]",
        "route = [{path = \"/%é\", respond = \"é\"}]",
        "route = [{redirect = \"${\"}, {redirect = \"/${}\"}, {redirect = \"/$é\"}]",
        "limits = 1979-05-27T07:32:00Z",
        "threads = nan",
        "threads = 9223372036854775807",
        "threads = 9223372036854775808",
        "error_pages.404.x = 1",
        "[[limits.head]]",
        "[site.route]",
    ] {
        configuration(text);
    }
}

/// Pieces that lead far into the parser.
const PIECES: [&str; 30] = [
    "\"",
    "'",
    "[",
    "]",
    "{",
    "}",
    "[[",
    "]]",
    "=",
    ",",
    "\n",
    ".",
    "#",
    "*",
    "**",
    "$",
    "${",
    "%41",
    "\\u0000",
    "\\",
    "é",
    "\u{1f98a}",
    "true",
    "0",
    "-1",
    "1e9",
    "\"\"\"",
    "[[site]]\n",
    "[[site.route]]\n",
    "unix:",
];

fn mutated(text: &str, random: &mut fastrand::Rng) -> String {
    let mut text = text.to_owned();
    for _ in 0..=random.usize(..4) {
        let mut ends = [random.usize(..text.len() + 1), random.usize(..text.len() + 1)];
        for end in &mut ends {
            while !text.is_char_boundary(*end) {
                *end -= 1;
            }
        }
        ends.sort_unstable();
        let [start, end] = ends;
        match random.usize(..4) {
            0 => text.insert_str(start, PIECES[random.usize(..PIECES.len())]),
            1 => {
                let near = (start..=end.min(start + 8)).rev().find(|&at| text.is_char_boundary(at));
                text.replace_range(start..near.expect("the start is one"), "");
            }
            2 => {
                let copy = text[start..end].to_owned();
                text.insert_str(start, &copy);
            }
            _ => text.truncate(end),
        }
        let start =
            (0..=start.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).expect("0 is one");
        if random.usize(..2) == 0 {
            text.insert_str(start, PIECES[random.usize(..PIECES.len())]);
        }
    }
    text
}

#[test]
fn mutated_texts_do_not_panic() {
    let mut seeds = Vec::new();
    for folder in ["examples", "tests/errors"] {
        for entry in std::fs::read_dir(place(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                seeds.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut random = fastrand::Rng::with_seed(20_261_121);
    let mut taken = 0;
    for _ in 0..3000 {
        let seed = random.usize(..seeds.len());
        let text = mutated(&seeds[seed], &mut random);
        taken += usize::from(configuration(&text));
    }
    assert!(
        taken > 10,
        "hardly any mutated text is valid any more: they test nothing but the TOML parser ({taken})"
    );
}

#[test]
fn mutated_values_round_trip_without_panic() {
    let seeds = [
        "127.0.0.1:80",
        "[::1]:80",
        "unix:/k",
        "/a/*/b**",
        "*.php",
        "https://${host}$path$$",
        "a*b*c",
        "16KiB",
    ];
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..20_000 {
        let text = mutated(seeds[round % seeds.len()], &mut random);
        if let Ok(listen) = Listen::parse(&text) {
            assert_eq!(Listen::parse(&listen.to_string()), Ok(listen));
        }
        if let Ok(path) = PathPattern::parse(&text) {
            path.matches(text.as_bytes());
            assert!(path.as_str() == text);
        }
        if let Ok(value) = ValuePattern::parse(&text) {
            assert!(value.matches(text.bytes()), "a pattern fits itself: {text}");
        }
        if let Ok(template) = Template::parse(&text, |_| true) {
            assert_eq!(Template::parse(&template.to_string(), |_| true), Ok(template));
        }
    }
}

#[test]
fn fuzzing_seeds_do_not_panic() {
    corpus::replay(&corpus::seeds("configuration"), 3_000, |bytes| {
        configuration(&String::from_utf8_lossy(bytes));
    });
}
