//! The compression of an exchange, for handlers that must know of it before they respond.

use std::rc::Rc;

use coding::Effort;
use http::{Coding, Fields, Length, Status};

use crate::compress::{Compression, CompressionInput};
use crate::exchange::Exchange;

impl Exchange<'_> {
    /// The coding in which a response with this status, these fields and this length goes out, and how hard it is compressed;
    /// `None` where it goes out as it is. For what is compressed before: [`Exchange::begin`] does so by itself.
    #[must_use]
    pub fn coding_of(&self, status: Status, fields: &Fields, length: Length) -> Option<(Coding, Effort)> {
        let compression = self.state.filters.compression.as_ref()?;
        let (head, bytes) = self.lane.head();
        let request = CompressionInput { head, bytes, secure: self.state.client.secure };
        let mut fields = self.edited(fields).into_owned();
        Some((compression.choose(&request, status, &mut fields, length)?, compression.effort))
    }

    /// Before a 304 whose 200 would have these fields and this length: leaves its fields as they are, where that would not be
    /// compressed for any client. Without this a 304 without a type counts as one of a response that may be.
    pub fn describe_not_modified(&mut self, fields: &Fields, length: Length) {
        let Some(compression) = &self.state.filters.compression else { return };
        let (head, bytes) = self.lane.head();
        let request = CompressionInput { head, bytes, secure: self.state.client.secure };
        if !compression.is_worth_it(&request, Status::OK, &self.edited(fields), length) {
            self.set_compression(None);
        }
    }

    /// Which responses are compressed from now on. Those that have begun stay as they are.
    pub fn set_compression(&mut self, compression: Option<Rc<Compression>>) {
        self.state.filters.compression = compression;
    }
}
