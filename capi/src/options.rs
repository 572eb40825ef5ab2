//! Options of a connection.

use super::arguments::{Out, c_bool, free, handle_mut, path, text};
use super::status::{guard, tensorlend_status};
use std::ffi::{c_char, c_void};
use std::time::Duration;
use tensorlend::{Client, ClientBuilder, Error, Relief};

/// Options of a connection: daemon, namespace, label, limits.
pub struct tensorlend_options {
    pub(super) builder: ClientBuilder,
}

impl tensorlend_options {
    fn change(&mut self, how: impl FnOnce(ClientBuilder) -> ClientBuilder) {
        self.builder = how(std::mem::take(&mut self.builder));
    }
}

/// Creates default options. `tensorlend_options_free` frees them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_new(options: *mut *mut tensorlend_options) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on variables.
        let out = unsafe { Out::new(options, "options") }?;
        out.fill(tensorlend_options { builder: Client::builder() });
        Ok(())
    })
}

/// Frees options; NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_free(options: *mut tensorlend_options) {
    // SAFETY: the rule on handles.
    unsafe { free(options) };
}

/// Adds the socket of a daemon. If the program calls this several times, `tensorlend_connect` tries the sockets in that order.
/// Default: `$TENSORLEND_SOCKET`, else the user's daemon at `$XDG_RUNTIME_DIR/tensorlend.sock`, else the system's at
/// `/run/tensorlend/tensorlend.sock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_socket(
    options: *mut tensorlend_options,
    socket: *const c_char,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let (options, socket) = unsafe { (handle_mut(options, "options")?, path(socket, "the socket")?) };
        options.change(|builder| builder.socket(socket));
        Ok(())
    })
}

/// Sets the namespace to join, as the daemon's configuration names it. Default: the private namespace of this user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_namespace(
    options: *mut tensorlend_options,
    name: *const c_char,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let (options, name) = unsafe { (handle_mut(options, "options")?, text(name, "the namespace")?) };
        options.change(|builder| builder.namespace(name));
        Ok(())
    })
}

/// Sets the client's label in listings, of which the first 63 bytes are kept. Default: the program's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_label(
    options: *mut tensorlend_options,
    label: *const c_char,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let (options, label) = unsafe { (handle_mut(options, "options")?, text(label, "the label")?) };
        options.change(|builder| builder.label(label));
        Ok(())
    })
}

/// If `harden` is true, protects this process from other processes of the same user: from the connection on, none of them can
/// trace it, read or write its memory, or take its descriptors. The whole process has no core dumps then. Default: false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_harden(
    options: *mut tensorlend_options,
    harden: c_bool,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        unsafe { handle_mut(options, "options") }?.change(|builder| builder.harden(harden != 0));
        Ok(())
    })
}

/// Sets the timeout, in nanoseconds, of requests to this machine's gateway for which the call gives none: a `tensorlend_get` of
/// another machine's name, a `tensorlend_put_remote`. Default: 60 seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_remote_timeout(
    options: *mut tensorlend_options,
    timeout_ns: u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        let options = unsafe { handle_mut(options, "options") }?;
        options.change(|builder| builder.remote_timeout(Duration::from_nanos(timeout_ns)));
        Ok(())
    })
}

/// Sets the timeout, in nanoseconds, of requests to the daemon, after which a call fails with `TENSORLEND_DISCONNECTED`; at
/// least a millisecond. Default: 30 seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_request_timeout(
    options: *mut tensorlend_options,
    timeout_ns: u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        let options = unsafe { handle_mut(options, "options") }?;
        options.change(|builder| builder.request_timeout(Duration::from_nanos(timeout_ns)));
        Ok(())
    })
}

/// Sets the maximum number of bytes that this client may use. An allocation above it fails with `TENSORLEND_LIMIT`. Default:
/// only the daemon's limits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_memory_limit(
    options: *mut tensorlend_options,
    bytes: u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        unsafe { handle_mut(options, "options") }?.change(|builder| builder.memory_limit(bytes));
        Ok(())
    })
}

/// Counts allocations from the connection on: see `tensorlend_statistics_get`. Default: off.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_statistics(options: *mut tensorlend_options) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        unsafe { handle_mut(options, "options") }?.change(ClientBuilder::statistics);
        Ok(())
    })
}

/// Writes every allocation into this file, as CSV: see `tensorlend_log_start`. Default: `$TENSORLEND_ALLOC_LOG`, else
/// none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_log(
    options: *mut tensorlend_options,
    file: *const c_char,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let (options, file) = unsafe { (handle_mut(options, "options")?, path(file, "the file")?) };
        options.change(|builder| builder.allocation_log(file));
        Ok(())
    })
}

