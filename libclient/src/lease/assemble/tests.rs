//! A hostile owner of datasets: readers notice every damage to an index, whenever it happens.
#![allow(unsafe_code)]

use super::*;
use crate::Client;
use crate::tensor::draft::Draft;
use tensorlend_layout::DType;
use tensorlend_layout::dataset::{self, DatasetMember};
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::word::{Cell, OwnerWord, SLOT_NONE};

/// Returns a member's entry in an index: words 0 to 7 of its 64 bytes, after a head of 8 bytes.
fn word(index: &mut [u8], member: usize, word: usize) -> &mut [u8] {
    let from = 8 + member * 64 + word * 8;
    &mut index[from..from + 8]
}

fn change(index: &mut [u8], member: usize, at: usize, by: impl Fn(u64) -> u64) {
    let place = word(index, member, at);
    let value = u64::from_le_bytes((&*place).try_into().unwrap());
    place.copy_from_slice(&by(value).to_le_bytes());
}

/// Seals a dataset of three tensors whose owner alters the index.
fn sealed(client: &Client, alter: &dyn Fn(&mut Vec<u8>)) -> Sealed {
    let session = client.session();
    let mut members = Vec::new();
    let mut next = SLOT_NONE;
    for _ in 0..3 {
        let mut draft = client.create(DType::F32, &[16]).unwrap();
        draft.as_mut_slice::<f32>().unwrap().fill(1.5);
        let sealed = draft.seal(0, next).unwrap();
        next = sealed.value.slot();
        members.push(sealed);
    }
    let entries: Vec<_> = ["b", "a", "c"]
        .into_iter()
        .zip(&members)
        .map(|(name, sealed)| DatasetMember {
            name,
            slot: sealed.value.slot(),
            generation: sealed.value.generation(),
            summary: sealed.summary,
        })
        .collect();
    let mut index = dataset::encode(&entries);
    alter(&mut index);
    Draft::index(session, &index).unwrap().seal(0, next).unwrap()
}

const NO_SUMMARY: [usize; 6] = [2, 3, 4, 5, 6, 7];

