//! HTTP client of an ACME account.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{Request, Response, Uri};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use web_client::{WebClient, retry_after};

/// Maximum number of requests for one order, polls of its state among them: one a second at most.
const REQUESTS_MAX: usize = 700;
/// Maximum length of a URL in a message, in characters.
const SHOWN_URL_MAX: usize = 200;

/// Reason why a request is not sent or its response not used: the authority does not keep to ACME, or to limits.
#[derive(Debug)]
pub(crate) struct AcmeViolation(String);

impl fmt::Display for AcmeViolation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for AcmeViolation {}

/// Client of an ACME account for one order. It reports if the URL is not that of a directory, follows URLs over
/// HTTPS alone if the directory's is one, and limits the number of requests and the time for all of them.
pub(crate) struct DirectoryClient {
    web: WebClient,
    /// URL of the directory.
    url: String,
    /// End of the time for all requests.
    deadline: Instant,
    requests: AtomicUsize,
}

impl DirectoryClient {
    /// Creates a client for one order, which may take this time.
    pub(crate) fn new(web: WebClient, url: &str, order_max: Duration) -> DirectoryClient {
        let deadline = Instant::now() + order_max;
        DirectoryClient { web, url: url.to_owned(), deadline, requests: AtomicUsize::new(0) }
    }

    /// Checks whether a request may be sent to this URL.
    fn check_request(&self, url: &Uri) -> Result<(), AcmeViolation> {
        check_url(&self.url, url).map_err(AcmeViolation)?;
        if self.requests.fetch_add(1, Ordering::Relaxed) >= REQUESTS_MAX {
            return Err(AcmeViolation(format!("the order needs more than {REQUESTS_MAX} requests")));
        }
        if Instant::now() > self.deadline {
            return Err(AcmeViolation(
                "the order takes too long: there is no time for another request".into(),
            ));
        }
        Ok(())
    }
}

/// Checks whether a URL that the authority names is one to follow.
fn check_url(directory: &str, url: &Uri) -> Result<(), String> {
    let shown = || url.to_string().chars().take(SHOWN_URL_MAX).collect::<String>();
    let is_plain = directory.starts_with("http://") && url.scheme_str() == Some("http");
    if url.scheme_str() != Some("https") && !is_plain {
        return Err(match url.scheme_str() {
            Some(scheme) => {
                format!("the authority names {}: nothing is followed over `{scheme}://`", shown())
            }
            None => format!("the authority names {}, which is not a URL", shown()),
        });
    }
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(format!("the authority names {}: URLs with a user are not followed", shown()));
    }
    Ok(())
}

/// Checks the response to a request that is not for the directory: redirects are no part of ACME, and `Location`
/// is the URL of an order or account.
fn check_response(directory: &str, url: &str, response: &Response<Bytes>) -> Result<(), AcmeViolation> {
    let place = response.headers().get(LOCATION).and_then(|place| place.to_str().ok());
    if response.status().is_redirection() {
        let place: String = place.unwrap_or("nowhere").chars().take(SHOWN_URL_MAX).collect();
        return Err(AcmeViolation(format!(
            "{url} responds with status {}, which leads to {place}: redirects are not followed",
            response.status().as_u16()
        )));
    }
    let Some(place) = place.filter(|_| response.status().is_success()) else { return Ok(()) };
    check_text(directory, place).map_err(AcmeViolation)
}

/// Checks the text of a URL that the authority names.
fn check_text(directory: &str, text: &str) -> Result<(), String> {
    match text.parse::<Uri>() {
        Ok(url) => check_url(directory, &url),
        Err(_) => {
            let shown: String = text.chars().take(SHOWN_URL_MAX).collect();
            Err(format!("the authority names {shown:?}, which is not a URL"))
        }
    }
}

/// Replaces `Retry-After` by a number of seconds that is not too large for additions.
fn limit_retry_after(headers: &mut HeaderMap) {
    let Some(value) = headers.remove(RETRY_AFTER) else { return };
    let wait = value.to_str().ok().and_then(|value| retry_after(value, SystemTime::now()));
    if let Some(wait) = wait {
        headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_secs()));
    }
}

impl HttpClient for DirectoryClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let client = self.web.clone();
        let directory = self.url.clone();
        let is_directory = self.url.parse::<Uri>().is_ok_and(|url| url == *request.uri());
        let allowed = self.check_request(request.uri());
        Box::pin(async move {
            let unfollowed = |error: AcmeViolation| instant_acme::Error::Other(Box::new(error));
            allowed.map_err(unfollowed)?;
            let url = request.uri().to_string();
            let response = client.send(request).await.map_err(instant_acme::Error::Other)?;
            if is_directory {
                if let Some(text) = directory_fault(&directory, &response) {
                    return Err(instant_acme::Error::Other(text.into()));
                }
                check_directory(&directory, response.body()).map_err(unfollowed)?;
            } else {
                check_response(&directory, &url, &response).map_err(unfollowed)?;
            }
            let (mut parts, body) = response.into_parts();
            limit_retry_after(&mut parts.headers);
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

/// Checks the URLs of a directory that are followed.
fn check_directory(url: &str, body: &[u8]) -> Result<(), AcmeViolation> {
    let found: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    for name in ["newNonce", "newAccount", "newOrder", "renewalInfo"] {
        let Some(text) = found[name].as_str() else { continue };
        check_text(url, text)
            .map_err(|reason| AcmeViolation(format!("`{name}` of the directory: {reason}")))?;
    }
    Ok(())
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
            let client = DirectoryClient::new(web, &url, Duration::from_secs(60));
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

    fn client_of(url: &str, order_max: Duration) -> DirectoryClient {
        DirectoryClient::new(WebClient::new(b"", Duration::from_secs(60)).unwrap(), url, order_max)
    }

    #[test]
    fn urls_without_tls_are_followed_by_a_directory_without_tls_alone() {
        let long = Duration::from_secs(3_600);
        let (encrypted, plain) =
            (client_of("https://a.test/dir", long), client_of("http://a.test/dir", long));
        for (url, by_encrypted, by_plain) in [
            ("https://a.test/order", true, true),
            ("https://b.test:444/order", true, true),
            ("http://a.test/order", false, true),
            ("HTTP://a.test/order", false, true),
            ("ftp://a.test/order", false, false),
            ("file://a.test/etc/passwd", false, false),
            ("/order", false, false),
            ("a.test", false, false),
            ("https://b@a.test/order", false, false),
        ] {
            let url: Uri = url.parse().unwrap();
            assert_eq!(encrypted.check_request(&url).is_ok(), by_encrypted, "{url}");
            assert_eq!(plain.check_request(&url).is_ok(), by_plain, "{url}");
        }
    }

    #[test]
    fn requests_of_an_order_are_limited_in_number_and_time() {
        let url: Uri = "https://a.test/order".parse().unwrap();
        let client = client_of("https://a.test/dir", Duration::from_secs(3_600));
        assert!((0..REQUESTS_MAX).all(|_| client.check_request(&url).is_ok()));
        assert!(client.check_request(&url).unwrap_err().to_string().contains("more than 700 requests"));
        let client = client_of("https://a.test/dir", Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1));
        assert!(client.check_request(&url).unwrap_err().to_string().contains("takes too long"));
    }

    #[test]
    fn retry_after_is_limited() {
        for (value, limited) in [
            ("7", Some("7")),
            ("18446744073709551615", Some("604800")),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some("0")),
            ("x", None),
        ] {
            let mut headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
            limit_retry_after(&mut headers);
            let found = headers.get(RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(found, limited, "{value}");
        }
    }
}
