//! The project's own commands, run as `cargo xtask COMMAND`.
//!
//! This crate owns the house rules that a machine can check and the comparisons with other servers. It is never
//! needed by the server, and no other crate imports it.

// What a command prints is its product.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod measure;
mod report;
mod bench;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
The project's own commands.

  cargo xtask tidy                    the house rules that a machine can check
  cargo xtask docs                    write the documents that come from the code
  cargo xtask bench files [OPTIONS]   CPU per request, rate and latency of static files, beside nginx, h2o and lighttpd
  cargo xtask bench idle  [OPTIONS]   memory of idle kept-alive connections, and what they cost a busy client
  cargo xtask bench proxy [OPTIONS]   CPU per proxied request, beside nginx, HAProxy and h2o, one thread each
  cargo xtask bench generator         the load generator's own cost and rate, beside wrk and h2load, at 10, 100, 1000 connections
  cargo xtask bench instrument        `komainu bench` held against the known; --rows answers,readings,equals,slower

Options of `bench` (defaults in brackets):
  --rounds N           measurements of each subject and row, in turns [3; generator: 9; comparisons of `instrument`: 100]
  --seconds N          length of one measurement [5]
  --connections N      of the load generator [100]; idle connections, for `bench idle` [15000]
  --threads N          threads or workers of every server [2]
  --only A,B           measure these subjects alone
  --rows A,B           measure these rows alone: 1k, page, 1m
  --binary PATH        our server [target/release/komainu]
  --also NAME=PATH     another build of our server, as one more subject (may be repeated)
  --out FOLDER         where the results go as Markdown and JSON [bench-results]
";

/// The repository: two folders above this crate, which cargo names; else the current folder.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    here.and_then(|here| Some(here.parent()?.parent()?.to_path_buf())).unwrap_or_else(|| PathBuf::from("."))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["tidy"] => tidy::run(&root()),
        ["docs"] => tidy::write_documents(&root()),
        ["bench", "files", options @ ..] => {
            bench::Options::parse(options).and_then(|o| bench::files::run(&o))
        }
        ["bench", "proxy", options @ ..] => {
            bench::Options::parse(options).and_then(|o| bench::proxy::run(&o))
        }
        ["bench", "generator", options @ ..] => {
            bench::Options::parse(options).and_then(|o| bench::generator::run(&o))
        }
        ["bench", "instrument", options @ ..] => {
            bench::Options::parse(options).and_then(|o| bench::instrument::run(&o))
        }
        ["known", port, way] => bench::known::run(port, way),
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
