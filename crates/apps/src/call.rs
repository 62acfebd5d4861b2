//! One request in a worker's hands, from its slot to the last byte of the response.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use http::path::encode_beyond_ascii;
use http::{Length, Method, Status};
use net::{Exchange, Fault, Interest};
use ring::{Error, FilePart, Part, Received};

use crate::chunks::{self, Chunks};
use crate::desk::{Desk, Errand, Expect, Fate};
use crate::file;
use crate::generation::Held;
use crate::hijack;
use crate::log::{Teller, Urgency};
use crate::reply::{self, Reply, Spelling};
use crate::upgrade::{self, Wish};
use crate::upload::Upload;
use crate::websocket::Socket;

/// Bytes of an answer that are looked at together: an answer that ends within them gets a `Content-Length`.
const TOGETHER_BYTES: usize = 64 * 1024;
/// As much of a request's path is told.
const PATH_BYTES_MAX: usize = 200;
/// How often a worker's process is looked for, and with which pause.
const PROCESS_LOOKS_MAX: u32 = 1000;
const PROCESS_LOOK_MS: u64 = 5;

/// How a call ended.
pub(crate) enum Ended {
    /// The client has its response.
    Answered,
    /// By another end than an answer, and nothing was sent.
    Unanswered(Fate),
    /// The application failed, and nothing was sent.
    Failed,
    /// What the worker said makes no response, and nothing was sent.
    Bad,
}

/// A call under way.
pub(crate) struct Call<'c> {
    pub(crate) errand: Errand,
    pub(crate) upload: &'c mut Upload,
    /// The client wants a WebSocket.
    wish: Option<&'c Wish>,
    pub(crate) spelling: &'c Spelling,
    pub(crate) teller: &'c Teller,
    /// Whether the length of the response was told: then files can be sent by the kernel.
    length_known: bool,
    /// An event loop was told that the client has closed its sending side.
    closed_reported: bool,
    /// The application frames the body by itself.
    chunks: Option<Box<Chunks>>,
    /// Bytes of the body that may still come, as far as its length was announced.
    left: u64,
    /// The log was told that more of it came.
    excess_told: bool,
}

/// What stands in the buffer after a look at the answer: a head, then body, then what ended the look.
struct Gathered {
    /// Where the head ends, if there was one.
    head: Option<usize>,
    /// Where the body ends.
    body_end: usize,
    /// What ended the look, unless there simply was no more.
    stop: Option<Received>,
}

