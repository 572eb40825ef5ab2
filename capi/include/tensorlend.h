/* The C interface of tensorlend: tensors in shared memory, lent between processes without a copy.
 *
 * This file is generated: docs/c.md is the guide, capi/src the source.
 *
 * Every call that can fail returns a tensorlend_status, and tensorlend_error_message() returns the
 * event, the object and the remedy. A variable that a call fills with a handle is NULL if the call
 * fails. NULL for a required argument is an error, never a crash; comments name the arguments that
 * may be NULL.
 *
 * Who frees what:
 *   - A handle that a call puts into a variable of yours is yours: end it with the function named
 *     after it (_free, _close). These take NULL.
 *   - A DLPack tensor that a call puts into a variable of yours is freed by tensorlend_dlpack_free,
 *     or by the library to which you pass it.
 *   - A pointer that a call returns, with the memory behind it, is borrowed from the handle that was
 *     given: it is valid until that handle is ended. Never free it.
 *   - A call that takes a handle over gets the address of your variable, and sets that to NULL once
 *     it has. A handle that is still there is yours. So a program may end all of its variables when
 *     it is done, whether calls failed or not.
 *   - Nothing checks that a handle was not ended before: end each once, and keep no copy of its pointer.
 *
 * Threads: a client, a lease, a stream, a history, and what only describes (leases, a listing,
 * devices, metrics) may be used by several threads at once; options, a draft, a subscription, a
 * caller, a server, a request, a model and its request by one at a time. End a handle only when no
 * thread uses it.
 *
 * Exceptions: none leaves the library: a fault of its own is TENSORLEND_PANIC. None may enter it: an
 * exception that leaves a callback ends the process.
 *
 * Signals: nothing here may be called in a signal handler, and no thread may be cancelled
 * (pthread_cancel) or left by longjmp while it is in a call. The library's own threads take no
 * signals.
 *
 * Memory: other processes write what you read. A producer that is broken or hostile may change
 * elements at any time, also while you read them; shapes, sizes and names are checked copies.
 *
 * Fork: the parent's handles stay the parent's. In the child, calls on them fail with
 * TENSORLEND_FORKED, borrowed data must not be touched, and handles may be ended; connect again.
 */


#ifndef TENSORLEND_H
#define TENSORLEND_H

#include <stdbool.h>
#include <stdint.h>

/* DLPack's structure, as <dlpack/dlpack.h> defines it: include that to look inside. */
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;

/**
 * Number of this binary interface, and of the shared library: libtensorlend.so.0. It is raised when a function, a
 * constant or a field is removed or changed.
 */
#define TENSORLEND_ABI 0

/**
 * Flag of tensorlend_publish_for: the name ends with this client's session.
 */
#define TENSORLEND_EPHEMERAL 1

/**
 * Flag of tensorlend_subscribe: the subscription has a descriptor for poll and epoll.
 */
#define TENSORLEND_POLLABLE 1

/**
 * The result of a call. The numbers are stable; others may be added.
 */
enum tensorlend_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Done.
     */
    TENSORLEND_OK = 0,
    /**
     * There is no such name, stream or list.
     */
    TENSORLEND_NOT_FOUND = 1,
    /**
     * The timeout passed before the awaited event.
     */
    TENSORLEND_TIMEOUT = 2,
    /**
     * No daemon responds, or it has disconnected or ended this session: connect again.
     */
    TENSORLEND_DISCONNECTED = 3,
    /**
     * A limit of the daemon's configuration, of this client or of the machine is reached.
     */
    TENSORLEND_LIMIT = 4,
    /**
     * An invalid argument: NULL, a bad name, a shape, a length, a handle that is still in use.
     */
    TENSORLEND_ARGUMENT = 5,
    /**
     * An element type that tensorlend does not know.
     */
    TENSORLEND_DTYPE = 6,
    /**
     * The name has a dataset and the call wants a tensor, or the reverse.
     */
    TENSORLEND_KIND = 7,
    /**
     * The stream has ended.
     */
    TENSORLEND_STREAM_ENDED = 8,
    /**
     * The stream is full.
     */
    TENSORLEND_FULL = 9,
    /**
     * The client was opened by the parent of this process: connect in the child.
     */
    TENSORLEND_FORKED = 10,
    /**
     * The daemon refuses the request: this user may not write, or may not join the namespace; or another client produces the
     * stream.
     */
    TENSORLEND_REFUSED = 11,
    /**
     * A system call failed.
     */
    TENSORLEND_SYSTEM = 12,
    /**
     * The value's record is invalid: its publisher wrote it wrongly. Only values of that client are affected.
     */
    TENSORLEND_DAMAGED = 13,
    /**
     * Library, daemon and kernel are incompatible.
     */
    TENSORLEND_INCOMPATIBLE = 14,
    /**
     * A bug of this library. Free the handles involved, and report it with the message.
     */
    TENSORLEND_PANIC = 15,
    /**
     * The name belongs to another machine, and that machine is unreachable or refuses; or this machine's gateway does not
     * answer.
     */
    TENSORLEND_REMOTE = 16,
    /**
     * The server refused the request, or could not carry it out: the error message has the server's reason.
     */
    TENSORLEND_REQUEST_FAILED = 17,
    /**
     * The server ended before it responded. It may have carried the request out.
     */
    TENSORLEND_SERVER_GONE = 18,
    /**
     * There is no such device, or the daemon lends none of its memory; or the driver failed, or a producer ended before its
     * work was done.
     */
    TENSORLEND_DEVICE = 19,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum tensorlend_status tensorlend_status;
#else
typedef int32_t tensorlend_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The kind of a value.
 */
enum tensorlend_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * One tensor.
     */
    TENSORLEND_KIND_TENSOR = 0,
    /**
     * Several tensors, published together.
     */
    TENSORLEND_KIND_DATASET = 1,
    /**
     * A stream.
     */
    TENSORLEND_KIND_STREAM = 2,
    /**
     * A list.
     */
    TENSORLEND_KIND_LIST = 3,
    /**
     * One tensor in a device's memory.
     */
    TENSORLEND_KIND_DEVICE_TENSOR = 4,
    /**
     * A model.
     */
    TENSORLEND_KIND_MODEL = 5,
    /**
     * A machine.
     */
    TENSORLEND_KIND_NODE = 6,
    /**
     * A value that cannot be described.
     */
    TENSORLEND_KIND_UNKNOWN = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum tensorlend_kind tensorlend_kind;
#else
typedef int32_t tensorlend_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The behaviour of a full stream whose oldest message a subscriber has not taken.
 */
enum tensorlend_policy
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Sending waits.
     */
    TENSORLEND_POLICY_BLOCK = 0,
    /**
     * The oldest message is replaced: the subscriber loses it, and can read how many it lost.
     */
    TENSORLEND_POLICY_DROP_OLDEST = 1,
    /**
     * Sending fails with TENSORLEND_FULL.
     */
    TENSORLEND_POLICY_ERROR = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum tensorlend_policy tensorlend_policy;
#else
typedef int32_t tensorlend_policy;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The first message of a subscription.
 */
enum tensorlend_start
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The newest message of the stream.
     */
    TENSORLEND_START_NEWEST = 0,
    /**
     * The oldest message that the stream still has.
     */
    TENSORLEND_START_OLDEST = 1,
    /**
     * The next message that the producer sends.
     */
    TENSORLEND_START_NEXT = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum tensorlend_start tensorlend_start;
#else
typedef int32_t tensorlend_start;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The comparison of a list's length for which a call waits.
 */
enum tensorlend_length
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Exactly this many items.
     */
    TENSORLEND_LENGTH_EXACTLY = 0,
    /**
     * This many items or more.
     */
    TENSORLEND_LENGTH_AT_LEAST = 1,
    /**
     * This many items or fewer.
     */
    TENSORLEND_LENGTH_AT_MOST = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum tensorlend_length tensorlend_length;
#else
typedef int32_t tensorlend_length;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The limit that was reached, where a call fails with TENSORLEND_LIMIT. The numbers are stable; others may be added.
 */
enum tensorlend_limit
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * None: the call failed for another reason.
     */
    TENSORLEND_LIMIT_NONE = 0,
    /**
     * pool.bytes_max: bytes of segments that all users together may have.
     */
    TENSORLEND_LIMIT_POOL_BYTES = 1,
    /**
     * A user's share of pool.bytes_max.
     */
    TENSORLEND_LIMIT_POOL_SHARE = 2,
    /**
     * pool.sheet_bytes_max: bytes of names and descriptors that all users together may have.
     */
    TENSORLEND_LIMIT_SHEET_BYTES = 3,
    /**
     * A user's share of pool.sheet_bytes_max.
     */
    TENSORLEND_LIMIT_SHEET_SHARE = 4,
    /**
     * bytes_max of a namespace: its segments, names and descriptors.
     */
    TENSORLEND_LIMIT_NAMESPACE_BYTES = 5,
    /**
     * uid.bytes_max: a user's segments, names and descriptors.
     */
    TENSORLEND_LIMIT_USER_BYTES = 6,
    /**
     * cuda.bytes_max: bytes that are lent of one device.
     */
    TENSORLEND_LIMIT_DEVICE_BYTES = 7,
    /**
     * A user's share of the memory of all devices.
     */
    TENSORLEND_LIMIT_DEVICE_SHARE = 8,
    /**
     * device_bytes_max of a namespace.
     */
    TENSORLEND_LIMIT_NAMESPACE_DEVICE_BYTES = 9,
    /**
     * uid.device_bytes_max.
     */
    TENSORLEND_LIMIT_USER_DEVICE_BYTES = 10,
    /**
     * Descriptors that the daemon's process may have open (LimitNOFILE of its unit).
     */
    TENSORLEND_LIMIT_DESCRIPTORS = 11,
    /**
     * A user's share of the daemon's descriptors.
     */
    TENSORLEND_LIMIT_DESCRIPTOR_SHARE = 12,
    /**
     * uid.sessions_max: clients of one user that are connected.
     */
    TENSORLEND_LIMIT_SESSIONS = 13,
    /**
     * names_max of a namespace.
     */
    TENSORLEND_LIMIT_NAMES = 14,
    /**
     * A user's share of a namespace's names.
     */
    TENSORLEND_LIMIT_NAME_SHARE = 15,
    /**
     * Names of a namespace longer than 96 bytes: an eighth of its names_max.
     */
    TENSORLEND_LIMIT_LONG_NAMES = 16,
    /**
     * Cells of one client, by names_max of its namespace.
     */
    TENSORLEND_LIMIT_CELLS = 17,
    /**
     * members_max of a namespace: its clients, and those that left tensors.
     */
    TENSORLEND_LIMIT_MEMBERS = 18,
    /**
     * A user's share of a namespace's members.
     */
    TENSORLEND_LIMIT_MEMBER_SHARE = 19,
    /**
     * segments_max of a namespace.
     */
    TENSORLEND_LIMIT_SEGMENTS = 20,
    /**
     * A user's share of a namespace's segments.
     */
    TENSORLEND_LIMIT_SEGMENT_SHARE = 21,
    /**
     * streams_max of a namespace.
     */
    TENSORLEND_LIMIT_STREAMS = 22,
    /**
     * A user's share of a namespace's streams.
     */
    TENSORLEND_LIMIT_STREAM_SHARE = 23,
    /**
     * lists_max of a namespace.
     */
    TENSORLEND_LIMIT_LISTS = 24,
    /**
     * A user's share of a namespace's lists.
     */
    TENSORLEND_LIMIT_LIST_SHARE = 25,
    /**
     * A user's share of a stream's subscribers.
     */
    TENSORLEND_LIMIT_SUBSCRIBER_SHARE = 26,
    /**
     * The daemon spills nothing: [spill] has no directory.
     */
    TENSORLEND_LIMIT_SPILL = 27,
    /**
     * The client's own memory_limit.
     */
    TENSORLEND_LIMIT_CLIENT_BYTES = 28,
    /**
     * Leases that one client may hold.
     */
    TENSORLEND_LIMIT_LEASES = 29,
    /**
     * Subscriptions, callers and servers that one client may have open.
     */
    TENSORLEND_LIMIT_CURSORS = 30,
    /**
     * Files that the client's process may have open (ulimit -n).
     */
    TENSORLEND_LIMIT_OPEN_FILES = 31,
    /**
     * Memory of the machine.
     */
    TENSORLEND_LIMIT_MACHINE_MEMORY = 32,
    /**
     * Memory of a device, which has none left.
     */
    TENSORLEND_LIMIT_DEVICE_MEMORY = 33,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum tensorlend_limit tensorlend_limit;
