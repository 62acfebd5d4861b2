//! Country lookup of addresses in a MaxMind database, which is read into memory.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use failure::IoFailure;
use logging::notice::ErrorLog;
use maxminddb::{PathElement, Reader, WithinOptions};
use process::config_files::ConfigFiles;
use reload::KeptState;

/// Maximum size of a database, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of records that are checked before a database is used: they must be readable, and at least
/// one must have a country.
const CHECKED_RECORDS_MAX: usize = 10_000;

/// Paths of the country code in a record, in order of preference: the first two of MaxMind and DB-IP, the
/// others of IPinfo.
const COUNTRY_PATHS: [&[PathElement<'static>]; 4] = [
    &[PathElement::Key("country"), PathElement::Key("iso_code")],
    &[PathElement::Key("registered_country"), PathElement::Key("iso_code")],
    &[PathElement::Key("country_code")],
    &[PathElement::Key("country")],
];

/// Country database.
pub struct CountryDatabase {
    bytes: Arc<[u8]>,
    reader: Reader<Arc<[u8]>>,
}

impl CountryDatabase {
    /// Opens the database of a configuration, if it has one. The database of the same path is kept if the
    /// file has not changed, or if it can no longer be used, which is logged.
    ///
    /// # Errors
    /// The file cannot be read or has no countries; the message names it.
    pub fn of(
        geo: Option<&config::Geo>,
        kept: &mut KeptState,
        files: &ConfigFiles,
        notices: Option<&ErrorLog>,
    ) -> io::Result<Option<Arc<CountryDatabase>>> {
        let Some(config::Geo { database: path }) = geo else { return Ok(None) };
        let before: Option<Arc<CountryDatabase>> = kept.take_if(path, |_| true);
        let read = files.read_up_to(path, FILE_BYTES_MAX).and_then(|bytes| match &before {
            Some(before) if *before.bytes == *bytes => Ok(before.clone()),
            _ => CountryDatabase::new(path, bytes.into()).map(Arc::new),
        });
        let database = match (read, before) {
            (Ok(read), _) => read,
            (Err(error), Some(before)) => {
                if let Some(notices) = notices {
                    notices
                        .warn(&format!("`[geo] database`: {error}; countries stay those of the file before"));
                }
                before
            }
            (Err(error), None) => return Err(error.attempting("`[geo] database`")),
        };
        Ok(Some(kept.put(path.clone(), database)))
    }

    fn new(path: &Path, bytes: Arc<[u8]>) -> io::Result<CountryDatabase> {
        let failed = |why: String| {
            let title = format!("{}: {why}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, title).about(path)
        };
        let broken = |error| {
            failed(format!(
                "this is not a whole database in MaxMind's format (.mmdb): {error}; download it again"
            ))
        };
        let reader = Reader::from_source(bytes.clone()).map_err(broken)?;
        let mut has_country = false;
        for found in reader.networks(WithinOptions::default()).map_err(broken)?.take(CHECKED_RECORDS_MAX) {
            has_country |= code(&found.map_err(broken)?).is_some();
        }
        if !has_country {
            let kind = &reader.metadata().database_type;
            return Err(failed(format!(
                "it has no countries: it is of the type {kind:?}; GeoLite2-Country has them, and GeoLite2-City"
            )));
        }
        Ok(CountryDatabase { bytes, reader })
    }

    /// Returns the country code of an address, if the database has one.
    pub(crate) fn country(&self, address: IpAddr) -> Option<[u8; 2]> {
        code(&self.reader.lookup(address.to_canonical()).ok()?)
    }
}

/// Returns the country code of a record.
fn code(found: &maxminddb::LookupResult<'_, Arc<[u8]>>) -> Option<[u8; 2]> {
    let text = |place: &&[PathElement<'static>]| found.decode_path::<&str>(place).ok().flatten();
    let code: [u8; 2] = COUNTRY_PATHS.iter().find_map(text)?.as_bytes().try_into().ok()?;
    code.iter().all(u8::is_ascii_uppercase).then_some(code)
}

#[cfg(test)]
#[path = "../../komainu/tests/mmdb/mod.rs"]
mod mmdb;

#[cfg(test)]
mod tests {
    use super::mmdb::{Record, database};
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<CountryDatabase> {
        CountryDatabase::new(Path::new("countries.mmdb"), bytes.into())
    }

    fn country(database: &CountryDatabase, address: &str) -> Option<String> {
        let code = database.country(address.parse().unwrap())?;
        Some(String::from_utf8(code.to_vec()).unwrap())
    }

    #[test]
    fn addresses_are_in_the_country_of_the_smallest_network() {
        let bytes = database(&[
            ("10.0.0.0/8", Record::Country("DE")),
            ("10.1.0.0/16", Record::Country("AT")),
            ("2001:db8::/32", Record::Country("FR")),
            ("192.0.2.0/24", Record::Registered("US")),
            ("198.51.100.7/32", Record::Plain("CH")),
            ("203.0.113.0/24", Record::Country("")),
        ]);
        let database = read(&bytes).unwrap();
        for (address, wanted) in [
            ("10.0.0.1", Some("DE")),
            ("10.1.255.255", Some("AT")),
            ("10.2.0.0", Some("DE")),
            ("11.0.0.0", None),
            ("::ffff:10.1.0.1", Some("AT")),
            ("2001:db8:ffff::1", Some("FR")),
            ("2001:db9::1", None),
            ("192.0.2.1", Some("US")),
            ("198.51.100.7", Some("CH")),
            ("198.51.100.8", None),
            ("203.0.113.1", None),
        ] {
            assert_eq!(country(&database, address).as_deref(), wanted, "{address}");
        }
    }

    #[test]
    fn invalid_country_database_is_rejected_by_name() {
        let whole = database(&[("10.0.0.0/8", Record::Country("DE"))]);
        let error = |bytes: &[u8]| read(bytes).err().expect("it is refused").to_string();
        assert!(error(b"").contains("countries.mmdb: this is not a whole database"));
        assert!(error(b"<html>moved</html>").contains("download it again"));
        assert!(error(&whole[..whole.len() / 2]).contains("this is not a whole database"));
        let systems = database(&[("10.0.0.0/8", Record::System(64_500))]);
        assert!(
            error(&systems).contains("it has no countries: it is of the type \"Test\""),
            "{}",
            error(&systems)
        );
    }

    #[test]
    fn corrupt_database_does_not_panic() {
        let networks = [("10.0.0.0/8", Record::Country("DE")), ("2001:db8::/32", Record::Registered("FR"))];
        let whole = database(&networks);
        let mut random = fastrand::Rng::with_seed(11);
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << random.u8(..8);
            let Ok(reader) = Reader::from_source(Arc::<[u8]>::from(bytes.as_slice())) else { continue };
            let database = CountryDatabase { bytes: bytes.into(), reader };
            for address in ["10.0.0.1", "2001:db8::1", "203.0.113.9", "::"] {
                if let Some(code) = database.country(address.parse().unwrap()) {
                    assert!(code.iter().all(u8::is_ascii_uppercase));
                }
            }
        }
    }

    #[test]
    fn invalid_database_keeps_the_previous_countries() {
        let path = std::env::temp_dir().join(format!("komainu-geo-{}.mmdb", std::process::id()));
        let geo = config::Geo { database: path.clone() };
        let mut kept = KeptState::default();
        let open = |kept: &mut KeptState| {
            CountryDatabase::of(Some(&geo), kept, &ConfigFiles::default(), None).map(Option::unwrap)
        };
        std::fs::write(&path, database(&[("10.0.0.0/8", Record::Country("DE"))])).unwrap();
        let first = open(&mut kept).unwrap();
        let mut kept = kept.successor();
        assert!(Arc::ptr_eq(&first, &open(&mut kept).unwrap()), "it has not changed");
        std::fs::write(&path, b"broken").unwrap();
        let mut kept = kept.successor();
        assert!(Arc::ptr_eq(&first, &open(&mut kept).unwrap()));
        let error = open(&mut KeptState::default()).err().unwrap();
        assert!(error.to_string().contains("`[geo] database`"));
        std::fs::write(&path, database(&[("10.0.0.0/8", Record::Country("AT"))])).unwrap();
        let mut kept = kept.successor();
        assert_eq!(country(&open(&mut kept).unwrap(), "10.0.0.1").as_deref(), Some("AT"));
        std::fs::remove_file(&path).unwrap();
        let mut kept = kept.successor();
        assert_eq!(country(&open(&mut kept).unwrap(), "10.0.0.1").as_deref(), Some("AT"));
        let none = CountryDatabase::of(None, &mut kept.successor(), &ConfigFiles::default(), None);
        assert!(none.unwrap().is_none());
    }
}
