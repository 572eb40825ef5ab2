//! The work of an allocation benchmark: memory from some source, filled with ones of some element type, and freed.

use crate::pool::ExactPool;
use crate::shm;
use memmap2::MmapMut;
use std::hint::black_box;
use tensorlend::{Client, Element};

/// An element type with a value for the number one.
pub trait One: Element {
    const ONE: Self;
}

macro_rules! ones {
    ($($ty:ty: $one:literal),*) => { $(impl One for $ty { const ONE: Self = $one; })* };
}
ones!(f32: 1.0, f64: 1.0, i8: 1, i16: 1, i32: 1, i64: 1, u8: 1, u16: 1, u32: 1, u64: 1);

/// Writes ones, and prevents the compiler from removing that.
pub fn fill<T: One>(elements: &mut [T]) {
    elements.fill(T::ONE);
    black_box(elements.as_mut_ptr());
}

/// Returns heap memory in words; if it is large, none of its pages is touched yet.
pub fn heap(bytes: usize) -> Box<[u64]> {
    vec![0; bytes.div_ceil(8)].into_boxed_slice()
}

/// Fills the first `bytes` bytes of heap words.
pub fn fill_words<T: One>(words: &mut [u64], bytes: usize) {
    fill(&mut bytemuck::cast_slice_mut::<u64, T>(words)[..bytes / size_of::<T>()]);
}

/// The source of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The floor: an existing tensor.
    Existing,
    /// The heap, for each tensor.
    Heap,
    /// Heap memory cached by exact size.
    HeapPool,
    /// A memfd and a mapping, for each tensor.
    Memfd,
    /// Mapped memfds cached by exact size.
    MemfdPool,
    /// A slot of a client of tensorlend.
    Ours,
}

impl Source {
    pub const ALL: [Self; 6] = [Self::Existing, Self::Heap, Self::HeapPool, Self::Memfd, Self::MemfdPool, Self::Ours];

    pub fn label(self) -> &'static str {
        match self {
            Self::Existing => "fill only (floor)",
            Self::Heap => "heap",
            Self::HeapPool => "heap, pool",
            Self::Memfd => "memfd",
            Self::MemfdPool => "memfd, pool",
            Self::Ours => "tensorlend",
        }
    }
}

/// All sources of one process.
#[derive(Debug)]
pub struct Sources {
    existing: Box<[u64]>,
    heap: ExactPool<Box<[u64]>>,
    memfd: ExactPool<MmapMut>,
    client: Client,
}

impl Sources {
    /// Creates the sources, with a client for [`Source::Ours`].
    pub fn new(client: Client) -> Self {
        Self { existing: heap(0), heap: ExactPool::new(None), memfd: ExactPool::new(None), client }
    }

    /// Allocates a tensor, fills it, drops it.
    pub fn once<T: One>(&mut self, source: Source, shape: &[u64]) {
        let elements = shape.iter().product::<u64>() as usize;
        let bytes = elements * size_of::<T>();
        match source {
            Source::Existing => {
                if self.existing.len() != bytes.div_ceil(8) {
                    self.existing = heap(bytes);
                }
                fill_words::<T>(&mut self.existing, bytes);
            }
            Source::Heap => {
                let mut tensor: Vec<T> = Vec::with_capacity(black_box(elements));
                tensor.resize(elements, T::ONE);
                black_box(tensor.as_mut_ptr());
            }
            Source::HeapPool => {
                let mut tensor = self.heap.take(black_box(bytes), heap);
                fill_words::<T>(&mut tensor, bytes);
                self.heap.give(bytes, tensor);
            }
            Source::Memfd => fill::<T>(bytemuck::cast_slice_mut(&mut shm::fresh(black_box(bytes)))),
            Source::MemfdPool => {
                let mut tensor = self.memfd.take(black_box(bytes), shm::fresh);
                fill::<T>(bytemuck::cast_slice_mut(&mut tensor));
                self.memfd.give(bytes, tensor);
            }
            Source::Ours => {
                let mut draft = self.client.create(T::DTYPE, black_box(shape)).expect("a slot");
                fill(draft.as_mut_slice::<T>().expect("its type"));
            }
        }
    }

    /// Frees the memory that the pools of this process cache.
    pub fn forget(&mut self) {
        (self.heap, self.memfd, self.existing) = (ExactPool::new(None), ExactPool::new(None), heap(0));
    }
}
