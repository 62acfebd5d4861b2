//! Attribution of a difference between the servers to a remark of the report.

use std::cell::RefCell;
use std::collections::HashMap;

use shapes::pattern::PathPattern;

use super::decided_properties::{DecidedProperty, decided_property};
use super::directives::DIRECTIVES;
use super::driver;
use super::nginx_scratch::NginxScratch;
use super::server::convert_host_regex;
use super::tree::NginxDirective;
use crate::expressions::{path_expression, widen_expression};
use crate::findings::{EntryIndex, ImportRemark, ImportResult, ImportVerdict};
use crate::scratch::{Aspect, DifferingResponses, SourcePosition, VerifyRequest};

/// Processing of a request by nginx, as recorded in its access log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LocatedRequest {
    /// The server and the locations that processed the request; the last one produced the response.
    locations: Vec<EntryIndex>,
    /// The `if` blocks whose condition was true.
    conditions: Vec<EntryIndex>,
}

impl LocatedRequest {
    /// Parses a line of the access log: the number of the request, and its processing. `None` if the request
    /// has no number.
    pub fn parse(line: &str) -> Option<(usize, Self)> {
        let mut parts = line.split('\t');
        let number = parts.next()?.parse().ok()?;
        let place = parts.next().unwrap_or("");
        let conditions = parts.next().unwrap_or("");
        let located = Self {
            locations: place.split(' ').filter_map(|number| number.parse().ok()).collect(),
            conditions: conditions.split(' ').filter_map(|number| number.parse().ok()).collect(),
        };
        Some((number, located))
    }
}

/// Remarks of a translation, with what is asked of them for each difference.
pub struct ExplainingRemarks<'r> {
    imported: &'r ImportResult,
    /// Entries whose remarks may explain a difference.
    explaining: Vec<bool>,
    /// Compiled patterns of locations, and those of the paths that are closed in their place.
    patterns: RefCell<HashMap<(EntryIndex, PatternKind), Option<PathPattern>>>,
}

/// Paths that a pattern of a location matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum PatternKind {
    /// Those of the location.
    Own,
    /// A superset, which is closed if the location cannot be translated.
    Widened,
}

impl<'r> ExplainingRemarks<'r> {
    /// Prepares the remarks of a translation.
    pub fn new(imported: &'r ImportResult) -> Self {
        // Directives that were left out as unused are unused in nginx as well.
        let is_unused = |remark: &ImportRemark| {
            !remark.reasons.is_empty()
                && remark.reasons.iter().all(|reason| reason.contains("so it is left out"))
        };
        let explains =
            |remark: &ImportRemark| remark.verdict != ImportVerdict::Translated && !is_unused(remark);
        let explaining = imported.remarks.iter().map(explains).collect();
        Self { imported, explaining, patterns: RefCell::default() }
    }

    fn get(&self, directive: &NginxDirective) -> Option<&'r ImportRemark> {
        self.imported.remarks.get(directive.entry)
    }

    fn may_explain(&self, directive: &NginxDirective) -> bool {
        self.explaining.get(directive.entry) == Some(&true)
    }

    fn is_impossible(&self, directive: &NginxDirective) -> bool {
        self.get(directive).is_some_and(|remark| remark.verdict == ImportVerdict::Impossible)
    }

    /// Whether the pattern of a location with an expression matches a path.
    fn matches_expression(&self, location: &NginxDirective, kind: PatternKind, path: &str) -> bool {
        let is_caseless = location.first_arg() == "~*";
        let compile = || {
            let pattern = match kind {
                PatternKind::Own => path_expression(location.arg_at(1), is_caseless).ok()?.pattern,
                PatternKind::Widened => widen_expression(location.arg_at(1), is_caseless),
            };
            PathPattern::parse(&pattern).ok()
        };
        let mut patterns = self.patterns.borrow_mut();
        let compiled = patterns.entry((location.entry, kind)).or_insert_with(compile);
        compiled.as_ref().is_some_and(|pattern| pattern.matches(path.as_bytes()))
    }
}

/// Whether Komainu serves routes without a directive of this name, if it cannot be translated.
fn is_harmless(name: &str) -> bool {
    driver::is_harmless(&DIRECTIVES, name)
}

