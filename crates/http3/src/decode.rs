//! QPACK decoding: the encoder stream of the peer, and encoded field sections (RFC 9204).

use http::{Limits, Name};
use sections::block::{ENTRY_OVERHEAD_BYTES, FieldBlock, is_valid};
use sections::table::{DynamicEntry, DynamicTable};
use sections::{integer, string};

use crate::error::{Http3Code, Http3Error};
use crate::instruction::{InstructionPart, InstructionReader};
use crate::long_integer;
use crate::static_table::STATIC_ENTRIES;

/// Maximum number of bytes of acknowledgements queued for a peer that does not read its decoder stream.
const OUT_BYTES_MAX: usize = 64 * 1024;
/// Bytes of table entries that a peer may add before its first request, and the most that it may save up.
const CREDIT_BYTES_MAX: usize = 256 * 1024;
/// Bytes of table entries that each decoded section allows in addition.
const CREDIT_BYTES_PER_SECTION: usize = 8 * 1024;

/// Decodes the field sections of one direction of a connection.
#[derive(Debug)]
pub struct QpackDecoder {
    table: DynamicTable,
    /// Maximum table size that this side allows, in bytes.
    table_bytes_max: usize,
    /// Bytes of an unfinished instruction.
    partial: Vec<u8>,
    /// Number of entries that the peer knows this side to have received.
    acknowledged: u64,
    /// Bytes of entries that the peer may still add.
    credit_bytes: usize,
    /// Instructions for the peer: the decoder stream.
    out: Vec<u8>,
}

/// The result of decoding a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionOutcome {
    /// The section is decoded.
    Done,
    /// The section refers to entries that have not arrived: decode it again when
    /// [`QpackDecoder::inserted`] has reached this number.
    Blocked(u64),
}

impl QpackDecoder {
    /// Creates a decoder with a dynamic table of at most `table_bytes_max`.
    #[must_use]
    pub fn new(table_bytes_max: usize) -> QpackDecoder {
        QpackDecoder {
            table: DynamicTable::new(0),
            table_bytes_max,
            partial: Vec::new(),
            acknowledged: 0,
            credit_bytes: CREDIT_BYTES_MAX,
            out: Vec::new(),
        }
    }

