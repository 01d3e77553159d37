//! The real binary and real processes, in fresh directories.

#![expect(clippy::unwrap_used, reason = "a test that fails is to stop at once")]

mod process;
