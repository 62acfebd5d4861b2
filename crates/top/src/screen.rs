//! The terminal: handles keys, and polls the server at each interval.

use std::io;
use std::time::{Duration, Instant};

use failure::{Failure, FailureContext};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;

use crate::formatting::sanitize;
use crate::sample::StatusInterval;
use crate::tables::{TABLE_COUNT, tables};
use crate::view::{TopPage, ViewState, draw};

const INTERVAL_MIN: Duration = Duration::from_millis(250);
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Follows a server until `q` is pressed. `fetch_status` returns the server's status.
///
/// # Errors
/// Fails if the first status cannot be read, or if the terminal fails.
pub fn run_screen(
    mut fetch_status: impl FnMut() -> Result<Value, Failure>,
    every: Duration,
    has_colour: bool,
) -> Result<(), Failure> {
    let first = fetch_status()?;
    let mut terminal = ratatui::try_init().context("the terminal")?;
    let mut watch = TopScreen {
        interval_data: StatusInterval::new(first.clone(), None),
        last_document: first,
        view_state: ViewState::new(has_colour),
        interval: every.clamp(INTERVAL_MIN, INTERVAL_MAX),
    };
    let outcome = watch.run(&mut terminal, &mut fetch_status);
    ratatui::restore();
    outcome.context("the terminal")
}

/// State of the screen, with the document that the next one is compared with.
pub(crate) struct TopScreen {
    pub(crate) interval_data: StatusInterval,
    pub(crate) last_document: Value,
    pub(crate) view_state: ViewState,
    pub(crate) interval: Duration,
}

impl TopScreen {
    fn run(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        fetch_status: &mut dyn FnMut() -> Result<Value, Failure>,
    ) -> io::Result<()> {
        let mut next = Instant::now() + self.interval;
        loop {
            terminal.draw(|frame| {
                let area = frame.area();
                draw(frame.buffer_mut(), area, &self.interval_data, &self.view_state);
            })?;
            if event::poll(next.saturating_duration_since(Instant::now()))? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release && !self.handle_key(key) => {
                        return Ok(());
                    }
                    _ => {}
                }
            }
            if Instant::now() >= next {
                if !self.view_state.is_paused {
                    self.update(fetch_status());
                }
                next = Instant::now() + self.interval;
            }
        }
    }

    /// Processes the next status.
    pub(crate) fn update(&mut self, status: Result<Value, Failure>) {
        match status {
            Ok(status) => {
                self.interval_data = StatusInterval::new(status.clone(), Some(&self.last_document));
                self.last_document = status;
                self.view_state.last_error = None;
            }
            Err(error) => self.view_state.last_error = Some(sanitize(&error.to_string())),
        }
    }

    /// Handles a key; returns false to quit.
    pub(crate) fn handle_key(&mut self, key: KeyEvent) -> bool {
        let shown = match self.view_state.page {
            TopPage::One(table) => Some(table),
            _ => None,
        };
        let last = self.row_count(shown);
        let choice = &mut self.view_state;
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Esc if choice.page == TopPage::Help => choice.page = TopPage::All,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('?' | 'h') => {
                choice.page = if choice.page == TopPage::Help { TopPage::All } else { TopPage::Help }
            }
            KeyCode::Char('p' | ' ') => choice.is_paused = !choice.is_paused,
            KeyCode::Char('0') => choice.page = TopPage::All,
            KeyCode::Char(digit @ '1'..='6') => choice.page = TopPage::One(digit as usize - '1' as usize),
            KeyCode::Tab => {
                choice.page = shown.map_or(TopPage::One(0), |table| TopPage::One((table + 1) % TABLE_COUNT))
            }
            KeyCode::BackTab => {
                choice.page = shown.map_or(TopPage::One(TABLE_COUNT - 1), |table| {
                    TopPage::One((table + TABLE_COUNT - 1) % TABLE_COUNT)
                });
            }
            KeyCode::Char('r') => choice.is_reversed = !choice.is_reversed,
            KeyCode::Char('s') => {
                let table = shown.unwrap_or(0);
                let columns = tables(&self.interval_data)[table].columns.len();
                choice.sort[table] = match choice.sort[table] {
                    None => Some(0),
                    Some(last) if last + 1 == columns => None,
                    Some(column) => Some(column + 1),
                };
            }
            KeyCode::Char('+') => self.interval = (self.interval / 2).max(INTERVAL_MIN),
            KeyCode::Char('-') => self.interval = (self.interval * 2).min(INTERVAL_MAX),
            KeyCode::Up | KeyCode::Char('k') => choice.scroll = choice.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => choice.scroll = (choice.scroll + 1).min(last),
            KeyCode::PageUp => choice.scroll = choice.scroll.saturating_sub(10),
            KeyCode::PageDown => choice.scroll = (choice.scroll + 10).min(last),
            KeyCode::Home => choice.scroll = 0,
            _ => {}
        }
        if matches!(key.code, KeyCode::Char('0'..='6') | KeyCode::Tab | KeyCode::BackTab) {
            self.view_state.scroll = 0;
        }
        true
    }

    fn row_count(&self, table: Option<usize>) -> usize {
        table.map_or(0, |table| tables(&self.interval_data)[table].rows.len().saturating_sub(1))
    }
}
