//! The line that explains a fault in lent memory, in the words of C.

use super::status::{guard, tensorlend_status};
use tensorlend::{Error, Member, Value};
use tensorlend_os::fault::{self, Fault, Kind, Noted};

/// Describes a fault.
fn describe(fault: &Fault<'_>, line: &mut dyn std::fmt::Write) -> std::fmt::Result {
    fault.describe(line, "write to a copy (tensorlend_get_into, tensorlend_lease_copy), or publish a new value")
}

/// Explains faults in lent memory: a write to a leased tensor, which is read-only, and the use of a
/// parent's draft in a child. Before such a fault ends the process with SIGSEGV, the library prints
/// one line on standard error, with the tensor and the remedy. It explains leases and drafts that
/// the process creates after the call, and at most 8192 of them at a time.
///
/// The call installs a handler for SIGSEGV, which then calls the former one. Without the call, the
/// library installs no handler. Further calls do nothing. `TENSORLEND_SYSTEM` if the system refuses
/// the handler.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_explain_faults() -> tensorlend_status {
    guard(|| {
        if !fault::is_on() {
            fault::explain(describe).map_err(|cause| Error::System { doing: "install a handler of SIGSEGV", cause })?;
        }
        Ok(())
    })
}

/// Adds the tensors of a value in host memory to the table of faults, while the handler is on. `name` is the name by which the
/// value was found; empty if it has none.
pub(super) fn note_leased(value: &Value, name: &str) -> Vec<Noted> {
    if !fault::is_on() {
        return Vec::new();
    }
    let note =
        |bytes: &[u8], member: Option<&str>| fault::note(Kind::Leased, bytes.as_ptr(), bytes.len(), name, member);
    match value {
        Value::Tensor(tensor) => vec![note(tensor.bytes(), None)],
        Value::Dataset(dataset) => {
            let host = |(of, member): (&str, Member<'_>)| match member {
                Member::Host(tensor) => Some(note(tensor.bytes(), Some(of))),
                Member::Device(_) => None,
            };
            dataset.members().filter_map(host).collect()
        }
        _ => Vec::new(),
    }
}

/// Adds the memory of a draft to the table of faults, while the handler is on.
pub(super) fn note_draft(bytes: &[u8]) -> Noted {
    fault::note(Kind::Draft, bytes.as_ptr(), bytes.len(), "", None)
}
