//! Statuses of calls, and error messages.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tensorlend::{DeviceTrouble, Error, LimitKind, Refusal, RemoteTrouble};

/// The result of a call. The numbers are stable. Later versions may add more.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tensorlend_status {
    /// The call succeeded.
    TENSORLEND_OK = 0,
    /// There is no such name, stream or list.
    TENSORLEND_NOT_FOUND = 1,
    /// The timeout passed before the awaited event.
    TENSORLEND_TIMEOUT = 2,
    /// No daemon responds, or the daemon has disconnected or ended this session. Connect again.
    TENSORLEND_DISCONNECTED = 3,
    /// A limit of the daemon's configuration, of this client or of the machine is reached.
    TENSORLEND_LIMIT = 4,
    /// An argument is invalid, such as NULL, a bad name, a shape, a length, or a handle that is
    /// still in use.
    TENSORLEND_ARGUMENT = 5,
    /// The element type is one that tensorlend does not support.
    TENSORLEND_DTYPE = 6,
    /// The name has a dataset and the call needs a tensor, or the reverse.
    TENSORLEND_KIND = 7,
    /// The stream has ended.
    TENSORLEND_STREAM_ENDED = 8,
    /// The stream is full.
    TENSORLEND_FULL = 9,
    /// The parent of this process opened the client. Connect in the child.
    TENSORLEND_FORKED = 10,
    /// The daemon refuses the request. This user may not write, or may not join the namespace, or
    /// a client produces the stream already.
    TENSORLEND_REFUSED = 11,
    /// A system call failed.
    TENSORLEND_SYSTEM = 12,
    /// The value's record is invalid, because its publisher wrote it wrongly. Only values of that
    /// client are affected.
    TENSORLEND_DAMAGED = 13,
    /// The library, the daemon and the kernel are incompatible.
    TENSORLEND_INCOMPATIBLE = 14,
    /// A bug of this library. Free the handles of the failed call, and report the bug with the
    /// message.
    TENSORLEND_PANIC = 15,
    /// The name belongs to another machine, and that machine is unreachable or refuses. Or this
    /// machine's gateway does not respond.
    TENSORLEND_REMOTE = 16,
    /// The server refused the request, or could not carry it out. The error message contains the
    /// server's reason.
    TENSORLEND_REQUEST_FAILED = 17,
    /// The server ended before it responded. It may have carried the request out.
    TENSORLEND_SERVER_GONE = 18,
    /// There is no such device, or the daemon lends none of its memory. Or the driver failed, or a
    /// producer ended before its work was done.
    TENSORLEND_DEVICE = 19,
}

use tensorlend_status::{
    TENSORLEND_ARGUMENT, TENSORLEND_DAMAGED, TENSORLEND_DEVICE, TENSORLEND_DISCONNECTED, TENSORLEND_DTYPE,
    TENSORLEND_FORKED, TENSORLEND_FULL, TENSORLEND_INCOMPATIBLE, TENSORLEND_KIND, TENSORLEND_LIMIT,
    TENSORLEND_NOT_FOUND, TENSORLEND_OK, TENSORLEND_PANIC, TENSORLEND_REFUSED, TENSORLEND_REMOTE,
    TENSORLEND_REQUEST_FAILED, TENSORLEND_SERVER_GONE, TENSORLEND_STREAM_ENDED, TENSORLEND_SYSTEM, TENSORLEND_TIMEOUT,
};