impl<'c> Call<'c> {
    pub(crate) fn new(
        errand: Errand,
        upload: &'c mut Upload,
        wish: Option<&'c Wish>,
        spelling: &'c Spelling,
        teller: &'c Teller,
    ) -> Call<'c> {
        Call {
            errand,
            upload,
            wish,
            spelling,
            teller,
            length_known: false,
            closed_reported: false,
            chunks: None,
            left: u64::MAX,
            excess_told: false,
        }
    }

    /// Carries the request and the response to their ends.
    ///
    /// # Errors
    /// The client's; and [`Fault::Broken`] where the response cannot be brought to its end.
    pub(crate) async fn run(mut self, x: &mut Exchange<'_>) -> Result<Ended, Fault> {
        loop {
            if !self.upload.is_given() {
                self.upload.go_on(x, &self.errand).await?;
                let client = self.upload.waits_for_client();
                self.errand.expect(if client { Expect::Client(x.body_ms()) } else { worker(x) });
            }
            if x.is_spilling() {
                x.take_turns().await;
            }
            if let Err(fate) = self.wait(x).await {
                if fate == Fate::Late {
                    self.tell_late(x);
                }
                return fated(x, fate);
            }
            if x.is_half_closed() && self.watches_end() {
                if self.errand.desk.generation.options.cancels_closed {
                    return Err(Fault::Gone);
                }
                self.closed_reported = true;
                self.errand.report_client_closed();
            }
            let desk: Rc<Desk> = self.errand.desk.clone();
            let mut buffer = desk.buffer();
            let ended = self.answer(x, &mut buffer).await;
            desk.give_back(buffer);
            if let Some(ended) = ended? {
                return Ok(ended);
            }
        }
    }

    /// Waits for the worker; for the client too where it has to send, or has not taken what there is.
    async fn wait(&self, x: &mut Exchange<'_>) -> Result<(), Fate> {
        x.hold(self.upload.held_bytes());
        let wanted = (self.upload.waits_for_client(), x.unsent() > 0);
        match wanted {
            (false, false) if self.watches_end() => self.errand.news(Some((x, Interest::END))).await,
            (false, false) => self.errand.news(None).await,
            (read, write) => self.errand.news(Some((x, Interest::of(read, write)))).await,
        }
    }

    /// Tells the log which request took too long.
    fn tell_late(&self, x: &Exchange<'_>) {
        let Some(untold) = self.errand.desk.may_tell() else { return };
        let options = &self.errand.desk.generation.options;
        let (what, limit_ms, name) = match x.has_begun() {
            false => ("no answer", options.request_ms_max, "timeouts.request"),
            true => ("its answer paused, and is cut short:", options.between_ms_max, "timeouts.between"),
        };
        let (held_ms, pid) = self.errand.held();
        let more = if untold > 0 { format!(" (and {untold} more like it)") } else { String::new() };
        let text = format!(
            "{}: {what} within {} s ({name}); worker {pid} has had it for {:.1} s{more}",
            request_line(x),
            limit_ms as f64 / 1000.0,
            held_ms as f64 / 1000.0,
        );
        self.teller.tell(Urgency::Warn, &text);
    }

    /// Whether it matters that the client closes its sending side: to an event loop, which is told once, and where that
    /// gives the request up.
    fn watches_end(&self) -> bool {
        let generation = &self.errand.desk.generation;
        generation.options.cancels_closed || !self.closed_reported && !generation.is_single()
    }

    /// Takes and sends what there is of the answer.
    async fn answer(&mut self, x: &mut Exchange<'_>, buffer: &mut Vec<u8>) -> Result<Option<Ended>, Fault> {
        loop {
            buffer.clear();
            let gathered = match self.gather(buffer) {
                Ok(gathered) => gathered,
                Err(Error::Fault(fault)) => {
                    self.teller.tell(Urgency::Error, &fault.to_string());
                    return bad(x);
                }
                Err(Error::Void) => return bad(x),
            };
            let Gathered { head, body_end, stop } = gathered;
            if let Some(Received { part: Part::Aborted(_), .. }) = stop {
                return self.give_up(x, buffer, head, body_end).await;
            }
            if let (None, false, Some(Received { part: Part::File(part), last: false })) =
                (head, x.has_begun(), stop)
            {
                return Box::pin(self.hijack(x, part)).await;
            }
            if let (Some(head), Some(wish)) = (head, self.wish)
                && reply::accepts_upgrade(&buffer[..head])
            {
                return Box::pin(self.upgrade(x, wish, &buffer[..head], &buffer[head..body_end], stop)).await;
            }
            if let Some(head) = head {
                let whole = stop.is_some_and(|stop| stop.part == Part::End);
                let length = whole.then_some((body_end - head) as u64);
                if let Err(why) = self.begin(x, &buffer[..head], &buffer[head..body_end], length) {
                    self.teller.tell(Urgency::Error, &format!("its answer makes no response: {why}"));
                    return bad(x);
                }
            }
            let (body, more) = buffer[head.unwrap_or(0)..].split_at(body_end - head.unwrap_or(0));
            let last = stop.is_some_and(|stop| stop.last);
            match &mut self.chunks {
                None => self.send(x, body, last).await?,
                Some(chunks) => {
                    let content = chunks.content(body, last)?;
                    self.send(x, &content, last).await?;
                }
            }
            match stop {
                Some(stop) => {
                    self.special(x, stop.part, more).await?;
                    if stop.last {
                        return Ok(Some(Ended::Answered));
                    }
                }
                None if buffer.len() >= TOGETHER_BYTES => {}
                None => {
                    x.try_flush()?;
                    self.errand.expect(worker(x));
                    return Ok(None);
                }
            }
        }
    }

    /// The application gave up. What it had written before is the client's; nothing but a head is no answer yet.
    async fn give_up(
        &mut self,
        x: &mut Exchange<'_>,
        buffer: &[u8],
        head: Option<usize>,
        body_end: usize,
    ) -> Result<Option<Ended>, Fault> {
        if self.closed_reported {
            return Err(Fault::Gone);
        }
        let body = &buffer[head.unwrap_or(0)..body_end];
        let begins = head.filter(|head| !body.is_empty() && !reply::accepts_upgrade(&buffer[..*head]));
        if let Some(head) = begins
            && self.begin(x, &buffer[..head], body, None).is_err()
        {
            return bad(x);
        }
        if !x.has_begun() {
            return Ok(Some(Ended::Failed));
        }
        if self.chunks.is_none() {
            self.send(x, body, false).await?;
            x.try_flush()?;
        }
        bad(x)
    }

    /// The application accepts the WebSocket; `body` came with its head.
    async fn upgrade(
        &mut self,
        x: &mut Exchange<'_>,
        wish: &Wish,
        head: &[u8],
        body: &[u8],
        stop: Option<Received>,
    ) -> Result<Option<Ended>, Fault> {
        let limits = self.errand.desk.generation.options.websockets;
        let (Ok(reply), Some(limits)) = (Reply::read(head, self.spelling), limits) else {
            self.teller.tell(Urgency::Error, "its answer makes no WebSocket");
            return bad(x);
        };
        let deflate = wish.deflate.filter(|_| limits.compress);
        x.upgrade(|lines| {
            lines.line(b"Connection", b"Upgrade");
            lines.line(b"Upgrade", b"websocket");
            lines.line(b"Sec-WebSocket-Accept", &wish.accept);
            if let Some(deflate) = &deflate {
                lines.line(b"Sec-WebSocket-Extensions", deflate.text().as_bytes());
            }
            reply.write_if(self.spelling, lines, |name| !upgrade::is_of_handshake(name));
        });
        x.try_flush()?;
        let socket = Socket::new(&self.errand, limits, deflate, self.teller);
        socket.run(x, &mut self.errand, body, stop.is_some_and(|stop| stop.last)).await?;
        Ok(Some(Ended::Answered))
    }

    /// The application takes the connection over. Its worker is free as soon as the descriptor is here.
    async fn hijack(&mut self, x: &mut Exchange<'_>, part: FilePart) -> Result<Option<Ended>, Fault> {
        let process = self.process(x).await?;
        let idle_ms = self.errand.desk.generation.options.hijacked_ms;
        let taken = match idle_ms {
            Some(idle_ms) => hijack::take(&process, part).map(|socket| (socket, idle_ms)),
            None => Err("its language takes no connections over".into()),
        };
        let (socket, idle_ms) = match taken {
            Ok(taken) if x.take_over() => taken,
            Ok(_) => {
                self.teller.tell(Urgency::Error, "it took a connection over before it had read the request");
                return bad(x);
            }
            Err(why) => {
                self.teller.tell(Urgency::Error, &why);
                return bad(x);
            }
        };
        self.errand.file_taken();
        // The request ends now; should its worker die instead, the socket says so.
        let mut rest = Vec::new();
        while self.errand.news(None).await.is_ok() {
            rest.clear();
            match self.errand.receive(&mut rest, TOGETHER_BYTES) {
                Ok(Some(Received { last: false, .. }) | None) => {}
                Ok(Some(_)) | Err(_) => break,
            }
        }
        hijack::relay(x, socket, idle_ms).await?;
        Ok(Some(Ended::Answered))
    }

    /// Takes parts as long as they are head and body; what is neither ends the look. Log lines are told on the way.
    fn gather(&mut self, buffer: &mut Vec<u8>) -> Result<Gathered, Error> {
        let mut head = None;
        while buffer.len() < TOGETHER_BYTES {
            let body_end = buffer.len();
            let room = TOGETHER_BYTES - body_end;
            let Some(mut received) = self.errand.receive(buffer, room)? else {
                return Ok(Gathered { head, body_end, stop: None });
            };
            match received.part {
                Part::Head => head = Some(buffer.len()),
                Part::Data => {}
                Part::Log(_) => {
                    self.teller.output(None, &buffer[body_end..]);
                    buffer.truncate(body_end);
                }
                _ => return Ok(Gathered { head, body_end, stop: Some(received) }),
            }
            if received.last {
                received.part = Part::End;
                return Ok(Gathered { head, body_end: buffer.len(), stop: Some(received) });
            }
        }
        Ok(Gathered { head, body_end: buffer.len(), stop: None })
    }

    /// Begins the response: `body` is what came with its head, and all of it where `whole` tells its length.
    fn begin(
        &mut self,
        x: &mut Exchange<'_>,
        head: &[u8],
        body: &[u8],
        whole: Option<u64>,
    ) -> Result<(), &'static str> {
        let reply = Reply::read(head, self.spelling)?;
        if reply.status.is_informational() {
            return Err("an interim status at the end");
        }
        // Servers of an event loop frame whatever their applications say; those of PSGI and Rack leave it to them.
        let says_framed = reply.chunked && !self.errand.desk.generation.options.event_loop;
        let framed = says_framed && chunks::is_framed(body, whole.is_some());
        if says_framed && !framed && x.content_wanted() {
            self.errand.desk.generation.tell_unframed(self.teller);
        }
        // To HEAD, no body says nothing of what there would be to GET.
        let body = whole.filter(|bytes| *bytes > 0 || x.request().method() != Method::Head);
        let length = match reply.length.or(body) {
            Some(length) if !framed => Length::Known(length),
            _ => Length::Unknown,
        };
        self.length_known = length != Length::Unknown;
        self.left = match length {
            Length::Known(bytes) if x.request().method() != Method::Head => bytes,
            _ => u64::MAX,
        };
        x.begin_lines(reply.status, length, reply.own, |lines| reply.write(self.spelling, lines));
        self.chunks = (framed && x.content_wanted()).then(|| Box::new(Chunks::new()));
        Ok(())
    }

    /// Sends a piece of the body. What a slow client does not take is kept, in memory and then in a file, so that the worker
    /// can go on.
    async fn send(&mut self, x: &mut Exchange<'_>, body: &[u8], last: bool) -> Result<(), Fault> {
        let body = &body[..self.announced(x, body.len() as u64) as usize];
        if body.is_empty() {
            return Ok(());
        }
        if last && x.backlog() + body.len() <= TOGETHER_BYTES {
            return x.write(body).await;
        }
        x.offer(body)?;
        self.hold_back(x, last).await
    }

    /// Of so many bytes of the body those that were announced. That there are more is said once.
    fn announced(&mut self, x: &Exchange<'_>, bytes: u64) -> u64 {
        let taken = bytes.min(self.left);
        self.left = match self.left {
            u64::MAX => u64::MAX,
            left => left - taken,
        };
        if taken < bytes && !std::mem::replace(&mut self.excess_told, true) {
            let text = format!("{}: more body written than announced", request_line(x));
            self.teller.tell(Urgency::Warn, &text);
        }
        taken
    }

    /// Makes room for a client that has more to read than is kept for it. After the `last` piece no worker waits for it.
    async fn hold_back(&self, x: &mut Exchange<'_>, last: bool) -> Result<(), Fault> {
        match x.backlog() > x.ahead_bytes_max(self.errand.desk.generation.options.answer_ahead_bytes) {
            true => Box::pin(self.make_room(x, last)).await,
            false => Ok(()),
        }
    }

    /// The client is far behind. After the `last` piece no worker waits for it any more.
    async fn make_room(&self, x: &mut Exchange<'_>, last: bool) -> Result<(), Fault> {
        let options = &self.errand.desk.generation.options;
        self.errand.expect(Expect::Nobody);
        while x.backlog() > x.ahead_bytes_max(options.answer_ahead_bytes) {
            let spilled = match &options.spill {
                Some(quota) => x.spill(quota).await?.map_err(|why| (quota, why)),
                None if last => break,
                None => return self.hold(x).await,
            };
            let Err((quota, why)) = spilled else { continue };
            if quota.is_to_report() {
                let text = format!("slow clients hold workers: {why}");
                self.teller.tell(Urgency::Warn, &text);
            }
            if last {
                break;
            }
            return self.hold(x).await;
        }
        self.errand.expect(worker(x));
        Ok(())
    }

    /// The worker waits until the client has taken everything; others who wait for a worker may end that.
    async fn hold(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        let desk = self.errand.desk.clone();
        let _held = Held::new(&desk.generation);
        self.errand.expect(Expect::Taker(x.write_ms()));
        desk.give_up_slowest();
        let mut unsent = u64::MAX;
        while !x.try_flush()? {
            if x.unsent() < unsent {
                unsent = x.unsent();
                self.errand.expect(Expect::Taker(x.write_ms()));
            }
            match self.errand.news(Some((x, Interest::of(false, true)))).await {
                Ok(()) => x.take_turns().await,
                Err(Fate::TooSlow) => {
                    if desk.is_cut_to_report() {
                        let text = "answers are cut off: their clients take them slowly, others wait for a worker, and \
                                    temporary files have no more room";
                        self.teller.tell(Urgency::Warn, text);
                    }
                    return Err(Fault::Timeout);
                }
                Err(fate) => return fated(x, fate).and(Err(Fault::Broken("the answer ended early"))),
            }
        }
        // What the worker has sent meanwhile set no news then.
        self.errand.look_again();
        self.errand.expect(worker(x));
        Ok(())
    }

    /// What is neither head nor body; its bytes are `more`.
    async fn special(&mut self, x: &mut Exchange<'_>, part: Part, more: &[u8]) -> Result<(), Fault> {
        match part {
            Part::Interim => {
                let reply = Reply::read(more, self.spelling);
                let fits =
                    |status: Status| status.is_informational() && status != Status::SWITCHING_PROTOCOLS;
                match reply {
                    Ok(reply) if fits(reply.status) => {
                        x.inform(reply.status, |lines| reply.write(self.spelling, lines));
                        x.try_flush()?;
                        self.hold_back(x, false).await?;
                    }
                    _ => self.teller.tell(Urgency::Error, "an interim answer that is none was left out"),
                }
                Ok(())
            }
            Part::Trailers => x.end(&reply::trailers(more, self.spelling)),
            Part::File(part) => self.send_file(x, part).await,
            Part::Head | Part::Data | Part::Log(_) | Part::End | Part::Aborted(_) => Ok(()),
        }
    }

    /// The worker's process. A worker that has just begun may answer before the supervisor has heard of it.
    async fn process(&self, x: &Exchange<'_>) -> Result<Arc<OwnedFd>, Fault> {
        for _ in 0..PROCESS_LOOKS_MAX {
            match self.errand.process() {
                Some(process) => return Ok(process),
                None if self.errand.is_void() => break,
                None => x.core().sleep(PROCESS_LOOK_MS).await,
            }
        }
        Err(Fault::Broken("the worker is gone"))
    }

    async fn send_file(&mut self, x: &mut Exchange<'_>, mut part: FilePart) -> Result<(), Fault> {
        if self.chunks.is_some() {
            return Err(Fault::Broken("a file has no chunks"));
        }
        part.len = self.announced(x, part.len);
        let process = self.process(x).await?;
        let taken = match self.errand.launcher() {
            None => file::take(&process, part, None),
            // Another process is asked: no core waits for that.
            Some(launcher) => {
                let take = move || io::Result::Ok(file::take(&process, part, Some(&*launcher)));
                x.core().offload(take).await?
            }
        };
        self.errand.file_taken();
        match taken {
            Ok(_) if !x.content_wanted() => Ok(()),
            Ok(taken) => {
                self.errand.expect(Expect::Nobody);
                file::send(x, taken, part, self.length_known).await?;
                self.errand.expect(Expect::Piece);
                Ok(())
            }
            Err(why) => {
                self.teller.tell(Urgency::Error, &why);
                Err(Fault::Broken("the application's file cannot be sent"))
            }
        }
    }
}

/// Method and path, for the log.
fn request_line(x: &Exchange<'_>) -> String {
    let request = x.request();
    let path = &request.path()[..request.path().len().min(PATH_BYTES_MAX)];
    let (method, path) = (request.method_name(), encode_beyond_ascii(path));
    format!("{} {}", String::from_utf8_lossy(method), String::from_utf8_lossy(&path))
}

/// The worker has to move next.
fn worker(x: &Exchange<'_>) -> Expect {
    if x.has_begun() { Expect::Piece } else { Expect::Worker }
}

fn fated(x: &Exchange<'_>, fate: Fate) -> Result<Ended, Fault> {
    match fate {
        Fate::Stalled => Err(Fault::Timeout),
        fate if !x.has_begun() => Ok(Ended::Unanswered(fate)),
        Fate::Late => Err(Fault::Broken("the application paused for too long in the middle of its answer")),
        _ => Err(Fault::Broken("the worker died in the middle of its answer")),
    }
}

/// The answer is not to be had any more.
fn bad(x: &Exchange<'_>) -> Result<Option<Ended>, Fault> {
    match x.has_begun() {
        false => Ok(Some(Ended::Bad)),
        true => Err(Fault::Broken("the application gave up in the middle of its answer")),
    }
}