#else
typedef int32_t tensorlend_limit;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A caller of one service: sends requests to the service's servers and receives their responses. One thread at a time
 * uses it; open one for each thread. tensorlend_caller_close ends it.
 */
typedef struct tensorlend_caller tensorlend_caller;

/**
 * A session with the daemon, in one namespace. Any thread may use it, several at a time. Published tensors outlive the
 * session.
 */
typedef struct tensorlend_client tensorlend_client;

/**
 * Devices whose memory the daemon lends. tensorlend_devices_free frees them.
 */
typedef struct tensorlend_devices tensorlend_devices;

/**
 * A tensor, or a dataset of several, that the program writes where its readers will read it. Other clients see it once
 * it is published, sent or appended. One thread at a time uses it.
 *
 * Calls that publish, send or append a draft take it over: they get the address of the variable that holds the draft, and set
 * the variable to NULL as soon as the draft is no longer the caller's, even if the call fails afterwards.
 * tensorlend_draft_free frees a draft that was not taken over.
 */
typedef struct tensorlend_draft tensorlend_draft;

/**
 * The producer's handle of a name that keeps its last values. Any thread may use it. tensorlend_history_close frees
 * it.
 */
typedef struct tensorlend_history tensorlend_history;

/**
 * The right to read a tensor or a dataset in place. While the lease lives, its memory is not reused, even if the name,
 * the producer or the daemon ends. Any thread may use it, several at a time. tensorlend_lease_free ends it.
 */
typedef struct tensorlend_lease tensorlend_lease;

/**
 * An ordered list of leases. tensorlend_leases_free ends all of them.
 */
typedef struct tensorlend_leases tensorlend_leases;

/**
 * Entries, sorted by name. tensorlend_listing_free frees them.
 */
typedef struct tensorlend_listing tensorlend_listing;

/**
 * A connection to the runners of one model. One thread at a time uses it; open one for each thread.
 * tensorlend_model_close ends it.
 */
typedef struct tensorlend_model tensorlend_model;

/**
 * A request to a model: its inputs, and the destinations of its outputs. One thread at a time uses it. tensorlend_model_run
 * takes it over; tensorlend_model_request_free frees one that was not taken over.
 */
typedef struct tensorlend_model_request tensorlend_model_request;

/**
 * Options of a connection: daemon, namespace, label, limits.
 */
typedef struct tensorlend_options tensorlend_options;

/**
 * The allocations of a client that are not freed, at one moment. tensorlend_outstanding_free frees it.
 */
typedef struct tensorlend_outstanding tensorlend_outstanding;

/**
 * A queue: many producers, many consumers, and each item goes to one consumer. Any thread may use it. tensorlend_queue_free
 * frees the handle; the queue and its items remain. Its items are those of the list with its name, so tensorlend_list_clear
 * deletes it.
 */
typedef struct tensorlend_queue tensorlend_queue;

/**
 * An item that this consumer has claimed: a lease on its value, and the right to confirm it. No other consumer gets the item
 * until it is given back. If the consumer's process ends before it confirms the item, another consumer gets it. One thread
 * at a time uses the handle.
 *
 * tensorlend_queue_item_done and tensorlend_queue_item_give_back take it over, and set the caller's variable to NULL.
 * tensorlend_queue_item_free gives an item back that was not taken over.
 */
typedef struct tensorlend_queue_item tensorlend_queue_item;

/**
 * A request that a server received: a lease on its value, and the right to respond once. Any thread may respond, but only one
 * thread at a time uses the handle. A program may respond to its requests in any order. A request may outlive the server's
 * handle.
 *
 * tensorlend_request_respond and tensorlend_request_fail take it over, and set the caller's variable to NULL.
 * tensorlend_request_free drops a request that was not taken over; the request's caller then gets
 * TENSORLEND_REQUEST_FAILED.
 */
typedef struct tensorlend_request tensorlend_request;

/**
 * A server of a service: receives requests from all callers in turn. One thread at a time uses it; several servers
 * share the callers of a service. tensorlend_server_close ends it.
 */
typedef struct tensorlend_server tensorlend_server;

/**
 * A snapshot of the daemon's metrics. tensorlend_stat_free frees it.
 */
typedef struct tensorlend_stat tensorlend_stat;

/**
 * The producer's handle of a stream. Any thread may use it. tensorlend_stream_close ends it.
 */
typedef struct tensorlend_stream tensorlend_stream;

/**
 * A subscription to a stream. One thread at a time uses it. tensorlend_subscription_close ends it.
 */
typedef struct tensorlend_subscription tensorlend_subscription;

/**
 * The version of a name's value. Zeros mean none. Compare with tensorlend_version_equal.
 */
typedef struct {
    /**
     * Opaque to programs.
     */
    uint64_t opaque[2];
} tensorlend_version;

/**
 * An element type: DLDataType's code in the lowest byte, its bits in the next, its lanes in the upper two.
 */
typedef uint32_t tensorlend_dtype;

/**
 * A function that the library calls before an allocation of bytes bytes fails at the client's or the daemon's memory limit.
 * attempt counts its calls for one allocation, from 1. The function may delete names, and free drafts except those that the
 * program has passed to the allocating call. It returns whether to try again.
 */
typedef bool (*tensorlend_relief)(void *context, uint64_t bytes, uint32_t attempt);

/**
 * A tensor that the program reads in place. It is borrowed from a lease, and valid as long as that lease lives. The library
 * makes these structures; later versions may have further fields at the end. The description is a checked copy. The elements
 * are the producer's, and a broken or hostile producer may change them at any time: copy elements before you check them.
 */
typedef struct {
    /**
     * The tensor's name in its dataset; NULL for a tensor that is in none.
     */
    const char *name;
    /**
     * The element with index 0, read-only; NULL where only the description is known (tensorlend_info), and for a
     * tensor on a device.
     */
    const void *data;
    /**
     * ndim sizes, in elements.
     */
    const uint64_t *shape;
    /**
     * ndim strides, in elements: never NULL unless ndim is 0.
     */
    const int64_t *strides;
    /**
     * metadata_bytes bytes of metadata; NULL if that is 0.
     */
    const void *metadata;
    /**
     * Length of the metadata, in bytes.
     */
    uint64_t metadata_bytes;
    /**
     * Number of elements; 1 for a tensor without dimensions.
     */
    uint64_t elements;
    /**
     * Bytes of the elements: their number times the element's bytes.
     */
    uint64_t nbytes;
    /**
     * Timestamp that its producer set, in nanoseconds; 0 if none.
     */
    uint64_t timestamp_ns;
    /**
     * Element type.
     */
    tensorlend_dtype dtype;
    /**
     * Number of dimensions, 0 to 16.
     */
    uint32_t ndim;
    /**
     * Whether the elements are contiguous, in C order: then nbytes bytes can be read from data on.
     */
    bool row_major;
    /**
     * UUID of the device in whose memory the elements are, "GPU-..."; NULL for host memory.
     */
    const char *device;
    /**
     * Address of the element with index 0 on that device, read-only; 0 for host memory.
     */
    uint64_t device_data;
    /**
     * Number of that device in this process, N of "cuda:N"; 0 for host memory.
     */
    uint32_t device_number;
} tensorlend_tensor;

/**
 * An entry of a listing, borrowed from it: a name with its value; a stream or a list, with name, kind and count only; a
 * model, with nbytes and version; or a machine, with alive and here. The library makes these structures; later
 * versions may have further fields at the end.
 */
typedef struct {
    /**
     * The entry's name.
     */
    const char *name;
    /**
     * The label of the name's owner, or the machine of the name (tensorlend_placement); empty if neither is known.
     */
    const char *label;
    /**
     * count descriptions: of the one tensor, or of all tensors of a dataset; NULL for streams and lists.
     */
    const tensorlend_tensor *const *tensors;
    /**
     * Tensors of a name, subscribers of a stream, items of a list.
     */
    uint64_t count;
    /**
     * Bytes of the elements, of all tensors together.
     */
    uint64_t nbytes;
    /**
     * Length of the metadata, in bytes.
     */
    uint64_t metadata_bytes;
    /**
     * Timestamp that its producer set, in nanoseconds; 0 if none.
     */
    uint64_t timestamp_ns;
    /**
     * Remaining time to live, in nanoseconds; 0 if the name has no time limit.
     */
    uint64_t ttl_ns;
    /**
     * Version of the name's value.
     */
    tensorlend_version version;
    /**
     * The entry's kind.
     */
    tensorlend_kind kind;
    /**
     * Process id of the name's owner.
     */
    uint32_t pid;
    /**
     * User id of the name's owner.
     */
    uint32_t uid;
    /**
     * Whether the name's owner is connected, or the machine can be reached.
     */
    bool alive;
    /**
     * Whether the name ends with its owner's session.
     */
    bool ephemeral;
    /**
     * Whether this machine has a copy of another machine's name.
     */
    bool cached;
    /**
     * Whether that copy, or the entry, may be old, because the other machine cannot be reached.
     */
    bool stale;
    /**
     * Whether the entry is the machine on which the program runs.
     */
    bool here;
} tensorlend_entry;

/**
 * A device whose memory the daemon lends, borrowed from its list. The library makes these structures; later versions may have
 * further fields at the end.
 */