/// Weight of a remark that explains a difference by itself, such as `merge_slashes` for a path with `//`.
const DECISIVE_WEIGHT: u8 = 4;

impl NginxScratch {
    /// Returns the position of the location, or the server, that responded.
    pub fn responding_location(&self, traced: &LocatedRequest) -> Option<SourcePosition> {
        self.source_place(*traced.locations.last()?)
    }

    /// Returns the remark that explains a difference: the remark is about a directive that applies to the
    /// request and determines `aspect`. `differing` are all differences of this request.
    pub fn find_explanation(
        &self,
        remarks: &ExplainingRemarks<'_>,
        traced: &LocatedRequest,
        request: &VerifyRequest,
        aspect: &Aspect,
        (answers, differing): (DifferingResponses<'_>, &[Aspect]),
    ) -> Option<String> {
        let (old, new) = answers.statuses;
        let path = request.target.split('?').next().unwrap_or("");
        let is_opened = matches!(old, 401 | 403) && (200..300).contains(&new);
        let mut chain = Vec::new();
        for entry in &traced.locations {
            let mut blocks = Vec::new();
            find_enclosing_blocks(&self.main, *entry, &mut blocks);
            chain.extend(blocks);
        }
        let counting = self.surrounding_directives(&chain, traced);
        // nginx answers 403 for a directory without an index page, whereas the last argument of `try_files`
        // handles all other paths without a file.
        let leads_to_folder = |one: &&NginxDirective| {
            one.name == "rewrite" && one.arg_at(1).split('?').next().is_some_and(|path| path.ends_with('/'))
        };
        let server = chain.iter().find(|block| block.name == "server");
        let asked = subrequest_directives(server.copied(), chain.last().copied());
        // The server that is asked is a stub, which lets requests in.
        let is_let_in = !asked.is_empty()
            && chain
                .last()
                .is_some_and(|block| block.block_directives().iter().any(|one| one.name == "proxy_pass"))
            && !request.fields.iter().any(|(name, _)| name == "X-Stub");
        let is_of_asked = |one: &NginxDirective| {
            let asked_location = chain.last().into_iter().flat_map(|block| block.block_directives());
            let mut known = asked_location.chain(asked.iter().copied());
            is_let_in && known.any(|known| known.entry == one.entry)
        };
        let may_lack_page = old == 403
            && (normalize_path(path).ends_with('/') || counting.iter().any(leads_to_folder))
            && !refuses_loopback(&chain)
            && !counting.iter().any(|one| may_refuse(one) && !is_of_asked(one));
        let repeats_field = request.fields.iter().enumerate().any(|(at, (name, _))| {
            request.fields[..at].iter().any(|(other, _)| other.eq_ignore_ascii_case(name))
        });
        let is_own = |one: &NginxDirective| match one.name.as_str() {
            // An untranslated `if` closes its paths regardless of the request.
            "if" if remarks.is_impossible(one) => true,
            // An `if` that looks at one line of a field counts for requests with several.
            "if" if repeats_field && is_of_repeated_field(remarks, one) => true,
            // Each use of the variable has a remark of its own.
            "map" | "geo" | "split_clients" | "set" => !remarks.is_impossible(one),
            "location" | "server" | "http" | "if" => {
                chain.iter().any(|block| block.entry == one.entry) || traced.conditions.contains(&one.entry)
            }
            _ => true,
        };
        let mut elsewhere = self.other_directives(remarks, request, path, server.copied());
        // The trace of a rewritten request lacks the location that redirects to the path with the slash.
        if (old, new) == (301, 301) && counting.iter().any(|one| one.name == "rewrite") {
            super::tree::visit(
                server.map(|block| block.block_directives()).unwrap_or_default(),
                &mut |one| {
                    if one.name == "expires" {
                        elsewhere.push(one);
                    }
                },
            );
        }
        let runs_script = chain
            .last()
            .is_some_and(|block| block.block_directives().iter().any(|one| one.name == "fastcgi_pass"));
        // The trace lacks the locations that led to a script: nginx restarts the selection with the path of
        // the script.
        let is_named =
            chain.last().is_some_and(|block| block.name == "location" && block.first_arg().starts_with('@'));
        let led = leading_try_files(server.copied().filter(|_| runs_script || is_named || is_let_in));
        let counting =
            counting.into_iter().filter(|one| is_own(one)).chain(elsewhere).chain(led).chain(asked);
        let remark = |one: &NginxDirective| -> Option<(u8, &ImportRemark)> {
            let remark = remarks.get(one)?;
            if one.name == "merge_slashes" {
                let explains = request.target.contains("//") && remark.verdict != ImportVerdict::Translated;
                return explains.then_some((DECISIVE_WEIGHT, remark));
            }
            if !remarks.may_explain(one) {
                return None;
            }
            // No other remark explains why Komainu accepts what nginx refuses.
            if is_opened
                && !(may_lack_page
                    && [super::files::NO_INDEX_REMARK, super::files::FRONT_FOLDER_REMARK]
                        .iter()
                        .any(|reason| has_reason(remark, reason)))
            {
                return None;
            }
            let decided = property_after_translation(one, remark, new);
            let about_scripts = matches!(one.name.as_str(), "location" | "try_files")
                && remark.verdict == ImportVerdict::Differs
                && remark.reasons.iter().all(|reason| reason.starts_with("a script"));
            if about_scripts && !path.to_ascii_lowercase().contains(".php") {
                return None;
            }
            let is_of_repeated = new == 400 && repeats_field && is_of_repeated_field(remarks, one);
            // nginx redirects to the path with the slash.
            let is_of_folder = old == 301 && !path.ends_with('/') && is_without_index(remark);
            if explains_only_refusals(one, remark)
                && *aspect == Aspect::Status
                && !matches!(new, 403 | 404 | 405 | 501)
                && !is_of_repeated
                && !is_of_folder
            {
                return None;
            }
            let is_of_scripts_alone =
                remark.reasons.iter().all(|reason| reason == super::script_paths::SCRIPTS_ALONE_REMARK);
            if one.name == "fastcgi_pass" && is_of_scripts_alone && new != 403 {
                return None;
            }
            let is_led_to = has_reason(remark, super::files::LEADS_TO_REMARK);
            if is_led_to && one.name == "try_files" && matches!(aspect, Aspect::Field(_)) {
                return Some((DECISIVE_WEIGHT, remark));
            }
            if !is_led_to
                && !has_reason(remark, super::route::LIMIT_EXCEPT_REMARK)
                && !can_explain(one, aspect, answers)
            {
                return None;
            }
            Some((decided.weight(aspect, differing)?, remark))
        };
        let all: Vec<(u8, &ImportRemark)> = counting.filter_map(remark).collect();
        if old == 404 && path.to_ascii_lowercase().ends_with(".php") {
            let is_missing = |reason: &&String| reason.starts_with(super::php::MISSING_SCRIPT_REMARK);
            let named = |(_, found): &(u8, &ImportRemark)| {
                let reason = found.reasons.iter().find(is_missing)?;
                Some(format!("{}:{}: {reason}", found.file, found.line))
            };
            if let Some(named) = all.iter().find_map(named) {
                return Some(named);
            }
        }
        let Some((_, found)) = all.into_iter().max_by_key(|(weight, remark)| (*weight, remark.verdict))
        else {
            return self.default_site_remark(request, server.copied()).filter(|_| !is_opened);
        };
        let about_path_info = path.to_ascii_lowercase().contains(".php/");
        let reason =
            found.reasons.iter().find(|reason| about_path_info && *reason == super::php::PATH_INFO_REMARK);
        let reason = reason.or(found.reasons.first()).map_or("", String::as_str);
        Some(format!("{}:{}: {reason}", found.file, found.line))
    }

    /// Returns the directives in and around these blocks without other servers, and those of the `if` blocks whose
    /// condition was true.
    fn surrounding_directives<'d>(
        &'d self,
        chain: &[&'d NginxDirective],
        traced: &LocatedRequest,
    ) -> Vec<&'d NginxDirective> {
        let mut found = Vec::new();
        for one in &self.main {
            found.push(one);
            if one.name == "http" {
                found.extend(one.block_directives().iter().filter(|inner| inner.name != "server"));
            }
        }
        for block in chain {
            found.push(block);
            found.extend(block.block_directives());
        }
        found.extend(self.true_conditions(traced));
        found
    }

