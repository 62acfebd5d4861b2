//! Minimal parser for Markdown pages: links, and anchors that links can refer to.

use std::ops::Range;

/// Link in a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageLink {
    /// Range of the text between the brackets.
    pub(crate) text: Range<usize>,
    /// Range of the target between the parentheses.
    pub(crate) target: Range<usize>,
}

/// Returns the links of a page in order, ignoring code.
pub(crate) fn find_links(page: &str) -> Vec<PageLink> {
    let plain = blank_code(page);
    let closed = plain.match_indices("](").filter_map(|(close, _)| {
        let open = plain[..close].rfind('[')? + 1;
        let begin = close + 2;
        let end = begin + plain[begin..].find(')')?;
        Some(PageLink { text: open..close, target: begin..end })
    });
    closed.collect()
}

/// Returns the anchors of a page's headings, as repository browsers and mdBook generate them.
pub(crate) fn heading_anchors(page: &str) -> Vec<String> {
    let plain = blank_fences(page);
    let mut anchors: Vec<String> = Vec::new();
    for heading in plain.lines().filter_map(|line| line.strip_prefix('#')) {
        let name = heading.trim_start_matches('#').trim();
        let kept = name.chars().filter_map(|letter| match letter {
            letter if letter.is_whitespace() => Some('-'),
            letter if letter.is_alphanumeric() || matches!(letter, '-' | '_') => Some(letter),
            _ => None,
        });
        let anchor: String = kept.flat_map(char::to_lowercase).collect();
        let again = (1..).map(|count| format!("{anchor}-{count}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

/// Returns the page with fenced code replaced by spaces, with the same length.
fn blank_fences(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    let mut fence = None::<&str>;
    for line in page.split_inclusive('\n') {
        let mark = line.trim_start();
        let ticks = &mark[..mark.len() - mark.trim_start_matches('`').len()];
        let is_fence = ticks.len() >= 3;
        match fence {
            None if is_fence => fence = Some(ticks),
            Some(open) if is_fence && ticks.len() >= open.len() => fence = None,
            Some(_) => {}
            None => {
                out.push_str(line);
                continue;
            }
        }
        out.extend(line.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
    }
    out
}

/// Returns the page with all code replaced by spaces, with the same length.
fn blank_code(page: &str) -> String {
    let mut bytes = blank_fences(page).into_bytes();
    let ticks = |bytes: &[u8], at: usize| bytes[at..].iter().take_while(|&&byte| byte == b'`').count();
    let mut at = 0;
    while at < bytes.len() {
        let open = ticks(&bytes, at);
        if open == 0 {
            at += 1;
            continue;
        }
        let mut end = at + open;
        // A code span ends with the same number of backticks, within its paragraph.
        let close = loop {
            match ticks(&bytes, end.min(bytes.len())) {
                _ if end >= bytes.len() || bytes[end..].starts_with(b"\n\n") => break None,
                0 => end += 1,
                count if count == open => break Some(end + open),
                count => end += count,
            }
        };
        if let Some(close) = close {
            bytes[at..close].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        }
        at = close.unwrap_or(at + open);
    }
    String::from_utf8(bytes).expect("whole spans are replaced by spaces")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_outside_of_code_are_found() {
        let page = "a [b](c.md#d), [`e`](f)\n```\n[g](h)\n```\n`[i](j)` ``[k]` (l)`` [m\nn](o) é [p](q)\n";
        let found: Vec<(&str, &str)> =
            find_links(page).into_iter().map(|link| (&page[link.text], &page[link.target])).collect();
        assert_eq!(found, [("b", "c.md#d"), ("`e`", "f"), ("m\nn", "o"), ("p", "q")]);
    }

    #[test]
    fn unmatched_backtick_hides_nothing_in_the_next_paragraph() {
        assert_eq!(find_links("a ` b\n\n[c](d) `\n").len(), 1);
    }

    #[test]
    fn headings_become_anchors() {
        let page = "# A `b`: c\n```sh\n# no heading\n```\n## `[limits]`\n### `path`\n### `path`\n## It's Ü\n";
        assert_eq!(heading_anchors(page), ["a-b-c", "limits", "path", "path-1", "its-ü"]);
    }
}
