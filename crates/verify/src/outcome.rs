//! Result of a comparison: as a table for display, and as JSON for programs.

use std::fmt::Write;

use import::scratch::{Aspect, RequestContent, SourcePosition, VerifyRequest};

/// A difference between the servers.
#[derive(Debug, Clone)]
pub struct ReportedDifference {
    /// Request that was answered differently.
    pub request: VerifyRequest,
    /// Part of the response or upstream request that differs.
    pub aspect: Aspect,
    /// Behaviour of the old server.
    pub old: String,
    /// Behaviour of Komainu.
    pub new: String,
    /// Place in the old configuration that answered, if it is known.
    pub place: Option<SourcePosition>,
    /// Remark of the report that names the difference; `None` if there is none.
    pub remark: Option<String>,
}

/// Result of a comparison.
#[derive(Debug, Clone, Default)]
pub struct Verification {
    /// Number of requests that both servers received.
    pub requests: usize,
    /// Number of requests that were left out because of the limits on number or time.
    pub omitted_requests: usize,
    /// All differences.
    pub differences: Vec<ReportedDifference>,
    /// Parts that are not compared, with reasons.
    pub not_compared: Vec<String>,
}

/// Formats a request in one line.
pub(crate) fn request_line(request: &VerifyRequest) -> String {
    let target: String = request.target.chars().take(80).collect();
    let cut = if target.len() < request.target.len() { "…" } else { "" };
    let mut out = format!("{} {target}{cut}", request.method);
    match &request.host {
        Some(host) => drop(write!(out, " (Host: {host}")),
        None => out.push_str(" (no Host"),
    }
    for (name, value) in &request.fields {
        let _ = write!(out, ", {name}: {value}");
    }
    match &request.content {
        RequestContent::Absent => {}
        RequestContent::Sized(content) => drop(write!(out, ", {} bytes", content.len())),
        RequestContent::Chunked(content) => drop(write!(out, ", {} bytes chunked", content.len())),
    }
    if request.version != "1.1" {
        let _ = write!(out, ", HTTP/{}", request.version);
    }
    out.push(')');
    out
}

fn truncate(text: &str, chars_max: usize) -> String {
    if text.chars().count() > chars_max {
        text.chars().take(chars_max - 1).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}

impl Verification {
    /// Returns the number of differences that no remark of the report names.
    pub fn unexplained_count(&self) -> usize {
        self.differences.iter().filter(|one| one.remark.is_none()).count()
    }

    /// Formats a table: differences of the same kind at the same place are one row, with the first request as
    /// an example.
    pub fn table(&self, old: &str) -> String {
        let mut out = String::new();
        let total = self.differences.len();
        let unnamed = self.unexplained_count();
        let _ = writeln!(out, "Verified beside {old}: {} requests, {total} differences.", self.requests);
        if self.omitted_requests > 0 {
            let _ = writeln!(out, "{} requests were left out (--requests, --time).", self.omitted_requests);
        }
        let parts = [
            (false, format!("\nDifferences that the report does not name ({unnamed}):")),
            (true, format!("\nDifferences that the report names ({}):", total - unnamed)),
        ];
        for (is_named, title) in parts {
            let _ = writeln!(out, "{title}");
            let mut rows: Vec<(&ReportedDifference, usize)> = Vec::new();
            for one in self.differences.iter().filter(|one| one.remark.is_some() == is_named) {
                let is_same = |known: &ReportedDifference| {
                    known.aspect == one.aspect
                        && known.place == one.place
                        && known.remark == one.remark
                        && (is_named
                            || (known.old == one.old && known.new == one.new)
                            || known.request.purpose == one.request.purpose)
                };
                match rows.iter_mut().find(|(known, _)| is_same(known)) {
                    Some((_, count)) => *count += 1,
                    None => rows.push((one, 1)),
                }
            }
            for (one, count) in rows {
                write_row(&mut out, one, count, old);
            }
        }
        let _ = writeln!(out, "\nNot compared:");
        for one in &self.not_compared {
            let _ = writeln!(out, "  - {one}");
        }
        out
    }

    /// Converts the result to JSON.
    pub fn json(&self) -> serde_json::Value {
        let differences = self.differences.iter().map(|one| {
            serde_json::json!({
                "request": {
                    "method": one.request.method,
                    "target": one.request.target,
                    "host": one.request.host,
                    "fields": one.request.fields,
                    "version": one.request.version,
                    "tries": one.request.purpose,
                },
                "differs": one.aspect.to_string(),
                "old": one.old,
                "komainu": one.new,
                "file": one.place.as_ref().map(|place| &place.file),
                "line": one.place.as_ref().map(|place| place.line),
                "named_by": one.remark,
            })
        });
        serde_json::json!({
            "requests": self.requests,
            "left_out": self.omitted_requests,
            "unnamed": self.unexplained_count(),
            "differences": differences.collect::<Vec<_>>(),
            "not_compared": self.not_compared,
        })
    }
}

fn write_row(out: &mut String, one: &ReportedDifference, count: usize, old: &str) {
    let times = if count > 1 { format!(" [and {} more]", count - 1) } else { String::new() };
    let _ = writeln!(out, "  {}{times}", request_line(&one.request));
    let _ = writeln!(out, "      {:<24} {old}: {}", one.aspect.to_string(), truncate(&one.old, 120));
    let _ = writeln!(
        out,
        "      {:<24} {:width$}: {}",
        "",
        "komainu",
        truncate(&one.new, 120),
        width = old.len()
    );
    if let Some(place) = &one.place {
        let _ = writeln!(out, "      at {}:{}: {}", place.file, place.line, place.directive);
    }
    if let Some(named) = &one.remark {
        let _ = writeln!(out, "      named by {named}");
    }
}
