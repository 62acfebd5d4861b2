//! Reading the contents of a folder for its listing.

use std::collections::HashMap;
use std::io;

use rustix::fs::{AtFlags, Dir, FileType, StatxFlags};

use crate::open::{OpenError, Opened, Patience, Root};
use crate::tree::FileTree;

/// A file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Name; any bytes except `/` and NUL.
    pub name: Vec<u8>,
    /// Type of the item.
    pub kind: ItemKind,
    /// Modification time in seconds since 1970.
    pub modified_s: i64,
}

/// Type of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ItemKind {
    /// A folder.
    Folder,
    /// A file, with its size in bytes.
    File(u64),
}

/// Items of a folder, unordered.
#[derive(Debug, Default)]
pub struct Folder {
    /// Items, at most the requested number.
    pub items: Vec<Item>,
    /// Whether there are more items.
    pub cut: bool,
}

/// Reads the folder at `path` in all roots that have it; a file in an earlier root hides one in a later root.
/// Leaves out items that would not be served: hidden names, special files, refused links. Blocks.
///
/// # Errors
/// Errors of the system that concern more than a single item.
pub fn read(tree: &FileTree, path: &[u8], entries_max: usize) -> io::Result<Folder> {
    let mut items: HashMap<Vec<u8>, Item> = HashMap::new();
    for root in tree.roots() {
        let Opened::Folder(folder) = root.look(path, Patience::Blocking).map_err(io::Error::from)? else {
            continue;
        };
        let mut entries = Dir::read_from(&folder)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let below = [path, name].concat();
            if matches!(name, b"." | b"..") || tree.hides(&below) || items.contains_key(name) {
                continue;
            }
            if items.len() >= entries_max {
                return Ok(Folder { items: items.into_values().collect(), cut: true });
            }
            let item = match entry.file_type() {
                FileType::Symlink => behind_link(root, &below, name)?,
                _ => beside(&folder, name),
            };
            // An item that was removed meanwhile is left out of the listing.
            items.extend(item.map(|item| (name.to_vec(), item)));
        }
    }
    Ok(Folder { items: items.into_values().collect(), cut: false })
}

fn beside(folder: &std::fs::File, name: &[u8]) -> Option<Item> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let mask = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::MTIME;
    let stat = rustix::fs::statx(folder, name, flags, mask).ok()?;
    let kind = match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
        FileType::Directory => ItemKind::Folder,
        FileType::RegularFile => ItemKind::File(stat.stx_size),
        _ => return None,
    };
    Some(Item { name: name.to_vec(), kind, modified_s: stat.stx_mtime.tv_sec })
}

/// Returns the target of a link. Running out of descriptors is an error of the listing, not a reason to leave
/// the link out.
fn behind_link(root: &Root, path: &[u8], name: &[u8]) -> io::Result<Option<Item>> {
    let (kind, stamp) = match root.look(path, Patience::Blocking) {
        Ok(Opened::File(_, stamp)) => (ItemKind::File(stamp.size), stamp),
        Ok(Opened::Folder(folder)) => match crate::open::Stamp::of(&folder) {
            Ok(stamp) => (ItemKind::Folder, stamp),
            Err(_) => return Ok(None),
        },
        Err(trouble @ OpenError::NoDescriptors) => return Err(trouble.into()),
        Ok(Opened::Missing | Opened::Refused(_)) | Err(_) => return Ok(None),
    };
    Ok(Some(Item { name: name.to_vec(), kind, modified_s: stamp.modified_s }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::options::Options;
    use crate::scratch::ScratchFolder;

    #[test]
    fn a_listing_holds_what_a_request_would_get() {
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
        let tree = FileTree::open(&Options { roots, ..Options::default() }).unwrap();

        let folder = read(&tree, b"/sub/", 100).unwrap();
        let mut found: Vec<_> =
            folder.items.iter().map(|item| (String::from_utf8_lossy(&item.name), item.kind)).collect();
        found.sort();
        let want = [
            ("a.txt", ItemKind::File(3)),
            ("b.txt", ItemKind::File(1)),
            ("folder", ItemKind::Folder),
            ("inside", ItemKind::File(3)),
            ("inside-folder", ItemKind::Folder),
        ];
        assert_eq!(found, want.map(|(name, kind)| (name.into(), kind)));
        assert!(!folder.cut && folder.items.iter().all(|item| item.modified_s > 1_500_000_000));

        let few = read(&tree, b"/sub/", 2).unwrap();
        assert!(few.cut && few.items.len() == 2);
        assert!(read(&tree, b"/none/", 2).unwrap().items.is_empty());
    }
}
