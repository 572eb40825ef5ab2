//! Tensors exchanged between two processes, with the daemon in a third.

use tensorlend_tests::{Agent, Daemon};

#[test]
fn every_dtype_and_odd_shapes_between_processes() {
    let daemon = Daemon::start("");
    let (mut producer, mut consumer) = (daemon.agent(), daemon.agent());
    let deep = ["1"; 16].join(",");
    let deeper = format!("2,{}", ["1"; 15].join(","));
    for (seed, dtype) in tensorlend::DType::ALL.iter().enumerate() {
        for shape in ["-", "0", "3,0,5", "7", "2,3,4", "2,3,4,5,6", &deep, &deeper] {
            let sum = producer.ok(&format!("odd {dtype} {shape} {seed}"));
            let dims: Vec<u64> =
                if shape == "-" { vec![] } else { shape.split(',').map(|d| d.parse().unwrap()).collect() };
            assert_eq!(consumer.ok(&format!("sum {dtype}/{shape}")), format!("{dtype} {dims:?} {sum}"));
        }
    }
}

#[test]
fn a_thousand_names() {
    let daemon = Daemon::start("");
    let (mut producer, mut consumer) = (daemon.agent(), daemon.agent());
    producer.tell("many n/ 1000");
    consumer.ok("check-many n/ 1000");
    producer.answer().unwrap();
    assert_eq!(consumer.ok("list"), "1000");
}

#[test]
fn tensors_of_256_mb() {
    let daemon = Daemon::start("");
    let (mut producer, mut consumer) = (daemon.agent(), daemon.agent());
    for seed in 0..3 {
        let sum = producer.ok(&format!("put large {} {seed}", 256 << 20));
        assert!(consumer.ok("sum large").ends_with(&sum));
    }
}

#[test]
fn a_producer_that_exits_before_its_consumer_reads() {
    let daemon = Daemon::start("");
    let mut producer = daemon.agent();
    let sum = producer.ok("put legacy 10000000 3");
    producer.exit();
    let mut consumer = daemon.agent();
    assert!(consumer.ok("sum legacy").ends_with(&sum));
    // Another producer can take the name over.
    let mut heir = daemon.agent();
    let sum = heir.ok("put legacy 5000 4");
    assert!(consumer.ok("sum legacy").ends_with(&sum));
}

#[test]
fn waiting_across_processes() {
    let daemon = Daemon::start("");
    let (mut producer, mut consumer) = (daemon.agent(), daemon.agent());
    for seed in 0..20 {
        consumer.tell("newer x");
        std::thread::sleep(std::time::Duration::from_millis(seed % 5 * 4));
        let sum = producer.ok(&format!("put x 1000 {seed}"));
        assert_eq!(consumer.answer().unwrap(), sum);
    }
}

#[test]
fn an_agent_without_a_daemon_says_where_it_looked() {
    let mut agent = Agent::start();
    let error = agent.ask("connect /nonexistent/socket").unwrap_err();
    assert!(error.contains("/nonexistent/socket") && error.contains("tensorlendd"), "{error}");
}
