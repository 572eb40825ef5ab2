//! Effects on memory and work when a process breaks a rule, or is killed.

use crate::fact;
use crate::family::{Line, Relative, ms, spread};
use crate::memory::{card, from_hex, scaled, to_hex};
use cudarc::driver::{CudaStream, sys};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use tensorlend_benches::gpu::Card;
use tensorlend_benches::table::bytes as size;
use tensorlend_cuda::copy::HostRegistration;
use tensorlend_cuda::pool::Pool;
use tensorlend_cuda::{Access, Allocation, Context, Device, Event, Mapping, Stream, StreamRef};

const UNIT: u64 = 2 << 20;
const WORD: u32 = 0x5a5a_5a5a;

/// Runs the other processes of these steps.
pub fn child(role: &str, rest: &[&str]) -> bool {
    match (role, rest) {
        ("write read-only", [how]) => write_read_only(how),
        ("make and wait", []) => make_and_wait(),
        ("make a pool", []) => make_a_pool(),
        ("work on", [how]) => work_on(how),
        ("record an event", []) => record_an_event(),
        _ => return false,
    }
    true
}

fn mapped(device: &Device, bytes: u64, access: Access) -> (Allocation, Mapping) {
    let allocation = Allocation::create(device, bytes).expect("there is room");
    let mapping = Mapping::map(&allocation, bytes, device, access).expect("it can be mapped");
    (allocation, mapping)
}

fn word(card: &Card, at: u64) -> String {
    card.try_element(&card.stream(), at).map_or_else(|e| format!("{e:?}"), |found| format!("{found:#x}"))
}

/// Maps the received memory read-only, and writes to it.
fn write_read_only(how: &str) {
    let (line, card) = (Line::to_parent(), card());
    let (_, fds) = line.hear();
    let allocation = Allocation::import(fds[0].as_fd()).expect("it can be imported");
    let mapping = Mapping::map(&allocation, UNIT, &card.device, Access::Read).expect("it can be mapped");
    let stream = card.stream();
    let before = word(&card, mapping.ptr());
    let tried = match how {
        "kernel" => card.try_fill(&stream, mapping.ptr(), 1024, 1),
        _ => card.try_copy_in(&stream, mapping.ptr(), &[1; 4096]),
    };
    let after = card.try_fill(&stream, card_block(&card), 1, 1).map_or_else(|e| format!("{e:?}"), |()| "works".into());
    let tried = tried.map_or_else(|e| format!("{e:?}"), |()| "no error".into());
    line.say(&format!("{tried}; it had read {before}; its context afterwards: {after}"), &[]);
}

/// Allocates memory in the context, if that still works.
fn card_block(card: &Card) -> u64 {
    card.try_allocate(4096).unwrap_or(0)
}

pub fn read_only() {
    let card = card();
    let (allocation, mapping) = mapped(&card.device, UNIT, Access::ReadWrite);
    let fd = allocation.export().expect("it can be exported");
    for how in ["kernel", "copy from the host"] {
        card.try_fill(&card.stream(), mapping.ptr(), UNIT / 4, WORD).expect("it can be filled");
        let other = Relative::start("write read-only", &[how.to_owned()]);
        other.line.say("this", &[fd.as_fd()]);
        let question = format!("a {how} that writes through a read-only mapping");
        fact(
            &question,
            if other.line.is_ready(Duration::from_secs(8)) { other.line.hear().0 } else { "no answer".into() },
        );
        drop(other);
        fact("the owner finds then", word(&card, mapping.ptr()));
    }
}

/// Creates memory, sends its descriptor, and waits.
fn make_and_wait() {
    let (line, card) = (Line::to_parent(), card());
    let bytes = scaled(&card.device, 4 << 30);
    let (allocation, mapping) = mapped(&card.device, bytes, Access::ReadWrite);
    card.try_fill(&card.stream(), mapping.ptr(), bytes / 4, WORD).expect("it can be filled");
    line.say("made", &[allocation.export().expect("it can be exported").as_fd()]);
    line.hear();
}

