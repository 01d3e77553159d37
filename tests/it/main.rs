//! The real binary and real processes, in fresh directories.

mod process;
