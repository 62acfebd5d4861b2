//! Folder listings as HTML and JSON.

use std::fmt::Write;

use http::coding::weighted_elements;
use http::path::encoded_segment;
use time::{OffsetDateTime, PrimitiveDateTime};

use crate::folder::{FolderItem, FolderItemKind, FolderItems};

/// Format and order of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListingStyle {
    /// Output format.
    pub format: ListingFormat,
    /// Sort key.
    pub sort: SortKey,
    /// Whether the order is reversed.
    pub descending: bool,
}

/// Output format of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ListingFormat {
    Html,
    Json,
}

/// Sort key of a listing; folders always come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SortKey {
    Name,
    Size,
    Time,
}

impl SortKey {
    const ALL: [(SortKey, &'static str, &'static str); 3] = [
        (SortKey::Name, "name", "Name"),
        (SortKey::Size, "size", "Size"),
        (SortKey::Time, "time", "Modified (UTC)"),
    ];
}

impl ListingStyle {
    /// Parses `?format=json&sort=name|size|time&order=asc|desc`; the format may also come from `Accept`.
    /// Unknown values are ignored.
    #[must_use]
    pub fn of(query: Option<&[u8]>, accept: Option<&[u8]>) -> ListingStyle {
        let format =
            if prefers_json(accept.unwrap_or_default()) { ListingFormat::Json } else { ListingFormat::Html };
        let mut style = ListingStyle { format, sort: SortKey::Name, descending: false };
        for pair in query.unwrap_or_default().split(|&byte| byte == b'&') {
            match pair {
                b"format=json" => style.format = ListingFormat::Json,
                b"format=html" => style.format = ListingFormat::Html,
                b"order=desc" => style.descending = true,
                b"order=asc" => style.descending = false,
                _ => {
                    let by = pair.strip_prefix(b"sort=").unwrap_or_default();
                    let known = SortKey::ALL.iter().find(|(_, key, _)| key.as_bytes() == by);
                    style.sort = known.map_or(style.sort, |(sort, ..)| *sort);
                }
            }
        }
        style
    }
}

/// Whether `Accept` gives JSON a greater weight than HTML.
fn prefers_json(accept: &[u8]) -> bool {
    let weight_of = |media: &[u8]| {
        weighted_elements(accept)
            .filter(|(name, _)| name.eq_ignore_ascii_case(media))
            .map(|(_, weight)| weight)
            .max()
    };
    weight_of(b"application/json").unwrap_or(0) > weight_of(b"text/html").unwrap_or(0)
}

/// Sorts the items.
pub fn sort(items: &mut [FolderItem], style: ListingStyle) {
    items.sort_unstable_by(|one, other| {
        let by_name = || one.name.cmp(&other.name);
        let order = match style.sort {
            SortKey::Name => by_name(),
            SortKey::Size => one.kind.cmp(&other.kind).then_with(by_name),
            SortKey::Time => one.modified_s.cmp(&other.modified_s).then_with(by_name),
        };
        let folders_first = is_file(one).cmp(&is_file(other));
        folders_first.then(if style.descending { order.reverse() } else { order })
    });
}

fn is_file(item: &FolderItem) -> bool {
    item.kind != FolderItemKind::Folder
}

/// Returns the listing as JSON: `{"path": …, "truncated": …, "entries": [{"name", "href", "type", "size",
/// "modified"}]}`.
#[must_use]
pub fn json(path: &[u8], folder: &FolderItems) -> String {
    let mut out = String::from("{\"path\":");
    json_string(&mut out, path);
    let _ = write!(out, ",\"truncated\":{},\"entries\":[", folder.is_truncated);
    for (at, item) in folder.items.iter().enumerate() {
        out.push_str(if at == 0 { "\n{\"name\":" } else { ",\n{\"name\":" });
        json_string(&mut out, &item.name);
        out.push_str(",\"href\":\"");
        write_href(&mut out, item);
        out.push_str(match item.kind {
            FolderItemKind::Folder => "\",\"type\":\"folder\"",
            FolderItemKind::File(_) => "\",\"type\":\"file\"",
        });
        if let FolderItemKind::File(bytes) = item.kind {
            let _ = write!(out, ",\"size\":{bytes}");
        }
        let _ = write!(out, ",\"modified\":\"{}Z\"}}", format_time(item.modified_s, 'T', true));
    }
    out.push_str("\n]}\n");
    out
}

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--soft:#888}\
body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1.5rem 1rem}\
h1{font-size:1.15rem;font-weight:600;overflow-wrap:anywhere}\
table{width:100%;border-collapse:collapse}\
th{text-align:left;font-weight:400;font-size:.85rem}\
td,th{padding:.45rem .5rem;border-bottom:1px solid var(--line)}\
td:nth-child(n+2),th:nth-child(n+2){text-align:right;white-space:nowrap;color:var(--soft);\
font-variant-numeric:tabular-nums}\
td:first-child{overflow-wrap:anywhere;width:100%}\
a{text-decoration:none}a:hover{text-decoration:underline}th a{color:var(--soft)}\
.folder{font-weight:600}p{color:var(--soft);font-size:.85rem}\
@media(max-width:34rem){td:nth-child(3),th:nth-child(3){display:none}}";

