//! The transport to a server process: each message is a line of JSON.
//!
//! A server may also write a message over several lines, or without the line end, and lines that
//! are no messages. [`super::answers`] reads the texts that [`Lines`] finds.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, Empty};

use super::answers::{MESSAGE_VALUES, OpenRequests, TOO_MANY_VALUES, is_message};
use crate::text::json::Measure;

/// Maximum bytes of one message.
const MESSAGE_BYTES: usize = 16 << 20;

/// What some servers write before their first message.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Bytes that we read at once.
const PIECE: usize = 64 << 10;

/// The time that we wait for the rest of a message whose last line has ended, or for the line end
/// of a message that is complete without it.
const UNFINISHED: Duration = Duration::from_secs(1);

/// Why the connection was ended: set at the first message over the limits.
pub(super) type RefusalReason = Arc<OnceLock<&'static str>>;

/// The client's end of a server process.
pub(super) struct StdioTransport<R, W: AsyncWrite> {
    lines: Lines<R>,
    /// Messages that the library has not received yet.
    ready: VecDeque<ServerJsonRpcMessage>,
    requests: OpenRequests,
    /// Writes messages; reads nothing.
    outgoing: AsyncRwTransport<RoleClient, Empty, W>,
}

impl<R, W> StdioTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    pub(super) fn new(output: R, input: W) -> (Self, RefusalReason) {
        let refused = RefusalReason::default();
        let transport = Self {
            lines: Lines::new(output, refused.clone()),
            ready: VecDeque::new(),
            requests: OpenRequests::default(),
            outgoing: AsyncRwTransport::new_client(tokio::io::empty(), input),
        };
        (transport, refused)
    }
}

impl<R, W> Transport<RoleClient> for StdioTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.requests.send(&item);
        self.outgoing.send(item)
    }

    // *Cancel*: loses nothing; the next call continues.
    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let text = self.lines.next().await?;
            self.ready.extend(self.requests.read(&text, None));
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.outgoing.close().await
    }
}

/// Splits the output of a server into texts, each of which holds one message or none. Fails at a
/// message over the limits.
struct Lines<R> {
    inner: R,
    piece: Vec<u8>,
    /// The current line, and its measure.
    line: Vec<u8>,
    measure: Measure,
    /// The lines before it that may begin the same message, and their measure.
    begun: Vec<u8>,
    begun_measure: Measure,
    ready: VecDeque<Vec<u8>>,
    has_ended: bool,
    refused: RefusalReason,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(inner: R, refused: RefusalReason) -> Self {
        Self {
            inner,
            piece: vec![0; PIECE],
            line: Vec::new(),
            measure: Measure::default(),
            begun: Vec::new(),
            begun_measure: Measure::default(),
            ready: VecDeque::new(),
            has_ended: false,
            refused,
        }
    }

