//! Limits of a packet and of a request.

/// Maximum length of a packet's text in bytes; longer configuration errors are truncated.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of descriptors in one packet; the kernel's limit is 253.
pub const DESCRIPTORS_MAX: usize = 128;
/// Maximum number of descriptors of one request, which may take several packets.
pub const REQUEST_DESCRIPTORS_MAX: usize = 4096;