    /// Returns the `if` blocks whose condition was true, with their directives.
    fn true_conditions(&self, traced: &LocatedRequest) -> Vec<&NginxDirective> {
        let mut counting = Vec::new();
        for entry in &traced.conditions {
            let mut inner = Vec::new();
            find_enclosing_blocks(&self.main, *entry, &mut inner);
            if let Some(condition) = inner.last().copied() {
                counting.push(condition);
                counting.extend(condition.block_directives());
            }
        }
        counting
    }

    /// Returns directives that apply to a request although nginx has no trace of them.
    fn other_directives<'d>(
        &'d self,
        remarks: &ExplainingRemarks<'_>,
        request: &VerifyRequest,
        path: &str,
        server: Option<&'d NginxDirective>,
    ) -> Vec<&'d NginxDirective> {
        let all = server.map(NginxDirective::block_directives).unwrap_or_default();
        let path = normalize_path(path);
        // Untranslatable locations are closed with a superset of their paths, and may have no index.
        let mut closed = Vec::new();
        super::tree::visit(all, &mut |one| {
            if one.name != "location" || !remarks.is_impossible(one) {
                return;
            }
            let has_no_index = remarks.get(one).is_some_and(|remark| {
                remark.reasons.iter().any(|reason| reason.contains("folders have no index"))
            });
            let is_of_path = || remarks.matches_expression(one, PatternKind::Widened, &path);
            if has_no_index || one.first_arg().starts_with('~') && is_of_path() {
                closed.push(one);
            }
        });
        // nginx skips the rewrite directives of a location for methods that `limit_except` limits, and when
        // it redirects to the path with the trailing slash.
        let mut untraced = Vec::new();
        super::tree::visit(all, &mut |one| {
            let limits = |inner: &NginxDirective| {
                let is_head = request.method == "HEAD" && inner.args.iter().any(|method| method == "GET");
                inner.name == "limit_except" && !is_head && !inner.args.contains(&request.method)
            };
            if one.name != "location" {
                return;
            }
            let is_slash = one.args.last().is_some_and(|last| *last == format!("{path}/"));
            if is_slash || one.block_directives().iter().any(limits) && may_match(remarks, one, &path) {
                let mut blocks = Vec::new();
                find_enclosing_blocks(all, one.entry, &mut blocks);
                untraced.extend(blocks.iter().flat_map(|block| block.block_directives()));
                untraced.push(one);
            }
        });
        untraced.extend(closed);
        untraced
    }
}

