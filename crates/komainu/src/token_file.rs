//! The token with which `komainu ctl`, `status` and `top` speak to a control listener.

use std::fs;
use std::path::{Path, PathBuf};

/// Names the file of the token, where no argument does.
const VARIABLE: &str = "KOMAINU_TOKEN_FILE";

/// The token in the file that is given, or that the environment names; `None` where neither does.
///
/// # Errors
/// The file cannot be read, or holds no token; for people.
pub(crate) fn token(given: Option<&Path>) -> Result<Option<String>, String> {
    let named = || std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let Some(path) = given.map(Path::to_owned).or_else(named) else { return Ok(None) };
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let token = config::control_token(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Some(token.to_owned()))
}

/// The field of a request that carries it, as a line.
pub(crate) fn field(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}
