//! Sandboxes of applications: which files and networks their processes can access.

use std::path::PathBuf;

use settings::directives;
use settings::shape::{Flag, List, Maybe, PathShape};

directives! {
    /// Access restrictions of an application's processes and of the programs that they start. The kernel
    /// enforces them (Landlock, seccomp). If the kernel has no Landlock, the application does not start.
    /// System calls that administer the machine or inspect other processes fail in a sandbox. From Linux 6.12
    /// on, sandboxed processes can signal only each other, and cannot connect to abstract Unix sockets of
    /// others. Before that, all signals fail except those to the own process group, also to children. A path
    /// must not lead through a symbolic link that a sandboxed application can replace, unless the link's
    /// target is granted anyway. The [refused system calls](security.md#sandbox) are listed with the programs
    /// that notice.
    ///
    /// ```toml
    /// [apps.shop]
    /// psgi = "shop/app.psgi"
    ///
    /// [apps.shop.sandbox]
    /// read    = ["/srv/shop/data"]
    /// write   = ["/srv/shop/data/uploads"]
    /// network = false
    /// ```
    AppSandbox in "`sandbox` of an application" {
        /// Files and folders that the processes may read, and everything below them. Always readable: the
        /// application's folder, its virtual environment, the paths in `write`, the system's own folders,
        /// such as `/usr` and `/etc`, and `/dev/null` and similar devices.
        "read" read: Option<Vec<PathBuf>> = absent("everything"), Maybe(List(PathShape("a file or folder")));
        /// Files and folders that they may write to, and everything below them. A path that does not exist when the
        /// application starts is not granted. Temporary files have a folder of their own (TMPDIR), unless the usual one is granted here.
        "write" write: Vec<PathBuf> = [], List(PathShape("a file or folder"));
        /// Whether they may use the network. Without it they may use Unix sockets alone.
        "network" network: bool = true, Flag;
        /// Whether the processes may change modes, owners, times and extended attributes of files. The kernel
        /// does not limit that to the paths in `write`: it applies to every file of their user. With `false`,
        /// such calls fail with EPERM, also for files in `write`. The mode of a new file or folder can be
        /// chosen freely.
        "attributes" attributes: bool = false, Flag;
    }
    held {
        /// Paths that sandboxes of other applications can write to. These can replace what is there.
        written_by_others: Vec<PathBuf>;
    }
}

/// Adds to each sandbox the paths that other sandboxes can write to.
pub(crate) fn share_written_paths<'a>(sandboxes: impl Iterator<Item = &'a mut AppSandbox>) {
    let sandboxes: Vec<_> = sandboxes.collect();
    let written: Vec<Vec<PathBuf>> = sandboxes.iter().map(|sandbox| sandbox.write.clone()).collect();
    for (index, sandbox) in sandboxes.into_iter().enumerate() {
        let others = written.iter().enumerate().filter(|(other, _)| *other != index);
        sandbox.written_by_others = others.flat_map(|(_, paths)| paths.clone()).collect();
    }
}
