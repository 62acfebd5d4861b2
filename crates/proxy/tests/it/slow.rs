//! Clients that read slowly but steadily are not cut off by a timeout.

use std::sync::Arc;

use crate::rig::{Origin, Rig};
use crate::slow_client::read_slowly_then_all;
use net::{Exchange, Fault, RequestRecord};
use proxy::{GroupShared, Proxy};
use times::Millis;

/// More than the socket buffers hold.
const BODY_BYTES: usize = 20 << 20;
const TIMEOUT: Millis = Millis(3_000);

/// A proxy with a short write timeout for clients.
struct Hurried(Proxy);

impl net::Service for Hurried {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        exchange.set_timeouts(Millis(60_000), TIMEOUT);
        self.0.serve(exchange).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

#[test]
fn slow_reader_receives_whole_response() {
    let origin = Origin::start(|mut caller, _| {
        while caller.request().is_some() {
            caller.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n"));
            caller.send_bytes(&vec![b'x'; BODY_BYTES]);
        }
    });
    let shared = GroupShared::new(proxy::GroupOptions::new(vec![origin.server()])).unwrap();
    let route = Arc::new(proxy::RouteOptions::default());
    let hurried = move |core: &net::Core, shared: &Arc<GroupShared>| {
        Hurried(proxy::Group::new(core, shared).proxy(&route, None))
    };
    let rig = Rig::serving(1, shared, hurried);
    assert_eq!(read_slowly_then_all(rig.address, "/", TIMEOUT), BODY_BYTES);
}
