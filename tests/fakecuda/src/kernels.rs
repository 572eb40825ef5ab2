//! The kernels that this card can run, on the host. `kernels.ptx` has the same ones for real cards.
//!
//! | name | parameters |
//! |---|---|
//! | `tl_fill_f32` | address, count: u64, value: f32 |
//! | `tl_fill_u32` | address, count: u64, value: u32 |
//! | `tl_cast_i32_f64` | to, from, count: u64 |
//! | `tl_add_f32`, `tl_add_i32` | to, one, other, count: u64 |
//! | `tl_sum_u32` | to (a u64), from, count: u64 |
//! | `tl_spin_fill_u32` | address, count: u64, value: u32, spin_ns: u64 |
//!
//! Addresses are u64, and each parameter is aligned as its type is.

use crate::code::{Code, INVALID_VALUE};
use crate::regions::Touch;

/// Returns the sizes of a kernel's parameters, in order. Returns `None` for an unknown kernel.
pub fn parameters(name: &str) -> Option<&'static [u8]> {
    Some(match name {
        "tl_fill_f32" | "tl_fill_u32" => &[8, 8, 4],
        "tl_cast_i32_f64" | "tl_sum_u32" => &[8, 8, 8],
        "tl_add_f32" | "tl_add_i32" => &[8, 8, 8, 8],
        "tl_spin_fill_u32" => &[8, 8, 4, 8],
        _ => return None,
    })
}

/// A launch: the memory ranges that it accesses, and its work.
pub struct Launch {
    pub touches: Vec<Touch>,
    pub run: Box<dyn Fn() + Send>,
}

fn read<T: Copy>(at: u64, index: u64) -> T {
    // SAFETY: within the ranges of the launch, which the stream's worker has looked up as mapped and readable. Any
    // bytes are valid for the plain numbers that the kernels read.
    unsafe { (at as *const T).add(index as usize).read_unaligned() }
}

fn write<T>(at: u64, index: u64, value: T) {
    // SAFETY: within the ranges of the launch, which the stream's worker has looked up as mapped and writable.
    unsafe { (at as *mut T).add(index as usize).write_unaligned(value) }
}

fn fill(at: u64, count: u64, value: u32) {
    (0..count).for_each(|index| write(at, index, value));
}

/// Waits without a lock or an allocation, because a helper process may run it.
fn spin(nanoseconds: u64) {
    let start = std::time::Instant::now();
    while (start.elapsed().as_nanos() as u64) < nanoseconds {
        std::thread::yield_now();
    }
}

/// Makes a launch of a kernel from its parameters, as 64-bit words.
pub fn launch(name: &str, words: &[u64]) -> Result<Launch, Code> {
    let bytes = |count: u64, each: u64| count.checked_mul(each).ok_or(INVALID_VALUE);
    let made = |touches: Vec<Touch>, run: Box<dyn Fn() + Send>| Ok(Launch { touches, run });
    match (name, words) {
        ("tl_fill_f32" | "tl_fill_u32", &[at, count, value]) => {
            made(vec![Touch::write(at, bytes(count, 4)?)], Box::new(move || fill(at, count, value as u32)))
        }
        ("tl_spin_fill_u32", &[at, count, value, spin_ns]) => {
            let run = move || {
                spin(spin_ns);
                fill(at, count, value as u32);
            };
            made(vec![Touch::write(at, bytes(count, 4)?)], Box::new(run))
        }
        ("tl_cast_i32_f64", &[to, from, count]) => {
            let run = move || (0..count).for_each(|index| write(to, index, f64::from(read::<i32>(from, index))));
            made(vec![Touch::write(to, bytes(count, 8)?), Touch::read(from, bytes(count, 4)?)], Box::new(run))
        }
        ("tl_sum_u32", &[to, from, count]) => {
            let sum = move || (0..count).map(|index| u64::from(read::<u32>(from, index))).sum::<u64>();
            let run = move || write(to, 0, sum());
            made(vec![Touch::write(to, 8), Touch::read(from, bytes(count, 4)?)], Box::new(run))
        }
        ("tl_add_f32" | "tl_add_i32", &[to, one, other, count]) => {
            let bytes = bytes(count, 4)?;
            let touches = vec![Touch::write(to, bytes), Touch::read(one, bytes), Touch::read(other, bytes)];
            if name == "tl_add_f32" {
                let add = move |index| write(to, index, read::<f32>(one, index) + read::<f32>(other, index));
                return made(touches, Box::new(move || (0..count).for_each(add)));
            }
            let add = move |index| write(to, index, read::<i32>(one, index).wrapping_add(read::<i32>(other, index)));
            made(touches, Box::new(move || (0..count).for_each(add)))
        }
        _ => Err(INVALID_VALUE),
    }
}
