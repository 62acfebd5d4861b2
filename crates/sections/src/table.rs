//! The dynamic table of HPACK (RFC 7541 section 2.3.2) and QPACK (RFC 9204 section 3.2), used for both
//! directions.

use std::collections::VecDeque;

use crate::block::ENTRY_OVERHEAD_BYTES;
use http::Name;

/// An entry of the dynamic table.
#[derive(Clone, Copy, Debug)]
pub struct DynamicEntry {
    /// Offset of the entry's line in the table's bytes.
    at: u32,
    name_len: u32,
    value_len: u32,
    /// The known name of the field.
    pub id: Name,
    /// Whether name and value are valid in a message: checked once, when the entry is added.
    pub is_valid: bool,
}

impl DynamicEntry {
    /// The entry's size as defined by RFC 7541 section 4.1.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.name_len as usize + self.value_len as usize + ENTRY_OVERHEAD_BYTES
    }

    /// Length of `name: value\r
    /// `, which is less than the size.
    const fn line_len(&self) -> usize {
        self.name_len as usize + self.value_len as usize + 4
    }

    /// Length of the name in bytes.
    #[must_use]
    pub const fn name_len(&self) -> usize {
        self.name_len as usize
    }
}

/// Entries in insertion order. Their lines are stored consecutively in one block, in the form in which fields
/// are decoded, so that decoding an indexed field is a single copy.
#[derive(Debug, Default)]
pub struct DynamicTable {
    lines: Vec<u8>,
    /// The newest entry is at the back.
    entries: VecDeque<DynamicEntry>,
    /// Total size of the entries.
    size: usize,
    size_max: usize,
    /// Number of entries ever added.
    added: u64,
}

impl DynamicTable {
    /// Creates an empty table of at most `size_max` bytes; allocates when the first entry is added.
    #[must_use]
    pub fn new(size_max: usize) -> DynamicTable {
        DynamicTable { size_max, ..DynamicTable::default() }
    }

    /// The entry at `index`, counted from the newest, which is 0.
    #[must_use]
    pub fn entry(&self, index: usize) -> Option<&DynamicEntry> {
        let place = self.entries.len().checked_sub(index + 1)?;
        self.entries.get(place)
    }

    /// Name and value of an entry of this table.
    #[must_use]
    pub fn field(&self, entry: &DynamicEntry) -> (&[u8], &[u8]) {
        let line = self.line(entry);
        let (name, value) = line.split_at(entry.name_len());
        (name, &value[2..value.len() - 2])
    }

    /// The line of an entry of this table.
    #[must_use]
    pub fn line(&self, entry: &DynamicEntry) -> &[u8] {
        &self.lines[entry.at as usize..entry.at as usize + entry.line_len()]
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Total size of the entries, in bytes as RFC 7541 section 4.1 counts them.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Number of entries ever added.
    #[must_use]
    pub fn added(&self) -> u64 {
        self.added
    }

    /// The maximum size in bytes.
    #[must_use]
    pub fn size_max(&self) -> usize {
        self.size_max
    }

    /// Memory held by the table, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.lines.capacity() + self.entries.capacity() * size_of::<DynamicEntry>()
    }

    /// Releases memory beyond what the entries need.
    pub fn shrink(&mut self) {
        self.lines.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    /// Changes the maximum size; evicts entries that exceed it. A table of size 0 holds no memory.
    pub fn resize(&mut self, size_max: usize) {
        self.size_max = size_max;
        self.evict(size_max);
        if size_max == 0 {
            (self.lines, self.entries) = (Vec::new(), VecDeque::new());
        }
    }

    fn evict(&mut self, size: usize) {
        while self.size > size
            && let Some(entry) = self.entries.pop_front()
        {
            self.size -= entry.size();
        }
        if self.entries.is_empty() {
            self.lines.clear();
        }
    }

    /// Adds an entry of an encoder, with the name in lower case. See [`DynamicTable::add`].
    pub fn add_lowercase(&mut self, id: Name, name: &[u8], value: &[u8]) -> bool {
        let is_added = self.add(id, name, value, true);
        if let Some(entry) = self.entries.back().filter(|_| is_added) {
            self.lines[entry.at as usize..][..name.len()].make_ascii_lowercase();
        }
        is_added
    }

    /// Adds an entry; one larger than the table empties it (RFC 7541 section 4.4). Returns whether the entry was
    /// added.
    pub fn add(&mut self, id: Name, name: &[u8], value: &[u8], is_valid: bool) -> bool {
        let size = name.len() + value.len() + ENTRY_OVERHEAD_BYTES;
        let Some(room) = self.size_max.checked_sub(size) else {
            self.evict(0);
            return false;
        };
        self.evict(room);
        self.compact(name.len() + value.len() + 4);
        let at = self.lines.len();
        self.lines.extend_from_slice(name);
        self.lines.extend_from_slice(b": ");
        self.lines.extend_from_slice(value);
        self.lines.extend_from_slice(b"\r\n");
        let name_len = name.len() as u32;
        let value_len = value.len() as u32;
        self.entries.push_back(DynamicEntry { at: at as u32, name_len, value_len, id, is_valid });
        self.size += size;
        self.added += 1;
        true
    }

    /// Moves the lines to the start of their block when the block exceeds one and a half times the maximum
    /// table size. Amortized, each added byte moves at most two.
    fn compact(&mut self, more: usize) {
        if self.lines.len() + more <= self.size_max + self.size_max / 2 {
            return;
        }
        let start = self.entries.front().map_or(self.lines.len(), |entry| entry.at as usize);
        self.lines.copy_within(start.., 0);
        self.lines.truncate(self.lines.len() - start);
        for entry in &mut self.entries {
            entry.at -= start as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_table_evicts_the_oldest_entries_first() {
        let mut table = DynamicTable::new(200);
        for round in 0..500usize {
            let value = vec![b'a' + (round % 26) as u8; round % 90];
            assert!(table.add_lowercase(Name::Other, b"Name", &value));
            assert!(table.size <= 200 && table.held_bytes() < 2000, "{}", table.held_bytes());
            let sizes: usize = table.entries.iter().map(DynamicEntry::size).sum();
            assert_eq!(sizes, table.size);
            for index in 0..table.len() {
                let earlier = round - index;
                let entry = table.entry(index).unwrap();
                let expected = vec![b'a' + (earlier % 26) as u8; earlier % 90];
                assert_eq!(table.field(entry), (&b"name"[..], &expected[..]));
            }
            assert!(table.entry(table.len()).is_none());
        }
        assert!(!table.add(Name::Other, b"n", &[b'v'; 168], true));
        assert_eq!((table.len(), table.size), (0, 0));
        assert!(table.add(Name::Other, b"n", &[b'v'; 167], true));
        table.resize(0);
        assert_eq!(table.held_bytes(), 0);
    }
}
