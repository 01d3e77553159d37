//! The words of a command, and quote removal.

/// A word of a command after quote removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// The known beginning of the word.
    pub(super) text: String,
    /// Whether `text` is the whole word.
    pub(super) whole: bool,
    /// Whether the word contains a file name pattern, so that bash may expand it to other words.
    pub(super) pattern: bool,
    /// Whether the word expands a variable with an unknown value that bash may split, so that the
    /// known beginning does not show what the word becomes.
    pub(super) splits: bool,
    /// Whether bash may expand it to several words or none, apart from file name patterns. In a word
    /// such as `web$n`, a variable that nothing sets counts as empty.
    pub(super) many: bool,
    /// Whether it is one quoted word that is certainly not an option, although its value is
    /// unknown: the text sets its variable only to values that begin otherwise, or not at all.
    pub(super) inert: bool,
    /// Whether a literal in it may hold code that something runs later.
    pub(super) holds_code: bool,
    /// Whether the grammar reads the word as an assignment; `text` is then the name.
    pub(super) is_assignment: bool,
    /// The loop variable that the word expands, with the values of the loop.
    pub(super) values: Option<(String, Vec<String>)>,
}

impl Word {
    pub(super) fn literal(text: &str) -> Self {
        Self { text: text.to_owned(), whole: true, ..Self::unknown() }
    }

    /// Returns a word that takes each value of a loop variable.
    pub(super) fn one_of(variable: &str, values: Vec<String>) -> Self {
        Self { values: Some((variable.to_owned(), values)), ..Self::unknown() }
    }

    pub(super) fn unknown() -> Self {
        Self {
            text: String::new(),
            whole: false,
            pattern: false,
            splits: false,
            many: false,
            inert: false,
            holds_code: false,
            is_assignment: false,
            values: None,
        }
    }

    /// Returns the text if the whole word is known.
    pub(super) fn known(&self) -> Option<&str> {
        self.whole.then_some(self.text.as_str())
    }

    /// Returns the known beginning of the word, which may be empty.
    pub(super) fn beginning(&self) -> &str {
        &self.text
    }

    /// Tells whether the known beginning shows that the word is neither an option nor a device.
    pub(super) fn begins_known(&self) -> bool {
        !self.splits
            && !self.text.is_empty()
            && !self.text.starts_with('-')
            && !"/dev/".starts_with(&self.text)
            && !self.text.starts_with("/dev/")
    }

    /// Tells whether bash certainly expands the word to exactly one word.
    pub(super) fn is_one_word(&self) -> bool {
        !self.many && !self.pattern
    }

    /// Tells whether the word is certainly one option with a known name and a computed value, as
    /// `--context="$c"` is.
    pub(super) fn is_valued_option(&self) -> bool {
        !self.splits && self.is_one_word() && self.text.starts_with('-') && self.text.contains('=')
    }

    /// Tells whether file name expansion may turn the word into `text`.
    pub(super) fn may_become(&self, text: &str) -> bool {
        let fixed = self.text.find(['*', '?', '[']).and_then(|at| self.text.get(..at));
        self.pattern && fixed.is_some_and(|fixed| text.starts_with(fixed))
    }

    /// Tells whether the word may name a device, because its known beginning is empty or a prefix
    /// of `/dev/`.
    pub(super) fn is_open(&self) -> bool {
        self.text.is_empty() || "/dev/".starts_with(&self.text)
    }

    /// Returns the variable that this word sets, with its subscript, if the word is an assignment:
    /// `NAME=value`, `NAME+=value` or `NAME[subscript]=value`.
    pub(super) fn assigned(&self) -> Option<String> {
        let (name, _) = self.text.split_once('=')?;
        let name = name.strip_suffix('+').unwrap_or(name);
        let plain = name.split('[').next().unwrap_or_default();
        let is_name = plain.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && !plain.is_empty()
            && !plain.starts_with(|c: char| c.is_ascii_digit());
        (is_name && (plain.len() == name.len() || name.ends_with(']'))).then(|| name.to_owned())
    }

    /// Returns the base name of the program that this word names.
    pub(super) fn program(&self) -> Option<String> {
        let text = self.known().filter(|text| !self.pattern && !text.is_empty())?;
        if ["/proc/", "/dev/"].iter().any(|tree| text.starts_with(tree)) {
            // Such a path may name a different program in each process.
            return None;
        }
        let name = text.rsplit('/').next().unwrap_or(text);
        (!name.is_empty()).then(|| name.to_owned())
    }
}

/// Returns an unquoted word: removes backslashes and notes patterns.
pub(super) fn bare(text: &str) -> Word {
    if !text.contains(['\\', '*', '?', '[', '{']) {
        return Word::literal(text);
    }
    let mut word = Word::literal("");
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some('\n') | None => {}
                Some(escaped) => word.text.push(escaped),
            },
            '*' | '?' | '[' => {
                word.pattern = true;
                word.text.push(c);
            }
            '{' if text.contains(',') || text.contains("..") => {
                word.whole = false;
                return word;
            }
            c => word.text.push(c),
        }
    }
    word
}

/// Removes the escapes from a double-quoted text, where only four characters and newlines can be
/// escaped.
pub(super) fn unescape_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match (c, characters.peek()) {
            ('\\', Some('"' | '\\' | '$' | '`')) => out.extend(characters.next()),
            ('\\', Some('\n')) => drop(characters.next()),
            (c, _) => out.push(c),
        }
    }
    out
}

/// Decodes the text of `$'…'`; `None` if it contains an escape that we do not decode, such as a
/// character number.
pub(super) fn unescape_ansi(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        out.push(match c {
            '\\' => match characters.next()? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'a' => '\u{7}',
                'b' => '\u{8}',
                'e' | 'E' => '\u{1b}',
                'f' => '\u{c}',
                'v' => '\u{b}',
                '?' => '?',
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}
