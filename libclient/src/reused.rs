//! Reuses a thread's heap boxes.
//!
//! A program that publishes drafts, or takes and drops many leases together, would otherwise allocate and free as many boxes.
//! By default, glibc keeps seven freed allocations of a length ready for a thread (`tcache_count`), so most of these calls
//! would take its slow paths.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Maximum number of empty boxes that a thread keeps of each type: about 50 KiB.
const KEPT: usize = 512;

/// Empty boxes of a thread.
pub type Spares<T> = RefCell<Vec<Box<T>>>;

/// A type whose boxes each thread keeps.
pub trait Reuse: Sized + 'static {
    /// Returns the empty boxes of this thread.
    fn spares() -> &'static LocalKey<Spares<Self>>;
}

/// Returns a box with this content.
#[inline]
pub fn boxed<T: Reuse>(content: T) -> Box<T> {
    // A thread that is ending has no spares any more.
    let spare = T::spares().try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
    match spare {
        Some(mut spare) => {
            *spare = content;
            spare
        }
        None => Box::new(content),
    }
}

/// Keeps a box whose content is of no use any more.
#[inline]
pub fn keep<T: Reuse>(spent: Box<T>) {
    // If the thread is ending, the closure is dropped, and the box with it.
    let _ = T::spares().try_with(move |spares| {
        let mut spares = spares.borrow_mut();
        if spares.len() < KEPT {
            spares.push(spent);
        }
    });
}

/// A box that goes back to the spares of the dropping thread.
pub struct Reused<T>(
    /// `None` only during the drop.
    Option<Box<Option<T>>>,
)
where
    Option<T>: Reuse;

impl<T> Reused<T>
where
    Option<T>: Reuse,
{
    #[inline]
    pub fn new(content: T) -> Self {
        Self(Some(boxed(Some(content))))
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
        keep(emptied);
        content
    }
}

impl<T> Drop for Reused<T>
where
    Option<T>: Reuse,
{
    #[inline]
    fn drop(&mut self) {
        drop(self.take());
    }
}
