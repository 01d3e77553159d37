//! How a program reads its arguments: a row of the tables of `programs`.

/// How a program reads its arguments. A string of letters lists short options. A string of words
/// lists long options with their dashes, separated by spaces.
pub(crate) struct Reader {
    /// The names of the programs, separated by spaces, without a version suffix.
    pub(crate) names: &'static str,
    /// Options without a value.
    pub(crate) flags: &'static str,
    pub(crate) long_flags: &'static str,
    /// Options whose value does not run.
    pub(crate) valued: &'static str,
    pub(crate) long_valued: &'static str,
    /// Short options that take the rest of their word as a value, never the next word.
    pub(crate) attached: &'static str,
    /// Options whose value is run instead of a script or program.
    pub(crate) code: &'static str,
    pub(crate) long_code: &'static str,
    /// Short options whose value is run like that of `code`, and which end the options.
    pub(crate) last: &'static str,
    /// Options whose value names a source of code or settings for the program.
    pub(crate) loads: &'static str,
    pub(crate) long_loads: &'static str,
    /// Options whose value is a command or code that the program runs in addition to its
    /// usual work.
    pub(crate) runs: &'static str,
    pub(crate) long_runs: &'static str,
    /// Short options that make the first positional argument code instead of a file. Only shells
    /// have them.
    pub(crate) text: &'static str,
    /// Short options that make the program read its code from standard input.
    pub(crate) reads: &'static str,
    /// Number of positional arguments before the script or the program.
    pub(crate) before: usize,
    pub(crate) kind: Kind,
    pub(crate) stdin: Stdin,
}

/// How a program reads its positionals: the arguments that are neither options nor values of
/// options. The first positional is the first one after those that [`Reader::before`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first positional is a script; the rest are its arguments.
    Script,
    /// Like `Script`, in a shell language.
    Shell,
    /// Like `Script`, but options may follow the script.
    Permuted,
    /// The first positional is a program. Its arguments follow, and we read them as that program
    /// would.
    Program,
    /// Like `Program`, but the positionals before the program also determine what runs, such as the
    /// directory of `chroot`.
    Within,
    /// The first positional and all later arguments form one line of code, usually for a shell.
    Line,
    /// Only options run something.
    Options,
    /// Any argument may run something.
    Every,
}

/// What a program does with its standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdin {
    Data,
    /// Code, unless the arguments contain code or name a script or a program.
    Unless,
    /// Arguments for the program that it runs, as for `xargs`.
    Words,
    /// Code, whatever the arguments are.
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

/// A program that runs another one only with a certain subcommand.
pub(crate) struct Verb {
    pub(crate) names: &'static str,
    pub(crate) verbs: &'static str,
    /// How the program reads the arguments after the subcommand.
    pub(crate) reader: Reader,
}
