//! The cost of a listing, and its treatment of names that cannot be read.

use tensorlend::{Client, DType, Error};
use tensorlend_layout::number::{CellNo, SlotNo};
use tensorlend_layout::wire::{Reply, Request, VALUES_MAX};
use tensorlend_layout::word::Cell;
use tensorlend_tests::hand::Hand;
use tensorlend_tests::{Daemon, eventually, run};

const MB: usize = 1 << 20;

/// Runs `work`; also returns the number of requests that the daemon served for it.
fn requests<T>(watcher: &Client, work: impl FnOnce() -> T) -> (T, u64) {
    let before = watcher.stat().unwrap().requests;
    let done = work();
    (done, watcher.stat().unwrap().requests - before - 1)
}

/// Names whose cells refer to slots that were never lent.
#[test]
fn names_that_lead_nowhere_cost_no_requests() {
    let daemon = Daemon::start("");
    let watcher = daemon.client();
    watcher.put("good", &[1u8, 2]).unwrap();
    let hand = Hand::join(&daemon.socket(), None).unwrap();
    let dead = hand.catalogue.cells.len().min(1000) as u32;
    for cell in 0..dead {
        hand.catalogue.cells[cell as usize].cell.set(Cell::new(1, SlotNo::new(500_000 + cell)).0);
        let (reply, _) = hand.ask(&Request::Bind { name: format!("dead/{cell}"), cell: CellNo::new(cell) }).unwrap();
        assert!(matches!(reply, Reply::Bound { .. }), "{reply:?}");
    }
    let reader = daemon.client();
    let (listing, asked) = requests(&watcher, || reader.listing("*").unwrap());
    assert_eq!(listing.infos.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(listing.unreadable.len(), dead as usize);
    assert!(listing.unreadable.iter().all(|(_, cause)| matches!(cause, Error::Damaged { .. })));
    // Two catalogues, and the records of one segment.
    assert!(asked <= 6, "{asked} requests for a listing of {dead} names");
    let ls = run(&mut daemon.cli(&["ls"]));
    let (out, err) = (String::from_utf8_lossy(&ls.stdout), String::from_utf8_lossy(&ls.stderr));
    assert!(ls.status.success() && out.contains("good") && !out.contains("dead/"), "{out}{err}");
    assert!(err.contains(&format!("{dead} names could not be read")), "{err}");
    // A listing of names alone has all of them.
    assert_eq!(reader.names("*").unwrap().len(), dead as usize + 1);
    assert_eq!(reader.names("g*").unwrap(), ["good"]);
    let rm = run(&mut daemon.cli(&["rm", "*"]));
    assert!(rm.status.success(), "{}", String::from_utf8_lossy(&rm.stderr));
    assert_eq!(reader.names("*").unwrap(), [""; 0]);
}

/// Names of many ended clients, few of each: the daemon reads their values for hundreds of clients at a time.
#[test]
fn names_of_many_dead_clients_cost_a_request_for_each_packet() {
    let (owners, names_each) = (100, 30);
    let daemon = Daemon::start("[namespace_default]\nbytes_max = \"1GiB\"\n");
    let watcher = daemon.client();
    for owner in 0..owners {
        let producer = daemon.client();
        for name in 0..names_each {
            producer.put(&format!("{owner}/{name}"), &[owner as u16; 3]).unwrap();
        }
    }
    eventually("the end of all owners", || watcher.stat().unwrap().frozen == owners);
    let reader = daemon.client();
    let (listing, asked) = requests(&watcher, || reader.listing("*").unwrap());
    assert!(listing.unreadable.is_empty(), "{:?}", listing.unreadable);
    assert_eq!(listing.infos.len(), (owners * names_each) as usize);
    assert!(listing.infos.iter().all(|info| info.nbytes == 6 && !info.alive));
    let packets = u64::from(owners * names_each).div_ceil(VALUES_MAX as u64);
    assert!(asked <= packets + 2, "{asked} requests for {packets} packets");
    let (info, asked) = requests(&watcher, || reader.info("7/7").unwrap());
    assert_eq!((info, asked), (listing.infos.iter().find(|info| info.name == "7/7").unwrap().clone(), 1));
}

/// Datasets, tensors with strides and tensors with long metadata: their records are incomplete, and the rest stays in
/// the file.
#[test]
fn an_overview_brings_nothing_back_and_says_what_is_in_files() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&format!(
        "[pool]\nbytes_max = \"32MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n[spill]\ndirectory = \"{}\"\n\
         bytes_max = \"40MiB\"\n",
        folder.path().display()
    ));
    let watcher = daemon.client();
    let made = |producer: &Client, kind: usize, name: &str| {
        let shape: &[u64] = if kind == 1 { &[1, 1, 1, 1, 7, MB as u64] } else { &[7 * MB as u64] };
        let mut draft = producer.create(DType::U8, shape)?;
        match kind {
            0 => drop(draft.set_metadata(&[b'x'; 100])?),
            1 => {}
            _ => return producer.dataset().add("a", draft)?.publish(name).map(drop),
        }
        draft.publish(name).map(drop)
    };
    // Until pool and disk are full: no file can be read back into memory.
    let mut names = Vec::new();
    loop {
        let name = format!("t{:02}", names.len());
        match made(&daemon.client(), names.len() % 3, &name) {
            Ok(()) => names.push(name),
            Err(error) => break assert!(error.is_limit(), "{error}"),
        }
        assert!(names.len() < 100);
    }
    let before = watcher.stat().unwrap();
    assert!(names.len() > 5 && before.bytes_spilled >= 24 << 20, "{names:?} {before:?}");
    let overview = daemon.client().overview("*").unwrap();
    assert!(overview.unreadable.is_empty(), "{:?}", overview.unreadable);
    let spilled = || overview.spilled.iter();
    let mut found: Vec<&str> = overview.infos.iter().map(|info| info.name.as_str()).collect();
    found.extend(spilled().map(|it| it.name.as_str()));
    found.sort_unstable();
    assert_eq!(found, names);
    for (kind, dtype, ndim, metadata) in [(0, true, 1, 100), (1, true, 6, 0), (2, false, 0, 0)] {
        let is_it = |name: &str| name[1..].parse::<usize>().unwrap() % 3 == kind;
        let it = spilled().find(|it| is_it(&it.name)).expect("one of each kind is in a file");
        assert_eq!((it.dtype, it.ndim), (dtype.then_some(DType::U8), dtype.then_some(ndim)));
        assert_eq!((it.bytes, it.metadata_bytes, it.alive), (dtype.then_some(7 * MB as u64), metadata, false));
    }
    let ls = run(&mut daemon.cli(&["ls"]));
    let (out, err) = (String::from_utf8_lossy(&ls.stdout), String::from_utf8_lossy(&ls.stderr));
    assert!(ls.status.success() && err.is_empty(), "{out}{err}");
    assert!(names.iter().all(|name| out.contains(name)), "{out}");
    let marked = out.lines().filter(|line| line.split_whitespace().any(|word| word == "file")).count();
    assert_eq!(marked, overview.spilled.len() + overview.in_files.len(), "{out}");
    let after = watcher.stat().unwrap();
    assert_eq!((after.bytes_spilled, after.bytes_in_use), (before.bytes_spilled, before.bytes_in_use));
}

