//! Changes to an experiment by command-line options: levels, settings of the load, other builds of this
//! program.

use std::path::{Path, PathBuf};

use failure::{Failure, FailureContext};

use crate::lab::file::{LOAD_SETTINGS, Lab};

/// Narrows a factor to the given level, or changes a setting of the load. Further levels of the same factor
/// are added.
///
/// # Errors
/// Fails for a name that is neither a factor nor a setting, and for a level that the experiment does not
/// define.
pub fn apply_setting(lab: &mut Lab, changes: &[(String, String)]) -> Result<(), Failure> {
    for (at, (name, value)) in changes.iter().enumerate() {
        let further = changes[..at].iter().any(|(before, _)| before == name);
        if let Some((_, levels)) = lab.factors.iter_mut().find(|(factor, _)| factor == name) {
            if let Some(known) = lab.vary.get(name).filter(|known| !known.contains_key(value)) {
                let known: Vec<&str> = known.keys().map(String::as_str).collect();
                return Err(Failure::new(format!(
                    "--set: {name} has no level {value:?}; there are {}",
                    known.join(", ")
                )));
            }
            if !further {
                levels.clear();
            }
            levels.push(value.clone());
            lab.short_factors.retain(|(factor, _)| factor != name);
        } else if LOAD_SETTINGS.contains(&name.as_str()) {
            lab.load.insert(name.clone(), value.clone());
            lab.short_load.remove(name);
        } else {
            let factors = lab.factors.iter().map(|(factor, _)| factor.as_str());
            let known: Vec<&str> = factors.chain(LOAD_SETTINGS).collect();
            return Err(Failure::new(format!(
                "--set: there is no factor and no setting {name:?}; there are {}",
                known.join(", ")
            )));
        }
    }
    // Each subject keeps those of its levels that remain.
    for subject in &mut lab.subjects {
        for (factor, levels) in &mut subject.when {
            if changes.iter().any(|(name, _)| name == factor) {
                levels.retain(|level| changes.iter().any(|(name, value)| name == factor && value == level));
            }
        }
    }
    Ok(())
}

/// Adds another build of this program: a copy of each Komainu subject, named after the subject and the build.
///
/// # Errors
/// Fails if the experiment has no Komainu subject, or if the build does not exist.
pub fn add_builds(lab: &mut Lab, builds: &[(String, PathBuf)]) -> Result<(), Failure> {
    let ours: Vec<usize> = (0..lab.subjects.len()).filter(|&at| lab.subjects[at].is_komainu).collect();
    for (name, path) in builds {
        let path = absolute_program(path)?;
        if ours.is_empty() {
            return Err(Failure::new("--also: no subject of this experiment is ours"));
        }
        for &at in &ours {
            let mut subject = lab.subjects[at].clone();
            let own = std::mem::take(&mut subject.process.name);
            subject.process.name = format!("{own}, {name}");
            for measured in subject.measure.iter_mut().filter(|measured| **measured == own) {
                measured.clone_from(&subject.process.name);
            }
            subject.komainu = Some(path.clone());
            lab.subjects.push(subject);
        }
    }
    Ok(())
}

/// Returns the absolute path of a program.
///
/// # Errors
/// Fails if the file does not exist.
pub fn absolute_program(path: &Path) -> Result<PathBuf, Failure> {
    std::fs::canonicalize(path).with_context(|| format!("no program at {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::matrix::cells;

    fn lab() -> Lab {
        Lab::parse(
            "title = \"T\"\n[load]\nduration = \"5s\"\n[short]\nduration = \"1s\"\nfactors = { n = [1] }\n\
             [factors]\nn = [1, 2]\npage = [\"a, b\", \"c\"]\n[vary.page]\n\"a, b\" = { x = 1 }\nc = { x = 2 }\n\
             [[subject]]\nname = \"K\"\nrun = \"{{komainu}}\"\nours = true\nmeasure = \"K\"\n\
             [[subject]]\nname = \"b\"\nrun = \"b\"\nwhen = { n = [1] }\n",
        )
        .unwrap()
    }

    fn lab_with(changes: &[(&str, &str)]) -> Result<Lab, Failure> {
        let mut lab = lab();
        let owned: Vec<_> = changes.iter().map(|(a, b)| ((*a).to_string(), (*b).to_string())).collect();
        apply_setting(&mut lab, &owned).map(|()| lab)
    }

    #[test]
    fn options_change_levels_and_settings_of_the_short_form_too() {
        let lab = lab_with(&[("n", "2"), ("n", "8"), ("page", "a, b"), ("duration", "2s")]).unwrap();
        let keys = |short| cells(&lab, short).iter().map(|cell| cell.key(&lab)).collect::<Vec<_>>();
        assert_eq!(keys(false), ["K [n 2, page a, b]", "K [n 8, page a, b]"]);
        assert_eq!(keys(true), keys(false));
        assert_eq!((lab.load["duration"].as_str(), lab.short_load.get("duration")), ("2s", None));
        for (change, what) in [(("page", "d"), "no level \"d\""), (("pages", "c"), "duration")] {
            assert!(lab_with(&[change]).unwrap_err().to_string().contains(what));
        }
    }

    #[test]
    fn another_build_is_added_as_a_subject() {
        let mut lab = lab();
        add_builds(&mut lab, &[("before".into(), "/proc/self/exe".into())]).unwrap();
        let added = lab.subjects.last().unwrap();
        assert_eq!(
            (added.process.name.as_str(), added.measure.as_slice()),
            ("K, before", &["K, before".into()][..])
        );
        assert!(added.is_komainu && added.komainu.is_some() && lab.subjects.len() == 3);
        assert!(
            add_builds(&mut lab, &[("x".into(), "/no/such".into())])
                .unwrap_err()
                .to_string()
                .contains("/no/such")
        );
    }
}
