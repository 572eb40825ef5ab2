//! Watching many names at once.

use crate::client::Client;
use crate::error::Result;
use crate::lease::by_name::peek;
use crate::names::version::Version;
use crate::session::Session;
use crate::wait::{Deadline, NAP_MAX, Timeout};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::word::{Bell, PARKED_ANY, parked_bit};
use tensorlend_os::futex;
use tensorlend_os::mutex::lock;

/// Maximum number of owners' bells in one sleep. The directory's bell and the watch's own bell are in addition.
const BELLS_MAX: usize = 120;

/// A name, its known version, and its present version.
type Change = (String, Option<Version>, Option<Version>);

/// A set of names that reports when any of them changes. [`Client::wait_newer`] waits for one name, and a watch waits for
/// many.
///
/// A watch reports each name once and then removes the name. Add the name again to watch it further. Any thread may add
/// names while another thread waits.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use std::time::Duration;
///
/// let seen = client.put("a", &[1u8])?;
/// let watch = client.watch();
/// watch.add("a", Some(seen));
/// watch.add("b", None); // told once it is something
/// assert!(watch.wait(Duration::ZERO)?.is_empty());
///
/// let now = client.put("b", &[2u8])?;
/// assert_eq!(watch.wait(Duration::from_secs(10))?, [("b".to_owned(), Some(now))]);
/// client.delete("a")?;
/// assert_eq!(watch.wait(Duration::from_secs(10))?, [("a".to_owned(), None)]);
/// assert!(watch.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct NameWatch {
    session: Arc<Session>,
    seen: Mutex<BTreeMap<String, Option<Version>>>,
    /// Rings when a thread adds a name, so that a sleeping thread also checks this name. The bell is in this process's
    /// own memory, so other processes cannot see it.
    news: Bell,
}

impl Client {
    /// Creates an empty watch.
    pub fn watch(&self) -> NameWatch {
        NameWatch { session: self.session().clone(), seen: Mutex::default(), news: Bell::new() }
    }
}

impl NameWatch {
    /// Watches a name for a change from the version `seen`. `None` means that the name held no value. If the watch
    /// already has the name, the new `seen` replaces the old one.
    ///
    /// Wakes a waiting thread, so that it checks the name at once.
    pub fn add(&self, name: &str, seen: Option<Version>) {
        lock(&self.seen).insert(name.to_owned(), seen);
        self.wake();
    }

    /// Stops watching a name.
    pub fn remove(&self, name: &str) {
        lock(&self.seen).remove(name);
    }

    /// Returns the number of watched names.
    pub fn len(&self) -> usize {
        lock(&self.seen).len()
    }

    /// Returns whether no name is watched.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends a wait of another thread. That wait returns an empty list if no name has changed.
    ///
    /// Use it to end a waiting thread, or to make it check a flag of your own.
    pub fn wake(&self) {
        self.news.ring();
        futex::wake_all(&self.news);
    }

    /// Blocks until a watched name has changed, for at most `timeout`, or until another thread calls
    /// [`wake`](NameWatch::wake). Returns the changed names with their versions (`None`: deleted), and stops watching these
    /// names. After the timeout or a wake it returns an empty list, and no error.
    ///
    /// If a name changes all the time, pause between the waits. Its producer rings a bell for each value while a thread
    /// sleeps.
    ///
    /// # Errors
    /// [`crate::Error::SessionEnded`]; [`crate::Error::Disconnected`] if the method needs the daemon and the daemon
    /// does not respond.
    pub fn wait(&self, timeout: impl Into<Timeout>) -> Result<Vec<(String, Option<Version>)>> {
        self.wait_until(Deadline::new(timeout))
    }

