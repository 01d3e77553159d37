//! Finds the spellings of secrets in all views of a text.
//!
//! The scanner reports every match, even one inside another, so that a match does not depend on the
//! text before it. A stream and a whole text therefore give the same result.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, Input, MatchKind};

use super::filter::Filter;
use super::view::{Encoding, Stop, View};

/// The marker for text that cannot be searched.
pub(super) const UNKNOWN: &str = "[redacted]";

/// An automaton over all spellings of all secrets.
#[derive(Debug)]
pub(super) struct Scanner {
    filter: Filter,
    automaton: NFA,
    start: StateID,
    /// The start state of a search that finds a spelling only at the first byte.
    anchored: StateID,
    /// Maps each state to the length of the longest spelling prefix that leads to it.
    depths: HashMap<StateID, usize>,
    longest: usize,
    markers: Vec<String>,
}

/// The matches in one text.
#[derive(Debug)]
pub(super) struct Scan {
    /// Sorted by start; at the same start, the longest first.
    matches: Vec<Found>,
    /// The number of bytes that further text cannot change: every match that begins in them is
    /// known, and their end does not split an escape.
    pub(super) sure: usize,
}

#[derive(Debug)]
struct Found {
    text: Range<usize>,
    marker: usize,
}

impl Scanner {
    /// Builds a scanner for pairs of a spelling and its marker; `None` if an automaton cannot hold
    /// so many spellings.
    pub(super) fn new(spellings: Vec<(Vec<u8>, String)>) -> Option<Self> {
        let (patterns, markers): (Vec<_>, Vec<_>) = spellings.into_iter().unzip();
        let automaton = NFA::builder().match_kind(MatchKind::Standard).build(&patterns).ok()?;
        let filter = Filter::new(&patterns)?;
        let start = automaton.start_state(Anchored::No).ok()?;
        let anchored = automaton.start_state(Anchored::Yes).ok()?;
        let mut depths = HashMap::new();
        for pattern in &patterns {
            let mut state = start;
            for (before, byte) in pattern.iter().enumerate() {
                state = automaton.next_state(Anchored::No, state, *byte);
                depths.insert(state, before + 1);
            }
        }
        let longest = patterns.iter().map(Vec::len).max().unwrap_or(0);
        Some(Self { filter, automaton, start, anchored, depths, longest, markers })
    }

    /// Searches every view of `text`.
    pub(super) fn scan(&self, text: &[u8], stop: Stop) -> Scan {
        let mut scan = Scan { matches: Vec::new(), sure: text.len() };
        let mut views = Vec::new();
        for encoding in Encoding::ALL {
            let Some(view) = View::new(text, encoding, stop) else { continue };
            let from = self.filter.skip(view.bytes(), |window| self.begins(window));
            self.find(&view, from, &mut scan);
            if stop == Stop::More {
                scan.sure = scan.sure.min(self.sure(&view, from));
                views.push(view);
            }
        }
        // Escapes of two encodings never overlap, so one pass finds their boundary.
        scan.sure = views.iter().fold(scan.sure, |sure, view| view.boundary(sure));
        scan.matches.sort_by_key(|found| (found.text.start, Reverse(found.text.end), found.marker));
        scan
    }

    /// Tells whether a spelling begins with `bytes`.
    fn begins(&self, bytes: &[u8]) -> bool {
        let mut state = self.anchored;
        bytes.iter().all(|byte| {
            state = self.automaton.next_state(Anchored::Yes, state, *byte);
            !self.automaton.is_dead(state)
        })
    }

    /// Adds the matches that begin at byte `from` of the view or later.
    fn find(&self, view: &View<'_>, from: usize, scan: &mut Scan) {
        let input = Input::new(view.bytes()).range(from..);
        match self.automaton.try_find_overlapping_iter(input) {
            Ok(all) => scan.matches.extend(all.map(|found| Found {
                text: view.text_range(found.range()),
                marker: found.pattern().as_usize(),
            })),
            // The automaton supports this search. If it did not, the whole text would be redacted.
            Err(_) => scan.matches.push(Found { text: 0..usize::MAX, marker: usize::MAX }),
        }
    }

    /// Returns the first position in the text at which a spelling could begin that ends after the
    /// view. The caller knows that no spelling begins before byte `from` of the view.
    fn sure(&self, view: &View<'_>, from: usize) -> usize {
        let bytes = view.bytes();
        let from = from.max((bytes.len() + 1).saturating_sub(self.longest));
        let state = bytes
            .iter()
            .skip(from)
            .fold(self.start, |state, byte| self.automaton.next_state(Anchored::No, state, *byte));
        let depth = self.depths.get(&state).copied().unwrap_or(0);
        view.text_start(bytes.len().saturating_sub(depth))
    }

    /// Appends the part of `text` before `scan.sure` to `out`. One marker replaces all matches that
    /// overlap; adjacent matches get one marker each.
    ///
    /// `covered` counts the bytes at the start of `text` that an earlier marker replaced. Returns
    /// this count for the text after `scan.sure`.
    pub(super) fn replace(
        &self,
        text: &[u8],
        scan: &Scan,
        covered: usize,
        out: &mut Vec<u8>,
    ) -> usize {
        let mut done = covered;
        for found in scan.matches.iter().take_while(|found| found.text.start < scan.sure) {
            if found.text.start >= done {
                out.extend_from_slice(text.get(done..found.text.start).unwrap_or_default());
                let marker = self.markers.get(found.marker).map_or(UNKNOWN, String::as_str);
                out.extend_from_slice(marker.as_bytes());
            }
            done = done.max(found.text.end);
        }
        out.extend_from_slice(text.get(done..scan.sure).unwrap_or_default());
        done.saturating_sub(scan.sure)
    }
}

impl Scan {
    pub(super) fn is_clean(&self) -> bool {
        self.matches.is_empty()
    }
}
