//! `komainu cache`: statistics of a running server's cache, explanations and purges.

use bench::quantity::{format_bytes, format_thousands};
use bench::table::TextTable;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use failure::Failure;
use serde_json::{Value, json};

use crate::cli::values::parse_process_id;
use crate::cli::{control_client, status};
use crate::terminal;

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Remove stored responses; once it is done, every thread of the server has seen it
    Purge(CachePurgeArguments),
    /// Show what the cache holds, and what became of requests
    Stats(CacheStatsArguments),
    /// Say why the last response for a URL was stored, missed or refused
    Why(CacheWhyArguments),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    komainu cache purge https://example.com/news      this URL, in all its variants\n  \
    komainu cache purge --prefix //example.com/news/  every URL that begins so, by http and https\n  \
    komainu cache purge --soft --tag article-17       make stale what has this tag; it is validated, or used in need\n")]
pub(crate) struct CachePurgeArguments {
    /// URLs: http://HOST/PATH, https://HOST/PATH, or //HOST/PATH for both; in all their variants
    #[arg(value_name = "URL", required_unless_present_any = ["prefix", "tag", "all"])]
    pub(crate) urls: Vec<String>,
    /// Every URL that begins so. May be repeated
    #[arg(long, value_name = "URL")]
    pub(crate) prefix: Vec<String>,
    /// Every response with this tag (Surrogate-Key, xkey, Cache-Tag) or in this group (Cache-Groups). May be repeated
    #[arg(long, value_name = "TAG", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) tag: Vec<String>,
    /// Everything
    #[arg(long, conflicts_with_all = ["urls", "prefix", "tag"])]
    pub(crate) all: bool,
    /// Make responses stale instead of removing them: they can be validated, and used while the origin cannot be reached
    #[arg(long)]
    pub(crate) soft: bool,
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = parse_process_id)]
    pub(crate) pid: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct CacheStatsArguments {
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = parse_process_id)]
    pub(crate) pid: Option<u32>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CacheWhyArguments {
    /// The URL: http://HOST/PATH, https://HOST/PATH, or //HOST/PATH for both
    pub(crate) url: String,
    /// A header field of the request to explain. May be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = parse_process_id)]
    pub(crate) pid: Option<u32>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `komainu cache`; returns the text to print.
///
/// # Errors
/// No server runs, several do and none is named, or the server has no cache or refuses the command.
pub(crate) fn run_cache(command: &CacheCommand) -> Result<String, Failure> {
    match command {
        CacheCommand::Purge(arguments) => purge(arguments),
        CacheCommand::Stats(arguments) => stats(arguments),
        CacheCommand::Why(arguments) => why(arguments),
    }
}

fn purge(arguments: &CachePurgeArguments) -> Result<String, Failure> {
    let pid = status::select_pid(arguments.pid)?;
    let soft = arguments.soft;
    let of = |name: &'static str, texts: &[String]| -> Vec<Value> {
        texts.iter().map(|text| json!({ name: text, "soft": soft })).collect()
    };
    let mut purges =
        [of("url", &arguments.urls), of("prefix", &arguments.prefix), of("tag", &arguments.tag)].concat();
    if arguments.all {
        purges.push(json!({ "all": true, "soft": soft }));
    }
    let mut objects = 0;
    let mut sum = 0;
    let mut servers = Value::Null;
    for purge in purges {
        let answer = control_client::send_command(pid, &format!("cache purge {purge}"))?;
        objects += answer["objects"].as_u64().unwrap_or_default();
        sum += answer["bytes"].as_u64().unwrap_or_default();
        servers = answer["servers"].clone();
    }
    let verb = if soft { "made stale" } else { "purged" };
    let urls = || arguments.urls.iter().chain(&arguments.prefix);
    let hint = if objects == 0 && urls().any(|url| !has_port(url)) {
        "; the port is a part of the host where it is not 80 or 443: //example.com:8443/PATH"
    } else {
        ""
    };
    let set = describe_servers(&servers);
    Ok(format!("{verb}: {} ({}){hint}\n{set}", count_responses(objects), format_bytes(sum as f64)))
}

