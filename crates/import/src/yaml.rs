//! Parser of YAML that keeps line numbers.

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, StrInput};

use crate::data::{DEPTH_MAX, Datum, DatumAt, VALUES_MAX};
use crate::findings::ImportError;

/// Parses a YAML file and returns its documents that are not empty.
///
/// # Errors
/// The text is not YAML, is nested too deeply, or has too many values. Values repeated by aliases count each
/// time.
pub(crate) fn documents(file: &str, text: &str) -> Result<Vec<DatumAt>, ImportError> {
    let mut reader =
        YamlReader { file, parser: Parser::new_from_str(text), anchors: Vec::new(), values: 0, line: 1 };
    let mut found = Vec::new();
    loop {
        match reader.next()? {
            Event::StreamEnd => return Ok(found),
            Event::DocumentStart(_) => {
                let first = reader.next()?;
                let value = reader.value(first, 0)?;
                if value.datum != Datum::Null {
                    found.push(value);
                }
                reader.anchors.clear();
            }
            _ => {}
        }
    }
}

struct YamlReader<'a> {
    file: &'a str,
    parser: Parser<'a, StrInput<'a>>,
    /// Anchored values: the anchor's number, the value, and the number of values within it.
    anchors: Vec<(usize, DatumAt, usize)>,
    values: usize,
    line: usize,
}

impl<'a> YamlReader<'a> {
    fn fault(&self, message: &str) -> ImportError {
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
                Err(self.fault(error.info()))
            }
        }
    }

    fn count(&mut self, values: usize) -> Result<(), ImportError> {
        self.values = self.values.saturating_add(values);
        match self.values > VALUES_MAX {
            true => Err(self.fault("it has too many values")),
            false => Ok(()),
        }
    }

    fn value(&mut self, event: Event<'a>, depth: usize) -> Result<DatumAt, ImportError> {
        if depth > DEPTH_MAX {
            return Err(self.fault("it is nested too deeply"));
        }
        self.count(1)?;
        let line = self.line;
        let before = self.values;
        let (anchor, datum) = match event {
            Event::Alias(anchor) => {
                let known = self.anchors.iter().find(|(number, ..)| *number == anchor);
                let Some((_, value, values)) = known else {
                    return Err(self.fault("an alias names itself, or nothing"));
                };
                let (datum, values) = (value.datum.clone(), *values);
                self.count(values)?;
                (0, datum)
            }
            Event::Scalar(text, style, anchor, _) => (anchor, scalar(&text, style)),
            Event::SequenceStart(anchor, _) => (anchor, self.list(depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.table(depth)?),
            _ => return Err(self.fault("a value is missing")),
        };
        let value = DatumAt::new(line, datum);
        if anchor != 0 {
            self.anchors.retain(|(number, ..)| *number != anchor);
            self.anchors.push((anchor, value.clone(), self.values - before + 1));
        }
        Ok(value)
    }

    fn list(&mut self, depth: usize) -> Result<Datum, ImportError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(Datum::List(items)),
                event => items.push(self.value(event, depth + 1)?),
            }
        }
    }

    fn table(&mut self, depth: usize) -> Result<Datum, ImportError> {
        let mut entries: Vec<(String, DatumAt)> = Vec::new();
        let mut merged: Vec<(String, DatumAt)> = Vec::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => break,
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(self.fault("a key is not a text")),
            };
            let event = self.next()?;
            let value = self.value(event, depth + 1)?;
            if key == "<<" {
                for one in value.each() {
                    merged.extend(one.entries().iter().cloned());
                }
                continue;
            }
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(self.fault(&format!("{key:?} stands twice in a table")));
            }
            entries.push((key, value));
        }
        for (key, value) in merged {
            if !entries.iter().any(|(known, _)| *known == key) {
                entries.push((key, value));
            }
        }
        Ok(Datum::Table(entries))
    }
}

/// Parses a scalar by the core schema of YAML 1.2.
fn scalar(text: &str, style: ScalarStyle) -> Datum {
    if !matches!(style, ScalarStyle::Plain) {
        return Datum::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Datum::Null,
        "true" | "True" | "TRUE" => Datum::Flag(true),
        "false" | "False" | "FALSE" => Datum::Flag(false),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'))
            && text.parse::<f64>().is_ok() =>
        {
            Datum::Number(text.to_owned())
        }
        _ => Datum::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read_with_lines() {
        let text = "# x\na: 1\nb:\n  - c: \"true\"\n    d: |\n      x\n      y\n  - ~\n---\n---\ne: &x {f: yes}\ng: *x\nh: {<<: *x, i: false}\n";
        let all = documents("f", text).unwrap();
        assert_eq!(all.len(), 2);
        let items = all[0].get("b").unwrap().items();
        assert_eq!((items[0].get("c").unwrap().text(), items[0].get("c").unwrap().line), (Some("true"), 4));
        assert_eq!(items[0].get("d").unwrap().text(), Some("x\ny\n"));
        assert_eq!(items[1].datum, Datum::Null);
        assert_eq!(all[1].at(&["g", "f"]).unwrap().text(), Some("yes"));
        assert_eq!(all[1].at(&["h", "f"]).unwrap().text(), Some("yes"));
        assert_eq!(all[1].at(&["h", "i"]).unwrap().flag(), Some(false));
    }

    #[test]
    fn what_is_no_yaml_or_too_much_is_refused() {
        let deep = "[".repeat(1000);
        let bomb = (0..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, at| {
            format!("{text}a{}: &a{} [*a{at}, *a{at}]\n", at + 1, at + 1)
        });
        for wrong in
            ["a: [", "a: b: c", "{a: 1, a: 2}", "a: *b", "? [a]\n: b", "a: {{ .Values.x }}", &deep, &bomb]
        {
            let error = documents("f", wrong).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with("f:"), "{error}");
        }
        let error = documents("f", "a: 1\nb: [\n").unwrap_err();
        assert!(error.line >= 2, "{error}");
    }
}
