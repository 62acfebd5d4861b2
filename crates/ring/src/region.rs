//! The shared memory: atomic words, and bytes that are copied in and out but never borrowed.
//!
//! Another process may write any byte at any time. Therefore no `&[u8]` into the region exists: control words
//! are read as atomics, payload is copied to private memory by raw copies, and values are validated only
//! after copying.

#[cfg(loom)]
pub(crate) use loom_model::Region;
#[cfg(not(loom))]
pub(crate) use native::Region;

#[cfg(not(loom))]
mod native {
    use core::ptr::{self, NonNull};
    use core::slice;
    use core::sync::atomic::{Ordering, compiler_fence};
    use rustix::fd::BorrowedFd;
    use rustix::io;
    #[cfg(not(miri))]
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use crate::sync::AtomicU32;

    /// A mapping of the channel's memory.
    pub(crate) struct Region {
        start: NonNull<AtomicU32>,
        words: usize,
    }

    // SAFETY: the memory is accessed through atomics and raw copies only; the mapping lives until `drop`.
    unsafe impl Send for Region {}
    // SAFETY: as above.
    unsafe impl Sync for Region {}

    impl Region {
        /// Allocates `words` words on Miri's heap: the same raw copies and atomics, in memory whose accesses
        /// are all checked.
        #[cfg(miri)]
        pub(crate) fn map(_: BorrowedFd<'_>, words: usize) -> io::Result<Region> {
            let layout = std::alloc::Layout::array::<AtomicU32>(words).map_err(|_| io::Errno::NOMEM)?;
            // SAFETY: no channel has zero words.
            let start = unsafe { std::alloc::alloc_zeroed(layout) };
            Ok(Region { start: NonNull::new(start.cast()).ok_or(io::Errno::NOMEM)?, words })
        }

        /// Maps `words` words of `memory`, shared, for reading and writing.
        #[cfg(not(miri))]
        pub(crate) fn map(memory: BorrowedFd<'_>, words: usize) -> io::Result<Region> {
            // SAFETY: a new mapping at an address chosen by the kernel does not overlap existing memory.
            let start = unsafe {
                mmap(
                    ptr::null_mut(),
                    words * 4,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    memory,
                    0,
                )
            }?;
            let start = NonNull::new(start.cast()).ok_or(io::Errno::NOMEM)?;
            Ok(Region { start, words })
        }

        pub(crate) fn words(&self) -> &[AtomicU32] {
            // SAFETY: the mapping is page-aligned, `words` long, lives as long as `self`, and starts as zeroes; every
            // bit pattern is an AtomicU32, which may change under a shared reference.
            unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
        }

        /// Copies `bytes` into the region at byte `at`.
        pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
            assert!(at <= self.words * 4 && bytes.len() <= self.words * 4 - at, "a write inside the region");
            // SAFETY: in bounds by the assertion; `bytes` is private memory, so the two do not overlap.
            unsafe {
                let to = self.start.as_ptr().cast::<u8>().add(at);
                ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }

        /// Copies bytes from `at`, filling all of `into`.
        pub(crate) fn take(&self, at: usize, into: &mut [u8]) {
            // SAFETY: `into` is valid for writes of its length.
            unsafe { self.take_raw(at, into.as_mut_ptr(), into.len()) }
        }

        /// Appends the `len` bytes at `at` to `into`.
        pub(crate) fn append(&self, at: usize, len: usize, into: &mut Vec<u8>) {
            into.reserve(len);
            // SAFETY: `reserve` made room for `len` bytes past the length, and they are written before they count.
            unsafe {
                self.take_raw(at, into.as_mut_ptr().add(into.len()), len);
                into.set_len(into.len() + len);
            }
        }

        /// # Safety
        /// `into` is private memory, valid for writes of `len` bytes.
        unsafe fn take_raw(&self, at: usize, into: *mut u8, len: usize) {
            assert!(at <= self.words * 4 && len <= self.words * 4 - at, "a read inside the region");
            // SAFETY: in bounds by the assertion; the caller guarantees `into`, which cannot overlap the
            // region.
            unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().cast::<u8>().add(at), into, len) };
            // The compiler must not re-read from the original what was validated in the copy.
            compiler_fence(Ordering::SeqCst);
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            // SAFETY: this value owns the mapping, and no reference into it outlives `self`. A failure leaves
            // it mapped.
            #[cfg(not(miri))]
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.words * 4) };
            // SAFETY: allocated in `map` with this layout.
            #[cfg(miri)]
            unsafe {
                let layout = std::alloc::Layout::array::<AtomicU32>(self.words).expect("it was made with it");
                std::alloc::dealloc(self.start.as_ptr().cast(), layout);
            }
        }
    }
}

#[cfg(loom)]
mod loom_model {
    use crate::sync::{AtomicU32, Relaxed};

    /// Memory on loom's heap; payload consists of relaxed words too, so that a missing synchronization shows
    /// as stale bytes.
    pub(crate) struct Region(Vec<AtomicU32>);

    impl Region {
        pub(crate) fn heap(words: usize) -> Region {
            Region((0..words).map(|_| AtomicU32::new(0)).collect())
        }

        pub(crate) fn words(&self) -> &[AtomicU32] {
            &self.0
        }

        pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
            assert!(at % 4 == 0);
            for (index, piece) in bytes.chunks(4).enumerate() {
                let mut word = [0; 4];
                word[..piece.len()].copy_from_slice(piece);
                self.0[at / 4 + index].store(u32::from_le_bytes(word), Relaxed);
            }
        }

        pub(crate) fn take(&self, at: usize, into: &mut [u8]) {
            assert!(at % 4 == 0);
            for (index, piece) in into.chunks_mut(4).enumerate() {
                let word = self.0[at / 4 + index].load(Relaxed).to_le_bytes();
                piece.copy_from_slice(&word[..piece.len()]);
            }
        }

        pub(crate) fn append(&self, at: usize, len: usize, into: &mut Vec<u8>) {
            let start = into.len();
            into.resize(start + len, 0);
            self.take(at, &mut into[start..]);
        }
    }
}
