//! Files of the state folder that all servers of a set have.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::SystemTime;

use cluster::SharedFiles;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::certificate::KeyedChain;
use crate::state_folder::{
    ACCOUNTS, CERTIFICATES, CHALLENGES, FILE_BYTES_MAX, LOCAL, StateFolder, is_shared_name, read,
};
use crate::subject::Subject;

/// Maximum size of a file that is not a certificate, in bytes.
const OTHER_BYTES_MAX: usize = 64 * 1024;

/// A state folder whose files are exchanged. What is written here is not told to the store again.
pub(crate) struct FolderFiles(StateFolder);

impl FolderFiles {
    pub(crate) fn new(folder: &StateFolder) -> FolderFiles {
        FolderFiles(StateFolder::existing(folder.path()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl SharedFiles for FolderFiles {
    fn list(&self) -> Vec<(String, SystemTime)> {
        let mut found = Vec::new();
        for folder in [ACCOUNTS, CERTIFICATES, CHALLENGES, LOCAL] {
            for entry in fs::read_dir(self.path(folder)).into_iter().flatten().flatten() {
                let name = entry.file_name().into_string().unwrap_or_default();
                let name = format!("{folder}/{name}");
                if let Ok(written) = entry.metadata().and_then(|found| found.modified())
                    && is_shared_name(&name)
                {
                    found.push((name, written));
                }
            }
        }
        found
    }

    fn read(&self, name: &str) -> Option<(Vec<u8>, SystemTime)> {
        let path = self.path(name);
        let written = fs::metadata(&path).and_then(|found| found.modified()).ok()?;
        Some((read(&path).ok()??.into_bytes(), written))
    }

    fn accept(&self, name: &str, contents: &[u8], written: SystemTime) -> Result<bool, String> {
        if !is_shared_name(name) {
            return Err("it is no file of a state folder".to_owned());
        }
        let path = self.path(name);
        let own = read(&path).ok().flatten();
        if own.as_ref().is_some_and(|own| own.as_bytes() == contents) {
            return Ok(true);
        }
        let text = std::str::from_utf8(contents).map_err(|_| "it is not text".to_owned())?;
        let is_certificate = name.ends_with(".pem");
        let bytes_max = if is_certificate { FILE_BYTES_MAX as usize } else { OTHER_BYTES_MAX };
        if text.len() > bytes_max {
            return Err(format!("it is longer than {bytes_max} bytes"));
        }
        if is_certificate {
            let new = KeyedChain::parse(text.to_owned()).map_err(|error| error.to_string())?;
            if let Some(subject) = name.strip_prefix(CERTIFICATES).map(|file| &file[1..file.len() - 4]) {
                let is_for = |subject: &Subject| new.info.subjects.contains(subject);
                if !Subject::of_file_stem(subject).is_some_and(|subject| is_for(&subject)) {
                    return Err("it is a certificate for other names".to_owned());
                }
                // The store may lag behind, or give back what it had before.
                let own = own.and_then(|own| KeyedChain::parse(own).ok());
                if own.is_some_and(|own| own.info.not_before > new.info.not_before) {
                    return Ok(false);
                }
            }
        } else if name.ends_with(".json") {
            let value: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
            if !value.is_object() {
                return Err("it is no object".to_owned());
            }
        }
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        self.0.write_here(&path, contents).map_err(failed)?;
        // The time of the writing server decides which one is newer if the store has lost its contents.
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(written))
            .map_err(failed)?;
        if name.starts_with(LOCAL) {
            let root = CertificateDer::from_pem_slice(contents).map_err(|error| error.to_string())?;
            let root = crate::certificate::pem_of(&root);
            self.0.write_here(&self.0.root_path(), root.as_bytes()).map_err(failed)?;
        }
        Ok(true)
    }

    fn remove(&self, name: &str) {
        // Only tokens end; a store that has lost a certificate gets it again.
        if name.starts_with(CHALLENGES) && is_shared_name(name) {
            // The file may be gone already.
            let _ = fs::remove_file(self.path(name));
        }
    }

    fn keeps_first(&self, name: &str) -> bool {
        name.starts_with(LOCAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_folder::tests::scratch;
    use std::time::Duration;

    fn at(s: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(s)
    }

    fn certificate(name: &str, from: i64) -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        parameters.not_before = time::OffsetDateTime::from_unix_timestamp(from).unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        certificate.pem() + &key.serialize_pem()
    }

    #[test]
    fn only_valid_files_of_other_servers_are_written() {
        let path = scratch("accepted");
        let folder = StateFolder::open(&path).unwrap();
        let files = FolderFiles::new(&folder);
        let old = certificate("a.example.com", 1_000);
        let new = certificate("a.example.com", 2_000);
        let name = "certificates/a.example.com.pem";
        assert_eq!(files.accept(name, old.as_bytes(), at(5)), Ok(true));
        assert_eq!(files.read(name).unwrap(), (old.clone().into_bytes(), at(5)));
        assert_eq!(files.accept(name, new.as_bytes(), at(6)), Ok(true));
        assert_eq!(files.accept(name, old.as_bytes(), at(7)), Ok(false), "an older one does not come back");
        assert_eq!(files.read(name).unwrap(), (new.clone().into_bytes(), at(6)));
        for wrong in ["certificates/b.example.com.pem", "certificates/+.example.com.pem"] {
            assert!(files.accept(wrong, new.as_bytes(), at(8)).unwrap_err().contains("other names"));
        }
        let wrong =
            ["../a.pem", "certificates/../../a.pem", "/etc/passwd", "certificates/.x.pem", "locks/servers"];
        let more =
            ["local/root.crt", "challenges/a/b", "challenges/..", "accounts/..json", "accounts/a/b.json", ""];
        for wrong in wrong.into_iter().chain(more) {
            assert!(files.accept(wrong, new.as_bytes(), at(8)).is_err(), "{wrong}");
        }
        for garbage in [&b""[..], b"\xff", b"-----BEGIN CERTIFICATE-----", b"{}"] {
            assert!(files.accept(name, garbage, at(9)).is_err());
        }
        assert!(files.accept("accounts/x.json", b"[1]", at(9)).is_err());
        assert!(files.accept("accounts/x.json", &vec![b' '; OTHER_BYTES_MAX + 1], at(9)).is_err());
        assert_eq!(files.accept("accounts/x.json", b"{}", at(9)), Ok(true));
        assert_eq!(files.accept("challenges/token", b"token.thumb", at(9)), Ok(true));
        files.remove("challenges/token");
        files.remove(name);
        let mut names: Vec<String> = files.list().into_iter().map(|(name, _)| name).collect();
        names.sort();
        assert_eq!(names, ["accounts/x.json", name]);
        fs::remove_dir_all(path).unwrap();
    }
}