/// The limit that a call has reached if it fails with TENSORLEND_LIMIT. The numbers are stable.
/// Later versions may add more.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "C's names for the numbers of LimitKind")]
pub enum tensorlend_limit {
    /// None, because the call failed for another reason.
    TENSORLEND_LIMIT_NONE = 0,
    /// pool.bytes_max: bytes of segments that all users together may have.
    TENSORLEND_LIMIT_POOL_BYTES = 1,
    /// A user's share of pool.bytes_max.
    TENSORLEND_LIMIT_POOL_SHARE = 2,
    /// pool.sheet_bytes_max: bytes of names and descriptors that all users together may have.
    TENSORLEND_LIMIT_SHEET_BYTES = 3,
    /// A user's share of pool.sheet_bytes_max.
    TENSORLEND_LIMIT_SHEET_SHARE = 4,
    /// bytes_max of a namespace, for its segments, names and descriptors.
    TENSORLEND_LIMIT_NAMESPACE_BYTES = 5,
    /// uid.bytes_max, for a user's segments, names and descriptors.
    TENSORLEND_LIMIT_USER_BYTES = 6,
    /// cuda.bytes_max, for the lent bytes of one device.
    TENSORLEND_LIMIT_DEVICE_BYTES = 7,
    /// A user's share of the memory of all devices.
    TENSORLEND_LIMIT_DEVICE_SHARE = 8,
    /// device_bytes_max of a namespace.
    TENSORLEND_LIMIT_NAMESPACE_DEVICE_BYTES = 9,
    /// uid.device_bytes_max of a user.
    TENSORLEND_LIMIT_USER_DEVICE_BYTES = 10,
    /// Descriptors that the daemon's process may have open (LimitNOFILE of its unit).
    TENSORLEND_LIMIT_DESCRIPTORS = 11,
    /// A user's share of the daemon's descriptors.
    TENSORLEND_LIMIT_DESCRIPTOR_SHARE = 12,
    /// uid.sessions_max: clients of one user that are connected.
    TENSORLEND_LIMIT_SESSIONS = 13,
    /// names_max of a namespace.
    TENSORLEND_LIMIT_NAMES = 14,
    /// A user's share of a namespace's names.
    TENSORLEND_LIMIT_NAME_SHARE = 15,
    /// Names of a namespace that are longer than 96 bytes. At most an eighth of names_max may be so
    /// long.
    TENSORLEND_LIMIT_LONG_NAMES = 16,
    /// Cells of one client. The maximum depends on names_max of its namespace.
    TENSORLEND_LIMIT_CELLS = 17,
    /// members_max of a namespace, for its clients and for disconnected clients whose tensors
    /// remain.
    TENSORLEND_LIMIT_MEMBERS = 18,
    /// A user's share of a namespace's members.
    TENSORLEND_LIMIT_MEMBER_SHARE = 19,
    /// segments_max of a namespace.
    TENSORLEND_LIMIT_SEGMENTS = 20,
    /// A user's share of a namespace's segments.
    TENSORLEND_LIMIT_SEGMENT_SHARE = 21,
    /// streams_max of a namespace.
    TENSORLEND_LIMIT_STREAMS = 22,
    /// A user's share of a namespace's streams.
    TENSORLEND_LIMIT_STREAM_SHARE = 23,
    /// lists_max of a namespace.
    TENSORLEND_LIMIT_LISTS = 24,
    /// A user's share of a namespace's lists.
    TENSORLEND_LIMIT_LIST_SHARE = 25,
    /// A user's share of a stream's subscribers.
    TENSORLEND_LIMIT_SUBSCRIBER_SHARE = 26,
    /// The daemon spills nothing, because [spill] has no directory.
    TENSORLEND_LIMIT_SPILL = 27,
    /// The client's own memory_limit.
    TENSORLEND_LIMIT_CLIENT_BYTES = 28,
    /// Leases that one client may hold.
    TENSORLEND_LIMIT_LEASES = 29,
    /// Subscriptions, callers and servers that one client may have open.
    TENSORLEND_LIMIT_CURSORS = 30,
    /// Files that the client's process may have open (ulimit -n).
    TENSORLEND_LIMIT_OPEN_FILES = 31,
    /// Memory of the machine.
    TENSORLEND_LIMIT_MACHINE_MEMORY = 32,
    /// Memory of a device, which has none left.
    TENSORLEND_LIMIT_DEVICE_MEMORY = 33,
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
    static LIMIT: Cell<Option<LimitKind>> = const { Cell::new(None) };
    /// The error code's seven bytes, and a zero byte.
    static CODE: Cell<[u8; 8]> = const { Cell::new([0; 8]) };
}

