//! Actions of routes: the handlers of requests.

use crate::conditions::Conditions;
use apps::Mounted;
use files::FileOptions;
use http::{Template, TemplatePart, Variable};
use proxy::options::ProxyOptions;
use proxy::upstream_group::Proxied;
use settings::checker::{Checker, DefinedVariables, InvalidValue, shorten};
use settings::directive_table::{brief, table};
use settings::directives;
use settings::joined_text::ConfigLine;
use settings::node::{Entry, Node};
use settings::shape::{Count, Flag, List, Maybe, Numbers, Text};
use settings::spelling::nearest_name;
use shapes::header;
use shapes::names::parse_cookie_name;
use shapes::template::{TemplateShape, parse_content_template, parse_template};

/// Handler that answers a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Action {
    /// 404 Not Found: only for `Default`, because a route needs an action.
    #[default]
    NotFound,
    /// Files of a folder.
    Files(Box<FileOptions>),
    /// Upstream servers.
    Proxy(Box<ProxyOptions>),
    /// An application.
    App(Box<Mounted>),
    /// A redirect.
    Redirect(Box<Redirect>),
    /// A fixed response.
    Respond(Box<Respond>),
    /// One of several actions, chosen for each request.
    Split(Box<Split>),
    /// A search for another route, with the path that `rewrite` of the route makes.
    RewriteOnly,
}

impl Action {
    /// The directives that are actions: each route has one, or `files` with another one as fallback.
    pub(crate) const ACTION_NAMES: [&str; 8] =
        ["files", "proxy", "app", "redirect", "respond", "cgi", "php", "split"];

    /// Returns the name of the directive.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotFound => "nothing",
            Self::Files(_) => "files",
            Self::Proxy(proxy) if proxy.is_php => "php",
            Self::Proxy(proxy) if proxy.cgi.is_some() => "cgi",
            Self::Proxy(_) => "proxy",
            Self::App(_) => "app",
            Self::Redirect(_) => "redirect",
            Self::Respond(_) => "respond",
            Self::Split(_) => "split",
            Self::RewriteOnly => "rewrite",
        }
    }
}

directives! {
    /// A redirect. A target alone is shorthand for `to`.
    Redirect in "`redirect`" {
        /// The target: a URL, or a path of this site. It may contain `$path`, `$rest` (what the final `*` of the
        /// route's path matched), `$query` (with its `?`; empty if there is none), `$args` (without the `?`), `$uri`
        /// (`$path$query`), `$host`, `$scheme`, the groups of a regular expression in the route's path (`$1`, `$id`) and maps; `$$` is a
        /// dollar sign. Paths and groups are percent-encoded; groups in the host, or behind a `?`, with every byte that could end their
        /// part of the URL.
        "to" to: Template = required(""),
            TemplateShape { what: "a URL or path such as \"https://example.com$path\"", parse: parse_target };
        /// The status: 301 and 308 are permanent, 307 and 308 keep the method.
        "status" status: u16 = 302, Numbers(&[301, 302, 303, 307, 308]);
    }
}

directives! {
    /// A fixed response. A text alone is shorthand for `body`, a number alone for `status`.
    Respond in "`respond`", check respond_agrees {
        /// The status.
        "status" status: u16 = 200, Count { min: 200, max: 599 };
        /// The body. Without one, an error (status 400 or above) has the error page of its status.
        "body" body: String = "", Text { what: "a text", parse: |text| Ok(text.to_owned()) };
        /// The body's media type.
        "type" media_type: String = "text/plain; charset=utf-8",
            Text { what: "a media type such as \"text/html\"", parse: header::parse_media_type };
        /// Whether the body may have the variables of header fields, such as `$path`, `$1` and `$id`; `$$` is a dollar sign. In HTML, XML
        /// and JSON values are escaped.
        "variables" has_variables: bool = false, Flag;
    }
    held {
        /// The body, if it has variables.
        filled: Option<Template>;
    }
}

/// Key that keeps a client on the same branch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SplitBy {
    /// Nothing: each request is drawn.
    Random,
    /// The client's address.
    #[default]
    HashClient,
    /// The value of a header field, whose name is in lower case.
    HashHeader(String),
    /// The value of a cookie.
    HashCookie(String),
    /// A cookie of this name, which the server sets.
    Sticky(String),
}

impl SplitBy {
    const WORDS: [&str; 3] = ["random", "hash:client", "sticky"];

