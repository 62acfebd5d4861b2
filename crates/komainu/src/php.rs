//! Routes whose scripts a PHP server runs: which request is for a script, which for a file.

use files::{FileOutcome, Files, FoundScript};
use net::{Exchange, Fault};
use proxy::{Proxy, Script};

/// Files, and the server of the scripts among them.
pub(crate) struct PhpRoute {
    pub(crate) files: Box<Files>,
    pub(crate) proxy: Proxy,
    /// The script for all other paths.
    pub(crate) front: Option<Vec<u8>>,
    /// The root of the scripts as the server sees it, where that is another one.
    pub(crate) root: Option<Vec<u8>>,
    /// What is taken from the front of paths.
    pub(crate) prefix: Vec<u8>,
}

/// What a request is for.
pub(crate) enum PhpTarget {
    /// A file, which has been sent.
    Done,
    /// A script.
    Script(Script),
    /// Nothing, and why.
    Missing(&'static str),
}

impl PhpRoute {
    /// Sends the file that a request is for, or finds the script: at `path`, which is below the prefix, or the one for all others.
    /// `has_file` says that files and scripts may have such a path.
    pub(crate) async fn find(
        &self,
        x: &mut Exchange<'_>,
        path: &[u8],
        has_file: bool,
    ) -> Result<PhpTarget, Fault> {
        let mut why = "there is no such file";
        if has_file {
            let core = x.core().clone();
            let script = if path.is_empty() && x.request().path().ends_with(b"/") { b"/" } else { path };
            if let Some(found) = self.files.script(script, &core).await? {
                return Ok(PhpTarget::Script(self.script(&found)));
            }
            match self.files.serve(x, path).await? {
                FileOutcome::Done => return Ok(PhpTarget::Done),
                FileOutcome::Declined(reason) => why = reason,
            }
        }
        let Some(front) = &self.front else { return Ok(PhpTarget::Missing(why)) };
        let core = x.core().clone();
        Ok(match self.files.script(front, &core).await? {
            Some(found) => PhpTarget::Script(self.script(&found)),
            None => PhpTarget::Missing(why),
        })
    }

    fn script(&self, found: &FoundScript) -> Script {
        let root = match &self.root {
            Some(root) => root.clone(),
            None => found.root.as_os_str().as_encoded_bytes().to_vec(),
        };
        Script { root, prefix: self.prefix.clone(), name: found.name.clone(), info: found.info.clone() }
    }
}
