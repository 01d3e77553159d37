//! `grep`, `glob`: ripgrep's libraries over our own walk, which never follows a link.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use globset::{GlobBuilder, GlobMatcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use regex_automata::nfa::thompson::NFA;
use regex_automata::util::syntax;
use rustix::fs::FileType;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::files::Opened;
use super::super::remote_files::Contents;
use super::super::walk::{LeftOut, Next, Walk};
use super::{Answer, Work};
use crate::domain::{CallError, ErrorKind};
use crate::gate::shown;

/// Maximum characters of a line that the model sees.
const LINE_CHARACTERS: usize = 500;

/// Maximum bytes of a pattern; its parsed form takes some hundred times as much.
const PATTERN_BYTES: usize = 16 << 10;

/// Maximum bytes of a compiled pattern.
const COMPILED_BYTES: usize = 4 << 20;

/// Bytes of the lazy DFA's cache, per thread; a pattern that needs more falls back to the NFA.
const TABLE_BYTES: usize = 2 << 20;

/// Maximum states of a compiled pattern: the NFA matcher looks at each of them for each byte.
const PATTERN_STATES: usize = 50_000;

/// Maximum of states times capture slots, which is the memory of the NFA matcher per thread, in
/// machine words.
const PATTERN_MEMORY_WORDS: usize = 250_000;

/// Maximum bytes of one line that are held in memory; a longer line ends the search of its file.
const LINE_BYTES: usize = 16 << 20;

/// Maximum steps of the NFA matcher on one line, a few seconds of work: we check the deadline only
/// between lines.
const LINE_STEPS: usize = 2_000_000_000;

/// Bytes of results after which a search stops.
const FOUND_BYTES: u64 = 4 << 20;

/// Maximum number of files that `glob` collects to find the newest.
const REMEMBERED: usize = 200_000;

#[derive(Deserialize)]
struct Grep {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    #[serde(default)]
    case_insensitive: bool,
    #[serde(default)]
    literal: bool,
    #[serde(default)]
    context: usize,
    max_results: Option<u64>,
}

#[derive(Deserialize)]
struct Glob {
    pattern: String,
    path: Option<String>,
    limit: Option<usize>,
}

pub(super) fn grep(arguments: &Map<String, Value>, work: &Work<'_>) -> Result<Answer, CallError> {
    let asked: Grep = super::parsed(arguments)?;
    let (matcher, line_bytes) = matcher(&asked)?;
    let glob = asked.glob.as_deref().map(compile).transpose()?;
    let path = asked.path.as_deref().unwrap_or(".");
    let root = work.files().open_tree(path, usize::MAX, Contents::All, true)?;
    let most = asked.max_results.unwrap_or(100);
    let search = || Search {
        work,
        matcher: &matcher,
        line_bytes,
        context: asked.context,
        matches: AtomicU64::new(0),
        most,
        bytes: AtomicU64::new(0),
        unfinished: AtomicU64::new(0),
        left_out: Mutex::default(),
    };
    let mut first = search();
    let mut found = first.all(&root, glob.as_ref(), false);
    if root.is_dir && first.is_full() {
        // The parallel walk finds matches in random order. Search again in a steady order, so that
        // an unchanged tree gives the same answer, which plans rely on.
        first = search();
        found = first.all(&root, glob.as_ref(), true);
    }
    let search = first;
    work.go_on()?;
    found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let mut answer = search.answer(found);
    for name in root.tree.iter().flat_map(|tree| &tree.skipped) {
        answer.add_note(&format!("[{name} was not searched: it is too large to fetch]\n"));
    }
    Ok(answer)
}

pub(super) fn glob(arguments: &Map<String, Value>, work: &Work<'_>) -> Result<Answer, CallError> {
    let asked: Glob = super::parsed(arguments)?;
    let pattern = compile(&asked.pattern)?;
    let path = asked.path.as_deref().unwrap_or(".");
    let root = work.files().open_tree(path, usize::MAX, Contents::None, true)?;
    if !root.is_dir {
        let message = format!("`{}` is not a directory.", shown(root.path.as_os_str()));
        return Err(CallError::new(ErrorKind::Io, message));
    }
    let found: Mutex<Vec<(i64, i64, PathBuf)>> = Mutex::default();
    let lock = || found.lock().unwrap_or_else(PoisonError::into_inner);
    let walk = Walk {
        rules: &work.ctx.access.paths,
        root: &root,
        ignores: true,
        depth: usize::MAX,
        is_steady: false,
        is_over: &|| work.go_on().is_err(),
    };
    let left_out = walk.run(&|entry| {
        if entry.kind != FileType::RegularFile || !fits(&pattern, entry.relative) {
            return Next::GoOn;
        }
        let Some(meta) = entry.open().ok().flatten().and_then(|file| file.metadata().ok()) else {
            return Next::GoOn;
        };
        let mut found = lock();
        found.push((-meta.mtime(), -meta.mtime_nsec(), entry.relative.to_path_buf()));
        if found.len() < REMEMBERED { Next::GoOn } else { Next::Stop }
    });
    work.go_on()?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable();
    let limit = asked.limit.unwrap_or(1000);
    let mut answer = Answer::default();
    for (_, _, path) in found.iter().take(limit) {
        let name = if work.ctx.glob_paths_are_relative {
            shown(path.as_os_str())
        } else {
            named(work, &root.path.join(path))
        };
        let _ = writeln!(answer.text, "{name}");
    }
    if found.is_empty() {
        answer.text = "[no file matches]".to_owned();
    }
    answer.add_note(&left_out.note());
    if found.len() >= REMEMBERED {
        answer.add_note(&format!(
            "[more than {REMEMBERED} files match, and newer ones may be missing: narrow the pattern]\n"
        ));
    }
    if found.len() > limit {
        let _ = write!(answer.note, "[{} more: raise `limit`]", found.len() - limit);
        answer.details.insert("match_limit_reached".to_owned(), Value::from(limit));
    }
    Ok(answer)
}

