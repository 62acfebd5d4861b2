//! Tables of the stores: in memory and on disk.

use std::path::PathBuf;

use settings::directive_table::table;
use settings::directives;
use settings::shape::{Maybe, PathShape, Size};
use settings::units::{GIB, KIB, MIB};

directives! {
    /// The store of cached responses, in memory, shared by all routes that have `cache`. It counts against
    /// `limits.memory`, of which it takes at most a quarter. A change empties it.
    ///
    /// ```toml
    /// [cache]
    /// memory = "256MiB"
    ///
    /// [[route]]
    /// proxy = "http://127.0.0.1:3000"
    /// cache = true
    /// ```
    CacheStore in "`[cache]`" {
        /// Bytes of stored responses, with their keys and header fields. The least requested are removed
        /// first.
        "memory" memory_bytes_max: u64 = "64MiB", Size { min: MIB, max: 1024 * GIB };
        /// Content of the largest response that is stored; at most a sixteenth of `memory`.
        "object" object_bytes_max: u64 = "4MiB", Size { min: KIB, max: 64 * GIB };
        /// A second store on disk, which survives a restart.
        "disk" disk: Option<CacheDisk> = absent("none"), Maybe(table::<CacheDisk>());
    }
}

directives! {
    /// The cache on disk. Responses that are stored in memory and fresh for ten seconds or more are also
    /// written to disk. They are read from there after a restart, or when memory has no room for them.
    ///
    /// ```toml
    /// [cache]
    /// disk = { path = "/var/cache/komainu", size = "10GiB" }
    /// ```
    ///
    /// Each response is a file with checksums. Damaged or incomplete files are dropped. While the folder
    /// cannot be written to (the disk is full or fails), only memory is used; the error log reports it once.
    /// A folder can be used by one process at a time.
    CacheDisk in "`disk` of `[cache]`" {
        /// The folder. Started as root, the server makes it, for the user that it runs as; a change needs a restart while
        /// `sandbox` is on.
        "path" path: PathBuf = required(""), PathShape("a folder");
        /// Bytes of disk space, in whole blocks. The oldest responses that were not used since are removed
        /// first.
        "size" bytes_max: u64 = "1GiB", Size { min: MIB, max: 1 << 50 };
    }
}
