//! Modules and libraries: the names of the kernels in an image.

use crate::args::{Any, In, Out, Text};
use crate::code::{Code, FILE_NOT_FOUND, INVALID_CONTEXT, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND};
use crate::context;
use crate::handles::Table;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::atomic::AtomicI32;
use std::sync::{Arc, Mutex, PoisonError};

pub struct Function {
    pub name: String,
    text: CString,
    module: u64,
    pub dynamic_shared_bytes: AtomicI32,
}

struct Module {
    names: Vec<String>,
    /// The handles that the program has requested, by name.
    functions: Mutex<BTreeMap<String, u64>>,
}

pub static FUNCTIONS: Table<Function> = Table::new();
static MODULES: Table<Module> = Table::new();

/// Returns the function of a handle. A kernel's handle can be launched in the same way.
pub fn function(handle: u64) -> Result<Arc<Function>, Code> {
    FUNCTIONS.get(handle).map_err(|_| INVALID_HANDLE)
}

/// Returns the names after `.entry`. Returns none for a binary image.
fn entries(text: &str) -> Vec<String> {
    let name = |after: &str| {
        let after = after.trim_start();
        let end = after.find(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == '$'));
        after[..end.unwrap_or(after.len())].to_owned()
    };
    text.split(".entry").skip(1).map(name).filter(|name| !name.is_empty()).collect()
}

fn load(image: u64) -> Result<u64, Code> {
    if image == 0 {
        return Err(INVALID_VALUE);
    }
    let start = In::<u32>::at(image).get()?.to_le_bytes();
    const FAT_BINARY: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
    const FAT_WRAPPER: [u8; 4] = 0x4662_43B1_u32.to_le_bytes();
    let names = match start {
        [0, ..] => return Err(INVALID_IMAGE),
        [0x7F, b'E', b'L', b'F'] | FAT_BINARY | FAT_WRAPPER => Vec::new(),
        _ => entries(&Text::at(image).get()?),
    };
    Ok(MODULES.add(Module { names, functions: Mutex::new(BTreeMap::new()) }))
}

fn load_file(name: &Text) -> Result<u64, Code> {
    let mut bytes = std::fs::read(name.get()?).map_err(|_| FILE_NOT_FOUND)?;
    bytes.extend([0; 4]);
    load(bytes.as_ptr() as u64)
}

fn find(module: u64, name: &str) -> Result<u64, Code> {
    let found = MODULES.get(module)?;
    if !found.names.iter().any(|known| known == name) {
        return Err(NOT_FOUND);
    }
    let mut functions = found.functions.lock().unwrap_or_else(PoisonError::into_inner);
    let text = CString::new(name).map_err(|_| INVALID_VALUE)?;
    let make = || {
        FUNCTIONS.add(Function { name: name.to_owned(), text, module, dynamic_shared_bytes: AtomicI32::new(48 << 10) })
    };
    Ok(*functions.entry(name.to_owned()).or_insert_with(make))
}

fn unload(module: u64) -> Result<(), Code> {
    let module = MODULES.remove(module)?;
    for handle in module.functions.lock().unwrap_or_else(PoisonError::into_inner).values() {
        let _ = FUNCTIONS.remove(*handle);
    }
    Ok(())
}

fn list(module: u64, place: &Out<u64>, most: u32) -> Result<(), Code> {
    let names = MODULES.get(module)?.names.clone();
    let handles = names.iter().take(most as usize).map(|name| find(module, name)).collect::<Result<Vec<_>, _>>()?;
    place.fill(&handles)
}

driver! {
    fn cuModuleLoadData(module: Out<u64>, image: u64) {
        context::current().ok_or(INVALID_CONTEXT)?;
        module.put(load(image)?)
    }

    fn cuModuleLoadDataEx(module: Out<u64>, image: u64, _count: u32, _options: u64, _values: u64) {
        context::current().ok_or(INVALID_CONTEXT)?;
        module.put(load(image)?)
    }

    fn cuModuleLoad(module: Out<u64>, name: Text) {
        context::current().ok_or(INVALID_CONTEXT)?;
        module.put(load_file(&name)?)
    }

    fn cuModuleUnload(module: u64) {
        unload(module)
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) {
        function.put(find(module, &name.get()?)?)
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, module: u64) {
        count.put(MODULES.get(module)?.names.len() as u32)
    }

    fn cuModuleEnumerateFunctions(functions: Out<u64>, most: u32, module: u64) {
        list(module, &functions, most)
    }

    fn cuModuleGetGlobal_v2(_place: u64, _bytes: u64, _module: u64, _name: Text) {
        Err(NOT_FOUND)
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        mode.put(2)
    }

    fn cuLibraryLoadData(
        library: Out<u64>,
        image: u64,
        _options: u64,
        _values: u64,
        _count: u32,
        _library_options: u64,
        _library_values: u64,
        _library_count: u32,
    ) {
        library.put(load(image)?)
    }

    fn cuLibraryLoadFromFile(
        library: Out<u64>,
        name: Text,
        _options: u64,
        _values: u64,
        _count: u32,
        _library_options: u64,
        _library_values: u64,
        _library_count: u32,
    ) {
        library.put(load_file(&name)?)
    }

    fn cuLibraryUnload(library: u64) {
        unload(library)
    }

    fn cuLibraryGetKernel(kernel: Out<u64>, library: u64, name: Text) {
        kernel.put(find(library, &name.get()?)?)
    }

    fn cuLibraryGetModule(module: Out<u64>, library: u64) {
        MODULES.get(library)?;
        module.put(library)
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: u64) {
        count.put(MODULES.get(library)?.names.len() as u32)
    }

    fn cuLibraryEnumerateKernels(kernels: Out<u64>, most: u32, library: u64) {
        list(library, &kernels, most)
    }

    fn cuLibraryGetGlobal(_place: u64, _bytes: u64, _library: u64, _name: Text) {
        Err(NOT_FOUND)
    }

    fn cuLibraryGetManaged(_place: u64, _bytes: u64, _library: u64, _name: Text) {
        Err(NOT_FOUND)
    }

    fn cuKernelGetFunction(place: Out<u64>, kernel: u64) {
        FUNCTIONS.get(kernel)?;
        place.put(kernel)
    }

    fn cuKernelGetLibrary(library: Out<u64>, kernel: u64) {
        library.put(FUNCTIONS.get(kernel)?.module)
    }

    fn cuFuncGetModule(module: Out<u64>, function: u64) {
        module.put(FUNCTIONS.get(function)?.module)
    }

    fn cuFuncGetName(name: Out<u64>, function: u64) {
        name.put(FUNCTIONS.get(function)?.text.as_ptr() as u64)
    }

    fn cuKernelGetName(name: Out<u64>, kernel: u64) {
        name.put(FUNCTIONS.get(kernel)?.text.as_ptr() as u64)
    }

    fn cuFuncIsLoaded(state: Any, function: u64) {
        FUNCTIONS.get(function)?;
        state.put(1u32)
    }

    fn cuFuncLoad(function: u64) {
        FUNCTIONS.get(function).map(drop)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn entries_are_found() {
        let text = ".visible .entry tl_a(\n.param .u64 x)\n{ }\n.entry\n  tl_b ( )";
        assert_eq!(super::entries(text), ["tl_a", "tl_b"]);
    }
}