    /// Parses one of the words, `hash:header:NAME`, `hash:cookie:NAME` or `sticky:COOKIE`.
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        let later = |fault: InvalidValue, prefix: &str| match fault.span.clone() {
            Some(at) => fault.within(at.start + prefix.len()..at.end + prefix.len()),
            None => fault,
        };
        for (prefix, make) in [
            ("hash:header:", Self::parse_hash_header as fn(&str) -> Result<Self, InvalidValue>),
            ("hash:cookie:", |name| parse_cookie_name(name).map(Self::HashCookie)),
            ("sticky:", |name| parse_cookie_name(name).map(Self::Sticky)),
        ] {
            if let Some(name) = text.strip_prefix(prefix) {
                return make(name).map_err(|fault| later(fault, prefix));
            }
        }
        Ok(match text {
            "random" => Self::Random,
            "hash:client" => Self::HashClient,
            "sticky" => Self::Sticky(SPLIT_COOKIE.to_owned()),
            _ => {
                let message = match nearest_name(text, Self::WORDS) {
                    Some(word) => format!("did you mean \"{word}\"?"),
                    None => "not one of these".to_owned(),
                };
                return Err(InvalidValue::new(
                    message,
                    "there are \"random\", \"hash:client\", \"hash:header:NAME\", \"hash:cookie:NAME\", \"sticky\" and \
                     \"sticky:COOKIE\"",
                ));
            }
        })
    }

    fn parse_hash_header(name: &str) -> Result<Self, InvalidValue> {
        header::parse_name(name).map(Self::HashHeader)
    }
}

/// The name of the cookie for `"sticky"`.
const SPLIT_COOKIE: &str = "komainu_split";
/// Branches of one split.
const BRANCHES_MAX: usize = 64;

directives! {
    /// A release in parts: requests are split between branches, each with an action of its own. A list is shorthand for `branches`.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/*"
    /// split = [
    ///     { name = "stable", weight = 95, proxy = "http://127.0.0.1:3000" },
    ///     { name = "canary", weight = 5, proxy = "http://127.0.0.1:4000", when = { header = { X-Canary = "yes" } } },
    /// ]
    ///
    /// [[site]]
    /// hosts = "shop.example.com"
    ///
    /// [[site.route]]
    ///
    /// [site.route.split]
    /// by = "sticky:release"
    ///
    /// [[site.route.split.branches]]
    /// name  = "blue"
    /// proxy = { upstream = "blue" }
    ///
    /// [[site.route.split.branches]]
    /// name   = "green"
    /// proxy  = { upstream = "green" }
    /// weight = 0
    ///
    /// [upstreams.blue]
    /// to = "http://127.0.0.1:3001"
    ///
    /// [upstreams.green]
    /// to = "http://127.0.0.1:3002"
    /// ```
    ///
    /// A request goes to the first branch whose `when` it meets. Other requests are distributed by weight:
    /// the branch depends only on the key that `by` names, and on the names and weights of the branches. It
    /// is therefore the same on every thread, on every server, and after a restart. When weights change, no
    /// more clients change their branch than necessary. Splits whose branches have the same names assign
    /// clients alike. The cache of the route keeps the branches apart. The branch is `$branch` in the access
    /// log, and `branch NAME` is the `handler` in metrics. Clients can choose their branch by the fields and
    /// cookies that `when` and `by` name: a split is not an access control.
    Split in "`split`", check split_agrees {
        /// The branches.
        "branches" branches: Vec<Branch> = required(""), List(table::<Branch>());
        /// Key that keeps a client on its branch. `"hash:client"`: the client address. `"hash:header:NAME"`
        /// and `"hash:cookie:NAME"`: the value that the client sends, or its address if it sends none.
        /// `"sticky"` or `"sticky:COOKIE"`: a random number in a cookie that the server sets
        /// (`komainu_split`). `"random"`: none; each request is assigned at random.
        "by" by: SplitBy = "hash:client", Text { what: "what keeps a client on its branch", parse: SplitBy::parse };
    }
    held {
        /// The hidden route of its site that is the first branch; the others follow.
        first_route: usize;
    }
}

