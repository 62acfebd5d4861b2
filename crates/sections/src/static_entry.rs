//! Entries of the static tables (RFC 7541 appendix A, RFC 9204 appendix A).

use http::Name;

/// An entry of a static table.
#[derive(Clone, Copy, Debug)]
pub struct StaticEntry {
    /// The known name of the field.
    pub id: Name,
    /// The line `name: value\r\n`, the form in which fields are decoded.
    pub line: &'static str,
    /// Length of the name in bytes.
    pub name_len: usize,
}

impl StaticEntry {
    /// The name.
    #[must_use]
    pub const fn name(&self) -> &'static [u8] {
        self.line.as_bytes().split_at(self.name_len).0
    }

    /// The value.
    #[must_use]
    pub const fn value(&self) -> &'static [u8] {
        let value = self.line.as_bytes().split_at(self.name_len + 2).1;
        value.split_at(value.len() - 2).0
    }
}

/// Marks a known name that no entry has.
pub const NO_ENTRY: u8 = u8::MAX;

/// Returns the index of the first entry with each known name, by the number of the name; [`NO_ENTRY`] if there
/// is none.
#[must_use]
pub const fn first_by_name(entries: &[StaticEntry]) -> [u8; 256] {
    let mut table = [NO_ENTRY; 256];
    let mut index = entries.len();
    while index > 0 {
        index -= 1;
        let id = entries[index].id as usize;
        if id != Name::Other as usize {
            table[id] = index as u8;
        }
    }
    table
}

/// Makes an array of entries from lines of `KnownName "name" "value";`.
#[macro_export]
macro_rules! static_entries {
    ($($id:ident $name:literal $value:literal;)*) => {
        [
            $($crate::static_entry::StaticEntry {
                id: ::http::Name::$id,
                line: concat!($name, ": ", $value, "\r\n"),
                name_len: $name.len(),
            },)*
        ]
    };
}
