//! Reuses a thread's heap boxes.
//!
//! A program that takes and drops many leases together would otherwise allocate and free as many boxes. By default, glibc
//! keeps seven freed allocations of a length ready for a thread (`tcache_count`), so most of these calls would take its slow
//! paths.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Maximum number of empty boxes that a thread keeps of each type: about 50 KiB.
const KEPT: usize = 512;

/// Empty boxes of a thread.
pub type Spares<T> = RefCell<Vec<Box<Option<T>>>>;

/// A type whose boxes each thread keeps.
pub trait Reuse: Sized + 'static {
    /// Returns the empty boxes of this thread.
    fn spares() -> &'static LocalKey<Spares<Self>>;
}

/// A box that goes back to the spares of the dropping thread.
pub struct Reused<T: Reuse>(
    /// `None` only during the drop.
    Option<Box<Option<T>>>,
);

impl<T: Reuse> Reused<T> {
    #[inline]
    pub fn new(content: T) -> Self {
        // A thread that is ending has no spares any more.
        let spare = T::spares().try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        Self(Some(match spare {
            Some(mut spare) => {
                *spare = Some(content);
                spare
            }
            None => Box::new(Some(content)),
        }))
    }

    /// Returns the content. Only a drop that has called [`Reused::take`] finds none.
    #[inline]
    pub fn get(&self) -> &T {
        self.0.as_deref().and_then(Option::as_ref).expect("the content is there until the drop")
    }

    /// Takes the content out, during the drop of the owner.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        let mut emptied = self.0.take()?;
        let content = emptied.take();
        // If the thread is ending, the closure is dropped, and the box with it.
        let _ = T::spares().try_with(move |spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < KEPT {
                spares.push(emptied);
            }
        });
        content
    }
}

impl<T: Reuse> Drop for Reused<T> {
    #[inline]
    fn drop(&mut self) {
        drop(self.take());
    }
}