/// Returns the compiled pattern, and the bytes of the longest line that it may search.
fn matcher(asked: &Grep) -> Result<(RegexMatcher, usize), CallError> {
    check_length(&asked.pattern)?;
    let compiled = RegexMatcherBuilder::new()
        .case_insensitive(asked.case_insensitive)
        .fixed_strings(asked.literal)
        .line_terminator(Some(b'\n'))
        .size_limit(COMPILED_BYTES)
        .dfa_size_limit(TABLE_BYTES)
        .build(&asked.pattern)
        .map_err(|error| {
            invalid(format!("the pattern cannot be used as a regular expression: {error}"))
        })?;
    if asked.literal {
        return Ok((compiled, LINE_BYTES));
    }
    let syntax = syntax::Config::new().case_insensitive(asked.case_insensitive).utf8(false);
    let states = NFA::compiler()
        .syntax(syntax)
        .configure(NFA::config().nfa_size_limit(Some(COMPILED_BYTES)))
        .build(&asked.pattern)
        .map_err(|error| invalid(format!("the pattern cannot be used: {error}")))?;
    let (count, slots) = (states.states().len(), states.group_info().slot_len());
    if count > PATTERN_STATES || count.saturating_mul(slots) > PATTERN_MEMORY_WORDS {
        return Err(invalid("the pattern is too large: repeat less, use fewer groups".to_owned()));
    }
    Ok((compiled, LINE_BYTES.min(LINE_STEPS / count.max(1))))
}

fn check_length(pattern: &str) -> Result<(), CallError> {
    if pattern.len() > PATTERN_BYTES {
        return Err(invalid(format!("the pattern is longer than {PATTERN_BYTES} bytes")));
    }
    Ok(())
}

fn compile(pattern: &str) -> Result<GlobMatcher, CallError> {
    check_length(pattern)?;
    GlobBuilder::new(pattern.trim_start_matches("./"))
        .literal_separator(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| invalid(format!("this is not a valid glob pattern: {error}")))
}

fn invalid(message: String) -> CallError {
    CallError::new(ErrorKind::InvalidArguments, format!("{message}. Correct it and call again."))
}

/// Returns whether a path matches. A pattern without a slash matches file names, at any depth.
fn fits(glob: &GlobMatcher, relative: &Path) -> bool {
    match (glob.glob().glob().contains('/'), relative.file_name()) {
        (false, Some(name)) => glob.is_match(name),
        _ => glob.is_match(relative),
    }
}

/// Returns a path as the model sees it: relative if the path is below the working directory.
fn named(work: &Work<'_>, path: &Path) -> String {
    shown(path.strip_prefix(&work.ctx.access.paths.working_dir).unwrap_or(path).as_os_str())
}

struct Search<'a> {
    work: &'a Work<'a>,
    matcher: &'a RegexMatcher,
    line_bytes: usize,
    context: usize,
    matches: AtomicU64,
    most: u64,
    /// Bytes of the results so far.
    bytes: AtomicU64,
    /// Files that were not searched to their end.
    unfinished: AtomicU64,
    left_out: Mutex<LeftOut>,
}

/// The results in one file.
struct Found {
    path: PathBuf,
    text: String,
    cut_lines: u64,
}

