//! A process that we talk to over its standard input and output: an MCP server, or the client of a
//! connection that the calls of a run share.
//!
//! One task per process reads the standard error of the process from the first byte to the last, so
//! that the process never blocks on a full pipe. The task keeps the last 16 KiB, without secrets.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf, pipe};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::GRACE;
use super::fork_server::{ForkServer, Shim, ShimGuard};
use super::spawner::{DRAIN, Exit, ProcessSpec, SHIM_SLACK, SpawnFailure, Spawner, exit_of, sweep};
use super::wire::{KILL_AT_ONCE, read_report};
use crate::text::escape::one_line;
use crate::text::redact::{Redactor, StreamRedactor};

/// Bytes at the end of standard error that are kept, without secrets.
const KEPT: usize = 16 * 1024;

/// Bytes per read of standard error.
const CHUNK: usize = 16 * 1024;

/// Lines of standard error in [`PipedEnded::words`].
const SAID_LINES: usize = 10;

/// Characters of standard error in [`PipedEnded::words`].
const SAID_CHARACTERS: usize = 2000;

/// A process that we talk to. Dropping this value closes the lifeline, and the shim then ends the
/// process and all its descendants.
#[derive(Debug)]
pub struct Piped {
    server: Arc<ForkServer>,
    process: OwnedFd,
    guard: ShimGuard,
    lifeline: OwnedWriteHalf,
    kill: CancellationToken,
    end: PipedEnd,
    _follower: AbortOnDropHandle<()>,
}

/// Waits for the end of a [`Piped`] process, without ending it.
#[derive(Debug, Clone)]
pub struct PipedEnd(watch::Receiver<Option<PipedEnded>>);

/// How a [`Piped`] process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipedEnded {
    /// The exit, or why the process never ran; [`SpawnFailure::ShimLost`] if the shim did not
    /// report.
    pub exit: Result<Exit, SpawnFailure>,
    /// Processes that survived the kill.
    pub survivors: u64,
    /// The end of its standard error, at most 16 KiB, without secrets; lossy UTF-8.
    pub said: String,
}

impl Spawner {
    /// Starts a process that we talk to over its standard input and output; returns it with the
    /// receiver of its standard output and the sender for its standard input. `spec.stdin` is not
    /// used. If the process does not exit by itself, [`Piped::end`] or its timeout ends it.
    /// `redactor` removes secrets from its standard error.
    ///
    /// *Errors*: [`SpawnFailure`].
    pub async fn start_piped(
        &self,
        spec: &ProcessSpec,
        redactor: &Redactor,
    ) -> Result<(Piped, pipe::Receiver, pipe::Sender), SpawnFailure> {
        let Shim { process, guard, lifeline, output, talk } = self.start(spec, true).await?;
        let (input, errors) =
            talk.ok_or_else(|| SpawnFailure::Order("the pipes are missing".to_owned()))?;
        let (from_shim, lifeline) = lifeline.into_split();
        let (tell, end) = watch::channel(None);
        let follower = tokio::spawn(follow(from_shim, errors, redactor.stream(), tell));
        let piped = Piped {
            server: self.server.clone(),
            process,
            guard,
            lifeline,
            kill: self.kill.clone(),
            end: PipedEnd(end),
            _follower: AbortOnDropHandle::new(follower),
        };
        Ok((piped, output, input))
    }
}

impl Piped {
    /// Returns a handle that waits for the end of the process.
    #[must_use]
    pub fn ending(&self) -> PipedEnd {
        self.end.clone()
    }

    /// Ends the process and all its descendants.
    pub async fn end(mut self) -> PipedEnded {
        if self.kill.is_cancelled() {
            let _ = self.lifeline.write_all(&[KILL_AT_ONCE]).await;
        }
        let _ = self.lifeline.shutdown().await;
        let ended = self.end.within(GRACE + SHIM_SLACK + DRAIN).await;
        if let Some(ended) = &ended
            && !matches!(ended.exit, Err(SpawnFailure::ShimLost { .. }))
        {
            return ended.clone();
        }
        let kill = rustix::process::Signal::KILL;
        let _ = rustix::process::pidfd_send_signal(&self.process, kill);
        drop(self.guard);
        let survivors = sweep(&self.server).await;
        PipedEnded {
            exit: Err(SpawnFailure::ShimLost { survivors }),
            survivors,
            said: ended.map(|ended| ended.said).unwrap_or_default(),
        }
    }
}

impl PipedEnd {
    /// Waits until the process ends by itself; `None` if it still lives after `patience`.
    pub async fn within(&self, patience: Duration) -> Option<PipedEnded> {
        let mut end = self.0.clone();
        let ended = tokio::time::timeout(patience, end.wait_for(Option::is_some)).await;
        ended.ok()?.ok()?.clone()
    }
}

impl PipedEnded {
    /// Describes the end on one line, with the last 10 lines of standard error (at most 2000
    /// characters). The text is empty if we ended a process whose standard error is empty.
    #[must_use]
    pub fn words(&self) -> String {
        let how = match &self.exit {
            Err(failure) => failure.to_string(),
            Ok(exit) if exit.timed_out => "it timed out".to_owned(),
            Ok(exit) if exit.cancelled => String::new(),
            Ok(Exit { code: Some(code), .. }) => format!("it exited with code {code}"),
            Ok(Exit { signal: Some(signal), .. }) => match Signal::try_from(*signal) {
                Ok(signal) => format!("it was killed by {signal}"),
                Err(_) => format!("it was killed by signal {signal}"),
            },
            Ok(_) => String::new(),
        };
        let said = last_lines(&self.said);
        match (how.is_empty(), said.is_empty()) {
            (_, true) => how,
            (true, false) => format!("its standard error: {said}"),
            (false, false) => format!("{how}; its standard error: {said}"),
        }
    }
}