/// Whether an `if` has a remark on fields that a request has more than once.
fn is_of_repeated_field(remarks: &ExplainingRemarks<'_>, directive: &NginxDirective) -> bool {
    use super::repeated_fields::{ANY_FIELD_REMARK, REPEATED_FIELD_REMARK};
    remarks.get(directive).is_some_and(|remark| {
        has_reason(remark, REPEATED_FIELD_REMARK) || has_reason(remark, ANY_FIELD_REMARK)
    })
}

/// Returns what a directive determines, considering its translation. `status` is that of Komainu's response.
fn property_after_translation(
    directive: &NginxDirective,
    remark: &ImportRemark,
    status: u16,
) -> DecidedProperty {
    let is_impossible = remark.verdict == ImportVerdict::Impossible;
    let about_redirects = |reason: &String| reason.contains("redirects") || reason.contains("cookies");
    let is_of_proxy = matches!(directive.name.as_str(), "proxy_pass" | "rewrite" | "upstream");
    if is_of_proxy && remark.verdict == ImportVerdict::Differs && remark.reasons.iter().all(about_redirects) {
        return DecidedProperty::Field("location set-cookie refresh".to_owned());
    }
    if has_reason(remark, super::location::NO_ROOT_REMARK)
        || has_reason(remark, super::sites::NOT_DEFAULT_REMARK)
    {
        return DecidedProperty::Everything;
    }
    if has_reason(remark, super::files::LISTINGS_REMARK) {
        return DecidedProperty::Field("cache-control expires".to_owned());
    }
    if has_reason(remark, super::route::LIMIT_EXCEPT_REMARK) {
        return DecidedProperty::Location;
    }
    // Untranslated directives that may restrict access close all routes to which they apply.
    let closes = is_impossible && (directive.name == "if" || status == 403 && !is_harmless(&directive.name));
    if closes { DecidedProperty::Everything } else { decided_property(directive) }
}