typedef struct {
    /**
     * UUID, "GPU-...": the device's name in every process.
     */
    const char *uuid;
    /**
     * The driver's name of the device.
     */
    const char *name;
    /**
     * "pool", "arena" or "async".
     */
    const char *allocator;
    /**
     * Length of an ordinary segment, in bytes; with "async", the unit of slots.
     */
    uint64_t segment_bytes;
    /**
     * Length of the longest segment, in bytes.
     */
    uint64_t segment_bytes_max;
    /**
     * The device's number in this process, N of "cuda:N"; -1 if this process does not see the device.
     */
    int32_t number;
} tensorlend_device;

/**
 * The daemon's metrics, borrowed from their handle. The library makes these structures; later versions may have further fields
 * at the end.
 */
typedef struct {
    /**
     * Version of the daemon.
     */
    const char *version;
    /**
     * "system" or "user".
     */
    const char *mode;
    /**
     * Time since the daemon started, in nanoseconds.
     */
    uint64_t uptime_ns;
    /**
     * Maximum number of bytes of the pool.
     */
    uint64_t pool_bytes_max;
    /**
     * Bytes of segments that exist: lent, spare and idle.
     */
    uint64_t pool_bytes;
    /**
     * Bytes of segments that are lent, or whose owner has disconnected.
     */
    uint64_t bytes_in_use;
    /**
     * Bytes of spare segments, ready to lend.
     */
    uint64_t bytes_spare;
    /**
     * Bytes of names and descriptors that clients and daemon share.
     */
    uint64_t bytes_sheets;
    /**
     * Names in all namespaces.
     */
    uint64_t names;
    /**
     * Names that ended because their time to live was over.
     */
    uint64_t names_expired;
    /**
     * Ephemeral names that ended with their producers' sessions.
     */
    uint64_t names_ephemeral_gone;
    /**
     * Sessions that the daemon ended because memory was short and their leases kept replaced values in use.
     */
    uint64_t sessions_revoked;
    /**
     * Requests answered.
     */
    uint64_t requests;
    /**
     * Requests refused.
     */
    uint64_t refusals;
    /**
     * Wakeups of the daemon.
     */
    uint64_t wakeups;
    /**
     * Process id of the daemon.
     */
    uint32_t pid;
    /**
     * Segments lent.
     */
    uint32_t segments;
    /**
     * Clients connected.
     */
    uint32_t clients;
    /**
     * Disconnected clients whose tensors remain.
     */
    uint32_t frozen;
    /**
     * Bytes of segments that are in files, since memory was short.
     */
    uint64_t bytes_spilled;
    /**
     * Files of spilled segments that could not be written or read.
     */
    uint64_t spill_failures;
    /**
     * Requests refused because a limit of the configuration or of the machine was reached.
     */
    uint64_t refusals_limit;
    /**
     * Requests refused that the daemon never grants: damaged, impossible, or without the rights.
     */
    uint64_t refusals_invalid;
    /**
     * Requests refused because another client, or the daemon, was faster.
     */
    uint64_t refusals_race;
} tensorlend_figures;

/**
 * Allocations of a client since counting began. The caller owns the structure, so it never grows.
 */
typedef struct {
    /**
     * Bytes allocated less bytes freed: below zero where more was freed than allocated since counting began.
     */
    int64_t current_bytes;
    /**
     * Allocations less frees.
     */
    int64_t current_count;
    /**
     * The largest current_bytes so far; 0 at least.
     */
    uint64_t peak_bytes;
    /**
     * The largest current_count so far.
     */
    uint64_t peak_count;
    /**
     * Bytes of all allocations, freed ones included.
     */
    uint64_t total_bytes;
    /**
     * All allocations, freed ones included.
     */
    uint64_t total_count;
} tensorlend_statistics;

/**
 * Signed integer, 8 bits.
 */
#define TENSORLEND_I8 67584

/**
 * Signed integer, 16 bits.
 */
#define TENSORLEND_I16 69632

/**
 * Signed integer, 32 bits.
 */
#define TENSORLEND_I32 73728

/**
 * Signed integer, 64 bits.
 */
#define TENSORLEND_I64 81920

/**
 * Unsigned integer, 8 bits.
 */
#define TENSORLEND_U8 67585

/**
 * Unsigned integer, 16 bits.
 */
#define TENSORLEND_U16 69633

/**
 * Unsigned integer, 32 bits.
 */
#define TENSORLEND_U32 73729

/**
 * Unsigned integer, 64 bits.
 */
#define TENSORLEND_U64 81921

/**
 * IEEE 754 half precision.
 */
#define TENSORLEND_F16 69634

/**
 * IEEE 754 single precision.
 */
#define TENSORLEND_F32 73730

/**
 * IEEE 754 double precision.
 */
#define TENSORLEND_F64 81922

/**
 * Brain floating point: 8 bits of exponent, 7 of mantissa.
 */
#define TENSORLEND_BF16 69636

/**
 * Complex of two f32.
 */
#define TENSORLEND_C64 81925

/**
 * Complex of two f64.
 */
#define TENSORLEND_C128 98309

/**
 * Boolean, one byte: 0 or 1. The library does not check what a producer wrote: readers may find other values, which mean true.
 */
#define TENSORLEND_BOOL 67590

/**
 * 8-bit float, 3 bits of exponent.
 */
#define TENSORLEND_F8_E3M4 67591

/**
 * 8-bit float, 4 bits of exponent.
 */
#define TENSORLEND_F8_E4M3 67592

/**
 * 8-bit float, bias 11, no infinities, one NaN.
 */
#define TENSORLEND_F8_E4M3B11FNUZ 67593

/**
 * 8-bit float, no infinities.
 */
#define TENSORLEND_F8_E4M3FN 67594

/**
 * 8-bit float, no infinities, no negative zero.
 */
#define TENSORLEND_F8_E4M3FNUZ 67595

/**
 * 8-bit float, 5 bits of exponent.
 */
#define TENSORLEND_F8_E5M2 67596

/**
 * 8-bit float, 5 bits of exponent, no infinities, no negative zero.
 */
#define TENSORLEND_F8_E5M2FNUZ 67597

/**
 * 8-bit power of two, for block scales.
 */
#define TENSORLEND_F8_E8M0FNU 67598

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The error message of this thread's last call that failed: the event, the object and the remedy. Never NULL; empty
 * if none has failed. It stays until another call of this thread fails: copy it to keep it.
 */
const char *tensorlend_error_message(void);

/**
 * The stable code of this thread's last call that failed, such as "TL-0301": the same in every language, and explained by the
 * manual's page on errors. Never NULL; empty if none has failed. It stays until another call of this thread fails.
 */
const char *tensorlend_error_code(void);

/**
 * The limit that this thread's last call that failed has reached: one of tensorlend_limit, 0 if it failed for another reason
 * or none has failed. Programs should decide by this number, not by words of the message.
 */
int32_t tensorlend_error_limit(void);

/**
 * Name of a limit, such as "pool-bytes". Never NULL, valid until the process ends; "unknown" for other numbers.
 */
const char *tensorlend_limit_name(int32_t limit);

/**
 * Name of a status, such as "not found". Never NULL, valid until the process ends; "unknown" for other numbers.
 */
const char *tensorlend_status_name(int32_t status);

/**
 * The library's TENSORLEND_ABI. It differs from the header's if the program was built with the header of another version.
 */
uint32_t tensorlend_abi(void);

/**
 * The library's version, such as "0.1.0". Valid until the process ends.
 */
const char *tensorlend_library_version(void);

/**
 * Returns true if both versions are of the same value of the same name.
 */
bool tensorlend_version_equal(tensorlend_version one, tensorlend_version other);

/**
 * Bytes of one element; 0 for a type that tensorlend does not know.
 */
uint64_t tensorlend_dtype_bytes(tensorlend_dtype dtype);

/**
 * Name of the type, such as "f32". Valid until the process ends; "unknown" for a type that tensorlend does not know.
 */
const char *tensorlend_dtype_name(tensorlend_dtype dtype);

/**
 * Creates default options. tensorlend_options_free frees them.
 */
tensorlend_status tensorlend_options_new(tensorlend_options **options);

/**
 * Frees options; NULL does nothing.
 */
void tensorlend_options_free(tensorlend_options *options);

/**
 * Adds the socket of a daemon. If the program calls this several times, tensorlend_connect tries the sockets in that order.
 * Default: $TENSORLEND_SOCKET, else the user's daemon at $XDG_RUNTIME_DIR/tensorlend.sock, else the system's at
 * /run/tensorlend/tensorlend.sock.
 */
tensorlend_status tensorlend_options_socket(tensorlend_options *options,
                                            const char *socket);

/**
 * Sets the namespace to join, as the daemon's configuration names it. Default: the private namespace of this user.
 */
tensorlend_status tensorlend_options_namespace(tensorlend_options *options,
                                               const char *name);

/**
 * Sets the client's label in listings, of which the first 63 bytes are kept. Default: the program's name.
 */
tensorlend_status tensorlend_options_label(tensorlend_options *options,
                                           const char *label);

/**
 * If harden is true, protects this process from other processes of the same user: from the connection on, none of them can
 * trace it, read or write its memory, or take its descriptors. The whole process has no core dumps then. Default: false.
 */
tensorlend_status tensorlend_options_harden(tensorlend_options *options,
                                            bool harden);

/**
 * Sets the timeout, in nanoseconds, of requests to this machine's gateway for which the call gives none: a tensorlend_get of
 * another machine's name, a tensorlend_put_remote. Default: 60 seconds.
 */
tensorlend_status tensorlend_options_remote_timeout(tensorlend_options *options,
                                                    uint64_t timeout_ns);

/**
 * Sets the timeout, in nanoseconds, of requests to the daemon, after which a call fails with TENSORLEND_DISCONNECTED; at
 * least a millisecond. Default: 30 seconds.
 */
tensorlend_status tensorlend_options_request_timeout(tensorlend_options *options,
                                                     uint64_t timeout_ns);

/**
 * Sets the maximum number of bytes that this client may use. An allocation above it fails with TENSORLEND_LIMIT. Default:
 * only the daemon's limits.
 */
tensorlend_status tensorlend_options_memory_limit(tensorlend_options *options,
                                                  uint64_t bytes);

/**
 * Counts allocations from the connection on: see tensorlend_statistics_get. Default: off.
 */
tensorlend_status tensorlend_options_statistics(tensorlend_options *options);

/**
 * Writes every allocation into this file, as CSV: see tensorlend_log_start. Default: $TENSORLEND_ALLOC_LOG, else
 * none.
 */
tensorlend_status tensorlend_options_log(tensorlend_options *options,
                                         const char *file);

/**
 * Tracks outstanding allocations: see tensorlend_outstanding_get. Default: off.
 */
tensorlend_status tensorlend_options_tracking(tensorlend_options *options);

/**
 * Calls relief with context before an allocation fails. The callback runs on the allocating threads, on several at a time,
 * as long as the client or another handle that came from it lives. It may use the client; its own allocations fail without
 * another call. It must return: it must not throw an exception or call longjmp. Default: none.
 */
tensorlend_status tensorlend_options_on_memory_pressure(tensorlend_options *options,
                                                        tensorlend_relief relief,
                                                        void *context);

