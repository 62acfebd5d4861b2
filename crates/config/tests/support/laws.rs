//! Invariants for arbitrary text, called by fuzz targets and tests. Each function panics if its invariant is
//! violated.

use std::path::Path;

use config::Config;

/// A configuration is checked without a panic, errors are counted, bounded, and all can be shown. True where it is valid.
pub(crate) fn configuration(text: &str) -> bool {
    match Config::parse(text, "hostile.toml", Path::new("/srv")) {
        Ok((_, report)) => {
            assert_eq!(report.error_count(), 0);
            report.render(true);
            true
        }
        Err(report) => {
            assert!(report.error_count() > 0);
            assert!(report.findings().len() <= 50);
            assert!(!report.render(false).is_empty());
            for finding in report.findings() {
                report.position(finding);
            }
            false
        }
    }
}
