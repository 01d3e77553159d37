//! How a program reads its arguments: a row of the tables of `programs`.

/// How a program reads its arguments. Letters are its short options; words are its long ones, as they are written.
pub(crate) struct Reader {
    /// The names of the programs, without the version at their end.
    pub(crate) names: &'static str,
    /// Options without a value.
    pub(crate) flags: &'static str,
    pub(crate) long_flags: &'static str,
    /// Options with a value that does not run.
    pub(crate) valued: &'static str,
    pub(crate) long_valued: &'static str,
    /// Letters that take the rest of their word as a value, never the next word.
    pub(crate) attached: &'static str,
    /// Options whose value takes the place of the script.
    pub(crate) code: &'static str,
    pub(crate) long_code: &'static str,
    /// Letters whose value takes the place of the script and ends the options.
    pub(crate) last: &'static str,
    /// Options whose value names a file or a place that the program takes code or settings from.
    pub(crate) loads: &'static str,
    pub(crate) long_loads: &'static str,
    /// Options whose value is a command or code that the program runs as well.
    pub(crate) runs: &'static str,
    pub(crate) long_runs: &'static str,
    /// Letters that make a text of the first positional instead of a file; only shells have them.
    pub(crate) text: &'static str,
    /// Letters that make the program read its code from standard input.
    pub(crate) reads: &'static str,
    /// Positional arguments before the script or the program.
    pub(crate) before: usize,
    pub(crate) kind: Kind,
    pub(crate) stdin: Stdin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first positional is a script; what follows are its arguments.
    Script,
    /// Like a script; its language is that of a shell.
    Shell,
    /// Like a script, but options may follow it.
    Permuted,
    /// The first positional is a program, which is read on in its turn.
    Program,
    /// Like a program; the words before it decide where it is found, so that they name it too.
    Within,
    /// Everything from the first positional on is joined and given to a shell.
    Line,
    /// Only options run something.
    Options,
    /// Every argument may run.
    Every,
}

/// What a program does with its standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdin {
    /// Data.
    Data,
    /// Code, unless the arguments name a script, a program or a text.
    Unless,
    /// Arguments of the program that it runs.
    Words,
    /// Code.
    Always,
}

pub(crate) const BLANK: Reader = Reader {
    names: "",
    flags: "",
    long_flags: "",
    valued: "",
    long_valued: "",
    attached: "",
    code: "",
    long_code: "",
    last: "",
    loads: "",
    long_loads: "",
    runs: "",
    long_runs: "",
    text: "",
    reads: "",
    before: 0,
    kind: Kind::Options,
    stdin: Stdin::Data,
};
pub(crate) const SCRIPT: Reader = Reader { kind: Kind::Script, stdin: Stdin::Unless, ..BLANK };
pub(crate) const PROGRAM: Reader = Reader { kind: Kind::Program, ..BLANK };
pub(crate) const LINE: Reader = Reader { kind: Kind::Line, ..BLANK };
pub(crate) const EVERY: Reader = Reader { kind: Kind::Every, stdin: Stdin::Always, ..BLANK };

/// A program that runs another one only after a word that says so.
pub(crate) struct Verb {
    pub(crate) names: &'static str,
    pub(crate) verbs: &'static str,
    /// How it reads what follows the word.
    pub(crate) reader: Reader,
}