/// Returns the error message of this thread's last failed call: the event, the object and the
/// remedy. Never NULL; empty if no call has failed. The text is valid until another call of this
/// thread fails, so copy it to keep it.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_error_message() -> *const c_char {
    // A thread that is ending has lost its message.
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the stable code of this thread's last failed call, such as "TL-0301". The code is the
/// same in every language, and the manual's page on errors explains it. Never NULL; empty if no
/// call has failed. The text is valid until another call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_error_code() -> *const c_char {
    CODE.try_with(|code| code.as_ptr().cast_const().cast()).unwrap_or(c"".as_ptr())
}

/// Returns the limit that this thread's last failed call has reached, as a `tensorlend_limit`.
/// Returns 0 if the call failed for another reason, or no call has failed. Programs should decide
/// by this number, not by words of the message.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_error_limit() -> i32 {
    LIMIT.try_with(Cell::get).ok().flatten().map_or(0, |kind| kind.number().into())
}

/// Returns the name of a limit, such as "pool-bytes", or "unknown" for other numbers. Never NULL.
/// The text is valid until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_limit_name(limit: i32) -> *const c_char {
    limit_name(limit).as_ptr()
}

fn limit_name(limit: i32) -> &'static CStr {
    let kind = LimitKind::ALL.iter().find(|kind| i32::from(kind.number()) == limit);
    kind.map_or(c"unknown", |kind| kind.c_name())
}

/// Returns the name of a status, such as "not found", or "unknown" for other numbers. Never NULL.
/// The text is valid until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_status_name(status: i32) -> *const c_char {
    name(status).as_ptr()
}

fn name(status: i32) -> &'static CStr {
    const NAMES: [(tensorlend_status, &CStr); 20] = [
        (TENSORLEND_OK, c"ok"),
        (TENSORLEND_NOT_FOUND, c"not found"),
        (TENSORLEND_TIMEOUT, c"timeout"),
        (TENSORLEND_DISCONNECTED, c"disconnected"),
        (TENSORLEND_LIMIT, c"limit reached"),
        (TENSORLEND_ARGUMENT, c"bad argument"),
        (TENSORLEND_DTYPE, c"unknown element type"),
        (TENSORLEND_KIND, c"wrong kind"),
        (TENSORLEND_STREAM_ENDED, c"stream ended"),
        (TENSORLEND_FULL, c"stream full"),
        (TENSORLEND_FORKED, c"forked"),
        (TENSORLEND_REFUSED, c"refused"),
        (TENSORLEND_SYSTEM, c"system error"),
        (TENSORLEND_DAMAGED, c"damaged"),
        (TENSORLEND_INCOMPATIBLE, c"incompatible"),
        (TENSORLEND_PANIC, c"internal error"),
        (TENSORLEND_REMOTE, c"other machine"),
        (TENSORLEND_REQUEST_FAILED, c"request failed"),
        (TENSORLEND_SERVER_GONE, c"server gone"),
        (TENSORLEND_DEVICE, c"device error"),
    ];
    NAMES.iter().find(|(of, _)| *of as i32 == status).map_or(c"unknown", |(_, name)| name)
}

