//! Parser for the TOML file that describes an experiment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use failure::Failure;
use toml_edit::{Item, TableLike, Value};

use crate::figure::Figure;

/// Description of an experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lab {
    /// Title of the experiment.
    pub title: String,
    /// Question that the experiment answers, or result that it reproduces; shown above the results.
    pub about: String,
    /// Name of the subject that others are compared with, at the same levels of the factors.
    pub baseline: Option<String>,
    /// Load on every subject: the settings of `komainu bench`, as text that may contain `{{names}}`.
    pub load: LabSettings,
    /// Load settings that differ in the short form.
    pub short_load: LabSettings,
    /// Factors and their levels, in order.
    pub factors: Vec<(String, Vec<String>)>,
    /// Levels in the short form, for the factors that it narrows.
    pub short_factors: Vec<(String, Vec<String>)>,
    /// Template values that depend on a factor: factor, level, name, value.
    pub vary: BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>,
    /// Files that are written to the folder of every subject.
    pub files: BTreeMap<String, String>,
    /// Commands that run once in the experiment's folder before any process is started (certificates and the
    /// like).
    pub prepare: Vec<String>,
    /// Processes that subjects need.
    pub services: Vec<LabProcess>,
    /// Subjects of the measurement.
    pub subjects: Vec<LabSubject>,
    /// Aims that the Komainu subjects are checked against.
    pub aims: Vec<Aim>,
}

/// An aim: a bound on a figure of the Komainu subjects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aim {
    /// Key of the figure.
    pub figure: String,
    /// Bound, as an absolute value or as a multiple.
    pub bound: Bound,
    /// Subject whose figure is multiplied by the bound, or [`BEST`]; `None` if the bound is an absolute
    /// value.
    pub of: Option<String>,
    /// Levels that the aim applies to; all levels of a factor that is not listed.
    pub when: BTreeMap<String, Vec<String>>,
}

/// Upper or lower bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The figure must not be above this value.
    AtMost(f64),
    /// The figure must not be below this value.
    AtLeast(f64),
}

impl Default for Bound {
    fn default() -> Bound {
        Bound::AtMost(0.0)
    }
}

/// Placeholder for the other subject with the best figure at the same levels.
pub const BEST: &str = "best peer";

/// Figures of a cell that do not come from a run: key and heading.
pub const EXTRA_FIGURES: [(&str, &str); 4] = [
    ("processes", "processes"),
    ("bytes_per_idle_connection", "idle connection"),
    ("requests_per_s_without_idle", "requests/s without them"),
    ("rate_kept_share", "rate kept"),
];

/// Settings by name, as text.
pub type LabSettings = BTreeMap<String, String>;

/// Process that the lab starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabProcess {
    /// Name, by which other processes refer to the port and socket.
    pub name: String,
    /// Shell command that starts the process, run in the folder of the process.
    pub run: String,
    /// Required programs or files, each with the package that contains it.
    pub needs: Vec<(String, String)>,
    /// Shell command that prints the version.
    pub version: Option<String>,
    /// Condition that tells when the process is ready.
    pub ready: ReadyCondition,
    /// Files that are written to the folder of the process.
    pub files: BTreeMap<String, String>,
}

/// Condition that tells when a process is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadyCondition {
    /// The TCP port accepts connections.
    #[default]
    Port,
    /// The Unix socket accepts connections.
    Socket,
}

/// Subject of the measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabSubject {
    /// Process of the subject.
    pub process: LabProcess,
    /// Services that are started before the subject.
    pub required_services: Vec<String>,
    /// URL that the load is sent to.
    pub url: String,
    /// Levels at which the subject is measured; all levels of a factor that is not listed.
    pub when: BTreeMap<String, Vec<String>>,
    /// Expected status of the responses.
    pub status: u16,
    /// Expected content length, if it is known; text that may contain `{{names}}`.
    pub bytes: Option<String>,
    /// Names of the processes whose CPU time and memory are measured; empty for all that were started.
    pub measure: Vec<String>,
    /// Load settings that differ for this subject.
    pub load: LabSettings,
    /// Reason why the subject is not measured.
    pub skip: Option<String>,
    /// Whether the subject is Komainu: highlighted in charts and checked against the aims.
    pub is_komainu: bool,
    /// Path of the Komainu build, if it is not the one that runs the experiment.
    pub komainu: Option<PathBuf>,
    /// Programs that the subject runs instead of the installed ones, by name; see [`crate::lab::peers`].
    pub programs: Vec<(String, PathBuf)>,
    /// Whether the subject is shown beside the others but is neither Komainu nor a peer: a floor, another way to serve.
    pub is_reference: bool,
    /// Shell command that must succeed for the subject to be measured.
    pub condition: Option<String>,
}

