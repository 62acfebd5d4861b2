//! Fields and cookies that a request has more than once: nginx looks at the first one, or at all as one text, and a
//! condition of a route at each of them.

use super::conditions::{IfCondition, condition_words};
use super::location_place::LocationPlace;
use super::rewrite::may_grant;
use super::rewrite_phase::RewritePhase;
use super::translation::Translation;
use super::tree::NginxDirective;
use crate::conditions::RouteCondition;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::escape_literal;

/// Fields that no request has more than once.
const SINGLE_FIELDS: [&str; 4] = ["Host", "Authorization", "Content-Length", "Transfer-Encoding"];
/// The remark on conditions that refuse such requests, and on those that look at each line.
pub(super) const REPEATED_FIELD_REMARK: &str = "requests that have its field or cookie more than once are refused (400): nginx looks at the first one, or at all as one text";
pub(super) const ANY_FIELD_REMARK: &str = "of a field or cookie that a request has more than once, each one counts: nginx looks at the first one, or at all as one text";

impl<'d> Translation<'d> {
    /// Adds routes that refuse requests which have a field or cookie more than once, if an `if` that asks for it could
    /// let in more of them than nginx does: one that lets requests in, or that refuses those without a value.
    pub(crate) fn refuse_repeated_fields(
        &self,
        directive: &'d NginxDirective,
        place: &LocationPlace<'d>,
        conditions: &[IfCondition<'d>],
        phase: &mut RewritePhase,
    ) {
        let inner = place.scope.with_block(directive.block_directives());
        let grants = directive.block_directives().iter().any(|one| may_grant(one, &inner));
        let fields = |only_excluded: bool| {
            let mut names: Vec<String> = Vec::new();
            conditions.iter().for_each(|(condition, _)| condition.add_fields(only_excluded, &mut names));
            names.retain(|name| !SINGLE_FIELDS.iter().any(|single| single.eq_ignore_ascii_case(name)));
            names
        };
        let names = fields(!grants);
        if names.is_empty() {
            if !fields(false).is_empty() {
                self.ledger.mark_different(directive.entry, ANY_FIELD_REMARK);
            }
            return;
        }
        self.ledger.mark_different(directive.entry, REPEATED_FIELD_REMARK);
        let cookie = self.tested_cookie(directive).filter(|_| names.iter().any(|name| name == "Cookie"));
        let repeated = RouteCondition::new("repeated", TomlItem::text_or_list(names));
        let twice = cookie.map(|name| {
            let name = escape_literal(&name);
            let pattern = format!("~ (^|[;,] *)(?i:{name}) *=.*[;,] *(?i:{name}) *=");
            RouteCondition::on_value("header", "Cookie", pattern)
        });
        for condition in std::iter::once(repeated).chain(twice) {
            let mut section: TomlSection = place.paths.to_route();
            condition.write(&mut section);
            section.set("respond", TomlItem::Number(400));
            phase.add_refusal(section);
        }
    }

    /// Returns the name of the cookie that an `if` asks for, itself or by a `map`.
    fn tested_cookie(&self, directive: &NginxDirective) -> Option<String> {
        let words = condition_words(directive);
        let name = words.first()?.trim_matches(['$', '{', '}']);
        let source =
            self.find_map(name).map_or(name, |map| Self::map_source(map).trim_matches(['$', '{', '}']));
        source.strip_prefix("cookie_").map(str::to_owned)
    }
}
