//! Parser of YAML that keeps line numbers.

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, StrInput};

use crate::data::{DataNode, DataValue, VALUE_DEPTH_MAX, VALUES_MAX};
use crate::findings::ImportError;

/// Parses a YAML file and returns its documents that are not empty.
///
/// # Errors
/// The text is not YAML, is nested too deeply, or has too many values. Values repeated by aliases count each
/// time.
pub(crate) fn parse_documents(file: &str, text: &str) -> Result<Vec<DataNode>, ImportError> {
    let mut reader =
        YamlReader { file, parser: Parser::new_from_str(text), anchors: Vec::new(), values: 0, line: 1 };
    let mut found = Vec::new();
    loop {
        match reader.next()? {
            Event::StreamEnd => return Ok(found),
            Event::DocumentStart(_) => {
                let first = reader.next()?;
                let value = reader.read_value(first, 0)?;
                if value.value != DataValue::Null {
                    found.push(value);
                }
                reader.anchors.clear();
            }
            _ => {}
        }
    }
}

/// Parses a YAML file and returns its documents as JSON.
///
/// # Errors
/// As [`ImportError`] says: the text is not YAML, or too large.
pub fn parse_yaml(file: &str, text: &str) -> Result<Vec<serde_json::Value>, ImportError> {
    parse_documents(file, text).map(|documents| documents.into_iter().map(to_json).collect())
}

fn to_json(node: DataNode) -> serde_json::Value {
    match node.value {
        DataValue::Null => serde_json::Value::Null,
        DataValue::Flag(flag) => flag.into(),
        DataValue::Number(number) => serde_json::from_str(&number).unwrap_or_else(|_| number.into()),
        DataValue::Text(text) => text.into(),
        DataValue::List(items) => items.into_iter().map(to_json).collect(),
        DataValue::Table(entries) => {
            serde_json::Value::Object(entries.into_iter().map(|(key, value)| (key, to_json(value))).collect())
        }
    }
}

struct YamlReader<'a> {
    file: &'a str,
    parser: Parser<'a, StrInput<'a>>,
    /// Anchored values: the anchor's number, the value, and the number of values within it.
    anchors: Vec<(usize, DataNode, usize)>,
    values: usize,
    line: usize,
}

impl<'a> YamlReader<'a> {
    fn error(&self, message: &str) -> ImportError {
        ImportError::new(self.file, self.line, format!("this is not YAML: {message}"))
    }

    fn next(&mut self) -> Result<Event<'a>, ImportError> {
        match self.parser.next_event() {
            None => Ok(Event::StreamEnd),
            Some(Ok((event, span))) => {
                self.line = Marker::line(&span.start);
                Ok(event)
            }
            Some(Err(error)) => {
                self.line = error.marker().line();
                Err(self.error(error.info()))
            }
        }
    }

    fn count_values(&mut self, values: usize) -> Result<(), ImportError> {
        self.values = self.values.saturating_add(values);
        if self.values > VALUES_MAX { Err(self.error("it has too many values")) } else { Ok(()) }
    }

    fn read_value(&mut self, event: Event<'a>, depth: usize) -> Result<DataNode, ImportError> {
        if depth > VALUE_DEPTH_MAX {
            return Err(self.error("it is nested too deeply"));
        }
        self.count_values(1)?;
        let line = self.line;
        let before = self.values;
        let (anchor, datum) = match event {
            Event::Alias(anchor) => {
                let known = self.anchors.iter().find(|(number, ..)| *number == anchor);
                let Some((_, value, values)) = known else {
                    return Err(self.error("an alias names itself, or nothing"));
                };
                let datum = value.value.clone();
                let values = *values;
                self.count_values(values)?;
                (0, datum)
            }
            Event::Scalar(text, style, anchor, _) => (anchor, parse_scalar(&text, style)),
            Event::SequenceStart(anchor, _) => (anchor, self.read_list(depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.read_table(depth)?),
            _ => return Err(self.error("a value is missing")),
        };
        let value = DataNode::new(line, datum);
        if anchor != 0 {
            self.anchors.retain(|(number, ..)| *number != anchor);
            self.anchors.push((anchor, value.clone(), self.values - before + 1));
        }
        Ok(value)
    }

    fn read_list(&mut self, depth: usize) -> Result<DataValue, ImportError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(DataValue::List(items)),
                event => items.push(self.read_value(event, depth + 1)?),
            }
        }
    }

    fn read_table(&mut self, depth: usize) -> Result<DataValue, ImportError> {
        let mut entries: Vec<(String, DataNode)> = Vec::new();
        let mut merged: Vec<(String, DataNode)> = Vec::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => break,
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(self.error("a key is not a text")),
            };
            let event = self.next()?;
            let value = self.read_value(event, depth + 1)?;
            if key == "<<" {
                for one in value.items_or_self() {
                    merged.extend(one.entries().iter().cloned());
                }
                continue;
            }
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(self.error(&format!("{key:?} stands twice in a table")));
            }
            entries.push((key, value));
        }
        for (key, value) in merged {
            if !entries.iter().any(|(known, _)| *known == key) {
                entries.push((key, value));
            }
        }
        Ok(DataValue::Table(entries))
    }
}

/// Parses a scalar by the core schema of YAML 1.2.
fn parse_scalar(text: &str, style: ScalarStyle) -> DataValue {
    if !matches!(style, ScalarStyle::Plain) {
        return DataValue::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => DataValue::Null,
        "true" | "True" | "TRUE" => DataValue::Flag(true),
        "false" | "False" | "FALSE" => DataValue::Flag(false),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'))
            && text.parse::<f64>().is_ok() =>
        {
            DataValue::Number(text.to_owned())
        }
        _ => DataValue::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_parsed_with_line_numbers() {
        let text = "# x\na: 1\nb:\n  - c: \"true\"\n    d: |\n      x\n      y\n  - ~\n---\n---\ne: &x {f: yes}\ng: *x\nh: {<<: *x, i: false}\n";
        let all = parse_documents("f", text).unwrap();
        assert_eq!(all.len(), 2);
        let items = all[0].get("b").unwrap().items();
        assert_eq!((items[0].get("c").unwrap().text(), items[0].get("c").unwrap().line), (Some("true"), 4));
        assert_eq!(items[0].get("d").unwrap().text(), Some("x\ny\n"));
        assert_eq!(items[1].value, DataValue::Null);
        assert_eq!(all[1].at(&["g", "f"]).unwrap().text(), Some("yes"));
        assert_eq!(all[1].at(&["h", "f"]).unwrap().text(), Some("yes"));
        assert_eq!(all[1].at(&["h", "i"]).unwrap().flag(), Some(false));
    }

    #[test]
    fn invalid_or_excessive_yaml_is_rejected() {
        let deep = "[".repeat(1000);
        let bomb = (0..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, at| {
            format!("{text}a{}: &a{} [*a{at}, *a{at}]\n", at + 1, at + 1)
        });
        for wrong in
            ["a: [", "a: b: c", "{a: 1, a: 2}", "a: *b", "? [a]\n: b", "a: {{ .Values.x }}", &deep, &bomb]
        {
            let error = parse_documents("f", wrong).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with("f:"), "{error}");
        }
        let error = parse_documents("f", "a: 1\nb: [\n").unwrap_err();
        assert!(error.line >= 2, "{error}");
    }
}
