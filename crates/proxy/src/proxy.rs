//! milestone
use std::cell::RefCell;
use std::rc::Rc;

use http::Status;
use net::{Core, Dial, Exchange, Fault, Link, Stream};

use crate::failure::Failure;
use crate::leg::{Leg, Rested, Spare};
use crate::options::{Options, Place};
use crate::relay::{Kept, Outcome, Plan, Relay};
use crate::request::RequestRules;
use crate::response::ResponseRules;
use crate::template::Ask;

/// A proxy on one core.
pub struct Proxy(Rc<Inner>);

struct Inner {
    core: Core,
    options: Options,
    request: RequestRules,
    response: ResponseRules,
    pools: Vec<RefCell<Vec<Rested>>>,
    authorities: Vec<String>,
    spare: Spare,
}

impl Proxy {
    /// new
    pub fn new(core: &Core, options: Options) -> Proxy {
        Proxy(Rc::new(Inner {
            core: core.clone(),
            request: RequestRules::new(&options),
            response: ResponseRules::new(&options),
            pools: options.servers.iter().map(|_| RefCell::default()).collect(),
            authorities: options.servers.iter().map(|s| s.authority()).collect(),
            spare: Spare::default(),
            options,
        }))
    }

    /// serve
    pub async fn serve(&self, x: &mut Exchange<'_>, secure: bool) -> Result<(), Fault> {
        let inner = &*self.0;
        let upstream = inner.authorities[0].as_str();
        let mut leg = match inner.leg().await {
            Ok(leg) => leg,
            Err(_) => return x.refuse(Status::BAD_GATEWAY, "no connection").await,
        };
        let request = x.request();
        let (head, bytes) = request.head();
        let ask = Ask { head, bytes, peer: request.peer(), secure, upstream };
        let sent = inner.request.write(&mut leg.buffers.out, &ask)?;
        let plan = Plan {
            options: &inner.options,
            response: &inner.response,
            upstream,
            secure,
            deadline_ms: u64::MAX,
            cookie: None,
            may_retry: false,
        };
        let mut kept = Kept::new(0);
        match Relay::new(x, &mut leg, &plan, &mut kept, sent).run().await {
            Ok(Outcome::Complete(true)) => {
                let (rested, buffers) = leg.rest(&inner.options.keep_alive, inner.core.now_ms());
                inner.pools[0].borrow_mut().extend(rested);
                inner.spare.give_back(buffers);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(Failure::Ours(fault)) => Err(fault),
            Err(Failure::Body(reason)) => Err(Fault::Broken(reason)),
            Err(_) => x.refuse(Status::BAD_GATEWAY, "bad").await,
        }
    }
}

impl Inner {
    async fn leg(&self) -> Result<Leg, Fault> {
        loop {
            let Some(mut rested) = self.pools[0].borrow_mut().pop() else { break };
            if rested.link.is_fresh() && rested.until_ms > self.core.now_ms() {
                return Ok(rested.take_up(self.spare.take()));
            }
        }
        let dial = match &self.options.servers[0].at {
            Place::Tcp { host, port } => {
                Dial::Tcp(std::net::SocketAddr::new(host.parse().expect("ip"), *port))
            }
            Place::Unix(path) => Dial::Unix(path.clone()),
        };
        let stream = Stream::connect(&self.core, &dial, self.core.now_ms() + 5000).await?;
        Ok(Leg::new(Link::Plain(stream), None, self.spare.take()))
    }
}