directives! {
    /// A branch of a `split`: a name and an action, which is one of those of a route, or `files` with `proxy` or `app`.
    Branch in "a branch of `split`", check branch_agrees {
        /// Name in the access log and in metrics: letters, digits, `-`, `_` and `.`.
        "name" name: String = required(""), Text { what: "the name of a branch", parse: branch_name };
        /// Share of the requests, relative to the weights of the other branches. With 0, a branch gets only
        /// requests that meet its `when`.
        "weight" weight: Option<u32> = absent("1, or 0 with `when`"), Maybe(Count { min: 0, max: 1_000_000 });
        /// Requests that go to this branch whatever its weight.
        "when" when: Option<Conditions> = absent("by weight alone"), Maybe(table());
    }
    held {
        /// The action.
        action: Action;
        /// The action for requests that `files` does not answer.
        otherwise: Option<Action>;
        /// Line where the table begins.
        line: Option<ConfigLine>;
    }
    also {
        /// Action: serves files.
        "files" = brief::<FileOptions>("root") => |branch, files| branch.action = Action::Files(Box::new(files));
        /// Action: forwards requests to upstream servers. With `files`, only requests that no file answers
        /// are forwarded.
        "proxy" = Proxied => |branch, proxy| branch.otherwise = Some(Action::Proxy(Box::new(proxy)));
        /// Action: lets an application answer. Beside `files`, only requests that no file answers.
        "app" = apps::directives::mounted() => |branch, app| branch.otherwise = Some(Action::App(Box::new(app)));
        /// Action: redirects.
        "redirect" = brief::<Redirect>("to") => |branch, to| branch.action = Action::Redirect(Box::new(to));
        /// Action: sends a fixed response.
        "respond" = brief::<Respond>("body").number("status") =>
            |branch, answer| branch.action = Action::Respond(Box::new(answer));
    }
}

impl Branch {
    /// Returns the branch's share of the requests.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight.unwrap_or(u32::from(self.when.is_none()))
    }
}

/// Checks the table of a route or branch: it must have one action, or `files` with a fallback.
pub(crate) fn check_actions(
    action: &mut Action,
    otherwise: &mut Option<Action>,
    what: &str,
    names: &[&str],
    node: &Node,
    check: &mut Checker,
) {
    if matches!(action, Action::NotFound) {
        *action = otherwise.take().unwrap_or_default();
    }
    let actions: Vec<&Entry> = names.iter().filter_map(|name| node.entry(name)).collect();
    match actions.as_slice() {
        [] if check.has_unknown_keys(node) => {} // reported already
        [] => {
            let label = format!("{what} needs one of {}", names.join(", "));
            check.error(&node.span, format!("{what} without an action"), label);
        }
        [php] if php.key == "php" => {
            let finding = check.error(&php.key_span, "`php` without `files`".to_owned(), "which scripts?");
            finding.help("name the folder of the scripts: `files = \"public\"`");
        }
        [_] => {}
        [files, other]
            if files.key == "files" && matches!(other.key.as_str(), "proxy" | "php" | "cgi" | "app") => {}
        [first, more @ ..] => {
            for second in more {
                let title = format!("{what} with two actions");
                let finding = check.error(&second.key_span, title, "a second action");
                finding.related(first.key_span.clone(), "the first action");
                finding.help(if what == "a route" {
                    "write two routes, or remove one"
                } else {
                    "write two branches, or remove one"
                });
            }
        }
    }
}

fn branch_agrees(branch: &mut Branch, node: &Node, check: &mut Checker) {
    branch.line = Some(check.line_of(&node.span));
    // Neither scripts, programs nor further branches.
    let names = &Action::ACTION_NAMES[..Action::ACTION_NAMES.len() - 3];
    check_actions(&mut branch.action, &mut branch.otherwise, "a branch", names, node, check);
}

fn split_agrees(split: &mut Split, node: &Node, check: &mut Checker) {
    let Some(entry) = node.entry("branches") else { return };
    let items = node.items("branches");
    if split.branches.len() != items.len() {
        return; // reported already
    }
    if let Some(item) = items.get(BRANCHES_MAX) {
        check.error(&item.span, format!("more than {BRANCHES_MAX} branches"), "one too many");
    }
    for (index, (branch, item)) in split.branches.iter().zip(items).enumerate() {
        let is_same = |other: &Branch| other.name == branch.name;
        let Some(first) = split.branches[..index].iter().position(is_same) else { continue };
        let title = format!("two branches with the name `{}`", shorten(&branch.name));
        let finding = check.error(&item.span, title, "clients and metrics could not tell them apart");
        finding.related(items[first].span.clone(), "the first one").help("give one another `name`");
    }
    if split.branches.iter().all(|branch| branch.weight() == 0) {
        let title = "a `split` in which no branch has a weight".to_owned();
        let finding = check.error(&entry.value.span, title, "which one is for all other requests?");
        finding.help("give one a `weight`: a branch with `when` has the weight 0 unless it says another one");
    }
}

fn branch_name(text: &str) -> Result<String, InvalidValue> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=32).contains(&text.len()) && text.bytes().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new(
            "this is not the name of a branch",
            "write 1 to 32 letters, digits, `-`, `_` and `.`",
        ))
    }
}

