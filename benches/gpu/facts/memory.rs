//! The cost and the initial contents of memory, and its attribution to processes.

use crate::fact;
use crate::family::{Line, Relative, ms, spread};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};
use tensorlend_benches::gpu::{Card, first_device};
use tensorlend_benches::table::bytes as size;
use tensorlend_cuda::pool::Pool;
use tensorlend_cuda::{Access, Allocation, Context, Device, Driver, Mapping, Stream};

/// Scales a size for devices with such memory; the fake device's is the host's.
pub fn scaled(device: &Device, bytes: u64) -> u64 {
    if device.is_fake() { bytes.min(32 << 20) } else { bytes }
}

pub fn card() -> Card {
    Card::open().expect("there is a device")
}

/// Runs the other processes of these steps.
pub fn child(role: &str, _: &[&str]) -> bool {
    match role {
        "dirty" => dirty(),
        "import pool" => import_pool(),
        _ => return false,
    }
    true
}

pub fn device() {
    let device = first_device().expect("there is one");
    fact("name", device.name());
    fact("driver", format!("CUDA {}", Driver::get().expect("it was found").version()));
    fact("memory", format!("{:.1} GiB", device.bytes_total() as f64 / (1_u64 << 30) as f64));
    fact("compute capability", format!("{:?}", device.compute_capability()));
    fact("supports", format!("{:?}", device.supports()));
    fact("granularity", device.granularity().map_or_else(|e| e.to_string(), |g| format!("{g:?}")));
    let smi = smi(&[
        "--query-gpu=name,driver_version,compute_mode,mig.mode.current,persistence_mode",
        "--format=csv,noheader",
    ]);
    fact("nvidia-smi", smi);
}

fn smi(arguments: &[&str]) -> String {
    match Command::new("nvidia-smi").args(arguments).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).trim().replace('\n', "; ");
            if text.is_empty() { "nothing".into() } else { text }
        }
        Ok(output) => format!("nvidia-smi: {}", output.status),
        Err(e) => format!("no nvidia-smi: {e}"),
    }
}

/// Returns the processes that nvidia-smi lists, and the device's memory in use.
fn seen() -> String {
    let processes = smi(&["--query-compute-apps=pid,used_memory", "--format=csv,noheader"]);
    let used = smi(&["--query-gpu=memory.used", "--format=csv,noheader"]);
    format!("processes: {processes}; in use: {used}")
}

/// The daemon's steps: create and export, without a context.
pub fn contexts() {
    fact("nvidia-smi before cuInit", seen());
    let device = first_device().expect("there is one");
    fact("nvidia-smi after cuInit", seen());
    let bytes = scaled(&device, 256 << 20);
    let made = Allocation::create(&device, bytes).and_then(|allocation| Ok((allocation.export()?, allocation)));
    let context = Context::current().expect("the driver tells");
    let answer = made.as_ref().map_or_else(ToString::to_string, |_| "yes".into());
    fact(&format!("create and export {} without a context", size(bytes)), answer);
    fact("context current after that", context.map_or("none".into(), |context| format!("{context:?}")));
    fact("nvidia-smi then (this process has memory, and no context)", seen());
    if let Ok((fd, _)) = &made {
        let mapped = Allocation::import(fd.as_fd())
            .and_then(|allocation| Mapping::map(&allocation, bytes, &device, Access::ReadWrite));
        fact("import and map without a context", mapped.map_or_else(|e| e.to_string(), |_| "yes".into()));
    }
    let pool = Pool::create(&device, 0, scaled(&device, 1 << 30)).and_then(|pool| Ok((pool.export()?, pool)));
    fact(
        "create and export a pool without a context",
        pool.as_ref().map_or_else(ToString::to_string, |_| "yes".into()),
    );
    let begin = Instant::now();
    let context = Context::primary(&device).expect("a context can be made");
    fact("making the primary context takes", ms(begin.elapsed()));
    let _current = context.enter().expect("it can be entered");
    fact("nvidia-smi with a context", seen());
    if let Ok((_, pool)) = &pool {
        let stream = Stream::new(&context).expect("a stream");
        match pool.allocate(scaled(&device, 256 << 20), &stream).and_then(|ptr| stream.synchronize().map(|()| ptr)) {
            Ok(_) => fact("nvidia-smi with a block of the pool", seen()),
            Err(e) => fact("a block of the pool", e),
        }
    }
}

