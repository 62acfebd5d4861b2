//! Parser for the TOML file that takes rows of several experiments into one table: `komainu lab table`.

use std::path::{Path, PathBuf};

use failure::Failure;

use crate::figure::Figure;
use crate::lab::file::{Aim, FileSection, LOAD_SETTINGS, Lab, LabSettings};

/// A table of rows, each of which is one combination of levels of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFile {
    /// Title of the table.
    pub title: String,
    /// Rows, in the order in which they are shown.
    pub rows: Vec<LabRow>,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct LabRow {
    /// Short name, by which `--rows` selects it and results are stored.
    pub name: String,
    /// Title.
    pub title: String,
    /// File of the experiment.
    pub lab: PathBuf,
    /// The level of each factor that the row narrows.
    pub levels: LabSettings,
    /// Settings of the load that differ from the experiment's.
    pub load: LabSettings,
    /// Name of the subject of the row. Peers are all subjects that are not Komainu.
    pub subject: String,
    /// Key of the figure by which the row is judged.
    pub figure: String,
    /// Aims of the row.
    pub aims: Vec<Aim>,
}

impl RowFile {
    /// Parses the text of the file; paths of experiments are relative to `folder`.
    ///
    /// # Errors
    /// Returns the first error, with its line for TOML syntax errors.
    pub fn parse(text: &str, folder: &Path) -> Result<RowFile, Failure> {
        let document = text.parse::<toml_edit::Document<String>>().map_err(Failure::new)?;
        let root = FileSection::root(&document);
        root.reject_unknown_keys(&["title", "row"])?;
        let rows = root.sections("row")?;
        let rows: Vec<LabRow> = rows.iter().map(|row| read_row(row, folder)).collect::<Result<_, _>>()?;
        for (at, row) in rows.iter().enumerate() {
            if rows[..at].iter().any(|other| other.name == row.name) {
                return Err(Failure::new(format!("[[row]] {:?}: two rows have this name", row.name)));
            }
        }
        if rows.is_empty() {
            return Err(Failure::new("there is no [[row]]"));
        }
        Ok(RowFile { title: root.text("title")?.ok_or("title is missing")?, rows })
    }

    /// Keeps the rows whose name contains one of `parts`; all of them if there are no parts.
    ///
    /// # Errors
    /// Fails for a part that is in no name.
    pub fn select(&mut self, parts: &[String]) -> Result<(), Failure> {
        let names: Vec<&str> = self.rows.iter().map(|row| row.name.as_str()).collect();
        if let Some(strange) = parts.iter().find(|part| names.iter().all(|name| !name.contains(*part))) {
            return Err(Failure::new(format!(
                "--rows: no row has a name with {strange:?}; there are {}",
                names.join(", ")
            )));
        }
        self.rows.retain(|row| parts.is_empty() || parts.iter().any(|part| row.name.contains(part)));
        Ok(())
    }
}

impl LabRow {
    /// Checks the row against its experiment.
    ///
    /// # Errors
    /// Fails for a subject, factor or level that the experiment does not have.
    pub fn check(&self, lab: &Lab) -> Result<(), Failure> {
        let at = |what: String| Failure::new(format!("[[row]] {:?}: {what}", self.name));
        let subject = |name: &str| lab.subjects.iter().any(|subject| subject.process.name == name);
        if !subject(&self.subject) {
            return Err(at(format!("{} has no subject {:?}", self.lab.display(), self.subject)));
        }
        for (factor, level) in &self.levels {
            let levels = lab.factors.iter().find(|(name, _)| name == factor).map(|(_, levels)| levels);
            let levels =
                levels.ok_or_else(|| at(format!("{} has no factor {factor:?}", self.lab.display())))?;
            if !levels.contains(level) {
                return Err(at(format!("{factor} has no level {level:?}; there are {}", levels.join(", "))));
            }
        }
        if let Some((factor, _)) =
            lab.factors.iter().find(|(name, levels)| levels.len() > 1 && !self.levels.contains_key(name))
        {
            return Err(at(format!("the level of {factor:?} is missing")));
        }
        Ok(())
    }

    /// Whether both are measured in one run of their experiment.
    #[must_use]
    pub fn shares_run(&self, other: &LabRow) -> bool {
        let factors = |row: &LabRow| row.levels.keys().cloned().collect::<Vec<_>>();
        self.lab == other.lab && self.load == other.load && factors(self) == factors(other)
    }
}

