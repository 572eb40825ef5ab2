//! The terminal while the program uses it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::app::{App, Order, Then};
use super::draw::draw;
use super::facts::{Facts, Sampler};
use crate::failure::Failure;

/// Maximum wait for a key. Then the loop draws new samples.
const TICK: Duration = Duration::from_millis(100);

/// Messages of the sampling thread.
enum News {
    Sample(Box<Facts>),
    Said(String),
}

/// The terminal. Dropping this value restores the terminal's mode. After a panic, the library's
/// hook restores the mode before the hook prints the message.
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

/// Draws frames and handles keys until the user quits.
pub fn show(mut app: App, sampler: Sampler, interval: Duration) -> Result<(), Failure> {
    // The default actions of these signals would not restore the terminal.
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, is_over.clone()).map_err(Failure::Output)?;
    }
    let (orders, todo) = channel();
    let (tell, news) = channel();
    // A thread takes the samples. A sample may wait for a daemon that restarts, and the user's keys
    // must not wait for the sample.
    std::thread::spawn(move || sample_on(sampler, interval, &todo, &tell));
    let mut screen = Screen::open().map_err(Failure::Output)?;
    let mut is_new = true;
    while !is_over.load(Ordering::Relaxed) {
        loop {
            match news.try_recv() {
                Ok(News::Sample(facts)) => app.take(*facts),
                Ok(News::Said(said)) => app.said = said,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(Failure::Other("the thread that takes the samples has ended".into()));
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
                // The loop draws a frame of the new size next.
                _ => {}
            }
        }
    }
    Ok(())
}

/// Takes samples, and executes orders in between, until the receiver has been dropped.
fn sample_on(mut sampler: Sampler, interval: Duration, todo: &Receiver<Order>, tell: &Sender<News>) {
    while tell.send(News::Sample(Box::new(sampler.sample()))).is_ok() {
        match todo.recv_timeout(interval) {
            // Take the next sample at once, so that it shows the result.
            Ok(order) => drop(tell.send(News::Said(carry_out(&sampler, &order)))),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn carry_out(sampler: &Sampler, order: &Order) -> String {
    let Some(client) = sampler.client() else {
        return "an observer cannot change anything: join the namespace".to_owned();
    };
    let Order { is_stream, name } = order;
    let (what, done) = if *is_stream { ("stream", client.delete_stream(name)) } else { ("name", client.delete(name)) };
    match done {
        Ok(true) => format!("deleted the {what} \"{name}\""),
        Ok(false) => format!("there is no {what} \"{name}\" any more"),
        Err(error) => error.to_string(),
    }
}