/// Tracks outstanding allocations: see `tensorlend_outstanding_get`. Default: off.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_tracking(options: *mut tensorlend_options) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        unsafe { handle_mut(options, "options") }?.change(ClientBuilder::tracking);
        Ok(())
    })
}

/// A function that the library calls before an allocation of `bytes` bytes fails at the client's or the daemon's memory limit.
/// `attempt` counts its calls for one allocation, from 1. The function may delete names, and free drafts except those that the
/// program has passed to the allocating call. It returns whether to try again.
// "C-unwind": an exception that leaves the callback then ends the process. With "C", it would be undefined behaviour.
pub type tensorlend_relief =
    Option<unsafe extern "C-unwind" fn(context: *mut c_void, bytes: u64, attempt: u32) -> c_bool>;

/// The caller's context of a callback.
struct Context(*mut c_void);

// SAFETY: the rule on callbacks: the callback may be called with it on any thread.
unsafe impl Send for Context {}
// SAFETY: the rule on callbacks: the callback may be called with it on several threads at a time.
unsafe impl Sync for Context {}

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Calls `relief` with `context` before an allocation fails. The callback runs on the allocating threads, on several at a time,
/// as long as the client or another handle that came from it lives. It may use the client; its own allocations fail without
/// another call. It must return: it must not throw an exception or call `longjmp`. Default: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_on_memory_pressure(
    options: *mut tensorlend_options,
    relief: tensorlend_relief,
    context: *mut c_void,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        let options = unsafe { handle_mut(options, "options") }?;
        let relief = relief.ok_or_else(|| Error::Argument("relief is NULL".into()))?;
        let context = Context(context);
        options.change(|builder| {
            builder.on_memory_pressure(move |pressure| {
                // SAFETY: the rule on callbacks: a function of this type, which takes this context.
                let again = unsafe { relief(context.get(), pressure.bytes(), pressure.attempt()) };
                if again != 0 { Relief::Retry } else { Relief::GiveUp }
            })
        });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{tensorlend_client_free, tensorlend_connect};
    use crate::draft::{tensorlend_create, tensorlend_draft_free};
    use crate::dtype::TENSORLEND_U8;
    use crate::instruments::{tensorlend_statistics_enable, tensorlend_statistics_get};
    use crate::status::tensorlend_status::{TENSORLEND_LIMIT, TENSORLEND_OK};
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::ptr::{null, null_mut};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Asks for another try twice, by a byte that is neither 0 nor 1.
    unsafe extern "C-unwind" fn relieve(asked: *mut c_void, _bytes: u64, attempt: u32) -> c_bool {
        // SAFETY: the test gives a counter that outlives the client.
        unsafe { &*asked.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
        if attempt < 3 { 0x80 } else { 0 }
    }

    #[test]
    fn every_byte_but_0_is_true() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let socket = CString::new(broker.socket().as_os_str().as_bytes()).unwrap();
        let asked = AtomicU32::new(0);
        let (mut options, mut client, mut draft) = (null_mut(), null_mut(), null_mut());
        let mut counted = std::mem::MaybeUninit::uninit();
        let size = 1 << 20;
        // SAFETY: every pointer points to an object of its type, and every handle is ended once.
        unsafe {
            assert_eq!(tensorlend_options_new(&raw mut options), TENSORLEND_OK);
            assert_eq!(tensorlend_options_socket(options, socket.as_ptr()), TENSORLEND_OK);
            assert_eq!(tensorlend_options_memory_limit(options, size / 2), TENSORLEND_OK);
            assert_eq!(tensorlend_options_harden(options, 0), TENSORLEND_OK);
            let context = (&raw const asked).cast_mut().cast();
            assert_eq!(tensorlend_options_on_memory_pressure(options, Some(relieve), context), TENSORLEND_OK);
            assert_eq!(tensorlend_connect(options, &raw mut client), TENSORLEND_OK);
            let refused = tensorlend_create(client, TENSORLEND_U8, 1, &raw const size, &raw mut draft);
            assert_eq!((refused, asked.load(Ordering::Relaxed)), (TENSORLEND_LIMIT, 3));
            assert_eq!(tensorlend_statistics_enable(client, 0x80), TENSORLEND_OK);
            assert_eq!(tensorlend_create(client, TENSORLEND_U8, 0, null(), &raw mut draft), TENSORLEND_OK);
            assert_eq!(tensorlend_statistics_get(client, counted.as_mut_ptr()), TENSORLEND_OK);
            assert_eq!(counted.assume_init().total_count, 1);
            tensorlend_draft_free(draft);
            tensorlend_client_free(client);
            tensorlend_options_free(options);
        }
    }
}
