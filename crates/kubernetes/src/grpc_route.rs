//! The rules of GRPCRoutes: those of HTTPRoutes whose paths are methods of services.

use std::borrow::Cow;

use crate::escape;
use crate::http_route::{MatchedPath, MatchedRule, RuleMatch, RuledRoute};
use crate::objects::{GrpcMatch, GrpcMethodMatch, GrpcRoute, GrpcRule, HttpRule, ObjectKey};

/// Returns the rules of a GRPCRoute.
pub(crate) fn grpc_rules<'a>(key: &'a ObjectKey, route: &'a GrpcRoute) -> RuledRoute<'a> {
    let rule = |rule: &'a GrpcRule| {
        let own = HttpRule {
            filters: rule.filters.clone(),
            backend_refs: rule.backend_refs.clone(),
            session_persistence: rule.session_persistence.clone(),
            ..HttpRule::default()
        };
        MatchedRule::new(Cow::Owned(own), rule.matches.iter().map(grpc_match))
    };
    RuledRoute {
        kind: "GRPCRoute",
        key,
        created: &route.metadata.creation_timestamp,
        rules: route.spec.rules.iter().map(rule).collect(),
    }
}

fn grpc_match(one: &GrpcMatch) -> Result<RuleMatch<'_>, String> {
    let path = match &one.method {
        Some(method) => method_path(method)?,
        None => MatchedPath::Prefix("/".to_owned()),
    };
    Ok(RuleMatch { path, headers: &one.headers, query_params: &[], method: None })
}

/// Returns the condition of the path for a method: calls have the path `/SERVICE/METHOD`.
fn method_path(one: &GrpcMethodMatch) -> Result<MatchedPath, String> {
    let part = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (service, method) = (part(&one.service), part(&one.method));
    match one.r#type.as_deref().unwrap_or("Exact") {
        "Exact" => {
            let is_name = |text: &String| !text.contains(['/', '%', '?', '#']);
            if let Some(odd) = service.iter().chain(&method).find(|text| !is_name(text)) {
                return Err(format!("{odd:?} is not the name of a service or method"));
            }
            Ok(match (service, method) {
                (Some(service), Some(method)) => MatchedPath::Exact(format!("/{service}/{method}")),
                (Some(service), None) => MatchedPath::Prefix(format!("/{service}")),
                (None, Some(method)) => {
                    MatchedPath::OfAnyService(format!("/[^/]+/{}", escape::literal_expression(&method)))
                }
                (None, None) => MatchedPath::Prefix("/".to_owned()),
            })
        }
        "RegularExpression" => Ok(match (service, method) {
            (None, None) => MatchedPath::Prefix("/".to_owned()),
            (None, Some(method)) => MatchedPath::OfAnyService(format!("/[^/]+/(?:{method})")),
            (Some(service), method) => {
                let method = method.unwrap_or_else(|| "[^/]+".to_owned());
                MatchedPath::Expression(format!("/(?:{service})/(?:{method})"))
            }
        }),
        other => Err(format!("a match of the method by {other} is not supported")),
    }
}
