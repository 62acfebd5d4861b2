//! Directory of the cache on disk: its files by name, and the list of purges not yet applied to all of them.
//!
//! ```text
//! lock     locked by the process that uses the directory
//! run      number of times the directory was opened: the upper half of file numbers
//! purges   purges not yet applied to every file
//! new      file being written; renamed when complete
//! 00 … ff  directories of the responses, one file each
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use crate::disk_index::{FileName, PendingPurge};
use crate::file_format::{self, FileHead};
use crate::freshness::{NEVER_S, stated_s};
use crate::object::{Object, StoredBody};
use crate::purge::Purge;

/// Contents of the directory.
#[derive(Debug)]
pub(crate) struct FolderContents {
    pub(crate) files: Vec<FileName>,
    pub(crate) purges: Vec<PendingPurge>,
    /// Larger than the number of any file or purge.
    pub(crate) number: u64,
}

/// The directory.
#[derive(Clone, Debug)]
pub(crate) struct DiskFolder {
    path: PathBuf,
    /// Error for all writes, in tests.
    #[cfg(test)]
    pub(crate) fault: std::sync::Arc<std::sync::Mutex<Option<io::ErrorKind>>>,
}

impl DiskFolder {
    pub(crate) fn new(path: PathBuf) -> DiskFolder {
        DiskFolder {
            path,
            #[cfg(test)]
            fault: std::sync::Arc::default(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory if needed and locks it for as long as the file is open; `None` if another
    /// process holds the lock.
    pub(crate) fn lock(&self) -> io::Result<Option<File>> {
        self.may_write()?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        let file = write_options().open(self.path.join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Reads the directory, and starts a new range of numbers.
    pub(crate) fn open(&self) -> io::Result<FolderContents> {
        let mut files = Vec::new();
        for folder in 0..=255u8 {
            let entries = match fs::read_dir(self.path.join(format!("{folder:02x}"))) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for entry in entries {
                // Files with other names are ignored.
                files.extend(entry?.file_name().to_str().and_then(FileName::parse));
            }
        }
        let purges = match fs::read(self.path.join("purges")) {
            Ok(list) => Some(decode_purges(&list)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let said = fs::read_to_string(self.path.join("run")).ok().and_then(|text| text.trim().parse().ok());
        let listed = purges.iter().flatten().map(|purge| purge.number);
        let numbers = files.iter().map(|file| file.number).chain(listed);
        let seen = numbers.map(|number| number >> 32).max();
        let run: u64 = said.max(seen).unwrap_or(0) + 1;
        self.replace("run", format!("{run}\n").as_bytes())?;
        let number = run << 32;
        // Without a list, nothing tells which of the files were purged: see `DiskFolder::make_void`.
        let all = || PendingPurge { number, purge: Purge::All, soft_at_s: None };
        let purges = purges.unwrap_or_else(|| if files.is_empty() { Vec::new() } else { vec![all()] });
        Ok(FolderContents { files, number: number + purges.len() as u64, purges })
    }

    /// Writes a response.
    pub(crate) fn write(&self, name: &FileName, head: &[u8], body: &StoredBody) -> io::Result<()> {
        self.may_write()?;
        let new = self.path.join("new");
        let mut file = write_options().truncate(true).open(&new)?;
        file_format::write(&mut file, head, body)?;
        drop(file);
        let path = self.path.join(name.path());
        match fs::rename(&new, &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().mode(0o700).create(self.path.join(name.folder()))?;
                fs::rename(&new, &path)
            }
            renamed => renamed,
        }
    }

    /// Reads a file's head; also returns the file, positioned at the content.
    pub(crate) fn read_head(&self, name: &FileName) -> io::Result<(FileHead, File)> {
        let mut file = File::open(self.path.join(name.path()))?;
        if file.metadata()?.len() != name.bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its length is not that of its name"));
        }
        let head = file_format::read_head(&mut file, name.bytes)?;
        Ok((head, file))
    }

    /// Reads a response and its key.
    pub(crate) fn read(&self, name: &FileName) -> io::Result<(Vec<u8>, Object)> {
        let (mut head, mut file) = self.read_head(name)?;
        let key = std::mem::take(&mut head.key);
        Ok((key, file_format::read_body(&mut file, head)?))
    }

    /// Removes the file of a response, if it is there.
    pub(crate) fn remove(&self, name: &FileName) -> io::Result<()> {
        // A full disk has files removed.
        self.may_write().or_else(|error| match error.kind() {
            io::ErrorKind::StorageFull => Ok(()),
            _ => Err(error),
        })?;
        match fs::remove_file(self.path.join(name.path())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Rewrites the list of purges and opens it for appending.
    pub(crate) fn rewrite_purges(&self, purges: &[PendingPurge]) -> io::Result<File> {
        let list: Vec<u8> = purges.iter().flat_map(encode_purge).collect();
        self.replace("purges", &list)?;
        OpenOptions::new().append(true).open(self.path.join("purges"))
    }

    /// Removes the list of purges: files without a list do not count when the directory is opened.
    pub(crate) fn make_void(&self) -> io::Result<()> {
        match fs::remove_file(self.path.join("purges")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.may_write()?;
        let new = self.path.join("new");
        write_options().truncate(true).open(&new)?.write_all(bytes)?;
        fs::rename(&new, self.path.join(name))
    }

    #[cfg(test)]
    fn may_write(&self) -> io::Result<()> {
        self.fault.lock().expect("a test").map_or(Ok(()), |kind| Err(kind.into()))
    }

    #[cfg(not(test))]
    #[allow(clippy::unused_self)] // the variant for tests uses `self`
    fn may_write(&self) -> io::Result<()> {
        Ok(())
    }
}

fn write_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

/// Appends a purge to the list.
pub(crate) fn append_purge(list: &mut File, purge: &PendingPurge) -> io::Result<()> {
    list.write_all(&encode_purge(purge))
}

/// Encodes length, checksum, number, time, kind and text.
fn encode_purge(pending: &PendingPurge) -> Vec<u8> {
    // Hosts and origins contain no spaces.
    let (kind, text): (u8, Vec<u8>) = match &pending.purge {
        Purge::Exact(url) => (b'=', url.clone()),
        Purge::Prefix(url) => (b'*', url.clone()),
        Purge::Tag { tag, host: None } => (b'#', tag.clone()),
        Purge::Tag { tag, host: Some(host) } => (b'@', [host, &b" "[..], tag].concat()),
        Purge::Group { group, origin } => (b'&', [origin, &b" "[..], group].concat()),
        Purge::All => (b'!', Vec::new()),
    };
    let mut entry = Vec::with_capacity(32 + text.len());
    entry.extend_from_slice(&pending.number.to_le_bytes());
    entry.extend_from_slice(&pending.soft_at_s.unwrap_or(NEVER_S).to_le_bytes());
    entry.push(kind);
    entry.extend_from_slice(&text);
    let mut out = Vec::with_capacity(entry.len() + 16);
    out.extend_from_slice(&(entry.len() as u64).to_le_bytes());
    out.extend_from_slice(&XxHash3_64::oneshot(&entry).to_le_bytes());
    out.extend_from_slice(&entry);
    out
}

/// Returns the purges of a list up to the first incomplete one, which was not confirmed to any client.
fn decode_purges(mut list: &[u8]) -> Vec<PendingPurge> {
    let mut purges = Vec::new();
    while let Some((purge, rest)) = decode_purge(list) {
        purges.push(purge);
        list = rest;
    }
    purges
}

fn decode_purge(list: &[u8]) -> Option<(PendingPurge, &[u8])> {
    let number = |at: usize, of: &[u8]| of.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let length = usize::try_from(number(0, list)?).ok()?;
    let entry = list.get(16..)?.get(..length)?;
    if number(8, list)? != XxHash3_64::oneshot(entry) {
        return None;
    }
    let text = entry.get(17..)?.to_vec();
    let two = || {
        let space = text.iter().position(|&byte| byte == b' ')?;
        Some((text[..space].to_vec(), text[space + 1..].to_vec()))
    };
    let purge = match entry[16] {
        b'=' => Purge::Exact(text),
        b'*' => Purge::Prefix(text),
        b'#' => Purge::Tag { tag: text, host: None },
        b'@' => two().map(|(host, tag)| Purge::Tag { tag, host: Some(host) })?,
        b'&' => two().map(|(origin, group)| Purge::Group { group, origin })?,
        _ => Purge::All,
    };
    let soft_at_s = stated_s(number(8, entry)?);
    Some((PendingPurge { number: number(0, entry)?, purge, soft_at_s }, &list[16 + length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_list_is_read_up_to_the_first_damaged_record() {
        let purges: Vec<PendingPurge> = [
            Purge::Exact(b"http://a/".to_vec()),
            Purge::Prefix(b"//a/x".to_vec()),
            Purge::Tag { tag: b"t".to_vec(), host: None },
            Purge::Tag { tag: b"t u".to_vec(), host: Some(b"a:80".to_vec()) },
            Purge::Group { group: b"g h".to_vec(), origin: b"http://a".to_vec() },
            Purge::All,
        ]
        .into_iter()
        .enumerate()
        .map(|(at, purge)| PendingPurge { number: at as u64, purge, soft_at_s: (at == 2).then_some(7) })
        .collect();
        let list: Vec<u8> = purges.iter().flat_map(encode_purge).collect();
        assert_eq!(decode_purges(&list), purges);
        assert_eq!(decode_purges(&list[..list.len() - 1]), purges[..5]);
        let mut other = list.clone();
        other[20] ^= 1;
        assert_eq!(decode_purges(&other), []);
    }
}