impl LabSubject {
    /// Whether Komainu is compared with the subject.
    #[must_use]
    pub fn is_peer(&self) -> bool {
        !self.is_komainu && !self.is_reference
    }
}

/// Names of the settings that a load may have.
pub(crate) const LOAD_SETTINGS: [&str; 20] = [
    "connections",
    "duration",
    "warm-up",
    "repetitions",
    "keep-alive",
    "resumption",
    "tls-version",
    "groups",
    "http",
    "rate",
    "pipeline",
    "streams",
    "threads",
    "timeout",
    "method",
    "body",
    "cooldown",
    "seed",
    "idle",
    "cores",
];

impl Lab {
    /// Parses the text of the file.
    ///
    /// # Errors
    /// Returns the first error, with its line for TOML syntax errors.
    pub fn parse(text: &str) -> Result<Lab, Failure> {
        let document = text.parse::<toml_edit::Document<String>>().map_err(Failure::new)?;
        let root = FileSection::root(&document);
        root.reject_unknown_keys(&[
            "title", "about", "baseline", "load", "short", "factors", "vary", "files", "prepare", "service",
            "subject", "aim",
        ])?;
        let short = root.section("short")?;
        if let Some(short) = &short {
            short.reject_unknown_keys(&[&LOAD_SETTINGS[..], &["factors"]].concat())?;
        }
        let lab = Lab {
            title: root.text("title")?.ok_or("title is missing")?,
            about: root.text("about")?.unwrap_or_default(),
            baseline: root.text("baseline")?,
            load: root.load("load")?,
            short_load: match &short {
                Some(short) => short.settings(&["factors"])?,
                None => LabSettings::new(),
            },
            factors: root.levels("factors")?,
            short_factors: short.as_ref().map_or(Ok(Vec::new()), |short| short.levels("factors"))?,
            vary: root.vary()?,
            files: root.section("files")?.map_or(Ok(LabSettings::new()), |files| files.settings(&[]))?,
            prepare: root.text_list("prepare")?,
            services: root.sections("service")?.iter().map(FileSection::process).collect::<Result<_, _>>()?,
            subjects: root.sections("subject")?.iter().map(FileSection::subject).collect::<Result<_, _>>()?,
            aims: root.sections("aim")?.iter().map(FileSection::read_aim).collect::<Result<_, _>>()?,
        };
        lab.check()?;
        Ok(lab)
    }

    fn check(&self) -> Result<(), Failure> {
        if self.subjects.is_empty() {
            return Err(Failure::new("there is no [[subject]]"));
        }
        let factor =
            |name: &str| self.factors.iter().find(|(other, _)| other == name).map(|(_, levels)| levels);
        for (name, levels) in &self.short_factors {
            let known = factor(name)
                .ok_or_else(|| Failure::new(format!("short.factors: there is no factor {name:?}")))?;
            if let Some(strange) = levels.iter().find(|level| !known.contains(level)) {
                return Err(Failure::new(format!("short.factors: {name} has no level {strange:?}")));
            }
        }
        for (name, levels) in &self.vary {
            let known =
                factor(name).ok_or_else(|| Failure::new(format!("vary: there is no factor {name:?}")))?;
            if let Some(missing) = known.iter().find(|level| !levels.contains_key(*level)) {
                return Err(Failure::new(format!("vary.{name}: level {missing:?} is missing")));
            }
        }
        for subject in &self.subjects {
            let name = &subject.process.name;
            self.check_levels(&format!("subject {name:?}"), &subject.when)?;
            let services = || self.services.iter().map(|service| &service.name);
            if let Some(strange) =
                subject.required_services.iter().find(|with| services().all(|service| service != *with))
            {
                return Err(Failure::new(format!("subject {name:?}: there is no service {strange:?}")));
            }
        }
        let known =
            |name: &String| name == BEST || self.subjects.iter().any(|subject| subject.process.name == *name);
        if let Some(strange) = self.baseline.as_ref().filter(|name| !known(name)) {
            return Err(Failure::new(format!("baseline: there is no subject {strange:?}")));
        }
        for aim in &self.aims {
            if let Some(strange) = aim.of.as_ref().filter(|name| !known(name)) {
                return Err(Failure::new(format!("aim: there is no subject {strange:?}")));
            }
            self.check_levels("aim", &aim.when)?;
        }
        Ok(())
    }

