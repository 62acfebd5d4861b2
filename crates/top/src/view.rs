//! Draws a sample into a buffer, so that it can be tested without a terminal.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use serde_json::{Map, Value};

use crate::sample::StatusInterval;
use crate::tables::{Column, ColumnKind, TABLE_COUNT, TopTable, tables};
use crate::text::summary_lines;

/// Maximum width of a text column if others need the space.
const TEXT_WIDTH_MAX: usize = 34;
/// Minimum width of a column that takes the remaining space.
const LONG_WIDTH_MIN: usize = 16;
const COLUMN_GAP: usize = 2;

/// Page that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopPage {
    All,
    /// A single table, by index.
    One(usize),
    Help,
}

/// Choices of the user.
#[derive(Clone, Debug)]
pub(crate) struct ViewState {
    pub(crate) page: TopPage,
    pub(crate) is_paused: bool,
    /// Sort column by table.
    pub(crate) sort: [Option<usize>; TABLE_COUNT],
    pub(crate) is_reversed: bool,
    /// Number of rows of a single table that are scrolled off above the screen.
    pub(crate) scroll: usize,
    pub(crate) has_colour: bool,
    /// Reason why the latest status could not be read.
    pub(crate) last_error: Option<String>,
}

impl ViewState {
    pub(crate) fn new(has_colour: bool) -> ViewState {
        ViewState {
            page: TopPage::All,
            is_paused: false,
            sort: [Some(3), None, Some(10), Some(1), None, None],
            is_reversed: false,
            scroll: 0,
            has_colour,
            last_error: None,
        }
    }

    fn style(&self, color: Color) -> Style {
        if self.has_colour { Style::new().fg(color) } else { Style::new() }
    }

    /// Returns the style of a cell. Without colours, urgent cells are bold.
    fn cell_style(&self, kind: ColumnKind, text: &str) -> Style {
        let (color, is_urgent) = match (kind, text) {
            (ColumnKind::State, "up" | "ready" | "serving") => (Color::Green, false),
            (ColumnKind::State, "down" | "ejected" | "killed") | (ColumnKind::Level, "error") => {
                (Color::Red, true)
            }
            (ColumnKind::State, "prototype") => return Style::new(),
            (ColumnKind::State, _) | (ColumnKind::Level, "warn") => (Color::Yellow, true),
            (ColumnKind::AgeS, "expired") => (Color::Red, true),
            _ => return Style::new(),
        };
        let style = self.style(color);
        if is_urgent { style.add_modifier(Modifier::BOLD) } else { style }
    }
}

const HELP: [&str; 13] = [
    "1 to 6   one table: routes, servers, applications, certificates, cache, events",
    "0        all of them",
    "Tab      the next table",
    "s        sort by the next column",
    "r        sort the other way",
    "p Space  pause, and continue",
    "Up Down  scroll; also j k, PageUp PageDown, Home",
    "+ -      look more often, or less",
    "?        this page",
    "q Esc    end",
    "",
    "Rates and percentiles are of the time between two looks; percentiles are",
    "estimated by the place within a class of a histogram.",
];

/// Draws the whole screen.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, sample: &StatusInterval, view_state: &ViewState) {
    if area.height < 6 || area.width < 20 {
        write_text(buffer, area, 0, 0, "too small", Style::new());
        return;
    }
    let bold = Style::new().add_modifier(Modifier::BOLD);
    for (at, line) in summary_lines(sample).iter().enumerate() {
        write_text(buffer, area, 0, at, line, if at == 0 { bold } else { Style::new() });
    }
    let footer = usize::from(area.height) - 1;
    let keys = " q end  ? keys  0-6 tables  s sort  r reverse  p pause  +/- interval ";
    let keys = match (view_state.is_paused, &view_state.last_error) {
        (true, _) => format!(" PAUSED {keys}"),
        (false, Some(failure)) => format!(" NO ANSWER: {failure} "),
        (false, None) => keys.to_owned(),
    };
    let width = usize::from(area.width);
    write_text(
        buffer,
        area,
        0,
        footer,
        &format!("{keys:<width$}"),
        Style::new().add_modifier(Modifier::REVERSED),
    );
    let room = RowRange { top: 4, height: footer - 4 };
    let mut tables = tables(sample);
    for (at, table) in tables.iter_mut().enumerate() {
        if let Some(column) = view_state.sort[at] {
            table.sort_by(column, view_state.is_reversed);
        }
    }
    match view_state.page {
        TopPage::Help => {
            for (at, line) in HELP.iter().take(room.height).enumerate() {
                write_text(buffer, area, 1, room.top + at, line, Style::new());
            }
        }
        TopPage::One(one) => {
            let mut table = tables[one].clone();
            let last = table.rows.len().saturating_sub(room.height.saturating_sub(2));
            table.rows.drain(..view_state.scroll.min(last));
            draw_table(buffer, area, room, one, &table, view_state);
        }
        TopPage::All => draw_all(buffer, area, room, &tables, view_state),
    }
}

/// Vertical range of the screen.
#[derive(Clone, Copy)]
struct RowRange {
    top: usize,
    height: usize,
}

/// Order in which tables are allotted space.
const TABLE_PRIORITY: [usize; TABLE_COUNT] = [0, 1, 2, 5, 3, 4];

