//! Crawlers: refusal by name and by behaviour, and robots.txt.

use settings::checker::{Checker, InvalidValue};
use settings::directive_table::brief;
use settings::directives;
use settings::node::Node;
use settings::shape::{Count, Flag, Maybe, OneOrMore, Shape, Text, Time, Toggle};
use settings::spelling::nearest_name;
use shapes::network::{SOURCE, TrustedSource};
use shapes::rate::{RATE, Rate};
use std::time::Duration;

/// List of known crawlers, one a line.
const CRAWLER_LIST: &str = include_str!("../data/crawlers.txt");
/// Prefix of a name that is not in the list.
const NAME_PREFIX: &str = "name:";

/// A crawler of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownCrawler {
    /// Group, such as `ai-training`.
    pub group: &'static str,
    /// Product token.
    pub name: &'static str,
    /// Whether the name appears only in robots.txt, never in requests.
    pub is_robots_txt_only: bool,
}

/// The list.
pub fn known_crawlers() -> impl Iterator<Item = KnownCrawler> {
    CRAWLER_LIST.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut words = line.split_whitespace();
        let group = words.next()?;
        let name = words.next()?;
        let plain = name.strip_suffix('*');
        Some(KnownCrawler { group, name: plain.unwrap_or(name), is_robots_txt_only: plain.is_some() })
    })
}

/// `crawlers` of the server or of a site; if absent, the level above applies.
pub fn policy() -> impl Shape<Out = Option<Option<Crawlers>>> {
    Maybe(Toggle { on: None, off: || None, shape: Maybe(brief::<Crawlers>("deny")) })
}

directives! {
    /// Crawlers: which are refused, by name and by behaviour, and the contents of robots.txt. A list of names
    /// is shorthand for `deny`.
    ///
    /// ```toml
    /// [[site]]
    /// hosts    = "example.com"
    /// crawlers = { deny = ["ai-training", "seo"], pages = "120/m", trap = "/do-not-follow" }
    ///
    /// [[site.route]]
    /// proxy = "http://127.0.0.1:3000"
    /// ```
    ///
    /// A name is the product token of a request's `User-Agent` (`GPTBot/1.2` is `GPTBot`), in any case.
    /// Clients can send any name: one with a false name passes `deny`, but `pages` and `trap` apply to it.
    /// `/robots.txt` is answered to all clients.
    Crawlers in "`crawlers`", check crawlers_agree {
        /// Crawlers that get 403: the groups `"ai-training"`, `"ai-search"`, `"ai-user"` and `"seo"`, names of the list
        /// (`crates/admission/data/crawlers.txt` of the source has it, with the source of each name), and `"name:TOKEN"` for others.
        "deny" deny: Vec<String> = absent("none"),
            OneOrMore(Text { what: "a group of crawlers such as \"ai-training\", or a name such as \"GPTBot\"", parse: crawler });
        /// Whether `/robots.txt` is made from `deny`, `disallow` and `trap` if the site has none: no route
        /// for that path alone, and no such file in the folder of its `files` route. An application or
        /// upstream server is not asked.
        "robots" robots: bool = true, Flag;
        /// Paths that robots.txt forbids to all crawlers.
        "disallow" disallow: Vec<String> = absent("none"), OneOrMore(Text { what: "a path such as \"/search\"", parse: robots_path });
        /// A path that robots.txt forbids and that no visitor opens, because links to it are not shown. The
        /// network of a client that requests it gets 403 for `trap_time`. Requests that a page of another
        /// site has made a browser send do not count (`Sec-Fetch-Site`).
        "trap" trap: Option<String> = absent("none"), Maybe(Text { what: "a path such as \"/do-not-follow\"", parse: robots_path });
        /// Time for which a network that requested `trap` gets 403.
        "trap_time" trap_time: Duration = "10m", Time { min: Duration::from_secs(1), max: Duration::from_secs(86_400) };
        /// Rate of different pages per network, such as `"120/m"`; beyond it, requests get 429. A page opened
        /// again in that time is not counted again. Each style sheet, script, image and font that is loaded
        /// gives one page back: browsers load those, crawlers seldom do.
        "pages" pages: Option<Rate> = absent("unlimited"), Maybe(RATE);
        /// Bits of an IPv4 address that are one network.
        "ipv4_prefix" ipv4_prefix: u8 = 24, Count { min: 8, max: 32 };
        /// Bits of an IPv6 address that are one network.
        "ipv6_prefix" ipv6_prefix: u8 = 48, Count { min: 16, max: 128 };
        /// Clients to which none of this applies, by address: networks, addresses and `"unix"`.
        "except" except: Vec<TrustedSource> = absent("none"), OneOrMore(SOURCE);
    }
}

