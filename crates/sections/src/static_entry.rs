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