/**
 * Connects to the daemon. options may be NULL; they still belong to the caller afterwards. tensorlend_client_free ends the
 * session. Leases, drafts, streams and subscriptions may outlive the handle.
 *
 * TENSORLEND_DISCONNECTED if no daemon answers; TENSORLEND_INCOMPATIBLE if daemon or kernel are too old or too
 * new; TENSORLEND_REFUSED for a namespace that this user may not join.
 */
tensorlend_status tensorlend_connect(const tensorlend_options *options,
                                     tensorlend_client **client);

/**
 * Frees the client. The session ends once every other handle that came from it is freed, too. NULL does nothing.
 */
void tensorlend_client_free(tensorlend_client *client);

/**
 * The namespace's name, borrowed from the client; NULL for NULL.
 */
const char *tensorlend_client_namespace(const tensorlend_client *client);

/**
 * The daemon's version, borrowed from the client; NULL for NULL.
 */
const char *tensorlend_client_daemon_version(const tensorlend_client *client);

/**
 * Sends the daemon a request without effect, and writes the duration of the round trip to *nanoseconds, unless that is NULL.
 */
tensorlend_status tensorlend_ping(const tensorlend_client *client,
                                  uint64_t *nanoseconds);

/**
 * Writes this client's memory in bytes: to *slot_bytes that of its tensors (drafts, published tensors, and replaced ones
 * that are not reclaimed yet), to *segment_bytes that of the segments that the daemon lends to it. Either pointer may be
 * NULL.
 */
tensorlend_status tensorlend_memory(const tensorlend_client *client,
                                    uint64_t *slot_bytes,
                                    uint64_t *segment_bytes);

/**
 * Writes to *bytes the bytes of the namespace's tensors on which some client holds a lease now.
 */
tensorlend_status tensorlend_leased_bytes(const tensorlend_client *client, uint64_t *bytes);

/**
 * Creates another handle of the same lease: the memory is kept until both are freed.
 */
tensorlend_status tensorlend_lease_clone(const tensorlend_lease *lease, tensorlend_lease **another);

/**
 * Ends a lease; NULL does nothing. Pointers that were borrowed from it are invalid then.
 */
void tensorlend_lease_free(tensorlend_lease *lease);

/**
 * Returns whether the lease is on a tensor, a dataset or a tensor on a device; TENSORLEND_KIND_TENSOR for NULL.
 */
tensorlend_kind tensorlend_lease_kind(const tensorlend_lease *lease);

/**
 * The tensor, borrowed from the lease; NULL for a dataset, and for NULL.
 */
const tensorlend_tensor *tensorlend_lease_tensor(const tensorlend_lease *lease);

/**
 * Number of tensors of a dataset; 0 for a tensor, and for NULL.
 */
uint64_t tensorlend_lease_members(const tensorlend_lease *lease);

/**
 * A dataset's tensor by its number, in the order in which they were added; borrowed from the lease, NULL if there is
 * none.
 */
const tensorlend_tensor *tensorlend_lease_member(const tensorlend_lease *lease,
                                                 uint64_t number);

/**
 * A dataset's tensor by its name, borrowed from the lease; NULL if there is none.
 */
const tensorlend_tensor *tensorlend_lease_find(const tensorlend_lease *lease, const char *name);

/**
 * Metadata of the tensor or dataset, borrowed from the lease; NULL if there is none, and for NULL. Writes the length of the
 * metadata to *bytes, unless that is NULL.
 */
const void *tensorlend_lease_metadata(const tensorlend_lease *lease,
                                      uint64_t *bytes);

/**
 * Timestamp of the tensor or dataset, in nanoseconds; 0 if none was set.
 */
uint64_t tensorlend_lease_timestamp(const tensorlend_lease *lease);

/**
 * Version of the leased value; zeros for NULL.
 */
tensorlend_version tensorlend_lease_version(const tensorlend_lease *lease);

/**
 * Returns true while the session that took the lease lives, so that the lease protects its memory. A reader that must be sure
 * calls this after it has read the elements. It is false only after the daemon has ended the session of a running process, in
 * the child of a fork, and for NULL.
 */
bool tensorlend_lease_validate(const tensorlend_lease *lease);

/**
 * Copies the elements of a tensor, in C order, into to, which has exactly the tensor's nbytes bytes. For a dataset,
 * member is the name of one of its tensors; for a tensor, it is NULL. From a device, the call waits for the producer's work
 * and for the copy.
 *
 * TENSORLEND_ARGUMENT for another length; TENSORLEND_NOT_FOUND if there is no such member.
 */
tensorlend_status tensorlend_lease_copy(const tensorlend_lease *lease,
                                        const char *member,
                                        void *to,
                                        uint64_t bytes);

/**
 * Number of leases; 0 for NULL.
 */
uint64_t tensorlend_leases_count(const tensorlend_leases *leases);

/**
 * A lease by its number, borrowed; NULL beyond the end. tensorlend_lease_clone makes a handle of your own.
 */
const tensorlend_lease *tensorlend_leases_at(const tensorlend_leases *leases,
                                             uint64_t number);

/**
 * Ends all leases that were not cloned; NULL does nothing.
 */
void tensorlend_leases_free(tensorlend_leases *leases);

/**
 * Creates a tensor that the program writes in place: row-major, with ndim sizes in elements (0 to 16; shape may be
 * NULL for 0). Its bytes keep their previous contents until they are written.
 *
 * TENSORLEND_ARGUMENT for an invalid shape; TENSORLEND_LIMIT when the memory limit is reached.
 */
tensorlend_status tensorlend_create(const tensorlend_client *client,
                                    tensorlend_dtype dtype,
                                    uint32_t ndim,
                                    const uint64_t *shape,
                                    tensorlend_draft **draft);

/**
 * As tensorlend_create, with ndim strides in elements (NULL: row-major), and the element with index 0
 * byte_offset bytes into the data. A stride may be negative if byte_offset leaves room for it.
 */
tensorlend_status tensorlend_create_strided(const tensorlend_client *client,
                                            tensorlend_dtype dtype,
                                            uint32_t ndim,
                                            const uint64_t *shape,
                                            const int64_t *strides,
                                            uint64_t byte_offset,
                                            tensorlend_draft **draft);

/**
 * Creates a dataset: several tensors that are published together, of which readers see all or none. Add them with
 * tensorlend_dataset_add.
 */
tensorlend_status tensorlend_create_dataset(const tensorlend_client *client,
                                            tensorlend_draft **dataset);

/**
 * Adds a tensor to a dataset, under a name that no other tensor of the dataset has. Readers see the tensors in the order of
 * their addition. Takes *member over, unless the call fails.
 *
 * TENSORLEND_ARGUMENT for a name that the dataset has already, for the 4097th tensor, and for a member that is a dataset or
 * a draft of another client.
 */
tensorlend_status tensorlend_dataset_add(tensorlend_draft *dataset,
                                         const char *name,
                                         tensorlend_draft **member);

/**
 * The memory in which the program writes a tensor, borrowed from the draft: tensorlend_draft_bytes bytes, aligned to 64
 * bytes, or to 4096 bytes if there are at least 4096. The child of a fork must not use it. NULL for a dataset, for a tensor on
 * a device (tensorlend_draft_device_data), and for NULL.
 */
void *tensorlend_draft_data(tensorlend_draft *draft);

/**
 * Type of a tensor's elements; 0 for a dataset, and for NULL.
 */
tensorlend_dtype tensorlend_draft_dtype(const tensorlend_draft *draft);

/**
 * Bytes at tensorlend_draft_data, gaps between strided elements included.
 */
uint64_t tensorlend_draft_bytes(const tensorlend_draft *draft);

/**
 * Sets metadata: any bytes, 64 KiB at most, copied. Up to 32 bytes cost nothing.
 */
tensorlend_status tensorlend_draft_set_metadata(tensorlend_draft *draft,
                                                const void *metadata,
                                                uint64_t bytes);

/**
 * Sets a timestamp: nanoseconds since 1970, or of any clock that producer and readers agree on.
 */
tensorlend_status tensorlend_draft_set_timestamp(tensorlend_draft *draft, uint64_t nanoseconds);

/**
 * Frees a draft that was not taken over; NULL does nothing. Its memory is free once its DLPack tensors are freed
 * too.
 */
void tensorlend_draft_free(tensorlend_draft *draft);

/**
 * Publishes a draft under a name, where every client of the namespace can read it. Takes *draft over. Writes the value's
 * version to *version, unless that is NULL.
 *
 * TENSORLEND_LIMIT and TENSORLEND_REFUSED at a limit or without the right to write; TENSORLEND_DISCONNECTED.
 */
tensorlend_status tensorlend_publish(tensorlend_draft **draft,
                                     const char *name,
                                     tensorlend_version *version);

/**
 * As tensorlend_publish, for a name that ends by itself: after ttl_ns nanoseconds (0: no clock ends it), or with
 * this client's session (TENSORLEND_EPHEMERAL in flags), whichever is first. Costs a round trip to the daemon,
 * unless both are 0.
 */
tensorlend_status tensorlend_publish_for(tensorlend_draft **draft,
                                         const char *name,
                                         uint64_t ttl_ns,
                                         uint32_t flags,
                                         tensorlend_version *version);

/**
 * Copies shape's elements, row-major, from data into shared memory and publishes them: one copy, no serialization.
 * version may be NULL. Errors are those of tensorlend_create and tensorlend_publish.
 */
tensorlend_status tensorlend_put(const tensorlend_client *client,
                                 const char *name,
                                 tensorlend_dtype dtype,
                                 uint32_t ndim,
                                 const uint64_t *shape,
                                 const void *data,
                                 tensorlend_version *version);

/**
 * Leases the name's current tensor, without a copy. Later values of the name do not change it.
 *
 * TENSORLEND_NOT_FOUND; TENSORLEND_KIND for a dataset; TENSORLEND_LIMIT with 4096 leases held already.
 */
tensorlend_status tensorlend_get(const tensorlend_client *client,
                                 const char *name,
                                 tensorlend_lease **lease);

/**
 * Leases the name's current dataset: all of its tensors, with one lease. Errors are those of tensorlend_get.
 */
tensorlend_status tensorlend_get_dataset(const tensorlend_client *client,
                                         const char *name,
                                         tensorlend_lease **lease);

/**
 * Leases the name's current value, a tensor or a dataset.
 */
tensorlend_status tensorlend_get_value(const tensorlend_client *client,
                                       const char *name,
                                       tensorlend_lease **lease);

/**
 * Copies the name's current tensor, in C order, into to, which has exactly the tensor's size in bytes. version may be
 * NULL.
 *
 * TENSORLEND_ARGUMENT for another length; otherwise as tensorlend_get.
 */
tensorlend_status tensorlend_get_into(const tensorlend_client *client,
                                      const char *name,
                                      void *to,
                                      uint64_t bytes,
                                      tensorlend_version *version);

/**
 * As tensorlend_get, and waits for a name that does not exist yet: at most timeout_ns nanoseconds, without limit
 * if that is below 0. TENSORLEND_TIMEOUT after that time.
 */
