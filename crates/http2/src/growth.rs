//! Receive windows that grow with the measured rate and shrink again while memory is short.

use crate::frame::{self, MAX_31_BITS};
use crate::machine::{ConnectionStart, Machine};
use crate::settings::WINDOW_BYTES_INITIAL;
use crate::window::{GROWTH_PING, GrowthProbe, WindowGrowth};

impl Machine {
    /// Sets the maximum number of bytes by which the connection's window may grow beyond its initial size,
    /// and the windows of all streams together; 0, the default, for fixed windows. A smaller value shrinks
    /// windows: credit already granted to the peer stays valid, but is not replenished once it is consumed.
    pub fn limit_growth(&mut self, bytes_max: u32) {
        let growth = &mut self.growth;
        let shrinks = bytes_max < growth.bytes_max;
        growth.bytes_max = bytes_max.min(MAX_31_BITS / 2);
        if !shrinks {
            return;
        }
        let most = self.initial_connection_window() + self.growth.bytes_max;
        if self.receive_window.size() > most {
            self.receive_window.shrink(most);
        }
        if self.growth.stream_bytes_grown > self.growth.bytes_max {
            for stream in self.streams.iter_mut() {
                let grown = std::mem::take(&mut stream.grown_bytes);
                stream.receive_window.shrink(stream.receive_window.size() - grown);
            }
            self.growth.stream_bytes_grown = 0;
        }
    }

    /// The size of a stream's receive window, or of the connection's (stream 0), in bytes; 0 for an unknown
    /// stream.
    #[must_use]
    pub fn window_size(&self, stream: u32) -> u32 {
        match stream {
            0 => self.receive_window.size(),
            _ => self.streams.find(stream).map_or(0, |stream| stream.receive_window.size()),
        }
    }

    /// Whether a measuring ping is unanswered. Some clients stop reading until they have sent the answer: a
    /// caller that waits for them to read must read meanwhile.
    #[must_use]
    pub fn is_ping_unanswered(&self) -> bool {
        self.growth.probe.is_some()
    }

    fn initial_connection_window(&self) -> u32 {
        self.options.connection_window.clamp(WINDOW_BYTES_INITIAL, MAX_31_BITS / 2)
    }

    /// Counts consumed content.
    pub(crate) fn count_consumed(&mut self, stream: u32, len: usize) {
        let growth = &mut self.growth;
        growth.wait_bytes = growth.wait_bytes.saturating_sub(len);
        if let Some(probe) = &mut growth.probe {
            probe.connection_bytes += len;
            if probe.stream == stream {
                probe.stream_bytes += len;
            }
        }
    }

    /// Starts a measurement if one is due. The ping is sent after the window update, so that its answer
    /// arrives after all the data that the peer may send by then.
    pub(crate) fn measure_rate(&mut self, stream: u32) {
        let growth = &mut self.growth;
        let may_grow =
            growth.stream_bytes_grown < growth.bytes_max && growth.wait_bytes == 0 && growth.probe.is_none();
        if may_grow && self.start == ConnectionStart::Done && self.failed.is_none() {
            growth.probe =
                Some(GrowthProbe { is_second: false, stream, stream_bytes: 0, connection_bytes: 0 });
            self.ping_for_growth();
        }
    }

    fn ping_for_growth(&mut self) {
        self.pings += 1;
        frame::ping(&mut self.control, false, GROWTH_PING);
    }

    /// Whether a window was the bottleneck during the measurement.
    fn was_window_limited(&self, probe: &GrowthProbe) -> bool {
        let stream_window = self.window_size(probe.stream);
        WindowGrowth::target(stream_window, probe.stream_bytes).is_some()
            || WindowGrowth::target(self.receive_window.size(), probe.connection_bytes).is_some()
    }

    /// Processes the answer to a measuring ping.
    pub(crate) fn take_growth_answer(&mut self) {
        let Some(probe) = self.growth.probe.take() else { return };
        if !probe.is_second && !self.was_window_limited(&probe) {
            self.growth.probe =
                Some(GrowthProbe { is_second: true, stream_bytes: 0, connection_bytes: 0, ..probe });
            self.ping_for_growth();
            return;
        }
        let most = self.initial_connection_window() + self.growth.bytes_max;
        let before = self.receive_window.size();
        let mut size = WindowGrowth::target(before, probe.connection_bytes).unwrap_or(before).min(most);
        let mut wait_bytes = self.options.stream_window as usize;
        if let Some(stream) = self.streams.find_mut(probe.stream)
            && let Some(target) = WindowGrowth::target(stream.receive_window.size(), probe.stream_bytes)
        {
            let room = self.growth.bytes_max.saturating_sub(self.growth.stream_bytes_grown);
            let more = target.saturating_sub(stream.receive_window.size()).min(room);
            stream.receive_window.grow(stream.receive_window.size() + more);
            stream.grown_bytes += more;
            self.growth.stream_bytes_grown += more;
            if more > 0 {
                wait_bytes = 0;
            }
        }
        // Growth of stream windows must not reduce the room of other streams in the connection's window.
        let first = self.initial_connection_window();
        size = size.max(first + self.growth.stream_bytes_grown.min(self.growth.bytes_max)).max(before);
        if size > before {
            self.receive_window.grow(size);
            wait_bytes = 0;
        }
        self.growth.wait_bytes = wait_bytes;
        self.update_windows(probe.stream);
    }
}
