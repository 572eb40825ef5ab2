//! The simulation, with the fuzzer in place of the seed: it chooses what happens.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tensorlend_sim::play(data));
