//! Splits the body of a streamed answer into server-sent events.
//!
//! The library's reader ends a stream at the first line that it does not know and at bytes that are
//! not UTF-8; this one reads what servers send: such bytes stay for [`super::repair`], a line that
//! is no field continues the data before it, and the blank line after the last event is optional.

use sse_stream::Sse;

/// An event was larger than the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Reads events from the chunks of a body.
#[derive(Debug)]
pub(super) struct EventReader {
    /// Maximum bytes of one event.
    most: usize,
    line: Vec<u8>,
    after_cr: bool,
    event: Event,
}

/// The fields of an event so far.
#[derive(Debug, Default)]
struct Event {
    data: Option<Vec<u8>>,
    id: Option<String>,
    retry: Option<u64>,
}

/// An event, whose data can be any bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RawEvent {
    pub(super) data: Vec<u8>,
    /// Its id and its delay before another try, which the library reads.
    pub(super) rest: Sse,
}

impl EventReader {
    pub(super) fn new(most: usize) -> Self {
        Self { most, line: Vec::new(), after_cr: false, event: Event::default() }
    }

    /// Takes a chunk; returns the events that it completes.
    ///
    /// *Errors*: [`TooLarge`].
    pub(super) fn take(&mut self, chunk: &[u8]) -> Result<Vec<RawEvent>, TooLarge> {
        let mut events = Vec::new();
        for byte in chunk {
            let is_end = matches!(byte, b'\n' | b'\r');
            let is_second = *byte == b'\n' && std::mem::take(&mut self.after_cr);
            self.after_cr = *byte == b'\r';
            if is_second {
                continue;
            }
            if is_end {
                let line = std::mem::take(&mut self.line);
                events.extend(self.event.take(&line));
            } else {
                self.line.push(*byte);
            }
            let data = self.event.data.as_ref().map_or(0, Vec::len);
            if self.line.len() + data > self.most {
                return Err(TooLarge);
            }
        }
        Ok(events)
    }

    /// Returns the last event, if the body ended without the blank line after it.
    pub(super) fn end(&mut self) -> Option<RawEvent> {
        let line = std::mem::take(&mut self.line);
        self.event.take(&line).or_else(|| self.event.take(b""))
    }
}

impl Event {
    /// Takes a line without its end; a blank line completes the event.
    fn take(&mut self, line: &[u8]) -> Option<RawEvent> {
        let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        if line.is_empty() {
            let Self { data, id, retry } = std::mem::take(self);
            if data.is_none() && id.is_none() && retry.is_none() {
                return None;
            }
            let rest = Sse { id, retry, ..Sse::default() };
            return Some(RawEvent { data: data.unwrap_or_default(), rest });
        }
        let value = |name: &[u8]| {
            let value = line.strip_prefix(name)?;
            Some(value.strip_prefix(b" ").unwrap_or(value))
        };
        if let Some(id) = value(b"id:") {
            self.id = std::str::from_utf8(id).ok().map(str::to_owned);
        } else if let Some(retry) = value(b"retry:") {
            self.retry =
                std::str::from_utf8(retry).ok().and_then(|retry| retry.trim().parse().ok());
        } else if line.starts_with(b":") || line.starts_with(b"event:") {
            // Some servers name the event of an answer otherwise than `message`; the content decides.
        } else if let Some(data) = value(b"data:") {
            self.add(data);
        } else if self.data.is_some() {
            self.add(line);
        }
        None
    }

    fn add(&mut self, line: &[u8]) {
        match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(line);
            }
            None => self.data = Some(line.to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &[u8], chunk: usize) -> Result<Vec<RawEvent>, TooLarge> {
        let mut reader = EventReader::new(40);
        let mut events = Vec::new();
        for chunk in body.chunks(chunk) {
            events.extend(reader.take(chunk)?);
        }
        events.extend(reader.end());
        Ok(events)
    }

    // proves MCP-6
    #[test]
    fn events_are_read_as_servers_send_them() {
        let event = |data: &[u8]| RawEvent { data: data.to_vec(), rest: Sse::default() };
        let with_id = RawEvent { data: Vec::new(), rest: Sse::default().id("7").retry(5) };
        let check = |body: &[u8], expected: Vec<RawEvent>| {
            for chunk in [1, 3, 1000] {
                assert_eq!(read(body, chunk).as_ref(), Ok(&expected), "{chunk}");
            }
        };
        check(
            b": hi\r\n\r\nevent: answer\r\ndata: {\"a\xff\"}\r\n\r\n",
            vec![event(b"{\"a\xff\"}")],
        );
        check(b"data: {\n \"a\": 1\n}\n\ndata:2", vec![event(b"{\n \"a\": 1\n}"), event(b"2")]);
        check(
            b"\xEF\xBB\xBFid: 7\nretry: 5\nrubbish\n\n\ndata: a\rdata: b\r\r",
            vec![with_id, event(b"a\nb")],
        );
    }

    // proves MCP-5
    #[test]
    fn an_event_over_the_limit_is_refused() {
        assert!(read(&b"data: 1234\n\n".repeat(100), 7).is_ok());
        assert_eq!(read(&b"data: 1234\n".repeat(100), 7), Err(TooLarge));
        assert_eq!(read(&[b'x'; 41], 7), Err(TooLarge));
    }
}