tensorlend_status tensorlend_wait_for(const tensorlend_client *client,
                                      const char *name,
                                      int64_t timeout_ns,
                                      tensorlend_lease **lease);

/**
 * As tensorlend_wait_for, for a tensor or dataset with another version than seen: the tensorlend_lease_version
 * of the last value, or a tensorlend_version of zeros for any.
 */
tensorlend_status tensorlend_wait_newer(const tensorlend_client *client,
                                        const char *name,
                                        tensorlend_version seen,
                                        int64_t timeout_ns,
                                        tensorlend_lease **lease);

/**
 * Writes to *exists whether the name exists. Takes no lease.
 */
tensorlend_status tensorlend_exists(const tensorlend_client *client,
                                    const char *name,
                                    bool *exists);

/**
 * Writes the version of the name's value to *version: zeros if the name does not exist. Takes no lease.
 */
tensorlend_status tensorlend_current_version(const tensorlend_client *client,
                                             const char *name,
                                             tensorlend_version *version);

/**
 * Deletes a name. Writes whether it existed to *existed, unless that is NULL. Leases on its value remain valid.
 */
tensorlend_status tensorlend_delete(const tensorlend_client *client,
                                    const char *name,
                                    bool *existed);

/**
 * Renames a value. A former value of the new name is replaced. TENSORLEND_NOT_FOUND if from does not exist.
 */
tensorlend_status tensorlend_rename(const tensorlend_client *client,
                                    const char *from,
                                    const char *to);

/**
 * Publishes a copy of a value under another name. This client owns the copy. version may be NULL.
 */
tensorlend_status tensorlend_copy(const tensorlend_client *client,
                                  const char *from,
                                  const char *to,
                                  tensorlend_version *version);

/**
 * Appends an item, a tensor or a dataset, to a list. The first item creates the list. Takes *item over. Writes the item's
 * number in the list to *number, unless that is NULL.
 */
tensorlend_status tensorlend_list_append(const tensorlend_client *client,
                                         const char *list,
                                         tensorlend_draft **item,
                                         uint64_t *number);

/**
 * Appends copies of the current values of count names, at most 1,024, all or none. The names keep their values. Writes
 * the number of the first item to *number, unless that is NULL. TENSORLEND_NOT_FOUND if a name is missing;
 * TENSORLEND_ARGUMENT for more than 1,024 names. Then nothing was appended.
 */
tensorlend_status tensorlend_list_append_names(const tensorlend_client *client,
                                               const char *list,
                                               const char *const *names,
                                               uint64_t count,
                                               uint64_t *number);

/**
 * Writes the number of a list's items to *length: 0 if the list does not exist.
 */
tensorlend_status tensorlend_list_length(const tensorlend_client *client,
                                         const char *list,
                                         uint64_t *length);

/**
 * Waits until a list has items items, compared by how, a tensorlend_length: at most timeout_ns nanoseconds,
 * without limit if that is below 0. Writes the length to *length, unless that is NULL.
 */
tensorlend_status tensorlend_list_wait_length(const tensorlend_client *client,
                                              const char *list,
                                              int32_t how,
                                              uint64_t items,
                                              int64_t timeout_ns,
                                              uint64_t *length);

/**
 * Another name of tensorlend_list_wait_length, for programs that were compiled with it.
 */
tensorlend_status tensorlend_list_wait(const tensorlend_client *client,
                                       const char *list,
                                       int32_t how,
                                       uint64_t items,
                                       int64_t timeout_ns,
                                       uint64_t *length);

/**
 * Leases the items first to end - 1 of a list, in order; numbers beyond the list's end are ignored, so with UINT64_MAX
 * as end the call leases all items from first on.
 *
 * TENSORLEND_NOT_FOUND if there is no such list; TENSORLEND_LIMIT for more items than a client can hold (4096).
 */
tensorlend_status tensorlend_list_get_range(const tensorlend_client *client,
                                            const char *list,
                                            uint64_t first,
                                            uint64_t end,
                                            tensorlend_leases **leases);

/**
 * Another name of tensorlend_list_get_range, for programs that were compiled with it.
 */
tensorlend_status tensorlend_list_get(const tensorlend_client *client,
                                      const char *list,
                                      uint64_t first,
                                      uint64_t end,
                                      tensorlend_leases **leases);

/**
 * Removes a list and its items. Writes whether the list existed to *existed, unless that is NULL. Leases on its
 * items remain valid.
 */
tensorlend_status tensorlend_list_clear(const tensorlend_client *client,
                                        const char *list,
                                        bool *existed);

/**
 * Renames a list, and removes a list with the new name. TENSORLEND_NOT_FOUND if the list from does not exist.
 */
tensorlend_status tensorlend_list_rename(const tensorlend_client *client,
                                         const char *from,
                                         const char *to);

/**
 * Opens a queue, which exists once it has an item. max_waiting is the number of waiting items at which
 * tensorlend_queue_put of this handle waits; 0: no maximum.
 *
 * TENSORLEND_ARGUMENT for an invalid name, or one of another machine: a queue serves the processes of one machine.
 */
tensorlend_status tensorlend_queue_open(const tensorlend_client *client,
                                        const char *name,
                                        uint64_t max_waiting,
                                        tensorlend_queue **queue);

/**
 * Appends an item, a tensor or a dataset. Waits while the queue is full: timeout_ns nanoseconds at most, without limit if
 * that is below 0, not at all if it is 0. Takes *item over, and drops it if the call fails. Writes the item's number,
 * counted from 0, to *number, unless that is NULL.
 *
 * TENSORLEND_TIMEOUT if the queue was full the whole time. Otherwise errors are those of tensorlend_list_append.
 */
tensorlend_status tensorlend_queue_put(const tensorlend_queue *queue,
                                       tensorlend_draft **item,
                                       int64_t timeout_ns,
                                       uint64_t *number);

/**
 * Claims the first item that waits. Waits while the queue is empty: timeout_ns nanoseconds at most, without limit if that is
 * below 0, not at all if it is 0.
 *
 * TENSORLEND_TIMEOUT if the queue was empty the whole time; TENSORLEND_REFUSED without the right to write, or with 4096
 * claimed items; TENSORLEND_LIMIT with 4096 leases held already: the item waits again; TENSORLEND_DAMAGED if a faulty
 * producer put the item, which is then removed.
 */
tensorlend_status tensorlend_queue_get(const tensorlend_queue *queue,
                                       int64_t timeout_ns,
                                       tensorlend_queue_item **item);

/**
 * Writes the number of items that wait for a consumer to *items. Asks the daemon.
 */
tensorlend_status tensorlend_queue_waiting(const tensorlend_queue *queue, uint64_t *items);

/**
 * Writes the number of items that consumers have claimed and not confirmed to *items. Asks the daemon.
 */
tensorlend_status tensorlend_queue_claimed(const tensorlend_queue *queue,
                                           uint64_t *items);

/**
 * The queue's name, borrowed from the handle; NULL for NULL.
 */
const char *tensorlend_queue_name(const tensorlend_queue *queue);

/**
 * Frees the handle; NULL does nothing. The queue, its items and claimed items remain.
 */
void tensorlend_queue_free(tensorlend_queue *queue);

/**
 * A lease on the item's value, borrowed from the item; NULL for NULL. tensorlend_lease_clone makes a lease that outlives
 * the item.
 */
const tensorlend_lease *tensorlend_queue_item_value(const tensorlend_queue_item *item);

/**
 * The item's number, counted from 0; 0 for NULL.
 */
uint64_t tensorlend_queue_item_number(const tensorlend_queue_item *item);

/**
 * Confirms an item, which the daemon deletes. Takes *item over. Writes to *existed, unless that is NULL, whether the claim
 * still existed: false if the queue was cleared, or if the daemon was replaced and gave the item to another consumer.
 *
 * TENSORLEND_DISCONNECTED if no daemon answers: the client confirms the item with its next request. The item is delivered
 * again if the session ends before that.
 */
tensorlend_status tensorlend_queue_item_done(tensorlend_queue_item **item,
                                             bool *existed);

/**
 * Gives an item back: it is the next one that a consumer gets. Takes *item over. Errors are those of
 * tensorlend_queue_item_done.
 */
tensorlend_status tensorlend_queue_item_give_back(tensorlend_queue_item **item);

/**
 * Gives an item back that was neither confirmed nor given back, and frees the handle; NULL does nothing. The borrowed lease
 * is invalid then.
 */
void tensorlend_queue_item_free(tensorlend_queue_item *item);

/**
 * Opens a stream, whose messages are numbered from 0. It holds capacity messages for subscribers that lag or subscribe late:
 * 0 means 8; the number is rounded up to a power of two, and may be 65,536 at most. policy is a tensorlend_policy.
 *
 * TENSORLEND_REFUSED if another client has it open, or without the right to write; TENSORLEND_LIMIT at a limit.
 */
tensorlend_status tensorlend_stream_open(const tensorlend_client *client,
                                         const char *name,
                                         uint32_t capacity,
                                         int32_t policy,
                                         tensorlend_stream **stream);

/**
 * Sends a message. With TENSORLEND_POLICY_BLOCK, waits while the stream is full: timeout_ns nanoseconds at most, without
 * limit if that is below 0. Takes *message over, and drops it if the call fails. Writes the message's number to *number,
 * unless that is NULL.
 *
 * TENSORLEND_TIMEOUT; TENSORLEND_FULL with TENSORLEND_POLICY_ERROR; TENSORLEND_STREAM_ENDED if the stream was
 * deleted or has another producer now; TENSORLEND_ARGUMENT for a draft of another client.
 */
tensorlend_status tensorlend_stream_send(const tensorlend_stream *stream,
                                         tensorlend_draft **message,
                                         int64_t timeout_ns,
                                         uint64_t *number);

/**
 * As tensorlend_stream_send, but never waits: if the call returns TENSORLEND_FULL, *message holds the draft again, and
 * you can send it later.
 */
tensorlend_status tensorlend_stream_try_send(const tensorlend_stream *stream,
                                             tensorlend_draft **message,
                                             uint64_t *number);

/**
 * Waits until the stream has at least count subscribers, so that the first message finds them: timeout_ns
 * nanoseconds at most, without limit if that is below 0.
 */
tensorlend_status tensorlend_stream_wait_subscribers(const tensorlend_stream *stream,
                                                     uint64_t count,
                                                     int64_t timeout_ns);

/**
 * The stream's name, borrowed from the handle; NULL for NULL.
 */
const char *tensorlend_stream_name(const tensorlend_stream *stream);

/**
 * Maximum number of messages that the stream holds; 0 for NULL.
 */
uint32_t tensorlend_stream_capacity(const tensorlend_stream *stream);

/**
 * Messages sent so far; 0 for NULL, and in the child of a fork.
 */
uint64_t tensorlend_stream_sent(const tensorlend_stream *stream);

/**
 * Subscribers at the moment; 0 for NULL, and in the child of a fork.
 */
uint64_t tensorlend_stream_subscribers(const tensorlend_stream *stream);

