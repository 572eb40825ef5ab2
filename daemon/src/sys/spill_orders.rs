//! The core's orders about spilled segments: the daemon writes them to files, and reads them back.

use super::Shell;
use super::lanes::Lane;
use super::memory::Plan;
use super::spill;
use super::worker::Job;
use crate::core::{Event, MemId, Unwritten};
use std::sync::Arc;

impl Shell {
    /// Orders memory with the bytes of a spilled segment.
    pub(super) fn recall(&mut self, mem: MemId, file: MemId, bytes: u64, uid: u32) {
        let plan = Plan { bytes, bytes_first: bytes, sheet: None, reserved: false };
        let file = self.files.get(&file).expect("the core knows what was written");
        let recall = Job::Recall { file: Arc::clone(file), plan };
        self.workers.order(mem, self.lanes.of(uid), recall, &self.lanes);
    }

    /// Orders the spill of a segment's memory to a new file.
    pub(super) fn write(&mut self, mem: MemId, file: MemId, bytes: u64, uid: u32) {
        if self.unsent.iter().any(|it| it.lends(mem)) {
            // A pending reply will lend this memory. The client is about to map the memory, but a
            // probe of the kernel does not show this yet.
            self.events.push_back(Event::Spilled { file, written: Err(Unwritten::default()) });
            return;
        }
        let files = self.spill.clone().expect("nothing is spilled without a directory");
        let memory = self.memories.fd(mem).expect("what is spilled is there").try_clone_to_owned();
        match memory {
            Ok(memory) => {
                let lane = self.lanes.of(uid);
                self.workers.order(file, lane, Job::Spill { files, memory, bytes }, &self.lanes);
            }
            Err(error) => self.events.push_back(Event::Spilled { file, written: Err(error.to_string().into()) }),
        }
    }

    /// Drops a file with a spilled segment. A lane closes it: the last close frees its disk space, which takes time.
    pub(super) fn drop_file(&mut self, file: MemId) {
        self.fd_store.forget(file);
        if let Some(file) = self.files.remove(&file) {
            self.lanes.close(Lane::Daemon, file);
        }
    }

    /// Takes in a written file, or the error.
    pub(super) fn written(&mut self, file: MemId, written: spill::Written) -> Event {
        let written = written.map(|it| {
            self.files.insert(file, it);
        });
        Event::Spilled { file, written }
    }
}