    /// Rejects unknown factors and levels.
    fn check_levels(&self, at: &str, when: &BTreeMap<String, Vec<String>>) -> Result<(), Failure> {
        for (of, levels) in when {
            let known = self.factors.iter().find(|(name, _)| name == of);
            let (_, known) = known.ok_or_else(|| Failure::new(format!("{at}: there is no factor {of:?}")))?;
            if let Some(strange) = levels.iter().find(|level| !known.contains(level)) {
                return Err(Failure::new(format!("{at}: {of} has no level {strange:?}")));
            }
        }
        Ok(())
    }
}

/// A table of a file, and its position.
pub(crate) struct FileSection<'t> {
    pub(crate) position: String,
    pub(crate) table: &'t dyn TableLike,
}

impl<'t> FileSection<'t> {
    /// Returns the whole file.
    pub(crate) fn root(document: &'t toml_edit::Document<String>) -> FileSection<'t> {
        FileSection { position: "the file".into(), table: document.as_table() }
    }

    /// Rejects unknown keys.
    pub(crate) fn reject_unknown_keys(&self, known: &[&str]) -> Result<(), Failure> {
        match self.table.iter().find(|(key, _)| !known.contains(key)) {
            Some((key, _)) => Err(Failure::new(format!(
                "{}: {key:?} means nothing here; there are {}",
                self.position,
                known.join(", ")
            ))),
            None => Ok(()),
        }
    }

    pub(crate) fn section(&self, key: &str) -> Result<Option<FileSection<'t>>, Failure> {
        let Some(item) = self.table.get(key) else { return Ok(None) };
        let table = item.as_table_like().ok_or_else(|| Failure::new(format!("{key} must be a table")))?;
        Ok(Some(FileSection { position: key.to_string(), table }))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<String>, Failure> {
        match self.table.get(key) {
            None => Ok(None),
            Some(item) => item
                .as_value()
                .and_then(scalar_text)
                .map(Some)
                .ok_or_else(|| Failure::new(format!("{}: {key} must be text", self.position))),
        }
    }

    /// Reads a text or a list of texts.
    pub(crate) fn text_list(&self, key: &str) -> Result<Vec<String>, Failure> {
        let Some(item) = self.table.get(key) else { return Ok(Vec::new()) };
        scalar_list(item)
            .ok_or_else(|| Failure::new(format!("{}: {key} must be text or a list of texts", self.position)))
    }

    /// Reads all keys except `except` as texts.
    pub(crate) fn settings(&self, except: &[&str]) -> Result<LabSettings, Failure> {
        let mut settings = LabSettings::new();
        for (key, item) in self.table.iter().filter(|(key, _)| !except.contains(key)) {
            let value = item.as_value().and_then(scalar_text);
            settings.insert(
                key.into(),
                value.ok_or_else(|| {
                    Failure::new(format!("{}: {key} must be text or a number", self.position))
                })?,
            );
        }
        Ok(settings)
    }

    fn load(&self, key: &str) -> Result<LabSettings, Failure> {
        let Some(load) = self.section(key)? else { return Ok(LabSettings::new()) };
        load.reject_unknown_keys(&LOAD_SETTINGS)?;
        load.settings(&[])
    }

    fn levels(&self, key: &str) -> Result<Vec<(String, Vec<String>)>, Failure> {
        let Some(factors) = self.section(key)? else { return Ok(Vec::new()) };
        let each = factors.table.iter().map(|(name, _)| Ok((name.to_string(), factors.text_list(name)?)));
        each.collect()
    }

    fn vary(&self) -> Result<BTreeMap<String, BTreeMap<String, LabSettings>>, Failure> {
        let mut vary = BTreeMap::new();
        let Some(section) = self.section("vary")? else { return Ok(vary) };
        for (factor, _) in section.table.iter() {
            let levels = section
                .section(factor)?
                .ok_or_else(|| Failure::new(format!("vary: {factor} must be a table")))?;
            let mut by_level = BTreeMap::new();
            for (level, _) in levels.table.iter() {
                let names = levels
                    .section(level)?
                    .ok_or_else(|| Failure::new(format!("vary.{factor}: {level} must be a table")))?;
                by_level.insert(level.to_string(), names.settings(&[])?);
            }
            vary.insert(factor.to_string(), by_level);
        }
        Ok(vary)
    }

    pub(crate) fn sections(&self, key: &str) -> Result<Vec<FileSection<'t>>, Failure> {
        let Some(item) = self.table.get(key) else { return Ok(Vec::new()) };
        let tables = item.as_array_of_tables().ok_or_else(|| Failure::new(format!("write [[{key}]]")))?;
        Ok(tables
            .iter()
            .map(|table| FileSection { position: format!("[[{key}]]"), table: table as &dyn TableLike })
            .collect())
    }

