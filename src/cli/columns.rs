//! Fits the columns of a table into the width of a terminal.
//!
//! A cell breaks between words if all columns then fit, otherwise also after a mark within a word
//! (`nightly-backup`), and anywhere only as a last resort. An id has no marks, so it can be copied as
//! long as the other columns have room to give.

use unicode_width::UnicodeWidthStr as _;

/// Columns between two cells.
pub(crate) const GAP: u16 = 1;

/// Splits a text into pieces that should stay whole.
type Split = for<'a> fn(&'a str) -> Vec<&'a str>;

/// From coarse to fine.
const SPLITS: [Split; 3] = [words, parts, characters];

/// Returns the rows with line ends in the cells, so that all columns together have at most `width`
/// columns of the terminal. The first row is the header.
pub(crate) fn fit(rows: &[Vec<String>], width: usize) -> Vec<Vec<String>> {
    let widths = widths(rows, width);
    let fitted = |row: &Vec<String>| {
        row.iter().zip(&widths).map(|(cell, width)| wrap(cell, *width)).collect()
    };
    rows.iter().map(fitted).collect()
}

/// Returns the width of each column.
fn widths(rows: &[Vec<String>], width: usize) -> Vec<usize> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let room = width.saturating_sub(usize::from(GAP) * count.saturating_sub(1));
    let longest = |split: Split| -> Vec<usize> {
        let in_column = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let pieces = cells.flat_map(|cell| split(cell));
            pieces.map(|piece| piece.trim_end().width()).max().unwrap_or(0)
        };
        (0..count).map(in_column).collect()
    };
    let (of_words, of_parts, of_characters) = (longest(words), longest(parts), longest(characters));
    // The first column names the row, so it breaks within a part only after the others.
    let names = of_parts.iter().take(1).chain(of_characters.iter().skip(1));
    let names: Vec<usize> = names.copied().collect();
    let mut widths = longest(whole);
    for least in [of_words, of_parts, names, of_characters] {
        shrink(&mut widths, &least, room);
    }
    widths
}

/// Makes the widest columns narrower, but not narrower than `least`, until all fit into `room`.
fn shrink(widths: &mut [usize], least: &[usize], room: usize) {
    while widths.iter().sum::<usize>() > room {
        let wide = widths.iter_mut().zip(least).filter(|(width, least)| **width > **least);
        let Some((width, _)) = wide.max_by_key(|(width, _)| **width) else { return };
        *width -= 1;
    }
}

fn wrap(cell: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    add(&mut lines, cell, width, &SPLITS);
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// Adds a piece of a text to the last line, or to a new one. Splits the piece if it is too long for a
/// line.
fn add(lines: &mut Vec<String>, piece: &str, width: usize, splits: &[Split]) {
    let columns = piece.trim_end().width();
    let used = lines.last().map_or(0, |line| line.width());
    if used + columns <= width {
        if let Some(line) = lines.last_mut() {
            line.push_str(piece);
        }
    } else if columns > width
        && let Some((split, finer)) = splits.split_first()
    {
        split(piece).into_iter().for_each(|part| add(lines, part, width, finer));
    } else {
        lines.push(piece.to_owned());
    }
}

fn whole(text: &str) -> Vec<&str> {
    vec![text]
}

fn words(text: &str) -> Vec<&str> {
    text.split_inclusive(' ').collect()
}

/// Splits words also after marks, but not after a digit: numbers, dates and times stay whole.
fn parts(text: &str) -> Vec<&str> {
    let mut before = ' ';
    let is_end = move |c: char| {
        let is_mark = matches!(c, '-' | '_' | '/' | '.' | ',' | ':' | '=');
        let is_end = c == ' ' || is_mark && !before.is_ascii_digit();
        before = c;
        is_end
    };
    text.split_inclusive(is_end).collect()
}

fn characters(text: &str) -> Vec<&str> {
    text.split_inclusive(|_: char| true).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &[&[&str]]) -> Vec<Vec<String>> {
        text.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn a_cell_breaks_as_coarsely_as_the_width_allows() {
        for (cell, width, expected) in [
            ("two words", 9, "two words"),
            ("two words", 8, "two\nwords"),
            ("failed: error_threshold", 16, "failed:\nerror_threshold"),
            ("failed: error_threshold", 10, "failed:\nerror_\nthreshold"),
            ("nightly-backup-of-x", 12, "nightly-\nbackup-of-x"),
            ("2026-11-25 04:41", 10, "2026-11-25\n04:41"),
            ("2026-11-25 04:41", 8, "2026-11-\n25 04:41"),
            ("三三三", 4, "三三\n三"),
            ("", 4, ""),
        ] {
            assert_eq!(wrap(cell, width), expected, "{cell} {width}");
        }
    }

    #[test]
    fn ids_stay_whole_while_other_columns_have_room() {
        let id = "01m89hs1ybmsyyfm073g4qm1hg";
        let rows = rows(&[
            &["JOB", "DUE (UTC)", "STATE", "RUN", "REASON"],
            &[
                "nightly-backup-of-the-database",
                "2026-11-20 03:00:00",
                "ran",
                id,
                "failed (error_threshold)",
            ],
        ]);
        let fitted = fit(&rows, 80);
        assert_eq!(fitted[1][3], id);
        assert_eq!(fitted[1][1], "2026-11-20\n03:00:00");
        for width in [24, 40, 60, 80, 100] {
            let widths = widths(&rows, width);
            assert!(widths.iter().sum::<usize>() + 4 <= width, "{width}: {widths:?}");
        }
        assert_eq!(widths(&rows, 200), [30, 19, 5, 26, 24]);
        assert!(widths(&rows, 2).iter().all(|width| *width == 1), "nothing fits, and it ends");
    }
}
