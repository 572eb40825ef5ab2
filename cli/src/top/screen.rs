//! The terminal while it is ours: taken over, drawn on, given back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::app::{App, Order, Then};
use super::draw::draw;
use super::facts::{Facts, Sampler};
use crate::failure::Failure;

/// How long keys are waited for before something else may be shown.
const TICK: Duration = Duration::from_millis(100);

/// What the thread that looks has to tell.
enum News {
    Look(Box<Facts>),
    Said(String),
}

/// The terminal; given back however this ends. A panic's message comes after that too: the library's hook sees to it.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the app until somebody has had enough.
pub fn show(mut app: App, sampler: Sampler, interval: Duration) -> Result<(), Failure> {
    // The default for these would leave the terminal as it is.
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, is_over.clone()).map_err(Failure::Output)?;
    }
    let (orders, todo) = channel();
    let (tell, news) = channel();
    // Looked at elsewhere, since a daemon that is being replaced is waited for, and keys are not to wait with it.
    std::thread::spawn(move || look_on(sampler, interval, &todo, &tell));
    let mut screen = Screen::open().map_err(Failure::Output)?;
    let mut is_new = true;
    while !is_over.load(Ordering::Relaxed) {
        loop {
            match news.try_recv() {
                Ok(News::Look(facts)) => app.take(*facts),
                Ok(News::Said(said)) => app.said = said,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(Failure::Other("the thread that looks has ended".into()));
                }
            }
            is_new = true;
        }
        if is_new {
            screen.0.draw(|frame| draw(&mut app, frame.area(), frame.buffer_mut())).map_err(Failure::Output)?;
            is_new = false;
        }
        let mut wait = TICK;
        while event::poll(wait).map_err(Failure::Output)? {
            is_new = true;
            wait = Duration::ZERO;
            match event::read().map_err(Failure::Output)? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match app.key(key) {
                    Then::Nothing => {}
                    Then::Quit => return Ok(()),
                    Then::Do(order) => drop(orders.send(order)),
                },
                // A frame of the new size follows.
                _ => {}
            }
        }
    }
    Ok(())
}

/// Looks again and again, and does in between what was ordered, until nobody is there to tell.
fn look_on(mut sampler: Sampler, interval: Duration, todo: &Receiver<Order>, tell: &Sender<News>) {
    while tell.send(News::Look(Box::new(sampler.look()))).is_ok() {
        let next = Instant::now() + interval;
        match todo.recv_timeout(next.saturating_duration_since(Instant::now())) {
            // What came of it is seen at once.
            Ok(order) => drop(tell.send(News::Said(carry_out(&sampler, &order)))),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn carry_out(sampler: &Sampler, order: &Order) -> String {
    let (what, done) = match order {
        Order::DeleteName(name) => (format!("name \"{name}\""), sampler.client.delete(name)),
        Order::DeleteStream(name) => (format!("stream \"{name}\""), sampler.client.delete_stream(name)),
    };
    match done {
        Ok(true) => format!("deleted the {what}"),
        Ok(false) => format!("there is no {what} any more"),
        Err(error) => error.to_string(),
    }
}
