//! Two threads of an owner overwrite a name, and describe their values in the cell's record. A reader copies a description.

use crate::{holds, reached, refuted, spawn};
use std::sync::Arc;
use tensorlend_layout::catalogue::{CellRecord, DESCRIBED_NAME_BYTES, Description};
use tensorlend_layout::describe::Model;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::sync::{Ordering, fence};
use tensorlend_layout::word::{Cell, Word};

/// The word that says of which value the record has a description, and what it has while a thread writes one.
const DESCRIBED: usize = 4;
const DESCRIBING: u64 = 1;
const FALSE: &str = "the description of another value";

/// The steps of a description that a model may leave out. The default leaves out nothing.
#[derive(Clone, Copy)]
struct Steps {
    /// The writer marks the description before it changes the words.
    mark: bool,
    /// The mark keeps another writer out. A thread that is alone needs no such mark.
    excludes: bool,
    /// The writer's fence after the mark.
    writer_fence: bool,
    /// The reader checks *described* after its copy.
    check: bool,
    /// The reader checks the cell after its copy.
    cell_again: bool,
    /// The reader's fence between the copy and the check.
    reader_fence: bool,
}

const ALL: Steps =
    Steps { mark: true, excludes: true, writer_fence: true, check: true, cell_again: true, reader_fence: true };

fn value(number: u32) -> Cell {
    Cell::new(u64::from(number), SlotNo::new(number))
}

fn description(value: Cell) -> Description {
    [value.0, value.0 + 1]
}

fn words(record: &CellRecord) -> [&Word; 2] {
    [&record.kind, &record.name[5]]
}

/// Describes like [`CellRecord::describe`], without some steps.
fn describe(record: &CellRecord, value: Cell, steps: Steps) {
    let described = &record.name[DESCRIBED];
    if steps.mark && steps.excludes {
        let before = described.peek();
        if before == DESCRIBING || !described.replace(before, DESCRIBING) {
            return;
        }
    } else if steps.mark {
        described.put(DESCRIBING);
    }
    if steps.writer_fence {
        fence(Ordering::Release);
    }
    words(record).iter().zip(description(value)).for_each(|(word, new)| word.put(new));
    described.set(value.0);
}

/// Copies like [`CellRecord::description`], without some steps.
fn copy(record: &CellRecord, value: Cell, steps: Steps) -> Option<Description> {
    let described = &record.name[DESCRIBED];
    if described.read() != value.0 {
        return None;
    }
    let copied = words(record).map(Word::peek);
    if steps.reader_fence {
        fence(Ordering::Acquire);
    }
    let is_same = (!steps.check || described.peek() == value.0) && (!steps.cell_again || record.cell.peek() == value.0);
    is_same.then_some(copied)
}

fn is_whole(steps: Steps) -> bool {
    let Steps { mark, excludes, writer_fence, check, cell_again, reader_fence } = steps;
    mark && excludes && writer_fence && check && cell_again && reader_fence
}

