//! How a log file is opened.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens a log file for appending, without ever waiting; makes it where it is missing. `None` where it is a FIFO without a
/// reader. For root in a folder that others can write to, a link is not followed, and a file with several names is not
/// taken: else they could have any file written to.
///
/// # Errors
/// Why it cannot be opened, with its name.
pub(crate) fn open_file(path: &Path) -> io::Result<Option<File>> {
    let own = rustix::process::geteuid().as_raw();
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let is_ours = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|found| found.uid() == own && found.mode() & 0o022 == 0)
    };
    let careful = own == 0 && !is_ours(folder);
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot open the log {}: {error}", path.display()))
    };
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if careful {
        flags |= OFlags::NOFOLLOW;
    }
    let opened =
        OpenOptions::new().append(true).create(true).custom_flags(flags.bits().cast_signed()).open(path);
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
    let found = file.metadata().map_err(named)?;
    if careful && found.is_file() && found.nlink() > 1 {
        return Err(named(io::Error::other("it has several names, and others can write to its folder")));
    }
    // From here on a write may block until the reader reads.
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(Some(file))
}
