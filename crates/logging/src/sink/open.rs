//! Opening of log files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use failure::IoFailure;
use net::trusted_path;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Opens a log file for appending, without blocking, and creates it if it is missing. `None` for a FIFO
/// without a reader. As root, [`trusted_path`] applies its checks.
///
/// # Errors
/// The file cannot be opened; the message contains its path.
pub fn open_file(path: &Path) -> io::Result<Option<File>> {
    let named = |error: io::Error| {
        error.attempting(format_args!("cannot open the log {}", path.display())).about(path)
    };
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = trusted_path::open(path, flags, Mode::from_raw_mode(0o666)).map(File::from);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
            return match fs::metadata(path).ok().map(|found| found.file_type()) {
                Some(kind) if kind.is_fifo() => Ok(None),
                Some(kind) if kind.is_socket() => {
                    Err(named(io::Error::new(error.kind(), "it is a socket; name a file, or \"stdout\"")))
                }
                _ => Err(named(error)),
            };
        }
        Err(error) => return Err(named(error)),
    };
    // From here on a write to a FIFO may block until its reader reads.
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(Some(file))
}
