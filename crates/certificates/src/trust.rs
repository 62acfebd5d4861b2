//! Installation of the local authority's certificate in this machine's trust stores, and its removal.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use failure::Failure;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::local::verify_constrained;

/// Prefix of the file name in the system's folder.
const FILE: &str = "komainu-local-authority-";
/// Prefix of the certificate's nickname in NSS databases.
const NICKNAME: &str = "Komainu local authority ";

/// Trust stores of this machine.
#[derive(Debug, Clone)]
pub struct TrustStores {
    /// Folder of additional system-wide authorities.
    pub system_folder: PathBuf,
    /// Command that activates the contents of the folder, with its arguments.
    pub system_update: Vec<OsString>,
    /// Command that deactivates files removed from the folder, including the links to them, with its
    /// arguments.
    pub system_forget: Vec<OsString>,
    /// NSS databases, which Chromium and Firefox use: folders that contain `cert9.db`.
    pub nss: Vec<PathBuf>,
    /// Program that edits NSS databases.
    pub certutil: OsString,
}

/// Changes that succeeded, and those that failed with the reason, as sentences.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TrustReport {
    /// Successful changes.
    pub done: Vec<String>,
    /// Failed changes with the reason.
    pub failed: Vec<String>,
}

impl TrustStores {
    /// Returns the trust stores of a Debian system and of users with these home folders.
    pub fn of_machine(homes: &[PathBuf]) -> TrustStores {
        let mut nss = Vec::new();
        for home in homes {
            nss.push(home.join(".pki/nssdb"));
            for profiles in [".mozilla/firefox", "snap/firefox/common/.mozilla/firefox"] {
                let entries = fs::read_dir(home.join(profiles)).into_iter().flatten().flatten();
                nss.extend(entries.map(|entry| entry.path()));
            }
        }
        nss.retain(|folder| folder.join("cert9.db").is_file());
        nss.sort();
        TrustStores {
            system_folder: "/usr/local/share/ca-certificates".into(),
            system_update: vec!["update-ca-certificates".into()],
            // Without `--fresh` the link to a removed file may remain.
            system_forget: vec!["update-ca-certificates".into(), "--fresh".into()],
            nss,
            certutil: "certutil".into(),
        }
    }

    fn certutil(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.certutil);
        let mut database = OsString::from("sql:");
        database.push(folder);
        command.arg("-d").arg(database);
        command
    }
}

/// Runs a command given as words; does nothing if there are none.
fn run_words(words: &[OsString]) -> Result<(), Failure> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    run(Command::new(program).args(arguments)).map(drop)
}

/// Runs a command and returns its standard output.
fn run(command: &mut Command) -> Result<String, Failure> {
    run_with_input(command, "")
}

/// Runs a command with a short text as its standard input; returns its standard output.
fn run_with_input(command: &mut Command, input: &str) -> Result<String, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format!("{program} is not installed")),
        _ => Failure::new(format!("{program}: {error}")),
    };
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // Ignored: a program that does not read its input reports why it fails.
    let _ = process.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = process.wait_with_output().map_err(failed)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Failure::new(format!(
            "{program}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }
}

/// Certificate of a local authority.
#[derive(Debug, Clone)]
pub struct LocalRoot {
    pem: String,
    /// SHA-256 digest of the certificate, in hexadecimal digits.
    digest: String,
}

/// Digits of the digest that names of files and nicknames contain.
const NAME_DIGITS: usize = 16;

impl LocalRoot {
    /// Parses the first certificate of an untrusted PEM text. It must be one that this program creates for a
    /// local authority, valid for private names only. The rest of the text is discarded.
    ///
    /// # Errors
    /// There is no valid certificate of a local authority.
    pub fn parse(text: &[u8]) -> Result<LocalRoot, Failure> {
        let certificate = CertificateDer::from_pem_slice(text).map_err(|_| "this is not a certificate")?;
        verify_constrained(&certificate)?;
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &certificate);
        let digest = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let body = data_encoding::BASE64.encode(&certificate);
        let lines: Vec<&str> =
            body.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        let pem = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"));
        Ok(LocalRoot { pem, digest })
    }

    /// SHA-256 fingerprint of the certificate: 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.digest
    }

    /// The part of the fingerprint that distinguishes installed authorities.
    fn short_fingerprint(&self) -> &str {
        &self.digest[..NAME_DIGITS]
    }
}

