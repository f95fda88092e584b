//! The live table: redrawn in place on a terminal, silent elsewhere.

use super::observed::Observed;
use super::shares::Shares;
use crate::text::{Column, class, printable, size, table};
use daemon::api::{DeviceInfo, DriverKind};
use std::io::{IsTerminal, Write, stdout};

/// Where the table is drawn.
#[derive(Debug)]
pub(crate) struct Screen {
    is_live: bool,
    lines_drawn: usize,
}

/// The parts of the demo that a table does not show.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    /// Seconds since the tenants were up.
    pub(crate) second: f64,
    /// Seconds that it will last.
    pub(crate) seconds: u64,
    /// What has just been done.
    pub(crate) note: &'a str,
}

impl Screen {
    /// Live where the standard output is a terminal and `is_wanted`.
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self {
            is_live: is_wanted && stdout().is_terminal(),
            lines_drawn: 0,
        }
    }

    /// Puts `seen` in the place of what was drawn last.
    pub(crate) fn draw(&mut self, device: &str, seen: &Observed, moment: Moment<'_>) {
        if !self.is_live {
            return;
        }
        let Moment {
            second,
            seconds,
            note,
        } = moment;
        self.put(&format!(
            "{device}\n\n{}\n{second:4.1} of {seconds} s  {note}\n",
            tenants(seen)
        ));
    }

    /// The same for the second act.
    pub(crate) fn draw_shares(&mut self, seen: &Shares, note: &str) {
        if self.is_live {
            self.put(&format!("{}\n{note}\n", shares(seen)));
        }
    }

    fn put(&mut self, text: &str) {
        // Without the terminal's wrapping (DECAWM) a narrow one cuts lines off, and their number
        // stays what it is here.
        let drawn = format!("\x1b[?7l{text}\x1b[?7h");
        self.erase();
        self.lines_drawn = text.lines().count();
        let mut output = stdout().lock();
        // A terminal that has gone away must not end the demo before it cleans up.
        let _ = output
            .write_all(drawn.as_bytes())
            .and_then(|()| output.flush());
    }

    /// Removes what was drawn last.
    pub(crate) fn erase(&mut self) {
        if self.lines_drawn > 0 {
            // To the first of those lines, then clear to the end of the screen (ECMA-48 CUU, ED).
            let _ = write!(stdout(), "\x1b[{}A\x1b[J", self.lines_drawn);
            self.lines_drawn = 0;
        }
    }
}

/// The tenants and what each holds.
pub(crate) fn tenants(seen: &Observed) -> String {
    const HEADING: [Column; 5] = [
        Column::left("TENANT"),
        Column::right("CAP"),
        Column::right("USED"),
        Column::right("PEAK"),
        Column::right("REFUSED"),
    ];
    let rows: Vec<_> = seen
        .tenants
        .iter()
        .map(|tenant| {
            vec![
                tenant.name.to_owned(),
                size(tenant.cap_bytes),
                size(tenant.used_bytes),
                size(tenant.peak_bytes),
                tenant.refused.to_string(),
            ]
        })
        .collect();
    table(&HEADING, &rows)
}

/// The tenants of the second act and what each gets of the GPU's time.
pub(crate) fn shares(seen: &Shares) -> String {
    const HEADING: [Column; 7] = [
        Column::left("TENANT"),
        Column::left("CLASS"),
        Column::right("GUARANTEED"),
        Column::right("WANTS"),
        Column::right("NOW"),
        Column::right("MEASURED"),
        Column::right("HELD"),
    ];
    let percent = |part: f64| format!("{:.1}%", part * 100.0);
    let rows: Vec<_> = seen
        .tenants
        .iter()
        .map(|part| {
            vec![
                part.name.to_owned(),
                class(part.now.class).to_owned(),
                percent(part.guarantee),
                part.wanted.map_or_else(|| "all".to_owned(), percent),
                percent(f64::from(part.now.share_permille) / 1000.0),
                if part.measured > 0.0 {
                    percent(part.measured)
                } else {
                    String::new()
                },
                part.now.held.to_string(),
            ]
        })
        .collect();
    table(&HEADING, &rows)
}

/// Which device it is, in one line.
pub(crate) fn device_line(kind: DriverKind, device: &DeviceInfo) -> String {
    let name = printable(&device.name);
    let memory = size(device.memory_bytes);
    match kind {
        DriverKind::Real => format!("{name}, {memory}: a GPU of this machine"),
        DriverKind::StandIn => format!(
            "{name}, {memory}: no GPU, its place is taken by a process; `--device real` uses one"
        ),
    }
}
