//! The feeder: starts a client of another host or container, gives it all of its own input, and then holds that input open.
//!
//! What runs over there takes the end of its input for the end of the call, so that nothing of it outlives the feeder, which dies with its shim.
//! Its last words are a mark and the exit code of the program, which the feeder takes out of the output: what a client itself exits with says
//! nothing of the program.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

use rustix::process::Signal;

/// The argument by which this binary is started as the feeder; the mark, the client and its arguments follow.
pub const FEEDER_VERB: &str = "__feed";

/// What ends the feeder where the exit code of the program did not come: programs over there end with a code, also those that a signal ends.
pub const HUNG_UP: i32 = Signal::HUP.as_raw();

/// Bytes that are passed on at once.
const CHUNK: usize = 64 * 1024;

/// The exit code of a client that could not be started.
const NOT_STARTED: i32 = 127;

/// Runs this process as the feeder; returns the exit code of the program. Where that did not come, it ends by [`HUNG_UP`].
#[must_use]
#[expect(clippy::disallowed_methods, reason = "it runs below a shim, which leaves no orphan")]
pub fn run_feeder(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> i32 {
    let (Some(mark), Some(client)) = (arguments.next(), arguments.next()) else {
        return NOT_STARTED;
    };
    // A shim that is killed takes nothing along by itself.
    let parent = rustix::process::getppid();
    let with_shim =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if with_shim.is_err() || rustix::process::getppid() != parent {
        return NOT_STARTED;
    }
    let mut text = Vec::new();
    if std::io::stdin().read_to_end(&mut text).is_err() {
        return NOT_STARTED;
    }
    let started =
        Command::new(&client).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{}: {error}", client.to_string_lossy());
            return NOT_STARTED;
        }
    };
    let said = child.stdout.take().map(|output| {
        let mark = mark.to_string_lossy().into_owned();
        std::thread::spawn(move || pass_on(output, io::stdout(), &mark))
    });
    let mut input = child.stdin.take();
    if let Some(input) = &mut input {
        // A client that has ended takes no more; its exit code says why.
        let _ = input.write_all(&text).and_then(|()| input.flush());
    }
    let _ = child.wait();
    drop(input);
    if let Some(code) = said.and_then(|said| said.join().ok()?.ok()?) {
        return code;
    }
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::HUP);
    NOT_STARTED
}

/// Passes `from` on to its end but for the line of the mark; returns the code that stood there.
fn pass_on(mut from: impl Read, mut to: impl Write, mark: &str) -> io::Result<Option<i32>> {
    let mark = format!("\n{mark} ");
    let finder = memchr::memmem::Finder::new(mark.as_bytes());
    let (mut held, mut chunk, mut code) = (Vec::new(), vec![0; CHUNK], None);
    loop {
        let count = from.read(&mut chunk)?;
        held.extend_from_slice(chunk.get(..count).unwrap_or_default());
        if let Some(start) = finder.find(&held) {
            let rest = held.get(start + mark.len()..).unwrap_or_default();
            if let Some(length) = memchr::memchr(b'\n', rest) {
                let word = std::str::from_utf8(rest.get(..length).unwrap_or_default());
                code = word.ok().and_then(|word| word.parse().ok());
                held.drain(start..start + mark.len() + length + 1);
            }
        }
        // What could be the beginning of the mark waits, and the mark without its code.
        let kept = finder.find(&held).map_or(mark.len() - 1, |start| held.len() - start);
        let passed = if count == 0 { held.len() } else { held.len().saturating_sub(kept) };
        to.write_all(held.get(..passed).unwrap_or_default())?;
        held.drain(..passed);
        to.flush()?;
        if count == 0 {
            return Ok(code);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives its pieces one by one.
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
            // An empty piece would be the end.
            pieces.extend((!piece.is_empty()).then(|| piece.to_vec()));
        }
        pieces.push(rest.to_vec());
        let mut out = Vec::new();
        let code = pass_on(Pieces(pieces), &mut out, "MARK").unwrap();
        (out, code)
    }

    #[test]
    fn the_exit_code_is_taken_out_of_the_output() {
        assert_eq!(passed(b"a\n\nMARK 3\n", &[]), (b"a\n".to_vec(), Some(3)));
        assert_eq!(passed(b"\nMARK 255\nlate", &[]), (b"late".to_vec(), Some(255)));
        for none in ["", "a", "MARK 3\n", "\nMARK 3", "\nMARK ", "\nMARK x\n"] {
            assert_eq!(passed(none.as_bytes(), &[]).1, None, "{none:?}");
        }
        assert_eq!(passed(b"cut\nMARK 3", &[]).0, b"cut\nMARK 3");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(before in "[a\nMARK ]{0,30}", cuts in prop::collection::vec(1usize..9, 0..20)) {
            let text = format!("{before}x\nMARK 7\n");
            prop_assert_eq!(passed(text.as_bytes(), &cuts), passed(text.as_bytes(), &[]));
        }

        #[test]
        fn nothing_else_is_changed(text in "[a\nM ]{0,60}", cuts in prop::collection::vec(1usize..9, 0..20)) {
            prop_assert_eq!(passed(text.as_bytes(), &cuts), (text.into_bytes(), None));
        }
    }
}
