//! The daemon's metrics.

use super::arguments::{c_text, call, free, look};
use super::client::tensorlend_client;
use super::status::tensorlend_status;
use std::ffi::{CString, c_char};
use std::ptr::{from_ref, null};

/// The daemon's metrics, borrowed from their handle. Only the library creates these structures.
/// Later versions may add fields at the end.
#[repr(C)]
pub struct tensorlend_figures {
    /// Version of the daemon.
    pub version: *const c_char,
    /// "system" or "user".
    pub mode: *const c_char,
    /// Time since the daemon started, in nanoseconds.
    pub uptime_ns: u64,
    /// Maximum number of bytes of the pool.
    pub pool_bytes_max: u64,
    /// Bytes of all segments: lent, spare and idle.
    pub pool_bytes: u64,
    /// Bytes of segments that are lent, or whose owner has disconnected.
    pub bytes_in_use: u64,
    /// Bytes of spare segments, ready to lend.
    pub bytes_spare: u64,
    /// Bytes of names and descriptors that clients and the daemon share.
    pub bytes_sheets: u64,
    /// Names in all namespaces.
    pub names: u64,
    /// Names whose time to live ended.
    pub names_expired: u64,
    /// Ephemeral names that ended with their producers' sessions.
    pub names_ephemeral_gone: u64,
    /// Sessions that the daemon ended because memory was short and their leases kept replaced values in use.
    pub sessions_revoked: u64,
    /// Requests to which the daemon responded.
    pub requests: u64,
    /// Requests that the daemon refused.
    pub refusals: u64,
    /// Wakeups of the daemon.
    pub wakeups: u64,
    /// Process id of the daemon.
    pub pid: u32,
    /// Segments lent.
    pub segments: u32,
    /// Clients connected.
    pub clients: u32,
    /// Disconnected clients whose tensors remain.
    pub frozen: u32,
    /// Bytes of segments that the daemon has spilled to files because memory was short.
    pub bytes_spilled: u64,
    /// Files of spilled segments that could not be written or read.
    pub spill_failures: u64,
    /// Requests refused because a limit of the configuration or of the machine was reached.
    pub refusals_limit: u64,
    /// Requests refused that the daemon never grants, because they are damaged or impossible, or
    /// the client lacks the rights.
    pub refusals_invalid: u64,
    /// Requests refused because another client or the daemon acted first.
    pub refusals_race: u64,
}

/// A snapshot of the daemon's metrics. `tensorlend_stat_free` frees it.
pub struct tensorlend_stat {
    figures: tensorlend_figures,
    /// The texts to which the metrics point.
    texts: [CString; 2],
}

/// Requests the daemon's metrics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stat_get(
    client: *const tensorlend_client,
    stat: *mut *mut tensorlend_stat,
) -> tensorlend_status {
    call!(|stat: out, client: handle| {
        let it = client.client.stat()?;
        let texts = [c_text(&it.version), c_text(&it.mode)];
        let figures = tensorlend_figures {
            version: null(),
            mode: null(),
            uptime_ns: it.uptime_ns,
            pool_bytes_max: it.pool_bytes_max,
            pool_bytes: it.pool_bytes,
            bytes_in_use: it.bytes_in_use,
            bytes_spare: it.bytes_spare,
            bytes_sheets: it.bytes_sheets,
            names: it.names,
            names_expired: it.names_expired,
            names_ephemeral_gone: it.names_ephemeral_gone,
            sessions_revoked: it.sessions_revoked,
            requests: it.requests,
            refusals: it.refusals.total(),
            wakeups: it.wakeups,
            pid: it.pid,
            segments: it.segments,
            clients: it.clients,
            frozen: it.frozen,
            bytes_spilled: it.bytes_spilled,
            spill_failures: it.spill_failures,
            refusals_limit: it.refusals.limit,
            refusals_invalid: it.refusals.invalid,
            refusals_race: it.refusals.race,
        };
        let mut filled = Box::new(tensorlend_stat { figures, texts });
        filled.figures.version = filled.texts[0].as_ptr();
        filled.figures.mode = filled.texts[1].as_ptr();
        stat.fill_boxed(filled);
    })
}

/// The metrics, borrowed; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stat_figures(stat: *const tensorlend_stat) -> *const tensorlend_figures {
    look!(null(), |stat: handle| Some(from_ref(&stat.figures)))
}

/// Frees the metrics. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stat_free(stat: *mut tensorlend_stat) {
    free!(stat);
}