/**
 * Closes the stream, and frees the handle; NULL does nothing. Subscribers take its remaining messages and then get
 * TENSORLEND_STREAM_ENDED.
 */
void tensorlend_stream_close(tensorlend_stream *stream);

/**
 * Deletes a stream with its messages, even if a producer has it open. Writes whether it existed to *existed, unless that is
 * NULL.
 */
tensorlend_status tensorlend_stream_delete(const tensorlend_client *client,
                                           const char *name,
                                           bool *existed);

/**
 * Subscribes to a stream. start is a tensorlend_start, flags 0 or TENSORLEND_POLLABLE. The call waits for a
 * stream that is not open yet: at most wait_ns nanoseconds, without limit if that is below 0, not at all if it is 0.
 *
 * TENSORLEND_NOT_FOUND if there is no such stream, TENSORLEND_TIMEOUT if it was not opened in time;
 * TENSORLEND_LIMIT with 256 subscriptions open already, or if the stream has as many subscribers as it can.
 */
tensorlend_status tensorlend_subscribe(const tensorlend_client *client,
                                       const char *name,
                                       int32_t start,
                                       uint32_t flags,
                                       int64_t wait_ns,
                                       tensorlend_subscription **subscription);

/**
 * Takes the next message; waits for it timeout_ns nanoseconds at most, without limit if that is below 0. Writes a lease on
 * the message to *message, and the message's number to *number, unless that is NULL.
 *
 * TENSORLEND_TIMEOUT; TENSORLEND_STREAM_ENDED once the producer has closed the stream or disconnected, and every
 * message was taken. The subscription continues when a producer opens the stream again.
 */
tensorlend_status tensorlend_subscription_recv(tensorlend_subscription *subscription,
                                               int64_t timeout_ns,
                                               tensorlend_lease **message,
                                               uint64_t *number);

/**
 * Takes the next message if there is one: if there is none now, *message is NULL, and the status is TENSORLEND_OK. Writes
 * the message's number to *number, unless that is NULL.
 */
tensorlend_status tensorlend_subscription_try_recv(tensorlend_subscription *subscription,
                                                   tensorlend_lease **message,
                                                   uint64_t *number);

/**
 * A descriptor for poll and epoll, borrowed from the subscription; -1 without TENSORLEND_POLLABLE, and for NULL.
 *
 * Before the first wait and after each wait, call tensorlend_subscription_try_recv until it returns no message: that last
 * call asks the producer to make the descriptor readable. A producer that was killed does not do so, nor does a producer whose
 * stream was deleted or opened again: poll also every 100 ms or so. The descriptor changes when the stream is opened again.
 */
int32_t tensorlend_subscription_fd(const tensorlend_subscription *subscription);

/**
 * Messages lost since the subscription began: they were replaced before they were taken. 0 for NULL.
 */
uint64_t tensorlend_subscription_lost(const tensorlend_subscription *subscription);

/**
 * Number of the next message; 0 for NULL.
 */
uint64_t tensorlend_subscription_position(const tensorlend_subscription *subscription);

/**
 * The stream's name, borrowed from the subscription; NULL for NULL.
 */
const char *tensorlend_subscription_name(const tensorlend_subscription *subscription);

/**
 * Ends a subscription, and frees the handle; NULL does nothing. Leases on its messages remain valid.
 */
void tensorlend_subscription_close(tensorlend_subscription *subscription);

/**
 * Keeps the last versions values of a name (rounded up to a power of two) from now on, with this client as their
 * producer. Errors are those of tensorlend_stream_open.
 */
tensorlend_status tensorlend_keep(const tensorlend_client *client,
                                  const char *name,
                                  uint32_t versions,
                                  tensorlend_history **history);

/**
 * Publishes the next value; the oldest value is removed when the name has more values than it keeps. Takes *draft over.
 * version may be NULL. Errors are those of tensorlend_publish, and TENSORLEND_STREAM_ENDED if another client keeps the
 * name now.
 */
tensorlend_status tensorlend_history_publish(const tensorlend_history *history,
                                             tensorlend_draft **draft,
                                             tensorlend_version *version);

/**
 * Stops keeping values; the name and its last value stay. NULL does nothing.
 */
void tensorlend_history_close(tensorlend_history *history);

/**
 * Leases the values that a name has kept, oldest first. TENSORLEND_NOT_FOUND if it keeps none.
 */
tensorlend_status tensorlend_versions(const tensorlend_client *client,
                                      const char *name,
                                      tensorlend_leases **leases);

/**
 * Lists the names that match the pattern glob ("*": all), and describes their values. Names whose values cannot be
 * described come last, as entries of TENSORLEND_KIND_UNKNOWN: for example a faulty client's values, spilled values without
 * memory to read them back, and values that need a lease while this client has none left.
 */
tensorlend_status tensorlend_list_names(const tensorlend_client *client,
                                        const char *glob,
                                        tensorlend_listing **listing);

/**
 * Describes the value of one name, as a listing of one entry. TENSORLEND_NOT_FOUND if the name does not exist.
 */
tensorlend_status tensorlend_info(const tensorlend_client *client,
                                  const char *name,
                                  tensorlend_listing **listing);

/**
 * Lists the streams that match the pattern glob.
 */
tensorlend_status tensorlend_list_streams(const tensorlend_client *client,
                                          const char *glob,
                                          tensorlend_listing **listing);

/**
 * Lists the lists that match the pattern glob.
 */
tensorlend_status tensorlend_list_lists(const tensorlend_client *client,
                                        const char *glob,
                                        tensorlend_listing **listing);

/**
 * Lists the models that match the pattern glob.
 */
tensorlend_status tensorlend_list_models(const tensorlend_client *client,
                                         const char *glob,
                                         tensorlend_listing **listing);

/**
 * Number of entries; 0 for NULL.
 */
uint64_t tensorlend_listing_count(const tensorlend_listing *listing);

/**
 * An entry by its number, borrowed from the listing; NULL beyond the end.
 */
const tensorlend_entry *tensorlend_listing_at(const tensorlend_listing *listing, uint64_t number);

/**
 * Returns true if there are more entries than the listing has, as there may be of other machines; false for NULL.
 */
bool tensorlend_listing_is_cut(const tensorlend_listing *listing);

/**
 * Frees a listing; NULL does nothing.
 */
void tensorlend_listing_free(tensorlend_listing *listing);

/**
 * Frees a tensor of this or another library by its deleter; NULL does nothing. A tensor of
 * tensorlend_lease_to_dlpack or tensorlend_draft_to_dlpack is freed once, on any thread: by this call, or by the
 * library that took it over.
 */
void tensorlend_dlpack_free(DLManagedTensorVersioned *tensor);

/**
 * Exports a leased tensor in place to another library, read-only (DLPACK_FLAG_BITMASK_READ_ONLY). For a dataset, member is
 * the name of one of its tensors; for a tensor, it is NULL. The lease's memory is kept until the tensor's deleter was called
 * and the handle is freed, in any order. Free the tensor with tensorlend_dlpack_free, unless another library took it over. A
 * tensor on a device is exported there (kDLCUDA), without a stream: before you pass it on, order the stream that will read
 * it, by tensorlend_lease_order_stream.
 *
 * TENSORLEND_NOT_FOUND if there is no such member.
 */
tensorlend_status tensorlend_lease_to_dlpack(const tensorlend_lease *lease,
                                             const char *member,
                                             DLManagedTensorVersioned **tensor);

/**
 * Exports a draft to another library, which writes it in place. Until the tensor is freed (tensorlend_dlpack_free,
 * or by the library that took it over), the draft cannot be published, sent or appended (TENSORLEND_ARGUMENT). Record
 * the stream in which another library writes a draft on a device, by tensorlend_draft_record_stream.
 */
tensorlend_status tensorlend_draft_to_dlpack(tensorlend_draft *draft,
                                             DLManagedTensorVersioned **tensor);

/**
 * Creates a row-major draft from a copy of another library's tensor, strided or not. The caller keeps the tensor.
 *
 * TENSORLEND_ARGUMENT for a DLPack version other than 1 or memory of a device (tensorlend_create_from_dlpack_on);
 * TENSORLEND_DTYPE for an element type that tensorlend does not know; otherwise as tensorlend_create.
 */
tensorlend_status tensorlend_create_from_dlpack(const tensorlend_client *client,
                                                const DLManagedTensorVersioned *tensor,
                                                tensorlend_draft **draft);

/**
 * Creates a draft on a device from a copy of another library's tensor there, which is row-major. The copy is work of
 * stream, so that it comes after work of that stream on the tensor (NULL: the legacy default stream), and is done when
 * the call returns. The caller keeps the tensor.
 *
 * TENSORLEND_ARGUMENT for memory that is not a CUDA device's, and for a tensor that is not row-major; otherwise as
 * tensorlend_create_from_dlpack and tensorlend_create_on.
 */
tensorlend_status tensorlend_create_from_dlpack_on(const tensorlend_client *client,
                                                   const DLManagedTensorVersioned *tensor,
                                                   void *stream,
                                                   tensorlend_draft **draft);

/**
 * Copies another library's tensor, strided or not, and publishes it. The caller keeps the tensor. version may be
 * NULL. Errors are those of tensorlend_create_from_dlpack and tensorlend_publish.
 */
tensorlend_status tensorlend_put_dlpack(const tensorlend_client *client,
                                        const char *name,
                                        const DLManagedTensorVersioned *tensor,
                                        tensorlend_version *version);

/**
 * Opens a caller of a service, for capacity requests that are outstanding at once (0 means 8; 1024 at most, rounded up to a
 * power of two). Asks the daemon nothing: the first request looks for a server.
 *
 * TENSORLEND_ARGUMENT for an invalid name, or one of more than 207 bytes.
 */
tensorlend_status tensorlend_caller_open(const tensorlend_client *client,
                                         const char *service,
                                         uint32_t capacity,
                                         tensorlend_caller **caller);

/**
 * Sends a request, and waits for its response: timeout_ns nanoseconds at most, without limit if that is below 0.
 * Also waits for a server if there is none. Takes *request over.
 *
 * TENSORLEND_REQUEST_FAILED if the server refused the request or could not carry it out: the error message has the server's
 * reason. TENSORLEND_SERVER_GONE if the server ended before it responded: it may have carried the request out, so send
 * another one only if that does no harm. TENSORLEND_TIMEOUT: the caller gives the server up, and the next request goes to
 * another one. TENSORLEND_ARGUMENT for a draft of another client, and while requests are outstanding.
 */
tensorlend_status tensorlend_caller_call(tensorlend_caller *caller,
                                         tensorlend_draft **request,
                                         int64_t timeout_ns,
                                         tensorlend_lease **response);

/**
 * Sends a request without waiting for its response, which tensorlend_caller_recv takes. Waits for a server if there
 * is none: timeout_ns nanoseconds at most, without limit if that is below 0. Takes *request over. The request's
 * number, from 0 on, goes to *number, unless that is NULL.
 *
 * TENSORLEND_TIMEOUT; TENSORLEND_SERVER_GONE if earlier requests were lost with their server, and this one was not
 * sent; TENSORLEND_ARGUMENT while as many requests are outstanding as the caller was opened for.
 */
