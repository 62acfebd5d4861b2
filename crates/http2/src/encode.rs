//! HPACK encoding (RFC 7541 section 6).

use http::{Name, Status};

use crate::entries::{STATIC_ENTRIES, STATIC_LEN, static_name};
use sections::block::ENTRY_OVERHEAD_BYTES;
use sections::indexing::{Indexing, hash, indexing};
use sections::table::DynamicTable;
use sections::{integer, lines, string};

/// Maximum size of the encoder's dynamic table, in bytes, even if the peer allows more.
pub const TABLE_BYTES_MAX: usize = 4096;
/// Number of buckets of the index over the dynamic table, which has at most 128 entries.
const BUCKETS: usize = 256;

/// Encodes the header blocks of one direction of a connection.
#[derive(Debug)]
pub struct HpackEncoder {
    table: DynamicTable,
    /// Buckets by hash: the low bits of an entry's sequence number. An entry found here is compared before
    /// use.
    buckets: Vec<u16>,
    /// Size updates to emit before the next block: the smallest size since the last block, and the final
    /// size.
    pending_update: Option<(usize, usize)>,
    /// The lines encoded last. Responses of a connection repeat each other.
    repeated: Option<Box<EncodedLines>>,
}

/// Lines and their encoding, which is that of equal lines until the table changes.
#[derive(Debug)]
struct EncodedLines {
    lines: Vec<u8>,
    encoded: Vec<u8>,
    /// Number of entries that the table had been given.
    added: u64,
}

/// Size of lines up to which their encoding is kept, in bytes.
const REPEATED_BYTES_MAX: usize = 1024;

impl Default for HpackEncoder {
    fn default() -> HpackEncoder {
        HpackEncoder {
            table: DynamicTable::new(TABLE_BYTES_MAX),
            buckets: Vec::new(),
            pending_update: None,
            repeated: None,
        }
    }
}

