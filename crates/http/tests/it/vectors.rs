//! Feeds every vector whole, byte by byte, and cut in two at every point, and checks the stated outcome each
//! time.

use std::path::Path;

use crate::support::case::{self, Case};
use crate::support::drive::run;

/// Maximum number of cuts of a flood; cases of a few bytes under low limits cover every point of its kind.
const CUTS_MAX: usize = 3000;

fn cases() -> Vec<Case> {
    case::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors"))
}

/// Returns the first way of feeding that does not give the stated outcome, as an error.
fn check(case: &Case) -> Result<(), String> {
    let try_pieces = |how: &str, pieces: &mut dyn Iterator<Item = &[u8]>| {
        case.check(&run(&case.setup, pieces)).map_err(|why| format!("{why}fed {how}\n"))
    };
    try_pieces("whole", &mut [&case.bytes[..]].into_iter())?;
    try_pieces("byte by byte", &mut case.bytes.chunks(1))?;
    for at in (1..case.bytes.len()).step_by(1 + case.bytes.len() / CUTS_MAX) {
        let (first, second) = case.bytes.split_at(at);
        try_pieces(&format!("in two, cut at {at}"), &mut [first, second].into_iter())?;
    }
    Ok(())
}

#[test]
fn every_vector_yields_its_stated_result_however_it_is_split() {
    let cases = cases();
    let failures: Vec<String> = cases.iter().filter_map(|case| check(case).err()).collect();
    assert!(failures.is_empty(), "{} of {} cases\n\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn wrong_expectations_are_detected() {
    let sent = "case one\n> GET /a HTTP/1.1\\r\\n\n> Host: b\\r\\n\n> \\r\\n\n";
    let right = "head GET origin /a HTTP/1.1 host=b keep none\n";
    let expecting = |lines: &str| {
        let cases = case::parse(&format!("{sent}{lines}")).expect("well formed");
        check(&cases[0])
    };
    assert_eq!(expecting(&format!("{right}end\n")), Ok(()));
    assert_eq!(expecting(&format!("{right}field Host: b\nend\n")), Ok(()));
    for wrong in [
        right.to_owned(),
        format!("{right}more\n"),
        format!("{right}end\nleft 1\n"),
        format!("{right}end\n{right}end\n"),
        format!("{right}data x\nend\n"),
        format!("{right}field Host: c\nend\n"),
        format!("{right}field host: b\nend\n"),
        format!("{right}field Host: b\nfield A: b\nend\n"),
        format!("{right}trailer A: b\nend\n"),
        right.replace("GET", "HEAD") + "end\n",
        right.replace("/a", "/b") + "end\n",
        right.replace("host=b", "host=a") + "end\n",
        right.replace("1.1", "1.0") + "end\n",
        right.replace("keep", "close") + "end\n",
        right.replace("none", "chunked") + "end\n",
        "reject 400 HTTP/1.1 without Host\n".to_owned(),
    ] {
        let why = expecting(&wrong).expect_err(&wrong);
        assert!(why.starts_with("case one\n") && why.contains("fed whole"), "{why}");
    }
}

#[test]
fn malformed_vector_files_are_rejected() {
    for (text, why) in [
        ("> x\n", "before the first case"),
        ("case a\nfoo\n", "unknown word"),
        ("case a\n> x\nmore\ncase a\n", "the name is taken"),
        ("case a\n> x\n", "nothing expected"),
        ("case a\nmore\n", "nothing sent"),
        ("case a\n> \\q\n", "unknown escape"),
        ("case a\n> x \n", "white space at the end"),
        ("case a\n> \u{e9}\n", "needs an escape"),
        ("case a\n>*x a\n", "repeats"),
        ("case a\nlimits heads=1\n", "unknown limit"),
        ("case a\nmethod FOO\n", "unknown method"),
    ] {
        let found = case::parse(text).expect_err(text);
        assert!(found.contains(why), "{text:?}: {found}");
    }
}

#[test]
fn every_reject_reason_has_a_vector() {
    let cases = cases();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut missing = Vec::new();
    for module in ["body", "framing", "line", "request", "response", "target"] {
        let text = std::fs::read_to_string(source.join(module).with_extension("rs")).expect("a module");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for place in code.split("Reject::").skip(1) {
            let Some(reason) = place.split(';').next().and_then(|call| call.split('"').nth(1)) else {
                continue;
            };
            let stated = |line: &String| line.starts_with("reject ") && line.ends_with(&format!(" {reason}"));
            if !cases.iter().any(|case| case.expected.iter().any(stated)) {
                missing.push(reason.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "no case for {missing:?}");
}
