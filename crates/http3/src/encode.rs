//! QPACK encoding: field sections, and the encoder stream that fills the peer's dynamic table (RFC 9204).

use std::collections::{HashMap, VecDeque};

use http::{Name, Status};
use sections::block::ENTRY_OVERHEAD_BYTES;
use sections::indexing::{Indexing, hash, indexing};
use sections::table::DynamicTable;
use sections::{integer, lines, string};

use crate::error::{Http3Code, Http3Error};
use crate::instruction::InstructionReader;
use crate::static_table::{StaticMatch, find};

/// Maximum size of the encoder's dynamic table, in bytes, even if the peer allows more.
pub const TABLE_BYTES_MAX: usize = 4096;
/// Maximum number of sections that the peer has not acknowledged; further ones use the static table alone.
const UNACKNOWLEDGED_MAX: usize = 256;
/// Bytes of instructions that the peer has not accepted at which no entries are added.
const OUT_BYTES_MAX: usize = 8 * 1024;
/// Number of buckets of the index over the dynamic table, which has at most 128 entries.
const BUCKETS: usize = 256;

/// Encodes the field sections of one direction of a connection.
#[derive(Debug)]
pub struct QpackEncoder {
    table: DynamicTable,
    /// Number of entries that the peer's limit allows, by which insert counts are encoded.
    entries_max: u64,
    blocked_streams_max: u64,
    /// Number of entries that the peer has acknowledged.
    acknowledged: u64,
    /// Sections that the peer has not acknowledged, by stream.
    unacknowledged: HashMap<u64, VecDeque<SentSection>>,
    unacknowledged_count: usize,
    /// Buckets by hash: the low bits of an entry's absolute index plus 1. An entry found here is compared
    /// before use.
    buckets: Vec<u16>,
    /// Field lines of the section being written.
    lines: Vec<u8>,
    /// Bytes of an unfinished instruction of the peer.
    partial: Vec<u8>,
    /// Instructions for the peer: the encoder stream.
    out: Vec<u8>,
}

/// References of a section to the dynamic table.
#[derive(Clone, Copy, Debug)]
struct SentSection {
    /// Number of entries that the peer must have to decode the section.
    required: u64,
    /// The lowest absolute index that it refers to.
    lowest: u64,
}

impl Default for QpackEncoder {
    fn default() -> QpackEncoder {
        QpackEncoder {
            table: DynamicTable::new(0),
            entries_max: 0,
            blocked_streams_max: 0,
            acknowledged: 0,
            unacknowledged: HashMap::new(),
            unacknowledged_count: 0,
            buckets: Vec::new(),
            lines: Vec::new(),
            partial: Vec::new(),
            out: Vec::new(),
        }
    }
}

impl QpackEncoder {
    /// Applies the peer's settings; call it once.
    pub fn set_limits(&mut self, table_bytes_max: u64, blocked_streams_max: u64) {
        let size = usize::try_from(table_bytes_max).unwrap_or(usize::MAX).min(TABLE_BYTES_MAX);
        self.entries_max = table_bytes_max / ENTRY_OVERHEAD_BYTES as u64;
        self.blocked_streams_max = blocked_streams_max;
        if size >= ENTRY_OVERHEAD_BYTES {
            self.table.resize(size);
            integer::write(&mut self.out, 0x20, 5, size as u64);
        }
    }

