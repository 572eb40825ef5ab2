//! A daemon is killed while it changes a stream's list of subscribers.

use crate::Build;
use std::time::Duration;
use tensorlend::Policy;
use tensorlend_layout::number::CursorNo;
use tensorlend_layout::wire::Request;
use tensorlend_tests::filled::filled;
use tensorlend_tests::hand::Hand;
use tensorlend_tests::keeper::Service;
use tensorlend_tests::{PATIENCE, eventually};

/// The daemon is killed when it has removed a subscriber, and before the producer can see that the list has changed.
#[test]
fn a_producer_does_not_wait_for_a_subscriber_that_a_killed_daemon_has_removed() {
    let Some(build) = Build::find() else { return };
    let number = build.points().iter().position(|it| it == "daemon: subscriber removed").unwrap();
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        let folder = tempfile::tempdir().unwrap();
        let begin = folder.path().join("begin");
        let plan = ("TENSORLEND_CRASH".to_owned(), format!("{number}:1:{}", begin.display()));
        let mut daemon = Service::start_with(mode, build.0.join("tensorlendd"), Some(plan));
        let (producer, reader) = (daemon.client(), Hand::join(&daemon.socket(), None).unwrap());
        let camera = producer.stream("camera").capacity(1).policy(Policy::Block).open().unwrap();
        reader.ask(&Request::Subscribe { name: "camera".into(), cursor: CursorNo::new(0), wake: false }).unwrap();
        camera.send(filled(&producer, 1).unwrap()).unwrap();
        let full = camera.send_timeout(filled(&producer, 2).unwrap(), Duration::from_millis(1)).unwrap_err();
        assert!(full.is_timeout(), "{mode}: the subscriber has taken no message: {full}");
        std::fs::write(&begin, "").unwrap();
        // As after a kill, its cursor stays where it is.
        drop(reader.socket);
        eventually("the daemon's end", || !daemon.is_running());
        daemon.restart();
        camera.send_timeout(filled(&producer, 3).unwrap(), PATIENCE / 10).unwrap();
    }
}
