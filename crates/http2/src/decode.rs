//! HPACK decoding (RFC 7541 section 3).

use http::{Limits, Name};

use crate::entries::{STATIC_ENTRIES, STATIC_LEN};
use crate::error::ConnectionError;
use sections::block::{FieldBlock, is_valid};
use sections::table::DynamicTable;
use sections::{integer, string};

/// Maximum number of size updates at the start of a header block: the smallest size since the last block and
/// the final size (RFC 7541 section 4.2).
const SIZE_UPDATES_MAX: usize = 2;

/// Decodes the header blocks of one direction of a connection.
#[derive(Debug)]
pub struct HpackDecoder {
    table: DynamicTable,
    /// The maximum table size that this side allows, in bytes.
    size_max: usize,
    /// Whether the next block must begin with a size update, because the limit was reduced below the table's
    /// size.
    needs_update: bool,
}

/// The indexing of a literal field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Literal {
    /// The field is added to the dynamic table.
    Indexed,
    /// The field is not added to the dynamic table.
    Plain,
}

impl HpackDecoder {
    /// Creates a decoder with a dynamic table of at most `table_bytes_max`.
    #[must_use]
    pub fn new(table_bytes_max: usize) -> HpackDecoder {
        HpackDecoder {
            table: DynamicTable::new(table_bytes_max),
            size_max: table_bytes_max,
            needs_update: false,
        }
    }

    /// Memory held by the dynamic table, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.table.held_bytes()
    }

    /// Releases memory beyond what the entries need.
    pub(crate) fn shrink(&mut self) {
        self.table.shrink();
    }

    /// Changes the maximum table size; call it when the peer has acknowledged the setting.
    pub fn set_table_bytes_max(&mut self, table_bytes_max: usize) {
        self.size_max = table_bytes_max;
        self.needs_update = self.table.size_max() > table_bytes_max;
    }

    /// Decodes a whole header block into `block`, which is cleared first. Fields over the limits are left out
    /// but still added to the dynamic table, so that the connection can continue.
    ///
    /// # Errors
    /// COMPRESSION_ERROR if the block violates RFC 7541.
    pub fn decode(
        &mut self,
        input: &[u8],
        block: &mut FieldBlock,
        limits: &Limits,
    ) -> Result<(), ConnectionError> {
        block.clear();
        self.fields(input, block, limits).map_err(ConnectionError::compression)
    }

    fn fields(&mut self, input: &[u8], block: &mut FieldBlock, limits: &Limits) -> Result<(), &'static str> {
        let mut rest = self.size_updates(input)?;
        while let [first, ..] = rest {
            rest = match first {
                0x80.. => {
                    let (index, after) = integer::read(rest, 7)?;
                    self.indexed(index, block, limits)?;
                    after
                }
                0x40.. => self.literal(rest, 6, Literal::Indexed, block, limits)?,
                0x20.. => return Err("table size update inside a header block"),
                // Never-indexed fields differ from fields without indexing only for intermediaries; a proxy
                // encodes them by their names (see `HpackEncoder`).
                _ => self.literal(rest, 4, Literal::Plain, block, limits)?,
            };
        }
        Ok(())
    }

    fn size_updates<'i>(&mut self, input: &'i [u8]) -> Result<&'i [u8], &'static str> {
        let mut rest = input;
        let mut count = 0;
        while let [0x20..0x40, ..] = rest {
            let (size, after) = integer::read(rest, 5)?;
            if size > self.size_max {
                return Err("table size update above the limit");
            }
            count += 1;
            if count > SIZE_UPDATES_MAX {
                return Err("too many table size updates");
            }
            self.table.resize(size);
            (rest, self.needs_update) = (after, false);
        }
        if self.needs_update {
            return Err("table size update missing");
        }
        Ok(rest)
    }

    fn indexed(&mut self, index: usize, block: &mut FieldBlock, limits: &Limits) -> Result<(), &'static str> {
        if let Some(entry) = index.checked_sub(1).and_then(|place| STATIC_ENTRIES.get(place)) {
            block.push_line(entry.id, entry.line.as_bytes(), entry.name_len, limits);
            return Ok(());
        }
        let entry = self.dynamic(index)?;
        block.is_valid &= entry.is_valid;
        block.push_line(entry.id, self.table.line(entry), entry.name_len(), limits);
        Ok(())
    }

    fn dynamic(&self, index: usize) -> Result<&sections::table::DynamicEntry, &'static str> {
        index
            .checked_sub(STATIC_LEN + 1)
            .and_then(|index| self.table.entry(index))
            .ok_or("index outside the tables")
    }

    /// Decodes a literal field: appends its line to the block's bytes and removes it again if it exceeds a
    /// limit.
    fn literal<'i>(
        &mut self,
        input: &'i [u8],
        prefix: u32,
        literal: Literal,
        block: &mut FieldBlock,
        limits: &Limits,
    ) -> Result<&'i [u8], &'static str> {
        let start = block.bytes.len();
        let (index, mut rest) = integer::read(input, prefix)?;
        let known = match index {
            0 => {
                rest = string::read(rest, 7, &mut block.bytes)?;
                None
            }
            1..=STATIC_LEN => {
                let entry = &STATIC_ENTRIES[index - 1];
                block.bytes.extend_from_slice(entry.name());
                Some(entry.id)
            }
            _ => {
                let entry = self.dynamic(index)?;
                block.bytes.extend_from_slice(self.table.field(entry).0);
                Some(entry.id)
            }
        };
        let name_len = block.bytes.len() - start;
        block.bytes.extend_from_slice(b": ");
        rest = string::read(rest, 7, &mut block.bytes)?;
        let (name, value) = block.bytes[start..].split_at(name_len);
        let value = &value[2..];
        let id = known.unwrap_or_else(|| Name::of(name));
        let is_valid = is_valid(name, value);
        if literal == Literal::Indexed {
            self.table.add(id, name, value, is_valid);
        }
        block.is_valid &= is_valid;
        block.end_field(id, start, name_len, limits);
        Ok(rest)
    }
}
