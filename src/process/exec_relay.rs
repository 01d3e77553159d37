//! The exec relay: starts the client that reaches another host or container (`ssh`, for example),
//! copies its own standard input to the client, and then holds the client's input open.
//!
//! The remote side treats the end of its input as the end of the call. So no remote process
//! outlives the relay, which dies with its shim. The remote side ends its output with a mark and
//! the exit code of the remote program, and the relay removes both from the output. The exit code
//! of the client itself says nothing about the remote program.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

use rustix::process::Signal;

/// The argument that starts this binary as the relay; the mark, the client and its arguments
/// follow.
pub const RELAY_VERB: &str = "__relay";

/// The signal by which the relay ends itself if it receives no exit code. The remote side always
/// sends a code, even if a signal ended the remote program.
pub const HUNG_UP: i32 = Signal::HUP.as_raw();

/// Bytes per read.
const CHUNK: usize = 64 * 1024;

/// Bytes of the longest exit code (3 digits), plus the newline after it.
const CODE_BYTES: usize = 4;

/// The first character of the mark. It is a control character that text does not contain, so the
/// relay never holds text back to see whether the mark follows.
pub(crate) const MARK_START: char = '\u{1e}';

/// Runs this process as the relay; returns the exit code of the remote program. Without such a
/// code, the process ends by [`HUNG_UP`].
#[must_use]
pub fn run_relay(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> i32 {
    let (Some(mark), Some(client)) = (arguments.next(), arguments.next()) else { return hang_up() };
    let code = relay(&mark.to_string_lossy(), &client, arguments);
    code.ok().flatten().unwrap_or_else(hang_up)
}

fn hang_up() -> i32 {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::HUP);
    // Reached only if the signal is blocked; shells use the same code.
    128 + HUNG_UP
}

#[expect(clippy::disallowed_methods, reason = "runs below a shim, which leaves no orphans")]
fn relay(
    mark: &str,
    client: &OsStr,
    arguments: impl Iterator<Item = std::ffi::OsString>,
) -> io::Result<Option<i32>> {
    // A shim that is killed cannot end the relay, so the relay must die with its parent.
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != parent {
        return Ok(None);
    }
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text)?;
    let started =
        Command::new(client).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = started.inspect_err(|error| {
        let _ = writeln!(io::stderr(), "{}: {error}", client.to_string_lossy());
    })?;
    let mark = format!("{MARK_START}{mark} ");
    let said = child
        .stdout
        .take()
        .map(|output| std::thread::spawn(move || pass_on(output, io::stdout(), mark.as_bytes())));
    let mut input = child.stdin.take();
    if let Some(input) = &mut input {
        // A client that has ended accepts no more input. Its output says why it ended.
        let _ = input.write_all(&text).and_then(|()| input.flush());
    }
    child.wait()?;
    drop(input);
    said.and_then(|said| said.join().ok()).unwrap_or(Ok(None))
}

/// Copies `from` to `to` until `from` ends, except for the mark, the exit code and the newline
/// after the code; returns the code.
fn pass_on(mut from: impl Read, mut to: impl Write, mark: &[u8]) -> io::Result<Option<i32>> {
    let finder = memchr::memmem::Finder::new(mark);
    let (mut held, mut chunk, mut code) = (Vec::new(), vec![0; CHUNK], None);
    loop {
        let count = from.read(&mut chunk)?;
        held.extend_from_slice(chunk.get(..count).unwrap_or_default());
        let passed = match finder.find(&held) {
            // Hold back what could be the beginning of the mark.
            None => held.len() - beginning(&held, mark),
            Some(start) => {
                let behind = start + mark.len();
                let rest = held.get(behind..).unwrap_or_default();
                let line = rest.get(..rest.len().min(CODE_BYTES)).unwrap_or_default();
                match memchr::memchr(b'\n', line) {
                    Some(length) => {
                        let word = std::str::from_utf8(line.get(..length).unwrap_or_default());
                        code = word.ok().and_then(|word| word.parse().ok());
                        held.drain(start..behind + length + 1);
                        held.len()
                    }
                    None if rest.len() < CODE_BYTES => start,
                    // No exit code is that long, so pass the text on.
                    None => held.len(),
                }
            }
        };
        let passed = if count == 0 { held.len() } else { passed };
        to.write_all(held.get(..passed).unwrap_or_default())?;
        to.flush()?;
        held.drain(..passed);
        if count == 0 {
            return Ok(code);
        }
    }
}