/// Returns the listing as an HTML page. `path` is the complete path from the client's view, decoded, with a
/// trailing slash.
#[must_use]
pub fn html(path: &[u8], folder: &FolderItems, style: ListingStyle) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n<title>",
    );
    html_text(&mut out, path);
    let _ = write!(out, "</title>\n<style>{STYLE}</style>\n<h1>");
    write_breadcrumbs(&mut out, path);
    out.push_str("</h1>\n<table>\n<tr>");
    for (sort, key, title) in SortKey::ALL {
        let (order, arrow) = match (style.sort == sort, style.descending) {
            (true, false) => ("desc", " ↑"),
            (true, true) => ("asc", " ↓"),
            // For size and time, the largest or newest item is most likely the one wanted.
            (false, _) => (if sort == SortKey::Name { "asc" } else { "desc" }, ""),
        };
        let _ = write!(out, "<th><a href=\"?sort={key}&amp;order={order}\">{title}{arrow}</a>");
    }
    out.push('\n');
    if path.len() > 1 {
        out.push_str("<tr><td><a class=folder href=\"../\">../</a><td><td>\n");
    }
    for item in &folder.items {
        write_row(&mut out, item);
    }
    out.push_str("</table>\n");
    let count = folder.items.len();
    let _ = if folder.is_truncated {
        writeln!(out, "<p>Only {count} entries are shown; there are more.")
    } else if count == 0 {
        writeln!(out, "<p>This folder is empty.")
    } else {
        writeln!(out, "<p>{count} {}", if count == 1 { "entry" } else { "entries" })
    };
    out
}

fn write_row(out: &mut String, item: &FolderItem) {
    let is_folder = item.kind == FolderItemKind::Folder;
    out.push_str(if is_folder { "<tr><td><a class=folder href=\"" } else { "<tr><td><a href=\"" });
    write_href(out, item);
    out.push_str("\">");
    html_text(out, &item.name);
    if is_folder {
        out.push('/');
    }
    out.push_str("</a><td>");
    if let FolderItemKind::File(bytes) = item.kind {
        write_size(out, bytes);
    }
    let _ = writeln!(
        out,
        "<td><time datetime=\"{}Z\">{}</time>",
        format_time(item.modified_s, 'T', true),
        format_time(item.modified_s, ' ', false)
    );
}

/// Writes each folder on the path as a relative link, which is correct under any prefix.
fn write_breadcrumbs(out: &mut String, path: &[u8]) {
    let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        out.push('/');
        return;
    }
    let _ = write!(out, "<a href=\"{}\">/</a>", "../".repeat(names.len()));
    for (at, name) in names.iter().enumerate() {
        let up = names.len() - 1 - at;
        if up == 0 {
            html_text(out, name);
            out.push('/');
        } else {
            let _ = write!(out, "<a href=\"{}\">", "../".repeat(up));
            html_text(out, name);
            out.push_str("</a>/");
        }
    }
}

/// Writes a relative reference to an item. It begins with `./`, because a name may contain a colon.
fn write_href(out: &mut String, item: &FolderItem) {
    out.push_str("./");
    out.push_str(&encoded_segment(&item.name));
    if item.kind == FolderItemKind::Folder {
        out.push('/');
    }
}

fn html_text(out: &mut String, bytes: &[u8]) {
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Control characters and characters that change the text direction are replaced.
            _ if is_deceptive(character) => out.push('\u{fffd}'),
            _ => out.push(character),
        }
    }
}

fn is_deceptive(character: char) -> bool {
    character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn json_string(out: &mut String, bytes: &[u8]) {
    out.push('"');
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\0'..='\x1f' => _ = write!(out, "\\u{:04x}", u32::from(character)),
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// Writes a human-readable size: `17 B`, `1.5 KiB`, `23 MiB`.
fn write_size(out: &mut String, bytes: u64) {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        let _ = write!(out, "{bytes} B");
        return;
    }
    let power = (bytes.ilog2() / 10).min(6);
    let unit = UNITS[power as usize - 1];
    let one = 1u64 << (10 * power);
    let whole = bytes / one;
    let tenths = bytes % one * 10 / one;
    let _ = if whole < 10 { write!(out, "{whole}.{tenths} {unit}") } else { write!(out, "{whole} {unit}") };
}

/// Writes a time as `2026-11-21 09:30`. Times beyond the year 9999 are shown as the last second of that year.
fn format_time(unix_s: i64, between: char, seconds: bool) -> String {
    let earliest = PrimitiveDateTime::MIN.assume_utc();
    let latest = PrimitiveDateTime::MAX.assume_utc();
    let time =
        OffsetDateTime::from_unix_timestamp(unix_s).unwrap_or(if unix_s < 0 { earliest } else { latest });
    let year = time.year();
    let month = u8::from(time.month());
    let day = time.day();
    let mut text = format!("{year:04}-{month:02}-{day:02}{between}{:02}:{:02}", time.hour(), time.minute());
    if seconds {
        let _ = write!(text, ":{:02}", time.second());
    }
    text
}

#[cfg(test)]
mod tests;
