//! Arbitrary arguments, on live and on ended sessions: every call returns a result or an error with a remedy; it never
//! panics or hangs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tensorlend::{AsTensor, Client, DType, Error, Length, Result, Start, TensorSpec, TensorView};
use tensorlend_daemon::Embedded;

/// A call with its name; the tests supply the name of a tensor.
type Call = (&'static str, fn(&Client, &str) -> Result<()>);

const SHORT: Option<Duration> = Some(Duration::from_millis(1));

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().expect("a client connects")
}

/// Calls that look a name up.
const READS: &[Call] = &[
    ("get", |c, n| c.get(n).map(drop)),
    ("get_dataset", |c, n| c.get_dataset(n).map(drop)),
    ("get_value", |c, n| c.get_value(n).map(drop)),
    ("get_into", |c, n| c.get_into(n, &mut [0; 8]).map(drop)),
    ("exists", |c, n| c.exists(n).map(drop)),
    ("version", |c, n| c.version(n).map(drop)),
    ("wait_for", |c, n| c.wait_for(n, SHORT).map(drop)),
    ("info", |c, n| c.info(n).map(drop)),
    ("versions", |c, n| c.versions(n).map(drop)),
    ("subscribe", |c, n| c.subscribe(n).map(drop)),
    ("subscription from the oldest, waiting", |c, n| {
        c.subscription(n).start_at(Start::Oldest).wait(Duration::from_millis(1)).open().map(drop)
    }),
    ("subscription, pollable", |c, n| c.subscription(n).pollable().open().map(drop)),
    ("get_all", |c, n| c.get_all(n).map(drop)),
    ("range", |c, n| c.get_range(n, 1..u64::MAX).map(drop)),
    ("wait_length", |c, n| c.wait_length(n, Length::AtLeast(1), SHORT).map(drop)),
];

/// Calls that publish, or modify a published value.
const WRITES: &[Call] = &[
    ("put", |c, n| c.put(n, &[1u8]).map(drop)),
    ("publish", |c, n| c.create(DType::U8, &[8])?.publish(n).map(drop)),
    ("delete", |c, n| c.delete(n).map(drop)),
    ("rename from", |c, n| c.rename(n, "to")),
    ("rename to", |c, n| c.rename("there", n)),
    ("copy from", |c, n| c.copy(n, "to").map(drop)),
    ("copy to", |c, n| c.copy("there", n).map(drop)),
    ("stream", |c, n| c.stream(n).open().map(drop)),
    ("keep", |c, n| c.keep(n, 2).map(drop)),
    ("delete_stream", |c, n| c.delete_stream(n).map(drop)),
    ("append", |c, n| c.append(n, c.create(DType::U8, &[8])?).map(drop)),
    ("append_names to", |c, n| c.append_names(n, &["there"]).map(drop)),
    ("append_names of", |c, n| c.append_names("list", &[n]).map(drop)),
    ("clear", |c, n| c.clear(n).map(drop)),
    ("rename_list from", |c, n| c.rename_list(n, "to")),
    ("rename_list to", |c, n| c.rename_list("list", n)),
    ("dataset add", |c, n| c.dataset().add(n, c.create(DType::U8, &[8])?).map(drop)),
    ("dataset publish", |c, n| c.dataset().add("member", c.create(DType::U8, &[8])?)?.publish(n).map(drop)),
];

/// Calls without a name.
const OTHERS: &[Call] = &[
    ("create", |c, _| c.create(DType::F64, &[4096]).map(drop)),
    ("list", |c, _| c.list("*").map(drop)),
    ("streams", |c, _| c.streams("*").map(drop)),
    ("lists", |c, _| c.lists("*").map(drop)),
    ("stat", |c, _| c.stat().map(drop)),
    ("ping", |c, _| c.ping().map(drop)),
    ("leased", |c, _| c.instruments().leased().map(drop)),
];

