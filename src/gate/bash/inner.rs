//! What a command leads to besides itself.

use super::word::Word;

/// Something that a command runs or does besides itself.
pub(super) enum Inner {
    /// A command as words.
    Words(Vec<Word>),
    /// A command as text for a shell.
    Script(String),
    /// A variable that is set for what follows.
    Assigned(String),
    /// We cannot tell what.
    Unknown(String),
}