/// `writers` threads overwrite the first value, which has a description.
fn overwrites(writers: u32, steps: Steps) {
    let record = Arc::new(CellRecord::model());
    describe(&record, value(2), ALL);
    record.cell.set(value(2).0);
    let threads: Vec<_> = (0..writers)
        .map(|number| {
            let record = record.clone();
            spawn(move || {
                let new = value(3 + number);
                if is_whole(steps) {
                    record.describe(new, &description(new), writers == 1)
                } else {
                    describe(&record, new, steps)
                }
                record.cell.swap(new.0);
            })
        })
        .collect();
    let seen = Cell(record.cell.read());
    let copied = if is_whole(steps) { record.description(seen) } else { copy(&record, seen, steps) };
    if let Some(copied) = copied {
        reached();
        assert!(copied == description(seen), "{FALSE}");
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // The record now describes the cell's value, or a former value.
    let left = Cell(record.cell.peek());
    if let Some(copied) = record.description(left) {
        assert!(copied == description(left), "{FALSE}");
    }
}

/// Copies the description of the cell's value while `owner` gives the cell to another name.
fn other_name(record: &Arc<CellRecord>, cell_again: bool, owner: impl FnOnce(&CellRecord) + 'static) {
    let shared = record.clone();
    let owner = spawn(move || owner(&shared));
    let seen = Cell(record.cell.read());
    let copied = if cell_again {
        record.description(seen)
    } else {
        let is_short = record.name_bytes.peek() <= DESCRIBED_NAME_BYTES;
        copy(record, seen, Steps { cell_again: false, ..ALL }).filter(|_| is_short)
    };
    if let Some(copied) = copied {
        reached();
        assert!(copied == description(seen), "{FALSE}");
    }
    owner.join().unwrap();
}

/// Returns the record of a short name whose value has a description.
fn described() -> Arc<CellRecord> {
    let record = Arc::new(CellRecord::model());
    describe(&record, value(2), ALL);
    record.cell.set(value(2).0);
    record
}

/// A deleted short name's cell goes to another short name.
fn another_name(cell_again: bool) {
    other_name(&described(), cell_again, |record| {
        record.cell.swap(Cell::DELETED.0);
        fence(Ordering::Release);
        for word in &record.name {
            word.put(0);
        }
        record.describe(value(3), &description(value(3)), true);
        record.cell.set(value(3).0);
    });
}

/// The cell goes to a longer name, whose fifth word equals the former value.
fn longer_name(fence_before: bool, cell_again: bool) {
    other_name(&described(), cell_again, move |record| {
        record.cell.swap(Cell::DELETED.0);
        if fence_before {
            fence(Ordering::Release);
        }
        record.name[DESCRIBED].put(value(2).0);
        record.name[5].put(77);
        record.name_bytes.put(64);
        record.describe(value(3), &description(value(3)), true);
        record.cell.set(value(3).0);
    });
}

/// The cell of a longer name, whose fifth word equals its value, goes to a short name.
fn shorter_name(cell_again: bool) {
    let record = Arc::new(CellRecord::model());
    record.name[DESCRIBED].put(value(2).0);
    record.name[5].put(77);
    record.name_bytes.put(64);
    record.cell.set(value(2).0);
    other_name(&record, cell_again, |record| {
        record.cell.swap(Cell::DELETED.0);
        record.name_bytes.set(0);
        fence(Ordering::Release);
        for word in &record.name {
            word.put(0);
        }
        record.name_bytes.put(8);
        record.describe(value(3), &description(value(3)), true);
        record.cell.set(value(3).0);
    });
}

#[test]
fn a_description_belongs_to_the_value() {
    holds("description, one writer", None, || overwrites(1, ALL));
    holds("description, two writers", Some(3), || overwrites(2, ALL));
}

#[test]
fn a_cell_of_another_name_has_no_former_description() {
    holds("description, a cell given to another name", None, || another_name(true));
    refuted("description, cell not read again", FALSE, || another_name(false));
    holds("description, a cell given to a longer name", None, || longer_name(true, true));
    refuted("description, longer name, cell not read again", FALSE, || longer_name(true, false));
    refuted("description, longer name, no fence before its words", FALSE, || longer_name(false, true));
    holds("description, a longer name's cell given to a short one", None, || shorter_name(true));
    refuted("description, a longer name's cell, not read again", FALSE, || shorter_name(false));
}

#[test]
fn without_the_mark() {
    refuted("description, not marked", FALSE, || overwrites(1, Steps { mark: false, ..ALL }));
    refuted("description, two writers at once", FALSE, || overwrites(2, Steps { excludes: false, ..ALL }));
}

#[test]
fn without_the_check() {
    refuted("description, not checked after the copy", FALSE, || overwrites(1, Steps { check: false, ..ALL }));
}

#[test]
fn without_the_fences() {
    refuted("description, no fence of the writer", FALSE, || overwrites(1, Steps { writer_fence: false, ..ALL }));
    refuted("description, no fence of the reader", FALSE, || overwrites(1, Steps { reader_fence: false, ..ALL }));
}