fn respond_agrees(respond: &mut Respond, node: &Node, check: &mut Checker) {
    let bodiless = matches!(respond.status, 204 | 205 | 304);
    if let Some(entry) = node.entry("body").filter(|_| bodiless && !respond.body.is_empty()) {
        let title = format!("a response with status {} has no body", respond.status);
        check
            .error(&entry.value.span, title, "this cannot be sent")
            .help("remove the body, or use another status");
    }
    if let Some(entry) = node.entry("body").filter(|_| respond.has_variables) {
        // Lines may end in it, which a template has no place for.
        match parse_content_template(&respond.body, header::VARIABLES, &check.defined_variables) {
            Ok(template) => respond.filled = Some(template),
            Err(fault) => check.within_directive("body", |check| {
                check.report_fault(&entry.value.span, &respond.body, fault)
            }),
        }
    }
    let body = node.entry("body").map_or(node, |entry| &entry.value);
    let is_named = |name: &&&str| respond.body.contains(&format!("${name}")) && !respond.has_variables;
    if let Some(name) = header::VARIABLES.iter().find(is_named).filter(|_| respond.body.len() < 1024) {
        let title = format!("`${name}` is sent as it stands");
        let finding = check.warning(&body.span, title, "variables of bodies are off");
        finding.help("write `respond = { body = \"…\", variables = true }`");
    }
    let first = respond.body.split(' ').next().unwrap_or_default();
    let is_status = first.len() == 3 && first.bytes().all(|byte| byte.is_ascii_digit());
    let written = node.entry("body").filter(|_| is_status && node.entry("status").is_none());
    if let Some(entry) = written.filter(|_| respond.body.len() < 40) {
        let title = format!("a response with status 200 and the body \"{}\"", respond.body);
        check.warning(&entry.value.span, title, "this is a text").help(match respond.body.split_once(' ') {
            None => format!("the status is written without quotes: {first}"),
            Some((_, text)) => format!("write `respond = {{ status = {first}, body = \"{text}\" }}`"),
        });
    }
}

/// A placeholder of Caddy, `{host}`, which would be sent to clients as it is written: no URL contains braces.
fn placeholder_fault(text: &str) -> Option<InvalidValue> {
    let is_open = |at: &usize| !text[..*at].ends_with('$');
    let start = text.match_indices('{').map(|(at, _)| at).find(is_open)?;
    let end = text[start..].find('}').map_or(text.len(), |end| start + end + 1);
    let name = text[start..end].trim_matches(['{', '}']);
    let here = match name.strip_prefix("http.request.").unwrap_or(name) {
        "host" | "hostport" => "$host",
        "uri" | "orig_uri" => "$uri",
        "path" | "orig_path" => "$path",
        "query" => "$args",
        "scheme" => "$scheme",
        _ => "",
    };
    let remedy = match here {
        "" => "variables are `$host`, `$uri`, `$path`, `$args`, `$scheme`; a brace itself is %7B or %7D"
            .to_owned(),
        here => format!("write `{here}`"),
    };
    Some(
        InvalidValue::new(format!("`{}` is not a variable here", &text[start..end]), remedy)
            .within(start..end),
    )
}

/// The target of a redirect: the characters that a Location field may contain (RFC 9110 section 10.2.2).
fn parse_target(text: &str, defined_variables: &DefinedVariables) -> Result<Template, InvalidValue> {
    const VARIABLES: &[&str] = &["path", "rest", "query", "args", "uri", "host", "scheme", "country"];
    if let Some(fault) = placeholder_fault(text) {
        return Err(fault);
    }
    if let Some((status @ ("301" | "302" | "303" | "307" | "308"), to)) = text.split_once(' ') {
        let to = to.trim().replace("$request_uri", "$uri");
        let remedy = format!("write `redirect = {{ to = \"{}\", status = {status} }}`", shorten(&to));
        return Err(InvalidValue::new("a status before the URL", remedy).within(0..status.len()));
    }
    if let Some((at, wrong)) = text.char_indices().find(|(_, c)| !c.is_ascii_graphic()) {
        let fault = InvalidValue::new(format!("a URL must not contain {wrong:?}"), "percent-encode it");
        return Err(fault.within(at..at + wrong.len_utf8()));
    }
    let template = parse_template(text, VARIABLES, defined_variables)?;
    let start = template.literal_prefix();
    let scheme =
        start.split_once("://").is_some_and(|(scheme, _)| scheme.chars().all(|c| c.is_ascii_alphanumeric()));
    let variable = matches!(
        template.parts().first(),
        Some(TemplatePart::Variable(Variable::Path | Variable::Uri | Variable::Scheme))
    );
    if scheme || variable || start.starts_with('/') {
        return Ok(template);
    }
    Err(InvalidValue::new("neither a URL nor a path", format!("write \"https://{text}\" or \"/{text}\"")))
}
