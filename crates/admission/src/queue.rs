//! The queue in front of a route's handler.

use settings::directive_table::brief;
use settings::directives;
use settings::shape::{Count, Maybe, Shape, Time};
use std::time::Duration;

/// `queue` of a route.
pub fn queue() -> impl Shape<Out = Option<RequestQueue>> {
    Maybe(brief::<RequestQueue>("active").number("active"))
}

directives! {
    /// A queue in front of the route's handler, which limits the number of concurrent requests in it. A
    /// number alone is shorthand for `active`.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/search"
    /// proxy = "http://127.0.0.1:3000"
    /// queue = { active = 100, waiting = 1000, age = "5s" }
    /// ```
    ///
    /// The limits apply to all threads together, and requests are served in the order of arrival. If too many
    /// wait, the one that has waited longest is refused, because its client is the most likely to have given
    /// up. A request that has waited for `age` is refused too. Both get 503 with `Retry-After`. Requests
    /// answered from the cache do not wait. A WebSocket counts as long as it is open.
    RequestQueue in "`queue` of a route" {
        /// Requests that are in the handler at the same time.
        "active" active_max: u32 = required(""), Count { min: 1, max: 1_000_000 };
        /// Maximum number of waiting requests. With 0, no request waits: it is refused.
        "waiting" waiting_max: u32 = 1000, Count { min: 0, max: 1_000_000 };
        /// Maximum time that a request waits.
        "age" age: Duration = "5s", Time { min: Duration::from_millis(10), max: Duration::from_secs(3600) };
    }
}
