//! No text makes the parser panic, hang or overflow its stack, and every finding can be shown.

use crate::place;
use config::{Config, Listen, PathPattern, TEXT_BYTES_MAX, Template, ValuePattern, Variable};
use std::path::Path;

/// Parses, and shows what was found. True if the text is a configuration.
fn parses(text: &str) -> bool {
    match Config::parse(text, "hostile.toml", Path::new("/srv")) {
        Ok((_, report)) => {
            assert_eq!(report.errors(), 0);
            report.render(true);
            true
        }
        Err(report) => {
            assert!(report.errors() > 0);
            assert!(report.findings().len() <= 50);
            assert!(!report.render(false).is_empty());
            for finding in report.findings() {
                report.position(finding);
            }
            false
        }
    }
}

#[test]
fn deep_texts() {
    let deep = |open: &str, close: &str| format!("a = {}{}", open.repeat(100_000), close.repeat(100_000));
    assert!(!parses(&deep("[", "]")));
    assert!(!parses(&deep("[", "")));
    assert!(!parses(&deep("{a=", "}")));
    assert!(!parses(&format!("{}a = 1", "a.".repeat(100_000))));
    assert!(!parses(&format!("[{}a]", "a.".repeat(100_000))));
    assert!(!parses(&format!("[[{}a]]", "site.".repeat(70))));
    assert!(!parses(&(0..2000).map(|i| format!("[a{}]\n", ".b".repeat(i % 70))).collect::<String>()));
}

#[test]
fn large_texts() {
    assert!(!parses(&" ".repeat(TEXT_BYTES_MAX + 1)));
    assert!(parses(&" ".repeat(TEXT_BYTES_MAX)));
    assert!(parses(&"#\n".repeat(TEXT_BYTES_MAX / 2)));
    assert!(!parses(&format!("{} = 1", "k".repeat(1 << 20))));
    assert!(!parses(&format!("listen = \"{}\"", "9".repeat(1 << 20))));
    assert!(!parses(&format!("limits.head = \"{}\"", "9".repeat(1 << 20))));
    assert!(!parses(&(0..20_000).map(|i| format!("key{i} = 1\n")).collect::<String>()));
    assert!(!parses(&format!("listen = [{}]", "\":80\",".repeat(300))));
    assert!(!parses(&"[[site]]\n".repeat(10_000)));
    assert!(parses(&"[[route]]\nrespond = 200\n".repeat(500)));
}

#[test]
fn a_site_of_ten_thousand_routes() {
    let route = |i: usize| format!("[[route]]\npath = \"/p{i}\"\nfiles = \"d\"\n");
    assert!(parses(&(0..10_000).map(route).collect::<String>()));
}

#[test]
fn odd_texts() {
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
        parses(text);
    }
}

/// A small generator of numbers (SplitMix64): the same seed, the same texts.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).expect("it is below a usize")
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

fn mutated(text: &str, random: &mut Random) -> String {
    let mut text = text.to_owned();
    for _ in 0..=random.below(4) {
        let mut ends = [random.below(text.len() + 1), random.below(text.len() + 1)];
        for end in &mut ends {
            while !text.is_char_boundary(*end) {
                *end -= 1;
            }
        }
        ends.sort_unstable();
        let [start, end] = ends;
        match random.below(4) {
            0 => text.insert_str(start, PIECES[random.below(PIECES.len())]),
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
        if random.below(2) == 0 {
            text.insert_str(start, PIECES[random.below(PIECES.len())]);
        }
    }
    text
}

#[test]
fn mutated_texts() {
    let mut seeds = Vec::new();
    for folder in ["examples", "tests/errors"] {
        for entry in std::fs::read_dir(place(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                seeds.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut random = Random(20_261_121);
    let mut taken = 0;
    for _ in 0..3000 {
        let seed = random.below(seeds.len());
        let text = mutated(&seeds[seed], &mut random);
        taken += usize::from(parses(&text));
    }
    assert!(
        taken > 10,
        "hardly any mutated text is valid any more: they test nothing but the TOML parser ({taken})"
    );
}

#[test]
fn mutated_values() {
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
    let mut random = Random(7);
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
        if let Ok(template) = Template::parse(&text, &Variable::ALL) {
            assert_eq!(Template::parse(&template.to_string(), &Variable::ALL), Ok(template));
        }
    }
}
