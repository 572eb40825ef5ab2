//! Launches of kernels, and queries about kernels.

use crate::args::{In, Out};
use crate::code::{Code, Done, INVALID_VALUE, NOT_SUPPORTED};
use crate::kernels;
use crate::module::{FUNCTIONS, Function};
use crate::stream::{self, Piece};
use std::sync::atomic::Ordering;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: u64,
    attributes: u64,
    count: u32,
}

/// Returns the parameters, one per word. They come from an array of their addresses, or from a buffer that `extra`
/// describes.
fn words(sizes: &[u8], parameters: u64, extra: u64) -> Result<Vec<u64>, Code> {
    let word = |at: u64, size: u8| match size {
        4 => In::<u32>::at(at).get().map(u64::from),
        _ => In::<u64>::at(at).get(),
    };
    if parameters != 0 {
        let places = In::<u64>::at(parameters).array(sizes.len())?;
        return places.into_iter().zip(sizes).map(|(place, size)| word(place, *size)).collect();
    }
    // Pairs of a kind (1: the buffer, 2: the address of its length) and a value. A zero ends the list.
    let (mut buffer, mut at) = (0, extra);
    while at != 0 {
        match In::<[u64; 2]>::at(at).get()? {
            [0, _] => break,
            [1, value] => buffer = value,
            _ => {}
        }
        at += 16;
    }
    let mut offset = 0u64;
    let mut next = |size: &u8| {
        let place = offset.next_multiple_of(u64::from(*size));
        offset = place + u64::from(*size);
        if buffer == 0 { Err(INVALID_VALUE) } else { word(buffer + place, *size) }
    };
    sizes.iter().map(&mut next).collect()
}

fn launch(function: u64, shape: [u32; 6], stream: u64, parameters: u64, extra: u64) -> Done {
    let function = crate::module::function(function)?;
    let stream = stream::find(stream)?;
    if shape.contains(&0) || shape[3..].iter().map(|side| u64::from(*side)).product::<u64>() > 1024 {
        return Err(INVALID_VALUE);
    }
    let sizes = kernels::parameters(&function.name).ok_or(NOT_SUPPORTED)?;
    let launch = kernels::launch(&function.name, &words(sizes, parameters, extra)?)?;
    stream.enqueue(Piece { touches: launch.touches, on_card: true, always: false, run: launch.run });
    Ok(())
}

fn attribute(function: &Function, attribute: u32) -> Result<i32, Code> {
    Ok(match attribute {
        0 => 1024,
        1..=3 | 7 | 10..=15 => 0,
        4 => 16,
        5 => 70,
        6 => 90,
        8 => function.dynamic_shared_bytes.load(Ordering::Relaxed),
        9 => -1,
        _ => return Err(INVALID_VALUE),
    })
}

fn set_attribute(function: &Function, attribute: u32, value: i32) -> Done {
    match attribute {
        8 => function.dynamic_shared_bytes.store(value, Ordering::Relaxed),
        9..=15 => {}
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

driver! {
    fn cuLaunchKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        _shared_bytes: u32,
        stream: u64,
        parameters: u64,
        extra: u64,
    ) {
        launch(function, [grid_x, grid_y, grid_z, block_x, block_y, block_z], stream, parameters, extra)
    }

    fn cuLaunchCooperativeKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        _shared_bytes: u32,
        stream: u64,
        parameters: u64,
    ) {
        launch(function, [grid_x, grid_y, grid_z, block_x, block_y, block_z], stream, parameters, 0)
    }

    fn cuLaunchKernelEx(config: In<Config>, function: u64, parameters: u64, extra: u64) {
        let Config { grid: [x, y, z], block: [i, j, k], stream, .. } = config.get()?;
        launch(function, [x, y, z, i, j, k], stream, parameters, extra)
    }

    fn cuFuncGetAttribute(value: Out<i32>, which: u32, function: u64) {
        value.put(attribute(&*crate::module::function(function)?, which)?)
    }

    fn cuFuncSetAttribute(function: u64, which: u32, value: i32) {
        set_attribute(&*crate::module::function(function)?, which, value)
    }

    fn cuFuncSetCacheConfig(function: u64, _config: u32) {
        FUNCTIONS.get(function).map(drop)
    }

    fn cuKernelSetCacheConfig(kernel: u64, _config: u32, _device: i32) {
        FUNCTIONS.get(kernel).map(drop)
    }

    fn cuKernelGetAttribute(value: Out<i32>, which: u32, kernel: u64, _device: i32) {
        value.put(attribute(&*FUNCTIONS.get(kernel)?, which)?)
    }

    fn cuKernelSetAttribute(which: u32, value: i32, kernel: u64, _device: i32) {
        set_attribute(&*FUNCTIONS.get(kernel)?, which, value)
    }

    fn cuFuncGetParamInfo(function: u64, index: u64, offset: Out<u64>, size: Out<u64>) {
        parameter(function, index, &offset, &size)
    }

    fn cuKernelGetParamInfo(kernel: u64, index: u64, offset: Out<u64>, size: Out<u64>) {
        parameter(kernel, index, &offset, &size)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, _function: u64, _threads: i32, _shared: u64) {
        blocks.put(2)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>,
        _function: u64,
        _threads: i32,
        _shared: u64,
        _flags: u32,
    ) {
        blocks.put(2)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>,
        block: Out<i32>,
        _function: u64,
        _to_shared: u64,
        _shared: u64,
        limit: i32,
    ) {
        grid.put(8)?;
        block.put(if limit > 0 { limit.min(1024) } else { 1024 })
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>,
        block: Out<i32>,
        _function: u64,
        _to_shared: u64,
        _shared: u64,
        limit: i32,
        _flags: u32,
    ) {
        grid.put(8)?;
        block.put(if limit > 0 { limit.min(1024) } else { 1024 })
    }

    fn cuOccupancyMaxPotentialClusterSize(size: Out<i32>, _function: u64, _config: u64) {
        size.put(1)
    }

    fn cuOccupancyMaxActiveClusters(clusters: Out<i32>, _function: u64, _config: u64) {
        clusters.put(1)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<u64>, _function: u64, _blocks: i32, _threads: i32) {
        bytes.put(48 << 10)
    }
}

fn parameter(function: u64, index: u64, offset: &Out<u64>, size: &Out<u64>) -> Done {
    let function = FUNCTIONS.get(function)?;
    let sizes = kernels::parameters(&function.name).ok_or(NOT_SUPPORTED)?;
    let mut end = 0;
    for (at, bytes) in sizes.iter().enumerate() {
        let start = u64::next_multiple_of(end, u64::from(*bytes));
        end = start + u64::from(*bytes);
        if at as u64 == index {
            offset.offer(start);
            size.offer(u64::from(*bytes));
            return Ok(());
        }
    }
    Err(INVALID_VALUE)
}