impl Search<'_> {
    /// Returns whether the search has reached a limit.
    fn is_full(&self) -> bool {
        self.matches.load(Ordering::Relaxed) >= self.most
            || self.bytes.load(Ordering::Relaxed) > FOUND_BYTES
    }

    fn all(&self, root: &Opened, glob: Option<&GlobMatcher>, is_steady: bool) -> Vec<Found> {
        let found: Mutex<Vec<Found>> = Mutex::default();
        let keep = |one: Found| {
            if !one.text.is_empty() {
                found.lock().unwrap_or_else(PoisonError::into_inner).push(one);
            }
        };
        if !root.is_dir {
            if let Ok(file) = root.file.try_clone() {
                keep(self.file(file, &root.path));
            }
            return found.into_inner().unwrap_or_else(PoisonError::into_inner);
        }
        let rules = &self.work.ctx.access.paths;
        let is_full = || self.matches.load(Ordering::Relaxed) >= self.most;
        let is_over = || self.work.go_on().is_err() || is_full();
        let depth = usize::MAX;
        let walk = Walk { rules, root, ignores: true, depth, is_steady, is_over: &is_over };
        let left_out = walk.run(&|entry| {
            let wanted = entry.kind == FileType::RegularFile
                && glob.is_none_or(|glob| fits(glob, entry.relative));
            if wanted {
                match entry.open() {
                    Ok(Some(file)) => keep(self.file(file, &root.path.join(entry.relative))),
                    Ok(None) => {}
                    Err(_) => drop(self.unfinished.fetch_add(1, Ordering::Relaxed)),
                }
            }
            Next::GoOn
        });
        *self.left_out.lock().unwrap_or_else(PoisonError::into_inner) = left_out;
        found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, file: File, path: &Path) -> Found {
        let mut lines = Lines {
            search: self,
            name: None,
            found: Found { path: path.to_path_buf(), text: String::new(), cut_lines: 0 },
        };
        let mut searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(self.line_bytes))
            .before_context(self.context)
            .after_context(self.context)
            .line_number(true)
            .build();
        let guarded = Guarded { file, work: self.work };
        if searcher.search_reader(self.matcher, guarded, &mut lines).is_err() {
            // Keep the results from before the error.
            self.unfinished.fetch_add(1, Ordering::Relaxed);
        }
        lines.found
    }

    fn answer(&self, found: Vec<Found>) -> Answer {
        let mut answer = Answer::default();
        for one in &found {
            answer.text.push_str(&one.text);
        }
        let cut: u64 = found.iter().map(|one| one.cut_lines).sum();
        if cut > 0 {
            answer.details.insert("lines_truncated".to_owned(), Value::from(cut));
        }
        if found.is_empty() {
            answer.text = "[nothing matches]".to_owned();
        } else if self.matches.load(Ordering::Relaxed) >= self.most {
            let _ = write!(
                answer.text,
                "[stopped after {} matches: ask for more or narrow the pattern]",
                self.most
            );
            answer.details.insert("match_limit_reached".to_owned(), Value::from(self.most));
        }
        let unfinished = self.unfinished.load(Ordering::Relaxed);
        if unfinished > 0 {
            answer.add_note(&format!(
                "[files not searched to the end: {unfinished} (unreadable, or with a line of more than {} bytes)]\n",
                self.line_bytes
            ));
        }
        answer.add_note(&self.left_out.lock().unwrap_or_else(PoisonError::into_inner).note());
        answer
    }
}

/// A reader that fails when the call has to end.
struct Guarded<'a> {
    file: File,
    work: &'a Work<'a>,
}

impl io::Read for Guarded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.work.go_on().map_err(|error| io::Error::other(error.message))?;
        self.file.read(buffer)
    }
}

struct Lines<'a> {
    search: &'a Search<'a>,
    name: Option<String>,
    found: Found,
}

impl Lines<'_> {
    fn line(&mut self, number: Option<u64>, mark: char, bytes: &[u8]) {
        let (work, path) = (self.search.work, &self.found.path);
        let name = self.name.get_or_insert_with(|| named(work, path));
        let text = String::from_utf8_lossy(bytes);
        // Redact before the line is cut: the redactor would not recognize half of a secret.
        let text = work.ctx.redactor.text(text.trim_end_matches(['\n', '\r']));
        let cut: String = text.chars().take(LINE_CHARACTERS).collect();
        let dots = if cut.len() < text.len() { "…" } else { "" };
        self.found.cut_lines += u64::from(cut.len() < text.len());
        let number = number.unwrap_or(0);
        let length = (name.len() + cut.len()) as u64;
        self.search.bytes.fetch_add(length, Ordering::Relaxed);
        let _ = writeln!(self.found.text, "{name}{mark}{number}{mark} {cut}{dots}");
    }
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        if self.search.bytes.load(Ordering::Relaxed) > FOUND_BYTES {
            // Treat the limit on bytes like the limit on matches.
            self.search.matches.fetch_max(self.search.most, Ordering::Relaxed);
            return Ok(false);
        }
        if self.search.matches.fetch_add(1, Ordering::Relaxed) >= self.search.most {
            return Ok(false);
        }
        self.line(found.line_number(), ':', found.bytes());
        Ok(self.search.work.go_on().is_ok())
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        self.line(context.line_number(), '-', context.bytes());
        Ok(true)
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, io::Error> {
        self.found.text.push_str("--\n");
        Ok(true)
    }
}
