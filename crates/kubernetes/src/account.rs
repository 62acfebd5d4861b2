//! The address of the API server and the credentials: those of a pod, or of a kubeconfig file.

use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use failure::{Failure, FailureContext};
use import::parse_yaml;
use serde_json::Value;

/// Folder of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The API server and the credentials.
#[derive(Clone, Default)]
pub struct ApiAccount {
    /// URL of the API server, without a path.
    pub server: String,
    /// Authorities of the API server's certificate (PEM); `None` for those of the system.
    pub authorities_pem: Option<Vec<u8>>,
    /// Certificate and key of the client (PEM).
    pub client_pem: Option<(Vec<u8>, Vec<u8>)>,
    /// The token.
    pub token: BearerToken,
    /// The namespace of the pod, or of the context.
    pub namespace: String,
}

/// A bearer token.
#[derive(Clone, Default)]
pub enum BearerToken {
    /// None.
    #[default]
    None,
    /// A text.
    Text(String),
    /// A file that is read for each request, because tokens of pods are replaced every hour.
    File(PathBuf),
}

impl ApiAccount {
    /// Finds the credentials: of this kubeconfig file, or of the pod, or of `$KUBECONFIG`, or of `~/.kube/config`.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    pub fn find(kubeconfig: Option<&Path>) -> Result<ApiAccount, Failure> {
        if let Some(path) = kubeconfig {
            return ApiAccount::of_file(path);
        }
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let (Some(host), Some(port)) =
            (variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT"))
        {
            return ApiAccount::of_pod(&host, &port);
        }
        let named = variable("KUBECONFIG").map(PathBuf::from);
        let usual = || {
            variable("HOME").map(|home| Path::new(&home).join(".kube/config")).filter(|path| path.exists())
        };
        match named.or_else(usual) {
            Some(path) => ApiAccount::of_file(&path),
            None => Err(Failure::new("there is neither a pod's service account nor a kubeconfig file")
                .help("run it in a pod, or name a file: `--kubeconfig FILE`")),
        }
    }

    fn of_pod(host: &str, port: &str) -> Result<ApiAccount, Failure> {
        let folder = Path::new(SERVICE_ACCOUNT);
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|error| Failure::from(error).context(path.display()))
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Ok(ApiAccount {
            server: format!("https://{host}:{port}"),
            authorities_pem: Some(read("ca.crt")?),
            client_pem: None,
            token: BearerToken::File(folder.join("token")),
            namespace: String::from_utf8_lossy(&read("namespace")?).trim().to_owned(),
        })
    }

    /// Reads the current context of a kubeconfig file. Programs that it names to obtain tokens are not run.
    fn of_file(path: &Path) -> Result<ApiAccount, Failure> {
        let text =
            std::fs::read_to_string(path).map_err(|error| Failure::from(error).context(path.display()))?;
        let documents = parse_yaml(&path.display().to_string(), &text)
            .map_err(|error| Failure::new(error.to_string()))?;
        let document = documents.into_iter().next().unwrap_or_default();
        parse_kubeconfig(&document, path.parent().unwrap_or(Path::new("."))).context(path.display())
    }
}

fn parse_kubeconfig(document: &Value, folder: &Path) -> Result<ApiAccount, Failure> {
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let named = |list: &str, part: &str, name: &str| {
        let items = document.get(list).and_then(Value::as_array).into_iter().flatten();
        let found = items
            .into_iter()
            .find(|item| text(item, "name") == name)
            .and_then(|item| item.get(part))
            .cloned();
        found.ok_or_else(|| Failure::new(format!("there is no {part} {name:?} in `{list}`")))
    };
    let context = named("contexts", "context", &text(document, "current-context"))?;
    let cluster = named("clusters", "cluster", &text(&context, "cluster"))?;
    let user = named("users", "user", &text(&context, "user"))?;
    if cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true) {
        return Err(Failure::new(
            "`insecure-skip-tls-verify` is refused: the API server's certificates are verified",
        )
        .help("name its authority: `certificate-authority`"));
    }
    if user.get("exec").is_some() || user.get("auth-provider").is_some() {
        return Err(Failure::new(
            "credentials of a program (`exec`) or provider (`auth-provider`) are not supported",
        )
        .help("create a service account, and write its token (`kubectl create token NAME`)"));
    }
    let pem = |table: &Value, data: &str, file: &str| -> Result<Option<Vec<u8>>, Failure> {
        let (data_text, file_text) = (text(table, data), text(table, file));
        if !data_text.is_empty() {
            return BASE64
                .decode(data_text.as_bytes())
                .map(Some)
                .map_err(|_| Failure::new(format!("`{data}` is not base64")));
        }
        if file_text.is_empty() {
            return Ok(None);
        }
        let path = folder.join(file_text);
        std::fs::read(&path).map(Some).map_err(|error| Failure::from(error).context(path.display()))
    };
    let certificate = pem(&user, "client-certificate-data", "client-certificate")?;
    let key = pem(&user, "client-key-data", "client-key")?;
    let token = match (text(&user, "token"), text(&user, "tokenFile")) {
        (token, _) if !token.is_empty() => BearerToken::Text(token),
        (_, file) if !file.is_empty() => BearerToken::File(folder.join(file)),
        _ => BearerToken::None,
    };
    let namespace = text(&context, "namespace");
    Ok(ApiAccount {
        server: text(&cluster, "server").trim_end_matches('/').to_owned(),
        authorities_pem: pem(&cluster, "certificate-authority-data", "certificate-authority")?,
        client_pem: certificate.zip(key),
        token,
        namespace: if namespace.is_empty() { "default".to_owned() } else { namespace },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u, namespace: web}}]
clusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443/', certificate-authority-data: YWJj}}]
users: [{name: u, user: {token: secret}}]
";

    #[test]
    fn kubeconfig_files_have_a_current_context() {
        let read = |text: &str| {
            let documents = parse_yaml("config", text).unwrap();
            parse_kubeconfig(&documents[0], Path::new("/"))
        };
        let account = read(FILE).unwrap();
        assert_eq!(account.server, "https://10.0.0.1:6443");
        assert_eq!(account.authorities_pem.as_deref(), Some(&b"abc"[..]));
        assert_eq!(account.namespace, "web");
        assert!(matches!(account.token, BearerToken::Text(token) if token == "secret"));
        let refused = |from: &str, to: &str| read(&FILE.replace(from, to)).err().unwrap().to_string();
        assert!(refused("token: secret", "exec: {command: rm}").contains("exec"));
        assert!(
            refused("certificate-authority-data: YWJj", "insecure-skip-tls-verify: true").contains("refused")
        );
        assert!(refused("user: u,", "user: x,").contains("no user"));
    }
}