    /// Memory held, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.table.held_bytes()
            + self.buckets.capacity() * size_of::<u16>()
            + self.unacknowledged.capacity() * (size_of::<u64>() + size_of::<VecDeque<SentSection>>())
            + self.unacknowledged_count * size_of::<SentSection>()
            + self.lines.capacity()
            + self.out.capacity()
    }

    /// The instructions for the peer.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Begins the section of a message on `stream`. Finish it with [`SectionWriter::finish`].
    pub fn begin(&mut self, stream: u64) -> SectionWriter<'_> {
        self.lines.clear();
        let may_refer = self.unacknowledged_count < UNACKNOWLEDGED_MAX;
        let may_block = may_refer && self.may_block(stream);
        let base = self.table.added();
        let sent = SentSection { required: 0, lowest: u64::MAX };
        SectionWriter { encoder: self, stream, base, sent, may_refer, may_block }
    }

    /// Whether a section of this stream may refer to entries that the peer has not acknowledged (section
    /// 2.1.2).
    fn may_block(&self, stream: u64) -> bool {
        if self.blocked_streams_max == 0 {
            return false;
        }
        let is_blocking = |sections: &VecDeque<SentSection>| {
            sections.iter().any(|section| section.required > self.acknowledged)
        };
        let others = self.unacknowledged.iter().filter(|(other, _)| **other != stream);
        let blocked = others.filter(|(_, sections)| is_blocking(sections)).count();
        (blocked as u64) < self.blocked_streams_max
    }

    /// Processes bytes of the peer's decoder stream.
    ///
    /// # Errors
    /// QPACK_DECODER_STREAM_ERROR.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Http3Error> {
        let error = |reason| Http3Error::connection(Http3Code::QPACK_DECODER_STREAM_ERROR, reason);
        // An instruction is one integer of at most ten bytes.
        let mut input = std::mem::take(&mut self.partial);
        input.extend_from_slice(bytes);
        let mut reader = InstructionReader::new(&input);
        let mut at = 0;
        while let Some(first) = reader.peek() {
            let prefix = match first {
                0x80.. => 7,
                _ => 6,
            };
            let Some(value) = reader.integer(prefix).map_err(error)? else { break };
            match first {
                0x80.. => self.acknowledge_section(value).map_err(error)?,
                0x40.. => self.cancel(value),
                _ => self.acknowledge_entries(value).map_err(error)?,
            }
            at = reader.consumed();
        }
        input.drain(..at);
        self.partial = input;
        Ok(())
    }

    fn acknowledge_section(&mut self, stream: u64) -> Result<(), &'static str> {
        const UNKNOWN: &str = "acknowledgement of a section that was not sent";
        let sections = self.unacknowledged.get_mut(&stream).ok_or(UNKNOWN)?;
        let section = sections.pop_front().ok_or(UNKNOWN)?;
        if sections.is_empty() {
            self.unacknowledged.remove(&stream);
        }
        self.unacknowledged_count -= 1;
        self.acknowledged = self.acknowledged.max(section.required);
        Ok(())
    }

    fn acknowledge_entries(&mut self, increment: u64) -> Result<(), &'static str> {
        let acknowledged = self.acknowledged.checked_add(increment).filter(|_| increment > 0);
        self.acknowledged = acknowledged
            .filter(|acknowledged| *acknowledged <= self.table.added())
            .ok_or("acknowledgement of entries that were not sent")?;
        Ok(())
    }

    /// Forgets the sections of a stream that the peer has abandoned.
    fn cancel(&mut self, stream: u64) {
        if let Some(sections) = self.unacknowledged.remove(&stream) {
            self.unacknowledged_count -= sections.len();
        }
    }

    /// Whether an entry of `bytes` can be added: only entries may be evicted that the peer has acknowledged
    /// and that no section refers to (section 2.1.1). `lowest` is the lowest entry of the section being
    /// written.
    fn has_room(&self, bytes: usize, lowest: u64) -> bool {
        let free = self.table.size_max() - self.table.size();
        if free >= bytes {
            return true;
        }
        let sections = self.unacknowledged.values().flatten();
        let lowest = sections.map(|section| section.lowest).fold(lowest, u64::min);
        let kept_from = lowest.min(self.acknowledged);
        let oldest = self.table.added() - self.table.len() as u64;
        let mut room = free;
        for absolute in oldest..kept_from.max(oldest) {
            let Some(entry) = self.entry(absolute) else { break };
            room += entry.size();
            if room >= bytes {
                return true;
            }
        }
        false
    }

    fn entry(&self, absolute: u64) -> Option<&sections::table::DynamicEntry> {
        let back = self.table.added().checked_sub(absolute + 1)?;
        self.table.entry(usize::try_from(back).ok()?)
    }

    /// The absolute index of the entry with that hash for which `fits` returns true.
    fn find(&self, hashed: u32, fits: impl Fn(&[u8], &[u8]) -> bool) -> Option<u64> {
        let place = *self.buckets.get(hashed as usize % BUCKETS)?;
        let back = u64::from((self.table.added() as u16).wrapping_sub(place));
        let absolute = self.table.added().checked_sub(back + 1)?;
        let entry = self.entry(absolute)?;
        let (name, value) = self.table.field(entry);
        fits(name, value).then_some(absolute)
    }

    /// Adds an entry and writes its instruction; returns its absolute index, or `None` if there is no room.
    fn insert(
        &mut self,
        id: Name,
        name: &[u8],
        value: &[u8],
        named: Option<usize>,
        hashed: u32,
        lowest: u64,
    ) -> Option<u64> {
        let size = name.len() + value.len() + ENTRY_OVERHEAD_BYTES;
        let is_small = size <= self.table.size_max() / 2 && self.out.len() < OUT_BYTES_MAX;
        if !is_small || !self.has_room(size, lowest) {
            return None;
        }
        match named {
            Some(index) => integer::write(&mut self.out, 0xc0, 6, index as u64),
            None => {
                let lower = name.to_ascii_lowercase();
                string::write(&mut self.out, 0x40, 5, &lower);
            }
        }
        string::write(&mut self.out, 0x00, 7, value);
        self.table.add_lowercase(id, name, value);
        if self.buckets.is_empty() {
            self.buckets.resize(BUCKETS, 0);
        }
        // Entries in the same bucket replace each other: the older one is encoded as a literal again, which
        // is also correct.
        self.buckets[hashed as usize % BUCKETS] = self.table.added() as u16;
        Some(self.table.added() - 1)
    }
}

