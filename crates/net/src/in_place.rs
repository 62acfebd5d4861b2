//! Futures that are made where they stay.

use std::pin::Pin;

/// A boxed future, made in its box: `Box::pin` is given a copy, kilobytes that hold nothing yet.
pub fn pin_in_place<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}