/// Returns how many bytes at the end of `held` form the beginning of `mark`.
fn beginning(held: &[u8], mark: &[u8]) -> usize {
    let is_one = |length: &usize| mark.get(..*length).is_some_and(|mark| held.ends_with(mark));
    (1..mark.len()).rev().find(is_one).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns one piece per read.
    struct Pieces(Vec<Vec<u8>>);

    impl Read for Pieces {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let Some(piece) = self.0.first().cloned() else { return Ok(0) };
            self.0.remove(0);
            into[..piece.len()].copy_from_slice(&piece);
            Ok(piece.len())
        }
    }

    fn passed(text: &[u8], cuts: &[usize]) -> (Vec<u8>, Option<i32>) {
        let (mut pieces, mut rest) = (Vec::new(), text);
        for cut in cuts {
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            rest = after;
            // An empty piece would mean the end.
            pieces.extend((!piece.is_empty()).then(|| piece.to_vec()));
        }
        pieces.push(rest.to_vec());
        let mut out = Vec::new();
        let code = pass_on(Pieces(pieces), &mut out, b"^MARK ").unwrap();
        (out, code)
    }

    #[test]
    fn the_exit_code_is_taken_out_of_the_output() {
        assert_eq!(passed(b"a\n^MARK 3\n", &[]), (b"a\n".to_vec(), Some(3)));
        assert_eq!(passed(b"b^MARK 255\nlate", &[]), (b"blate".to_vec(), Some(255)));
        for none in ["", "a", "MARK 3\n", "^MARK 3", "^MARK ", "^MARK x\n", "^MARK 1234\n"] {
            assert_eq!(passed(none.as_bytes(), &[]).1, None, "{none:?}");
        }
        assert_eq!(passed(b"cut^MARK 3", &[]).0, b"cut^MARK 3");
        let endless = [b"^MARK ".to_vec(), vec![b'x'; 9]].concat();
        assert_eq!(passed(&endless, &[]), (endless, None));
    }

    /// Keeps each write apart.
    struct Writes(Vec<String>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn text_that_cannot_be_an_exit_code_is_passed_on_at_once() {
        let long = format!("^MARK {}", "1".repeat(CODE_BYTES));
        let short = format!("^MARK {}", "1".repeat(CODE_BYTES - 1));
        for (first, expected) in
            [(&long, vec![long.clone(), "y".to_owned()]), (&short, vec![format!("{short}y")])]
        {
            let mut writes = Writes(Vec::new());
            let pieces = Pieces(vec![first.clone().into_bytes(), b"y".to_vec()]);
            pass_on(pieces, &mut writes, b"^MARK ").unwrap();
            assert_eq!(writes.0, expected);
        }
    }

    #[test]
    fn nothing_waits_but_the_beginning_of_the_mark() {
        for (held, waiting) in [("y/N] ", 0), ("a\n", 0), ("a^MA", 3), ("^MARK", 5), ("^MARK^", 1)]
        {
            assert_eq!(beginning(held.as_bytes(), b"^MARK "), waiting, "{held}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(before in "[a\n^MARK]{0,30}", cuts in prop::collection::vec(1usize..9, 0..20)) {
            let text = format!("{before}x^MARK 7\n");
            prop_assert_eq!(passed(text.as_bytes(), &cuts), passed(text.as_bytes(), &[]));
        }

        #[test]
        fn nothing_else_is_changed(text in "[a\n^M ]{0,60}", cuts in prop::collection::vec(1usize..9, 0..20)) {
            prop_assert_eq!(passed(text.as_bytes(), &cuts), (text.into_bytes(), None));
        }
    }
}
