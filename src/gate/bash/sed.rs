//! Accepts sed scripts that only read and write text: a short list of forms. Any other form may run
//! a command or write a file.
//!
//! *Source*: the manual of GNU sed 4.9, 3 ("sed scripts") and 4 ("Addresses").

use super::bracket::after_bracket;

/// Tells whether each command of a script has a listed form: up to two addresses, then a brace, `s`
/// or `y`, a command that takes a line of text (`a`, `i`, `c`), or a listed command of one letter.
pub(super) fn only_edits(script: &str) -> bool {
    let mut script = Script { rest: script, depth: 0 };
    loop {
        script.rest = script.rest.trim_start_matches([' ', '\t', '\n', ';']);
        if script.rest.is_empty() {
            return script.depth == 0;
        }
        if script.command().is_none() {
            return false;
        }
    }
}

struct Script<'a> {
    rest: &'a str,
    /// The number of open braces.
    depth: usize,
}

impl Script<'_> {
    /// Consumes a command with its address; `None` if the command has another form.
    fn command(&mut self) -> Option<()> {
        self.address()?;
        if self.take(',') {
            self.address()?;
        }
        self.rest = self.rest.trim_start();
        if self.take('!') {
            self.rest = self.rest.trim_start();
        }
        let name = self.next()?;
        match name {
            '{' => {
                self.depth += 1;
                return Some(());
            }
            '}' => self.depth = self.depth.checked_sub(1)?,
            'd' | 'D' | 'p' | 'P' | 'h' | 'H' | 'g' | 'G' | 'n' | 'N' | 'x' | '=' | 'z' => {}
            'q' | 'Q' | 'l' => self.digits(),
            's' | 'y' => {
                let mark = self.next().filter(|mark| "/|#,:@%_!+".contains(*mark))?;
                self.until(mark)?;
                self.until(mark)?;
                if name == 's' {
                    self.rest = self
                        .rest
                        .trim_start_matches(|c: char| c.is_ascii_digit() || "gpiI".contains(c));
                }
            }
            'a' | 'i' | 'c' => {
                let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
                self.rest = rest;
                // Reject any other backslash: it could continue the text on the next line.
                let line = line.strip_prefix('\\').unwrap_or(line);
                return (!line.contains('\\')).then_some(());
            }
            _ => return None,
        }
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        (self.rest.is_empty() || self.rest.starts_with([';', '\n', '}'])).then_some(())
    }

    /// Consumes a line number, `$` or a pattern between slashes, if there is one.
    fn address(&mut self) -> Option<()> {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        if self.take('/') {
            self.until('/')?;
            self.take('I');
        } else if !self.take('$') {
            self.digits();
            if self.take('~') {
                self.digits();
            }
        }
        Some(())
    }

    /// Consumes a pattern or a replacement up to its delimiter.
    fn until(&mut self, mark: char) -> Option<()> {
        loop {
            match self.next()? {
                '\n' => return None,
                '\\' => drop(self.next().filter(|c| *c != '\n')?),
                c if c == mark => return Some(()),
                '[' => self.rest = after_bracket(self.rest, mark)?,
                _ => {}
            }
        }
    }

    fn digits(&mut self) {
        self.rest = self.rest.trim_start_matches(|c: char| c.is_ascii_digit());
    }

    fn take(&mut self, c: char) -> bool {
        let rest = self.rest.strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let c = characters.next();
        self.rest = characters.as_str();
        c
    }
}