impl Crawlers {
    /// Returns the names that are refused, including those that appear only in robots.txt.
    #[must_use]
    pub fn denied_names(&self) -> Vec<DeniedCrawlerName> {
        let mut names: Vec<DeniedCrawlerName> = Vec::new();
        for item in &self.deny {
            let of_list =
                known_crawlers().filter(|known| known.group == item || known.name.eq_ignore_ascii_case(item));
            names.extend(of_list.map(|known| (known.name.to_owned(), known.is_robots_txt_only)));
            names.extend(item.strip_prefix(NAME_PREFIX).map(|name| (name.to_owned(), false)));
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the contents of robots.txt (RFC 9309).
    #[must_use]
    pub fn robots_text(&self) -> String {
        let mut text = String::new();
        let denied = self.denied_names();
        for (name, _) in &denied {
            text.push_str(&format!("User-agent: {name}\n"));
        }
        if !denied.is_empty() {
            text.push_str("Disallow: /\n\n");
        }
        text.push_str("User-agent: *\n");
        let paths: Vec<&String> = self.disallow.iter().chain(&self.trap).collect();
        for path in &paths {
            text.push_str(&format!("Disallow: {path}\n"));
        }
        if paths.is_empty() {
            text.push_str("Disallow:\n");
        }
        text
    }
}

/// Name of a crawler, and whether it appears only in robots.txt.
pub type DeniedCrawlerName = (String, bool);

fn crawlers_agree(crawlers: &mut Crawlers, node: &Node, check: &mut Checker) {
    if let Some(entry) = node.entry("trap_time").filter(|_| crawlers.trap.is_none()) {
        let finding =
            check.error(&entry.key_span, "`trap_time` without `trap`".to_owned(), "there is no trap");
        finding.help("write `trap = \"/do-not-follow\"`, or remove it");
    }
}

fn crawler(text: &str) -> Result<String, InvalidValue> {
    let is_known = |known: KnownCrawler| known.group == text || known.name.eq_ignore_ascii_case(text);
    let is_token = |name: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (1..=64).contains(&name.len()) && name.bytes().all(fits)
    };
    match text.strip_prefix(NAME_PREFIX) {
        Some(name) if is_token(name) => Ok(text.to_owned()),
        Some(_) => Err(InvalidValue::new(
            "this is not a product token",
            "write 1 to 64 letters, digits, `-`, `_` and `.`, without the version: \"name:GPTBot\"",
        )),
        None if known_crawlers().any(is_known) => Ok(text.to_owned()),
        None => {
            let names = known_crawlers().flat_map(|known| [known.group, known.name]);
            let message = match nearest_name(text, names) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "not a crawler of the list".to_owned(),
            };
            let remedy = "the groups are \"ai-training\", \"ai-search\", \"ai-user\" and \"seo\"; a name that is not in the list is \
                          \"name:TOKEN\"";
            Err(InvalidValue::new(message, remedy))
        }
    }
}

fn robots_path(text: &str) -> Result<String, InvalidValue> {
    if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not a path", "write one that begins with `/`, percent-encoded"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crawler_list_has_sources_groups_and_unique_names() {
        let groups = ["ai-training", "ai-search", "ai-user", "seo"];
        for line in CRAWLER_LIST.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.contains("https://"), "{line} has a source");
        }
        for known in known_crawlers() {
            assert!(groups.contains(&known.group), "{known:?}");
            assert!(
                known_crawlers().filter(|other| other.name.eq_ignore_ascii_case(known.name)).count() == 1,
                "{known:?}"
            );
        }
        assert!(
            groups.iter().all(|group| known_crawlers().filter(|known| known.group == *group).count() >= 5)
        );
    }

    #[test]
    fn robots_txt_lists_denied_crawlers_and_the_trap() {
        let mut crawlers =
            Crawlers { deny: vec!["GPTBot".into(), "name:Mine".into()], ..Crawlers::default() };
        assert_eq!(
            crawlers.robots_text(),
            "User-agent: GPTBot\nUser-agent: Mine\nDisallow: /\n\nUser-agent: *\nDisallow:\n"
        );
        crawlers.deny = vec!["ai-training".into()];
        crawlers.trap = Some("/trap".into());
        let text = crawlers.robots_text();
        assert!(
            text.contains("User-agent: Google-Extended\n")
                && text.ends_with("User-agent: *\nDisallow: /trap\n")
        );
    }

    #[test]
    fn crawler_names_are_validated() {
        for text in ["ai-training", "gptbot", "GPTBot", "name:Own.Bot-2"] {
            assert!(crawler(text).is_ok(), "{text}");
        }
        assert_eq!(crawler("ai-trainng").unwrap_err().message, "did you mean \"ai-training\"?");
        for text in ["", "name:", "name:a b", "name:GPTBot/1.2", "Mozilla"] {
            assert!(crawler(text).is_err(), "{text}");
        }
        assert!(robots_path("/a?b*$").is_ok() && robots_path("a").is_err() && robots_path("/a b").is_err());
    }
}