/// Installs the authority.
pub fn trust(root: &LocalRoot, stores: &TrustStores) -> TrustReport {
    let (pem, fingerprint) = (&root.pem, root.short_fingerprint());
    let mut report = TrustReport::default();
    let file = stores.system_folder.join(format!("{FILE}{fingerprint}.crt"));
    let installed = fs::create_dir_all(&stores.system_folder)
        .and_then(|()| fs::write(&file, pem))
        .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o644)));
    match installed.map_err(Failure::new).and_then(|()| run_words(&stores.system_update)) {
        Ok(()) => report.done.push(format!("the system trusts it: {}", file.display())),
        Err(error) => {
            // Do not leave a file that is not in effect.
            let _ = fs::remove_file(&file);
            report.failed.push(format!("the system does not trust it: {}: {error}", file.display()));
        }
    }
    for folder in &stores.nss {
        let mut command = stores.certutil(folder);
        command.args(["-A", "-t", "C,,", "-n"]).arg(format!("{NICKNAME}{fingerprint}"));
        match run_with_input(&mut command, pem) {
            Ok(_) => report.done.push(format!("browsers with this database trust it: {}", folder.display())),
            Err(error) => {
                report.failed.push(format!("{}: {error} (Debian: libnss3-tools)", folder.display()))
            }
        }
    }
    report
}

