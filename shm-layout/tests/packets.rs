//! The packets that `docs/protocol.md` shows byte by byte equal those that the code sends.
#![cfg(not(loom))]

use std::fmt::{Debug, Write as _};
use tensorlend_layout::number::{CellNo, ClientNo, EntryNo, SlotNo};
use tensorlend_layout::wire::{Hello, Policy, Reply, Request, encode};

const BEGIN: &str = "<!-- packets:begin -->\n";
const END: &str = "<!-- packets:end -->";

fn line<T: serde::Serialize + Debug>(table: &mut String, message: &T) {
    let bytes: Vec<String> = encode(message).iter().map(|byte| format!("{byte:02x}")).collect();
    let _ = writeln!(table, "{}\n    {message:?}", bytes.join(" "));
}

/// One message of each form.
fn packets() -> String {
    let mut table = String::from("```text\n");
    let requests = [
        Request::Hello(Hello {
            protocol_min: 1,
            protocol_max: 2,
            layout_version: 5,
            layout_hash: 0x1234,
            namespace: Some("lab".into()),
            label: String::new(),
        }),
        Request::Ack,
        Request::Segment { bytes: 1 << 20, slots_log2: 10 },
        Request::SegmentOf { owner: ClientNo::new(300), slot: SlotNo::new(7) },
        Request::Bind { name: "loss".into(), cell: CellNo::new(5) },
        Request::StreamOpen { name: "camera".into(), capacity: 8, policy: Policy::DropOldest },
        Request::Tidy { names: vec![("a".into(), CellNo::new(1)), ("b".into(), CellNo::new(2))] },
        Request::Ping,
    ];
    for request in &requests {
        line(&mut table, request);
    }
    for reply in
        [Reply::Bound { entry: EntryNo::new(9), owner_word: 1 << 40 }, Reply::Deleted { existed: true }, Reply::Done]
    {
        line(&mut table, &reply);
    }
    table + "```\n"
}

#[test]
fn the_protocols_packets_are_those_that_are_sent() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the packets begin");
    let (shown, after) = rest.split_once(END).expect("the packets end");
    let sent = packets();
    if std::env::var_os("TENSORLEND_UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{sent}{END}{after}")).expect("the page is written");
    } else {
        assert!(
            shown == sent,
            "docs/protocol.md shows other packets than are sent: write them anew with\n    \
             TENSORLEND_UPDATE_DOCS=1 cargo test -p tensorlend-layout --test packets\n{sent}"
        );
    }
}
