//! Watching many names at once.

use crate::client::Client;
use crate::error::Result;
use crate::lease::by_name::peek;
use crate::names::version::Version;
use crate::session::Session;
use crate::wait::{Deadline, NAP_MAX};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorlend_layout::word::{Bell, PARKED_ANY, parked_bit};
use tensorlend_os::futex;
use tensorlend_os::mutex::lock;

/// Bells that one sleep can hear, less the directory's and the watch's own.
const BELLS_MAX: usize = 120;

/// A name, what was seen of it, and what it holds.
type Change = (String, Option<Version>, Option<Version>);

/// Names of which one wants to know when they hold something else: many at once, where [`Client::wait_newer`] is for one.
///
/// Each name is told once, and watched no more. Any thread may add names while another waits.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
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
    /// Rings when a name is added, so that a sleeper looks at it, too. In this process's own memory: nobody else hears it.
    news: Bell,
}

impl Client {
    /// A watch over no names yet.
    pub fn watch(&self) -> NameWatch {
        NameWatch { session: self.session().clone(), seen: Mutex::default(), news: Bell::new() }
    }
}

impl NameWatch {
    /// Watches a name, of which this was seen; `None`: that there was none. Of a name that is watched already, the last
    /// that was seen counts.
    pub fn add(&self, name: &str, seen: Option<Version>) {
        lock(&self.seen).insert(name.to_owned(), seen);
        self.wake();
    }

    /// Watches a name no more.
    pub fn remove(&self, name: &str) {
        lock(&self.seen).remove(name);
    }

    /// Names that are watched.
    pub fn len(&self) -> usize {
        lock(&self.seen).len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends a wait of another thread, with nothing if nothing has changed.
    pub fn wake(&self) {
        self.news.ring();
        futex::wake_all(&self.news);
    }

    /// Which names hold something else than was seen, and what: waits until one does, for `timeout` at most, or until it is
    /// [woken](NameWatch::wake). They are watched no more. One that changes again and again is to be waited for with pauses:
    /// its producer rings for each value while somebody sleeps.
    ///
    /// # Errors
    /// [`crate::Error::SessionEnded`]; [`crate::Error::Disconnected`] where the daemon must be asked and does not answer.
    pub fn wait(&self, timeout: Duration) -> Result<Vec<(String, Option<Version>)>> {
        let session = &self.session;
        let deadline = Deadline::new(Some(timeout));
        let woken = self.news.read();
        session.waiter().enlist()?;
        let bell = &session.directory.head().bell;
        loop {
            session.check()?;
            // All bells are sampled before the look that decides.
            let (added, news) = (self.news.read(), bell.read());
            let mut owners: Vec<u16> = Vec::new();
            self.look(&mut owners)?;
            let mut sheets = Vec::with_capacity(owners.len().min(BELLS_MAX));
            for &owner in owners.iter().take(BELLS_MAX) {
                if let Some(sampled) = session.peers().with_bell(owner, |sheet| (sheet.clone(), sheet.bell.read()))? {
                    sheets.push(sampled);
                }
            }
            let bits = owners.iter().fold(PARKED_ANY, |bits, &owner| bits | parked_bit(owner));
            let parked = session.waiter().park(bits);
            let mut again = Vec::new();
            let changed = self.look(&mut again)?;
            if !changed.is_empty() {
                drop(parked);
                let mut seen = lock(&self.seen);
                // One that another thread has added anew meanwhile is told next time, if it is still news.
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
            // More owners than bells can be heard: their news is looked for in short naps.
            let nap = if owners.len() > BELLS_MAX { nap.min(NAP_MAX / 20) } else { nap };
            let mut bells = vec![(bell, news), (&self.news, added)];
            bells.extend(sheets.iter().map(|(sheet, sample)| (&sheet.bell, *sample)));
            futex::wait_any(&bells, nap);
            drop(parked);
        }
    }

    /// What has changed, with what was seen of it; and who owns what is watched, in order.
    fn look(&self, owners: &mut Vec<u16>) -> Result<Vec<Change>> {
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
