//! Descriptors of served folders: one per folder, shared by all sites and cores that serve it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

/// Device and inode number of a folder.
pub type FolderId = (u64, u64);

/// A folder as reached through one mount; another mount of the same folder may have different folders mounted
/// below.
type FolderKey = (FolderId, u64);

/// Folders that are open. A folder descriptor has no state, so that it can be shared.
static OPEN_FOLDERS: Mutex<BTreeMap<FolderKey, Weak<OpenFolder>>> = Mutex::new(BTreeMap::new());

/// File systems whose answers come from another machine or process, which may not answer: magic numbers of
/// `linux/magic.h`, and of Lustre and GPFS.
const REMOTE: [u64; 15] = [
    0x6969,      // NFS
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB 2 and later
    0x6573_5546, // FUSE
    0x0102_1997, // 9P
    0x00c3_6400, // Ceph
    0x5346_414f, // AFS of OpenAFS
    0x6b41_4653, // AFS of the kernel
    0x7375_7245, // Coda
    0x0116_1970, // GFS2
    0x7461_636f, // OCFS2
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x0187,      // a mount that is made when it is used
];

/// An open folder.
#[derive(Debug)]
pub struct OpenFolder {
    descriptor: OwnedFd,
    key: FolderKey,
    is_remote: bool,
}

impl OpenFolder {
    /// Returns the folder of a descriptor. If it is open already, the existing descriptor is used, and this
    /// one is closed. May block.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn shared(descriptor: OwnedFd) -> Result<Arc<OpenFolder>, Errno> {
        let key = key(&descriptor)?;
        let is_remote = rustix::fs::fstatfs(&descriptor)
            .is_ok_and(|found| REMOTE.contains(&(found.f_type.cast_unsigned() & 0xffff_ffff)));
        let mut open = OPEN_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(folder);
        }
        let folder = Arc::new(OpenFolder { descriptor, key, is_remote });
        open.insert(key, Arc::downgrade(&folder));
        Ok(folder)
    }

    /// Whether a descriptor refers to this folder.
    #[must_use]
    pub fn is_same_as(&self, descriptor: &OwnedFd) -> bool {
        key(descriptor).is_ok_and(|key| key == self.key)
    }

    /// Whether the file system is that of another machine or process, so that any call may block for long.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Returns the descriptor.
    #[must_use]
    pub fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Returns the device and inode number.
    #[must_use]
    pub fn id(&self) -> FolderId {
        self.key.0
    }
}

impl Drop for OpenFolder {
    fn drop(&mut self) {
        let mut open = OPEN_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have opened the folder again since the last use of this descriptor.
        if open.get(&self.key).is_some_and(|folder| folder.strong_count() == 0) {
            open.remove(&self.key);
        }
    }
}

fn key(descriptor: &OwnedFd) -> Result<FolderKey, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    // What the key consists of never changes: no other machine is asked for it.
    match rustix::fs::statx(descriptor, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted) {
        Ok(found) => {
            let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
            Ok(((device, found.stx_ino), found.stx_mnt_id))
        }
        // Some container sandboxes do not allow this call.
        Err(_) => rustix::fs::fstat(descriptor).map(|found| ((found.st_dev, found.st_ino), 0)),
    }
}