fn free_after(card: &Card, wanted: impl Fn(u64) -> bool, within: Duration) -> Option<Duration> {
    let begin = Instant::now();
    while begin.elapsed() < within {
        if wanted(card.free_bytes()) {
            return Some(begin.elapsed());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    None
}

pub fn orphan() {
    let card = card();
    let bytes = scaled(&card.device, 4 << 30);
    let gib = |free: u64| format!("{:.2} GiB", free as f64 / (1_u64 << 30) as f64);
    let before = card.free_bytes();
    let mut other = Relative::start("make and wait", &[]);
    let (_, mut fds) = other.line.hear();
    let with = card.free_bytes();
    other.kill();
    let ended = other.reap();
    std::thread::sleep(Duration::from_millis(1500));
    let after = card.free_bytes();
    fact(
        &format!("free before, with a process that has {}, and 1.5 s after it was killed", size(bytes)),
        format!("{}, {}, {} (ended: {ended})", gib(before), gib(with), gib(after)),
    );
    // If the memory had not been freed, half of it would be missing.
    let kept = after + bytes / 2 < before;
    fact("a descriptor that nobody imported keeps the memory of a killed process", if kept { "yes" } else { "no" });
    let fd = fds.remove(0);
    let again = Allocation::import(fd.as_fd())
        .and_then(|allocation| Mapping::map(&allocation, bytes, &card.device, Access::Read));
    match again {
        Ok(mapping) => {
            fact("imported then, its last word is (0x5a5a5a5a was written)", word(&card, mapping.ptr() + bytes - 4));
        }
        Err(e) => fact("imported then", e),
    }
    drop(fd);
    let back = free_after(&card, |free| free + bytes / 2 > before, Duration::from_secs(3));
    fact(
        "free once the descriptor is closed",
        back.map_or("not within 3 s".into(), |time| format!("after {}", ms(time))),
    );
}

/// Imports one block twice in one process, and drops one of the imports.
pub fn imported_twice() {
    let card = card();
    let context = Context::primary(&card.device).expect("a context");
    let other = Relative::start("make a pool", &[]);
    let (data, fds) = other.line.hear();
    let data = from_hex(&data);
    let import = || Pool::import(fds[0].as_fd()).expect("a pool can be imported");
    for (how, other_pool) in [("the same import of the pool", false), ("two imports of the pool", true)] {
        let one = import();
        let two = if other_pool { import() } else { one.clone() };
        let first = one.import_pointer(&context, &data);
        let second = two.import_pointer(&context, &data);
        let (Ok(first), Ok(second)) = (&first, &second) else {
            fact(&format!("{how}: a block twice"), format!("{:?}, {:?}", first.err(), second.err()));
            continue;
        };
        let same = if first.ptr() == second.ptr() { "one address" } else { "two addresses" };
        fact(&format!("{how}: a block twice"), same);
    }
    for (how, other_pool) in [("the same import of the pool", false), ("two imports of the pool", true)] {
        let one = import();
        let two = if other_pool { import() } else { one.clone() };
        let (Ok(first), Ok(second)) = (one.import_pointer(&context, &data), two.import_pointer(&context, &data)) else {
            continue;
        };
        drop(first);
        fact(&format!("{how}: the second one, when the first one is freed"), word(&card, second.ptr()));
        drop(second);
        fact(
            "its context",
            card.try_fill(&card.stream(), card_block(&card), 1, 1)
                .map_or_else(|e| format!("{e:?}"), |()| "works".into()),
        );
    }
}

fn make_a_pool() {
    let (line, card) = (Line::to_parent(), card());
    let context = Context::primary(&card.device).expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    let pool = Pool::create(&card.device, 0, 0).expect("a pool");
    let ptr = pool.allocate(UNIT, &stream).expect("there is room");
    stream.synchronize().expect("it is there");
    card.try_fill(&card.stream(), ptr, UNIT / 4, WORD).expect("it can be filled");
    // The driver exports a pointer only if the pool itself was exported before.
    let fd = pool.export().expect("it can be exported");
    let data = pool.export_pointer(ptr).expect("it can be exported");
    line.say(&to_hex(&data), &[fd.as_fd()]);
    loop {
        match line.hear().0.as_str() {
            "free" => {
                // SAFETY: 1: allocated above. 2: all local uses were waited for. An importer has not freed it, which is
                // the tested case. The importer is another process.
                #[allow(unsafe_code)]
                let freed = unsafe { pool.free(ptr, &stream) }.and_then(|()| stream.synchronize());
                line.say(&freed.map_or_else(|e| e.to_string(), |()| "freed".into()), &[]);
            }
            "again" => {
                let said = match pool.allocate(UNIT, &stream).and_then(|ptr| stream.synchronize().map(|()| ptr)) {
                    Ok(again) => {
                        card.try_fill(&card.stream(), again, UNIT / 4, !WORD).expect("it can be filled");
                        if again == ptr { "the same address".into() } else { "another address".into() }
                    }
                    Err(e) => e.to_string(),
                };
                line.say(&said, &[]);
            }
            _ => return,
        }
    }
}

pub fn killed_exporter() {
    let card = card();
    let context = Context::primary(&card.device).expect("a context");
    let mut other = Relative::start("make a pool", &[]);
    let (data, fds) = other.line.hear();
    let data = from_hex(&data);
    let pool = match Pool::import(fds[0].as_fd()) {
        Ok(pool) => pool,
        Err(e) => return fact("importing a pool", e),
    };
    let block = match pool.import_pointer(&context, &data) {
        Ok(block) => block,
        Err(e) => return fact("importing a block", e),
    };
    fact("an importer reads (0x5a5a5a5a was written)", word(&card, block.ptr()));
    other.kill();
    fact("the exporter ended after its kill", other.reap());
    fact("at once the importer reads", word(&card, block.ptr()));
    std::thread::sleep(Duration::from_millis(1500));
    fact("1.5 s later it reads", word(&card, block.ptr()));
    // Another allocation may reuse the memory now.
    let others = Allocation::create(&card.device, scaled(&card.device, 4 << 30));
    if let Ok(others) = &others
        && let Ok(mapping) = Mapping::map(others, scaled(&card.device, 4 << 30), &card.device, Access::ReadWrite)
    {
        let filled = card.try_fill(&card.stream(), mapping.ptr(), mapping.bytes() / 4, 0x1111_1111);
        fact("and when others have filled 4 GiB", format!("{} (filling: {filled:?})", word(&card, block.ptr())));
    }
    let again = pool.import_pointer(&context, &data);
    fact("the same block imported once more", again.as_ref().map_or_else(ToString::to_string, |_| "yes".into()));
    drop(again);
    drop(block);
    fact(
        "after freeing the import the context",
        card.try_fill(&card.stream(), card_block(&card), 1, 1).map_or_else(|e| format!("{e:?}"), |()| "works".into()),
    );
    let other_pool = Pool::import(fds[0].as_fd());
    fact("the pool's descriptor imported once more", other_pool.map_or_else(|e| e.to_string(), |_| "yes".into()));
}

pub fn order() {
    let card = card();
    let (allocation, mapping) = mapped(&card.device, UNIT, Access::ReadWrite);
    let fd = allocation.export().expect("it can be exported");
    let imported = Allocation::import(fd.as_fd()).expect("it can be imported");
    drop(fd);
    let second = Mapping::map(&imported, UNIT, &card.device, Access::Read);
    fact(
        "VMM: map after the descriptor was closed",
        second.as_ref().map_or_else(ToString::to_string, |_| "yes".into()),
    );
    drop((imported, allocation));
    card.try_fill(&card.stream(), mapping.ptr(), UNIT / 4, WORD).expect("it can be filled");
    if let Ok(second) = second {
        drop(mapping);
        fact("VMM: handles released and the first mapping gone, the second reads", word(&card, second.ptr()));
    }

    let context = Context::primary(&card.device).expect("a context");
    let other = Relative::start("make a pool", &[]);
    let (data, fds) = other.line.hear();
    let imported =
        Pool::import(fds[0].as_fd()).and_then(|pool| Ok((pool.import_pointer(&context, &from_hex(&data))?, pool)));
    let (block, _pool) = match imported {
        Ok(imported) => imported,
        Err(e) => return fact("importing a pool's block", e),
    };
    let ask = |what: &str| {
        other.line.say(what, &[]);
        if other.line.is_ready(Duration::from_secs(5)) { other.line.hear().0 } else { "no answer".into() }
    };
    fact("pool: the exporter frees before the importer does", ask("free"));
    fact("the importer reads then", word(&card, block.ptr()));
    fact("the exporter allocates once more, and fills it with 0xa5a5a5a5", ask("again"));
    fact("the importer reads then", word(&card, block.ptr()));
    drop(block);
    fact(
        "the importer has freed; its context",
        card.try_fill(&card.stream(), card_block(&card), 1, 1).map_or_else(|e| format!("{e:?}"), |()| "works".into()),
    );
}

const SHORT_NS: u64 = 1_000_000;
const LONG_NS: u64 = 1_500_000_000;

/// Works on the received memory, and has memory of its own.
fn work_on(how: &str) {
    let (line, card) = (Line::to_parent(), card());
    let (_, fds) = line.hear();
    let allocation = Allocation::import(fds[0].as_fd()).expect("it can be imported");
    let mapping = Mapping::map(&allocation, UNIT, &card.device, Access::ReadWrite).expect("it can be mapped");
    let bytes = scaled(&card.device, 8 << 30);
    let _own = mapped(&card.device, bytes, Access::ReadWrite);
    let stream = card.stream();
    card.try_fill(&stream, mapping.ptr(), 1, 1).expect("it can be filled");
    match how {
        "long" => card.spin_fill(&stream, mapping.ptr(), 1, 2, LONG_NS),
        _ => (2..900).for_each(|number| card.spin_fill(&stream, mapping.ptr(), 1, number, SHORT_NS)),
    }
    line.say("at work", &[]);
    line.hear();
}

pub fn killed_while_it_works() {
    let card = card();
    let (allocation, mapping) = mapped(&card.device, UNIT, Access::ReadWrite);
    let fd = allocation.export().expect("it can be exported");
    let bytes = scaled(&card.device, 8 << 30);
    let rounds = if card.device.is_fake() { 2 } else { 5 };
    let stream = card.stream();
    for how in ["short", "long"] {
        let [mut ended, mut last, mut late, mut back]: [Vec<Duration>; 4] = Default::default();
        let (mut finished, mut missing) = (0, 0);
        for round in 0..rounds {
            card.try_fill(&stream, mapping.ptr(), 1, 0).expect("it can be filled");
            let before = card.free_bytes();
            let mut other = Relative::start("work on", &[how.to_owned()]);
            other.line.say("this", &[fd.as_fd()]);
            other.line.hear();
            // Varies the moment of the kill.
            std::thread::sleep(Duration::from_millis(30 + 17 * round));
            let killed = other.kill();
            let (mut pidfd, mut free) = (None, None);
            let (mut value, mut changed) = (card.element(&stream, mapping.ptr()), None);
            while killed.elapsed() < Duration::from_millis(2500) {
                if pidfd.is_none() && other.has_ended(Duration::ZERO) {
                    pidfd = Some(killed.elapsed());
                }
                let now = card.element(&stream, mapping.ptr());
                if now != value {
                    (value, changed) = (now, Some(killed.elapsed()));
                }
                if free.is_none() && card.free_bytes() + bytes / 2 > before {
                    free = Some(killed.elapsed());
                }
            }
            finished += usize::from(how == "long" && value == 2);
            missing += usize::from(pidfd.is_none());
            last.push(changed.unwrap_or_default());
            late.push(changed.unwrap_or_default().saturating_sub(pidfd.unwrap_or_default()));
            ended.extend(pidfd);
            back.extend(free);
        }
        let work = if how == "short" {
            "kernels of 1 ms, 900 of them queued"
        } else {
            "one kernel of 1.5 s, which writes at its end"
        };
        fact(
            &format!("killed with {work}: its pidfd fires after"),
            format!("{}; never within 2.5 s: {missing}", spread(ended)),
        );
        fact("its last write is seen, after the kill (0: none)", spread(last));
        fact("its last write is seen, after its pidfd has fired: what the quarantine has to cover", spread(late));
        fact(&format!("its {} are free after", size(bytes)), spread(back));
        if how == "long" {
            fact(
                "a kernel that was running when its process was killed continued to its end",
                format!("{finished} of {rounds} times"),
            );
        }
    }
}

/// Records an event after long work, and waits to be killed.
fn record_an_event() {
    let (line, card) = (Line::to_parent(), card());
    let context = Context::primary(&card.device).expect("a context");
    let stream = card.stream();
    let ptr = card.allocate(4096);
    card.try_fill(&stream, ptr, 1, 1).expect("it can be filled");
    let event = match Event::interprocess(&context).and_then(|event| Ok((event.ipc_handle()?, event))) {
        Ok(event) => event,
        Err(e) => return line.say(&e.to_string(), &[]),
    };
    card.spin_fill(&stream, ptr, 1, 2, LONG_NS);
    event.1.record(by_ref(&stream)).expect("it can be recorded");
    line.say(&to_hex(&event.0), &[]);
    line.hear();
}

pub fn killed_before_its_event() {
    let card = card();
    let context = Context::primary(&card.device).expect("a context");
    let mut other = Relative::start("record an event", &[]);
    let (text, _) = other.line.hear();
    if text.len() != 128 {
        return fact("an event between processes", text);
    }
    let opened = match Event::open(&context, &from_hex(&text)) {
        Ok(event) => event,
        Err(e) => return fact("opening another process's event", e),
    };
    let _current = context.enter().expect("it can be entered");
    let asked = |event: &Event| {
        event.query().map_or_else(|e| e.to_string(), |fired| if fired { "fired".into() } else { "not yet".into() })
    };
    fact("its event, while the work before it runs", asked(&opened));
    let killed = other.kill();
    let ended = other.reap();
    fact(
        "its event, when its process has been killed and has ended",
        format!("{} (ended: {ended}, {})", asked(&opened), ms(killed.elapsed())),
    );
    let mut said = asked(&opened);
    while said == "not yet" && killed.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(1));
        said = asked(&opened);
    }
    fact("and in the end", format!("{said}, {} after the kill", ms(killed.elapsed())));
    let stream = card.stream();
    fact(
        "a stream that is to wait for it",
        by_ref(&stream).wait_event(&opened).map_or_else(|e| e.to_string(), |()| "takes it".into()),
    );
    fact(
        "opened once more, the process being gone",
        Event::open(&context, &from_hex(&text)).map_or_else(|e| e.to_string(), |_| "yes".into()),
    );
    released(&card, &stream, "work behind that wait", || ());
    // The event is a counter that both processes can write. Recording it again may release the waiting stream.
    let other = card.stream();
    released(&card, &stream, "that work, after this process has recorded the event in another stream", || {
        if let Err(e) = opened.record(by_ref(&other)) {
            fact("recording it", e);
        }
    });
    fact("its event then", asked(&opened));
    // The driver's cleanup would wait for the stream, so this process does not end by itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

#[allow(unsafe_code)]
fn by_ref(stream: &CudaStream) -> StreamRef<'_> {
    // SAFETY: 1 and 2: a stream of this process, which the result borrows.
    unsafe { StreamRef::from_raw(stream.cu_stream().expose_provenance()) }
}