/// Removes the authority that [`trust`] installed, or with `None` those of all state folders.
pub fn untrust(root: Option<&LocalRoot>, stores: &TrustStores) -> TrustReport {
    let fingerprint = root.map_or("", LocalRoot::short_fingerprint);
    let file = format!("{FILE}{fingerprint}");
    let nickname = format!("{NICKNAME}{fingerprint}");
    let mut report = TrustReport::default();
    let entries = fs::read_dir(&stores.system_folder).into_iter().flatten().flatten();
    let ours = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&file) && name.ends_with(".crt")
    });
    let mut removed = false;
    for path in ours {
        match fs::remove_file(&path) {
            Ok(()) => {
                removed = true;
                report.done.push(format!("removed {}", path.display()));
            }
            Err(error) => report.failed.push(format!("{}: {error}", path.display())),
        }
    }
    if let Err(error) = if removed { run_words(&stores.system_forget) } else { Ok(()) } {
        report.failed.push(format!("the system still trusts it: {error}"));
    }
    for folder in &stores.nss {
        let listed = run(stores.certutil(folder).arg("-L"));
        let listed = listed.map_err(|error| report.failed.push(format!("{}: {error}", folder.display())));
        let names: Vec<String> = listed
            .unwrap_or_default()
            .lines()
            .filter_map(|line| {
                line.strip_prefix(NICKNAME)?.split_whitespace().next().map(|rest| format!("{NICKNAME}{rest}"))
            })
            .filter(|name| name.starts_with(&nickname))
            .collect();
        for name in names {
            match run(stores.certutil(folder).args(["-D", "-n"]).arg(&name)) {
                Ok(_) => report.done.push(format!("removed {name} from {}", folder.display())),
                Err(error) => report.failed.push(format!("{}: {error}", folder.display())),
            }
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::local::LocalAuthority;
    use crate::state_folder::StateFolder;
    use crate::state_folder::tests::scratch;

    fn root(store: &StateFolder) -> LocalRoot {
        LocalRoot::parse(&fs::read(store.root_path()).unwrap()).unwrap()
    }

    #[test]
    fn only_a_local_authority_certificate_is_accepted() {
        let path = scratch("bundle");
        let store = StateFolder::open(&path).unwrap();
        LocalAuthority::open(&store, "host", SystemTime::now()).unwrap();
        let certificate = fs::read(store.root_path()).unwrap();
        let bundle = fs::read(store.authority_path()).unwrap();
        assert!(String::from_utf8_lossy(&bundle).contains("PRIVATE KEY"));
        let found = LocalRoot::parse(&[&bundle[..], b"more"].concat()).unwrap();
        assert_eq!(found.pem.as_bytes(), certificate);
        for text in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(LocalRoot::parse(text.as_bytes()).is_err(), "{text:?}");
        }
        fs::remove_dir_all(path).unwrap();
    }

    /// Uses a temporary folder and a test command in place of the system's.
    #[test]
    fn system_trust_store_adds_and_removes_the_authority() {
        let path = scratch("trust");
        let store = StateFolder::open(&path).unwrap();
        LocalAuthority::open(&store, "host", SystemTime::now()).unwrap();
        let updates = path.join("updates");
        let script = format!("ls {} >> {}", path.join("system").display(), updates.display());
        let mut stores = TrustStores {
            system_folder: path.join("system"),
            system_update: ["sh", "-c", &script].map(OsString::from).to_vec(),
            system_forget: ["sh", "-c", &script].map(OsString::from).to_vec(),
            nss: Vec::new(),
            certutil: "certutil".into(),
        };
        let report = trust(&root(&store), &stores);
        assert_eq!((report.done.len(), report.failed.len()), (1, 0), "{report:?}");
        let files: Vec<_> =
            fs::read_dir(path.join("system")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(fs::read(&files[0]).unwrap(), fs::read(store.root_path()).unwrap());
        assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o644);
        fs::write(path.join("system/other.crt"), "").unwrap();
        // The authority of another folder is a different one.
        let other = StateFolder::open(&path.join("other")).unwrap();
        LocalAuthority::open(&other, "host", SystemTime::now()).unwrap();
        let report = untrust(Some(&root(&other)), &stores);
        assert_eq!(report, TrustReport::default());
        let report = untrust(Some(&root(&store)), &stores);
        assert_eq!((report.done.len(), report.failed.len()), (1, 0), "{report:?}");
        assert_eq!(fs::read_dir(path.join("system")).unwrap().count(), 1);
        let seen = fs::read_to_string(&updates).unwrap();
        assert_eq!(seen.matches(FILE).count(), 1, "{seen}");
        // A failing command leaves nothing behind, and its output is reported.
        stores.system_update = ["sh", "-c", "echo no rights >&2; exit 1"].map(OsString::from).to_vec();
        let report = trust(&root(&store), &stores);
        assert!(report.done.is_empty() && report.failed[0].contains("no rights"), "{report:?}");
        assert_eq!(fs::read_dir(path.join("system")).unwrap().count(), 1);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn browser_trust_store_adds_and_removes_the_authority() {
        if Command::new("certutil").arg("-H").stdin(Stdio::null()).output().is_err() {
            #[allow(clippy::print_stderr, reason = "a skipped test says so")]
            {
                eprintln!("SKIPPED: certutil is not installed (libnss3-tools)");
            }
            return;
        }
        let path = scratch("nss");
        let store = StateFolder::open(&path).unwrap();
        LocalAuthority::open(&store, "host", SystemTime::now()).unwrap();
        let home = path.join("home");
        let database = home.join(".pki/nssdb");
        fs::create_dir_all(&database).unwrap();
        let stores = TrustStores {
            system_folder: path.join("system"),
            system_update: Vec::new(),
            system_forget: Vec::new(),
            ..TrustStores::of_machine(std::slice::from_ref(&home))
        };
        assert!(stores.nss.is_empty());
        run(stores.certutil(&database).args(["-N", "--empty-password"])).unwrap();
        let stores = TrustStores { nss: TrustStores::of_machine(&[home]).nss, ..stores };
        assert_eq!(stores.nss, std::slice::from_ref(&database));
        let report = trust(&root(&store), &stores);
        assert_eq!((report.done.len(), report.failed.len()), (2, 0), "{report:?}");
        let listed = || run(stores.certutil(&database).arg("-L")).unwrap();
        assert!(listed().contains(NICKNAME), "{}", listed());
        let report = untrust(None, &stores);
        assert_eq!((report.done.len(), report.failed.len()), (2, 0), "{report:?}");
        assert!(!listed().contains(NICKNAME), "{}", listed());
        fs::remove_dir_all(path).unwrap();
    }
}
