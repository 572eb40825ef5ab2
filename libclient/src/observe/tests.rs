//! Observers of clients that write nonsense into their own sheets.

use crate::{Client, DType};
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::word::{Cell, LeaseWord};

/// Marsaglia's xorshift of 64 bits.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn nonsense_is_left_out_and_harms_nobody() {
    let broker = tensorlend_daemon::embedded().unwrap();
    let connect = || Client::builder().socket(broker.socket()).connect().unwrap();
    let (liar, honest, watcher) = (connect(), connect(), connect());
    honest.put("honest", &[0u8; 4096]).unwrap();
    let held = honest.get("honest").unwrap();
    for n in 0..32 {
        liar.put(&format!("lie {n}"), &[0u8; 64]).unwrap();
    }
    let stream = liar.stream("lies").capacity(4).open().unwrap();
    stream.send(liar.create(DType::U8, &[64]).unwrap()).unwrap();
    let mut observer = watcher.observer();
    observer.observe().unwrap();
    let session = liar.session();
    let table = session.shards.table();
    let mut state = 0x2545_F491_4F6C_DD1D;
    for round in 0..100u64 {
        let any = random(&mut state);
        // Words that refer to existing slots and owners, and arbitrary words.
        let small = [any, any & 0xFFF, Cell::new(any & 3, SlotNo::new((any >> 8) as u32 & 31)).0, u64::MAX]
            [(any >> 60) as usize % 4];
        session.names().catalogue().cells[(any >> 20) as usize % 64].cell.set(small);
        session.names().catalogue().cells[(any >> 28) as usize % 64].name_bytes.set(small);
        let lease = LeaseWord((any >> 5 & 3) << 48 | (any >> 9 & 0x3F) << 24 | (any & 3));
        table.entries[(any >> 40) as usize % 64][(any >> 46) as usize % 64].set(lease.0);
        table.shards_used.set(any);
        table.high_water[(any >> 40) as usize % 64].set(small);
        table.cursors[(any >> 33) as usize % 8].next.set(small);
        if round % 3 == 0 {
            session.names().catalogue().ring_head.set(any);
        }
        let seen = observer.observe().unwrap();
        let value = seen.values.iter().find(|value| value.bytes == 4096).expect("what is honest is seen");
        assert_eq!(value.owner, honest.session().me());
        for segment in &seen.segments {
            assert!(segment.slots.iter().all(|slot| slot.offset + slot.bytes <= segment.bytes));
        }
    }
    // The destructors of these values would fail on the damaged words.
    std::mem::forget((stream, liar));
    drop(held);
}
