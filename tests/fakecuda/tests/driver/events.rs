//! Events between processes: a reader that waits sees the new data, and one that does not wait sees the old data.

use crate::cu;
use crate::kernels::{IMAGE, launch, module};
use crate::world::{World, role, tell, told};
use cudarc::driver::sys::{CUipcEventHandle, CUipcMemHandle};

fn producer() {
    cu::start();
    let (module, stream) = (module(IMAGE), cu::stream());
    let at = cu::allocate(4096).unwrap();
    cu::write(at, 1).unwrap();
    let (mut event, mut timed) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(cu!(cuEventCreate(&raw mut timed, 4)), Err(1), "an event between processes keeps no time");
    cu!(cuEventCreate(&raw mut event, 6)).unwrap();
    let mut memory = CUipcMemHandle { reserved: [0; 64] };
    cu!(cuIpcGetMemHandle(&raw mut memory, at)).unwrap();
    let mut ticket = CUipcEventHandle { reserved: [0; 64] };
    cu!(cuIpcGetEventHandle(&raw mut ticket, event)).unwrap();
    tell(cu::to_hex(&memory.reserved.map(|byte| byte as u8)));
    tell(cu::to_hex(&ticket.reserved.map(|byte| byte as u8)));
    told();
    launch(module, "tl_fill_u32", stream, &mut [at, 4, 2]).unwrap();
    cu!(cuEventRecord(event, stream)).unwrap();
    tell("recorded");
    told();
}

fn consumer() {
    cu::start();
    let memory = CUipcMemHandle { reserved: cu::from_hex(&told()).map(|byte| byte as _) };
    let ticket = CUipcEventHandle { reserved: cu::from_hex(&told()).map(|byte| byte as _) };
    let (mut at, mut event) = (0, std::ptr::null_mut());
    cu!(cuIpcOpenMemHandle_v2(&raw mut at, memory, 1)).unwrap();
    cu!(cuIpcOpenEventHandle(&raw mut event, ticket)).unwrap();
    cu!(cuEventQuery(event)).unwrap();
    tell("open");
    told();
    assert_eq!(cu!(cuEventQuery(event)), Err(600));
    assert_eq!(cu::read(at), Ok(1), "without a wait");
    let stream = cu::stream();
    let mut pinned = std::ptr::null_mut();
    cu!(cuMemHostAlloc(&raw mut pinned, 4096, 0)).unwrap();
    cu!(cuStreamWaitEvent(stream, event, 0)).unwrap();
    cu!(cuMemcpyDtoHAsync_v2(pinned, at, 4, stream)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(cu!(cuStreamQuery(stream)), Err(600), "it waits");
    tell("waits");
    if told() == "the producer is dead" {
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(cu!(cuStreamQuery(stream)), Err(600), "it waits for ever");
        return tell("waits for ever");
    }
    cu!(cuStreamSynchronize(stream)).unwrap();
    // SAFETY: four bytes of pinned memory, and the copy to them is done.
    tell(unsafe { pinned.cast::<u32>().read() });
}

/// The values that the consumer saw while its producer continued or died.
fn play(world: &World, dies: bool, opens: bool) -> String {
    const TEST: &str = "events::who_waits_for_another_process_really_waits";
    let (mut producer, mut consumer) = (world.start(TEST, "producer"), world.start(TEST, "consumer"));
    consumer.say(producer.hear());
    consumer.say(producer.hear());
    consumer.hear();
    let gate = world.gate(Some(&producer));
    producer.say("");
    producer.hear();
    consumer.say("");
    consumer.hear();
    if dies {
        producer.kill();
    }
    if opens {
        std::fs::remove_file(gate).unwrap();
    }
    consumer.say(if dies && !opens { "the producer is dead" } else { "the work goes on" });
    let seen = consumer.hear();
    consumer.succeeds();
    seen
}

#[test]
fn who_waits_for_another_process_really_waits() {
    match role().as_deref() {
        Some("producer") => producer(),
        Some(_) => consumer(),
        None => {
            assert_eq!(play(&World::new(), false, true), "2");
            assert_eq!(play(&World::new(), true, false), "waits for ever", "the event of a killed process");
            let lingering = World::new().with("FAKECUDA_LINGER_MS", 10_000);
            assert_eq!(play(&lingering, true, true), "2", "whose card goes on");
        }
    }
}
