//! Files that a worker asks the server to send.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use failure::Failure;
use net::offload::BlockingKind;
use net::{Exchange, Fault};
use ring::FilePart;
use rustix::fs::{FileType, fstat};
use rustix::io::{ReadWriteFlags, pread, preadv2};
use rustix::process::ForeignRawFd;

use crate::descriptors;
use crate::launcher::Launcher;

/// Bytes read at a time if the kernel cannot send the file directly, or the file is not in the page cache.
const WINDOW_BYTES: u64 = 1024 * 1024;

/// Returns the server's own descriptor of a worker's file, after checking it.
///
/// # Errors
/// Reason why the file cannot be sent, for the log.
pub(crate) fn take_descriptor(
    process: &OwnedFd,
    part: FilePart,
    launcher: Option<&dyn Launcher>,
) -> Result<OwnedFd, Failure> {
    let file = match launcher {
        Some(launcher) => launcher.open_file(process.as_fd(), part.fd.cast_unsigned()),
        None => descriptors::copy(process.as_fd(), part.fd as ForeignRawFd),
    };
    let file =
        file.map_err(|error| format!("descriptor {} of the worker cannot be had: {error}", part.fd))?;
    let stat = fstat(&file).map_err(Failure::new)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("what the worker wants to be sent is not a file".into());
    }
    match part.offset.checked_add(part.len) {
        Some(end) if end <= stat.st_size as u64 => Ok(file),
        _ => Err("the worker wants more of a file to be sent than it has".into()),
    }
}

/// Writes a part of a file as the next piece of the response's body. Pages that are not in memory are read by
/// another thread first, so that no disk blocks the core.
///
/// # Errors
/// See [`Exchange::write`] and [`Exchange::write_file`].
pub(crate) async fn send(
    exchange: &mut Exchange<'_>,
    file: OwnedFd,
    part: FilePart,
    length_known: bool,
) -> Result<(), Fault> {
    let file = Arc::new(File::from(file));
    let mut at = part.offset;
    let end = part.offset + part.len;
    while at < end {
        let next = end.min(at + WINDOW_BYTES);
        if !length_known {
            let theirs = file.clone();
            let len = (next - at) as usize;
            let bytes =
                exchange.core().offload_as(BlockingKind::Files, move || read(&theirs, at, len)).await?;
            exchange.write(&bytes).await?;
        } else {
            if !is_cached(&file, next - 1) || !is_cached(&file, at) {
                exchange.flush().await?;
                let theirs = file.clone();
                let len = (next - at) as usize;
                exchange.core().offload_as(BlockingKind::Files, move || read(&theirs, at, len)).await?;
            }
            exchange.write_file(&file, at..next).await?;
        }
        at = next;
    }
    Ok(())
}

fn is_cached(file: &File, at: u64) -> bool {
    let mut byte = [0];
    preadv2(file, &mut [std::io::IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT).is_ok()
}

fn read(file: &File, at: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match pread(file, &mut bytes[filled..], at + filled as u64)? {
            0 => return Err(std::io::Error::other("the file shrank while it was sent")),
            count => filled += count,
        }
    }
    Ok(bytes)
}