/// Whether the rules that apply in the innermost of these blocks refuse clients with a loopback address, like those of a
/// comparison.
fn refuses_loopback(chain: &[&NginxDirective]) -> bool {
    let rules = |block: &&NginxDirective| -> Vec<(bool, bool)> {
        let all = block.block_directives().iter().filter(|one| matches!(one.name.as_str(), "allow" | "deny"));
        all.map(|one| (one.name == "deny", one.first_arg() == "all" || one.first_arg().starts_with("127.")))
            .collect()
    };
    let innermost = chain.iter().rev().map(rules).find(|rules| !rules.is_empty());
    innermost
        .is_some_and(|rules| rules.into_iter().find(|(_, is_it)| *is_it).is_some_and(|(denies, _)| denies))
}

/// Whether a directive may answer 403 to a request for a directory, with or without an index page.
fn may_refuse(directive: &NginxDirective) -> bool {
    match directive.name.as_str() {
        "limit_except" | "auth_request" | "internal" | "valid_referers" => true,
        "return" => directive.first_arg() == "403",
        _ => false,
    }
}

/// Whether `reason` is one of the reasons of a remark.
fn has_reason(remark: &ImportRemark, reason: &str) -> bool {
    remark.reasons.iter().any(|one| one == reason)
}

/// Whether a remark can only explain refusals, because an untranslated directive closes its routes.
fn explains_only_refusals(directive: &NginxDirective, remark: &ImportRemark) -> bool {
    // `satisfy any` is translated as `all`, which may also ask for a password.
    let is_closed = remark.verdict == ImportVerdict::Impossible
        && directive.name != "satisfy"
        && !is_harmless(&directive.name);
    is_closed || is_without_index(remark)
}

/// Whether a remark says only that the folders of a location have no index pages.
fn is_without_index(remark: &ImportRemark) -> bool {
    !remark.reasons.is_empty() && remark.reasons.iter().all(|reason| reason.contains("folders have no index"))
}

/// Whether a location's own pattern matches a path, regardless of other locations.
fn may_match(remarks: &ExplainingRemarks<'_>, location: &NginxDirective, path: &str) -> bool {
    match location.args.as_slice() {
        [operator, _] if operator.starts_with('~') => {
            remarks.matches_expression(location, PatternKind::Own, path)
        }
        [operator, exact] if operator == "=" => exact == path,
        all => all.last().is_some_and(|prefix| path.starts_with(prefix.as_str())),
    }
}

/// Normalizes a path: decodes percent-encoding, merges slashes and resolves dot segments.
fn normalize_path(path: &str) -> String {
    let mut out: Vec<u8> = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octet = (first == b'%')
            .then(|| u8::from_str_radix(std::str::from_utf8(after.get(..2)?).ok()?, 16).ok())
            .flatten();
        rest = if octet.is_some() { &after[2..] } else { after };
        let byte = octet.unwrap_or(first);
        if !(byte == b'/' && out.last() == Some(&b'/')) {
            out.push(byte);
        }
    }
    let path = String::from_utf8_lossy(&out).into_owned();
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let is_folder = path.ends_with("/.") || path.ends_with("/..");
    format!("/{}{}", segments.join("/"), if is_folder && !segments.is_empty() { "/" } else { "" })
}

/// Whether a name of `server_name` matches a host, in lower case.
fn names_host(name: &str, host: &str) -> bool {
    match name.split_at_checked(1) {
        Some(("~", regex)) => convert_host_regex(regex).may_match(host),
        Some(("*", end)) => host.ends_with(end),
        Some((".", end)) => host == end || host.ends_with(name),
        _ => name.strip_suffix('*').map_or(host == name, |start| host.starts_with(start)),
    }
}