    /// Returns the next text; `None` once the output has ended or was refused.
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(text) = self.ready.pop_front() {
                return Some(text);
            }
            if self.has_ended {
                return None;
            }
            let is_waiting = !self.begun.is_empty() || !self.line.is_empty();
            let read = self.inner.read(&mut self.piece);
            let read = if is_waiting {
                tokio::time::timeout(UNFINISHED, read).await
            } else {
                Ok(read.await)
            };
            match read {
                Err(_) => self.take_unfinished(),
                Ok(Ok(count)) if count > 0 => self.take(count),
                Ok(_) => {
                    self.end_line();
                    self.end_begun();
                    self.has_ended = true;
                }
            }
        }
    }

    /// Takes the first `count` bytes of the piece.
    fn take(&mut self, count: usize) {
        for at in 0..count {
            let Some(byte) = self.piece.get(at).copied() else { return };
            if byte == b'\n' {
                self.end_line();
                continue;
            }
            self.measure.take(byte);
            self.line.push(byte);
            let why = if self.line.len() + self.begun.len() > MESSAGE_BYTES {
                "it sent a message of more than 16 MiB"
            } else if self.measure.values() + self.begun_measure.values() > MESSAGE_VALUES + 1 {
                TOO_MANY_VALUES
            } else {
                continue;
            };
            self.refused.get_or_init(|| why);
            self.has_ended = true;
            return;
        }
    }

    /// Takes the current line: a text of its own, or a part of a message over several lines.
    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        let measure = std::mem::take(&mut self.measure);
        if line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        let written = line.trim_ascii();
        if written.is_empty() {
            return;
        }
        // One message of a batch that is written over several lines.
        let alone = written.strip_suffix(b",").unwrap_or(written);
        let is_whole = !measure.is_open();
        if self.begun.is_empty() || is_whole && is_message(alone) {
            // Such a line also ends what a broken line began.
            self.end_begun();
            let may_begin = matches!(written.first(), Some(b'{' | b'[')) || written.ends_with(b"{");
            if is_whole || !may_begin {
                self.ready.push_back(alone.to_vec());
                return;
            }
        }
        self.begun.extend_from_slice(&line);
        self.begun.push(b'\n');
        line.iter().for_each(|byte| self.begun_measure.take(*byte));
        self.begun_measure.take(b'\n');
        if !self.begun_measure.is_open() {
            self.end_begun();
        }
    }

    /// Gives up waiting for the rest of a message. A message that is complete but for its line end
    /// is taken; a line that has only begun is not, because a large message takes its time.
    fn take_unfinished(&mut self) {
        if self.line.trim_ascii().is_empty() {
            self.end_begun();
        } else if !self.measure.is_open() && is_message(self.line.trim_ascii()) {
            self.end_line();
        }
    }

    fn end_begun(&mut self) {
        self.begun_measure = Measure::default();
        let begun = std::mem::take(&mut self.begun);
        if !begun.is_empty() {
            self.ready.push_back(begun);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn texts(input: &str) -> (Vec<String>, Option<&'static str>) {
        let refused = RefusalReason::default();
        let mut lines = Lines::new(input.as_bytes(), refused.clone());
        let mut found = Vec::new();
        while let Some(text) = lines.next().await {
            found.push(String::from_utf8(text).unwrap());
        }
        (found, refused.get().copied())
    }

    // proves MCP-6
    #[tokio::test]
    async fn a_message_is_found_over_several_lines_and_after_rubbish() {
        let check = async |input: &str, expected: &[&str]| {
            let (found, refused) = texts(input).await;
            assert_eq!(found, expected);
            assert_eq!(refused, None);
        };
        let message = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        check("{\"a\": \"[[[\"}\r\n[1]\n\n", &["{\"a\": \"[[[\"}", "[1]"]).await;
        check(
            "{\n \"id\": 1,\n\n \"result\": {\n }\n}\nx\n",
            &["{\n \"id\": 1,\n \"result\": {\n }\n}\n", "x"],
        )
        .await;
        check(
            &format!("this is no message\n\n{{\n{message}\n"),
            &["this is no message", "{\n", message],
        )
        .await;
        check(&format!("[\n{message},\n{message}\n]"), &["[\n", message, message, "]"]).await;
        check(&format!("[x] can't say \"\n{message}"), &["[x] can't say \"\n", message]).await;
        check("\u{feff}{\n\"id\": 1\n}\n", &["{\n\"id\": 1\n}\n"]).await;
        check("12:00 {\n\"id\": 1\n}\n", &["12:00 {\n\"id\": 1\n}\n"]).await;
        check("{\"id\":1,\"result\":{\"a\n", &["{\"id\":1,\"result\":{\"a\n"]).await;
    }

    // proves MCP-6
    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_cut_or_lacks_its_line_end_is_not_waited_for() {
        for (written, expected) in [
            ("{\"id\":1,\"result\":{\"a\n", Some("{\"id\":1,\"result\":{\"a\n")),
            ("{\"id\":1,\"result\":1}", Some("{\"id\":1,\"result\":1}")),
            ("{\"id\":1,\"result\":", None),
        ] {
            let (mut server, ours) = tokio::io::duplex(64);
            let mut lines = Lines::new(ours, RefusalReason::default());
            server.write_all(written.as_bytes()).await.unwrap();
            let found = tokio::time::timeout(UNFINISHED * 3, lines.next()).await;
            let found = found.ok().flatten().map(|text| String::from_utf8(text).unwrap());
            assert_eq!(found.as_deref(), expected, "{written}");
        }
    }

    // proves MCP-5
    #[tokio::test]
    async fn a_message_over_the_limits_ends_the_connection() {
        let refused = async |input: &str| texts(input).await.1.unwrap_or_default();
        assert!(refused(&format!("[{}1]\n", "{},".repeat(100_000))).await.contains("values"));
        assert!(refused(&format!("{{\n{}1]\n", "[\n".repeat(100_001))).await.contains("values"));
        assert!(refused(&format!("\"{}\"", "x".repeat(16 << 20))).await.contains("16 MiB"));
        let (found, refused) = texts(&"[1, 2, 3]\n".repeat(100_000)).await;
        assert_eq!((found.len(), refused), (100_000, None));
    }
}