tensorlend_status tensorlend_caller_send(tensorlend_caller *caller,
                                         tensorlend_draft **request,
                                         int64_t timeout_ns,
                                         uint64_t *number);

/**
 * Takes the response to the oldest outstanding request; waits for it timeout_ns nanoseconds at most, without limit
 * if that is below 0. The request's number goes to *number, unless that is NULL, also if the request failed.
 *
 * TENSORLEND_REQUEST_FAILED if the server could not carry out this request; TENSORLEND_SERVER_GONE if the server
 * ended, and with it all outstanding requests; TENSORLEND_TIMEOUT: the requests stay outstanding, so that a program
 * that has to stop can wait in short turns; TENSORLEND_ARGUMENT if no request is outstanding.
 */
tensorlend_status tensorlend_caller_recv(tensorlend_caller *caller,
                                         int64_t timeout_ns,
                                         tensorlend_lease **response,
                                         uint64_t *number);

/**
 * Connects to a server without sending a request, so that the first request need not wait. Waits timeout_ns nanoseconds at
 * most, without limit if that is below 0.
 */
tensorlend_status tensorlend_caller_wait_server(tensorlend_caller *caller,
                                                int64_t timeout_ns);

/**
 * Gives the server up, with all outstanding requests: the next request goes to another server, if there is one.
 */
tensorlend_status tensorlend_caller_give_up(tensorlend_caller *caller);

/**
 * Number of requests that were sent and have no response yet; 0 for NULL, and in the child of a fork.
 */
uint64_t tensorlend_caller_outstanding(const tensorlend_caller *caller);

/**
 * The service's name, borrowed from the caller; NULL for NULL.
 */
const char *tensorlend_caller_service(const tensorlend_caller *caller);

/**
 * Ends a caller, and frees the handle; NULL does nothing. Leases on its responses remain valid.
 */
void tensorlend_caller_close(tensorlend_caller *caller);

/**
 * Serves a service from now on, in addition to other servers of the same name. Takes some round trips to the daemon.
 *
 * TENSORLEND_ARGUMENT for an invalid name, or one of more than 207 bytes; TENSORLEND_REFUSED without the right to
 * write; TENSORLEND_LIMIT at a limit.
 */
tensorlend_status tensorlend_serve(const tensorlend_client *client,
                                   const char *service,
                                   tensorlend_server **server);

/**
 * Receives the next request; waits for it timeout_ns nanoseconds at most, without limit if that is below 0.
 *
 * TENSORLEND_TIMEOUT; TENSORLEND_LIMIT with 4096 leases held already: the request is still there after some were
 * freed; TENSORLEND_DISCONNECTED if the session has ended.
 */
tensorlend_status tensorlend_server_recv(tensorlend_server *server,
                                         int64_t timeout_ns,
                                         tensorlend_request **request);

/**
 * Receives the next request if there is one, for servers that gather several: if there is none now, *request is NULL, and
 * the status is TENSORLEND_OK.
 */
tensorlend_status tensorlend_server_try_recv(tensorlend_server *server,
                                             tensorlend_request **request);

/**
 * Number of callers that are connected now, 120 at most; 0 for NULL.
 */
uint64_t tensorlend_server_callers(const tensorlend_server *server);

/**
 * The service's name, borrowed from the server; NULL for NULL.
 */
const char *tensorlend_server_service(const tensorlend_server *server);

/**
 * Ends a server, and frees the handle; NULL does nothing. Its callers get TENSORLEND_SERVER_GONE for requests
 * without a response, and move to another server.
 */
void tensorlend_server_close(tensorlend_server *server);

/**
 * A lease on the request's value, borrowed from the request; NULL for NULL. tensorlend_lease_clone makes a handle
 * that outlives the request.
 */
const tensorlend_lease *tensorlend_request_value(const tensorlend_request *request);

/**
 * Announces that the response comes within about ten microseconds, so that a sleeping caller wakes up in the meantime.
 * Worthwhile after long work.
 */
tensorlend_status tensorlend_request_soon(const tensorlend_request *request);

/**
 * Responds to a request with a tensor or a dataset. Takes *request and *response over, and ends the request's
 * lease. A caller receives its responses in the order of its requests. A caller that is gone is no error.
 *
 * TENSORLEND_ARGUMENT for a draft of another client, and for a dataset without tensors: the caller then gets
 * TENSORLEND_REQUEST_FAILED. TENSORLEND_LIMIT without memory for the response's description.
 */
tensorlend_status tensorlend_request_respond(tensorlend_request **request,
                                             tensorlend_draft **response);

/**
 * Refuses a request: its caller gets TENSORLEND_REQUEST_FAILED with this text, cut to 64 KiB. Takes *request over.
 */
tensorlend_status tensorlend_request_fail(tensorlend_request **request,
                                          const char *why);

/**
 * Drops a request that was not responded to: its caller gets TENSORLEND_REQUEST_FAILED. NULL does nothing.
 */
void tensorlend_request_free(tensorlend_request *request);

/**
 * Adds a model, or replaces it: runners load it by themselves. onnx has the bytes of an ONNX file, which are copied.
 * options is JSON, as the manual's page on models describes it: {"batch_max": 8}; NULL for the defaults. version
 * may be NULL.
 *
 * TENSORLEND_ARGUMENT for invalid options, and for no bytes; otherwise as tensorlend_put.
 */
tensorlend_status tensorlend_model_put(const tensorlend_client *client,
                                       const char *model,
                                       const void *onnx,
                                       uint64_t bytes,
                                       const char *options,
                                       tensorlend_version *version);

/**
 * Leases a model's bytes; the lease's metadata are its options, as JSON. TENSORLEND_NOT_FOUND.
 */
tensorlend_status tensorlend_model_get(const tensorlend_client *client,
                                       const char *model,
                                       tensorlend_lease **onnx);

/**
 * Deletes a model: its runners end. Writes whether it existed to *existed, unless that is NULL.
 */
tensorlend_status tensorlend_model_delete(const tensorlend_client *client,
                                          const char *model,
                                          bool *existed);

/**
 * Opens a model for one or many runs over one connection to a runner. Asks the daemon nothing: the first run connects.
 */
tensorlend_status tensorlend_model_open(const tensorlend_client *client,
                                        const char *name,
                                        tensorlend_model **model);

/**
 * The model's name, borrowed from the handle; NULL for NULL.
 */
const char *tensorlend_model_name(const tensorlend_model *model);

/**
 * Closes a model's connection, and frees the handle; NULL does nothing. Leases on its outputs remain valid.
 */
void tensorlend_model_close(tensorlend_model *model);

/**
 * Creates a request without inputs, for all outputs.
 */
tensorlend_status tensorlend_model_request_new(tensorlend_model_request **request);

/**
 * Adds an input that the request contains: a tensor in host memory. Takes *tensor over, unless it fails.
 *
 * TENSORLEND_ARGUMENT for a dataset.
 */
tensorlend_status tensorlend_model_request_input(tensorlend_model_request *request,
                                                 const char *input,
                                                 tensorlend_draft **tensor);

/**
 * Adds an input that is a tensor of the namespace, by its name. The runner reads its value when it takes the request.
 */
tensorlend_status tensorlend_model_request_input_from(tensorlend_model_request *request,
                                                      const char *input,
                                                      const char *name);

/**
 * Sets the steps that prepare an image as this input: a JSON list, as the manual's page on models describes it:
 * [{"scale": 0.00392157}, "chw", "batch"]. TENSORLEND_ARGUMENT for an unknown step.
 */
tensorlend_status tensorlend_model_request_prepare(tensorlend_model_request *request,
                                                   const char *input,
                                                   const char *steps);

/**
 * Requests an output: in the response if name is NULL, otherwise published by the runner under that name. A request
 * that names no outputs gets all of them in the response.
 */
tensorlend_status tensorlend_model_request_output(tensorlend_model_request *request,
                                                  const char *output,
                                                  const char *name);

/**
 * Frees a request that was not taken over; NULL does nothing.
 */
void tensorlend_model_request_free(tensorlend_model_request *request);

/**
 * Runs a model: sends the request to a runner, and waits for the response timeout_ns nanoseconds at most, without
 * limit if that is below 0. Takes *request over. The response is a dataset of outputs by name.
 *
 * If a runner ends without a fault of the model, a request whose inputs are all names is sent again, so that the model
 * may run twice. TENSORLEND_NOT_FOUND if there is no such model; TENSORLEND_REQUEST_FAILED with the reason if the
 * runner refused the request or the model failed; TENSORLEND_SERVER_GONE; TENSORLEND_TIMEOUT.
 */
tensorlend_status tensorlend_model_run(tensorlend_model *model,
                                       tensorlend_model_request **request,
                                       int64_t timeout_ns,
                                       tensorlend_lease **response);

/**
 * Writes the times of a response in nanoseconds: to *queue_ns the time from sending the request to its run, to *run_ns the
 * time of the model alone. Either pointer may be NULL. TENSORLEND_ARGUMENT for a dataset that no runner made.
 */
tensorlend_status tensorlend_model_times(const tensorlend_lease *response,
                                         uint64_t *queue_ns,
                                         uint64_t *run_ns);

/**
 * Writes to *version the version under which the runner published an output: zeros if the runner did not publish it.
 */
tensorlend_status tensorlend_model_published(const tensorlend_lease *response,
                                             const char *output,
                                             tensorlend_version *version);

/**
 * Copies shape's elements, row-major, and publishes them under a name of another machine, "NODE/NAME". Returns when
 * the value is published there; that machine's configuration must allow it.
 *
 * TENSORLEND_REMOTE for an unknown or unreachable machine, and for a machine that refuses; TENSORLEND_TIMEOUT without a
 * response in time (tensorlend_options_remote_timeout): the value may have been published; otherwise as tensorlend_create.
 */
tensorlend_status tensorlend_put_remote(const tensorlend_client *client,
                                        const char *name,
                                        tensorlend_dtype dtype,
                                        uint32_t ndim,
                                        const uint64_t *shape,
                                        const void *data);

/**
 * As tensorlend_put_remote, for a draft of a tensor or a dataset in host memory. Takes *draft over.
 */
tensorlend_status tensorlend_publish_remote(const tensorlend_client *client,
                                            tensorlend_draft **draft,
                                            const char *name);

/**
 * Fetches the items of a list of another machine, "NODE/LIST", that are not on this machine yet, and waits until they are.
 * Afterwards tensorlend_list_get_range finds them under that name. Writes the number of items to *length.
 *
 * TENSORLEND_REMOTE; TENSORLEND_TIMEOUT, after which you can call this again: fetched items stay.
 */
tensorlend_status tensorlend_fetch_list(const tensorlend_client *client,
                                        const char *list,
                                        uint64_t *length);

/**
 * Lists the machines that this machine's gateway has seen, and this machine: entries of TENSORLEND_KIND_NODE. No entries
 * without a gateway. Reads shared memory, and does not ask the gateway.
 */