/// Asserts that an error is readable: it names the fault, and is short.
fn assert_helpful(call: &str, error: &Error) {
    let words = error.to_string();
    assert!((15..600).contains(&words.len()), "{call}: {} bytes: {words:.200}", words.len());
    assert!(!words.contains('\0'), "{call}: {words:?}");
}

/// Makes each call with each name, and reports all faults at the end.
fn each(
    client: &Client,
    calls: &[&[Call]],
    names: &[&str],
    wrong: impl Fn(&str, &Result<()>) -> Option<String>,
) -> usize {
    let mut faults = Vec::new();
    let mut made = 0;
    for &(call, function) in calls.iter().copied().flatten() {
        for name in names {
            let shown: String = name.chars().take(12).collect();
            made += 1;
            match catch_unwind(AssertUnwindSafe(|| function(client, name))) {
                Err(_) => faults.push(format!("{call}({shown:?}) panicked")),
                Ok(answer) => {
                    if let Err(error) = &answer {
                        assert_helpful(call, error);
                    }
                    faults.extend(wrong(call, &answer).map(|why| format!("{call}({shown:?}) {why}: {answer:?}")));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    made
}

#[test]
fn names_that_cannot_be_are_refused_by_every_call() {
    let broker = broker();
    let client = client(&broker);
    client.put("there", &[1u8]).unwrap();
    client.append("list", client.create(DType::U8, &[1]).unwrap()).unwrap();
    let long = "x".repeat(256);
    let endless = "x".repeat(10_000_000);
    let bad = ["", "a\0b", "\0", "a\nb", "\u{7f}", "\u{1}list", "\u{85}", &long, &endless];
    let made = each(&client, &[READS, WRITES], &bad, |_, answer| match answer {
        Err(Error::Name { .. }) => None,
        _ => Some("is no error of the name".into()),
    });
    assert_eq!(made, (READS.len() + WRITES.len()) * bad.len());
    // Calls without an error result report nothing.
    for name in bad {
        assert_eq!(client.length(name), 0);
    }
    client.ping().expect("the session goes on");
    assert!(client.exists("there").unwrap());
}

#[test]
fn names_that_look_odd_and_are_allowed_are_names_like_others() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let longest = "y".repeat(255);
    for name in ["/", "a/b", "../../etc/passwd", "/dev/shm/x", " ", "*", "[", "温度/センサ 1", "-rf", "%s%n", &longest]
    {
        a.put(name, &[7u32]).unwrap();
        assert_eq!(b.get(name).unwrap().as_slice::<u32>().unwrap(), [7], "{name}");
        b.rename(name, "elsewhere").unwrap();
        assert!(!a.exists(name).unwrap() && a.delete("elsewhere").unwrap(), "{name}");
    }
}

#[test]
fn what_is_not_there_is_said_to_be_not_there() {
    let broker = broker();
    let client = client(&broker);
    each(&client, &[READS], &["nothing"], |call, answer| match (call, answer) {
        ("exists" | "version" | "get_all" | "range", Ok(())) => None,
        ("wait_for" | "wait_length", Err(e)) if e.is_timeout() => None,
        ("subscription from the oldest, waiting", Err(e)) if e.is_timeout() || e.is_not_found() => None,
        (_, Err(e)) if e.is_not_found() => None,
        _ => Some("is another answer".into()),
    });
}

#[test]
fn patterns_that_cannot_be_are_refused() {
    let broker = broker();
    let client = client(&broker);
    let (long, endless) = ("*?".repeat(500), "*?".repeat(100_000));
    for pattern in ["[", "{a,b", "[z-a]", "\\", "", "\0", &long, &endless] {
        for found in
            [client.list(pattern).map(drop), client.streams(pattern).map(drop), client.lists(pattern).map(drop)]
        {
            if let Err(error) = found {
                assert!(matches!(error, Error::Argument(_)), "{error}");
            }
        }
    }
    assert!(
        client.list(&endless).is_err()
            && client.list("[").is_err()
            && client.lists("{a,b").is_err()
            && client.streams("[z-a]").is_err()
    );
}

fn spec(dtype: DType, shape: &[usize], strides: Option<&[i64]>, byte_offset: usize) -> TensorSpec {
    TensorSpec { dtype, shape: shape.to_vec(), strides: strides.map(<[i64]>::to_vec), byte_offset }
}

#[test]
fn shapes_and_strides_that_cannot_be_are_refused() {
    let broker = broker();
    let client = client(&broker);
    let deep = [1usize; 17];
    let impossible = [
        spec(DType::U8, &deep, None, 0),
        spec(DType::U8, &[usize::MAX], None, 0),
        spec(DType::U8, &[usize::MAX, 2], None, 0),
        spec(DType::F64, &[1 << 32, 1 << 32], None, 0),
        spec(DType::F64, &[1 << 60, 8], None, 0),
        spec(DType::C64, &[1 << 61], None, 0),
        spec(DType::U8, &[usize::MAX; 16], None, 0),
        // Negative strides without room before the first element.
        spec(DType::F32, &[4], Some(&[-1]), 0),
        spec(DType::F32, &[4], Some(&[-1]), 8),
        spec(DType::F32, &[2, 2], Some(&[2, -1]), 0),
        spec(DType::F32, &[2], Some(&[i64::MIN]), 16),
        spec(DType::U8, &[2], Some(&[i64::MIN]), usize::MAX),
        spec(DType::F64, &[3], Some(&[i64::MAX]), 0),
        spec(DType::F64, &[2; 16], Some(&[i64::MAX; 16]), 0),
        // The number of strides differs from that of the sizes.
        spec(DType::U8, &[2, 2], Some(&[1]), 0),
        spec(DType::U8, &[2], Some(&[1, 1]), 0),
        spec(DType::U8, &[], Some(&[1]), 0),
        // The offset is not the start of an element.
        spec(DType::F32, &[2], None, 2),
        spec(DType::F64, &[2], Some(&[1]), 12),
        spec(DType::F32, &[2], None, usize::MAX),
        spec(DType::U8, &[2], None, usize::MAX),
    ];
    for wanted in impossible {
        let error = wanted.bytes().expect_err("no such tensor");
        assert!(matches!(error, Error::Tensor { .. }), "{wanted:?}: {error}");
        assert_helpful("bytes", &error);
        assert!(matches!(client.create_spec(wanted.clone()), Err(Error::Tensor { .. })), "{wanted:?}");
        if wanted.strides.is_none() && wanted.byte_offset == 0 {
            assert!(matches!(client.create(wanted.dtype, &wanted.shape), Err(Error::Tensor { .. })), "{wanted:?}");
            let view = TensorView { dtype: wanted.dtype, shape: &wanted.shape, bytes: &[0; 8] };
            assert!(matches!(client.put("x", &view), Err(Error::Tensor { .. })), "{wanted:?}");
        }
    }
    for shape in [&[1usize << 40][..], &[1 << 20, 1 << 20], &[(1 << 63) - 1]] {
        let error = client.create(DType::U8, shape).map(drop).expect_err("more than any pool");
        assert!(error.is_limit(), "{error}");
        assert_helpful("create", &error);
    }
    // A zero makes a tensor without elements, whatever the other sizes.
    for shape in [&[0][..], &[0, i64::MAX as usize, i64::MAX as usize], &[i64::MAX as usize, 0]] {
        client.create(DType::F64, shape).unwrap().publish("none").unwrap();
        assert_eq!(client.get("none").unwrap().elements(), 0);
    }
    // But each size must fit into a signed number.
    for shape in [&[0, 1usize << 63][..], &[usize::MAX, 0]] {
        let error = client.create(DType::F64, shape).map(drop).expect_err("no size");
        assert!(matches!(error, Error::Tensor { .. }), "{error}");
    }
    client.ping().unwrap();
    assert!(!client.exists("x").unwrap());
}

#[test]
fn elements_that_share_bytes_are_read_one_by_one_and_never_as_a_slice() {
    let broker = broker();
    let client = client(&broker);
    // In the first case all rows are the same; in the second each row begins at the second element of the previous row.
    for (strides, bytes, rows) in
        [([0, 1], 12, [[1.0f32, 2.0, 3.0], [1.0, 2.0, 3.0]]), ([1, 1], 16, [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])]
    {
        let wanted = spec(DType::F32, &[2, 3], Some(&strides), 0);
        assert_eq!(wanted.bytes().unwrap(), bytes);
        let mut draft = client.create_spec(wanted).unwrap();
        assert!(
            matches!(draft.as_mut_slice::<f32>(), Err(Error::Strided))
                || draft.as_mut_slice::<f32>().unwrap().len() as u64 * 4 == bytes
        );
        let values: Vec<u8> = (1..=4u8).flat_map(|n| f32::from(n).to_le_bytes()).take(bytes as usize).collect();
        draft.bytes_mut()[..values.len()].copy_from_slice(&values);
        draft.publish("overlapping").unwrap();
        let lease = client.get("overlapping").unwrap();
        assert!(!lease.is_row_major() && matches!(lease.as_slice::<f32>(), Err(Error::Strided)));
        assert!(lease.row_major_bytes().is_none());
        let mut out = [0; 24];
        lease.copy_to(&mut out).unwrap();
        let expected: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(out[..], expected);
    }
}

#[test]
fn wrong_types_lengths_and_places_are_refused() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    a.put("x", &[1u32, 2, 3]).unwrap();
    let lease = a.get("x").unwrap();
    let as_float = lease.as_slice::<f32>().unwrap_err();
    assert!(matches!(as_float, Error::DType { .. }));
    assert_helpful("as_slice", &as_float);
    for length in [0, 11, 13, 1 << 20] {
        let mut buffer = vec![0; length];
        for error in [a.get_into("x", &mut buffer).unwrap_err(), lease.copy_to(&mut buffer).unwrap_err()] {
            assert!(matches!(error, Error::Length { .. }), "{error}");
            assert_helpful("a buffer", &error);
        }
    }
    for bytes in [&[0u8; 7][..], &[0; 9], &[]] {
        let view = TensorView { dtype: DType::U64, shape: &[1], bytes };
        assert!(matches!(a.put("y", &view), Err(Error::Length { .. })), "{bytes:?}");
    }
    // Bytes need not be aligned to the element's size.
    let storage = [0u8, 1, 0, 0, 0, 0, 0, 0, 0];
    a.put("y", &TensorView { dtype: DType::U64, shape: &[1], bytes: &storage[1..] }).unwrap();
    assert_eq!(b.get("y").unwrap().as_slice::<u64>().unwrap(), [1]);
    let mut buffer = [0u8; 13];
    a.get_into("x", &mut buffer[1..]).unwrap();
    assert_eq!(buffer[1..5], [1, 0, 0, 0]);
    // A dataset instead of a tensor, and the reverse.
    a.dataset().publish("set").unwrap();
    assert!(matches!(b.get("set"), Err(Error::Kind { .. })) && matches!(b.get_dataset("x"), Err(Error::Kind { .. })));
    assert!(matches!(b.get_into("set", &mut []), Err(Error::Kind { .. })));
    // More metadata than the maximum.
    let mut draft = a.create(DType::U8, &[1]).unwrap();
    assert!(matches!(draft.set_metadata(&vec![0; 65537]), Err(Error::Metadata(65537))));
    assert!(matches!(a.dataset().metadata(&vec![0; 10_000_000]), Err(Error::Metadata(_))));
    let too_long = |bytes: usize| Error::Metadata(bytes).to_string();
    let rest = "publish the rest as a tensor of its own";
    assert_eq!(too_long(65537), format!("metadata of 65537 bytes is too long: at most 65536 bytes: {rest}"));
    assert_eq!(too_long(10 << 20), format!("metadata of 10 MiB is too long: at most 64 KiB: {rest}"));
    draft.set_metadata(&vec![1; 65536]).unwrap();
    draft.publish("much").unwrap();
    let mut offer = a.queue("jobs").unwrap().offer(a.create(DType::U8, &[1]).unwrap()).unwrap();
    offer.wait(std::time::Duration::ZERO).unwrap();
    let again = offer.wait(std::time::Duration::ZERO).unwrap_err().to_string();
    assert_eq!(
        again,
        "this offer has no items: they are in the queue already, an earlier call failed, or none were given: make new drafts"
    );
    assert_eq!(b.get("much").unwrap().metadata().len(), 65536);
    let mut element = a.create(DType::U8, &[3]).unwrap();
    assert!(matches!(element.as_mut_slice::<u16>(), Err(Error::DType { .. })));
}

/// A program's own implementation of the trait, whose methods contradict each other.
struct Lying {
    shape: Vec<usize>,
    bytes: Option<Vec<u8>>,
}

impl AsTensor for Lying {
    fn dtype(&self) -> DType {
        DType::U8
    }
    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }
    fn write_to(&self, out: &mut [u8]) {
        out.fill(7);
    }
    fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }
}

