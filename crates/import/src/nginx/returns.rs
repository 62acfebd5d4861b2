//! Translation of `return`, and of the named locations that `error_page` assigns to its status.

use super::location_place::{LocationPlace, ServerLocations};
use super::scope::{Scope, TemplateDestination, replace_constants};
use super::translation::{Translation, is_target, make_unavailable, redirect_item};
use super::tree::NginxDirective;
use crate::conditions::close_route;
use crate::draft::{TomlItem, TomlSection};

/// Valid statuses of `respond`.
const STATUSES: std::ops::RangeInclusive<u64> = 200..=599;

impl<'d> Translation<'d> {
    /// Translates `return`, or the named location that `error_page` assigns to its status.
    pub(crate) fn translate_return_or_named(
        &self,
        directive: &NginxDirective,
        (place, locations): (&LocationPlace<'d>, &ServerLocations<'d>),
        section: &mut TomlSection,
    ) {
        if let Some((page, location)) = error_location(directive, place, locations) {
            self.count_taken(page);
            if !self.translate_named_location(location, (place, locations), section) {
                close_route(section, self.ledger.manual_comment(location.entry).unwrap_or_default());
            }
            let inner = locations.server.with_block(location.block_directives());
            self.translate_access(&inner, section);
            self.write_headers(&inner, section);
            return;
        }
        self.translate_return(directive, &place.scope, section);
        self.write_headers(&place.scope, section);
        self.add_manual_comments(place.scope.innermost(), section);
    }

    /// Translates `return`.
    pub(crate) fn translate_return(
        &self,
        directive: &NginxDirective,
        scope: &Scope<'_>,
        section: &mut TomlSection,
    ) {
        let (code, text) = match directive.first_arg().parse::<u64>() {
            Ok(code) => (code, directive.args.get(1).map(String::as_str)),
            Err(_) => (302, Some(directive.first_arg())),
        };
        let is_redirect = matches!(code, 301 | 302 | 303 | 307 | 308);
        match (is_redirect, text) {
            (true, Some(target)) => {
                let Some(to) = self.translate_template(directive, target, scope, TemplateDestination::Target)
                else {
                    make_unavailable(section);
                    return;
                };
                if !is_target(&to) {
                    self.ledger.mark_impossible(
                        directive.entry,
                        "a redirect begins with a scheme or with `/`: write `redirect` with what stands before the variable",
                    );
                    make_unavailable(section);
                    return;
                }
                if target.contains("$http_host") {
                    self.ledger.mark_different(directive.entry, "`$host` is without its port");
                }
                if target.contains("request_uri") && scope.has_rewrites() {
                    self.ledger.mark_different(
                        directive.entry,
                        "`$request_uri` is the path that `rewrite` made, if one did",
                    );
                }
                section.set("redirect", redirect_item(&to, code));
            }
            _ if code == 444 => {
                self.ledger.mark_different(
                    directive.entry,
                    "connections are not closed without an answer: the answer is 404",
                );
                section.set("respond", TomlItem::Number(404));
            }
            (_, None) if STATUSES.contains(&code) => {
                if let Some(kind) = scope.innermost_last("default_type") {
                    self.not_needed(kind, "not needed: the response has no content of its own");
                }
                section.set("respond", TomlItem::Number(code));
            }
            (_, Some(body)) if STATUSES.contains(&code) => {
                let resolved = replace_constants(body, scope, 0);
                let has_variables = resolved.contains('$');
                let body = if has_variables {
                    self.translate_template(directive, body, scope, TemplateDestination::Header)
                } else {
                    Some(resolved)
                };
                let Some(body) = body else {
                    make_unavailable(section);
                    return;
                };
                let has_variables = has_variables && body.contains('$');
                section.set_in("respond", "status", TomlItem::Number(code));
                section.set_in("respond", "body", TomlItem::Text(body));
                let kind = self.take(scope, "default_type").map_or("text/plain", |one| one.first_arg());
                section.set_in("respond", "type", TomlItem::text(kind));
                if has_variables {
                    section.set_in("respond", "variables", TomlItem::Flag(true));
                }
            }
            _ => {
                self.ledger.mark_impossible(directive.entry, "the status is not between 200 and 599");
                make_unavailable(section);
            }
        }
    }
}

/// Returns the `error_page` that assigns the status of a `return` to a named location whose response is sent
/// unchanged (`=`), and the location.
fn error_location<'d>(
    directive: &NginxDirective,
    place: &LocationPlace<'d>,
    locations: &ServerLocations<'d>,
) -> Option<(&'d NginxDirective, &'d NginxDirective)> {
    let is_it = |page: &&NginxDirective| {
        page.args.split_last().is_some_and(|(target, codes)| {
            let is_passed = codes.last().is_some_and(|last| last == "=");
            is_passed && target.starts_with('@') && codes.iter().any(|code| code == directive.first_arg())
        })
    };
    let page = place.scope.effective_all("error_page").into_iter().find(is_it)?;
    Some((page, locations.find_named(page.args.last()?)?))
}