tensorlend_status tensorlend_list_nodes(const tensorlend_client *client,
                                        tensorlend_listing **listing);

/**
 * Lists the names, streams and lists of other machines that match the pattern glob ("NODE/a*", for example), followed
 * by an entry of TENSORLEND_KIND_NODE for each machine that did not respond. cached and stale of an entry describe
 * the copy on this machine.
 *
 * TENSORLEND_REMOTE if the gateway does not respond; TENSORLEND_TIMEOUT.
 */
tensorlend_status tensorlend_list_remote_names(const tensorlend_client *client,
                                               const char *glob,
                                               tensorlend_listing **listing);

/**
 * Another name of tensorlend_list_remote_names, for programs that were compiled with it.
 */
tensorlend_status tensorlend_list_remote(const tensorlend_client *client,
                                         const char *glob,
                                         tensorlend_listing **listing);

/**
 * Asks the gateway where a name of another machine is, as a listing of one entry: its label is the machine, alive
 * is whether the machine can be reached, and cached and stale describe the copy on this machine. No entry for a
 * name of this machine, or of an unknown one.
 */
tensorlend_status tensorlend_placement(const tensorlend_client *client,
                                       const char *name,
                                       tensorlend_listing **listing);

/**
 * Lists the devices whose memory the daemon lends, whether or not this process sees them: none if the daemon lends host memory
 * only. Loads the driver if the list has any device.
 */
tensorlend_status tensorlend_list_devices(const tensorlend_client *client,
                                          tensorlend_devices **devices);

/**
 * Number of devices; 0 for NULL.
 */
uint64_t tensorlend_devices_count(const tensorlend_devices *devices);

/**
 * A device by its index in the list, borrowed from the list; NULL beyond the end.
 */
const tensorlend_device *tensorlend_devices_at(const tensorlend_devices *devices, uint64_t number);

/**
 * Frees a list of devices; NULL does nothing.
 */
void tensorlend_devices_free(tensorlend_devices *devices);

/**
 * Creates a tensor in a device's memory, where the program's kernels write it: row-major, with ndim sizes in
 * elements (0 to 16; shape may be NULL for 0). device is "cuda:0" for this process's first device, or a UUID. Its
 * bytes keep their previous contents until they are written.
 *
 * The draft is used like a draft in host memory. tensorlend_publish and tensorlend_stream_send wait until the device work
 * on the draft is done: the work of the streams that were recorded with tensorlend_draft_record_stream. If no stream is
 * recorded, and the program has called tensorlend_draft_device_data, they wait for all work in the device's primary context.
 * tensorlend_draft_free waits in this second case only.
 *
 * TENSORLEND_DEVICE without such a device, or if the daemon lends no memory of it; otherwise as tensorlend_create.
 */
tensorlend_status tensorlend_create_on(const tensorlend_client *client,
                                       const char *device,
                                       tensorlend_dtype dtype,
                                       uint32_t ndim,
                                       const uint64_t *shape,
                                       tensorlend_draft **draft);

/**
 * As tensorlend_create_on, for work in stream, which the draft records: a CUstream or cudaStream_t of the
 * device's primary context; NULL for the legacy default stream. The stream must exist until every draft and lease on
 * which it was recorded has ended.
 */
tensorlend_status tensorlend_create_on_stream(const tensorlend_client *client,
                                              const char *device,
                                              void *stream,
                                              tensorlend_dtype dtype,
                                              uint32_t ndim,
                                              const uint64_t *shape,
                                              tensorlend_draft **draft);

/**
 * Copies shape's elements, row-major, from host memory to a device and publishes them there. Returns when the copy is
 * done. version may be NULL. Errors are those of tensorlend_create_on and tensorlend_publish.
 */
tensorlend_status tensorlend_put_on(const tensorlend_client *client,
                                    const char *device,
                                    const char *name,
                                    tensorlend_dtype dtype,
                                    uint32_t ndim,
                                    const uint64_t *shape,
                                    const void *data,
                                    tensorlend_version *version);

/**
 * Address of the draft's first byte on its device, a multiple of 512, valid until the draft is taken over or freed; 0
 * for a draft in host memory, for NULL, and in the child of a fork.
 */
uint64_t tensorlend_draft_device_data(tensorlend_draft *draft);

/**
 * Records a stream whose work writes the draft: publishing waits for that work. Once a stream is recorded, publishing waits
 * for recorded streams only.
 *
 * TENSORLEND_DEVICE for a stream of another context than the device's primary one.
 */
tensorlend_status tensorlend_draft_record_stream(tensorlend_draft *draft,
                                                 void *stream);

/**
 * Orders a stream after the work on the draft in all other recorded streams, and records the stream. Does not wait.
 */
tensorlend_status tensorlend_draft_order_stream(tensorlend_draft *draft,
                                                void *stream);

/**
 * Copies all bytes of the draft in from host memory, exactly tensorlend_draft_bytes. Returns when the copy is done.
 */
tensorlend_status tensorlend_draft_copy_from_host(tensorlend_draft *draft,
                                                  const void *data,
                                                  uint64_t bytes);

/**
 * Copies all bytes of the draft in from elsewhere on its device, as work of stream, and records the stream. Does not wait:
 * the tensorlend_draft_bytes bytes at from must stay until the stream has passed the copy, at the latest until the draft
 * is published or tensorlend_draft_finish has returned.
 */
tensorlend_status tensorlend_draft_copy_from_device(tensorlend_draft *draft,
                                                    uint64_t from,
                                                    void *stream);

/**
 * Waits until the work on the draft is done, as publishing does.
 */
tensorlend_status tensorlend_draft_finish(tensorlend_draft *draft);

/**
 * Publishes a draft on a device while work on it is still pending in stream, which first waits for the work in all other
 * recorded streams. The call does not wait. Takes *draft over. version may be NULL.
 *
 * Readers wait for an event of this process: tensorlend_get_device on the host, tensorlend_lease_order_stream in a
 * stream. If this process is killed before the work is done, they get TENSORLEND_DEVICE.
 */
tensorlend_status tensorlend_publish_early(tensorlend_draft **draft,
                                           const char *name,
                                           void *stream,
                                           tensorlend_version *version);

/**
 * Leases the name's current tensor on a device, without a copy. If the tensor was published early, waits for the producer's
 * work on it. tensorlend_lease_tensor describes it, with its address on the device.
 *
 * TENSORLEND_NOT_FOUND; TENSORLEND_KIND for a tensor in host memory and for a dataset; TENSORLEND_DEVICE if this
 * process cannot use the device. tensorlend_get_value, tensorlend_wait_newer and subscriptions lease tensors on
 * devices, too, and do not wait for the work: call tensorlend_lease_finish or tensorlend_lease_order_stream.
 */
tensorlend_status tensorlend_get_device(const tensorlend_client *client,
                                        const char *name,
                                        tensorlend_lease **lease);

/**
 * As tensorlend_get_device, without waiting for the producer's work: call tensorlend_lease_order_stream for each
 * stream that reads the tensor.
 */
tensorlend_status tensorlend_get_device_early(const tensorlend_client *client,
                                              const char *name,
                                              tensorlend_lease **lease);

/**
 * Records a stream whose work reads the leased tensor: after tensorlend_lease_free the memory is kept until the work
 * that is in the stream by then is done. Without recorded streams the program must have waited for its own work.
 *
 * TENSORLEND_DEVICE for a stream of another context than the device's primary one; TENSORLEND_ARGUMENT for a lease
 * in host memory.
 */
tensorlend_status tensorlend_lease_record_stream(const tensorlend_lease *lease,
                                                 void *stream);

/**
 * Orders a stream after the producer's work on a tensor that was published early, and records the stream. Does not wait.
 * TENSORLEND_DEVICE if the producer has ended before its work was done.
 */
tensorlend_status tensorlend_lease_order_stream(const tensorlend_lease *lease,
                                                void *stream);

/**
 * Waits until the producer's work on a tensor that was published early is done. TENSORLEND_DEVICE if the producer has ended
 * before its work was done.
 */
tensorlend_status tensorlend_lease_finish(const tensorlend_lease *lease);

/**
 * Writes to *finished whether the producer's work on the tensor is known to be done: always, unless it was published
 * early. A reader that made a stream wait calls this after its own work: true means that the work read the finished
 * tensor. TENSORLEND_DEVICE if the producer has ended before its work was done.
 */
tensorlend_status tensorlend_lease_is_finished(const tensorlend_lease *lease,
                                               bool *finished);

/**
 * Writes this client's memory on one device in bytes: to *slot_bytes that of its tensors, to *segment_bytes that of the
 * segments that the daemon lends to it. Either pointer may be NULL.
 */
tensorlend_status tensorlend_device_memory(const tensorlend_client *client,
                                           const char *device,
                                           uint64_t *slot_bytes,
                                           uint64_t *segment_bytes);

/**
 * Asks the daemon for its metrics.
 */
tensorlend_status tensorlend_stat_get(const tensorlend_client *client, tensorlend_stat **stat);

/**
 * The metrics, borrowed; NULL for NULL.
 */
const tensorlend_figures *tensorlend_stat_figures(const tensorlend_stat *stat);

/**
 * Frees the metrics; NULL does nothing.
 */
void tensorlend_stat_free(tensorlend_stat *stat);

/**
 * Starts or stops counting allocations.
 */
tensorlend_status tensorlend_statistics_enable(const tensorlend_client *client, bool enable);

/**
 * Writes the counts to *statistics: zeros unless counting is on.
 */
tensorlend_status tensorlend_statistics_get(const tensorlend_client *client,
                                            tensorlend_statistics *statistics);

/**
 * Writes every allocation and free of this client into a file from now on, as CSV; tensorlend replay plays it back.
 */
tensorlend_status tensorlend_log_start(const tensorlend_client *client,
                                       const char *file);

/**
 * Ends the log, and writes the events that are still buffered.
 */
tensorlend_status tensorlend_log_stop(const tensorlend_client *client);

/**
 * Returns this client's outstanding allocations: drafts, the values of names, streams and lists, and replaced values
 * that are not reclaimed yet. TENSORLEND_ARGUMENT unless the client was opened with tensorlend_options_tracking.
 */
tensorlend_status tensorlend_outstanding_get(const tensorlend_client *client,
                                             tensorlend_outstanding **outstanding);

/**
 * A report: each allocation with its bytes, its age and its holder. Borrowed; NULL for NULL.
 */
const char *tensorlend_outstanding_text(const tensorlend_outstanding *outstanding);

/**
 * Number of outstanding allocations; 0 for NULL.
 */
uint64_t tensorlend_outstanding_count(const tensorlend_outstanding *outstanding);

/**
 * Bytes of all outstanding allocations; 0 for NULL.
 */
uint64_t tensorlend_outstanding_bytes(const tensorlend_outstanding *outstanding);

/**
 * Frees the list of outstanding allocations; NULL does nothing.
 */
void tensorlend_outstanding_free(tensorlend_outstanding *outstanding);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TENSORLEND_H */
