//! Reading parts of files into memory, where `sendfile` cannot be used.

use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, retry_on_intr};

use crate::core::Core;
use crate::fault::Fault;
use crate::offload::BlockingKind;

pub(crate) const FILE_SHRANK: Fault = Fault::Failed("file shrank while it was sent");

/// Reads 1 to `len` bytes of a file; on a blocking thread if they are not in the page cache.
///
/// # Errors
/// System errors; [`Fault::Failed`] at the end of the file.
pub(crate) async fn read(core: &Core, file: BorrowedFd<'_>, at: u64, len: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = vec![0; len];
    let cached = preadv2(file, &mut [IoSliceMut::new(&mut bytes)], at, ReadWriteFlags::NOWAIT);
    let bytes = match cached {
        Ok(count) => {
            bytes.truncate(count);
            bytes
        }
        Err(_) => {
            let owned = file.try_clone_to_owned()?;
            let read = core.offload_as(BlockingKind::Files, move || {
                let len = retry_on_intr(|| pread(&owned, &mut bytes[..], at))?;
                bytes.truncate(len);
                Ok::<_, Errno>(bytes)
            });
            read.await.map_err(|errno| Fault::Io(errno.into()))?
        }
    };
    if bytes.is_empty() { Err(FILE_SHRANK) } else { Ok(bytes) }
}

/// Like [`read`], for data known to be in memory: reads on this thread.
///
/// # Errors
/// See [`read`].
pub(crate) fn read_in_memory(file: BorrowedFd<'_>, at: u64, len: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = vec![0; len];
    let len = retry_on_intr(|| pread(file, &mut bytes[..], at)).map_err(|errno| Fault::Io(errno.into()))?;
    bytes.truncate(len);
    if bytes.is_empty() { Err(FILE_SHRANK) } else { Ok(bytes) }
}

/// Storage of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileStorage {
    /// On disk: content outside the page cache is read on a blocking thread.
    Disk,
    /// In memory (memfd): reads never wait, but the kernel does not support RWF_NOWAIT for such files.
    Memory,
}

/// A range of a file to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSpan<'f> {
    pub(crate) file: &'f Arc<File>,
    pub(crate) at: u64,
    pub(crate) len: u64,
    storage: FileStorage,
}

impl<'f> FileSpan<'f> {
    pub(crate) fn new(file: &'f Arc<File>, range: Range<u64>, home: FileStorage) -> FileSpan<'f> {
        FileSpan { file, at: range.start, len: range.end.saturating_sub(range.start), storage: home }
    }

    /// Reads the next bytes, at most `bytes_max`; `None` at the end of the range.
    ///
    /// # Errors
    /// See [`read`].
    pub(crate) async fn next(&mut self, core: &Core, bytes_max: usize) -> Result<Option<Vec<u8>>, Fault> {
        let len = self.len.min(bytes_max as u64) as usize;
        let bytes = match self.storage {
            _ if len == 0 => return Ok(None),
            FileStorage::Disk => read(core, self.file.as_fd(), self.at, len).await?,
            FileStorage::Memory => read_in_memory(self.file.as_fd(), self.at, len)?,
        };
        self.at += bytes.len() as u64;
        self.len -= bytes.len() as u64;
        Ok(Some(bytes))
    }
}

/// The unsent part of a file range.
pub(crate) struct UnsentFile {
    file: Arc<File>,
    at: u64,
    end: u64,
    /// Flags of reads.
    flags: ReadWriteFlags,
    /// Reason why the last read returned nothing, until it is dealt with.
    pub(crate) stop: Option<ReadStop>,
}

/// Reason why nothing can be read without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStop {
    /// The page cache does not hold the data, or the kernel cannot tell: a blocking thread must read.
    NotCached,
    /// The file is shorter than the range.
    Shrank,
}

impl UnsentFile {
    pub(crate) fn new(span: FileSpan<'_>) -> UnsentFile {
        let flags = match span.storage {
            FileStorage::Disk => ReadWriteFlags::NOWAIT,
            FileStorage::Memory => ReadWriteFlags::empty(),
        };
        UnsentFile { file: span.file.clone(), at: span.at, end: span.at + span.len, flags, stop: None }
    }

    pub(crate) fn remaining_bytes(&self) -> u64 {
        self.end - self.at
    }

    /// Reads data that is in memory into up to four slices. Returns 0 and sets `stop` if there is none.
    pub(crate) fn read(&mut self, slices: &mut [&mut [u8]]) -> usize {
        let mut slices = slices.iter_mut();
        let mut places: [IoSliceMut<'_>; 4] =
            std::array::from_fn(|_| IoSliceMut::new(slices.next().map_or(&mut [], |slice| slice)));
        match preadv2(&self.file, &mut places, self.at, self.flags) {
            Ok(0) => self.stop = Some(ReadStop::Shrank),
            Ok(count) => {
                self.at += count as u64;
                return count;
            }
            Err(_) => self.stop = Some(ReadStop::NotCached),
        }
        0
    }

    /// Returns what a blocking thread must read: file, offset and length.
    pub(crate) fn next_read(&self, bytes_max: usize) -> (Arc<File>, u64, usize) {
        (self.file.clone(), self.at, self.remaining_bytes().min(bytes_max as u64) as usize)
    }

    /// Skips bytes that a blocking thread has read.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.at += bytes as u64;
        self.stop = None;
    }
}