    fn process(&self) -> Result<LabProcess, Failure> {
        let mut needs = Vec::new();
        for need in self.text_list("needs")? {
            let (program, package) = need.split_once(" from ").unwrap_or((&need, &need));
            needs.push((program.trim().to_string(), package.trim().to_string()));
        }
        let name =
            self.text("name")?.ok_or_else(|| Failure::new(format!("{}: name is missing", self.position)))?;
        Ok(LabProcess {
            run: self.text("run")?.unwrap_or_default(),
            needs,
            version: self.text("version")?,
            ready: match self.text("ready")?.as_deref() {
                None | Some("port") => ReadyCondition::Port,
                Some("socket") => ReadyCondition::Socket,
                Some(other) => {
                    return Err(Failure::new(format!(
                        "{name}: ready is \"port\" or \"socket\", not {other:?}"
                    )));
                }
            },
            files: self.section("files")?.map_or(Ok(LabSettings::new()), |files| files.settings(&[]))?,
            name,
        })
    }

    fn subject(&self) -> Result<LabSubject, Failure> {
        self.reject_unknown_keys(&[
            "name",
            "run",
            "needs",
            "version",
            "ready",
            "files",
            "with",
            "url",
            "when",
            "status",
            "bytes",
            "measure",
            "load",
            "skip",
            "ours",
            "if",
            "reference",
        ])?;
        let process = self.process()?;
        let skip = self.text("skip")?;
        if skip.is_none() && process.run.is_empty() {
            return Err(Failure::new(format!("{}: run is missing", process.name)));
        }
        Ok(LabSubject {
            required_services: self.text_list("with")?,
            url: self.text("url")?.unwrap_or_else(|| "http://127.0.0.1:{{port}}/".into()),
            when: self.levels("when")?.into_iter().collect(),
            status: self.text("status")?.map_or(Ok(200), |text| {
                text.parse().map_err(|_| Failure::new(format!("{}: status must be a number", process.name)))
            })?,
            bytes: self.text("bytes")?,
            measure: self.text_list("measure")?,
            load: self.load("load")?,
            is_komainu: self.text("ours")?.is_some_and(|ours| ours == "true"),
            skip,
            process,
            komainu: None,
            programs: Vec::new(),
            condition: self.text("if")?,
            is_reference: self.text("reference")?.is_some_and(|reference| reference == "true"),
        })
    }

    /// Reads an `[[aim]]`.
    pub(crate) fn read_aim(&self) -> Result<Aim, Failure> {
        self.reject_unknown_keys(&["figure", "at-most", "at-least", "of", "when"])?;
        let name = self
            .text("figure")?
            .ok_or_else(|| Failure::new(format!("{}: figure is missing", self.position)))?;
        let beside = EXTRA_FIGURES.iter().map(|(key, _)| *key).find(|key| *key == name);
        let key = Figure::find(&name).map(|figure| figure.key).or(beside);
        let number = |key: &str| -> Result<Option<f64>, Failure> {
            let parse = |text: String| {
                text.parse().map_err(|_| Failure::new(format!("{}: {key} is a number", self.position)))
            };
            self.text(key)?.map(parse).transpose()
        };
        Ok(Aim {
            figure: key
                .ok_or_else(|| Failure::new(format!("{}: there is no figure {name:?}", self.position)))?
                .to_string(),
            bound: match (number("at-most")?, number("at-least")?) {
                (Some(most), None) => Bound::AtMost(most),
                (None, Some(least)) => Bound::AtLeast(least),
                _ => {
                    return Err(Failure::new(format!("{}: write either at-most or at-least", self.position)));
                }
            },
            of: self.text("of")?,
            when: self.levels("when")?.into_iter().collect(),
        })
    }
}

fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Float(number) => Some(number.value().to_string()),
        Value::Boolean(yes) => Some(yes.value().to_string()),
        _ => None,
    }
}

fn scalar_list(item: &Item) -> Option<Vec<String>> {
    match item.as_value()? {
        Value::Array(values) => values.iter().map(scalar_text).collect(),
        one => scalar_text(one).map(|one| vec![one]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
title = "T"
baseline = "a"
[load]
connections = 10
[short]
duration = "300ms"
factors = { keep = ["on"] }
[factors]
keep = ["on", "off"]
threads = [1, 2]
[vary.keep]
on = { line = "keepalive 8;" }
off = { line = "" }
[[service]]
name = "app"
run = "app {{port}}"
[[subject]]
name = "a"
needs = ["nginx", "perl from perl-base"]
with = "app"
run = "nginx"
when = { keep = ["on"] }
bytes = 5
if = "nginx -V"
[[subject]]
name = "b"
skip = "not yet"
"#;

    #[test]
    fn lab_file_is_parsed_completely() {
        let lab = Lab::parse(SMALL).unwrap();
        assert_eq!(lab.load["connections"], "10");
        assert_eq!(lab.factors[1], ("threads".into(), vec!["1".into(), "2".into()]));
        assert_eq!(lab.vary["keep"]["on"]["line"], "keepalive 8;");
        let a = &lab.subjects[0];
        assert_eq!(a.process.needs[1], ("perl".to_string(), "perl-base".to_string()));
        assert_eq!(
            (a.status, a.bytes.as_deref(), a.required_services.as_slice()),
            (200, Some("5"), &["app".to_string()][..])
        );
        assert_eq!(lab.subjects[1].skip.as_deref(), Some("not yet"));
        assert_eq!(a.condition.as_deref(), Some("nginx -V"));
    }

    #[test]
    fn every_shipped_lab_file_is_valid() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../labs");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if let Err(error) = Lab::parse(&std::fs::read_to_string(&path).unwrap()) {
                panic!("{}: {error}", path.display());
            }
            count += 1;
        }
        assert!(count >= 8);
    }

    #[test]
    fn lab_file_errors_name_the_mistake() {
        for (change, to, what) in [
            ("title = \"T\"", "", "title"),
            ("connections = 10", "connexions = 10", "connexions"),
            ("keep = [\"on\"] }\n[factors]", "kept = [\"on\"] }\n[factors]", "no factor \"kept\""),
            ("off = { line = \"\" }", "", "level \"off\" is missing"),
            ("with = \"app\"", "with = \"ap\"", "no service \"ap\""),
            ("when = { keep = [\"on\"] }", "when = { keep = [\"yes\"] }", "no level \"yes\""),
            ("run = \"nginx\"", "", "run is missing"),
            ("baseline = \"a\"", "baseline = \"z\"", "no subject \"z\""),
            ("run = \"nginx\"", "run = \"nginx\"\nstatus = \"fine\"", "status must be a number"),
            ("[load]", "[[aim]]\nfigure = \"p98\"\nat-most = 1\n[load]", "no figure \"p98\""),
            ("[load]", "[[aim]]\nfigure = \"cpu\"\n[load]", "at-most or at-least"),
            ("[load]", "[[aim]]\nfigure = \"cpu\"\nat-most = 1\nof = \"z\"\n[load]", "no subject \"z\""),
            (
                "[load]",
                "[[aim]]\nfigure = \"cpu\"\nat-most = 1\nwhen = { keep = \"x\" }\n[load]",
                "no level \"x\"",
            ),
            ("[load]", "[load", "line"),
        ] {
            assert!(SMALL.contains(change), "{change}");
            let error = Lab::parse(&SMALL.replace(change, to)).unwrap_err();
            assert!(error.to_string().contains(what), "{what}: {error}");
        }
    }
}
