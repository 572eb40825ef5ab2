//! Producers and consumers of a queue, each in its own process. Consumers log each step to a file, which survives them.

use crate::filled::{filled, value};
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;
use tensorlend::Client;

pub const QUEUE: &str = "jobs";
/// The number of waiting items at which producers wait.
pub const WAITING_MAX: u64 = 64;
/// The number of items that `produce-many` puts in one request. It divides the number of all items.
pub const TOGETHER: u64 = 8;
/// The work on one of this number of items takes longer.
const SLOW_EVERY: u64 = 16;

/// `produce SOCKET FIRST COUNT`: puts items with the values from `FIRST` on, prints `ok` and ends. `produce-many` does the same
/// with [`TOGETHER`] items in each request. `consume SOCKET FILE`:
/// takes items until it is killed; writes the line `claimed VALUE` before its work and `done VALUE` after it. `items SOCKET FILE`
/// does the same, and confirms each item with the request for the next one.
///
/// # Panics
/// On a torn item, and on unexpected errors.
pub fn run(arguments: &[String]) -> Option<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let queue = |socket| {
        let client = Client::builder().socket(socket).label("queue").connect().expect("the daemon is there");
        let queue = client.queue(QUEUE).expect("a valid name").max_waiting(WAITING_MAX);
        (client, queue)
    };
    match words[..] {
        ["produce", socket, first, count] => {
            let (first, count): (u64, u64) = (first.parse().ok()?, count.parse().ok()?);
            let (client, queue) = queue(socket);
            for number in first..first + count {
                queue.put(filled(&client, number).expect("there is memory"), None).expect("there is a daemon");
            }
            println!("ok");
        }
        ["produce-many", socket, first, count] => {
            let (first, count): (u64, u64) = (first.parse().ok()?, count.parse().ok()?);
            let (client, queue) = queue(socket);
            for number in (first..first + count).step_by(TOGETHER as usize) {
                let items = (number..number + TOGETHER).map(|value| filled(&client, value).expect("there is memory"));
                queue.put_many(items, None).expect("there is a daemon");
            }
            println!("ok");
        }
        ["consume", socket, file] => {
            let (_client, queue) = queue(socket);
            let mut file = OpenOptions::new().append(true).create(true).open(file).expect("a file to write to");
            loop {
                let claimed = queue.get(None).expect("there is a daemon");
                let found = value(claimed.value().tensor().expect("a tensor"));
                let found = found.unwrap_or_else(|torn| panic!("{torn}"));
                file.write_all(format!("claimed {found}\n").as_bytes()).expect("written");
                if found.is_multiple_of(SLOW_EVERY) {
                    // A consumer is then often killed in the middle of its work.
                    std::thread::sleep(Duration::from_millis(3));
                }
                let existed = claimed.done().expect("there is a daemon");
                assert!(existed, "nobody else ends the claim on {found}");
                file.write_all(format!("done {found}\n").as_bytes()).expect("written");
            }
        }
        ["items", socket, file] => {
            let (_client, queue) = queue(socket);
            let mut file = OpenOptions::new().append(true).create(true).open(file).expect("a file to write to");
            let (mut items, mut last) = (queue.items(), None);
            loop {
                let next = items.next(Duration::from_millis(50)).expect("there is a daemon");
                let found = next.map(|item| value(item.value().tensor().expect("a tensor")));
                let found = found.map(|found| found.unwrap_or_else(|torn| panic!("{torn}")));
                if let Some(done) = std::mem::replace(&mut last, found) {
                    file.write_all(format!("done {done}\n").as_bytes()).expect("written");
                }
                let Some(found) = found else { continue };
                file.write_all(format!("claimed {found}\n").as_bytes()).expect("written");
                if found.is_multiple_of(SLOW_EVERY) {
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
        }
        _ => return None,
    }
    Some(())
}