/// Describes which servers of the set have applied a purge; empty without a set.
fn describe_servers(servers: &Value) -> String {
    let names = |key: &str| -> Vec<&str> {
        servers[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let (applied, missing) = (names("applied"), names("missing"));
    let mut text = String::new();
    if !applied.is_empty() {
        text += &format!("applied by {}\n", applied.join(", "));
    }
    if !missing.is_empty() {
        text += &format!("not yet applied by {}\n", missing.join(", "));
    }
    if let Some(error) = servers["error"].as_str() {
        text += &format!("applied by this server alone: {error}\n");
    }
    text
}

/// Whether a URL contains a port.
fn has_port(url: &str) -> bool {
    let host = url.split_once("//").map_or(url, |(_, rest)| rest).split('/').next().unwrap_or_default();
    host.rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn count_responses(count: u64) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} response{plural}", format_thousands(count as f64))
}

fn stats(arguments: &CacheStatsArguments) -> Result<String, Failure> {
    let answer = control_client::send_command(status::select_pid(arguments.pid)?, "cache stats")?;
    if arguments.json { Ok(format!("{answer:#}\n")) } else { Ok(format_stats(&answer)) }
}

/// Formats the statistics as a table.
fn format_stats(answer: &Value) -> String {
    let of = |key: &str| answer[key].as_u64().unwrap_or_default();
    let mut table = TextTable::new(&["", "", ""]);
    let mut row = |name: &str, value: String, about: &str| {
        table.add_row(vec![name.to_owned(), value, about.to_owned()]);
    };
    let asked = of("hits") + of("stale") + of("misses");
    let share = |part: u64| if asked == 0 { 0.0 } else { 100.0 * part as f64 / asked as f64 };
    for (key, about) in [
        ("hits", "requests answered from the cache"),
        ("stale", "answered with a stale response while it was validated"),
        ("misses", "asked of the origin, or waited for one that was"),
        ("coalesced", "of them waited for another one's response"),
        ("revalidated", "of them got the stored response after all"),
        ("passed", "requests that the cache has no part in"),
        ("stored", "responses stored"),
        ("replaced", "of them replaced by newer ones"),
        ("removed", "of them removed by purges and unsafe requests"),
        ("evicted", "of them left to make room"),
        ("purges", "purges"),
        ("purged", "responses that they removed or made stale"),
    ] {
        row(key, format_thousands(of(key) as f64), about);
    }
    let refused = answer["refused"].as_object().into_iter().flatten();
    for (why, count) in refused.filter(|(_, count)| count.as_u64() != Some(0)) {
        row("refused", format_thousands(count.as_u64().unwrap_or_default() as f64), why);
    }
    let holds = format!(
        "holds {} of {} URLs, {} of {}; responses on their way: {}; {:.1} % of requests were hits\n",
        count_responses(of("objects")),
        format_thousands(of("urls") as f64),
        format_bytes(of("bytes") as f64),
        format_bytes(of("bytes_max") as f64),
        of("fills"),
        share(of("hits") + of("stale")),
    );
    terminal::sanitize(&format!("{holds}{}", table.plain("  ")))
}

fn why(arguments: &CacheWhyArguments) -> Result<String, Failure> {
    let document = json!({ "url": arguments.url, "fields": arguments.header });
    let answer =
        control_client::send_command(status::select_pid(arguments.pid)?, &format!("cache why {document}"))?;
    if arguments.json {
        Ok(format!("{answer:#}\n"))
    } else {
        Ok(terminal::sanitize(&format_explanation(&answer)))
    }
}

/// Explains which responses are stored for a URL, and the outcome of the last one.
fn format_explanation(answer: &Value) -> String {
    let mut lines = vec![answer["url"].as_str().unwrap_or_default().to_owned()];
    let all = answer["responses"].as_array().map_or(&[][..], Vec::as_slice);
    let answers = |one: &&Value| one["answers"].as_bool() == Some(true);
    match all.iter().find(answers) {
        _ if answer["passes"].is_string() => {
            let why = answer["passes"].as_str().unwrap_or_default();
            lines.push(format!("  the request passes the cache: {why}"));
        }
        Some(one) if one["ttl_s"].as_i64() > Some(0) && one["is_validated_always"] != true => {
            lines.push("  the request is a hit".to_owned());
        }
        Some(_) => lines.push("  the request finds a stale response, which has to be validated".to_owned()),
        None if all.is_empty() => lines.push("  the request is a miss: nothing is stored".to_owned()),
        None => lines.push("  the request is a miss: what is stored is for other request fields".to_owned()),
    }
    all.iter().for_each(|one| lines.extend(explain_outcome(one)));
    lines.push(match answer["last"]["outcome"].as_str() {
        Some(outcome) => format!("  the last response, {} s ago: {outcome}", answer["last"]["ago_s"]),
        None => "  of its last response nothing is remembered: none came, or others since".to_owned(),
    });
    let had = |text: &str| answer["last"]["outcome"].as_str() == Some(text);
    if all.is_empty() && had("it was stored") {
        lines.push("  it has left the cache since, to make room".to_owned());
    }
    lines.join("\n") + "\n"
}

fn explain_outcome(one: &Value) -> Vec<String> {
    let number = |key: &str| one[key].as_i64().unwrap_or_default();
    let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
    let mut lines = vec![format!(
        "  stored as {}: status {}, {}, {} s old, {} hits",
        text("key"),
        number("status"),
        format_bytes(number("bytes") as f64),
        number("age_s"),
        number("hits")
    )];
    let why = text("decided_by");
    lines.push(match number("ttl_s") {
        _ if one["is_validated_always"] == true => format!("    validated before each use ({why})"),
        _ if one["is_soft_purged"] == true => "    stale since a soft purge".to_owned(),
        ttl @ 1.. => format!("    fresh for {ttl} s more ({why})"),
        ttl => format!("    stale for {} s ({why})", -ttl),
    });
    for (key, when) in [
        ("while_revalidate_s", "while it is validated"),
        ("if_error_s", "if the origin answers an error"),
        ("if_unreachable_s", "if the origin cannot be reached"),
    ] {
        if number(key) > number("ttl_s").max(0) {
            lines.push(format!("    may be used stale for {} s more {when}", number(key)));
        }
    }
    let varies: Vec<&str> =
        one["varies"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !varies.is_empty() {
        lines.push(format!("    for requests with {}", varies.join("; ")));
    }
    if !text("tags").is_empty() {
        lines.push(format!("    tags: {}", text("tags")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanation_describes_stored_responses() {
        let one = |ttl_s: i64, answers: bool| {
            json!({
                "key": "http://a/", "status": 200, "bytes": 2048, "age_s": 35, "ttl_s": ttl_s, "hits": 3, "answers": answers,
                "decided_by": "Cache-Control: max-age=60", "varies": ["accept-encoding: br"], "tags": "a b",
                "if_unreachable_s": ttl_s + 3600,
            })
        };
        let said = |responses: Value, last: Value| {
            format_explanation(&json!({ "url": "http://a/", "responses": responses, "last": last }))
        };
        let stored = json!({ "outcome": "it was stored", "ago_s": 35 });
        let text = said(json!([one(25, true)]), stored.clone());
        for part in [
            "the request is a hit",
            "status 200, 2.00 KiB, 35 s old, 3 hits",
            "fresh for 25 s more (Cache-Control: max-age=60)",
            "used stale for 3625 s more if the origin cannot be reached",
            "for requests with accept-encoding: br",
            "tags: a b",
            "the last response, 35 s ago: it was stored",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(said(json!([one(-5, true)]), stored.clone()).contains("stale for 5 s"));
        assert!(said(json!([one(25, false)]), stored.clone()).contains("for other request fields"));
        assert!(said(json!([]), stored).contains("to make room"));
        assert!(said(json!([]), Value::Null).contains("nothing is remembered"));
    }

    #[test]
    fn statistics_show_hit_rate_and_refusals() {
        let text = format_stats(&json!({
            "hits": 75, "stale": 5, "misses": 20, "stored": 1234, "objects": 1, "urls": 1, "bytes": 1 << 20, "bytes_max": 64 << 20,
            "refused": { "the response says private": 7, "the response says no-store": 0 },
        }));
        assert!(text.starts_with("holds 1 response of 1 URLs, 1.00 MiB of 64.0 MiB;"), "{text}");
        assert!(text.contains("80.0 % of requests were hits") && text.contains("1,234"), "{text}");
        assert!(text.contains("the response says private") && !text.contains("no-store"), "{text}");
    }
}
