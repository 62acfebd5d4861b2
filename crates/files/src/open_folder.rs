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

/// An open folder.
#[derive(Debug)]
pub struct OpenFolder {
    descriptor: OwnedFd,
    key: FolderKey,
}

impl OpenFolder {
    /// Returns the folder of a descriptor. If it is open already, the existing descriptor is used, and this
    /// one is closed.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn shared(descriptor: OwnedFd) -> Result<Arc<OpenFolder>, Errno> {
        let key = key(&descriptor)?;
        let mut open = OPEN_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(folder);
        }
        let folder = Arc::new(OpenFolder { descriptor, key });
        open.insert(key, Arc::downgrade(&folder));
        Ok(folder)
    }

    /// Whether a descriptor refers to this folder.
    #[must_use]
    pub fn is_same_as(&self, descriptor: &OwnedFd) -> bool {
        key(descriptor).is_ok_and(|key| key == self.key)
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
    match rustix::fs::statx(descriptor, "", AtFlags::EMPTY_PATH, wanted) {
        Ok(found) => {
            let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
            Ok(((device, found.stx_ino), found.stx_mnt_id))
        }
        // Some container sandboxes do not allow this call.
        Err(_) => rustix::fs::fstat(descriptor).map(|found| ((found.st_dev, found.st_ino), 0)),
    }
}