/// Spilled values stay in files however often they are listed, whether or not there is room in memory.
#[test]
fn a_listing_brings_nothing_back_that_was_spilled() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&format!(
        "[pool]\nbytes_max = \"32MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n[spill]\ndirectory = \"{}\"\n\
         bytes_max = \"40MiB\"\n",
        folder.path().display()
    ));
    // Until pool and disk are full.
    let mut sizes = Vec::new();
    loop {
        let producer = daemon.client();
        let bytes = (7 * MB + sizes.len()) as u64;
        let draft = producer.create(DType::U8, &[bytes]);
        match draft.and_then(|draft| draft.publish(&format!("t{}", sizes.len()))) {
            Ok(_) => sizes.push(bytes),
            Err(error) => break assert!(error.is_limit(), "{error}"),
        }
        assert!(sizes.len() < 100);
    }
    let watcher = daemon.client();
    let before = watcher.stat().unwrap();
    assert!(sizes.len() > 5 && before.bytes_spilled >= 24 << 20, "{sizes:?} {before:?}");
    for _ in 0..3 {
        let reader = daemon.client();
        let (listing, asked) = requests(&watcher, || reader.listing("*").unwrap());
        assert!(listing.unreadable.is_empty(), "{:?}", listing.unreadable);
        let mut found: Vec<u64> = listing.infos.iter().map(|info| info.nbytes).collect();
        found.sort_unstable();
        assert_eq!(found, sizes);
        assert!(asked <= 4, "{asked} requests for {} names", sizes.len());
        let info = reader.info("t0").unwrap();
        assert_eq!((info.nbytes, info.alive), (sizes[0], false));
    }
    let mut observer = watcher.observer();
    assert_eq!(observer.observe().unwrap().values.len(), sizes.len());
    let after = watcher.stat().unwrap();
    assert_eq!((after.bytes_spilled, after.bytes_in_use), (before.bytes_spilled, before.bytes_in_use));
}