#[test]
fn each_damage_to_an_index_is_told_and_keeps_no_lease() {
    let broker = tensorlend_daemon::embedded().unwrap();
    let connect = || Client::builder().socket(broker.socket()).connect().unwrap();
    let (owner, reader) = (connect(), connect());
    let no_summary = |index: &mut Vec<u8>, member| NO_SUMMARY.iter().for_each(|&at| change(index, member, at, |_| 0));
    type Alter<'a> = Box<dyn Fn(&mut Vec<u8>) + 'a>;
    let of = |member: usize, at: usize, by: fn(u64) -> u64| -> Alter<'_> {
        Box::new(move |index| change(index, member, at, by))
    };
    let name = |at: usize, byte: u8| -> Alter<'_> {
        Box::new(move |index| {
            let names = index.len() - 3;
            index[names + at] = byte;
        })
    };
    let record = BadTensor::Record;
    let cases: Vec<(&str, BadTensor, Alter<'_>)> = vec![
        ("empty", record, Box::new(Vec::clear)),
        ("cut in its head", record, Box::new(|index| index.truncate(7))),
        ("cut in a member", record, Box::new(|index| index.truncate(8 + 100))),
        ("cut in the names", record, Box::new(|index| index.truncate(index.len() - 1))),
        ("too many members", record, Box::new(|index| index[1] = 0x20)),
        ("a name twice", record, name(1, b'b')),
        ("a control character", record, name(2, 7)),
        ("no UTF-8", record, name(0, 0xFF)),
        ("a name without end", record, of(1, 0, |w| w | 0xFFFF << 24)),
        ("an order that leaves one out", record, of(0, 0, |w| w & 0xFFFF_FFFF_FFFF)),
        ("an order that leads nowhere", record, of(2, 0, |w| w | 0xFFFF << 48)),
        ("no such slot", BadTensor::Segment, of(1, 0, |w| w | 0xFF_FFFE)),
        ("bytes behind the segment", BadTensor::Segment, of(1, 3, |_| 1 << 40)),
        ("bytes that no element is aligned in", BadTensor::Alignment, of(1, 3, |w| w + 8)),
        ("more bytes than there are", BadTensor::Segment, of(1, 4, |_| u64::MAX)),
        ("a shape that is too large", BadTensor::Bounds, of(1, 5, |w| w + 1)),
        (
            "a shape that overflows",
            BadTensor::Overflow,
            Box::new(|index| {
                change(index, 0, 2, |w| w & !0xFF | 2);
                change(index, 0, 5, |_| u64::MAX);
            }),
        ),
        ("an unknown dtype", BadTensor::DType, of(2, 2, |w| w | 0xFF << 32)),
        ("too many dimensions", record, of(2, 2, |w| w | 5)),
        (
            "another generation, by its record",
            record,
            Box::new(|index| {
                no_summary(index, 1);
                change(index, 1, 1, |w| w + 1);
            }),
        ),
        (
            "no such slot, by its record",
            BadTensor::Segment,
            Box::new(|index| {
                no_summary(index, 0);
                change(index, 0, 0, |w| w | 0xFF_FFFE);
            }),
        ),
    ];
    for (what, cause, alter) in &cases {
        owner.session().names().publish("x", &sealed(&owner, alter).into()).unwrap();
        let is_told = |error| match error {
            Error::Damaged { cause: found, .. } => assert_eq!(found, *cause, "{what}"),
            other => panic!("{what}: {other}"),
        };
        is_told(reader.get_dataset("x").unwrap_err());
        is_told(reader.get_value("x").unwrap_err());
        let whole = [sealed(&owner, &|_| ()), sealed(&owner, alter), sealed(&owner, &|_| ())];
        owner.session().names().append("l", &whole).unwrap();
        is_told(reader.get_all("l").unwrap_err());
        assert_eq!(reader.get_range("l", 2..).unwrap().len(), 1);
        assert!(owner.clear("l").unwrap());
        assert_eq!(reader.session().shards.held(), 0, "{what}");
    }
    // Without a header summary, the slot's record has the same data.
    for alter in [&|_: &mut Vec<u8>| (), &|index: &mut Vec<u8>| no_summary(index, 1)] as [&dyn Fn(&mut Vec<u8>); 2] {
        owner.session().names().append("good", &[sealed(&owner, alter)]).unwrap();
    }
    for value in reader.get_all("good").unwrap() {
        let dataset = value.as_dataset().unwrap();
        assert_eq!(dataset.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["b", "a", "c"]);
        assert!(dataset.iter().all(|(_, tensor)| tensor.as_slice::<f32>().unwrap() == [1.5; 16]));
    }
}

/// The owner rewrites the index of a leased dataset: readers use the copy that they checked.
#[test]
fn an_index_that_is_rewritten_under_a_lease_changes_nothing() {
    let broker = tensorlend_daemon::embedded().unwrap();
    let connect = || Client::builder().socket(broker.socket()).connect().unwrap();
    let (owner, reader) = (connect(), connect());
    let mut tensor = owner.create(DType::F32, &[16]).unwrap();
    tensor.as_mut_slice::<f32>().unwrap().fill(2.5);
    let member = tensor.seal(0, SLOT_NONE).unwrap();
    let cell = member.value;
    let entry = DatasetMember { name: "a", slot: cell.slot(), generation: cell.generation(), summary: member.summary };
    let mut head = Draft::index(owner.session(), &dataset::encode(&[entry])).unwrap();
    head.set_metadata(b"meta").unwrap().set_timestamp(5);
    let bytes = std::ptr::from_mut(head.bytes_mut());
    let value = head.seal(0, cell.slot()).unwrap();
    owner.session().names().append("l", &[value]).unwrap();
    let held = reader.get_all("l").unwrap();
    // SAFETY: the owner keeps its segment mapped, and no reference to these bytes exists: readers copy them.
    unsafe { bytes.as_mut().unwrap().fill(0xFF) };
    let dataset = held[0].as_dataset().unwrap();
    assert_eq!((dataset.metadata(), dataset.timestamp(), dataset.len()), (&b"meta"[..], 5, 1));
    assert_eq!(dataset.get("a").unwrap().as_slice::<f32>().unwrap(), [2.5; 16]);
    assert!(matches!(reader.get_all("l"), Err(Error::Damaged { .. })));
}