impl HpackEncoder {
    /// Memory held by the dynamic table, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let repeated = self.repeated.as_ref().map_or(0, |repeated| {
            size_of::<EncodedLines>() + repeated.lines.capacity() + repeated.encoded.capacity()
        });
        self.table.held_bytes() + self.buckets.capacity() * size_of::<u16>() + repeated
    }

    /// Releases memory beyond what the entries need.
    pub(crate) fn shrink(&mut self) {
        self.repeated = None;
        self.table.shrink();
    }

    /// Applies the peer's limit for the dynamic table (SETTINGS_HEADER_TABLE_SIZE).
    pub fn set_table_bytes_max(&mut self, table_bytes_max: usize) {
        let size = table_bytes_max.min(TABLE_BYTES_MAX);
        if size != self.table.size_max() || self.pending_update.is_some() {
            let smallest = self.pending_update.map_or(size, |(smallest, _)| smallest.min(size));
            self.pending_update = Some((smallest, size));
            self.repeated = None;
            self.table.resize(size);
        }
    }

    /// Begins a header block by emitting pending size updates.
    pub(crate) fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, size)) = self.pending_update.take() {
            if smallest < size {
                integer::write(out, 0x20, 5, smallest as u64);
            }
            integer::write(out, 0x20, 5, size as u64);
        }
    }

    /// Encodes a whole header block.
    pub fn encode_block<'f>(
        &mut self,
        out: &mut Vec<u8>,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    ) {
        self.begin(out);
        for (name, value) in fields {
            self.field(out, name, value);
        }
    }

    /// Encodes the `:status` field.
    pub(crate) fn status(&mut self, out: &mut Vec<u8>, status: Status) {
        let index = match status.code() {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let digits = status.digits();
                integer::write(out, 0x00, 4, 8);
                out.push(3);
                return out.extend_from_slice(&digits);
            }
        };
        out.push(0x80 | index);
    }

    /// Encodes a pseudo-header field whose name is that of the static entry `index`.
    pub(crate) fn pseudo(&mut self, out: &mut Vec<u8>, index: usize, value: &[u8]) {
        let entry = &STATIC_ENTRIES[index - 1];
        for (at, other) in STATIC_ENTRIES.iter().enumerate().skip(index - 1) {
            if other.name() != entry.name() {
                break;
            }
            if other.value() == value {
                return out.push(0x80 | (at + 1) as u8);
            }
        }
        // Paths differ from request to request; authorities repeat.
        match entry.name() {
            b":path" => literal(out, 0x00, 4, index, b"", value),
            name => self.indexed_field(out, Name::Other, name, value, index),
        }
    }

    /// Encodes a field, unless it belongs to a connection of HTTP/1 (RFC 9113 section 8.2.2). Name and value must be
    /// valid, which is checked in debug builds only.
    pub(crate) fn message_field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        debug_assert!(
            sections::block::is_valid(&name.to_ascii_lowercase(), value),
            "{}",
            name.escape_ascii()
        );
        let id = Name::of(name);
        if !lines::is_connection_specific(id) {
            self.named_field(out, id, name, value);
        }
    }

    /// Encodes field lines in HTTP/1 form, without those that belong to a connection of HTTP/1.
    pub(crate) fn lines(&mut self, out: &mut Vec<u8>, lines: &[u8]) {
        if let Some(repeated) = &self.repeated
            && repeated.added == self.table.added()
            && repeated.lines == lines
        {
            return out.extend_from_slice(&repeated.encoded);
        }
        let (start, added) = (out.len(), self.table.added());
        lines::for_each(lines, |name, value| self.message_field(out, name, value));
        if self.table.added() == added && lines.len() <= REPEATED_BYTES_MAX {
            self.remember(lines, &out[start..]);
        }
    }

    fn remember(&mut self, lines: &[u8], encoded: &[u8]) {
        let added = self.table.added();
        let repeated = self
            .repeated
            .get_or_insert_with(|| Box::new(EncodedLines { lines: Vec::new(), encoded: Vec::new(), added }));
        repeated.lines.clear();
        repeated.lines.extend_from_slice(lines);
        repeated.encoded.clear();
        repeated.encoded.extend_from_slice(encoded);
        repeated.added = added;
    }

    /// Encodes a field; the name is converted to lower case, and the value must be a valid field value.
    pub fn field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        self.named_field(out, Name::of(name), name, value);
    }

    /// Encodes a field whose name has already been looked up.
    pub(crate) fn named_field(&mut self, out: &mut Vec<u8>, id: Name, name: &[u8], value: &[u8]) {
        let named = static_name(id);
        match indexing(id, name, value) {
            Indexing::Yes => self.indexed_field(out, id, name, value, named),
            Indexing::No => literal(out, 0x00, 4, self.name_index(id, name, named), name, value),
            Indexing::Never => literal(out, 0x10, 4, self.name_index(id, name, named), name, value),
        }
    }

    /// The index of a name in the static table or of a dynamic entry; 0 if there is none.
    fn name_index(&self, id: Name, name: &[u8], named: usize) -> usize {
        match named {
            0 => self.find(hash(id, name, b""), |other, _| other.eq_ignore_ascii_case(name)).unwrap_or(0),
            index => index,
        }
    }

    fn indexed_field(&mut self, out: &mut Vec<u8>, id: Name, name: &[u8], value: &[u8], named: usize) {
        if named == ACCEPT_ENCODING && value == STATIC_ENTRIES[ACCEPT_ENCODING - 1].value() {
            return out.push(0x80 | ACCEPT_ENCODING as u8);
        }
        let hashed = hash(id, name, value);
        let is_same = |other: &[u8], text: &[u8]| text == value && other.eq_ignore_ascii_case(name);
        if let Some(index) = self.find(hashed, is_same) {
            return integer::write(out, 0x80, 7, index as u64);
        }
        if name.len() + value.len() + ENTRY_OVERHEAD_BYTES > self.table.size_max() / 2 {
            return literal(out, 0x00, 4, self.name_index(id, name, named), name, value);
        }
        literal(out, 0x40, 6, self.name_index(id, name, named), name, value);
        self.table.add_lowercase(id, name, value);
        if self.buckets.is_empty() {
            self.buckets.resize(BUCKETS, 0);
        }
        // Entries in the same bucket replace each other: the older one is encoded as a literal again, which
        // is also correct.
        self.buckets[hashed as usize % BUCKETS] = self.table.added() as u16;
        if named == 0 {
            self.buckets[hash(id, name, b"") as usize % BUCKETS] = self.table.added() as u16;
        }
    }

    /// The index of the entry with that hash for which `fits` returns true.
    fn find(&self, hashed: u32, fits: impl Fn(&[u8], &[u8]) -> bool) -> Option<usize> {
        let place = *self.buckets.get(hashed as usize % BUCKETS)?;
        let back = usize::from((self.table.added() as u16).wrapping_sub(place));
        let entry = self.table.entry(back)?;
        let (name, value) = self.table.field(entry);
        fits(name, value).then_some(STATIC_LEN + 1 + back)
    }
}

const ACCEPT_ENCODING: usize = 16;

/// Writes a literal field after its opcode, with the index of its name or the name itself.
fn literal(out: &mut Vec<u8>, opcode: u8, prefix: u32, index: usize, name: &[u8], value: &[u8]) {
    integer::write(out, opcode, prefix, index as u64);
    if index == 0 {
        let at = out.len();
        out.extend_from_slice(name);
        out[at..].make_ascii_lowercase();
        let lower = out.split_off(at);
        string::write(out, 0x00, 7, &lower);
    }
    string::write(out, 0x00, 7, value);
}
