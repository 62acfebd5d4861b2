//! Limits of a packet and of a request.

/// Longest text of a packet; an error of a configuration is cut there.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Descriptors of one packet; the kernel takes 253.
pub const DESCRIPTORS_MAX: usize = 128;
/// Descriptors of one request, which may take several packets.
pub const REQUEST_DESCRIPTORS_MAX: usize = 4096;
