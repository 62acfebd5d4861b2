//! Text templates with `{{names}}`.

use std::collections::BTreeMap;

use failure::Failure;

/// Template values by name.
pub type TemplateValues = BTreeMap<String, String>;

/// Returns `text` with every `{{name}}` replaced by its value.
///
/// # Errors
/// Fails for a name without a value.
pub fn fill(text: &str, values: &TemplateValues) -> Result<String, Failure> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        filled.push_str(before);
        let (name, after) = after
            .split_once("}}")
            .ok_or_else(|| Failure::new(format!("a {{{{ is not closed in {text:?}")))?;
        let value = values.get(name.trim()).ok_or_else(|| {
            let known: Vec<&str> = values.keys().map(String::as_str).collect();
            format!("{{{{{name}}}}} stands for nothing; there are {}", known.join(", "))
        })?;
        filled.push_str(value);
        rest = after;
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_and_single_braces_stay() {
        let values = TemplateValues::from([("port".into(), "81".into()), ("a.b".into(), "x".into())]);
        let text = "server { listen {{port}}; } $h->{k} {{ a.b }}";
        assert_eq!(fill(text, &values).unwrap(), "server { listen 81; } $h->{k} x");
        assert!(fill("{{prot}}", &values).unwrap_err().to_string().contains("port"));
        assert!(fill("{{port", &values).unwrap_err().to_string().contains("not closed"));
    }
}