    fn wait_until(&self, deadline: Deadline) -> Result<Vec<(String, Option<Version>)>> {
        let session = &self.session;
        let woken = self.news.read();
        session.waiter().enlist(deadline)?;
        let bell = &session.directory.head().bell;
        loop {
            session.check()?;
            // Sample all bells before the deciding check.
            let (added, news) = (self.news.read(), bell.read());
            let mut owners: Vec<ClientNo> = Vec::new();
            self.poll(&mut owners)?;
            let mut sheets = Vec::with_capacity(owners.len().min(BELLS_MAX));
            for &owner in owners.iter().take(BELLS_MAX) {
                if let Some(sampled) = session.peers().with_bell(owner, |sheet| (sheet.clone(), sheet.bell.read()))? {
                    sheets.push(sampled);
                }
            }
            let bits = owners.iter().fold(PARKED_ANY, |bits, &owner| bits | parked_bit(owner));
            let parked = session.waiter().park(bits);
            let mut again = Vec::new();
            let changed = self.poll(&mut again)?;
            if !changed.is_empty() {
                drop(parked);
                let mut seen = lock(&self.seen);
                // Another thread may have added this name again in the meantime. Then the next wait reports the name,
                // if it still differs.
                let mut told = Vec::with_capacity(changed.len());
                for (name, was, now) in changed {
                    if seen.get(&name) == Some(&was) {
                        seen.remove(&name);
                        told.push((name, now));
                    }
                }
                return Ok(told);
            }
            let Some(nap) = deadline.nap().filter(|_| self.news.read() == woken) else { return Ok(Vec::new()) };
            if again != owners {
                continue;
            }
            session.control.check_daemon("wait for names")?;
            // There are more owners than bells. Poll the names of the other owners with short sleeps.
            let nap = if owners.len() > BELLS_MAX { nap.min(NAP_MAX / 20) } else { nap };
            let mut bells = vec![(bell, news), (&self.news, added)];
            bells.extend(sheets.iter().map(|(sheet, sample)| (&sheet.bell, *sample)));
            futex::wait_any(&bells, nap);
            drop(parked);
        }
    }

    /// Returns the changed names with their known versions. Fills `owners` with the owners of the watched names, in
    /// order.
    fn poll(&self, owners: &mut Vec<ClientNo>) -> Result<Vec<Change>> {
        let names: Vec<(String, Option<Version>)> =
            lock(&self.seen).iter().map(|(name, seen)| (name.clone(), *seen)).collect();
        let mut changed = Vec::new();
        for (name, seen) in names {
            let now = peek(&self.session, name.as_bytes())?;
            owners.extend(now.owner);
            let version = now.seen.filter(|_| now.exists);
            if version != seen {
                changed.push((name, seen, version));
            }
        }
        owners.sort_unstable();
        owners.dedup();
        Ok(changed)
    }
}

impl std::fmt::Debug for NameWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameWatch").field("names", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::time::Duration;

    #[test]
    fn every_change_of_many_names_of_many_owners_is_told_once() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let connect = || Client::builder().socket(broker.socket()).connect().unwrap();
        let (reader, owners) = (connect(), [connect(), connect(), connect()]);
        let watch = reader.watch();
        let name = |n: usize| format!("name/{n}");
        for n in 0..300 {
            let seen = if n % 5 == 0 { None } else { Some(owners[n % 3].put(&name(n), &[0u8]).unwrap()) };
            watch.add(&name(n), seen);
        }
        let told = std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in (0..300).rev() {
                    if n % 7 == 1 && n % 5 != 0 {
                        owners[n % 3].delete(&name(n)).unwrap();
                    } else {
                        owners[n % 3].put(&name(n), &[1u8, 2]).unwrap();
                    }
                }
            });
            let mut told = BTreeSet::new();
            while !watch.is_empty() {
                for (name, _) in watch.wait(Duration::from_secs(10)).unwrap() {
                    assert!(told.insert(name), "told twice");
                }
            }
            told
        });
        assert_eq!(told.len(), 300);
    }

    #[test]
    fn a_name_that_is_added_while_somebody_waits_is_heard() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = Client::builder().socket(broker.socket()).connect().unwrap();
        let watch = client.watch();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                loop {
                    let told = watch.wait(Duration::from_secs(30)).unwrap();
                    if !told.is_empty() {
                        return told;
                    }
                }
            });
            watch.add("x", None);
            let version = client.put("x", &[1u8]).unwrap();
            assert_eq!(waiting.join().unwrap(), [("x".to_owned(), Some(version))]);
        });
    }
}
