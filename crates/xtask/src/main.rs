//! The project's own commands, run as `cargo xtask COMMAND`.
//!
//! This crate owns the house rules that a machine can check and the comparisons with other servers. It is never
//! needed by the server, and no other crate imports it.

// What a command prints is its product.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod measure;
mod report;

use std::process::ExitCode;

const USAGE: &str = "\
The project's own commands.

  cargo xtask bench files [OPTIONS]   CPU per request, rate and latency of static files, beside nginx, h2o and lighttpd
  cargo xtask bench idle  [OPTIONS]   memory of idle kept-alive connections, and what they cost a busy client

Options of `bench` (defaults in brackets):
  --rounds N           measurements of each subject and row, in turns [3]
  --seconds N          length of one measurement [5]
  --connections N      of the load generator [100]; idle connections, for `bench idle` [15000]
  --threads N          threads or workers of every server [2]
  --only A,B           measure these subjects alone
  --rows A,B           measure these rows alone: 1k, page, 1m
  --binary PATH        our server [target/release/komainu]
  --also NAME=PATH     another build of our server, as one more subject (may be repeated)
  --out FOLDER         where the results go as Markdown and JSON [bench-results]
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["bench", "files", options @ ..] => {
            bench::Options::parse(options).and_then(|o| bench::files::run(&o))
        }
        ["bench", "idle", options @ ..] => bench::Options::parse(options).and_then(|o| bench::idle::run(&o)),
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
