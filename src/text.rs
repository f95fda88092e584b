//! Figures and tables for people.

use daemon::api::ComputeInfo;
use daemon::arbiter::Class;
use daemon::terms::{Part, WHOLE_PERMILLE};
use std::fmt::Write;

/// Bytes in the largest unit that leaves at least one: `2 GiB`, `1.5 GiB`, `768 MiB`, `0 B`.
///
/// One decimal, rounded down: a tenant just below its cap never reads as at it. Exact multiples have
/// no decimal.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        let whole = bytes >> shift;
        if whole > 0 {
            let rest = bytes & ((1 << shift) - 1);
            let tenths = (u128::from(rest) * 10) >> shift;
            return match (rest, tenths) {
                (0, _) => format!("{whole} {unit}"),
                (_, tenths) => format!("{whole}.{tenths} {unit}"),
            };
        }
    }
    format!("{bytes} B")
}

/// A share of GPU time in words: `30% guaranteed, at most 50%, weight 300, latency`.
pub(crate) fn share(compute: &ComputeInfo) -> String {
    let mut words = Vec::new();
    if compute.guarantee_permille > 0 {
        words.push(format!("{} guaranteed", Part(compute.guarantee_permille)));
    }
    if compute.ceiling_permille < WHOLE_PERMILLE {
        words.push(format!("at most {}", Part(compute.ceiling_permille)));
    }
    words.push(format!("weight {}", compute.weight));
    words.push(class(compute.class).to_owned());
    words.join(", ")
}

/// A class, as it is asked for.
pub(crate) fn class(class: Class) -> &'static str {
    match class {
        Class::Latency => "latency",
        Class::Standard => "standard",
        Class::Batch => "batch",
    }
}

/// Microseconds as milliseconds with one decimal, rounded up: a wait never reads as none.
pub(crate) fn milliseconds(us: u64) -> String {
    let tenths = us.div_ceil(100);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// `text` without what a terminal would obey: a process may call itself anything.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// Columns side by side, two spaces apart; `R` on the right-aligned ones.
///
/// A row shorter than the heading leaves its last columns empty. No trailing spaces.
pub(crate) fn table(heading: &[Column], rows: &[Vec<String>]) -> String {
    let width = |index: usize| {
        let cells = rows.iter().filter_map(|row| row.get(index));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(heading[index].title.chars().count())
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let mut text = String::new();
    let titles: Vec<String> = heading
        .iter()
        .map(|column| column.title.to_owned())
        .collect();
    for row in std::iter::once(&titles).chain(rows) {
        let mut line = String::new();
        for ((cell, column), width) in row.iter().zip(heading).zip(&widths) {
            // Writing to a String cannot fail.
            let _ = if column.is_right_aligned {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// One column of a [`table`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    title: &'static str,
    is_right_aligned: bool,
}

impl Column {
    /// For words.
    pub(crate) const fn left(title: &'static str) -> Self {
        Self {
            title,
            is_right_aligned: false,
        }
    }

    /// For figures.
    pub(crate) const fn right(title: &'static str) -> Self {
        Self {
            title,
            is_right_aligned: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_never_rounded_up_to_what_it_is_not() {
        const GIB: u64 = 1 << 30;
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1 << 20, "1 MiB"),
            (2 * GIB, "2 GiB"),
            (2 * GIB - 512, "1.9 GiB"),
            (GIB + GIB / 2, "1.5 GiB"),
            (2 * GIB + 512, "2.0 GiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(size(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn a_wait_never_reads_as_none() {
        for (us, text) in [(0, "0.0"), (1, "0.1"), (100, "0.1"), (12_345, "12.4")] {
            assert_eq!(milliseconds(us), text);
        }
    }

    #[test]
    fn columns_line_up_and_lines_do_not_trail() {
        let heading = [
            Column::left("NAME"),
            Column::right("USED"),
            Column::left("NOTE"),
        ];
        let rows = vec![
            vec!["web".to_owned(), "1 GiB".to_owned(), String::new()],
            vec!["a-longer-name".to_owned(), "2 B".to_owned(), "x".to_owned()],
        ];
        let expected = "\
NAME            USED  NOTE
web            1 GiB
a-longer-name    2 B  x
";
        assert_eq!(table(&heading, &rows), expected);
    }

    #[test]
    fn what_a_terminal_would_obey_is_not_printed() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
