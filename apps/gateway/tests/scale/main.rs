//! Simulation of many gateways: copies that are considered valid are valid, whatever messages were lost.

mod world;

use std::time::Duration;
use world::{Load, World};

const LOAD: Load = Load { nodes: 40, names: 20, working_set: 15, reads: 50.0, updates: 20.0, lost_ppm: 0 };

#[test]
fn after_all_words_have_come_every_good_copy_is_what_its_name_holds() {
    for seed in 0..5 {
        for lost_ppm in [0, 20_000] {
            let mut world = World::new(Load { lost_ppm, ..LOAD }, seed);
            world.run(Duration::from_secs(3));
            for node in 0..5 {
                world.part(node, false);
            }
            world.run(Duration::from_secs(1));
            for node in 0..5 {
                world.part(node, true);
            }
            world.run(Duration::from_secs(2));
            world.settle();
            let (good, wrong) = world.copies();
            assert_eq!(wrong, 0, "seed {seed}, {lost_ppm} of a million lost: of {good} copies");
            assert!(good > 0 && world.traffic.hits > 0 && world.traffic.words > 0);
            assert!(lost_ppm > 0 || world.traffic.heartbeats > 0);
        }
    }
}

#[test]
fn a_copy_is_old_for_no_longer_than_a_word_takes() {
    let mut world = World::new(LOAD, 7);
    world.run(Duration::from_secs(5));
    assert!(world.traffic.hits > 1000, "{:?}", world.traffic);
    // One poll per millisecond, a link of 200 us; both directions if a request was in flight.
    assert!(world.old_us <= 1_600, "{} us", world.old_us);
}

#[test]
fn what_a_node_hears_grows_with_what_it_reads_and_not_with_the_nodes() {
    let of = |nodes| {
        let mut world = World::new(Load { nodes, ..LOAD }, 3);
        world.run(Duration::from_secs(2));
        let before = world.traffic;
        world.run(Duration::from_secs(4));
        let said = world.traffic.since(before);
        (said.questions + said.words) as f64 / nodes as f64
    };
    let (few, many) = (of(20), of(80));
    assert!(many < 1.3 * few, "{few} messages for each of 20 nodes, {many} for each of 80");
}
