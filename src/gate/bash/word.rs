//! A word of a command.

/// A word of a command after quote removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// The beginning, as far as it is known.
    pub(super) text: String,
    /// Whether all of it is.
    pub(super) whole: bool,
    /// Whether it is a pattern of file names, so that it may become other words.
    pub(super) pattern: bool,
    /// Whether its value may become several words.
    pub(super) splits: bool,
    /// Whether a literal in it may hold code that something runs later.
    pub(super) holds_code: bool,
    /// The variable that it is, with the values that it goes through.
    pub(super) values: Option<(String, Vec<String>)>,
}

impl Word {
    pub(super) fn literal(text: &str) -> Self {
        Self { text: text.to_owned(), whole: true, ..Self::unknown() }
    }

    /// A word that goes through the values of a variable.
    pub(super) fn one_of(variable: &str, values: Vec<String>) -> Self {
        Self { values: Some((variable.to_owned(), values)), ..Self::unknown() }
    }

    pub(super) fn unknown() -> Self {
        Self {
            text: String::new(),
            whole: false,
            pattern: false,
            splits: false,
            holds_code: false,
            values: None,
        }
    }

    /// Returns the text if all of it is known.
    pub(super) fn known(&self) -> Option<&str> {
        self.whole.then_some(self.text.as_str())
    }

    /// Returns the beginning, as far as it is known.
    pub(super) fn beginning(&self) -> &str {
        &self.text
    }

    /// Tells whether at least its beginning is known, so that it is neither an option nor a device.
    pub(super) fn begins_known(&self) -> bool {
        !self.splits
            && !self.text.is_empty()
            && !self.text.starts_with('-')
            && !"/dev/".starts_with(&self.text)
            && !self.text.starts_with("/dev/")
    }

    /// Tells whether it may become `text` when bash looks for files of its pattern.
    pub(super) fn may_become(&self, text: &str) -> bool {
        let fixed = self.text.find(['*', '?', '[']).and_then(|at| self.text.get(..at));
        self.pattern && fixed.is_some_and(|fixed| text.starts_with(fixed))
    }

    /// Tells whether not even the beginning is known.
    pub(super) fn is_open(&self) -> bool {
        self.text.is_empty() || "/dev/".starts_with(&self.text)
    }

    /// Returns the name of the variable that this word sets, if it is an assignment: `NAME=value`, `NAME+=value`, `NAME[subscript]=value`.
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
            // It is another program by each process that looks.
            return None;
        }
        let name = text.rsplit('/').next().unwrap_or(text);
        (!name.is_empty()).then(|| name.to_owned())
    }
}

/// Returns an unquoted word: backslashes go, patterns are noticed.
pub(super) fn bare(text: &str) -> Word {
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

/// Within double quotes only four characters can be escaped.
pub(super) fn unescape_quoted(text: &str) -> String {
    let mut out = String::new();
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

/// Decodes the text of `$'…'`; `None` if a character is given by its number.
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
