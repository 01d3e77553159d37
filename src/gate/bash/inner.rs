//! What a command causes: the commands that it runs and the variables that it sets.

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
