//! `cuGetProcAddress`: finds a function by its name in cuda.h and the CUDA version that the caller was built for.

use crate::args::{Out, Text};
use crate::code::{Done, NOT_FOUND};
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// Functions whose signature changed: name, first version, and the symbol from that version on. Each other function has
/// one symbol, the one with the highest suffix that this library exports.
const CHANGED: [(&str, i32, &str); 9] = [
    ("cuStreamGetCtx", 12050, "cuStreamGetCtx_v2"),
    ("cuStreamGetCtx", 0, "cuStreamGetCtx"),
    ("cuCtxCreate", 12050, "cuCtxCreate_v4"),
    ("cuCtxCreate", 0, "cuCtxCreate_v2"),
    ("cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"),
    ("cuCtxGetDevice", 0, "cuCtxGetDevice"),
    ("cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"),
    ("cuCtxSynchronize", 0, "cuCtxSynchronize"),
    ("cuGetProcAddress", 0, "cuGetProcAddress_v2"),
];

/// Returns this library's dlopen handle. After the first call the library is never unloaded.
pub fn library() -> u64 {
    static LIBRARY: OnceLock<u64> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let inside: &CStr = c"fakecuda";
        // SAFETY: a C structure of pointers, for which zeros are valid values.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: dladdr accepts any address, and the structure outlives the call.
        if unsafe { libc::dladdr(inside.as_ptr().cast(), &raw mut found) } == 0 || found.dli_fname.is_null() {
            return 0;
        }
        // SAFETY: the name comes from the loader, and RTLD_NOLOAD loads no library.
        unsafe { libc::dlopen(found.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) as u64 }
    })
}

fn symbol(name: &str) -> Option<u64> {
    let name = CString::new(name).ok()?;
    // SAFETY: the dlopen handle is never closed, and the string ends with a zero byte.
    let address = unsafe { libc::dlsym(library() as *mut _, name.as_ptr()) } as u64;
    (library() != 0 && address != 0).then_some(address)
}

fn resolve(name: &str, version: i32) -> Option<u64> {
    if let Some((_, _, name)) = CHANGED.iter().find(|(plain, from, _)| *plain == name && version >= *from) {
        return symbol(name);
    }
    ["_v4", "_v3", "_v2", ""].iter().find_map(|suffix| symbol(&format!("{name}{suffix}")))
}

fn put(name: &Text, place: &Out<u64>, version: i32, status: Option<&Out<u32>>) -> Done {
    let name = name.get()?;
    let found = resolve(&name, version).filter(|_| name.starts_with("cu"));
    place.put(found.unwrap_or(0))?;
    if let Some(status) = status {
        status.offer(u32::from(found.is_none()));
    }
    found.map(drop).ok_or(NOT_FOUND)
}

driver! {
    fn cuGetProcAddress(name: Text, place: Out<u64>, version: i32, _flags: u64) {
        put(&name, &place, version, None)
    }

    fn cuGetProcAddress_v2(name: Text, place: Out<u64>, version: i32, _flags: u64, status: Out<u32>) {
        put(&name, &place, version, Some(&status))
    }
}
