//! Reading the contents of a folder for its listing.

use std::collections::HashMap;
use std::io;

use rustix::fs::{AtFlags, Dir, FileType, StatxFlags};

use crate::open::{BlockingMode, OpenError, OpenResult, Root};
use crate::tree::FileTree;

/// A file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderItem {
    /// Name; any bytes except `/` and NUL.
    pub name: Vec<u8>,
    /// Type of the item.
    pub kind: FolderItemKind,
    /// Modification time in seconds since 1970.
    pub modified_s: i64,
}

/// Type of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FolderItemKind {
    /// A folder.
    Folder,
    /// A file, with its size in bytes.
    File(u64),
}

/// Items of a folder, unordered.
#[derive(Debug, Default)]
pub struct FolderItems {
    /// Items, at most the requested number.
    pub items: Vec<FolderItem>,
    /// Whether there are more items.
    pub is_truncated: bool,
}

/// Reads the folder at `path` in all roots that have it; a file in an earlier root hides one in a later root.
/// Leaves out items that would not be served: hidden names, special files, refused links. Blocks.
///
/// # Errors
/// Errors of the system that concern more than a single item.
pub fn read(tree: &FileTree, path: &[u8], entries_max: usize) -> io::Result<FolderItems> {
    let mut items: HashMap<Vec<u8>, FolderItem> = HashMap::new();
    for root in tree.roots() {
        let OpenResult::Folder(folder) =
            root.open_path(path, BlockingMode::Blocking).map_err(io::Error::from)?
        else {
            continue;
        };
        let mut entries = Dir::read_from(&folder)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let below = [path, name].concat();
            if matches!(name, b"." | b"..") || tree.is_hidden(&below) || items.contains_key(name) {
                continue;
            }
            if items.len() >= entries_max {
                return Ok(FolderItems { items: items.into_values().collect(), is_truncated: true });
            }
            let item = match entry.file_type() {
                FileType::Symlink => read_link_target(root, &below, name)?,
                _ => read_item(&folder, name),
            };
            // An item that was removed meanwhile is left out of the listing.
            items.extend(item.map(|item| (name.to_vec(), item)));
        }
    }
    Ok(FolderItems { items: items.into_values().collect(), is_truncated: false })
}

fn read_item(folder: &std::fs::File, name: &[u8]) -> Option<FolderItem> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let mask = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::MTIME;
    let stat = rustix::fs::statx(folder, name, flags, mask).ok()?;
    let kind = match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
        FileType::Directory => FolderItemKind::Folder,
        FileType::RegularFile => FolderItemKind::File(stat.stx_size),
        _ => return None,
    };
    Some(FolderItem { name: name.to_vec(), kind, modified_s: stat.stx_mtime.tv_sec })
}

/// Returns the target of a link. Running out of descriptors is an error of the listing, not a reason to leave
/// the link out.
fn read_link_target(root: &Root, path: &[u8], name: &[u8]) -> io::Result<Option<FolderItem>> {
    let (kind, stamp) = match root.open_path(path, BlockingMode::Blocking) {
        Ok(OpenResult::File(_, stamp)) => (FolderItemKind::File(stamp.size), stamp),
        Ok(OpenResult::Folder(folder)) => match crate::open::Stamp::of(&folder) {
            Ok(stamp) => (FolderItemKind::Folder, stamp),
            Err(_) => return Ok(None),
        },
        Err(trouble @ OpenError::NoDescriptors) => return Err(trouble.into()),
        Ok(OpenResult::Missing | OpenResult::Refused(_)) | Err(_) => return Ok(None),
    };
    Ok(Some(FolderItem { name: name.to_vec(), kind, modified_s: stamp.modified_s }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::options::{FileOptions, Options};
    use crate::scratch::ScratchFolder;

    #[test]
    fn listing_contains_only_servable_entries() {
        let scratch = ScratchFolder::new();
        scratch.write("root/sub/a.txt", "abc");
        scratch.write("root/sub/.hidden", "");
        scratch.write("root/sub/folder/x", "");
        scratch.write("second/sub/a.txt", "longer");
        scratch.write("second/sub/b.txt", "b");
        scratch.write("outside", "");
        symlink("a.txt", scratch.path("root/sub/inside")).unwrap();
        symlink("folder", scratch.path("root/sub/inside-folder")).unwrap();
        symlink("../../outside", scratch.path("root/sub/out")).unwrap();
        symlink("none", scratch.path("root/sub/dangling")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(rustix::fs::CWD, scratch.path("root/sub/fifo"), FileType::Fifo, mode, 0).unwrap();
        let roots = vec![scratch.path("root"), scratch.path("second")];
        let tree = FileTree::open(&Options {
            files: FileOptions { root: roots, ..FileOptions::default() },
            ..Options::default()
        })
        .unwrap();

        let folder = read(&tree, b"/sub/", 100).unwrap();
        let mut found: Vec<_> =
            folder.items.iter().map(|item| (String::from_utf8_lossy(&item.name), item.kind)).collect();
        found.sort();
        let want = [
            ("a.txt", FolderItemKind::File(3)),
            ("b.txt", FolderItemKind::File(1)),
            ("folder", FolderItemKind::Folder),
            ("inside", FolderItemKind::File(3)),
            ("inside-folder", FolderItemKind::Folder),
        ];
        assert_eq!(found, want.map(|(name, kind)| (name.into(), kind)));
        assert!(!folder.is_truncated && folder.items.iter().all(|item| item.modified_s > 1_500_000_000));

        let few = read(&tree, b"/sub/", 2).unwrap();
        assert!(few.is_truncated && few.items.len() == 2);
        assert!(read(&tree, b"/none/", 2).unwrap().items.is_empty());
    }
}
