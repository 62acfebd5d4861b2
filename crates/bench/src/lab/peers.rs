//! Programs of peers that are not the installed ones: `--peer nginx=PATH`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use failure::{Failure, FailureContext};

use crate::lab::file::Lab;

/// Returns the programs that can be replaced: those that the peers of the experiment need, in its order.
#[must_use]
pub fn program_names(lab: &Lab) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for subject in lab.subjects.iter().filter(|subject| subject.is_peer()) {
        for (program, _) in &subject.process.needs {
            if !program.contains('/') && !names.contains(&program.as_str()) {
                names.push(program);
            }
        }
    }
    names
}

/// Replaces programs of the peers. Services keep the installed ones, so that the servers behind all subjects stay the
/// same. A name's second and further programs are added as subjects of their own: `h2o, FILE`.
///
/// # Errors
/// Fails if no peer needs a program of that name, or if the path is not that of a program.
pub fn replace_programs(lab: &mut Lab, peers: &[(String, PathBuf)]) -> Result<(), Failure> {
    let installed = lab.subjects.clone();
    for (at, (name, path)) in peers.iter().enumerate() {
        let known = program_names(lab);
        if !known.contains(&name.as_str()) {
            let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
            return Err(Failure::new(format!("--peer: no peer runs a program {name:?}; there are {known}")));
        }
        let program = executable(name, path)?;
        let is_first = peers[..at].iter().all(|(other, _)| other != name);
        let runs_it = |needs: &[(String, String)]| needs.iter().any(|(needed, _)| needed == name);
        if is_first {
            for subject in lab.subjects.iter_mut().filter(|subject| !subject.is_komainu) {
                if runs_it(&subject.process.needs) {
                    subject.programs.push((name.clone(), program.clone()));
                }
            }
            continue;
        }
        let file = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for subject in installed.iter().filter(|s| !s.is_komainu && runs_it(&s.process.needs)) {
            let mut subject = subject.clone();
            let before = std::mem::take(&mut subject.process.name);
            subject.process.name = format!("{before}, {file}");
            for measured in subject.measure.iter_mut().filter(|measured| **measured == before) {
                measured.clone_from(&subject.process.name);
            }
            subject.programs.push((name.clone(), program.clone()));
            lab.subjects.push(subject);
        }
    }
    Ok(())
}

/// Returns the absolute path of a program that can be executed.
fn executable(name: &str, path: &Path) -> Result<PathBuf, Failure> {
    let shown = path.display();
    let program = std::path::absolute(path).map_err(Failure::new)?;
    let about =
        std::fs::metadata(&program).with_context(|| format!("--peer {name}: no program at {shown}"))?;
    if !about.is_file() || about.permissions().mode() & 0o111 == 0 {
        return Err(Failure::new(format!(
            "--peer {name}: {shown} is not a program: an executable file is needed"
        )));
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab() -> Lab {
        Lab::parse(
            "title = \"T\"\n[[service]]\nname = \"origin\"\nneeds = \"nginx\"\nrun = \"nginx\"\n\
             [[subject]]\nname = \"K\"\nneeds = \"perl\"\nrun = \"{{komainu}}\"\nours = true\n\
             [[subject]]\nname = \"a\"\nneeds = [\"nginx\", \"/usr/x from y\"]\nrun = \"nginx\"\nmeasure = [\"a\", \"origin\"]\n\
             [[subject]]\nname = \"b\"\nneeds = \"h2o\"\nrun = \"h2o\"\n",
        )
        .unwrap()
    }

    fn replaced(peers: &[(&str, &str)]) -> Result<Lab, Failure> {
        let mut lab = lab();
        let peers: Vec<_> =
            peers.iter().map(|(name, path)| ((*name).to_string(), PathBuf::from(path))).collect();
        replace_programs(&mut lab, &peers).map(|()| lab)
    }

    #[test]
    fn programs_of_peers_are_replaced_and_further_ones_added() {
        let before = lab();
        assert_eq!(program_names(&before), ["nginx", "h2o"]);
        let lab = replaced(&[("nginx", "/bin/sh"), ("nginx", "/bin/cat")]).unwrap();
        assert_eq!(lab.services, before.services);
        assert_eq!((&lab.subjects[0], &lab.subjects[2]), (&before.subjects[0], &before.subjects[2]));
        assert_eq!(lab.subjects[1].programs, [("nginx".to_string(), PathBuf::from("/bin/sh"))]);
        let added = &lab.subjects[3];
        assert_eq!((added.process.name.as_str(), lab.subjects.len()), ("a, cat", 4));
        assert_eq!(added.measure, ["a, cat", "origin"]);
        assert_eq!(added.programs, [("nginx".to_string(), PathBuf::from("/bin/cat"))]);
    }

    #[test]
    fn errors_name_what_there_is() {
        for (peer, what) in [
            (("ngnix", "/bin/sh"), "no peer runs a program \"ngnix\"; there are nginx, h2o"),
            (("perl", "/bin/sh"), "no peer runs a program \"perl\""),
            (("h2o", "/no/such"), "--peer h2o: no program at /no/such"),
            (("h2o", "/bin"), "--peer h2o: /bin is not a program"),
            (("h2o", "/etc/passwd"), "/etc/passwd is not a program: an executable file is needed"),
        ] {
            let error = replaced(&[peer]).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
    }
}
