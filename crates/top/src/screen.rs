//! The terminal: handles keys, and polls the server at each interval.

use std::io;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;

use crate::figures::clean;
use crate::sample::StatusInterval;
use crate::tables::{TABLES, tables};
use crate::view::{Choice, TopPage, draw};

const EVERY_MIN: Duration = Duration::from_millis(250);
const EVERY_MAX: Duration = Duration::from_secs(60);

/// Follows a server until `q` is pressed. `ask` returns the server's status.
///
/// # Errors
/// Fails if the first status cannot be read, or if the terminal fails.
pub fn screen(
    mut ask: impl FnMut() -> Result<Value, String>,
    every: Duration,
    has_colour: bool,
) -> Result<(), String> {
    let first = ask()?;
    let mut terminal = ratatui::try_init().map_err(|error| format!("the terminal: {error}"))?;
    let mut watch = TopScreen {
        sample: StatusInterval::new(first.clone(), None),
        last: first,
        choice: Choice::new(has_colour),
        every: every.clamp(EVERY_MIN, EVERY_MAX),
    };
    let outcome = watch.run(&mut terminal, &mut ask);
    ratatui::restore();
    outcome.map_err(|error| format!("the terminal: {error}"))
}

/// State of the screen, with the document that the next one is compared with.
pub(crate) struct TopScreen {
    pub(crate) sample: StatusInterval,
    pub(crate) last: Value,
    pub(crate) choice: Choice,
    pub(crate) every: Duration,
}

impl TopScreen {
    fn run(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        ask: &mut dyn FnMut() -> Result<Value, String>,
    ) -> io::Result<()> {
        let mut next = Instant::now() + self.every;
        loop {
            terminal.draw(|frame| {
                let area = frame.area();
                draw(frame.buffer_mut(), area, &self.sample, &self.choice);
            })?;
            if event::poll(next.saturating_duration_since(Instant::now()))? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release && !self.press(key) => return Ok(()),
                    _ => {}
                }
            }
            if Instant::now() >= next {
                if !self.choice.is_paused {
                    self.look(ask());
                }
                next = Instant::now() + self.every;
            }
        }
    }

    /// Processes the next status.
    pub(crate) fn look(&mut self, status: Result<Value, String>) {
        match status {
            Ok(status) => {
                self.sample = StatusInterval::new(status.clone(), Some(&self.last));
                self.last = status;
                self.choice.failure = None;
            }
            Err(error) => self.choice.failure = Some(clean(&error)),
        }
    }

    /// Handles a key; returns false to quit.
    pub(crate) fn press(&mut self, key: KeyEvent) -> bool {
        let shown = match self.choice.page {
            TopPage::One(table) => Some(table),
            _ => None,
        };
        let last = self.rows(shown);
        let choice = &mut self.choice;
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
                choice.page = shown.map_or(TopPage::One(0), |table| TopPage::One((table + 1) % TABLES))
            }
            KeyCode::BackTab => {
                choice.page = shown
                    .map_or(TopPage::One(TABLES - 1), |table| TopPage::One((table + TABLES - 1) % TABLES));
            }
            KeyCode::Char('r') => choice.is_reversed = !choice.is_reversed,
            KeyCode::Char('s') => {
                let table = shown.unwrap_or(0);
                let columns = tables(&self.sample)[table].columns.len();
                choice.sort[table] = match choice.sort[table] {
                    None => Some(0),
                    Some(last) if last + 1 == columns => None,
                    Some(column) => Some(column + 1),
                };
            }
            KeyCode::Char('+') => self.every = (self.every / 2).max(EVERY_MIN),
            KeyCode::Char('-') => self.every = (self.every * 2).min(EVERY_MAX),
            KeyCode::Up | KeyCode::Char('k') => choice.scroll = choice.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => choice.scroll = (choice.scroll + 1).min(last),
            KeyCode::PageUp => choice.scroll = choice.scroll.saturating_sub(10),
            KeyCode::PageDown => choice.scroll = (choice.scroll + 10).min(last),
            KeyCode::Home => choice.scroll = 0,
            _ => {}
        }
        if matches!(key.code, KeyCode::Char('0'..='6') | KeyCode::Tab | KeyCode::BackTab) {
            self.choice.scroll = 0;
        }
        true
    }

    fn rows(&self, table: Option<usize>) -> usize {
        table.map_or(0, |table| tables(&self.sample)[table].rows.len().saturating_sub(1))
    }
}