/// Every call that publishes a plain tensor describes it in the cell's record.
#[test]
fn plain_tensors_are_described_beside_their_cells() {
    let broker = tensorlend_daemon::embedded().unwrap();
    let client = Client::builder().socket(broker.socket()).connect().unwrap();
    let draft = || client.create(DType::F32, &[4, 2]).unwrap();
    let described = |value: &crate::Value| {
        let (owner_word, cell) = (value.held().owner_word, value.held().cell);
        let record = client.session().names().own_cell(OwnerWord(owner_word).cell()).unwrap();
        record.summary(cell).is_some()
    };
    let of = |name: &str| described(&client.get_value(name).unwrap());
    let (short, long) = ("s".repeat(32), "l".repeat(33));
    for (name, is_described) in [(&short, true), (&long, false)] {
        draft().publish(name).unwrap();
        assert_eq!(of(name), is_described, "announced");
        draft().publish(name).unwrap();
        assert_eq!(of(name), is_described, "overwritten");
    }
    draft().publish_for("lives", crate::Lifetime::ttl(std::time::Duration::from_mins(10))).unwrap();
    client.copy(&short, "copied").unwrap();
    client.stream("s").open().unwrap().send_named(draft(), "sent").unwrap();
    assert!(["lives", "copied", "sent"].iter().all(|name| of(name)));
    // Taken over through the daemon.
    let other = Client::builder().socket(broker.socket()).connect().unwrap();
    other.put("taken", &[1u8]).unwrap();
    draft().publish("taken").unwrap();
    assert!(of("taken"));
    // Overwritten while the name is only announced, and after that.
    for number in 0..200 {
        let name = format!("n{number}");
        draft().publish(&name).unwrap();
        draft().publish(&name).unwrap();
        assert!(of(&name), "{name}");
    }
    client.append("list", draft()).unwrap();
    client.append_many("list", [draft(), draft()]).unwrap();
    assert!(client.get_all("list").unwrap().iter().all(described));
    client.dataset().add("a", draft()).unwrap().publish("dataset").unwrap();
    draft().publish("metadata").unwrap();
    assert!(of("metadata"));
    let mut with_metadata = draft();
    with_metadata.set_metadata(b"more").unwrap();
    with_metadata.publish("metadata").unwrap();
    assert!(!of("dataset") && !of("metadata"));
    // A value without a description is not taken for the former one.
    assert_eq!(client.get("metadata").unwrap().metadata(), b"more");
}

/// A hostile owner changes a description: readers use it, and stay in its segment.
#[test]
fn a_reader_reads_the_description_and_checks_it() {
    let broker = tensorlend_daemon::embedded().unwrap();
    let connect = || Client::builder().socket(broker.socket()).connect().unwrap();
    let (liar, reader) = (connect(), connect());
    liar.put("x", &[7u8; 64]).unwrap();
    liar.put("y", &[9u8; 64]).unwrap();
    let owner_word = OwnerWord(liar.get("x").unwrap().held().owner_word);
    let record = liar.session().names().own_cell(owner_word.cell()).unwrap();
    let value = Cell(record.cell.peek());
    let truth = record.summary(value).unwrap();
    let mut told = truth;
    told[3] = 16;
    record.describe_sealed(&Sealed { value, summary: told }, true);
    let one = |round: u64| {
        if round.is_multiple_of(2) {
            return reader.get("x").unwrap();
        }
        reader.get_many(&["y", "x"]).pop().unwrap().unwrap().into_tensor().unwrap()
    };
    assert_eq!((one(0).shape(), one(1).shape()), (&[16][..], &[16][..]), "readers use the description");
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = || {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut altered = 0;
    for round in 0..20_000 {
        record.describe_sealed(&Sealed { value, summary: truth }, true);
        for word in [&record.kind, &record.offset, &record.name[5], &record.name[6], &record.name[7]] {
            let any = random();
            match any >> 61 {
                0 => word.set(any << 3),
                1 => word.set(1 << (any & 63)),
                2 => word.set(word.peek() ^ 1 << (any & 63)),
                3 => word.set(u64::MAX >> (any & 63)),
                4 => word.set(word.peek().wrapping_add(any & 0xFF)),
                _ => {}
            }
        }
        let lease = one(round);
        altered += u64::from(lease.bytes().len() != 64 || lease.bytes()[0] != 7);
        std::hint::black_box(lease.bytes().iter().map(|&byte| u64::from(byte)).sum::<u64>());
    }
    assert!(altered > 100, "{altered}: few of the altered descriptions passed the reader's check");
}