/// The reason why a call failed.
pub enum Fault {
    /// An error of the client library.
    Client(Error),
    /// An element type that the client library does not support.
    DType(u32),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

/// Returns the status of an error.
#[deny(
    clippy::wildcard_enum_match_arm,
    clippy::match_wildcard_for_single_variants,
    reason = "a new kind of error needs a status of its own"
)]
fn status_of(error: &Error) -> tensorlend_status {
    match error {
        Error::NotFound(_) | Error::NoSuch { .. } | Error::Remote { cause: RemoteTrouble::Nothing { .. }, .. } => {
            TENSORLEND_NOT_FOUND
        }
        Error::Timeout { .. } => TENSORLEND_TIMEOUT,
        Error::NoDaemon { .. } | Error::Disconnected { .. } | Error::NotAnswering { .. } | Error::SessionEnded => {
            TENSORLEND_DISCONNECTED
        }
        Error::Descriptors { .. } | Error::MemoryLimit { .. } | Error::Leases(_) | Error::Cursors(_) => {
            TENSORLEND_LIMIT
        }
        Error::Name { .. }
        | Error::Tensor { .. }
        | Error::Length { .. }
        | Error::Strided
        | Error::Metadata(_)
        | Error::Argument(_) => TENSORLEND_ARGUMENT,
        Error::DType { .. } => TENSORLEND_DTYPE,
        Error::Kind { .. } => TENSORLEND_KIND,
        Error::StreamEnded(_) => TENSORLEND_STREAM_ENDED,
        Error::StreamFull(_) => TENSORLEND_FULL,
        Error::Answer { .. } => TENSORLEND_REQUEST_FAILED,
        Error::ServerGone(_) => TENSORLEND_SERVER_GONE,
        Error::Remote { .. } => TENSORLEND_REMOTE,
        Error::Forked => TENSORLEND_FORKED,
        Error::System { .. } => TENSORLEND_SYSTEM,
        Error::Device { cause: DeviceTrouble::Memory(_), .. } => TENSORLEND_LIMIT,
        Error::Device { .. } => TENSORLEND_DEVICE,
        Error::Damaged { .. } => TENSORLEND_DAMAGED,
        Error::Kernel(_) | Error::Protocol { .. } | Error::Sheet(_) => TENSORLEND_INCOMPATIBLE,
        Error::Refused { refusal, .. } => status_of_refusal(refusal),
        // The compiler requires this arm. clippy reports an error that only this arm matches.
        _ => TENSORLEND_PANIC,
    }
}

fn status_of_refusal(refusal: &Refusal) -> tensorlend_status {
    match refusal {
        Refusal::Limit { .. } | Refusal::Memory { .. } => TENSORLEND_LIMIT,
        Refusal::NotFound(_) => TENSORLEND_NOT_FOUND,
        Refusal::Protocol { .. } | Refusal::Layout { .. } => TENSORLEND_INCOMPATIBLE,
        Refusal::Stopping | Refusal::Violation(_) => TENSORLEND_DISCONNECTED,
        _ => TENSORLEND_REFUSED,
    }
}

fn tell(status: tensorlend_status, code: &str, limit: Option<LimitKind>, text: String) -> tensorlend_status {
    let mut bytes = [0; 8];
    bytes[..code.len().min(7)].copy_from_slice(&code.as_bytes()[..code.len().min(7)]);
    let _ = CODE.try_with(|kept| kept.set(bytes));
    let _ = LIMIT.try_with(|kept| kept.set(limit));
    // A message contains a zero byte only if it quotes a name that another process wrote.
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let _ = MESSAGE.try_with(|message| message.replace(text));
    status
}

/// The code for a bug of this library.
const PANIC: &str = "TL-0907";

fn of_panic(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a fault of tensorlend itself: {}", words.unwrap_or("no message"))
}

/// Runs the body of a call that can fail.
pub fn guard(body: impl FnOnce() -> Result<(), Fault>) -> tensorlend_status {
    // After a panic, only the call's handles may be inconsistent. The contract requires that the
    // caller frees them.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => TENSORLEND_OK,
        Ok(Err(Fault::Client(error))) => tell(status_of(&error), error.code(), error.limit_kind(), error.to_string()),
        Ok(Err(Fault::DType(number))) => tell(
            TENSORLEND_DTYPE,
            "TL-0308",
            None,
            format!(
                "no element type has code {}, {} bits and {} lanes: use one of the TENSORLEND_ constants",
                number & 0xff,
                number >> 8 & 0xff,
                number >> 16
            ),
        ),
        Err(panic) => tell(TENSORLEND_PANIC, PANIC, None, of_panic(&*panic)),
    }
}

