//! Guarantees for every kind of memory: each scenario runs against host memory and against devices, see
//! `tests/tests/conformance.rs`.

use crate::location::{Draft, Lease, Location, pattern, value_of};
use crate::machine::placed;
use crate::{Daemon, PATIENCE, eventually};
use std::time::{Duration, Instant};
use tensorlend::{Client, DType, InfoKind, Lifetime, Policy, Start, TensorInfo, TensorSpec, Version};

/// Timeout of every wait: see [`PATIENCE`].
const LONG: Duration = PATIENCE;
/// A wait that is expected to time out.
const SHORT: Duration = Duration::from_millis(20);

/// A daemon, and the kind of memory of its tensors.
pub struct Scene<'d> {
    daemon: &'d Daemon,
    location: Location,
}

/// A scenario.
type Named<S> = (&'static str, fn(&S));

impl<'d> Scene<'d> {
    /// Creates a scene for `host` or `cuda` memory.
    pub fn new(daemon: &'d Daemon, location: &str) -> Self {
        Self { daemon, location: Location::named(location, &daemon.client()) }
    }

    fn scenarios() -> [Named<Self>; 13] {
        [
            ("names", Self::names),
            ("versions", Self::versions),
            ("dtypes and shapes", Self::dtypes_and_shapes),
            ("strides", Self::strides),
            ("metadata", Self::metadata),
            ("leases", Self::leases),
            ("streams", Self::streams),
            ("lagging consumers", Self::lagging_consumers),
            ("lists", Self::lists),
            ("datasets", Self::datasets),
            ("lifetimes", Self::lifetimes),
            ("idle segments", Self::idle_segments),
            ("reclaim", Self::reclaim),
        ]
    }

    /// Runs all scenarios, prints the time of each, and checks that all memory is freed.
    ///
    /// # Panics
    /// If one fails.
    pub fn run_all(&self) {
        for (name, scenario) in Self::scenarios() {
            let start = Instant::now();
            println!("{name} ...");
            scenario(self);
            println!("{name}: {} ms", start.elapsed().as_millis());
        }
        self.all_comes_back();
    }

    /// Checks that nothing is lent once no client is connected and every name is deleted.
    ///
    /// # Panics
    /// If memory stays lent.
    pub fn all_comes_back(&self) {
        let watcher = self.client();
        for info in watcher.list("*").unwrap() {
            watcher.delete(&info.name).unwrap();
        }
        let mut last = None;
        let start = Instant::now();
        loop {
            let stat = watcher.stat().unwrap();
            let device: u64 = stat.devices.iter().map(|device| device.bytes_in_use).sum();
            let now = (stat.bytes_in_use, device, stat.segments, stat.clients, stat.frozen, stat.names);
            if now == (0, 0, 0, 1, 0, 0) {
                return;
            }
            last = Some(now).filter(|now| Some(*now) != last).or(last);
            assert!(start.elapsed() < LONG, "this stays (host, device, segments, clients, gone, names): {last:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn client(&self) -> Client {
        self.daemon.client()
    }

    /// Returns the kind of memory as a word for an agent.
    fn word(&self) -> &'static str {
        if self.location.is_device() { "cuda" } else { "host" }
    }

    fn names(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        assert!(location.get(&a, "n/none").unwrap_err().is_not_found());
        let first = location.put(&a, "n/x", 1, 1000).unwrap();
        assert!(location.get(&b, "n/x").unwrap().is(1));
        let second = location.put(&a, "n/x", 2, 3000).unwrap();
        assert_ne!(first, second);
        let lease = location.get(&b, "n/x").unwrap();
        assert!(lease.is(2) && lease.version() == second && lease.layout().1 == [3000]);
        // Another client takes it over, and the first one takes it back.
        location.put(&b, "n/x", 3, 500).unwrap();
        assert!(location.get(&a, "n/x").unwrap().is(3));
        location.put(&a, "n/x", 4, 500).unwrap();
        assert!(location.get(&b, "n/x").unwrap().is(4) && lease.is(2));
        a.rename("n/x", "n/y").unwrap();
        assert!(!b.exists("n/x").unwrap() && b.exists("n/y").unwrap());
        assert!(location.get(&b, "n/y").unwrap().is(4));
        let copied = a.copy("n/y", "n/z").unwrap();
        assert_eq!(b.version("n/z").unwrap(), Some(copied));
        assert!(location.get(&b, "n/z").unwrap().is(4));
        let info = b.info("n/y").unwrap();
        let device = if let Location::Device(uuid) = location { Some(uuid) } else { None };
        let tensor = TensorInfo { dtype: DType::U8, shape: vec![500], strides: vec![1], device };
        assert_eq!((info.kind, info.nbytes, info.alive), (InfoKind::Tensor(tensor), 500, true));
        assert_eq!(info.device, device);
        let listed: Vec<String> = b.list("n/*").unwrap().into_iter().map(|info| info.name).collect();
        assert_eq!(listed, ["n/y", "n/z"]);
        assert!(b.delete("n/y").unwrap() && !b.delete("n/y").unwrap() && a.delete("n/z").unwrap());
        assert!(location.get(&a, "n/y").unwrap_err().is_not_found());
        assert!(a.list("n/*").unwrap().is_empty());
        // The error of the other kind's call names the right call.
        let other = if location.is_device() { Location::Host } else { Location::Device(tensorlend::Uuid([7; 16])) };
        location.put(&a, "n/x", 1, 10).unwrap();
        let wrong = other.get(&b, "n/x").unwrap_err().to_string();
        assert!(wrong.contains("holds a tensor"), "{wrong}");
        assert!(a.delete("n/x").unwrap());
        // A name may move from host to device and back.
        if location.is_device() {
            Location::Host.put(&a, "n/moves", 1, 10).unwrap();
            let before = location.put(&a, "n/moves", 2, 10).unwrap();
            assert!(location.get(&b, "n/moves").unwrap().is(2));
            let after = Location::Host.put(&b, "n/moves", 3, 10).unwrap();
            assert!(Location::Host.get(&a, "n/moves").unwrap().is(3) && before != after);
            a.delete("n/moves").unwrap();
        }
    }

    fn versions(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        let late = location.wait_newer(&b, "v/x", Version::NONE, SHORT).unwrap_err();
        assert!(late.is_timeout(), "{late}");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seen = Version::NONE;
                let mut last = 0;
                while last < 50 {
                    let lease = location.wait_newer(&b, "v/x", seen, LONG).unwrap();
                    let value = lease.value().unwrap();
                    assert!(value > last && lease.version() != seen);
                    (seen, last) = (lease.version(), value);
                }
                assert!(location.wait_newer(&b, "v/x", seen, SHORT).unwrap_err().is_timeout());
            });
            for value in 1..=50 {
                location.put(&a, "v/x", value, 64).unwrap();
                if value % 10 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        a.delete("v/x").unwrap();
    }

    fn dtypes_and_shapes(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        let shapes: [&[usize]; 6] = [&[], &[0], &[3, 0, 2], &[7], &[2, 3, 1, 2, 1, 4], &[1, 100, 11]];
        let mut tried = 0;
        for &dtype in DType::ALL {
            for shape in shapes {
                let name = format!("d/{dtype}/{}", shape.len());
                let mut draft = location.create(&a, TensorSpec::new(dtype, shape)).unwrap();
                let bytes = shape.iter().product::<usize>() * dtype.item_bytes();
                assert_eq!(draft.span(), bytes);
                draft.write(&pattern(tried, bytes)).unwrap();
                draft.publish(&name).unwrap();
                let lease = location.get(&b, &name).unwrap();
                let (found, sizes, _) = lease.layout();
                assert_eq!((found, &sizes[..]), (dtype, shape));
                assert_eq!(lease.read().unwrap(), pattern(tried, bytes), "{name}");
                a.delete(&name).unwrap();
                tried += 1;
            }
        }
        let impossible =
            location.create(&a, TensorSpec::new(DType::U8, [1u64 << 40, 1 << 40])).map(|_| ()).unwrap_err();
        assert!(matches!(impossible, tensorlend::Error::Tensor { .. }), "{impossible}");
        let many = location.create(&a, TensorSpec::new(DType::U8, &[1; 17])).map(|_| ()).unwrap_err();
        assert!(matches!(many, tensorlend::Error::Tensor { .. }), "{many}");
    }

    fn strides(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        // Transposed, with gaps, reversed, repeated.
        let cases: [(&[usize], &[i64], usize); 5] = [
            (&[3, 4], &[1, 3], 0),
            (&[3, 4], &[8, 2], 4),
            (&[5], &[-1], 16),
            (&[2, 3, 4], &[12, -4, 1], 8 * 4),
            (&[4, 2], &[0, 1], 0),
        ];
        for (number, (shape, strides, byte_offset)) in (0..).zip(cases) {
            let spec =
                TensorSpec { strides: Some(strides.to_vec()), byte_offset, ..TensorSpec::new(DType::I32, shape) };
            let mut draft = location.create(&a, spec).unwrap();
            let raw = pattern(number, draft.span());
            draft.write(&raw).unwrap();
            draft.publish("s/x").unwrap();
            let lease = location.get(&b, "s/x").unwrap();
            assert_eq!(lease.layout(), (DType::I32, shape.to_vec(), strides.to_vec()));
            let mut expected = Vec::new();
            for index in 0..shape.iter().product::<usize>() {
                let (mut rest, mut at) = (index, byte_offset as i64);
                for (&size, &stride) in shape.iter().zip(strides).rev() {
                    at += (rest % size) as i64 * stride * 4;
                    rest /= size;
                }
                expected.extend_from_slice(&raw[at as usize..][..4]);
            }
            assert_eq!(lease.read().unwrap(), expected, "{shape:?} {strides:?}");
        }
        let before = TensorSpec { strides: Some(vec![-1]), ..TensorSpec::new(DType::I32, &[5]) };
        assert!(location.create(&a, before).is_err(), "before the first byte");
        a.delete("s/x").unwrap();
    }

    fn metadata(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        for length in [0, 1, 100, 5000, tensorlend::METADATA_MAX] {
            let mut draft = location.filled(&a, 5, 300).unwrap();
            draft.label(&pattern(9, length), 77).unwrap();
            draft.publish("m/x").unwrap();
            let lease = location.get(&b, "m/x").unwrap();
            assert!(lease.label() == (&pattern(9, length), 77) && lease.is(5), "{length}");
            let info = b.info("m/x").unwrap();
            assert_eq!((info.metadata_bytes, info.timestamp_ns), (length as u64, 77));
        }
        let mut draft = location.filled(&a, 5, 300).unwrap();
        let long = draft.label(&vec![0; tensorlend::METADATA_MAX + 1], 0).unwrap_err();
        assert!(matches!(long, tensorlend::Error::Metadata(_)), "{long}");
        a.delete("m/x").unwrap();
    }

    fn leases(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        const BYTES: u64 = 100_000;
        location.put(&a, "l/x", 1, BYTES).unwrap();
        let held: Vec<Lease> = (2..30)
            .map(|value| {
                let lease = location.get(&b, "l/x").unwrap();
                location.put(&a, "l/x", value, BYTES).unwrap();
                lease
            })
            .collect();
        a.delete("l/x").unwrap();
        for value in 100..150 {
            location.put(&a, "l/y", value, BYTES).unwrap();
        }
        for (value, lease) in (1..).zip(&held) {
            assert!(lease.is(value) && lease.validate(), "{value}");
        }
        drop(held);
        a.delete("l/y").unwrap();
        // The lease survives its producer.
        let mut producer = placed(&self.daemon.socket(), self.word());
        let sum = producer.ok(&format!("put l/z {BYTES} 7"));
        let lease = location.get(&b, "l/z").unwrap();
        producer.exit();
        eventually("its end", || !b.info("l/z").unwrap().alive);
        assert!(lease.is(7));
        let mut late = placed(&self.daemon.socket(), self.word());
        assert_eq!(late.ok("sum l/z"), sum);
        assert!(b.delete("l/z").unwrap());
        for value in 0..20 {
            location.put(&a, "l/y", value, BYTES).unwrap();
        }
        assert!(lease.is(7) && lease.validate());
        a.delete("l/y").unwrap();
    }

    fn streams(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        for policy in [Policy::Block, Policy::DropOldest, Policy::Error] {
            let stream = a.stream("st").capacity(8).policy(policy).open().unwrap();
            let mut one = b.subscription("st").start_at(Start::Oldest).open().unwrap();
            let mut two = a.subscription("st").start_at(Start::Oldest).open().unwrap();
            for number in 0..100 {
                let mut draft = location.filled(&a, number, 200 + number).unwrap();
                if number % 3 == 0 {
                    draft.label(b"every third", number).unwrap();
                }
                assert_eq!(draft.send(&stream, LONG).unwrap(), number);
                for subscription in [&mut one, &mut two] {
                    let message = subscription.recv_timeout(LONG).unwrap();
                    assert_eq!((message.sequence(), message.lost()), (number, 0));
                    let lease = Lease::of(message.into_value());
                    assert!(lease.is(number) && lease.layout().1 == [200 + number as usize]);
                    assert_eq!(lease.label().0.is_empty(), number % 3 != 0);
                }
            }
            // After the stream's end, messages sent before still arrive.
            location.filled(&a, 7, 10).unwrap().send(&stream, LONG).unwrap();
            drop(stream);
            let last = one.recv_timeout(LONG).map(|message| Lease::of(message.into_value()));
            match last {
                Ok(lease) => {
                    assert!(lease.is(7));
                    let ended = one.recv_timeout(SHORT).map(|_| ()).unwrap_err();
                    assert!(ended.is_timeout() || matches!(ended, tensorlend::Error::StreamEnded(_)), "{ended}");
                }
                Err(error) => panic!("{policy:?}: {error}"),
            }
            drop((one, two));
            a.delete_stream("st").unwrap();
        }
    }

    fn lagging_consumers(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        let filled = |value| location.filled(&a, value, 5000).unwrap();
        // The oldest message is dropped, and the lagging reader learns how many; its leases stay valid.
        let stream = a.stream("lag").capacity(4).policy(Policy::DropOldest).open().unwrap();
        let mut slow = b.subscription("lag").start_at(Start::Oldest).open().unwrap();
        filled(0).send(&stream, LONG).unwrap();
        let held = Lease::of(slow.recv_timeout(LONG).unwrap().into_value());
        for value in 1..=50 {
            filled(value).send(&stream, LONG).unwrap();
        }
        assert!(held.is(0));
        let (mut next, mut lost) = (1, 0);
        while next <= 50 {
            let message = slow.recv_timeout(LONG).unwrap();
            lost += message.lost();
            next = message.sequence() + 1;
            assert!(Lease::of(message.into_value()).is(next - 1));
        }
        assert!(lost >= 46 && slow.lost() == lost, "{lost}");
        drop((slow, stream, held));
        a.delete_stream("lag").unwrap();
        // The send waits, and continues when there is room.
        let stream = a.stream("lag").capacity(4).policy(Policy::Block).open().unwrap();
        let mut slow = b.subscription("lag").start_at(Start::Oldest).open().unwrap();
        for value in 0..4 {
            filled(value).send(&stream, LONG).unwrap();
        }
        assert!(filled(9).send(&stream, SHORT).is_err());
        let Ok(Some(back)) = filled(4).try_send(&stream) else { panic!("there was room") };
        slow.recv_timeout(LONG).unwrap();
        back.send(&stream, LONG).unwrap();
        for value in 1..5 {
            assert!(Lease::of(slow.recv_timeout(LONG).unwrap().into_value()).is(value));
        }
        drop((slow, stream));
        a.delete_stream("lag").unwrap();
        // The send returns an error.
        let stream = a.stream("lag").capacity(2).policy(Policy::Error).open().unwrap();
        let slow = b.subscription("lag").start_at(Start::Oldest).open().unwrap();
        let full = (0..).find_map(|value| filled(value).send(&stream, LONG).err()).unwrap();
        assert!(matches!(full, tensorlend::Error::StreamFull(_)), "{full}");
        drop((slow, stream));
        a.delete_stream("lag").unwrap();
    }

    fn lists(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        for number in 0..20 {
            let client = if number % 2 == 0 { &a } else { &b };
            let draft = location.filled(client, number, 100 + number).unwrap();
            assert_eq!(draft.append(client, "li").unwrap(), number);
        }
        assert_eq!(a.length("li"), 20);
        let all = b.get_all("li").unwrap();
        for (number, value) in (0..).zip(all) {
            assert!(Lease::of(value).is(number));
        }
        let some: Vec<u64> =
            a.get_range("li", 5..8).unwrap().into_iter().map(|it| Lease::of(it).value().unwrap()).collect();
        assert_eq!(some, [5, 6, 7]);
        location.put(&a, "li-name", 77, 64).unwrap();
        a.append_names("li", &["li-name"]).unwrap();
        assert!(Lease::of(b.get_range("li", 20..).unwrap().remove(0)).is(77));
        a.rename_list("li", "li2").unwrap();
        assert_eq!((a.length("li"), b.length("li2")), (0, 21));
        let held = Lease::of(b.get_range("li2", 3..4).unwrap().remove(0));
        assert!(b.clear("li2").unwrap() && !b.clear("li2").unwrap());
        for value in 0..30 {
            location.put(&a, "li-name", value, 100).unwrap();
            location.put(&b, "li-other", value, 100).unwrap();
        }
        assert!(held.is(3));
        a.delete("li-name").unwrap();
        b.delete("li-other").unwrap();
    }

    fn datasets(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        const BYTES: u64 = 100_000;
        let version = location.dataset(&a, 1, BYTES).unwrap().publish("ds/x").unwrap();
        let first = b.get_dataset("ds/x").unwrap();
        assert!(first.version() == version && value_of(&first).unwrap() == 1 && first.validate());
        let info = b.info("ds/x").unwrap();
        let InfoKind::Dataset(members) = info.kind else { panic!("a dataset was published") };
        let devices: Vec<_> = members.iter().map(|(_, member)| member.device).collect();
        let device = if let Location::Device(uuid) = location { Some(uuid) } else { None };
        assert_eq!((devices, info.nbytes, info.device), (vec![None, device, None], BYTES + 40, None));
        // Leases keep replaced and deleted datasets whole.
        let held: Vec<_> = (2..20)
            .map(|value| {
                let held = b.get_dataset("ds/x").unwrap();
                location.dataset(&a, value, BYTES).unwrap().publish("ds/x").unwrap();
                held
            })
            .collect();
        b.copy("ds/x", "ds/copy").unwrap();
        a.delete("ds/x").unwrap();
        for value in 100..150 {
            location.dataset(&a, value, BYTES).unwrap().publish("ds/y").unwrap();
        }
        for (value, held) in (1..).zip(&held) {
            assert!(value_of(held).unwrap() == value && held.validate(), "{value}");
        }
        assert_eq!(value_of(&a.get_dataset("ds/copy").unwrap()).unwrap(), 19);
        drop((first, held));
        // Streams and lists.
        let stream = a.stream("ds").capacity(4).open().unwrap();
        let mut messages = b.subscription("ds").start_at(Start::Oldest).open().unwrap();
        for value in 0..10 {
            stream.send_timeout(location.dataset(&a, value, 5000).unwrap(), LONG).unwrap();
            let message = messages.recv_timeout(LONG).unwrap();
            assert_eq!(value_of(message.dataset().unwrap()).unwrap(), value);
            a.append("ds-list", location.dataset(&a, value, 5000).unwrap()).unwrap();
        }
        drop((messages, stream));
        a.delete_stream("ds").unwrap();
        let items = b.get_all("ds-list").unwrap();
        let values: Vec<u64> = items.iter().map(|item| value_of(item.dataset().unwrap()).unwrap()).collect();
        assert_eq!(values, (0..10).collect::<Vec<_>>());
        drop(items);
        a.clear("ds-list").unwrap();
        // A killed producer leaves its dataset, and a killed reader's lease ends.
        let mut producer = placed(&self.daemon.socket(), self.word());
        producer.ok(&format!("put-set ds/z {BYTES} 7"));
        let mut reader = placed(&self.daemon.socket(), self.word());
        assert_eq!(reader.ok("hold-set ds/z"), "7");
        producer.kill();
        eventually("its end", || !b.info("ds/z").unwrap().alive);
        assert_eq!((reader.ok("held-set ds/z"), value_of(&b.get_dataset("ds/z").unwrap()).unwrap()), ("7".into(), 7));
        assert!(b.delete("ds/z").unwrap());
        assert!(b.instruments().leased().unwrap() > 0 && reader.ok("held-set ds/z") == "7");
        reader.kill();
        eventually("the end of its lease", || b.instruments().leased().unwrap() == 0);
        let before = location.segment_bytes(&a).unwrap();
        for value in 0..100 {
            location.dataset(&a, value, BYTES).unwrap().publish("ds/y").unwrap();
        }
        assert!(location.segment_bytes(&a).unwrap() <= before.max(8 << 20), "what was replaced is reused");
        for name in ["ds/y", "ds/copy"] {
            assert!(b.delete(name).unwrap());
        }
    }

    fn lifetimes(&self) {
        let (a, b, location) = (self.client(), self.client(), self.location);
        let ttl = Duration::from_millis(50);
        location.filled(&a, 1, 100).unwrap().publish_for("t/short", Lifetime::ttl(ttl)).unwrap();
        location.filled(&a, 2, 100).unwrap().publish_for("t/long", Lifetime::ttl(Duration::from_hours(1))).unwrap();
        location.filled(&a, 3, 100).unwrap().publish_for("t/mine", Lifetime::EPHEMERAL).unwrap();
        let held = location.get(&b, "t/short");
        assert!(b.info("t/mine").unwrap().lifetime.ephemeral);
        eventually("the end of its time", || !b.exists("t/short").unwrap());
        if let Ok(held) = held {
            assert!(held.is(1));
        }
        assert!(location.get(&b, "t/long").unwrap().is(2));
        let none = Lifetime::ttl(Duration::ZERO);
        let wrong = location.filled(&a, 2, 100).unwrap().publish_for("t/none", none).unwrap_err();
        assert!(wrong.to_string().contains("time to live of 0"), "{wrong}");
        let held = location.get(&b, "t/mine").unwrap();
        drop(a);
        eventually("the end of what was its own", || !b.exists("t/mine").unwrap());
        assert!(held.is(3) && b.exists("t/long").unwrap());
        b.delete("t/long").unwrap();
    }

    fn idle_segments(&self) {
        let (a, location) = (self.client(), self.location);
        // The level can only fall here: memory of earlier clients is still being freed.
        let start = location.lent_bytes(&a).unwrap();
        for round in 0..2 {
            const BYTES: u64 = 6 << 20;
            let spec = || TensorSpec::new(DType::U8, &[BYTES]);
            let mut drafts: Vec<Draft> = (0..24).map(|_| location.create(&a, spec()).unwrap()).collect();
            drafts[7].write(&pattern(7, BYTES as usize)).unwrap();
            assert!(location.lent_bytes(&a).unwrap() >= 24 * BYTES);
            for (number, draft) in drafts.into_iter().enumerate() {
                draft.publish(&format!("i/{number}")).unwrap();
            }
            let held = location.get(&a, "i/7").unwrap();
            for number in 0..24 {
                a.delete(&format!("i/{number}")).unwrap();
            }
            // A request for memory scans replaced and deleted slots: they are reused, and no new memory is requested.
            let before = location.segment_bytes(&a).unwrap();
            let again: Vec<Draft> = (0..20).map(|_| location.create(&a, spec()).unwrap()).collect();
            let after = location.segment_bytes(&a).unwrap();
            assert!(after <= before + 2 * BYTES, "round {round}: {before} bytes, then {after}");
            drop(again);
            assert!(held.is(7));
        }
        let watcher = self.client();
        drop(a);
        eventually("the return of the rest", || location.lent_bytes(&watcher).unwrap() <= start);
    }

    fn reclaim(&self) {
        const OVERWRITES: u64 = 10_000;
        let (a, location) = (self.client(), self.location);
        let mut reader = placed(&self.daemon.socket(), self.word());
        location.put(&a, "r/x", 1, 2000).unwrap();
        // A reader's first view of a device makes a context, which takes longer than the overwrites.
        reader.ok("sum r/x");
        reader.tell(&format!("watch r/x {OVERWRITES}"));
        for value in 2..=OVERWRITES {
            location.put(&a, "r/x", value, 2000).unwrap();
        }
        let seen: u64 = reader.answer().unwrap().parse().unwrap();
        assert!(seen > 10, "{seen} values seen");
        // The slots were reused.
        let segments = location.segment_bytes(&a).unwrap();
        assert!(segments <= 8 << 20, "{segments} bytes for a few slots of 2000");
        a.delete("r/x").unwrap();
    }
}
