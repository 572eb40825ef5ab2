//! The simulation, with the fuzzer's choices in place of a seed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tensorlend_sim::play(data));
