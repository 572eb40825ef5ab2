//! Lists of names while a killed daemon leaves a client half ended.

use crate::Build;
use tensorlend_layout::directory::key_word;
use tensorlend_layout::number::{CellNo, SlotNo};
use tensorlend_layout::word::Cell;
use tensorlend_tests::eventually;
use tensorlend_tests::hand::Hand;
use tensorlend_tests::keeper::Service;

/// A client publishes a name and ends. The daemon is killed before it enters the name into the directory.
#[test]
fn a_list_has_the_names_of_a_client_that_a_killed_daemon_was_ending() {
    let Some(build) = Build::find() else { return };
    let number = build.points().iter().position(|it| it == "daemon: ending").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let begin = folder.path().join("begin");
    let plan = ("TENSORLEND_CRASH".to_owned(), format!("{number}:1:{}", begin.display()));
    let mut daemon = Service::start_with("", build.0.join("tensorlendd"), Some(plan));
    let producer = Hand::join_announcer(&daemon.socket(), None).unwrap();
    let reader = daemon.client();
    assert!(reader.names("*").unwrap().is_empty(), "it has mapped the ring of the producer");
    std::fs::write(&begin, "").unwrap();
    let record = &producer.catalogue.cells[1];
    record.name[0].put(key_word(b"last"));
    record.name_bytes.put(4);
    record.cell.set(Cell::new(1, SlotNo::new(0)).0);
    // The daemon sleeps, and the producer does not wake it.
    producer.catalogue.announce(producer.directory.hash(b"last"), CellNo::new(1));
    assert_eq!(reader.names("*").unwrap(), ["last"]);
    drop(producer.socket);
    eventually("the daemon's end", || !daemon.is_running());
    assert_eq!(reader.names("*").unwrap(), ["last"], "while the producer is ending");
    daemon.restart();
    assert_eq!(reader.names("*").unwrap(), ["last"], "of the next daemon");
}
