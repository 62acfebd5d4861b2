//! Parts of files read into memory, for lanes that no `sendfile` serves.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, retry_on_intr};

use crate::core::Core;
use crate::fault::Fault;

const SHRANK: Fault = Fault::Broken("file shrank while it was sent");

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
