//! The control protocol: arbitrary packets from two connections, decoded and processed by the daemon's core.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensorlend::wire::{Reply, Request, decode, encode};

fuzz_target!(|data: &[u8]| {
    if let Some(request) = decode::<Request>(data) {
        assert_eq!(decode::<Request>(&encode(&request)), Some(request));
    }
    if let Some(reply) = decode::<Reply>(data) {
        assert_eq!(decode::<Reply>(&encode(&reply)), Some(reply));
    }
    tensorlend_sim::packets(data);
});
