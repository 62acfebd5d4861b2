//! Parts of files read into memory, for lanes that no `sendfile` serves.

use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, retry_on_intr};

use crate::core::Core;
use crate::fault::Fault;

pub(crate) const SHRANK: Fault = Fault::Broken("file shrank while it was sent");

/// A part of a file, at most `len` bytes and at least one. What the kernel does not have in memory is read by another thread.
///
/// # Errors
/// The system's; [`Fault::Broken`] at the file's end.
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
            let read = core.offload(move || {
                let len = retry_on_intr(|| pread(&owned, &mut bytes[..], at))?;
                bytes.truncate(len);
                Ok::<_, Errno>(bytes)
            });
            read.await.map_err(|errno| Fault::Io(errno.into()))?
        }
    };
    if bytes.is_empty() { Err(SHRANK) } else { Ok(bytes) }
}

/// The same for what has just been brought into memory.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn read_loaded(file: BorrowedFd<'_>, at: u64, len: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = vec![0; len];
    let len = retry_on_intr(|| pread(file, &mut bytes[..], at)).map_err(|errno| Fault::Io(errno.into()))?;
    bytes.truncate(len);
    if bytes.is_empty() { Err(SHRANK) } else { Ok(bytes) }
}

/// Where the bytes of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileHome {
    /// On a disk: what the kernel does not have in memory is read by another thread.
    Disk,
    /// In memory (memfd): they are read at once. Of such files the kernel never says whether that would wait.
    Memory,
}

/// A part of a file, to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSpan<'f> {
    pub(crate) file: &'f Arc<File>,
    pub(crate) at: u64,
    pub(crate) len: u64,
    home: FileHome,
}

impl<'f> FileSpan<'f> {
    pub(crate) fn new(file: &'f Arc<File>, range: Range<u64>, home: FileHome) -> FileSpan<'f> {
        FileSpan { file, at: range.start, len: range.end.saturating_sub(range.start), home }
    }

    /// What comes next of it, at most `bytes_max`: `None` at its end.
    ///
    /// # Errors
    /// Those of [`read`].
    pub(crate) async fn next(&mut self, core: &Core, bytes_max: usize) -> Result<Option<Vec<u8>>, Fault> {
        let len = self.len.min(bytes_max as u64) as usize;
        let bytes = match self.home {
            _ if len == 0 => return Ok(None),
            FileHome::Disk => read(core, self.file.as_fd(), self.at, len).await?,
            FileHome::Memory => read_loaded(self.file.as_fd(), self.at, len)?,
        };
        self.at += bytes.len() as u64;
        self.len -= bytes.len() as u64;
        Ok(Some(bytes))
    }
}

/// A part of a file that is still to be sent.
pub(crate) struct FileRest {
    file: Arc<File>,
    at: u64,
    end: u64,
    /// How it is read.
    flags: ReadWriteFlags,
    /// Why the last read returned nothing, until somebody sees to it.
    pub(crate) stop: Option<ReadStop>,
}

/// Why nothing can be read without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStop {
    /// The kernel does not have it in memory, or cannot say: another thread has to read.
    Cold,
    /// The file ends before.
    Shrank,
}

impl FileRest {
    pub(crate) fn new(span: FileSpan<'_>) -> FileRest {
        let flags = match span.home {
            FileHome::Disk => ReadWriteFlags::NOWAIT,
            FileHome::Memory => ReadWriteFlags::empty(),
        };
        FileRest { file: span.file.clone(), at: span.at, end: span.at + span.len, flags, stop: None }
    }

    pub(crate) fn left(&self) -> u64 {
        self.end - self.at
    }

    /// Reads what the kernel has in memory into up to four slices: 0 bytes where it stops.
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
            Err(_) => self.stop = Some(ReadStop::Cold),
        }
        0
    }

    /// What another thread has to read: the file, where, and at most so many bytes.
    pub(crate) fn next(&self, bytes_max: usize) -> (Arc<File>, u64, usize) {
        (self.file.clone(), self.at, self.left().min(bytes_max as u64) as usize)
    }

    /// So many bytes were read by another thread.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.at += bytes as u64;
        self.stop = None;
    }
}
