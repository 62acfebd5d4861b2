//! Files that the configuration names (certificates, keys, tokens, user databases), opened by the supervisor
//! if there is one.
//!
//! The server's user then needs no permission to read them, and a compromised server process cannot open them
//! by itself. The supervisor opens only files named by the configuration, and only for reading.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use failure::{Failure, IoFailure};
use link::LinkRequest;
use net::trusted_path;
use rustix::fs::{Mode, OFlags};

use crate::link::{SupervisorLink, path_text};

/// Maximum size of such a file, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Maximum number of names read from a directory.
const NAMES_MAX: usize = 4096;

/// Access to the files named by the configuration. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConfigFiles {
    link: Option<SupervisorLink>,
    memory: Arc<RwLock<MemoryFiles>>,
}

/// Files that are in memory instead of on disk, by the path that the configuration names.
pub type MemoryFiles = BTreeMap<PathBuf, Vec<u8>>;

impl ConfigFiles {
    /// Creates the access, through the supervisor if `link` is given.
    pub fn new(link: Option<SupervisorLink>) -> ConfigFiles {
        ConfigFiles { link, memory: Arc::default() }
    }

    /// Replaces the files in memory, for all copies of this access.
    pub fn set_memory(&self, files: MemoryFiles) {
        *self.memory.write().unwrap_or_else(PoisonError::into_inner) = files;
    }

    /// Returns a file that is in memory.
    pub fn in_memory(&self, path: &Path) -> Option<Vec<u8>> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    /// Opens a file for reading. The supervisor opens only files of the configuration in force or of the one
    /// being loaded (`config::NamedFiles`).
    ///
    /// # Errors
    /// The file cannot be opened; the message contains its path.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let Some(link) = &self.link else { return open(path) };
        let packet =
            link.ask(&LinkRequest::Read(path_text(path)?), &[]).map_err(|error| error.about(path))?;
        let file = packet.descriptors.into_iter().next().map(File::from);
        file.ok_or_else(|| io::Error::other("the supervisor sends no file"))
    }

    /// Header fields of requests to a collector: those of the configuration (`configured`), then those of `file`.
    /// `table` is the configuration table, for errors.
    ///
    /// # Errors
    /// The file cannot be read, or does not contain header fields; the message contains its path.
    pub fn headers(
        &self,
        table: &str,
        configured: &[(String, String)],
        file: Option<&PathBuf>,
    ) -> io::Result<Vec<(String, String)>> {
        let mut headers = configured.to_vec();
        if let Some(path) = file {
            let failed = |why: &str| {
                let title = format!("`headers_file` of {table}: {}: {why}", path.display());
                io::Error::from(Failure::new(title).about(path))
            };
            let text = String::from_utf8(self.read(path)?).map_err(|_| failed("it is not text"))?;
            headers.extend(otlp::parse_header_lines(&text).map_err(|why| failed(&why.to_string()))?);
        }
        Ok(headers)
    }

    /// Whether `path` can be listed as a directory that the configuration names.
    pub fn is_folder(&self, path: &Path) -> bool {
        self.list(path).is_ok()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be opened or read, or is larger than 16 MiB.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_up_to(path, FILE_BYTES_MAX)
    }

    /// Reads a file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The file cannot be opened or read, or is larger.
    pub fn read_up_to(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        if let Some(bytes) = self.in_memory(path) {
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        let read = self.open(path)?.take(bytes_max + 1).read_to_end(&mut bytes);
        read.map_err(|error| with_path(path, error))?;
        if bytes.len() as u64 > bytes_max {
            Err(with_path(path, io::Error::other(format!("it is larger than {} MiB", bytes_max >> 20))))
        } else {
            Ok(bytes)
        }
    }

    /// Lists a directory named by the configuration, sorted and including subdirectories.
    ///
    /// # Errors
    /// The directory cannot be read; the message contains its path.
    pub fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let names = match &self.link {
            None => list(folder)?,
            Some(link) => {
                let packet = link.ask(&LinkRequest::List(path_text(folder)?), &[]);
                let packet = packet.map_err(|error| error.about(folder))?;
                packet
                    .first_word_and_rest()
                    .1
                    .split('\n')
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .collect()
            }
        };
        Ok(names.into_iter().map(|name| folder.join(name)).collect())
    }
}

/// Opens a file for reading, without blocking. As root, [`trusted_path`] applies its checks.
///
/// # Errors
/// The file cannot be opened, or is not a regular file; the message contains its path.
pub fn open(path: &Path) -> io::Result<File> {
    let opened = trusted_path::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty());
    let file = File::from(opened.map_err(|error| with_path(path, error))?);
    if file.metadata().map_err(|error| with_path(path, error))?.is_file() {
        Ok(file)
    } else {
        Err(with_path(path, io::Error::other("this is not a file")))
    }
}

/// The names in a directory, sorted.
///
/// # Errors
/// The directory cannot be read, or has more than 4,096 names; the message contains its path.
pub fn list(folder: &Path) -> io::Result<Vec<String>> {
    let failed = |error: &dyn std::error::Error| with_path(folder, io::Error::other(error.to_string()));
    let opened = trusted_path::open(folder, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    let opened = opened.map_err(|error| with_path(folder, error))?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(opened).map_err(|error| failed(&error))? {
        let entry = entry.map_err(|error| failed(&error))?;
        // Names that are not UTF-8, or contain a line feed, cannot be sent over the link.
        let name = entry
            .file_name()
            .to_str()
            .ok()
            .filter(|name| !matches!(*name, "." | "..") && !name.contains('\n'));
        names.extend(name.map(str::to_owned));
    }
    names.sort();
    if names.len() > NAMES_MAX {
        Err(with_path(folder, io::Error::other(format!("it has more than {NAMES_MAX} names"))))
    } else {
        Ok(names)
    }
}

fn with_path(path: &Path, error: io::Error) -> io::Error {
    error.attempting(format_args!("cannot read {}", path.display())).about(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_a_directory_as_a_file_fails() {
        let error = open(Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("cannot read /"), "{error}");
    }
}
