//! The inner commands of a command: what it runs or sets in turn.

use super::word::Word;

pub(super) enum Inner {
    /// A command as words.
    Words(Vec<Word>),
    /// A command as text for a shell.
    Script(String),
    /// A variable that the command sets.
    Assigned(String),
    /// Something that we cannot determine; the text says why.
    Unknown(String),
}