#[test]
fn arrays_that_lie_about_themselves_are_refused() {
    let broker = broker();
    let client = client(&broker);
    for (shape, bytes) in [(vec![10], vec![1; 3]), (vec![3], vec![1; 10]), (vec![0], vec![1]), (vec![1; 17], vec![1])] {
        let lying = Lying { shape, bytes: Some(bytes) };
        let put = catch_unwind(AssertUnwindSafe(|| client.put("x", &lying)));
        let error = put.expect("no panic").expect_err("it cannot be published");
        assert_helpful("put", &error);
    }
    let huge = Lying { shape: vec![usize::MAX, usize::MAX], bytes: None };
    assert!(matches!(client.put("x", &huge), Err(Error::Tensor { .. })));
    assert!(!client.exists("x").unwrap());
    client.put("x", &Lying { shape: vec![2], bytes: None }).unwrap();
    assert_eq!(client.get("x").unwrap().bytes(), [7, 7]);
}

#[test]
fn streams_lists_and_histories_with_odd_numbers() {
    let broker = broker();
    let client = client(&broker);
    for capacity in [0, 65_537, u32::MAX] {
        for error in [client.stream("s").capacity(capacity).open().err(), client.keep("k", capacity).err()] {
            assert_helpful("capacity", &error.expect("more than a stream holds"));
        }
    }
    client.append("l", client.create(DType::U8, &[1]).unwrap()).unwrap();
    for (from, to) in [(5, 2), (u64::MAX, u64::MAX), (1, u64::MAX), (0, 0)] {
        assert!(client.get_range("l", from..to).unwrap().is_empty(), "{from}..{to}");
    }
    assert_eq!(client.get_range("l", ..=u64::MAX).unwrap().len(), 1);
    assert!(client.wait_length("l", Length::AtLeast(u64::MAX), SHORT).unwrap_err().is_timeout());
    assert!(client.append_names("l", &["nothing"]).unwrap_err().is_not_found());
    if let Err(error) = client.append_names("l", &[]) {
        assert_helpful("append_names", &error);
    }
    assert_eq!(client.length("l"), 1, "an append that fails appends nothing");
    // Timeouts that are too short or too long for a clock.
    assert!(client.wait_for("nothing", Some(Duration::ZERO)).unwrap_err().is_timeout());
    client.put("x", &[1u8]).unwrap();
    for long in [None, Some(Duration::MAX)] {
        client.wait_for("x", long).unwrap();
    }
}

