//! Large contents in a memory file (memfd), from which `sendfile` sends them without copying, like files on
//! disk.
//!
//! No range of the file is used twice. Removing a content punches a hole, but the kernel keeps the pages that
//! are still being sent to clients; bytes written to the same range could reach those clients instead.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::process::{Resource, getrlimit};

/// Minimum size of content that is kept in the file, in bytes. Copying less costs less than two more system
/// calls.
pub const FILED_BYTES_MIN: u64 = 128 * 1024;
/// Page size: the memory of a file is allocated in units of this size.
const PAGE_BYTES: u64 = 4096;
/// Alignment of contents, so that no huge page contains parts of two of them.
const ALIGNMENT_BYTES: u64 = 2 << 20;
/// Maximum bytes per read.
const READ_BYTES: u64 = 64 * 1024;
/// Kernel setting for huge pages in memory files.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// A memory file that holds contents.
#[derive(Debug)]
pub(crate) struct ContentFile {
    file: Arc<File>,
    /// End of the last allocated range.
    end: AtomicU64,
}

impl ContentFile {
    /// Creates an empty file; `None` if the system does not support a suitable one.
    pub(crate) fn new() -> Option<ContentFile> {
        // With huge pages a content would use more memory than is accounted for it.
        let huge_pages = fs::read_to_string(HUGE_PAGES).unwrap_or_default();
        if ["[always]", "[within_size]", "[force]"].iter().any(|setting| huge_pages.contains(setting)) {
            return None;
        }
        // The file offset grows without bound; exceeding a file size limit would kill the process.
        if getrlimit(Resource::Fsize).current.is_some() {
            return None;
        }
        let file = memfd_create("komainu-cache", MemfdFlags::CLOEXEC).ok()?;
        Some(ContentFile { file: Arc::new(file.into()), end: AtomicU64::new(0) })
    }

    /// Copies a content of `len` bytes into a range of its own.
    ///
    /// # Errors
    /// Memory is exhausted, or `pieces` do not add up to `len` bytes.
    pub(crate) fn add<'p>(
        &self,
        len: u64,
        pieces: impl Iterator<Item = &'p [u8]>,
    ) -> io::Result<FiledContent> {
        let at = self.end.fetch_add(len.next_multiple_of(ALIGNMENT_BYTES), Ordering::Relaxed);
        // Dropping it on an error leaves a hole.
        let content = FiledContent { file: self.file.clone(), at, len };
        let mut to = at;
        for piece in pieces {
            self.file.write_all_at(piece, to)?;
            to += piece.len() as u64;
        }
        if to - at == len { Ok(content) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// A content in the file. Dropping it releases its memory.
pub(crate) struct FiledContent {
    file: Arc<File>,
    at: u64,
    len: u64,
}

impl FiledContent {
    /// Returns the bytes of memory that the content uses.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.len.next_multiple_of(PAGE_BYTES)
    }

    /// Returns the file and the range in it for a range of the content, which is limited to its length.
    pub(crate) fn locate(&self, range: std::ops::Range<u64>) -> (&Arc<File>, std::ops::Range<u64>) {
        let from = range.start.min(self.len);
        let to = range.end.min(self.len);
        (&self.file, self.at + from..self.at + to)
    }

    /// Reads the bytes of a range, piece by piece.
    pub(crate) fn read(&self, range: std::ops::Range<u64>) -> impl Iterator<Item = io::Result<Vec<u8>>> + '_ {
        let (file, mut place) = self.locate(range);
        std::iter::from_fn(move || {
            let len = (place.end - place.start.min(place.end)).min(READ_BYTES);
            if len == 0 {
                return None;
            }
            let mut bytes = vec![0; len as usize];
            let read = file.read_exact_at(&mut bytes, place.start);
            place.start += len;
            Some(read.map(|()| bytes))
        })
    }
}

impl fmt::Debug for FiledContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.len, self.at)
    }
}

impl Drop for FiledContent {
    fn drop(&mut self) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Fails only if the system cannot punch holes, which memory files support.
        let _ = fallocate(&*self.file, hole, self.at, self.len.next_multiple_of(ALIGNMENT_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn contents_are_read_in_ranges_and_release_their_memory() {
        let file = ContentFile::new().unwrap();
        let bytes: Vec<u8> = (0..300_001u32).map(|at| (at % 251) as u8).collect();
        let all: Vec<FiledContent> =
            (0..4).map(|_| file.add(bytes.len() as u64, bytes.chunks(65_536)).unwrap()).collect();
        let held = || file.file.metadata().unwrap().blocks() * 512;
        assert_eq!(held(), 4 * all[0].weight_bytes());
        let read = |range| all[1].read(range).flat_map(|piece| piece.unwrap()).collect::<Vec<u8>>();
        assert!(read(0..u64::MAX) == bytes && read(100_000..200_001) == bytes[100_000..200_001]);
        assert!(read(300_000..u64::MAX) == bytes[300_000..] && read(400_000..500_000).is_empty());
        assert!(file.add(10, [&b"short"[..]].into_iter()).is_err());
        let mut all = all;
        all.remove(1);
        assert_eq!(held(), 3 * all[0].weight_bytes(), "one has left, and one that was not complete");
        assert_eq!(all[1].read(0..9).next().unwrap().unwrap(), bytes[..9]);
        drop(all);
        assert_eq!(held(), 0);
    }
}