/// Reports whether the stream's work ends within 2 s of an action.
fn released(card: &Card, stream: &CudaStream, question: &str, act: impl FnOnce()) {
    let begin = Instant::now();
    act();
    let done = || card.is_done(stream);
    while !done() && begin.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_micros(50));
    }
    let took = ms(begin.elapsed());
    fact(question, if done() { format!("is done after {took}") } else { "is not done after 2 s".into() });
}

/// Makes a stream wait for a word of shared host memory, which the host then writes.
#[allow(unsafe_code)]
pub fn released_by_the_host() {
    use tensorlend_os::memfd::Access;
    const BYTES: usize = 4096;
    let card = card();
    if card.device.is_fake() {
        return fact("a stream that waits for a word", "the stand-in has no such wait");
    }
    let context = Context::primary(&card.device).expect("a context");
    let _current = context.enter().expect("it can be entered");
    let fd = tensorlend_os::memfd::create("word", BYTES as u64).expect("a memfd");
    let map = |access| tensorlend_os::map::segment(&fd, BYTES, access, false).expect("it can be mapped");
    let writable = map(Access::Write);
    for (how, access) in [("a writable mapping", Access::Write), ("a read-only mapping", Access::Read)] {
        let view = map(access);
        let start = std::ptr::NonNull::new(view.start()).expect("it is mapped");
        let read_only = access == Access::Read;
        // SAFETY: 1: the view lives longer, and this process ends without its destruction if the stream still waits.
        let registered = unsafe { HostRegistration::register(&context, &card.device, start, BYTES, read_only) };
        let there = match registered
            .as_ref()
            .map_err(ToString::to_string)
            .and_then(|r| r.device_pointer().map_err(|e| e.to_string()))
        {
            Ok(there) => there,
            Err(e) => {
                fact(&format!("registering {how}"), e);
                continue;
            }
        };
        // The word's lowest byte.
        let word = writable.start();
        // SAFETY: mapped for writing, and only this process writes it.
        unsafe { word.write_volatile(0) };
        let stream = card.stream();
        // SAFETY: the stream and the registration live; the driver checks the address.
        let answer = unsafe { sys::cuStreamWaitValue64_v2(stream.cu_stream(), there, 1, 0) };
        fact(&format!("a stream that is to wait for a word of {how}"), format!("{answer:?}"));
        std::thread::sleep(Duration::from_millis(100));
        fact("its work after 100 ms", if card.is_done(&stream) { "is done" } else { "is not done" });
        // SAFETY: as above.
        released(&card, &stream, "its work after the host has written the word", || unsafe { word.write_volatile(1) });
    }
}