#[test]
fn builders_with_odd_arguments() {
    let broker = broker();
    let endless = "n".repeat(10_000_000);
    for namespace in ["", "a\0b", "nobody's", &endless] {
        let connected = Client::builder().socket(broker.socket()).namespace(namespace).connect();
        let error = connected.expect_err("there is no such namespace");
        assert!(matches!(error, Error::Name { .. } | Error::Refused { .. }), "{error}");
        assert_helpful("namespace", &error);
    }
    for label in ["", "a\0b", "é", &endless] {
        Client::builder().socket(broker.socket()).label(label).connect().unwrap().ping().unwrap();
    }
    for timeout in [Duration::from_nanos(u64::MAX), Duration::from_secs(i64::MAX.cast_unsigned()), Duration::MAX] {
        let client = Client::builder().socket(broker.socket()).request_timeout(timeout).connect().unwrap();
        client.put("x", &[1u8]).unwrap();
        client.ping().unwrap();
    }
    let far = format!("/{}", "d/".repeat(3000));
    for socket in ["", "\0", "/", "/dev/null", "relative", far.as_str()] {
        let error = Client::builder().socket(socket).connect().expect_err("nobody answers there");
        assert!(error.is_disconnected(), "{socket:.20}: {error}");
    }
}

/// Makes calls on an ended session: each returns, with an error if it did nothing.
fn each_after_the_end(client: &Client) {
    each(client, &[READS, WRITES, OTHERS], &["there", "new", "list", "stream"], |_, answer| match answer {
        Err(e) if e.is_disconnected() || e.is_not_found() || e.is_timeout() => None,
        Ok(()) | Err(Error::Kind { .. } | Error::Length { .. }) => None,
        Err(_) => Some("does not say that the session is over".into()),
    });
    let new = client.put("quite new", &[1u8; 5000]);
    assert!(new.as_ref().is_ok_and(|_| client.exists("quite new").is_ok()) || new.is_err_and(|e| e.is_disconnected()));
}