fn timed<T>(
    times: &mut Vec<Duration>,
    work: impl FnOnce() -> tensorlend_cuda::Result<T>,
) -> tensorlend_cuda::Result<T> {
    let begin = Instant::now();
    let made = work();
    times.push(begin.elapsed());
    made
}

pub fn times() {
    let device = first_device().expect("there is one");
    let sizes = if device.is_fake() { [2 << 20, 8 << 20, 32 << 20] } else { [2 << 20, 256 << 20, 4_u64 << 30] };
    for with_context in [false, true] {
        let _context = with_context.then(|| Context::primary(&device).expect("a context"));
        for bytes in sizes {
            let label = |what: &str| {
                format!("{what} {}{}", size(bytes), if with_context { ", with a context" } else { ", no context" })
            };
            match round_times(&device, bytes, if bytes > 1 << 30 { 7 } else { 15 }) {
                Ok(found) => {
                    for (what, times) in found {
                        fact(&label(what), spread(times));
                    }
                }
                Err(e) => fact(&label("all of it"), e),
            }
        }
    }
    if let Err(e) = kernel_times(&card()) {
        fact("a kernel on other memory", e);
    }
    let context = Context::primary(&device).expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    for bytes in sizes {
        let [mut made, mut freed]: [Vec<Duration>; 2] = Default::default();
        let tried = (|| {
            for _ in 0..7 {
                // A new pool each time: an exportable pool keeps its memory.
                let pool = Pool::create(&device, 0, 0)?;
                let ptr = timed(&mut made, || {
                    let ptr = pool.allocate(bytes, &stream)?;
                    stream.synchronize().map(|()| ptr)
                })?;
                // SAFETY: 1: allocated above. 2: nobody uses it.
                #[allow(unsafe_code)]
                timed(&mut freed, || unsafe { pool.free(ptr, &stream) }.and_then(|()| stream.synchronize()))?;
            }
            Ok::<_, tensorlend_cuda::Error>(())
        })();
        match tried {
            Ok(()) => {
                fact(&format!("a block of {} from a new exportable pool", size(bytes)), spread(made));
                fact(&format!("free it, {}", size(bytes)), spread(freed));
            }
            Err(e) => fact(&format!("a block of {}", size(bytes)), e),
        }
    }
}

/// Measures a small kernel and the wait for it, on memory of each kind.
fn kernel_times(card: &Card) -> tensorlend_cuda::Result<()> {
    const BYTES: u64 = 2 << 20;
    let stream = card.stream();
    let ask = |what: &str, ptr: u64| {
        let mut times = Vec::new();
        for round in 0..60 {
            let begin = Instant::now();
            card.try_fill(&stream, ptr, 256, round).expect("it can be filled");
            times.push(begin.elapsed());
        }
        fact(&format!("a kernel on 1 KiB of {what}, and the wait for it"), spread(times));
    };
    ask("cuMemAlloc", card.allocate(BYTES));
    let own = Allocation::create(&card.device, BYTES)?;
    let mapped = Mapping::map(&own, BYTES, &card.device, Access::ReadWrite)?;
    ask("VMM memory", mapped.ptr());
    let fd = own.export()?;
    ask("VMM memory, once it is exported", mapped.ptr());
    let imported = Allocation::import(fd.as_fd())?;
    let again = Mapping::map(&imported, BYTES, &card.device, Access::ReadWrite)?;
    ask("imported VMM memory", again.ptr());
    ask("cuMemAlloc once more", card.allocate(BYTES));
    Ok(())
}

