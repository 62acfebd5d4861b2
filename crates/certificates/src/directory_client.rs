//! HTTP client of an ACME account.

use std::future::Future;
use std::pin::Pin;

use hyper::body::Bytes;
use hyper::header::{HeaderValue, LOCATION};
use hyper::{Request, Response};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use web_client::WebClient;

/// Client of an ACME account, which reports if the URL is not that of a directory.
pub(crate) struct DirectoryClient {
    pub(crate) web: WebClient,
    /// URL of the directory.
    pub(crate) url: String,
}

impl HttpClient for DirectoryClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let client = self.web.clone();
        let is_directory = self.url.parse::<hyper::Uri>().is_ok_and(|url| url == *request.uri());
        let directory = is_directory.then(|| self.url.clone());
        Box::pin(async move {
            let response = client.send(request).await.map_err(instant_acme::Error::Other)?;
            if let Some(text) = directory.and_then(|url| directory_fault(&url, &response)) {
                return Err(instant_acme::Error::Other(text.into()));
            }
            let (parts, body) = response.into_parts();
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

/// Returns why a response is not that of an ACME directory (RFC 8555 section 7.1.1), with the remedy; `None`
/// if it is.
fn directory_fault(url: &str, response: &Response<Bytes>) -> Option<String> {
    let status = response.status();
    // The authority is overloaded or out of service.
    if status.is_server_error() || status == hyper::StatusCode::TOO_MANY_REQUESTS {
        return Some(format!("{url}: a response with status {}", status.as_u16()));
    }
    let found = match serde_json::from_slice::<serde_json::Value>(response.body()) {
        _ if status.is_redirection() => match response.headers().get(LOCATION).map(HeaderValue::to_str) {
            Some(Ok(place)) => format!(", which leads to {}", place.chars().take(200).collect::<String>()),
            _ => String::new(),
        },
        _ if !status.is_success() => String::new(),
        Ok(found) => {
            let missing = |name: &&&str| !found[**name].is_string();
            match ["newNonce", "newAccount", "newOrder"].iter().find(missing) {
                Some(name) => format!(" and JSON without `{name}`"),
                None => return None,
            }
        }
        Err(_) if response.body().trim_ascii_start().starts_with(b"<") => " and HTML".to_owned(),
        Err(_) => " and no JSON".to_owned(),
    };
    Some(format!(
        "{url} is no ACME directory, but responds with status {}{found}: correct `directory` in `[acme]`, for \
         which authorities name a URL such as https://acme-v02.api.letsencrypt.org/directory",
        status.as_u16()
    ))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    /// Serves one connection with these bytes; returns the address.
    fn serve(response: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(&response);
        });
        format!("http://{address}/ask?domain=a")
    }

    #[test]
    fn url_that_is_no_acme_directory_is_reported_with_a_remedy() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let responds = |response: &str| {
            let (head, body) = response.split_once('|').unwrap();
            let url =
                serve(format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into());
            let web = WebClient::new(b"", Duration::from_secs(60)).unwrap();
            let client = DirectoryClient { web, url: url.clone() };
            let terms = instant_acme::NewAccount {
                contact: &[],
                terms_of_service_agreed: true,
                only_return_existing: false,
            };
            let builder = instant_acme::Account::builder_with_http(Box::new(client));
            let error = runtime.block_on(builder.create(&terms, url.clone(), None)).err().unwrap();
            error.to_string().replace(&url, "URL")
        };
        for (response, words) in [
            ("200 OK\r\nContent-Type: text/html|<html></html>", "status 200 and HTML: correct `directory`"),
            ("404 Not Found|{\"detail\": \"no\"}", "status 404: correct"),
            ("200 OK|{\"keyId\": 1}", "status 200 and JSON without `newNonce`: correct"),
            ("200 OK|[]", "status 200 and JSON without `newNonce`: correct"),
            ("200 OK|fine", "status 200 and no JSON: correct"),
            ("200 OK|", "status 200 and no JSON: correct"),
            (
                "301 Moved\r\nLocation: https://a.test/dir|moved",
                "status 301, which leads to https://a.test/dir: correct",
            ),
        ] {
            let said = responds(response);
            assert!(said.starts_with("URL is no ACME directory, ") && said.contains(words), "{said}");
        }
        assert_eq!(responds("503 Busy|<html>"), "URL: a response with status 503");
    }
}
