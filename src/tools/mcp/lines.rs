//! Limits each message of an MCP server before it is parsed: the messages of a server process are
//! JSON, one per line.
//!
//! The library parses a whole message without a limit, and its parser rejects a message that is
//! nested too deeply. We replace such a deep value with `null`, so that the rest of the message is
//! usable.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use crate::text::json::Measure;

/// Maximum bytes of one message.
const MESSAGE_BYTES: usize = 16 << 20;

/// Maximum number of JSON values in one message, which is enough for several thousand tools.
const MESSAGE_VALUES: usize = 100_000;

/// Maximum levels of lists and objects. The parser's own limit is 128.
const MAX_LEVELS: usize = 120;

/// Bytes that we read at once.
const PIECE: usize = 64 << 10;

/// Why a message was refused; set at the first such message.
pub(super) type RefusalReason = Arc<OnceLock<&'static str>>;

/// A reader that fails at a message over the limits.
pub(super) struct LimitedReader<R> {
    inner: R,
    /// Checked bytes that the caller has not read yet.
    ready: BytesMut,
    piece: Vec<u8>,
    measure: Measure,
    line_bytes: usize,
    refused: RefusalReason,
}

impl<R> LimitedReader<R> {
    pub(super) fn new(inner: R) -> (Self, RefusalReason) {
        let refused = RefusalReason::default();
        let limited = Self {
            inner,
            ready: BytesMut::new(),
            piece: vec![0; PIECE],
            measure: Measure::default(),
            line_bytes: 0,
            refused: refused.clone(),
        };
        (limited, refused)
    }

    /// Checks the first `count` bytes of the piece and makes them ready for the caller.
    fn pass(&mut self, count: usize) -> io::Result<()> {
        for byte in self.piece.get(..count).unwrap_or_default() {
            if *byte == b'\n' {
                self.measure = Measure::default();
                self.line_bytes = 0;
                self.ready.extend_from_slice(b"\n");
                continue;
            }
            let before = self.measure.depth();
            self.measure.take(*byte);
            self.line_bytes += 1;
            let why = if self.line_bytes > MESSAGE_BYTES {
                "it sent a message of more than 16 MiB"
            } else if self.measure.values() > MESSAGE_VALUES {
                "it sent a message of more than 100,000 values"
            } else {
                match (before, self.measure.depth()) {
                    (MAX_LEVELS, now) if now > MAX_LEVELS => self.ready.extend_from_slice(b"null"),
                    (before, _) if before > MAX_LEVELS => {}
                    _ => self.ready.extend_from_slice(&[*byte]),
                }
                continue;
            };
            let why = self.refused.get_or_init(|| why);
            return Err(io::Error::other(*why));
        }
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for LimitedReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.ready.is_empty() {
            let this = &mut *self;
            let mut piece = ReadBuf::new(&mut this.piece);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut piece))?;
            let count = piece.filled().len();
            if count == 0 {
                return Poll::Ready(Ok(()));
            }
            this.pass(count)?;
        }
        let count = into.remaining().min(self.ready.len());
        into.put_slice(self.ready.get(..count).unwrap_or_default());
        self.ready.advance(count);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    async fn check(input: &str, expected: Result<&str, &str>) {
        let (mut limited, refused) = LimitedReader::new(input.as_bytes());
        let mut out = String::new();
        let read = limited.read_to_string(&mut out).await;
        match expected {
            Ok(text) => assert_eq!((read.is_ok(), out.as_str()), (true, text)),
            Err(why) => assert!(read.is_err() && refused.get().unwrap().contains(why)),
        }
    }

    #[tokio::test]
    async fn deep_values_become_null_and_everything_else_passes() {
        check("{\"a\": \"[[[\"}\n[1]\n", Ok("{\"a\": \"[[[\"}\n[1]\n")).await;
        let deep = |levels: usize| format!("{}1, 2{}", "[".repeat(levels), "]".repeat(levels));
        check(&deep(120), Ok(&deep(120))).await;
        let cut = format!("{}null, 3{}", "[".repeat(120), "]".repeat(120));
        let long = format!("{}{}, 3{}", "[".repeat(120), deep(9000), "]".repeat(120));
        check(&long, Ok(&cut)).await;
    }

    // proves MCP-5
    #[tokio::test]
    async fn a_message_over_the_limits_ends_the_connection() {
        check(&format!("[{}1]\n", "{},".repeat(100_000)), Err("values")).await;
        check(&format!("\"{}\"", "x".repeat(16 << 20)), Err("16 MiB")).await;
        let lines = "[1, 2, 3]\n".repeat(100_000);
        check(&lines, Ok(&lines)).await;
    }
}