type Found = Vec<(&'static str, Vec<Duration>)>;

fn round_times(device: &Device, bytes: u64, rounds: usize) -> tensorlend_cuda::Result<Found> {
    let [mut create, mut export, mut import, mut map, mut access, mut unmap, mut release]: [Vec<Duration>; 7] =
        Default::default();
    for _ in 0..rounds {
        let allocation = timed(&mut create, || Allocation::create(device, bytes))?;
        let fd = timed(&mut export, || allocation.export())?;
        let imported = timed(&mut import, || Allocation::import(fd.as_fd()))?;
        let mapping = timed(&mut map, || Mapping::map(&imported, bytes, device, Access::ReadWrite))?;
        timed(&mut access, || mapping.allow(device))?;
        timed(&mut unmap, || {
            drop(mapping);
            Ok(())
        })?;
        timed(&mut release, || {
            drop((imported, fd, allocation));
            Ok(())
        })?;
    }
    Ok(vec![
        ("create", create),
        ("export", export),
        ("import", import),
        ("reserve, map, set access", map),
        ("set access once more", access),
        ("unmap", unmap),
        ("release", release),
    ])
}

const DIRT: u32 = 0xeeee_eeee;

/// Fills as much memory as ordered, and ends.
fn dirty() {
    let (line, card) = (Line::to_parent(), card());
    let stream = card.stream();
    let bytes = scaled(&card.device, 16 << 30);
    let allocation = Allocation::create(&card.device, bytes).expect("there is room");
    let mapping = Mapping::map(&allocation, bytes, &card.device, Access::ReadWrite).expect("it can be mapped");
    card.try_fill(&stream, mapping.ptr(), bytes / 4, DIRT).expect("it can be filled");
    line.say("filled", &[]);
    line.hear();
}

/// Reports whether memory contains other processes' data, by samples.
fn contents(card: &Card, ptr: u64, bytes: u64) -> String {
    let stream = card.stream();
    let part = bytes.min(16 << 20);
    let mut said = Vec::new();
    for at in [0, (bytes - part) / 2, bytes - part] {
        match card.try_read(&stream, ptr + at, part) {
            Ok(found) if found.iter().all(|byte| *byte == 0) => said.push("zero".to_owned()),
            Ok(found) => {
                let old: usize = found.iter().map(|byte| usize::from(*byte == 0xee)).sum();
                let other = found.iter().filter(|byte| **byte != 0 && **byte != 0xee).count();
                said.push(format!("{old} of {} bytes are another's, {other} something else", found.len()));
            }
            Err(e) => said.push(format!("{e:?}")),
        }
    }
    said.dedup();
    said.join("; ")
}

pub fn zeroed() {
    let card = card();
    let bytes = scaled(&card.device, 8 << 30);
    let dirt = || {
        let other = Relative::start("dirty", &[]);
        other.line.hear();
        drop(other);
    };
    dirt();
    let fresh = Allocation::create(&card.device, bytes)
        .and_then(|allocation| Mapping::map(&allocation, bytes, &card.device, Access::ReadWrite));
    match &fresh {
        Ok(mapping) => fact("VMM memory that a killed process had filled", contents(&card, mapping.ptr(), bytes)),
        Err(e) => fact("VMM memory that a killed process had filled", e),
    }
    let stream = card.stream();
    if let Ok(mapping) = fresh {
        card.try_fill(&stream, mapping.ptr(), bytes / 4, DIRT).expect("it can be filled");
        drop(mapping);
        let again = Allocation::create(&card.device, bytes)
            .and_then(|allocation| Mapping::map(&allocation, bytes, &card.device, Access::ReadWrite));
        let said = again.map_or_else(|e| e.to_string(), |mapping| contents(&card, mapping.ptr(), bytes));
        fact("VMM memory that this process itself had filled and released", said);
    }
    dirt();
    let ptr = card.allocate(bytes);
    fact("cuMemAlloc of what a killed process had filled", contents(&card, ptr, bytes));
    card.free(ptr);
    dirt();
    let context = Context::primary(&card.device).expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    let pool = match Pool::create(&card.device, u64::MAX, 0) {
        Ok(pool) => pool,
        Err(e) => return fact("a pool", e),
    };
    let block = |question: &str| {
        match pool.allocate(bytes, &stream).and_then(|ptr| stream.synchronize().map(|()| ptr)) {
            Ok(ptr) => {
                fact(question, contents(&card, ptr, bytes));
                card.try_fill(&card.stream(), ptr, bytes / 4, DIRT).expect("it can be filled");
                // SAFETY: 1: allocated above. 2: its uses were waited for.
                #[allow(unsafe_code)]
                unsafe { pool.free(ptr, &stream) }.and_then(|()| stream.synchronize()).expect("it can be freed");
            }
            Err(e) => fact(question, e),
        }
    };
    block("a block of a new pool, of what a killed process had filled");
    block("a block of the pool that was filled and freed in it");
}

/// Imports a received pool, and a pointer that was exported from that pool.
fn import_pool() {
    let (line, card) = (Line::to_parent(), card());
    let (text, fds) = line.hear();
    let (bytes, data) = text.split_once(' ').expect("two words");
    let (bytes, data): (u64, [u8; 64]) = (bytes.parse().expect("a number"), from_hex(data));
    let context = Context::primary(&card.device).expect("a context");
    let begin = Instant::now();
    let tried = Pool::import(fds[0].as_fd()).and_then(|pool| pool.import_pointer(&context, &data));
    let took = begin.elapsed();
    let said = match &tried {
        Err(e) => format!("no: {e}"),
        Ok(block) => match card.try_element(&card.stream(), block.ptr() + bytes - 4) {
            Ok(DIRT) => format!("yes, in {}, and its last word is what the exporter wrote", ms(took)),
            Ok(other) => format!("yes, and its last word is {other:#x} instead of {DIRT:#x}"),
            Err(e) => format!("yes, and reading it: {e:?}"),
        },
    };
    drop(tried);
    line.say(&said, &[]);
}

pub fn large_pool() {
    let card = card();
    let context = Context::primary(&card.device).expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    for gibibytes in [1, 4, 6, 12] {
        let bytes = scaled(&card.device, gibibytes << 30);
        let question = format!("another process imports a pool's block of {}", size(bytes));
        let made = Pool::create(&card.device, 0, 0).and_then(|pool| {
            let ptr = pool.allocate(bytes, &stream)?;
            stream.synchronize()?;
            Ok((pool.export()?, pool.export_pointer(ptr)?, ptr, pool))
        });
        let (fd, data, ptr, pool) = match made {
            Ok(made) => made,
            Err(e) => {
                fact(&question, format!("it cannot be made: {e}"));
                continue;
            }
        };
        card.try_fill(&card.stream(), ptr, bytes / 4, DIRT).expect("it can be filled");
        let other = Relative::start("import pool", &[]);
        other.line.say(&format!("{bytes} {}", to_hex(&data)), &[fd.as_fd()]);
        fact(
            &question,
            if other.line.is_ready(Duration::from_secs(15)) { other.line.hear().0 } else { "no answer".into() },
        );
        drop(other);
        // SAFETY: 1: allocated above. 2: the importer has ended, and the fill is complete.
        #[allow(unsafe_code)]
        let freed = unsafe { pool.free(ptr, &stream) }.and_then(|()| stream.synchronize());
        if let Err(e) = freed {
            fact("freeing it", e);
        }
        if card.device.is_fake() {
            return;
        }
    }
}

pub fn to_hex(bytes: &[u8; 64]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

pub fn from_hex(text: &str) -> [u8; 64] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal"))
}