/// Whether a directive can explain a difference with these statuses and values.
fn can_explain(directive: &NginxDirective, aspect: &Aspect, answers: DifferingResponses<'_>) -> bool {
    let DifferingResponses { statuses: (old, new), old: before, new: after } = answers;
    let is_error = |status: u16| status >= 400;
    let either = |is_it: &dyn Fn(u16) -> bool| is_it(old) || is_it(new);
    match (directive.name.as_str(), aspect) {
        (
            "error_page"
            | "recursive_error_pages"
            | "allow"
            | "deny"
            | "satisfy"
            | "limit_except"
            | "internal",
            _,
        ) => either(&is_error),
        // Komainu refuses at least what nginx refuses.
        ("auth_basic" | "auth_basic_user_file" | "auth_jwt", _) => matches!(new, 401 | 403),
        // The default site may ask for client certificates, or reject handshakes.
        ("server_name", _) => is_error(new) || new == 0,
        ("client_max_body_size", _) => either(&|status| status == 413),
        // In Komainu, errors have the field as well, which does not explain why a response lacks it.
        ("add_header", Aspect::Field(name)) if name == "cache-control" => after != "-" || new == 301,
        ("add_header", Aspect::Field(_)) => {
            after != "-" || directive.arg_at(1).contains("$upstream_cache_status")
        }
        ("expires", Aspect::Field(name)) if name == "expires" => after == "-",
        ("expires", Aspect::Field(_)) => after != "-" && before != "-" || is_error(new) || new == 301,
        _ => true,
    }
}

impl NginxScratch {
    /// Returns the general remark on default sites, if there are several listeners and the server responds
    /// only because it is the default of its address.
    fn default_site_remark(
        &self,
        request: &VerifyRequest,
        server: Option<&NginxDirective>,
    ) -> Option<String> {
        let host = request.host.as_deref().unwrap_or("").to_ascii_lowercase();
        let mut names = server?
            .block_directives()
            .iter()
            .filter(|one| one.name == "server_name")
            .flat_map(|one| &one.args);
        let is_named = names.any(|name| names_host(name, &host));
        (self.listeners.iter().any(|one| one.tls) && self.listeners.len() > 1 && !is_named).then(|| {
            "in any case: sites with TLS alone redirect to `https` at other addresses, and sites without TLS are refused at addresses with it".to_owned()
        })
    }

    /// Whether stubs implement the upstream protocol of the location that responded.
    pub fn is_compared(&self, traced: &LocatedRequest) -> bool {
        let Some(entry) = traced.locations.last() else { return true };
        let mut chain = Vec::new();
        find_enclosing_blocks(&self.main, *entry, &mut chain);
        let unknown = ["grpc_pass", "uwsgi_pass", "scgi_pass", "memcached_pass"];
        !chain.last().is_some_and(|block| {
            block.block_directives().iter().any(|one| unknown.contains(&one.name.as_str()))
        })
    }
}

/// Returns the `auth_request` directives of a server that refer to a location: nginx traces only the last
/// location of a request.
fn subrequest_directives<'d>(
    server: Option<&'d NginxDirective>,
    location: Option<&NginxDirective>,
) -> Vec<&'d NginxDirective> {
    let mut found = Vec::new();
    let asked = location.and_then(|location| location.args.last());
    super::tree::visit(server.map(NginxDirective::block_directives).unwrap_or_default(), &mut |one| {
        if one.name == "auth_request" && one.args.last() == asked {
            found.push(one);
        }
    });
    found
}

/// Returns the `try_files` directives of a server that lead to a script or a named location.
fn leading_try_files(server: Option<&NginxDirective>) -> Vec<&NginxDirective> {
    let mut found = Vec::new();
    super::tree::visit(server.map(NginxDirective::block_directives).unwrap_or_default(), &mut |one| {
        let leads = |last: &String| last.starts_with('@') || last.contains(".php");
        if one.name == "try_files" && one.args.last().is_some_and(leads) {
            found.push(one);
        }
    });
    found
}

/// Finds the blocks that enclose a directive, followed by the directive itself. Returns whether it was found.
fn find_enclosing_blocks<'d>(
    block: &'d [NginxDirective],
    entry: EntryIndex,
    found: &mut Vec<&'d NginxDirective>,
) -> bool {
    // Entries are numbered in the order in which they are read, so that those of a block follow its own.
    let after = block.partition_point(|one| one.entry <= entry);
    let nearest = after.checked_sub(1).map(|at| &block[at..after]);
    for one in nearest.into_iter().chain([block]).flatten() {
        found.push(one);
        if one.entry == entry || find_enclosing_blocks(one.block_directives(), entry, found) {
            return true;
        }
        found.pop();
    }
    false
}