    /// Memory held, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.table.held_bytes() + self.partial.capacity() + self.out.capacity()
    }

    /// Number of entries ever added to the table.
    #[must_use]
    pub fn inserted(&self) -> u64 {
        self.table.added()
    }

    /// Processes bytes of the peer's encoder stream.
    ///
    /// # Errors
    /// QPACK_ENCODER_STREAM_ERROR, or H3_EXCESSIVE_LOAD if entries are added without requests that use them.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Http3Error> {
        let error = |reason| Http3Error::connection(Http3Code::QPACK_ENCODER_STREAM_ERROR, reason);
        let mut buffered = std::mem::take(&mut self.partial);
        let input = if buffered.is_empty() {
            bytes
        } else {
            buffered.extend_from_slice(bytes);
            &buffered
        };
        let mut at = 0;
        while at < input.len() {
            let mut reader = InstructionReader::new(&input[at..]);
            let size = match self.instruction(&mut reader).map_err(error)? {
                Some(size) => size,
                None => break,
            };
            at += reader.consumed();
            self.credit_bytes = self
                .credit_bytes
                .checked_sub(size)
                .ok_or(Http3Error::connection(Http3Code::EXCESSIVE_LOAD, "table entries without requests"))?;
        }
        if buffered.is_empty() {
            self.partial = bytes[at..].to_vec();
        } else {
            buffered.drain(..at);
            self.partial = buffered;
        }
        Ok(())
    }

    /// Executes one instruction. Returns the size of the entry that it adds.
    fn instruction(&mut self, reader: &mut InstructionReader<'_>) -> InstructionPart<usize> {
        let Some(first) = reader.peek() else { return Ok(None) };
        let bytes_max = self.table.size_max();
        let mut line = Vec::new();
        match first {
            // Insert with name reference.
            0x80.. => {
                let Some(index) = reader.integer(6)? else { return Ok(None) };
                let id = if first & 0x40 != 0 {
                    let entry = usize::try_from(index).ok().and_then(|index| STATIC_ENTRIES.get(index));
                    let entry = entry.ok_or("index outside the static table")?;
                    line.extend_from_slice(entry.name());
                    entry.id
                } else {
                    let entry = self.relative(self.table.added(), index)?;
                    line.extend_from_slice(self.table.field(entry).0);
                    entry.id
                };
                let name_len = line.len();
                if reader.string(7, bytes_max, &mut line)?.is_none() {
                    return Ok(None);
                }
                self.insert(id, &line, name_len)
            }
            // Insert with literal name.
            0x40.. => {
                if reader.string(5, bytes_max, &mut line)?.is_none() {
                    return Ok(None);
                }
                let name_len = line.len();
                if reader.string(7, bytes_max, &mut line)?.is_none() {
                    return Ok(None);
                }
                self.insert(Name::of(&line[..name_len]), &line, name_len)
            }
            // Set dynamic table capacity.
            0x20.. => {
                let Some(capacity) = reader.integer(5)? else { return Ok(None) };
                let capacity =
                    usize::try_from(capacity).ok().filter(|capacity| *capacity <= self.table_bytes_max);
                self.table.resize(capacity.ok_or("table capacity above the limit")?);
                Ok(Some(ENTRY_OVERHEAD_BYTES))
            }
            // Duplicate.
            _ => {
                let Some(index) = reader.integer(5)? else { return Ok(None) };
                let entry = self.relative(self.table.added(), index)?;
                let id = entry.id;
                let (name, value) = self.table.field(entry);
                line.extend_from_slice(name);
                line.extend_from_slice(value);
                let name_len = name.len();
                self.insert(id, &line, name_len)
            }
        }
    }

    fn insert(&mut self, id: Name, line: &[u8], name_len: usize) -> InstructionPart<usize> {
        let (name, value) = line.split_at(name_len);
        let is_valid = is_valid(name, value);
        if self.table.add(id, name, value, is_valid) {
            Ok(Some(line.len() + ENTRY_OVERHEAD_BYTES))
        } else {
            Err("entry larger than the table")
        }
    }

    /// Decodes the section of a stream into `block`, which is cleared first. Fields over the limits are left
    /// out.
    ///
    /// # Errors
    /// QPACK_DECOMPRESSION_FAILED if the section violates RFC 9204, H3_EXCESSIVE_LOAD if the peer does not
    /// read acknowledgements.
    pub fn decode(
        &mut self,
        stream: u64,
        section: &[u8],
        block: &mut FieldBlock,
        limits: &Limits,
    ) -> Result<SectionOutcome, Http3Error> {
        block.clear();
        let error = |reason| Http3Error::connection(Http3Code::QPACK_DECOMPRESSION_FAILED, reason);
        let (prefix, lines) = self.prefix(section).map_err(error)?;
        if prefix.required > self.table.added() {
            return Ok(SectionOutcome::Blocked(prefix.required));
        }
        self.lines(prefix, lines, block, limits).map_err(error)?;
        self.credit_bytes = (self.credit_bytes + CREDIT_BYTES_PER_SECTION).min(CREDIT_BYTES_MAX);
        if prefix.required > 0 {
            // Section Acknowledgment, which also acknowledges the entries (section 4.4.1).
            integer::write(&mut self.out, 0x80, 7, stream);
            self.acknowledged = self.acknowledged.max(prefix.required);
            self.check_out()?;
        }
        Ok(SectionOutcome::Done)
    }

    /// Reads the prefix of a section (section 4.5.1); returns it and the field lines.
    fn prefix<'s>(&self, section: &'s [u8]) -> Result<(SectionPrefix, &'s [u8]), &'static str> {
        const CUT: &str = "section ends in its prefix";
        let (encoded, len) = long_integer::read(section, 8)?.ok_or(CUT)?;
        let rest = &section[len..];
        let is_negative = rest.first().ok_or(CUT)? & 0x80 != 0;
        let (delta, len) = long_integer::read(rest, 7)?.ok_or(CUT)?;
        let required = self.required_insert_count(encoded)?;
        let base = if is_negative {
            required.checked_sub(delta + 1).ok_or("negative base")?
        } else {
            required + delta
        };
        Ok((SectionPrefix { required, base }, &rest[len..]))
    }

    /// Reconstructs the Required Insert Count (section 4.5.1.1).
    fn required_insert_count(&self, encoded: u64) -> Result<u64, &'static str> {
        const INVALID: &str = "invalid Required Insert Count";
        if encoded == 0 {
            return Ok(0);
        }
        let entries_max = (self.table_bytes_max / ENTRY_OVERHEAD_BYTES) as u64;
        let full_range = 2 * entries_max;
        if encoded > full_range {
            return Err(INVALID);
        }
        let value_max = self.table.added() + entries_max;
        let mut required = value_max / full_range * full_range + encoded - 1;
        if required > value_max {
            required = required.checked_sub(full_range).ok_or(INVALID)?;
        }
        if required == 0 { Err(INVALID) } else { Ok(required) }
    }

    fn lines(
        &self,
        prefix: SectionPrefix,
        lines: &[u8],
        block: &mut FieldBlock,
        limits: &Limits,
    ) -> Result<(), &'static str> {
        let mut rest = lines;
        while let [first, ..] = rest {
            // The request is refused whatever follows, and no later section depends on it.
            if block.is_too_large {
                break;
            }
            rest = match first {
                // Indexed field line.
                0x80.. => {
                    let (index, after) = integer::read(rest, 6)?;
                    if first & 0x40 != 0 {
                        let entry = STATIC_ENTRIES.get(index).ok_or("index outside the static table")?;
                        block.push_line(entry.id, entry.line.as_bytes(), entry.name_len, limits);
                    } else {
                        self.indexed(self.before_base(prefix, index)?, block, limits);
                    }
                    after
                }
                // Literal field line with name reference.
                0x40.. => {
                    let (index, after) = integer::read(rest, 4)?;
                    if first & 0x10 != 0 {
                        let entry = STATIC_ENTRIES.get(index).ok_or("index outside the static table")?;
                        literal(entry.id, entry.name(), after, block, limits)?
                    } else {
                        let entry = self.before_base(prefix, index)?;
                        literal(entry.id, self.table.field(entry).0, after, block, limits)?
                    }
                }
                // Literal field line with literal name.
                0x20.. => {
                    let start = block.bytes.len();
                    let after = string::read(rest, 3, &mut block.bytes)?;
                    let id = Name::of(&block.bytes[start..]);
                    value(id, start, after, block, limits)?
                }
                // Indexed field line with post-base index.
                0x10.. => {
                    let (index, after) = integer::read(rest, 4)?;
                    self.indexed(self.after_base(prefix, index)?, block, limits);
                    after
                }
                // Literal field line with post-base name reference.
                _ => {
                    let (index, after) = integer::read(rest, 3)?;
                    let entry = self.after_base(prefix, index)?;
                    literal(entry.id, self.table.field(entry).0, after, block, limits)?
                }
            };
        }
        Ok(())
    }

    fn indexed(&self, entry: &DynamicEntry, block: &mut FieldBlock, limits: &Limits) {
        block.is_valid &= entry.is_valid;
        block.push_line(entry.id, self.table.line(entry), entry.name_len(), limits);
    }

    fn before_base(&self, prefix: SectionPrefix, index: usize) -> Result<&DynamicEntry, &'static str> {
        let absolute = prefix.base.checked_sub(index as u64 + 1).ok_or(OUTSIDE)?;
        self.absolute(absolute, prefix)
    }

    fn after_base(&self, prefix: SectionPrefix, index: usize) -> Result<&DynamicEntry, &'static str> {
        self.absolute(prefix.base + index as u64, prefix)
    }

    /// The entry of an absolute index, which must be below the Required Insert Count (section 2.2.1).
    fn absolute(&self, index: u64, prefix: SectionPrefix) -> Result<&DynamicEntry, &'static str> {
        if index >= prefix.required {
            return Err("entry beyond the Required Insert Count");
        }
        self.entry(index)
    }

    /// The entry `index` before `base`, as instructions count.
    fn relative(&self, base: u64, index: u64) -> Result<&DynamicEntry, &'static str> {
        let absolute = base.checked_sub(index).and_then(|index| index.checked_sub(1)).ok_or(OUTSIDE)?;
        self.entry(absolute)
    }

    fn entry(&self, absolute: u64) -> Result<&DynamicEntry, &'static str> {
        let back = self.table.added().checked_sub(absolute + 1).ok_or(OUTSIDE)?;
        usize::try_from(back).ok().and_then(|back| self.table.entry(back)).ok_or(OUTSIDE)
    }

    /// Tells the peer that a stream is abandoned, so that it can forget what the stream refers to (section
    /// 2.2.2.2).
    ///
    /// # Errors
    /// H3_EXCESSIVE_LOAD if the peer does not read acknowledgements.
    pub fn cancel(&mut self, stream: u64) -> Result<(), Http3Error> {
        if self.table_bytes_max == 0 {
            return Ok(());
        }
        integer::write(&mut self.out, 0x40, 6, stream);
        self.check_out()
    }

    /// Returns the instructions for the peer. Entries that arrived since the last call are acknowledged.
    pub fn out(&mut self) -> &mut Vec<u8> {
        let increment = self.table.added() - self.acknowledged;
        if increment > 0 {
            integer::write(&mut self.out, 0x00, 6, increment);
            self.acknowledged = self.table.added();
        }
        &mut self.out
    }

    fn check_out(&self) -> Result<(), Http3Error> {
        if self.out.len() > OUT_BYTES_MAX {
            return Err(Http3Error::connection(Http3Code::EXCESSIVE_LOAD, "decoder stream is not read"));
        }
        Ok(())
    }

    /// Releases memory beyond what the entries need.
    pub fn shrink(&mut self) {
        self.table.shrink();
        self.partial.shrink_to_fit();
        self.out.shrink_to_fit();
    }
}

const OUTSIDE: &str = "index outside the dynamic table";

/// The prefix of a section.
#[derive(Clone, Copy)]
struct SectionPrefix {
    /// Number of entries that must have been added before the section can be decoded.
    required: u64,
    base: u64,
}

/// Decodes a literal field whose name is known.
fn literal<'i>(
    id: Name,
    name: &[u8],
    rest: &'i [u8],
    block: &mut FieldBlock,
    limits: &Limits,
) -> Result<&'i [u8], &'static str> {
    let start = block.bytes.len();
    block.bytes.extend_from_slice(name);
    value(id, start, rest, block, limits)
}

/// Decodes the value of the field whose name was written at `start`, and removes the field again if it
/// exceeds a limit.
fn value<'i>(
    id: Name,
    start: usize,
    rest: &'i [u8],
    block: &mut FieldBlock,
    limits: &Limits,
) -> Result<&'i [u8], &'static str> {
    let name_len = block.bytes.len() - start;
    block.bytes.extend_from_slice(b": ");
    let after = string::read(rest, 7, &mut block.bytes)?;
    let (name, value) = block.bytes[start..].split_at(name_len);
    block.is_valid &= is_valid(name, &value[2..]);
    block.end_field(id, start, name_len, limits);
    Ok(after)
}
