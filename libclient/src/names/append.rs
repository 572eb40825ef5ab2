//! Appending to lists. Each item is a name of its own, which the daemon creates.

use super::NameTable;
use crate::error::{Error, Result};
use std::sync::PoisonError;
use tensorlend_layout::number::CellNo;
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::wire::{QueueReply, Reply, Request};

impl NameTable {
    /// Appends sealed slots to a list, which then holds them. After an error, frees the slots if the daemon certainly
    /// did nothing.
    pub fn append(&self, list: &str, items: &[Sealed]) -> Result<u64> {
        let request = |cells| Request::ListAppend { list: list.to_owned(), cells };
        self.append_by(list, items, &request)
    }

    /// Appends like [`NameTable::append`], with another request.
    pub fn append_by(&self, list: &str, items: &[Sealed], request: &dyn Fn(Vec<CellNo>) -> Request) -> Result<u64> {
        let first =
            self.append_unless_full(items, &|cells| self.control.call(&request(cells), "append to list", list))?;
        first.ok_or(Error::Protocol { doing: "append to a list" })
    }

    /// As [`NameTable::append_by`], by a request that a full queue may refuse: then returns `None`, and the caller still owns the
    /// items. `ask` sends the request for these cells.
    pub fn append_unless_full(
        &self,
        items: &[Sealed],
        ask: &dyn Fn(Vec<CellNo>) -> Result<Reply>,
    ) -> Result<Option<u64>> {
        let done = match self.append_held(items, ask) {
            Err(e) if e.is_limit() && self.has_deleted() => self.tidy().and_then(|()| self.append_held(items, ask)),
            done => done,
        };
        if done.as_ref().is_err_and(Error::is_certain) {
            for item in items {
                self.alloc.take_back(item.value);
            }
        }
        done
    }

    fn append_held(&self, items: &[Sealed], ask: &dyn Fn(Vec<CellNo>) -> Result<Reply>) -> Result<Option<u64>> {
        // `settle` does not return cells while they are being bound. Other threads append and publish meanwhile.
        let _cells = self.appending.read().unwrap_or_else(PoisonError::into_inner);
        let mut cells = Vec::with_capacity(items.len());
        for item in items {
            // The daemon creates the item's key, so the client does not know the key yet.
            match self.fill_cell(&[], item) {
                Ok(cell) => cells.push(cell),
                Err(e) => {
                    for cell in cells {
                        self.empty_cell(cell);
                    }
                    // The client has not sent a request, so the caller may free the items.
                    return Err(e.certain());
                }
            }
        }
        tensorlend_layout::crash_point!("append: cells filled");
        match ask(cells.clone()) {
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