/// Runs the body of a call that has no status. Returns `otherwise` if the body returns nothing or
/// panics.
pub fn look<T>(otherwise: T, body: impl FnOnce() -> Option<T>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(found) => found.unwrap_or(otherwise),
        Err(panic) => {
            tell(TENSORLEND_PANIC, PANIC, None, of_panic(&*panic));
            otherwise
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::TENSORLEND_ABI;

    fn message() -> String {
        // SAFETY: the message ends with a zero byte and stays until this thread fails again.
        unsafe { CStr::from_ptr(tensorlend_error_message()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_ends_here() {
        assert_eq!(guard(|| panic!("half {}", "done")), TENSORLEND_PANIC);
        assert_eq!(message(), "a fault of tensorlend itself: half done");
        assert_eq!(look(7, || panic!("again")), 7);
        assert_eq!(message(), "a fault of tensorlend itself: again");
    }

    #[test]
    fn a_message_belongs_to_its_thread_and_stays() {
        assert_eq!(guard(|| Err(Error::NotFound("a\0b".into()).into())), TENSORLEND_NOT_FOUND);
        assert_eq!(guard(|| Ok(())), TENSORLEND_OK);
        std::thread::spawn(|| assert_eq!(message(), "")).join().unwrap();
        assert!(message().contains("there is no tensor named"), "{}", message());
    }

    #[test]
    fn every_status_has_a_name_of_its_own() {
        let names: std::collections::HashSet<_> = (0..20).map(name).collect();
        assert_eq!((names.len(), names.contains(c"unknown")), (20, false));
        assert_eq!((name(20), name(-1)), (c"unknown", c"unknown"));
    }

    #[test]
    fn the_code_is_that_of_the_last_failure() {
        // SAFETY: the code ends with a zero byte and stays until this thread fails again.
        let code = || unsafe { CStr::from_ptr(tensorlend_error_code()) }.to_str().unwrap().to_owned();
        assert_eq!(code(), "");
        assert_eq!(guard(|| Err(Error::NotFound("x".into()).into())), TENSORLEND_NOT_FOUND);
        assert_eq!(guard(|| Ok(())), TENSORLEND_OK);
        assert_eq!(code(), "TL-0301");
        assert_eq!(guard(|| panic!("x")), TENSORLEND_PANIC);
        assert_eq!(code(), PANIC);
    }

    /// The list of the interface has the header's lines, which are generated from the enum above.
    #[test]
    fn limits_have_the_same_numbers_and_names_in_c() {
        let list = format!("{}/abi/tensorlend.{TENSORLEND_ABI}.txt", env!("CARGO_MANIFEST_DIR"));
        let listed = std::fs::read_to_string(list).unwrap();
        for kind in LimitKind::ALL {
            let constant = kind.name().to_uppercase().replace('-', "_");
            let line = format!("enum tensorlend_limit: TENSORLEND_LIMIT_{constant} = {}\n", kind.number());
            assert!(listed.contains(&line), "{line}");
            assert_eq!(limit_name(kind.number().into()).to_str(), Ok(kind.name()));
        }
        assert_eq!((limit_name(0), limit_name(-1)), (c"unknown", c"unknown"));
    }

    #[test]
    fn a_limit_stays_until_another_call_fails() {
        assert_eq!(tensorlend_error_limit(), 0);
        assert_eq!(guard(|| Err(Error::Leases(4096).into())), TENSORLEND_LIMIT);
        assert_eq!(guard(|| Ok(())), TENSORLEND_OK);
        assert_eq!(tensorlend_error_limit(), tensorlend_limit::TENSORLEND_LIMIT_LEASES as i32);
        assert_eq!(guard(|| Err(Error::Forked.into())), TENSORLEND_FORKED);
        assert_eq!(tensorlend_error_limit(), 0);
    }
}
