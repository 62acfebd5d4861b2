//! Lookup of a response's content coding, for handlers that need it before they respond.

use std::rc::Rc;

use coding::Effort;
use http::{Coding, Fields, HeadRef, Length, Status};

use crate::compress::{CompressResponses, CompressionInput};
use crate::exchange::Exchange;

impl Exchange<'_> {
    /// Returns the coding and effort that [`Exchange::begin`] would use for this response; `None` if it is
    /// sent uncompressed. For handlers that compress the content themselves.
    #[must_use]
    pub fn coding_of(&self, status: Status, fields: &Fields, length: Length) -> Option<(Coding, Effort)> {
        let compression = self.state.filters.compression.as_ref()?;
        let HeadRef { head, bytes } = self.lane.head();
        let request = CompressionInput { head, bytes, secure: self.state.client.is_secure };
        let mut fields = self.edited(fields).into_owned();
        Some((compression.choose(&request, status, &mut fields, length)?, compression.effort))
    }

    /// Declares the fields and length of the 200 response that a following 304 stands for. If no client would
    /// get that response compressed, the fields of the 304 stay unchanged; without this call, a 304 without
    /// Content-Type is treated as compressible.
    pub fn describe_not_modified(&mut self, fields: &Fields, length: Length) {
        let Some(compression) = &self.state.filters.compression else { return };
        let HeadRef { head, bytes } = self.lane.head();
        let request = CompressionInput { head, bytes, secure: self.state.client.is_secure };
        if !compression.may_be_compressed(&request, Status::OK, &self.edited(fields), length) {
            self.set_compression(None);
        }
    }

    /// Sets which responses are compressed. Responses that have begun are not affected.
    pub fn set_compression(&mut self, compression: Option<Rc<CompressResponses>>) {
        self.state.filters.compression = compression;
    }
}