/// Draws all non-empty tables one below the other; space that small tables do not need goes to the others.
fn draw_all(buffer: &mut Buffer, area: Rect, room: RowRange, tables: &[TopTable], view_state: &ViewState) {
    let shown: Vec<(usize, &TopTable)> = (TABLE_PRIORITY.into_iter().map(|number| (number, &tables[number])))
        .filter(|(_, table)| !table.rows.is_empty())
        .collect();
    let wanted: Vec<usize> = shown.iter().map(|(_, table)| table.rows.len() + 3).collect();
    let mut top = room.top;
    for ((number, table), height) in shown.iter().zip(allot_lines(&wanted, room.height)) {
        if height >= 3 {
            draw_table(buffer, area, RowRange { top, height: height - 1 }, *number, table, view_state);
        }
        top += height;
    }
}

/// Divides the lines among the tables: equal shares, and lines that one table does not need go to the others.
fn allot_lines(wanted: &[usize], lines: usize) -> Vec<usize> {
    let mut shares = vec![0; wanted.len()];
    let mut left = lines;
    // First give each table in turn its title, head, one row and an empty line, before any gets more.
    for (share, wanted) in shares.iter_mut().zip(wanted) {
        let first = 4.min(*wanted);
        if left >= first {
            (*share, left) = (first, left - first);
        }
    }
    while left > 0 {
        let hungry: Vec<usize> =
            (0..wanted.len()).filter(|&at| shares[at] > 0 && shares[at] < wanted[at]).collect();
        if hungry.is_empty() {
            break;
        }
        for at in hungry.into_iter().take(left) {
            shares[at] += 1;
            left -= 1;
        }
    }
    shares
}

fn draw_table(
    buffer: &mut Buffer,
    area: Rect,
    room: RowRange,
    number: usize,
    table: &TopTable,
    view_state: &ViewState,
) {
    let rows_max = room.height.saturating_sub(2);
    let more = table.rows.len().saturating_sub(rows_max);
    let more = if more > 0 { format!("  ({more} more)") } else { String::new() };
    let title = format!("{} {}{more}", number + 1, table.title);
    let style = view_state.style(Color::Cyan).add_modifier(Modifier::BOLD);
    write_text(buffer, area, 0, room.top, &title, style);
    if table.rows.is_empty() {
        return write_text(buffer, area, 2, room.top + 1, "none", Style::new());
    }
    let rows = &table.rows[..table.rows.len().min(rows_max)];
    let columns = fitting_columns(table, rows, usize::from(area.width));
    let mut x = 0;
    for (at, width) in columns {
        let column = &table.columns[at];
        let is_sorted = view_state.sort[number] == Some(at);
        let head = match (is_sorted, view_state.is_reversed) {
            (true, false) => format!("{}*", column.heading),
            (true, true) => format!("{}^", column.heading),
            _ => column.heading.to_owned(),
        };
        write_text(
            buffer,
            area,
            x,
            room.top + 1,
            &fit_cell(column, &head, width),
            Style::new().add_modifier(Modifier::UNDERLINED),
        );
        for (line, row) in rows.iter().enumerate() {
            let text = column.format_cell(row);
            write_text(
                buffer,
                area,
                x,
                room.top + 2 + line,
                &fit_cell(column, &text, width),
                view_state.cell_style(column.kind, &text),
            );
        }
        x += width + COLUMN_GAP;
    }
}

/// Returns the columns that fit into a width, each with its own width.
fn fitting_columns(table: &TopTable, rows: &[Map<String, Value>], width: usize) -> Vec<(usize, usize)> {
    let natural = |column: &Column| {
        let cells = rows.iter().map(|row| display_width(&column.format_cell(row)));
        // The sort column has a mark beside its head.
        let widest = cells.max().unwrap_or_default().max(column.heading.len() + 1);
        match column.kind {
            ColumnKind::LongText => LONG_WIDTH_MIN,
            ColumnKind::Text => widest.min(TEXT_WIDTH_MAX),
            _ => widest,
        }
    };
    let mut columns: Vec<(usize, usize)> =
        table.columns.iter().enumerate().map(|(at, column)| (at, natural(column))).collect();
    let needed = |columns: &[(usize, usize)]| {
        columns.iter().map(|(_, width)| width + COLUMN_GAP).sum::<usize>() - COLUMN_GAP
    };
    while needed(&columns) > width {
        let rank = |(at, _): &(usize, usize)| table.columns[*at].rank;
        let Some(first) = columns.iter().map(rank).max().filter(|rank| *rank > 0) else { break };
        columns.retain(|column| rank(column) != first);
    }
    let spare = width.saturating_sub(needed(&columns));
    if let Some((_, long)) =
        columns.iter_mut().find(|(at, _)| table.columns[*at].kind == ColumnKind::LongText)
    {
        *long += spare;
    }
    columns
}

/// Returns the display width of a text in terminal cells.
fn display_width(text: &str) -> usize {
    ratatui::text::Line::from(text).width()
}

/// Fits a text to exactly this width: numbers are right-aligned; truncated text ends with `~`.
fn fit_cell(column: &Column, text: &str, width: usize) -> String {
    let mut text = text.to_owned();
    if display_width(&text) > width {
        while display_width(&text) >= width && text.pop().is_some() {}
        text.push('~');
    }
    let gap = " ".repeat(width.saturating_sub(display_width(&text)));
    if column.kind.is_number() { format!("{gap}{text}") } else { format!("{text}{gap}") }
}

fn write_text(buffer: &mut Buffer, area: Rect, x: usize, y: usize, text: &str, style: Style) {
    let (Ok(x), Ok(y)) = (u16::try_from(x), u16::try_from(y)) else { return };
    if x < area.width && y < area.height {
        buffer.set_stringn(area.x + x, area.y + y, text, usize::from(area.width - x), style);
    }
}

#[cfg(test)]
mod tests;
