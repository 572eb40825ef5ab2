//! Options of a connection.

use super::arguments::{c_bool, call, free, null};
use super::status::tensorlend_status;
use std::ffi::{c_char, c_void};
use std::time::Duration;
use tensorlend::{Client, ClientBuilder, Relief};

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
    call!(|options: out| options.fill(tensorlend_options { builder: Client::builder() }))
}

/// Frees options. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_free(options: *mut tensorlend_options) {
    free!(options);
}

/// Adds the socket of a daemon. If the program adds several sockets, `tensorlend_connect` tries
/// them in that order. Default: `$TENSORLEND_SOCKET`, else the user's daemon, else
/// the system's daemon at `/run/tensorlend/tensorlend.sock`. Without this option, `tensorlend_connect`
/// starts the user's daemon if none responds, unless `$TENSORLEND_AUTOSTART` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_socket(
    options: *mut tensorlend_options,
    socket: *const c_char,
) -> tensorlend_status {
    call!(|options: handle_mut, socket: path| options.change(|builder| builder.socket(socket)))
}

/// Sets the namespace to join, as the daemon's configuration names it. Default: the private namespace of this user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_namespace(
    options: *mut tensorlend_options,
    name: *const c_char,
) -> tensorlend_status {
    call!(|options: handle_mut, name: text| options.change(|builder| builder.namespace(name)))
}

/// Sets the client's label in listings. Only its first 63 bytes are used. Default: the program's
/// name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_label(
    options: *mut tensorlend_options,
    label: *const c_char,
) -> tensorlend_status {
    call!(|options: handle_mut, label: text| options.change(|builder| builder.label(label)))
}

/// If `harden` is true, protects this process from other processes of the same user. From the
/// connection on, they cannot trace the process, read or write its memory, or take its descriptors.
/// The process then writes no core dumps. Default: false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_harden(
    options: *mut tensorlend_options,
    harden: c_bool,
) -> tensorlend_status {
    call!(|options: handle_mut| options.change(|builder| builder.harden(harden != 0)))
}

/// Sets the timeout, in nanoseconds, of requests to this machine's gateway. It applies to calls
/// without a timeout argument, such as `tensorlend_get` of another machine's name, and
/// `tensorlend_put_remote`. Default: 60 seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_remote_timeout(
    options: *mut tensorlend_options,
    timeout_ns: u64,
) -> tensorlend_status {
    call!(|options: handle_mut| options.change(|builder| builder.remote_timeout(Duration::from_nanos(timeout_ns))))
}

/// Sets the timeout, in nanoseconds, of requests to the daemon, at least a millisecond. After this
/// time a call fails with `TENSORLEND_DISCONNECTED`. Default: 30 seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_request_timeout(
    options: *mut tensorlend_options,
    timeout_ns: u64,
) -> tensorlend_status {
    call!(|options: handle_mut| options.change(|builder| builder.request_timeout(Duration::from_nanos(timeout_ns))))
}

/// Sets the maximum number of bytes that this client may use. An allocation above this limit fails
/// with `TENSORLEND_LIMIT`. Default: only the daemon's limits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_memory_limit(
    options: *mut tensorlend_options,
    bytes: u64,
) -> tensorlend_status {
    call!(|options: handle_mut| options.change(|builder| builder.memory_limit(bytes)))
}

/// Counts allocations from the connection on. `tensorlend_statistics_get` reads the statistics.
/// Default: off.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_statistics(options: *mut tensorlend_options) -> tensorlend_status {
    call!(|options: handle_mut| options.change(ClientBuilder::statistics))
}

/// Writes every allocation into this file as CSV, as `tensorlend_log_start` does. Default:
/// `$TENSORLEND_ALLOC_LOG`, else none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_log(
    options: *mut tensorlend_options,
    file: *const c_char,
) -> tensorlend_status {
    call!(|options: handle_mut, file: path| options.change(|builder| builder.allocation_log(file)))
}

/// Tracks outstanding allocations, which `tensorlend_outstanding_get` reports. Default: off.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_tracking(options: *mut tensorlend_options) -> tensorlend_status {
    call!(|options: handle_mut| options.change(ClientBuilder::tracking))
}

/// A function that the library calls before an allocation of `bytes` bytes fails at the client's or
/// the daemon's memory limit. `attempt` is 1 for the first call for the allocation, and 2 for the
/// second. The function may delete names. It may also free drafts, except those that the program has
/// passed to the allocating call. It returns whether to try again.
// With "C-unwind", an exception that leaves the callback ends the process. With "C", such an
// exception would be undefined behavior.
pub type tensorlend_relief =
    Option<unsafe extern "C-unwind" fn(context: *mut c_void, bytes: u64, attempt: u32) -> c_bool>;

/// The caller's context of a callback.
struct Context(*mut c_void);

// SAFETY: by the rule on callbacks, the callback may be called with this context on any thread.
unsafe impl Send for Context {}
// SAFETY: by the rule on callbacks, the callback may be called with this context on several threads
// at a time.
unsafe impl Sync for Context {}

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Calls `relief` with `context` before an allocation fails. The callback runs on the allocating
/// threads, on several at a time. It may run as long as the client or another handle that came from
/// the client lives. It may use the client. Allocations of the callback itself fail without another
/// call of `relief`. The callback must return. It must not throw an exception or call `longjmp`.
/// Default: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_options_on_memory_pressure(
    options: *mut tensorlend_options,
    relief: tensorlend_relief,
    context: *mut c_void,
) -> tensorlend_status {
    call!(|options: handle_mut| {
        let relief = relief.ok_or_else(|| null("relief"))?;
        let context = Context(context);
        options.change(|builder| {
            builder.on_memory_pressure(move |pressure| {
                // SAFETY: by the rule on callbacks, `relief` is a function of this type that takes
                // this context.
                let again = unsafe { relief(context.get(), pressure.bytes(), pressure.attempt()) };
                if again != 0 { Relief::Retry } else { Relief::GiveUp }
            })
        });
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