fn read_row(section: &FileSection<'_>, folder: &Path) -> Result<LabRow, Failure> {
    section.reject_unknown_keys(&["name", "title", "lab", "levels", "load", "subject", "figure", "aim"])?;
    let missing = |key: &str| Failure::new(format!("{}: {key} is missing", section.position));
    let name = section.text("name")?.ok_or_else(|| missing("name"))?;
    let section = FileSection { position: format!("[[row]] {name:?}"), table: section.table };
    let figure = section.text("figure")?.unwrap_or_else(|| "cpu".into());
    let known = Figure::find(&figure)
        .ok_or_else(|| Failure::new(format!("{}: there is no figure {figure:?}", section.position)))?;
    let load = section.section("load")?;
    if let Some(load) = &load {
        load.reject_unknown_keys(&LOAD_SETTINGS)?;
    }
    Ok(LabRow {
        title: section.text("title")?.ok_or_else(|| missing("title"))?,
        lab: folder.join(section.text("lab")?.ok_or_else(|| missing("lab"))?),
        levels: section.section("levels")?.map_or(Ok(LabSettings::new()), |levels| levels.settings(&[]))?,
        load: load.map_or(Ok(LabSettings::new()), |load| load.settings(&[]))?,
        subject: section.text("subject")?.unwrap_or_else(|| "Komainu".into()),
        figure: known.key.to_string(),
        aims: section.sections("aim")?.iter().map(FileSection::read_aim).collect::<Result<_, _>>()?,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::file::{BEST, Bound};

    const ROWS: &str = r#"
title = "T"
[[row]]
name = "http2-1k"
title = "HTTP/2"
lab = "labs/http2.toml"
levels = { row = "1 KiB" }
[[row.aim]]
figure = "cpu"
at-most = 0.9
of = "best peer"
[[row]]
name = "http2-36k"
title = "HTTP/2, larger"
lab = "labs/http2.toml"
levels = { row = "36 KB" }
[[row]]
name = "memory"
title = "Memory"
lab = "labs/fresh.toml"
figure = "pss"
load = { connections = 3 }
"#;

    #[test]
    fn rows_are_parsed_and_selected() {
        let mut file = RowFile::parse(ROWS, Path::new("/x")).unwrap();
        assert_eq!(file.rows[0].lab, Path::new("/x/labs/http2.toml"));
        assert_eq!(file.rows[0].aims[0].bound, Bound::AtMost(0.9));
        assert_eq!(file.rows[0].aims[0].of.as_deref(), Some(BEST));
        assert_eq!(
            (file.rows[0].figure.as_str(), file.rows[2].figure.as_str()),
            ("cpu_us_per_request", "pss_bytes")
        );
        assert!(file.rows[0].shares_run(&file.rows[1]) && !file.rows[0].shares_run(&file.rows[2]));
        assert_eq!(file.rows[2].load["connections"], "3");
        let error = file.select(&["http4".into()]).unwrap_err().to_string();
        assert!(
            error.contains("no row has a name with \"http4\"; there are http2-1k, http2-36k, memory"),
            "{error}"
        );
        file.select(&["36k".into(), "mem".into()]).unwrap();
        let names: Vec<&str> = file.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["http2-36k", "memory"]);
    }

    #[test]
    fn errors_of_rows_name_the_mistake() {
        for (change, to, what) in [
            ("name = \"memory\"", "name = \"http2-1k\"", "\"http2-1k\": two rows have this name"),
            ("figure = \"pss\"", "figure = \"psst\"", "[[row]] \"memory\": there is no figure \"psst\""),
            ("connections = 3", "connexions = 3", "connexions"),
            ("title = \"Memory\"", "", "title is missing"),
            ("at-most = 0.9", "", "at-most or at-least"),
        ] {
            assert!(ROWS.contains(change), "{change}");
            let error = RowFile::parse(&ROWS.replace(change, to), Path::new("")).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
    }

    #[test]
    fn the_shipped_rows_fit_the_shipped_labs() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../figures");
        let text = std::fs::read_to_string(folder.join("rows.toml")).unwrap();
        for row in RowFile::parse(&text, &folder).unwrap().rows {
            let lab = Lab::parse(&std::fs::read_to_string(&row.lab).unwrap()).unwrap();
            row.check(&lab).unwrap();
        }
    }
}
