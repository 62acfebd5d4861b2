//! Command that sets and removes the TXT records of DNS-01 challenges (RFC 8555 section 8.4).

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use failure::Failure;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// Maximum number of bytes of a hook's output that are logged.
const OUTPUT_BYTES_MAX: u64 = 2_000;

/// Runs the hook with its arguments, followed by `add` or `remove`, the record's name and its value. The hook
/// must exit only when the change is visible to the authority. Returns the first 2,000 bytes of its stderr
/// output, without control characters.
///
/// # Errors
/// The hook cannot be started, failed or timed out; includes its stderr output.
pub(crate) async fn run(
    words: &[OsString],
    action: &str,
    record: &str,
    value: &str,
    timeout: Duration,
) -> Result<String, Failure> {
    let Some((program, arguments)) = words.split_first() else { return Err("the hook is empty".into()) };
    let shown = program.to_string_lossy();
    let mut child = Command::new(program)
        .args(arguments)
        .args([action, record, value])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("the DNS hook {shown} does not start: {error}"))?;
    let stderr = child.stderr.take();
    let ended = async {
        let mut text = Vec::new();
        if let Some(stderr) = stderr {
            let mut stderr = stderr.take(OUTPUT_BYTES_MAX);
            let _ = stderr.read_to_end(&mut text).await;
            // Drain further output, so that the hook does not block.
            let _ = tokio::io::copy(&mut stderr.into_inner(), &mut tokio::io::sink()).await;
        }
        (child.wait().await, text)
    };
    let (status, text) = tokio::time::timeout(timeout, ended)
        .await
        .map_err(|_| format!("the DNS hook {shown} has not ended after {} s", timeout.as_secs_f32()))?;
    let status = status.map_err(|error| format!("the DNS hook {shown}: {error}"))?;
    let text: String = String::from_utf8_lossy(&text)
        .trim()
        .chars()
        .map(|c| if c.is_control() && c != '\n' { ' ' } else { c })
        .collect();
    if status.success() {
        Ok(text)
    } else {
        Err(Failure::new(format!("the DNS hook {shown} {action} failed: {status}: {text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(script: &str, longest: Duration) -> Result<String, Failure> {
        let words = ["sh", "-c", script, "hook"].map(OsString::from);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(&words, "add", "_acme-challenge.a.test", "value", longest))
    }

    #[test]
    fn a_hook_gets_the_record_and_its_errors_are_reported() {
        let long = Duration::from_secs(30);
        assert_eq!(hook("test \"$*\" = 'add _acme-challenge.a.test value'", long), Ok(String::new()));
        assert_eq!(hook("printf 'one\\33\\ntwo\\n' >&2", long), Ok("one \ntwo".into()));
        let error = hook("echo no such zone >&2; exit 3", long).unwrap_err().to_string();
        assert!(error.contains("no such zone") && error.contains('3'), "{error}");
        // Output that exceeds the pipe's capacity does not block the hook.
        assert_eq!(hook("head -c 300000 /dev/zero >&2", long).map(|text| text.len()), Ok(2_000));
        assert!(
            hook("exec sleep 60", Duration::from_millis(100))
                .unwrap_err()
                .to_string()
                .contains("has not ended")
        );
    }
}