/// A section being written. Names and values must come from a parsed head or from the server itself.
#[derive(Debug)]
pub struct SectionWriter<'e> {
    encoder: &'e mut QpackEncoder,
    stream: u64,
    /// Number of entries when the section began, from which its indexes count.
    base: u64,
    sent: SentSection,
    /// Whether the section may refer to the dynamic table.
    may_refer: bool,
    /// Whether it may refer to entries that the peer has not acknowledged.
    may_block: bool,
}

impl SectionWriter<'_> {
    /// Writes `:status`.
    pub fn status(&mut self, status: Status) {
        self.static_or_literal(Name::Other, b":status", &status.digits(), false);
    }

    /// Writes a pseudo-header field of a request. Paths differ from request to request; the others repeat.
    pub fn pseudo(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b":path" => self.static_or_literal(Name::Other, name, value, false),
            _ => self.indexed(Name::Other, name, value),
        }
    }

    /// Writes a field; the name may be in any case. Connection-specific fields are left out (RFC 9114 section
    /// 4.2).
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        let id = Name::of(name);
        if lines::is_connection_specific(id) {
            return;
        }
        match indexing(id, name, value) {
            Indexing::Yes => self.indexed(id, name, value),
            Indexing::No => self.static_or_literal(id, name, value, false),
            Indexing::Never => self.static_or_literal(id, name, value, true),
        }
    }

    /// Writes field lines in HTTP/1 form, such as those that every response carries.
    pub fn lines(&mut self, lines: &[u8]) {
        lines::for_each(lines, |name, value| self.field(name, value));
    }

    /// Appends the section to `out`.
    pub fn finish(self, out: &mut Vec<u8>) {
        let SentSection { required, .. } = self.sent;
        if required == 0 {
            out.extend_from_slice(&[0, 0]);
        } else {
            integer::write(out, 0x00, 8, required % (2 * self.encoder.entries_max) + 1);
            match self.base.checked_sub(required) {
                Some(delta) => integer::write(out, 0x00, 7, delta),
                None => integer::write(out, 0x80, 7, required - self.base - 1),
            }
            self.encoder.unacknowledged.entry(self.stream).or_default().push_back(self.sent);
            self.encoder.unacknowledged_count += 1;
        }
        out.extend_from_slice(&self.encoder.lines);
    }

    fn indexed(&mut self, id: Name, name: &[u8], value: &[u8]) {
        let named = match find(id, name, value) {
            StaticMatch::Field(index) => return self.push(0xc0, 6, index as u64),
            StaticMatch::Name(index) => Some(index),
            StaticMatch::None => None,
        };
        if self.encoder.table.size_max() == 0 || !self.may_refer {
            return self.literal(named, name, value, false);
        }
        let hashed = hash(id, name, value);
        let is_same = |other: &[u8], text: &[u8]| text == value && other.eq_ignore_ascii_case(name);
        let known = self.encoder.find(hashed, is_same);
        let found = known.or_else(|| self.encoder.insert(id, name, value, named, hashed, self.sent.lowest));
        match found.filter(|absolute| self.may_block || *absolute < self.encoder.acknowledged) {
            Some(absolute) => self.write_reference(absolute),
            None => self.literal(named, name, value, false),
        }
    }

    /// Writes a reference to a dynamic entry.
    fn write_reference(&mut self, absolute: u64) {
        self.sent.required = self.sent.required.max(absolute + 1);
        self.sent.lowest = self.sent.lowest.min(absolute);
        match self.base.checked_sub(absolute + 1) {
            Some(index) => self.push(0x80, 6, index),
            None => self.push(0x10, 4, absolute - self.base),
        }
    }

    fn static_or_literal(&mut self, id: Name, name: &[u8], value: &[u8], is_secret: bool) {
        match find(id, name, value) {
            StaticMatch::Field(index) => self.push(0xc0, 6, index as u64),
            StaticMatch::Name(index) => self.literal(Some(index), name, value, is_secret),
            StaticMatch::None => self.literal(None, name, value, is_secret),
        }
    }

    fn literal(&mut self, named: Option<usize>, name: &[u8], value: &[u8], is_secret: bool) {
        match named {
            Some(index) => self.push(if is_secret { 0x70 } else { 0x50 }, 4, index as u64),
            None => {
                let lower = name.to_ascii_lowercase();
                string::write(&mut self.encoder.lines, if is_secret { 0x30 } else { 0x20 }, 3, &lower);
            }
        }
        string::write(&mut self.encoder.lines, 0x00, 7, value);
    }

    fn push(&mut self, opcode: u8, prefix: u32, index: u64) {
        integer::write(&mut self.encoder.lines, opcode, prefix, index);
    }
}
