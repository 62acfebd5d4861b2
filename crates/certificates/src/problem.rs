//! Problems that directories report (RFC 8555 section 6.7).

use instant_acme::Error;

/// Common prefix of the problem types.
pub(crate) const PROBLEM: &str = "urn:ietf:params:acme:error:";

/// Maximum number of subproblems in a message.
const SUBPROBLEMS_MAX: usize = 10;

/// Returns the type of the problem that a directory reports, without the prefix.
pub(crate) fn problem(error: &Error) -> Option<&str> {
    match error {
        Error::Api(problem) => problem.r#type.as_deref()?.strip_prefix(PROBLEM),
        _ => None,
    }
}

/// Returns a problem as one line of text.
pub(crate) fn describe(problem: &instant_acme::Problem) -> String {
    let name = problem.r#type.as_deref().map(|name| name.strip_prefix(PROBLEM).unwrap_or(name));
    let mut text = match (name, problem.detail.as_deref()) {
        (Some(name), Some(detail)) => format!("{detail} ({name})"),
        (Some(name), None) => name.to_owned(),
        (None, detail) => detail.unwrap_or("the directory did not say why").to_owned(),
    };
    for inner in problem.subproblems.iter().take(SUBPROBLEMS_MAX) {
        text = format!("{text}; {inner}");
    }
    one_line(&text)
}

/// Returns a text of a directory as one line of at most 1,000 characters; control characters are replaced.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1_000).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_formatted_on_one_line() {
        let problem = instant_acme::Problem {
            r#type: Some(format!("{PROBLEM}dns")),
            detail: Some("no\nsuch\x1b[2J name".into()),
            status: Some(400),
            subproblems: Vec::new(),
        };
        assert_eq!(describe(&problem), "no such [2J name (dns)");
    }
}
