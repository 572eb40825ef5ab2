//! Appending to lists: each item is a name of its own, which the daemon makes.

use super::NameTable;
use crate::error::{Error, Result};
use tensorlend_layout::wire::{QueueReply, Reply, Request};
use tensorlend_layout::word::Cell;
use tensorlend_os::mutex::lock;

impl NameTable {
    /// Appends sealed slots, which the list then holds; on error they are freed.
    pub fn append(&self, list: &str, items: &[Cell]) -> Result<u64> {
        let request = |cells| Request::ListAppend { list: list.to_owned(), cells };
        self.append_by(list, items, &request)
    }

    /// As [`NameTable::append`], by another request.
    pub fn append_by(&self, list: &str, items: &[Cell], request: &dyn Fn(Vec<u32>) -> Request) -> Result<u64> {
        let first = self.append_unless_full(list, items, request)?;
        first.ok_or(Error::Protocol { doing: "append to a list" })
    }

    /// As [`NameTable::append_by`], by a request that a full queue may refuse: then returns `None`, and the caller still owns the
    /// items.
    pub fn append_unless_full(
        &self,
        list: &str,
        items: &[Cell],
        request: &dyn Fn(Vec<u32>) -> Request,
    ) -> Result<Option<u64>> {
        let done = match self.append_held(list, items, request) {
            Err(e) if e.is_limit() && !lock(&self.cells).deleted.is_empty() => {
                self.tidy().and_then(|()| self.append_held(list, items, request))
            }
            done => done,
        };
        if done.as_ref().is_err_and(Error::is_certain) {
            for &value in items {
                self.alloc.take_back(value);
            }
        }
        done
    }

    fn append_held(&self, list: &str, items: &[Cell], request: &dyn Fn(Vec<u32>) -> Request) -> Result<Option<u64>> {
        // `settle` does not return cells while they are being bound.
        let _one = lock(&self.binding);
        let mut cells = Vec::with_capacity(items.len());
        for &value in items {
            // The daemon makes the item's key, which is unknown yet.
            match self.fill_cell(&[], value) {
                Ok(cell) => cells.push(cell),
                Err(e) => {
                    for cell in cells {
                        self.empty_cell(cell);
                    }
                    // The daemon was not asked: the caller may free the items.
                    return Err(e.certain());
                }
            }
        }
        tensorlend_layout::crash_point!("append: cells filled");
        match self.control.call(&request(cells.clone()), "append to list", list) {
            Ok(Reply::Appended { first }) => Ok(Some(first)),
            Ok(Reply::Queue(QueueReply::Full)) => {
                for cell in cells {
                    self.empty_cell(cell);
                }
                Ok(None)
            }
            Ok(_) => Err(Error::Protocol { doing: "append to a list" }),
            Err(e) => {
                if e.is_certain() {
                    for cell in cells {
                        self.empty_cell(cell);
                    }
                }
                Err(e)
            }
        }
    }
}
