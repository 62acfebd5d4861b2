//! Servers in namespaces of their own, with resources that the test can exhaust: a small disk, a network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Folder, Rig, is_root, komainu};

/// A command in a new namespace. Prints a note and returns `None` if this process lacks the privileges; `make
/// test` requires them.
fn unshared(namespace: &str, setup: &str) -> Option<Command> {
    let mut arguments = vec![namespace];
    // Without root privileges, a user namespace provides them for its own resources.
    arguments.extend((!is_root()).then_some("--map-root-user"));
    let able = Command::new("unshare").args(&arguments).args(["sh", "-c", setup, "sh", "/mnt"]).output();
    if !able.as_ref().is_ok_and(|output| output.status.success()) {
        let missing = format!("no namespace of its own for a server (unshare {namespace}): {able:?}");
        assert!(std::env::var_os("KOMAINU_TEST_ALL").is_none(), "{missing}");
        eprintln!("SKIPPED: {missing}");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(arguments).args(["sh", "-c"]);
    Some(command)
}

fn start(mut command: Command, setup: &str, folder: Folder) -> Rig {
    command.arg(format!("{setup} && exec \"$2\" start -c \"$3\""));
    command.arg("sh").arg(folder.at("disk")).arg(komainu().get_program()).arg(folder.at("komainu.toml"));
    // The directory in which `hosted::modules` builds them.
    command.env("KOMAINU_WORKERS", Path::new(env!("CARGO_TARGET_TMPDIR")).join("workers"));
    command.env("RUNTIME_DIRECTORY", folder.at("run"));
    Rig::start(command, folder)
}

/// Serves with a configuration; `disk` in its directory is a file system of `kib` KiB.
pub fn on_small_disk(folder: Folder, kib: u32, config: &str) -> Option<Rig> {
    let setup = format!("mount -t tmpfs -o size={kib}k,mode=1777 none \"$1\"");
    let command = unshared("--mount", &setup)?;
    fs::create_dir(folder.at("disk")).unwrap();
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{config}"));
    Some(start(command, &setup, folder))
}

/// Serves with a configuration; `disk` in its directory is a file system that [`FrozenDisk`] can freeze. Returns `None`,
/// and prints a note, where there are no loop devices, as in many containers, or without root privileges.
pub fn on_loop_disk(folder: Folder, config: &str) -> Option<Rig> {
    const IMAGE_BYTES: u64 = 64 << 20;
    fs::create_dir(folder.at("disk")).unwrap();
    let image = folder.at("image");
    fs::File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
    let setup = format!("mount -o loop '{}' \"$1\" && chmod 1777 \"$1\"", image.display());
    let made = Command::new("/usr/sbin/mkfs.ext4").args(["-q", "-F"]).arg(&image).status();
    let able =
        Command::new("unshare").args(["--mount", "sh", "-c", &setup, "sh"]).arg(folder.at("disk")).output();
    if !is_root()
        || !made.is_ok_and(|made| made.success())
        || !able.as_ref().is_ok_and(|able| able.status.success())
    {
        eprintln!("SKIPPED: no file system that can be frozen: {able:?}");
        return None;
    }
    let command = unshared("--mount", "true")?;
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{config}"));
    Some(start(command, &setup, folder))
}

/// While it exists, calls that write to the server's disk do not return.
pub struct FrozenDisk(PathBuf);

impl FrozenDisk {
    pub fn new(rig: &Rig) -> FrozenDisk {
        let disk = on_disk(rig, "");
        let frozen = Command::new("/usr/sbin/fsfreeze").arg("--freeze").arg(&disk).status().unwrap();
        assert!(frozen.success());
        FrozenDisk(disk)
    }
}

impl Drop for FrozenDisk {
    fn drop(&mut self) {
        let _ = Command::new("/usr/sbin/fsfreeze").arg("--unfreeze").arg(&self.0).status();
    }
}

/// Serves with a configuration in a network namespace in which packets to 192.0.2.0/24 are lost. Clients use
/// the Unix socket `web.sock` in its directory.
pub fn on_lost_network(folder: Folder, config: &str) -> Option<Rig> {
    let setup = "ip link set lo up && { ip link add lost type dummy || ip link add lost type ifb; } && ip addr add 192.0.2.254/24 dev lost && ip link set lost up";
    let command = unshared("--net", setup)?;
    let socket = folder.at("web.sock");
    let listen = format!("listen = [\"127.0.0.1:80\", \"unix:{}\"]\n", socket.display());
    folder.write("komainu.toml", format!("{listen}{config}"));
    Some(start(command, setup, folder))
}

/// Path of a file on the server's disk.
pub fn on_disk(rig: &Rig, name: &str) -> PathBuf {
    let disk = rig.folder.at("disk");
    let path = Path::new("/proc").join(rig.child.id().to_string()).join("root");
    path.join(disk.strip_prefix("/").unwrap()).join(name)
}

/// Whether the server's disk is completely free.
pub fn is_disk_empty(rig: &Rig) -> bool {
    let space = rustix::fs::statvfs(on_disk(rig, "")).unwrap();
    space.f_bavail == space.f_blocks
}

/// Fills the server's disk until the file `filler` on it is removed.
pub fn fill_disk(rig: &Rig) {
    let filler = fs::OpenOptions::new().append(true).create(true).open(on_disk(rig, "filler")).unwrap();
    for size in [4096, 1] {
        while std::io::Write::write(&mut &filler, &vec![b'x'; size]).is_ok_and(|len| len > 0) {}
    }
}

/// A command in the server's network namespace.
pub fn in_network(rig: &Rig, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.args((!is_root()).then_some(["--user", "--preserve-credentials"]).into_iter().flatten());
    command.args(["--net", "--target", &rig.child.id().to_string(), program]).args(arguments);
    command
}
