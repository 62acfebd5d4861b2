//! Construction of futures in their heap allocation.

use std::pin::Pin;

/// Boxes a future that is constructed in its box; `Box::pin` would copy kilobytes that hold nothing yet.
pub fn pin_in_place<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}