/// Returns the last lines that are not empty, joined on one line.
fn last_lines(said: &str) -> String {
    let lines = said.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let mut last: Vec<String> = lines.rev().take(SAID_LINES).map(one_line).collect();
    last.reverse();
    let joined = last.join(" | ");
    match joined.chars().count().checked_sub(SAID_CHARACTERS) {
        None | Some(0) => joined,
        // The ellipsis counts as a character.
        Some(excess) => std::iter::once('…').chain(joined.chars().skip(excess + 1)).collect(),
    }
}

/// Reads standard error until the shim has reported, then publishes the end.
async fn follow(
    mut from_shim: OwnedReadHalf,
    mut errors: pipe::Receiver,
    redactor: StreamRedactor,
    tell: watch::Sender<Option<PipedEnded>>,
) {
    let mut tail = Tail { redactor, kept: VecDeque::new() };
    let mut chunk = vec![0; CHUNK];
    let mut open = true;
    let report = {
        let report = read_report(&mut from_shim);
        tokio::pin!(report);
        loop {
            tokio::select! {
                read = errors.read(&mut chunk), if open => open = tail.take(read, &chunk),
                report = &mut report => break report,
            }
        }
    };
    // After the report, only a survivor or a process outside the tree can still hold the pipe.
    let _ = tokio::time::timeout(DRAIN, async {
        while open {
            open = tail.take(errors.read(&mut chunk).await, &chunk);
        }
    })
    .await;
    tell.send_replace(Some(PipedEnded {
        exit: report.ok_or(SpawnFailure::ShimLost { survivors: 0 }).and_then(exit_of),
        survivors: report.map_or(0, |report| report.survivors),
        said: tail.finish(),
    }));
}

/// The last bytes of a stream, without secrets. Secrets are removed before old bytes are dropped,
/// because a secret without its beginning could not be recognized.
struct Tail {
    redactor: StreamRedactor,
    kept: VecDeque<u8>,
}

impl Tail {
    /// Adds the bytes of a read; returns whether the stream continues.
    fn take(&mut self, read: std::io::Result<usize>, chunk: &[u8]) -> bool {
        let count = read.unwrap_or(0);
        let clean = self.redactor.push(chunk.get(..count).unwrap_or_default());
        self.keep(&clean);
        count > 0
    }

    fn keep(&mut self, bytes: &[u8]) {
        let recent = bytes.get(bytes.len().saturating_sub(KEPT)..).unwrap_or_default();
        let excess = (self.kept.len() + recent.len()).saturating_sub(KEPT);
        self.kept.drain(..excess.min(self.kept.len()));
        self.kept.extend(recent);
    }

    fn finish(mut self) -> String {
        let empty = Redactor::default().stream();
        let rest = std::mem::replace(&mut self.redactor, empty).finish();
        self.keep(&rest);
        String::from_utf8_lossy(self.kept.make_contiguous()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::redact::Secret;

    fn tail(secret: &str, pieces: &[&str]) -> String {
        let secret = Secret { name: "KEY".to_owned(), value: secret.to_owned() };
        let redactor = Redactor::new(&[secret]).stream();
        let mut tail = Tail { redactor, kept: VecDeque::new() };
        for piece in pieces {
            assert!(tail.take(Ok(piece.len()), piece.as_bytes()));
        }
        assert!(!tail.take(Ok(0), b""));
        tail.finish()
    }

    // proves SEC-2
    #[test]
    fn the_end_of_standard_error_is_kept_without_secrets() {
        assert_eq!(tail("very-secret", &["a very-", "secret b"]), "a [redacted:KEY] b");
        let long = "x".repeat(KEPT);
        assert_eq!(tail("very-secret", &["first\n", &long]), long);
        // The cut goes through a secret, and no part of the secret remains.
        let secret = "s3cret-".repeat(100);
        let kept = tail(&secret, &[&secret, &"x".repeat(KEPT - 300)]);
        assert!(!kept.contains("s3cret"), "{kept}");
    }

    #[test]
    fn an_end_is_told_in_words() {
        let check = |exit: Result<Exit, SpawnFailure>, said: &str, expected: &str| {
            let ended = PipedEnded { exit, survivors: 0, said: said.to_owned() };
            assert_eq!(ended.words(), expected);
        };
        let exited = |code| Ok(Exit { code: Some(code), ..Exit::default() });
        let killed = |signal| Ok(Exit { signal: Some(signal), ..Exit::default() });
        check(exited(3), "", "it exited with code 3");
        check(
            killed(9),
            "\n a\u{1b}[1m \n\nb\n",
            "it was killed by SIGKILL; its standard error:  a\\u{1b}[1m | b",
        );
        check(killed(35), "", "it was killed by signal 35");
        let stopped = Exit { signal: Some(15), cancelled: true, ..Exit::default() };
        check(Ok(stopped), "", "");
        check(Ok(stopped), "log in first\n", "its standard error: log in first");
        check(Ok(Exit { timed_out: true, ..Exit::default() }), "", "it timed out");
        let refused =
            SpawnFailure::Refused { step: "executing the program", errno: nix::Error::ENOEXEC };
        check(Err(refused), "", "executing the program failed with ENOEXEC: Exec format error");
    }

    #[test]
    fn ten_lines_and_two_thousand_characters_are_told() {
        let lines: String = (0..30).map(|number| format!("line {number}\n")).collect();
        let told = last_lines(&lines);
        assert!(told.starts_with("line 20 | ") && told.ends_with(" | line 29"), "{told}");
        let told = last_lines(&format!("{}end", "ü".repeat(5000)));
        assert!(told.starts_with('…') && told.ends_with("üend"), "{told}");
        assert_eq!(told.chars().count(), 2000);
    }
}
