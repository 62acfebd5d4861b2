//! The client of Docker's API: the list of containers, and the stream of events that tells when to ask for it again.

use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::directives::DockerAddress;

/// Bytes of the list of containers.
const LIST_BYTES_MAX: usize = 8 << 20;
/// The oldest version of the API that has all that is asked for; daemons answer older versions than their own.
const LIST: &str = "/v1.41/containers/json?filters=%7B%22label%22%3A%5B%22komainu.host%22%5D%7D";
const EVENTS: &str = "/v1.41/events?filters=%7B%22type%22%3A%5B%22container%22%2C%22network%22%5D%2C%22event%22%3A%5B%22start%22%2C%22die%22%2C%22pause%22%2C%22unpause%22%2C%22health_status%22%2C%22connect%22%2C%22disconnect%22%5D%7D";
const AGENT: &str = concat!("komainu/", env!("CARGO_PKG_VERSION"));

trait DockerStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> DockerStream for T {}

/// Client of the API. Each request has a connection of its own.
#[derive(Debug, Clone)]
pub(crate) struct DockerClient {
    pub(crate) address: DockerAddress,
    /// Maximum time to connect, and for each response.
    pub(crate) timeout: Duration,
}

impl DockerClient {
    /// Returns the containers that have a label of this server.
    ///
    /// # Errors
    /// A text.
    pub(crate) async fn containers(&self) -> Result<Value, String> {
        let ask = async {
            let response = self.send(LIST).await?;
            let body = Limited::new(response.into_body(), LIST_BYTES_MAX).collect().await;
            let body = body.map_err(|error| format!("its list cannot be read: {error}"))?.to_bytes();
            let list: Value = serde_json::from_slice(&body).map_err(|_| "its list is not JSON".to_owned())?;
            if list.is_array() { Ok(list) } else { Err("its list is none".to_owned()) }
        };
        self.bounded(ask).await
    }

    /// Begins to follow events.
    ///
    /// # Errors
    /// A text.
    pub(crate) async fn events(&self) -> Result<DockerEvents, String> {
        let ask = async { Ok(DockerEvents(self.send(EVENTS).await?.into_body())) };
        self.bounded(ask).await
    }

    async fn bounded<T>(&self, ask: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let late = |_| format!("it does not answer within {:?}", self.timeout);
        timeout(self.timeout, ask).await.map_err(late)?
    }

    async fn send(&self, path: &str) -> Result<Response<Incoming>, String> {
        let failed = |error: std::io::Error| format!("cannot connect: {error}");
        let (stream, host): (Box<dyn DockerStream>, &str) = match &self.address {
            DockerAddress::Unix(path) => {
                (Box::new(UnixStream::connect(path).await.map_err(failed)?), "docker")
            }
            DockerAddress::Tcp(address) => {
                (Box::new(TcpStream::connect(address).await.map_err(failed)?), address)
            }
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(async move { _ = connection.await });
        let request = Request::builder().uri(path).header(HOST, host).header(USER_AGENT, AGENT);
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        match response.status().as_u16() {
            200 => Ok(response),
            status => Err(format!("it answers with the status {status}")),
        }
    }
}

/// The stream of events. Their content does not matter.
pub(crate) struct DockerEvents(Incoming);

impl DockerEvents {
    /// Waits for an event. Returns false if the stream has ended.
    pub(crate) async fn next(&mut self) -> bool {
        self.0.frame().await.is_some_and(|frame| frame.is_ok())
    }
}
