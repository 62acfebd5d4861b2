//! The project's own commands, run as `cargo xtask COMMAND`.
//!
//! This crate owns the checks of the source code (`tidy`) and the checks of `komainu bench` against other
//! load generators and servers of known behaviour. It is never needed by the server, and no other crate
//! imports it.

// Commands print their results.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod markdown;
mod measure;
mod tidy;
mod messages;
mod site;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
The project's own commands.

  cargo xtask tidy                    the house rules that a machine can check
  cargo xtask docs                    write the documents that come from the code
  cargo xtask site FOLDER             write the source of the book (`make site` builds it)
  cargo xtask bench generator    the load generator's own cost and rate, beside wrk and h2load
  cargo xtask bench instrument   `komainu bench` held against the known

Options of `bench` (defaults in brackets); comparisons of servers are labs: `komainu lab`
  --rounds N      rounds of `generator` [20]; comparisons of `instrument` [100 of equals, 10 with a slower one]
  --seconds N     length of one turn of `generator` [1]
  --rows A,B      these alone: 10, 100, 1000 connections; readings, equals, slower
  --binary PATH   our program [target/release/komainu]
  --out FOLDER    where the results go as Markdown and JSON [bench-results]
";

/// Returns the repository's root: two folders above this crate's manifest, or the current folder without
/// cargo.
fn repository_root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    here.and_then(|here| Some(here.parent()?.parent()?.to_path_buf())).unwrap_or_else(|| PathBuf::from("."))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["tidy"] => tidy::run(&repository_root()),
        ["docs"] => tidy::write_documents(&repository_root()),
        ["site", folder] => site::write_book(&repository_root(), Path::new(folder)),
        ["bench", "generator", options @ ..] => {
            measure::MeasureOptions::parse(options).and_then(|o| measure::generator::run(&o))
        }
        ["bench", "instrument", options @ ..] => {
            measure::MeasureOptions::parse(options).and_then(|o| measure::bench_checks::run(&o))
        }
        ["known", port, turns] => measure::known_server::serve_known(port, turns),
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => Err(format!("unknown command `{}`; `cargo xtask help` lists them", other.join(" ")).into()),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
