//! Shared structures that check their own sizes and offsets at compile time, and tables that describe the structures.
//! docs/layout.md and the layout's hash are generated from these tables.

/// One field of a shared structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Byte offset in the structure.
    pub offset: usize,
    /// The field's name.
    pub name: &'static str,
    /// The field's Rust type.
    pub kind: &'static str,
    /// The field's meaning, its writer and its readers.
    pub doc: &'static str,
}

/// One shared structure.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// The structure's name.
    pub name: &'static str,
    /// The structure's length in bytes.
    pub bytes: usize,
    /// The structure's meaning.
    pub doc: &'static str,
    /// The fields, in order.
    pub fields: &'static [Field],
}

/// Defines a `repr(C)` structure of shared words, with the structure's length in bytes and the
/// offset of each field. A wrong number does not compile.
macro_rules! structure {
    ($(#[doc = $doc:literal])* pub struct $name:ident [$bytes:expr] {
        $($(#[doc = $fdoc:literal])* $offset:literal $field:ident: $kind:ty,)*
    }) => {
        $(#[doc = $doc])*
        #[repr(C)]
        #[allow(clippy::pub_underscore_fields)]
        pub struct $name {
            $($(#[doc = $fdoc])* pub $field: $kind,)*
        }

        #[cfg(not(loom))]
        const _: () = {
            assert!(size_of::<$name>() == $bytes, concat!("size of ", stringify!($name)));
            $(assert!(core::mem::offset_of!($name, $field) == $offset, stringify!($field));)*
        };

        impl $name {
            /// The structure's table, for the documents and the layout's hash.
            #[cfg(not(loom))]
            pub const STRUCTURE: $crate::describe::Structure = $crate::describe::Structure {
                name: stringify!($name),
                bytes: $bytes,
                doc: concat!($($doc, "\n"),*),
                fields: &[$($crate::describe::Field {
                    offset: $offset,
                    name: stringify!($field),
                    kind: stringify!($kind),
                    doc: concat!($($fdoc, "\n"),*),
                }),*],
            };
        }

        #[cfg(loom)]
        impl $crate::describe::Model for $name {
            fn model() -> Self {
                Self { $($field: $crate::describe::Model::model(),)* }
            }
        }

        // SAFETY: every field is Shared (checked below). The asserts above leave no gap between the
        // fields: sizes and offsets are multiples of 8, and every field ends where the next field
        // or the structure ends.
        #[allow(unsafe_code)]
        unsafe impl $crate::raw::Shared for $name {}
        const _: () = {
            $($crate::describe::assert_shared::<$kind>();)*
        };
        #[cfg(not(loom))]
        const _: () = {
            let mut end = 0;
            $(assert!(end == $offset, concat!("a gap before ", stringify!($field))); end += size_of::<$kind>();)*
            assert!(end == $bytes, "a gap at the end");
        };
    };
}
pub(crate) use structure;

/// Compiles only for types that may lie in shared memory.
pub(crate) const fn assert_shared<T: crate::raw::Shared>() {}

/// Returns the length of a reserved field in words. Returns 0 under loom, which tracks every word.
pub const fn pad(words: usize) -> usize {
    if cfg!(loom) { 0 } else { words }
}

/// Structures outside shared memory, for loom's models.
#[cfg(loom)]
pub trait Model {
    /// Returns a structure of zeros.
    fn model() -> Self;
}
#[cfg(loom)]
impl Model for crate::word::Word {
    fn model() -> Self {
        Self::new(0)
    }
}
#[cfg(loom)]
impl Model for crate::word::Bell {
    fn model() -> Self {
        Self::new()
    }
}
#[cfg(loom)]
impl<T: Model, const N: usize> Model for [T; N] {
    fn model() -> Self {
        core::array::from_fn(|_| T::model())
    }
}

/// Returns the FNV-1a hash over the names, kinds and offsets of every structure.
#[cfg(not(loom))]
pub const fn hash(structures: &[Structure], version: u32) -> u64 {
    const fn eat(mut hash: u64, text: &str) -> u64 {
        let bytes = text.as_bytes();
        let mut i = 0;
        while i < bytes.len() {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
            i += 1;
        }
        hash
    }
    const fn eat_number(mut hash: u64, number: u64) -> u64 {
        let mut i = 0;
        while i < 64 {
            hash = (hash ^ (number >> i & 0xff)).wrapping_mul(0x0100_0000_01b3);
            i += 8;
        }
        hash
    }
    let mut hash = eat_number(0xcbf2_9ce4_8422_2325, version as u64);
    let mut s = 0;
    while s < structures.len() {
        hash = eat_number(eat(hash, structures[s].name), structures[s].bytes as u64);
        let mut f = 0;
        while f < structures[s].fields.len() {
            let field = &structures[s].fields[f];
            hash = eat_number(eat(eat(hash, field.name), field.kind), field.offset as u64);
            f += 1;
        }
        s += 1;
    }
    hash
}
