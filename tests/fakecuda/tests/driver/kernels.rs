//! The kernels of `kernels.ptx`, checked against plain loops.

use crate::cu::{self, DEFAULT, READ, SLAB};
use crate::world::{World, role};
use cudarc::driver::sys::{CUfunction, CUmodule, CUstream};
use std::ffi::{CString, c_void};

pub const IMAGE: &str = concat!(include_str!("../../kernels.ptx"), "\0");

pub fn module(image: &str) -> CUmodule {
    let mut module = std::ptr::null_mut();
    cu!(cuModuleLoadData(&raw mut module, image.as_ptr().cast())).unwrap();
    module
}

pub fn function(module: CUmodule, name: &str) -> Result<CUfunction, u32> {
    let (name, mut function) = (CString::new(name).unwrap(), std::ptr::null_mut());
    cu!(cuModuleGetFunction(&raw mut function, module, name.as_ptr()))?;
    Ok(function)
}

pub fn launch(module: CUmodule, name: &str, stream: CUstream, words: &mut [u64]) -> Result<(), u32> {
    let function = function(module, name)?;
    let mut places: Vec<*mut c_void> = words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
    cu!(cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, stream, places.as_mut_ptr(), std::ptr::null_mut()))
}

fn to_device<T>(values: &[T]) -> u64 {
    let at = cu::allocate(size_of_val(values)).unwrap();
    cu!(cuMemcpyHtoD_v2(at, values.as_ptr().cast(), size_of_val(values))).unwrap();
    at
}

fn from_device<T: Copy + Default>(at: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    cu!(cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), at, count * size_of::<T>())).unwrap();
    values
}

fn kernels() {
    const N: usize = 5001;
    cu::start();
    let module = module(IMAGE);
    let n = N as u64;
    let numbers: Vec<i32> = (0..N as i32).map(|number| number - 2000).collect();
    let floats: Vec<f32> = numbers.iter().map(|number| *number as f32 / 4.0).collect();
    let (ints, singles) = (to_device(&numbers), to_device(&floats));
    let out = cu::allocate(8 * N).unwrap();
    let run = |name: &str, words: &mut [u64]| launch(module, name, DEFAULT, words).unwrap();

    run("tl_fill_f32", &mut [out, n, u64::from(1.5f32.to_bits())]);
    assert_eq!(from_device::<f32>(out, N), vec![1.5; N]);
    run("tl_fill_u32", &mut [out, n - 1, 77]);
    assert_eq!(from_device::<u32>(out, N)[N - 2..], [77, 1.5f32.to_bits()]);
    run("tl_cast_i32_f64", &mut [out, ints, n]);
    assert_eq!(from_device::<f64>(out, N), numbers.iter().map(|number| f64::from(*number)).collect::<Vec<_>>());
    run("tl_add_f32", &mut [out, singles, singles, n]);
    assert_eq!(from_device::<f32>(out, N), floats.iter().map(|number| number + number).collect::<Vec<_>>());
    run("tl_add_i32", &mut [out, ints, ints, n]);
    assert_eq!(from_device::<i32>(out, N), numbers.iter().map(|number| number + number).collect::<Vec<_>>());
    run("tl_sum_u32", &mut [out, ints, n]);
    assert_eq!(from_device::<u64>(out, 1), [numbers.iter().map(|number| u64::from(*number as u32)).sum::<u64>()]);
    run("tl_spin_fill_u32", &mut [out, n, 78, 1_000_000]);
    assert_eq!(from_device::<u32>(out, N), vec![78; N]);

    assert_eq!(function(module, "tl_nothing"), Err(500));
    let other = self::module(".visible .entry other(\n.param .u64 x\n)\n{ ret; }\0");
    assert_eq!(launch(other, "other", DEFAULT, &mut [0]), Err(801), "held by the image, and not known to the fake");
    cu!(cuModuleUnload(other)).unwrap();
}

#[test]
fn kernels_compute_what_they_say() {
    if role().is_some() {
        return kernels();
    }
    World::new().start("kernels::kernels_compute_what_they_say", "only").succeeds();
}

fn trespasser() {
    cu::start();
    let at = cu::map(cu::create(SLAB).unwrap(), SLAB, READ);
    let fine = cu::allocate(4096).unwrap();
    launch(module(IMAGE), "tl_fill_u32", DEFAULT, &mut [at, 4, 1]).unwrap();
    assert_eq!(cu!(cuCtxSynchronize()), Err(700));
    assert_eq!(cu::read(fine), Err(700), "the error stays");
}

#[test]
fn a_kernel_that_writes_to_a_read_only_mapping_faults() {
    if role().is_some() {
        return trespasser();
    }
    World::new().start("kernels::a_kernel_that_writes_to_a_read_only_mapping_faults", "only").succeeds();
}
