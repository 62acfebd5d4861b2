//! The tables of another server's directives in its page below `docs/from`.

use std::fmt::Write;

use other_servers::{ForeignDirective, INGRESS_ANNOTATIONS, IngressVerdict, OtherServer, Ours};

/// Marks around the tables, and around the differences.
const MARKS: [(&str, &str); 2] = [
    ("<!-- Tables of crates/other_servers: cargo xtask docs -->\n", "<!-- End of the tables -->\n"),
    ("<!-- Differences of crates/other_servers: cargo xtask docs -->\n", "<!-- End of the differences -->\n"),
];

/// Writes the tables and the differences of a server between the marks in its page.
pub(crate) fn write_tables(page: &str, server: &OtherServer) -> String {
    let [of_tables, of_differences] = MARKS;
    let page = write_between(page, of_tables, &format!("\n{}\n", tables(server)));
    let differences: String = server.differences.iter().map(|one| format!("- {one}\n")).collect();
    if differences.is_empty() { page } else { write_between(&page, of_differences, &differences) }
}

/// Writes the table of ingress-nginx's annotations between the marks in their page.
pub(crate) fn write_annotations(page: &str) -> String {
    let mut text = "\n| Annotation | | Here |\n|---|---|---|\n".to_owned();
    for row in INGRESS_ANNOTATIONS {
        let verdict = match row.verdict {
            IngressVerdict::Done => "done",
            IngressVerdict::Different => "differently",
            IngressVerdict::NotNeeded => "not needed",
            IngressVerdict::Refused => "refused",
        };
        let guards = if row.guards { " †" } else { "" };
        let imported = if row.is_imported { " ‡" } else { "" };
        let _ = writeln!(
            text,
            "| `{}`{guards}{imported} | {verdict} | {} |",
            row.name,
            row.text.replace('|', "\\|")
        );
    }
    text.push('\n');
    write_between(page, MARKS[0], &text)
}

pub(crate) fn write_between(page: &str, (start, end): (&str, &str), text: &str) -> String {
    let (before, rest) = page.split_once(start).unwrap_or((page, ""));
    let (_, after) = rest.split_once(end).unwrap_or(("", rest));
    format!("{before}{start}{text}{end}{after}")
}

fn tables(server: &OtherServer) -> String {
    let mut here = format!("| {} | Komainu |\n|---|---|\n", server.name);
    let mut not_needed = String::new();
    let mut not_there = String::new();
    for directive in server.directives() {
        let (table, text) = match directive.ours {
            Ours::Here(text) => (&mut here, text),
            Ours::NotNeeded(text) => (&mut not_needed, text),
            Ours::NotThere(text) => (&mut not_there, text),
        };
        let _ = writeln!(table, "| {} | {text}{} |", names(directive), link(directive));
    }
    for (title, rows) in [("Not needed", not_needed), ("Not there", not_there)] {
        if !rows.is_empty() {
            let _ = write!(here, "\n{title}:\n\n| {} | |\n|---|---|\n{rows}", server.name);
        }
    }
    here
}

fn names(directive: &ForeignDirective) -> String {
    let name = |name: &&str| match name.strip_prefix('(').and_then(|name| name.strip_suffix(')')) {
        Some(description) => description.to_owned(),
        None => format!("`{name}`"),
    };
    let names: Vec<String> = directive.names.iter().map(name).collect();
    match directive.context {
        "" => names.join(", "),
        context => format!("{} in `{context}`", names.join(", ")),
    }
}

fn link(directive: &ForeignDirective) -> String {
    match directive.page {
        "" => String::new(),
        page => format!(": [{}](../{page})", directive.subject),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_written_between_the_marks() {
        let [(start, end), _] = MARKS;
        let page = format!("# Page\n\n{start}stale\n{end}\nRest.\n");
        let written = write_tables(&page, &other_servers::APACHE);
        assert!(written.starts_with("# Page\n\n") && written.ends_with("\nRest.\n"), "{written}");
        assert!(
            written.contains("| `VirtualHost` | `[[site]]` |") && !written.contains("stale"),
            "{written}"
        );
        assert_eq!(write_tables(&written, &other_servers::APACHE), written);
    }
}