/// Creates all objects that a session may hold when it ends.
fn furnish(client: &Client) {
    client.put("there", &[1u8; 8]).unwrap();
    client.append("list", client.create(DType::U8, &[8]).unwrap()).unwrap();
}

#[test]
fn without_a_daemon_every_call_returns() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    furnish(&a);
    let stream = a.stream("stream").open().unwrap();
    let mut messages = b.subscribe("stream").unwrap();
    let lease = b.get("there").unwrap();
    let draft = b.create(DType::U8, &[8]).unwrap();
    drop(broker);
    each_after_the_end(&a);
    each_after_the_end(&b);
    let _ = (stream.try_send(a.create(DType::U8, &[1]).unwrap()), messages.try_recv(), draft.publish("late"));
    assert_eq!(lease.bytes(), [1; 8]);
}

/// Returns the descriptors of this process that are sockets.
fn sockets() -> Vec<i32> {
    let folder = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_socket = |number: &String| {
        std::fs::read_link(format!("/proc/self/fd/{number}"))
            .is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    numbers.filter(is_socket).map(|number| number.parse().unwrap()).collect()
}

#[test]
fn on_a_session_that_was_ended_every_call_returns() {
    let broker = broker();
    let other = client(&broker);
    furnish(&other);
    // In a separate process, because this process has sockets of other tests.
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_ended_session", "--ignored", "--nocapture"])
        .env("TENSORLEND_INPUT_SOCKET", broker.socket())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    assert!(other.exists("there").unwrap());
}

#[test]
#[ignore = "run by on_a_session_that_was_ended_every_call_returns, in a process of its own"]
fn an_ended_session() {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let path = std::env::var_os("TENSORLEND_INPUT_SOCKET").expect("the test that runs this one sets it");
    let before = sockets();
    let client = Client::builder().socket(path).connect().unwrap();
    let lease = client.get("there").unwrap();
    let draft = client.create(DType::U8, &[8]).unwrap();
    let stream = client.stream("stream").open().unwrap();
    let mut messages = client.subscribe("stream").unwrap();
    let me = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    for number in sockets().into_iter().filter(|number| !before.contains(number)) {
        let socket = pidfd_getfd(&me, number, PidfdGetfdFlags::empty()).unwrap();
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
    }
    while lease.validate() {
        std::thread::yield_now();
    }
    each_after_the_end(&client);
    assert_eq!(lease.bytes(), [1; 8], "what is mapped is mapped");
    let late = draft.publish("late").unwrap_err();
    assert!(late.is_disconnected(), "{late}");
    let _ = (stream.try_send(client.create(DType::U8, &[1]).unwrap()), messages.try_recv());
}
