/* The C interface of tensorlend: tensors in shared memory, lent between processes without a copy.
 *
 * This file is generated: docs/c.md is the guide, bindings/c/src the source.
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
 * Number of this binary interface, and of the shared library libtensorlend.so.0. A release that
 * removes or changes a function, a constant or a field raises this number.
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
 * The result of a call. The numbers are stable. Later versions may add more.
 */
enum tensorlend_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The call succeeded.
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
     * No daemon responds, or the daemon has disconnected or ended this session. Connect again.
     */
    TENSORLEND_DISCONNECTED = 3,
    /**
     * A limit of the daemon's configuration, of this client or of the machine is reached.
     */
    TENSORLEND_LIMIT = 4,
    /**
     * An argument is invalid, such as NULL, a bad name, a shape, a length, or a handle that is
     * still in use.
     */
    TENSORLEND_ARGUMENT = 5,
    /**
     * The element type is one that tensorlend does not support.
     */
    TENSORLEND_DTYPE = 6,
    /**
     * The name has a dataset and the call needs a tensor, or the reverse.
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
     * The parent of this process opened the client. Connect in the child.
     */
    TENSORLEND_FORKED = 10,
    /**
     * The daemon refuses the request. This user may not write, or may not join the namespace, or
     * a client produces the stream already.
     */
    TENSORLEND_REFUSED = 11,
    /**
     * A system call failed.
     */
    TENSORLEND_SYSTEM = 12,
    /**
     * The value's record is invalid, because its publisher wrote it wrongly. Only values of that
     * client are affected.
     */
    TENSORLEND_DAMAGED = 13,
    /**
     * The library, the daemon and the kernel are incompatible.
     */
    TENSORLEND_INCOMPATIBLE = 14,
    /**
     * A bug of this library. Free the handles of the failed call, and report the bug with the
     * message.
     */
    TENSORLEND_PANIC = 15,
    /**
     * The name belongs to another machine, and that machine is unreachable or refuses. Or this
     * machine's gateway does not respond.
     */
    TENSORLEND_REMOTE = 16,
    /**
     * The server refused the request, or could not carry it out. The error message contains the
     * server's reason.
     */
    TENSORLEND_REQUEST_FAILED = 17,
    /**
     * The server ended before it responded. It may have carried the request out.
     */
    TENSORLEND_SERVER_GONE = 18,
    /**
     * There is no such device, or the daemon lends none of its memory. Or the driver failed, or a
     * producer ended before its work was done.
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
     * Sending waits until the subscriber has taken the message.
     */
    TENSORLEND_POLICY_BLOCK = 0,
    /**
     * A new message replaces the oldest one. The subscriber loses the oldest message, and can read
     * the number of lost messages.
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
 * The comparison of a list's length with a number of items.
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
 * The limit that a call has reached if it fails with TENSORLEND_LIMIT. The numbers are stable.
 * Later versions may add more.
 */
enum tensorlend_limit
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * None, because the call failed for another reason.
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
     * bytes_max of a namespace, for its segments, names and descriptors.
     */
    TENSORLEND_LIMIT_NAMESPACE_BYTES = 5,
    /**
     * uid.bytes_max, for a user's segments, names and descriptors.
     */
    TENSORLEND_LIMIT_USER_BYTES = 6,
    /**
     * cuda.bytes_max, for the lent bytes of one device.
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
     * uid.device_bytes_max of a user.
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
     * Names of a namespace that are longer than 96 bytes. At most an eighth of names_max may be so
     * long.
     */
    TENSORLEND_LIMIT_LONG_NAMES = 16,
    /**
     * Cells of one client. The maximum depends on names_max of its namespace.
     */
    TENSORLEND_LIMIT_CELLS = 17,
    /**
     * members_max of a namespace, for its clients and for disconnected clients whose tensors
     * remain.
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
     * The daemon spills nothing, because [spill] has no directory.
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
 * A caller of one service, which sends requests to the service's servers and receives their
 * responses. Only one thread at a time may use a caller, so open one for each thread.
 * tensorlend_caller_close ends a caller.
 */
typedef struct tensorlend_caller tensorlend_caller;

/**
 * A session with the daemon, in one namespace. Several threads may use a client at once. Published
 * tensors outlive the session.
 */
typedef struct tensorlend_client tensorlend_client;

/**
 * Devices whose memory the daemon lends. tensorlend_devices_free frees them.
 */
typedef struct tensorlend_devices tensorlend_devices;

/**
 * A tensor or a dataset that the program writes in the memory where its readers will see it. Other
 * clients see the draft once it is published, sent or appended. Only one thread at a time may use
 * a draft.
 *
 * Calls that publish, send or append a draft take the draft over. Such a call gets the address of
 * the variable that holds the draft. The call sets the variable to NULL as soon as it has taken
 * the draft over, even if it fails later. tensorlend_draft_free frees a draft that was not taken
 * over.
 */
typedef struct tensorlend_draft tensorlend_draft;

/**
 * The producer's handle of a name that keeps its last values. Any thread may use the handle.
 * tensorlend_history_close frees it.
 */
typedef struct tensorlend_history tensorlend_history;

/**
 * The right to read a tensor or a dataset in place. While the lease lives, its memory is not
 * reused, even if the name, the producer or the daemon ends. Several threads may use a lease at
 * once. tensorlend_lease_free ends it.
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
 * A connection to the runners of one model. Only one thread at a time may use a connection, so
 * open one for each thread. tensorlend_model_close ends it.
 */
typedef struct tensorlend_model tensorlend_model;

/**
 * A request to a model: its inputs, and the destinations of its outputs. Only one thread at a time
 * may use a request. tensorlend_model_run takes the request over.
 * tensorlend_model_request_free frees a request that was not taken over.
 */
typedef struct tensorlend_model_request tensorlend_model_request;

/**
 * Options of a connection: daemon, namespace, label, limits.
 */
typedef struct tensorlend_options tensorlend_options;

/**
 * The allocations of a client that are not freed at one moment. tensorlend_outstanding_free
 * frees this object.
 */
typedef struct tensorlend_outstanding tensorlend_outstanding;

/**
 * A queue with many producers and consumers, in which each item goes to one consumer. Any thread
 * may use it. tensorlend_queue_free frees the handle, but the queue and its items remain. The
 * items are those of the list with the queue's name, so tensorlend_list_clear deletes the queue.
 */
typedef struct tensorlend_queue tensorlend_queue;

/**
 * An item that this consumer has claimed: a lease on its value, and the right to confirm it. No
 * other consumer gets the item unless this consumer gives it back. If the consumer's process ends
 * before it confirms the item, another consumer gets the item. Only one thread at a time may use
 * the handle.
 *
 * tensorlend_queue_item_done and tensorlend_queue_item_give_back take the item over, and set
 * the caller's variable to NULL. tensorlend_queue_item_free gives an item back that was not
 * taken over.
 */
typedef struct tensorlend_queue_item tensorlend_queue_item;

/**
 * A request that a server received: a lease on its value, and the right to respond once. Any thread may respond, but only one
 * thread at a time uses the handle. A program may respond to its requests in any order. A request may outlive the server's
 * handle.
 *
 * tensorlend_request_respond and tensorlend_request_fail take the request over, and set the
 * caller's variable to NULL. tensorlend_request_free drops a request that was not taken over.
 * The request's caller then gets TENSORLEND_REQUEST_FAILED.
 */
typedef struct tensorlend_request tensorlend_request;

/**
 * A server of a service, which receives requests from all callers in turn. Only one thread at a
 * time may use a server. Several servers share the callers of a service. tensorlend_server_close
 * ends a server.
 */
typedef struct tensorlend_server tensorlend_server;

/**
 * A snapshot of the daemon's metrics. tensorlend_stat_free frees it.
 */
typedef struct tensorlend_stat tensorlend_stat;

/**
 * The producer's handle of a stream. Any thread may use the handle. tensorlend_stream_close
 * closes the stream.
 */
typedef struct tensorlend_stream tensorlend_stream;

/**
 * A subscription to a stream. Only one thread at a time may use a subscription.
 * tensorlend_subscription_close ends it.
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
 * An element type. The lowest byte is the code of DLPack's DLDataType, the next byte the number
 * of bits. The upper two bytes are the number of lanes.
 */
typedef uint32_t tensorlend_dtype;

/**
 * A function that the library calls before an allocation of bytes bytes fails at the client's or
 * the daemon's memory limit. attempt is 1 for the first call for the allocation, and 2 for the
 * second. The function may delete names. It may also free drafts, except those that the program has
 * passed to the allocating call. It returns whether to try again.
 */
typedef bool (*tensorlend_relief)(void *context, uint64_t bytes, uint32_t attempt);

/**
 * A tensor that the program reads in place. The structure is borrowed from a lease, and valid as
 * long as that lease lives. Only the library creates these structures. Later versions may add
 * fields at the end. The description is a checked copy. The elements are the producer's own
 * memory. A broken or hostile producer may change them at any time, so copy elements before you
 * check them.
 */
typedef struct {
    /**
     * The tensor's name in its dataset; NULL for a tensor outside of datasets.
     */
    const char *name;
    /**
     * The address of the element with index 0, read-only. NULL for a tensor on a device, and in
     * results of tensorlend_info, which only describe tensors.
     */
    const void *data;
    /**
     * Sizes in elements, ndim of them.
     */
    const uint64_t *shape;
    /**
     * Strides in elements, ndim of them. NULL only if ndim is 0.
     */
    const int64_t *strides;
    /**
     * Metadata of metadata_bytes bytes; NULL if that length is 0.
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
     * Bytes of all elements: elements times the bytes of one element.
     */
    uint64_t nbytes;
    /**
     * Timestamp that the tensor's producer set, in nanoseconds; 0 if none.
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
     * Whether the elements are contiguous, in C order. Then nbytes bytes can be read at data.
     */
    bool row_major;
    /**
     * UUID of the device in whose memory the elements are, "GPU-..."; NULL for host memory.
     */
    const char *device;
    /**
     * Address of the element with index 0 on the device, read-only. 0 for host memory, and for a
     * dataset's tensor on a device that this process cannot use.
     */
    uint64_t device_data;
    /**
     * The device's number in this process, as N in "cuda:N"; 0 if device_data is 0.
     */
    uint32_t device_number;
} tensorlend_tensor;

/**
 * An entry of a listing, borrowed from the listing. An entry is a name with its value, a stream, a
 * list, a model or a machine. A stream or a list has only name, kind and count. A model has
 * also nbytes and version, and a machine alive and here. Only the library creates these
 * structures. Later versions may add fields at the end.
 */
typedef struct {
    /**
     * The entry's name.
     */
    const char *name;
    /**
     * The label of the name's owner. In results of tensorlend_placement, the machine of the
     * name. Empty if there is none.
     */
    const char *label;
    /**
     * Descriptions of count tensors: of the one tensor, or of all tensors of a dataset. NULL for
     * streams and lists.
     */
    const tensorlend_tensor *const *tensors;
    /**
     * Number of tensors of a name, of subscribers of a stream, or of items of a list.
     */
    uint64_t count;
    /**
     * Bytes of the elements of all tensors together.
     */
    uint64_t nbytes;
    /**
     * Length of the metadata, in bytes.
     */
    uint64_t metadata_bytes;
    /**
     * Timestamp that the value's producer set, in nanoseconds; 0 if none.
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
     * Whether the copy or the entry may be old, because the other machine cannot be reached.
     */
    bool stale;
    /**
     * Whether the entry is the machine on which the program runs.
     */
    bool here;
} tensorlend_entry;

/**
 * A device whose memory the daemon lends, borrowed from its list. Only the library creates these
 * structures. Later versions may add fields at the end.
 */
typedef struct {
    /**
     * UUID, "GPU-...", which is the same in every process.
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
     * Length of an ordinary segment, in bytes. With the allocator "async", the unit of slots.
     */
    uint64_t segment_bytes;
    /**
     * Length of the longest segment, in bytes.
     */
    uint64_t segment_bytes_max;
    /**
     * The device's number in this process, as N in "cuda:N"; -1 if this process does not see the
     * device.
     */
    int32_t number;
} tensorlend_device;

/**
 * The daemon's metrics, borrowed from their handle. Only the library creates these structures.
 * Later versions may add fields at the end.
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
     * Bytes of all segments: lent, spare and idle.
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
     * Bytes of names and descriptors that clients and the daemon share.
     */
    uint64_t bytes_sheets;
    /**
     * Names in all namespaces.
     */
    uint64_t names;
    /**
     * Names whose time to live ended.
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
     * Requests to which the daemon responded.
     */
    uint64_t requests;
    /**
     * Requests that the daemon refused.
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
     * Bytes of segments that the daemon has spilled to files because memory was short.
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
     * Requests refused that the daemon never grants, because they are damaged or impossible, or
     * the client lacks the rights.
     */
    uint64_t refusals_invalid;
    /**
     * Requests refused because another client or the daemon acted first.
     */
    uint64_t refusals_race;
} tensorlend_figures;

/**
 * Allocations of a client since counting began. The caller owns the structure, so later versions
 * add no fields.
 */
typedef struct {
    /**
     * Bytes allocated minus bytes freed. Negative if more bytes were freed than allocated since
     * counting began.
     */
    int64_t current_bytes;
    /**
     * Allocations minus frees.
     */
    int64_t current_count;
    /**
     * The largest current_bytes so far, at least 0.
     */
    uint64_t peak_bytes;
    /**
     * The largest current_count so far.
     */
    uint64_t peak_count;
    /**
     * Bytes of all allocations, including freed ones.
     */
    uint64_t total_bytes;
    /**
     * Number of all allocations, including freed ones.
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
 * Brain floating point, with 8 bits of exponent and 7 bits of mantissa.
 */
#define TENSORLEND_BF16 69636

/**
 * Complex number of two f32.
 */
#define TENSORLEND_C64 81925

/**
 * Complex number of two f64.
 */
#define TENSORLEND_C128 98309

/**
 * Boolean of one byte, 0 or 1. The library does not check the bytes that a producer wrote. Readers
 * may find other values, which mean true.
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
 * Returns the error message of this thread's last failed call: the event, the object and the
 * remedy. Never NULL; empty if no call has failed. The text is valid until another call of this
 * thread fails, so copy it to keep it.
 */
const char *tensorlend_error_message(void);

/**
 * Returns the stable code of this thread's last failed call, such as "TL-0301". The code is the
 * same in every language, and the manual's page on errors explains it. Never NULL; empty if no
 * call has failed. The text is valid until another call of this thread fails.
 */
const char *tensorlend_error_code(void);

/**
 * Returns the limit that this thread's last failed call has reached, as a tensorlend_limit.
 * Returns 0 if the call failed for another reason, or no call has failed. Programs should decide
 * by this number, not by words of the message.
 */
int32_t tensorlend_error_limit(void);

/**
 * Returns the name of a limit, such as "pool-bytes", or "unknown" for other numbers. Never NULL.
 * The text is valid until the process ends.
 */
const char *tensorlend_limit_name(int32_t limit);

/**
 * Returns the name of a status, such as "not found", or "unknown" for other numbers. Never NULL.
 * The text is valid until the process ends.
 */
const char *tensorlend_status_name(int32_t status);

/**
 * Returns the library's TENSORLEND_ABI. The number differs from the header's if the program was
 * built with the header of another version.
 */
uint32_t tensorlend_abi(void);

/**
 * Returns the library's version, such as "0.1.0 (70404839e1c2 2026-11-29, protocol 8, layout 7)": the release, the
 * commit and its date, and the newest protocol and layout. The text is valid until the process ends.
 */
const char *tensorlend_library_version(void);

/**
 * Returns true if both versions belong to the same value of the same name.
 */
bool tensorlend_version_equal(tensorlend_version one, tensorlend_version other);

/**
 * Bytes of one element; 0 for a type that tensorlend does not support.
 */
uint64_t tensorlend_dtype_bytes(tensorlend_dtype dtype);

/**
 * Returns the name of the type, such as "f32". The text is valid until the process ends. Returns
 * "unknown" for a type that tensorlend does not support.
 */
const char *tensorlend_dtype_name(tensorlend_dtype dtype);

/**
 * Creates default options. tensorlend_options_free frees them.
 */
tensorlend_status tensorlend_options_new(tensorlend_options **options);

/**
 * Frees options. NULL does nothing.
 */
void tensorlend_options_free(tensorlend_options *options);

/**
 * Adds the socket of a daemon. If the program adds several sockets, tensorlend_connect tries
 * them in that order. Default: $TENSORLEND_SOCKET, else the user's daemon at
 * $XDG_RUNTIME_DIR/tensorlend.sock, else the system's daemon at
 * /run/tensorlend/tensorlend.sock.
 */
tensorlend_status tensorlend_options_socket(tensorlend_options *options, const char *socket);

/**
 * Sets the namespace to join, as the daemon's configuration names it. Default: the private namespace of this user.
 */
tensorlend_status tensorlend_options_namespace(tensorlend_options *options,
                                               const char *name);

/**
 * Sets the client's label in listings. Only its first 63 bytes are used. Default: the program's
 * name.
 */
tensorlend_status tensorlend_options_label(tensorlend_options *options, const char *label);

/**
 * If harden is true, protects this process from other processes of the same user. From the
 * connection on, they cannot trace the process, read or write its memory, or take its descriptors.
 * The process then writes no core dumps. Default: false.
 */
tensorlend_status tensorlend_options_harden(tensorlend_options *options, bool harden);

/**
 * Sets the timeout, in nanoseconds, of requests to this machine's gateway. It applies to calls
 * without a timeout argument, such as tensorlend_get of another machine's name, and
 * tensorlend_put_remote. Default: 60 seconds.
 */
tensorlend_status tensorlend_options_remote_timeout(tensorlend_options *options,
                                                    uint64_t timeout_ns);

/**
 * Sets the timeout, in nanoseconds, of requests to the daemon, at least a millisecond. After this
 * time a call fails with TENSORLEND_DISCONNECTED. Default: 30 seconds.
 */
tensorlend_status tensorlend_options_request_timeout(tensorlend_options *options,
                                                     uint64_t timeout_ns);

/**
 * Sets the maximum number of bytes that this client may use. An allocation above this limit fails
 * with TENSORLEND_LIMIT. Default: only the daemon's limits.
 */
tensorlend_status tensorlend_options_memory_limit(tensorlend_options *options, uint64_t bytes);

/**
 * Counts allocations from the connection on. tensorlend_statistics_get reads the statistics.
 * Default: off.
 */
tensorlend_status tensorlend_options_statistics(tensorlend_options *options);

/**
 * Writes every allocation into this file as CSV, as tensorlend_log_start does. Default:
 * $TENSORLEND_ALLOC_LOG, else none.
 */
tensorlend_status tensorlend_options_log(tensorlend_options *options, const char *file);

/**
 * Tracks outstanding allocations, which tensorlend_outstanding_get reports. Default: off.
 */
tensorlend_status tensorlend_options_tracking(tensorlend_options *options);

/**
 * Calls relief with context before an allocation fails. The callback runs on the allocating
 * threads, on several at a time. It may run as long as the client or another handle that came from
 * the client lives. It may use the client. Allocations of the callback itself fail without another
 * call of relief. The callback must return. It must not throw an exception or call longjmp.
 * Default: none.
 */
tensorlend_status tensorlend_options_on_memory_pressure(tensorlend_options *options,
                                                        tensorlend_relief relief,
                                                        void *context);

/**
 * Connects to the daemon. options may be NULL. The caller still owns the options after the call.
 * tensorlend_client_free ends the session. Leases, drafts, streams and subscriptions may outlive
 * the handle.
 *
 * Errors:
 * - TENSORLEND_DISCONNECTED if no daemon responds.
 * - TENSORLEND_INCOMPATIBLE if the daemon or the kernel is too old or too new.
 * - TENSORLEND_REFUSED for a namespace that this user may not join.
 */
tensorlend_status tensorlend_connect(const tensorlend_options *options, tensorlend_client **client);

/**
 * Frees the client. The session ends once every other handle that came from this client is freed,
 * too. NULL does nothing.
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
 * Sends the daemon a request without effect. Writes the duration of the round trip to
 * *nanoseconds, unless nanoseconds is NULL.
 */
tensorlend_status tensorlend_ping(const tensorlend_client *client, uint64_t *nanoseconds);

/**
 * Writes the bytes of this client's tensors to *slot_bytes: drafts, published tensors, and
 * replaced tensors that are not reclaimed yet. Writes the bytes of the segments that the daemon
 * lends to this client to *segment_bytes. Either pointer may be NULL.
 */
tensorlend_status tensorlend_memory(const tensorlend_client *client,
                                    uint64_t *slot_bytes,
                                    uint64_t *segment_bytes);

/**
 * Writes to *bytes the bytes of the namespace's tensors on which clients hold leases now.
 */
tensorlend_status tensorlend_leased_bytes(const tensorlend_client *client, uint64_t *bytes);

/**
 * Creates another handle of the same lease. The memory stays in place until both handles are
 * freed.
 */
tensorlend_status tensorlend_lease_clone(const tensorlend_lease *lease, tensorlend_lease **another);

/**
 * Ends a lease. NULL does nothing. Pointers that were borrowed from the lease are invalid after
 * the call.
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
 * Returns a dataset's tensor by its number, in the order in which the producer added the tensors.
 * The structure is borrowed from the lease; NULL if there is no such tensor.
 */
const tensorlend_tensor *tensorlend_lease_member(const tensorlend_lease *lease, uint64_t number);

/**
 * Returns a dataset's tensor by its name, borrowed from the lease; NULL if there is no such
 * tensor.
 */
const tensorlend_tensor *tensorlend_lease_find(const tensorlend_lease *lease, const char *name);

/**
 * Returns the metadata of the tensor or dataset, borrowed from the lease. Returns NULL if there is
 * no metadata, and for NULL. Writes the length of the metadata to *bytes, unless bytes is
 * NULL.
 */
const void *tensorlend_lease_metadata(const tensorlend_lease *lease, uint64_t *bytes);

/**
 * Timestamp of the tensor or dataset, in nanoseconds; 0 if none was set.
 */
uint64_t tensorlend_lease_timestamp(const tensorlend_lease *lease);

/**
 * Version of the leased value; zeros for NULL.
 */
tensorlend_version tensorlend_lease_version(const tensorlend_lease *lease);

/**
 * Returns true while the session that took the lease lives, so that the lease protects its memory.
 * A reader that must be sure calls this function after it has read the elements. The result is
 * false only after the daemon has ended the session of a running process, in the child of a fork,
 * and for NULL.
 */
bool tensorlend_lease_validate(const tensorlend_lease *lease);

/**
 * Copies the elements of a tensor, in C order, into to. bytes must be exactly the tensor's
 * nbytes. For a dataset, member is the name of one of its tensors. For a tensor, member is
 * NULL. For a tensor on a device, the call waits for the producer's work and for the copy.
 *
 * Errors:
 * - TENSORLEND_ARGUMENT for another length.
 * - TENSORLEND_NOT_FOUND if there is no such member.
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
 * Returns a lease by its number, borrowed from the handle; NULL beyond the end.
 * tensorlend_lease_clone creates a handle that the caller owns.
 */
const tensorlend_lease *tensorlend_leases_at(const tensorlend_leases *leases, uint64_t number);

/**
 * Ends all leases that were not cloned, and frees the handle. NULL does nothing.
 */
void tensorlend_leases_free(tensorlend_leases *leases);

/**
 * Creates a row-major tensor that the program writes in place. shape contains ndim sizes in
 * elements. ndim is 0 to 16, and shape may be NULL for 0. The tensor's bytes keep their
 * previous contents until the program writes them.
 *
 * Errors:
 * - TENSORLEND_ARGUMENT for an invalid shape.
 * - TENSORLEND_LIMIT when the memory limit is reached.
 */
tensorlend_status tensorlend_create(const tensorlend_client *client,
                                    tensorlend_dtype dtype,
                                    uint32_t ndim,
                                    const uint64_t *shape,
                                    tensorlend_draft **draft);

/**
 * Works like tensorlend_create, with ndim strides in elements (NULL for row-major order). The
 * element with index 0 is byte_offset bytes after the start of the data. A stride may be
 * negative if byte_offset leaves room for it.
 */
tensorlend_status tensorlend_create_strided(const tensorlend_client *client,
                                            tensorlend_dtype dtype,
                                            uint32_t ndim,
                                            const uint64_t *shape,
                                            const int64_t *strides,
                                            uint64_t byte_offset,
                                            tensorlend_draft **draft);

/**
 * Creates a dataset: several tensors that are published together. Readers see all of them or none.
 * Add the tensors with tensorlend_dataset_add.
 */
tensorlend_status tensorlend_create_dataset(const tensorlend_client *client,
                                            tensorlend_draft **dataset);

/**
 * Adds a tensor to a dataset, under a name that no other tensor of the dataset has. The tensor may
 * be in host memory or on a device. Publishing waits for the work on all tensors on devices.
 * Readers see the tensors in the order in which the program adds them. Takes *member over, unless the call
 * fails.
 *
 * Errors: TENSORLEND_ARGUMENT for a name that is already in the dataset, for the 4097th tensor,
 * and for a member that is a dataset or a draft of another client.
 */
tensorlend_status tensorlend_dataset_add(tensorlend_draft *dataset,
                                         const char *name,
                                         tensorlend_draft **member);

/**
 * Returns the memory in which the program writes a tensor, borrowed from the draft. Its length is
 * tensorlend_draft_bytes. It is aligned to 64 bytes, or to 4096 bytes if it has at least 4096
 * bytes. The child of a fork must not use the memory. Returns NULL for a dataset, for NULL, and
 * for a tensor on a device, which has tensorlend_draft_device_data.
 */
void *tensorlend_draft_data(tensorlend_draft *draft);

/**
 * Type of a tensor's elements; 0 for a dataset, and for NULL.
 */
tensorlend_dtype tensorlend_draft_dtype(const tensorlend_draft *draft);

/**
 * Returns the length of the memory at tensorlend_draft_data, including the gaps between strided
 * elements.
 */
uint64_t tensorlend_draft_bytes(const tensorlend_draft *draft);

/**
 * Sets metadata by a copy of any bytes, 64 KiB at most. Up to 32 bytes usually need no extra
 * memory.
 */
tensorlend_status tensorlend_draft_set_metadata(tensorlend_draft *draft,
                                                const void *metadata,
                                                uint64_t bytes);

/**
 * Sets a timestamp: nanoseconds since 1970, or nanoseconds of any clock that producer and readers
 * agree on.
 */
tensorlend_status tensorlend_draft_set_timestamp(tensorlend_draft *draft, uint64_t nanoseconds);

/**
 * Frees a draft that was not taken over. NULL does nothing. The draft's memory is free once its
 * DLPack tensors are freed, too.
 */
void tensorlend_draft_free(tensorlend_draft *draft);

/**
 * Publishes a draft under a name. Then every client of the namespace can read it. Takes *draft
 * over. Writes the value's version to *version, unless version is NULL.
 *
 * Errors:
 * - TENSORLEND_LIMIT if a limit of the daemon, the namespace or the user is reached.
 * - TENSORLEND_REFUSED if this client has no right to write.
 * - TENSORLEND_DISCONNECTED.
 */
tensorlend_status tensorlend_publish(tensorlend_draft **draft,
                                     const char *name,
                                     tensorlend_version *version);

/**
 * Works like tensorlend_publish, for a name that ends by itself. The name ends after ttl_ns
 * nanoseconds (0: no time limit), or with this client's session (TENSORLEND_EPHEMERAL in
 * flags), whichever is first. Needs a round trip to the daemon, unless both arguments are 0.
 */
tensorlend_status tensorlend_publish_for(tensorlend_draft **draft,
                                         const char *name,
                                         uint64_t ttl_ns,
                                         uint32_t flags,
                                         tensorlend_version *version);

/**
 * Copies shape's elements, row-major, from data into shared memory, and publishes the copy.
 * The call makes one copy, and does not serialize. version may be NULL. Errors are those of
 * tensorlend_create and tensorlend_publish.
 */
tensorlend_status tensorlend_put(const tensorlend_client *client,
                                 const char *name,
                                 tensorlend_dtype dtype,
                                 uint32_t ndim,
                                 const uint64_t *shape,
                                 const void *data,
                                 tensorlend_version *version);

/**
 * Leases the name's current tensor, without a copy. Later values of the name do not change this
 * tensor.
 *
 * Errors:
 * - TENSORLEND_NOT_FOUND.
 * - TENSORLEND_KIND for a dataset.
 * - TENSORLEND_LIMIT if the client already holds 4096 leases.
 */
tensorlend_status tensorlend_get(const tensorlend_client *client,
                                 const char *name,
                                 tensorlend_lease **lease);

/**
 * Leases the name's current dataset. One lease holds all of its tensors. Errors are those of
 * tensorlend_get.
 */
tensorlend_status tensorlend_get_dataset(const tensorlend_client *client,
                                         const char *name,
                                         tensorlend_lease **lease);

/**
 * Leases the name's current value, which is a tensor or a dataset.
 */
tensorlend_status tensorlend_get_value(const tensorlend_client *client,
                                       const char *name,
                                       tensorlend_lease **lease);

/**
 * Leases the current values of count names, which are tensors or datasets, in the order of the
 * names. Equivalent to one tensorlend_get_value for each name, and faster, because the cache misses
 * of up to 64 names overlap. The values are no snapshot: each is its name's value at some moment
 * during the call. A name may occur several times. Without names, there are no leases.
 *
 * Errors are those of tensorlend_get_value for the first name that fails. Then the call holds no
 * lease.
 */
tensorlend_status tensorlend_get_many(const tensorlend_client *client,
                                      const char *const *names,
                                      uint64_t count,
                                      tensorlend_leases **leases);

/**
 * Copies the name's current tensor, in C order, into to. bytes must be exactly the tensor's
 * size in bytes. version may be NULL.
 *
 * Errors:
 * - TENSORLEND_ARGUMENT for another length.
 * - Otherwise those of tensorlend_get.
 */
tensorlend_status tensorlend_get_into(const tensorlend_client *client,
                                      const char *name,
                                      void *to,
                                      uint64_t bytes,
                                      tensorlend_version *version);

/**
 * Works like tensorlend_get, but waits for a name that does not exist yet. Waits at most
 * timeout_ns nanoseconds, or without limit if timeout_ns is below 0. Fails with
 * TENSORLEND_TIMEOUT after that time.
 */
tensorlend_status tensorlend_wait_for(const tensorlend_client *client,
                                      const char *name,
                                      int64_t timeout_ns,
                                      tensorlend_lease **lease);

/**
 * Waits like tensorlend_wait_for, but for a tensor or dataset with a version other than seen.
 * seen is the tensorlend_lease_version of the last value. A version of zeros accepts any
 * value.
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
 * Writes the version of the name's value to *version, or zeros if the name does not exist. Takes
 * no lease.
 */
tensorlend_status tensorlend_current_version(const tensorlend_client *client,
                                             const char *name,
                                             tensorlend_version *version);

/**
 * Deletes a name. Writes whether the name existed to *existed, unless existed is NULL. Leases
 * on its value remain valid.
 */
tensorlend_status tensorlend_delete(const tensorlend_client *client,
                                    const char *name,
                                    bool *existed);

/**
 * Renames a value. A former value of the new name is replaced. Fails with TENSORLEND_NOT_FOUND
 * if from does not exist.
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
 * Appends an item, which is a tensor or a dataset, to a list. The first item creates the list.
 * Takes *item over. Writes the item's number in the list to *number, unless number is NULL.
 */
tensorlend_status tensorlend_list_append(const tensorlend_client *client,
                                         const char *list,
                                         tensorlend_draft **item,
                                         uint64_t *number);

/**
 * Appends copies of the current values of count names, at most 1,024. Either all copies are
 * appended or none. The names keep their values. Writes the number of the first item to *number,
 * unless number is NULL. Fails with TENSORLEND_NOT_FOUND if a name is missing, and with
 * TENSORLEND_ARGUMENT for more than 1,024 names. Then nothing is appended.
 */
tensorlend_status tensorlend_list_append_names(const tensorlend_client *client,
                                               const char *list,
                                               const char *const *names,
                                               uint64_t count,
                                               uint64_t *number);

/**
 * Writes the number of a list's items to *length, or 0 if the list does not exist.
 */
tensorlend_status tensorlend_list_length(const tensorlend_client *client,
                                         const char *list,
                                         uint64_t *length);

/**
 * Waits until the comparison of a list's length with items is true. how is a
 * tensorlend_length. Waits at most timeout_ns nanoseconds, or without limit if timeout_ns is
 * below 0. Writes the length to *length, unless length is NULL.
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
 * Leases the items first to end - 1 of a list, in order. The call ignores numbers beyond the
 * list's end. So with UINT64_MAX as end it leases all items from first on.
 *
 * Errors:
 * - TENSORLEND_NOT_FOUND if there is no such list.
 * - TENSORLEND_LIMIT for more items than a client can lease (4096).
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
 * Removes a list and its items. Writes whether the list existed to *existed, unless existed is
 * NULL. Leases on its items remain valid.
 */
tensorlend_status tensorlend_list_clear(const tensorlend_client *client,
                                        const char *list,
                                        bool *existed);

/**
 * Renames a list, and removes a list with the new name. Fails with TENSORLEND_NOT_FOUND if the
 * list from does not exist.
 */
tensorlend_status tensorlend_list_rename(const tensorlend_client *client,
                                         const char *from,
                                         const char *to);

/**
 * Opens a queue, which exists once it has an item. max_waiting is the maximum number of waiting
 * items: tensorlend_queue_put and tensorlend_queue_put_many wait for room. All producers share
 * one maximum: while the queue has items, the daemon refuses a put with a different one. 0 is the
 * maximum that another producer gave; without one, there is none.
 *
 * Errors: TENSORLEND_ARGUMENT for an invalid name, or a name of another machine, because a queue
 * serves the processes of one machine.
 */
tensorlend_status tensorlend_queue_open(const tensorlend_client *client,
                                        const char *name,
                                        uint64_t max_waiting,
                                        tensorlend_queue **queue);

/**
 * Appends an item, which is a tensor or a dataset. While the queue is full, waits at most
 * timeout_ns nanoseconds, or without limit if timeout_ns is below 0. Takes *item over, and
 * drops the item if the call fails. Writes the item's number, counted from 0, to *number, unless
 * number is NULL.
 *
 * Errors:
 * - TENSORLEND_TIMEOUT if the queue was full during the whole timeout.
 * - Otherwise those of tensorlend_list_append.
 */
tensorlend_status tensorlend_queue_put(const tensorlend_queue *queue,
                                       tensorlend_draft **item,
                                       int64_t timeout_ns,
                                       uint64_t *number);

/**
 * Appends count different items in one request, as adjacent items: all of them or none. While the queue has no room for all of
 * them, waits at most timeout_ns nanoseconds, or without limit if timeout_ns is below 0. Takes all items over, sets the
 * elements of items to NULL, and drops the items if the call fails. Writes the number of the first item to *number, unless
 * number is NULL. Without items, does nothing and writes 0.
 *
 * Errors:
 * - TENSORLEND_ARGUMENT for more than 1,024 items, or more than the queue's max_waiting. Also if an item is NULL or occurs
 *   twice, or if a DLPack tensor of an item is in use; then the elements of items are unchanged.
 * - TENSORLEND_TIMEOUT if the queue had no room for all items during the whole timeout.
 * - Otherwise those of tensorlend_list_append.
 */
tensorlend_status tensorlend_queue_put_many(const tensorlend_queue *queue,
                                            tensorlend_draft **items,
                                            uint64_t count,
                                            int64_t timeout_ns,
                                            uint64_t *number);

/**
 * Claims the first waiting item. While the queue is empty, waits at most timeout_ns nanoseconds,
 * or without limit if timeout_ns is below 0.
 *
 * Errors:
 * - TENSORLEND_TIMEOUT if the queue was empty during the whole timeout.
 * - TENSORLEND_REFUSED if this client has no right to write, or has already claimed 4096 items.
 * - TENSORLEND_LIMIT if the client already holds 4096 leases, where the item waits again.
 * - TENSORLEND_DAMAGED if a faulty producer appended the item, where the item is removed.
 */
tensorlend_status tensorlend_queue_get(const tensorlend_queue *queue,
                                       int64_t timeout_ns,
                                       tensorlend_queue_item **item);

/**
 * Confirms *item, as tensorlend_queue_item_done does, and claims the next item into the same variable, as
 * tensorlend_queue_get does: in one request. Takes the old item over, also if the call fails; the variable is NULL then. If
 * *item is NULL, only claims. The confirmation counts before any wait for the next item.
 *
 * Errors are those of tensorlend_queue_get: the old item is confirmed. TENSORLEND_DISCONNECTED: the client confirms it with
 * its next request.
 */
tensorlend_status tensorlend_queue_next(const tensorlend_queue *queue,
                                        int64_t timeout_ns,
                                        tensorlend_queue_item **item);

/**
 * Writes the number of items that wait for a consumer to *items. Asks the daemon.
 */
tensorlend_status tensorlend_queue_waiting(const tensorlend_queue *queue, uint64_t *items);

/**
 * Writes the number of items that consumers have claimed and not confirmed to *items. Sends the
 * daemon a request.
 */
tensorlend_status tensorlend_queue_claimed(const tensorlend_queue *queue, uint64_t *items);

/**
 * The queue's name, borrowed from the handle; NULL for NULL.
 */
const char *tensorlend_queue_name(const tensorlend_queue *queue);

/**
 * Frees the handle. NULL does nothing. The queue, its items and claimed items remain.
 */
void tensorlend_queue_free(tensorlend_queue *queue);

/**
 * Returns a lease on the item's value, borrowed from the item; NULL for NULL.
 * tensorlend_lease_clone creates a lease that outlives the item.
 */
const tensorlend_lease *tensorlend_queue_item_value(const tensorlend_queue_item *item);

/**
 * The item's number, counted from 0; 0 for NULL.
 */
uint64_t tensorlend_queue_item_number(const tensorlend_queue_item *item);

/**
 * Confirms an item. The daemon then deletes the item. Takes *item over. Writes whether the claim
 * still existed to *existed, unless existed is NULL. The claim no longer exists if the queue
 * was cleared, or if the daemon was replaced and gave the item to another consumer.
 *
 * Errors: TENSORLEND_DISCONNECTED if no daemon responds. Then the client confirms the item with
 * its next request. The item is delivered again if the session ends before that.
 */
tensorlend_status tensorlend_queue_item_done(tensorlend_queue_item **item, bool *existed);

/**
 * Gives an item back. The next consumer that asks for an item gets this one. Takes *item over.
 * Errors are those of tensorlend_queue_item_done.
 */
tensorlend_status tensorlend_queue_item_give_back(tensorlend_queue_item **item);

/**
 * Gives an item back that was neither confirmed nor given back, and frees the handle. NULL does
 * nothing. The lease that was borrowed from the item is invalid after the call.
 */
void tensorlend_queue_item_free(tensorlend_queue_item *item);

/**
 * Opens a stream, whose messages are numbered from 0. The stream holds capacity messages for
 * subscribers that lag or subscribe late. 0 means 8 messages. The call rounds capacity up to a
 * power of two, at most 65,536. policy is a tensorlend_policy.
 *
 * Errors:
 * - TENSORLEND_REFUSED if another client has the stream open, or if this client has no right to write.
 * - TENSORLEND_LIMIT if a limit of the daemon, the namespace or the user is reached.
 */
tensorlend_status tensorlend_stream_open(const tensorlend_client *client,
                                         const char *name,
                                         uint32_t capacity,
                                         int32_t policy,
                                         tensorlend_stream **stream);

/**
 * Sends a message. With TENSORLEND_POLICY_BLOCK, waits while the stream is full, at most
 * timeout_ns nanoseconds, or without limit if timeout_ns is below 0. Takes *message over,
 * and drops the message if the call fails. Writes the message's number to *number, unless
 * number is NULL.
 *
 * Errors:
 * - TENSORLEND_TIMEOUT if the stream was full during the whole timeout.
 * - TENSORLEND_FULL if the stream is full and its policy is TENSORLEND_POLICY_ERROR.
 * - TENSORLEND_STREAM_ENDED if the stream was deleted or has another producer now.
 * - TENSORLEND_ARGUMENT for a draft of another client.
 */
tensorlend_status tensorlend_stream_send(const tensorlend_stream *stream,
                                         tensorlend_draft **message,
                                         int64_t timeout_ns,
                                         uint64_t *number);

/**
 * Works like tensorlend_stream_send, but never waits. If the call returns TENSORLEND_FULL,
 * *message still holds the draft, and you can send it later.
 */
tensorlend_status tensorlend_stream_try_send(const tensorlend_stream *stream,
                                             tensorlend_draft **message,
                                             uint64_t *number);

/**
 * Waits until the stream has at least count subscribers, which then receive the first message.
 * Waits at most timeout_ns nanoseconds, or without limit if timeout_ns is below 0.
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
 * Returns the number of subscribers now. Returns 0 for NULL, and in the child of a fork.
 */
uint64_t tensorlend_stream_subscribers(const tensorlend_stream *stream);

/**
 * Closes the stream, and frees the handle. NULL does nothing. Subscribers take the remaining
 * messages and then get TENSORLEND_STREAM_ENDED.
 */
void tensorlend_stream_close(tensorlend_stream *stream);

/**
 * Deletes a stream with its messages, even if a producer has it open. Writes whether the stream
 * existed to *existed, unless existed is NULL.
 */
tensorlend_status tensorlend_stream_delete(const tensorlend_client *client,
                                           const char *name,
                                           bool *existed);

/**
 * Subscribes to a stream. start is a tensorlend_start, flags 0 or TENSORLEND_POLLABLE. If
 * the stream is not open yet, the call waits at most wait_ns nanoseconds, or without limit if
 * wait_ns is below 0.
 *
 * Errors:
 * - TENSORLEND_NOT_FOUND if there is no such stream.
 * - TENSORLEND_TIMEOUT if the stream was not opened in time.
 * - TENSORLEND_LIMIT if 256 subscriptions are already open, or if the stream has its maximum
 *   number of subscribers.
 */
tensorlend_status tensorlend_subscribe(const tensorlend_client *client,
                                       const char *name,
                                       int32_t start,
                                       uint32_t flags,
                                       int64_t wait_ns,
                                       tensorlend_subscription **subscription);

/**
 * Takes the next message. Waits for a message at most timeout_ns nanoseconds, or without limit
 * if timeout_ns is below 0. Writes a lease on the message to *message, and the message's
 * number to *number, unless number is NULL.
 *
 * Errors:
 * - TENSORLEND_TIMEOUT.
 * - TENSORLEND_STREAM_ENDED once the producer has closed the stream or disconnected, and no
 *   message is left. The subscription continues when a producer opens the stream again.
 */
tensorlend_status tensorlend_subscription_recv(tensorlend_subscription *subscription,
                                               int64_t timeout_ns,
                                               tensorlend_lease **message,
                                               uint64_t *number);

/**
 * Takes the next message if there is one. If there is none, sets *message to NULL, and returns
 * TENSORLEND_OK. Writes the message's number to *number, unless number is NULL.
 */
tensorlend_status tensorlend_subscription_try_recv(tensorlend_subscription *subscription,
                                                   tensorlend_lease **message,
                                                   uint64_t *number);

/**
 * Returns a descriptor for poll and epoll, borrowed from the subscription. Returns -1 without
 * TENSORLEND_POLLABLE, and for NULL.
 *
 * Before the first wait and after each wait, call tensorlend_subscription_try_recv until it
 * returns no message. That last call asks the producer to make the descriptor readable. A producer
 * that was killed does not do this, nor does a producer whose stream was deleted or opened again.
 * So call tensorlend_subscription_try_recv also about every 100 ms. The descriptor changes when
 * the stream is opened again.
 */
int32_t tensorlend_subscription_fd(const tensorlend_subscription *subscription);

/**
 * Returns the number of messages that were replaced before this subscription took them; 0 for
 * NULL.
 */
uint64_t tensorlend_subscription_lost(const tensorlend_subscription *subscription);

/**
 * Returns the number of the next message; 0 for NULL.
 */
uint64_t tensorlend_subscription_position(const tensorlend_subscription *subscription);

/**
 * The stream's name, borrowed from the subscription; NULL for NULL.
 */
const char *tensorlend_subscription_name(const tensorlend_subscription *subscription);

/**
 * Ends a subscription, and frees the handle. NULL does nothing. Leases on its messages remain
 * valid.
 */
void tensorlend_subscription_close(tensorlend_subscription *subscription);

/**
 * Starts to keep the last versions values of a name, with this client as their producer. Rounds
 * versions up to a power of two. Errors are those of tensorlend_stream_open.
 */
tensorlend_status tensorlend_keep(const tensorlend_client *client,
                                  const char *name,
                                  uint32_t versions,
                                  tensorlend_history **history);

/**
 * Publishes the next value. Removes the oldest value when the name has more values than it keeps.
 * Takes *draft over. version may be NULL. Errors are those of tensorlend_publish, and
 * TENSORLEND_STREAM_ENDED if another client keeps the name now.
 */
tensorlend_status tensorlend_history_publish(const tensorlend_history *history,
                                             tensorlend_draft **draft,
                                             tensorlend_version *version);

/**
 * Stops keeping values. The name and its last value stay. NULL does nothing.
 */
void tensorlend_history_close(tensorlend_history *history);

/**
 * Leases the values that a name has kept, oldest first. Fails with TENSORLEND_NOT_FOUND if the
 * name keeps no values.
 */
tensorlend_status tensorlend_versions(const tensorlend_client *client,
                                      const char *name,
                                      tensorlend_leases **leases);

/**
 * Lists the names that match the pattern glob ("*": all), and describes their values. Names
 * whose values cannot be described come last, as entries of TENSORLEND_KIND_UNKNOWN. Examples
 * are a faulty client's values, spilled values without memory to read them back, and values that
 * need a lease while this client has none left.
 */
tensorlend_status tensorlend_list_names(const tensorlend_client *client,
                                        const char *glob,
                                        tensorlend_listing **listing);

/**
 * Describes the value of one name, as a listing of one entry. Fails with TENSORLEND_NOT_FOUND if
 * the name does not exist.
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
 * Returns an entry by its number, borrowed from the listing; NULL beyond the end.
 */
const tensorlend_entry *tensorlend_listing_at(const tensorlend_listing *listing, uint64_t number);

/**
 * Returns true if there are more entries than the listing contains, which is possible for other
 * machines' names. Returns false for NULL.
 */
bool tensorlend_listing_is_cut(const tensorlend_listing *listing);

/**
 * Frees a listing. NULL does nothing.
 */
void tensorlend_listing_free(tensorlend_listing *listing);

/**
 * Frees a tensor of this or another library by its deleter. NULL does nothing. A tensor of
 * tensorlend_lease_to_dlpack or tensorlend_draft_to_dlpack must be freed once, on any thread.
 * Either this call or the library that took the tensor over frees it.
 */
void tensorlend_dlpack_free(DLManagedTensorVersioned *tensor);

/**
 * Exports a leased tensor in place to another library, read-only
 * (DLPACK_FLAG_BITMASK_READ_ONLY). For a dataset, member is the name of one of its tensors;
 * for a tensor, it is NULL. The lease's memory stays in place until the tensor's deleter has run
 * and the handle is freed, in any order. Free the tensor with tensorlend_dlpack_free, unless
 * another library took it over. A tensor on a device is exported on that device (kDLCUDA),
 * without a stream. Before you pass such a tensor on, call tensorlend_lease_order_stream for the
 * stream that will read it.
 *
 * Errors: TENSORLEND_NOT_FOUND if there is no such member.
 */
tensorlend_status tensorlend_lease_to_dlpack(const tensorlend_lease *lease,
                                             const char *member,
                                             DLManagedTensorVersioned **tensor);

/**
 * Exports a draft to another library, which writes the draft in place. Free the tensor with
 * tensorlend_dlpack_free, unless another library took it over. Until the tensor is freed, calls
 * that publish, send or append the draft fail with TENSORLEND_ARGUMENT. Record the stream in
 * which another library writes a draft on a device, by tensorlend_draft_record_stream.
 */
tensorlend_status tensorlend_draft_to_dlpack(tensorlend_draft *draft,
                                             DLManagedTensorVersioned **tensor);

/**
 * Creates a row-major draft from a copy of another library's tensor, strided or not. The caller keeps the tensor.
 *
 * Errors:
 * - TENSORLEND_ARGUMENT for a DLPack version other than 1, and for memory of a device, which
 *   needs tensorlend_create_from_dlpack_on.
 * - TENSORLEND_DTYPE for an element type that tensorlend does not support.
 * - Otherwise those of tensorlend_create.
 */
tensorlend_status tensorlend_create_from_dlpack(const tensorlend_client *client,
                                                const DLManagedTensorVersioned *tensor,
                                                tensorlend_draft **draft);

/**
 * Creates a draft on a device from a copy of another library's row-major tensor on that device.
 * The copy is work of stream, so it follows earlier work of that stream on the tensor. NULL is
 * the legacy default stream. The copy is done when the call returns. The caller keeps the tensor.
 *
 * Errors:
 * - TENSORLEND_ARGUMENT for memory that is not a CUDA device's, and for a tensor that is not
 *   row-major.
 * - Otherwise those of tensorlend_create_from_dlpack and tensorlend_create_on.
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
 * Opens a caller of a service, for capacity requests that are outstanding at once (0 means 8;
 * 1024 at most, rounded up to a power of two). Sends the daemon no request. The first request of
 * the caller finds a server.
 *
 * Errors: TENSORLEND_ARGUMENT for a name that is invalid or longer than 207 bytes.
 */
tensorlend_status tensorlend_caller_open(const tensorlend_client *client,
                                         const char *service,
                                         uint32_t capacity,
                                         tensorlend_caller **caller);

/**
 * Sends a request, and waits for its response, at most timeout_ns nanoseconds, or without limit
 * if timeout_ns is below 0. Also waits for a server if there is none. Takes *request over.
 *
 * Errors:
 * - TENSORLEND_REQUEST_FAILED if the server refused the request or could not carry it out. The
 *   error message contains the server's reason.
 * - TENSORLEND_SERVER_GONE if the server ended before it responded. The server may have carried
 *   the request out, so send the request again only if a second run does no harm.
 * - TENSORLEND_TIMEOUT if no response arrived in time. The caller then abandons the server, and
 *   the next request goes to another server.
 * - TENSORLEND_ARGUMENT for a draft of another client, and while requests are outstanding.
 */
tensorlend_status tensorlend_caller_call(tensorlend_caller *caller,
                                         tensorlend_draft **request,
                                         int64_t timeout_ns,
                                         tensorlend_lease **response);

/**
 * Sends a request without waiting for its response, which tensorlend_caller_recv takes. If there
 * is no server, waits for one at most timeout_ns nanoseconds, or without limit if timeout_ns
 * is below 0. Takes *request over. Writes the request's number, counted from 0, to *number,
 * unless number is NULL.
 *
 * Errors:
 * - TENSORLEND_TIMEOUT.
 * - TENSORLEND_SERVER_GONE if earlier requests were lost with their server, and this request was
 *   not sent.
 * - TENSORLEND_ARGUMENT if capacity requests are outstanding.
 */
tensorlend_status tensorlend_caller_send(tensorlend_caller *caller,
                                         tensorlend_draft **request,
                                         int64_t timeout_ns,
                                         uint64_t *number);

/**
 * Takes the response to the oldest outstanding request. Waits for the response at most
 * timeout_ns nanoseconds, or without limit if timeout_ns is below 0. Writes the request's
 * number to *number, unless number is NULL, also if the request failed.
 *
 * Errors:
 * - TENSORLEND_REQUEST_FAILED if the server could not carry out this request.
 * - TENSORLEND_SERVER_GONE if the server ended, which ends all outstanding requests.
 * - TENSORLEND_ARGUMENT if no request is outstanding.
 * - TENSORLEND_TIMEOUT if no response arrived in time. The requests stay outstanding, so a program
 *   that must react to other events can wait repeatedly for short times.
 */
tensorlend_status tensorlend_caller_recv(tensorlend_caller *caller,
                                         int64_t timeout_ns,
                                         tensorlend_lease **response,
                                         uint64_t *number);

/**
 * Connects to a server without sending a request, so that the first request need not wait. Waits
 * at most timeout_ns nanoseconds, or without limit if timeout_ns is below 0.
 */
tensorlend_status tensorlend_caller_wait_server(tensorlend_caller *caller, int64_t timeout_ns);

/**
 * Abandons the server, with all outstanding requests. The next request goes to another server, if
 * there is one.
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
 * Ends a caller, and frees the handle. NULL does nothing. Leases on its responses remain valid.
 */
void tensorlend_caller_close(tensorlend_caller *caller);

/**
 * Starts to serve a service, in addition to other servers of the same name. Needs some round trips
 * to the daemon.
 *
 * Errors:
 * - TENSORLEND_ARGUMENT for a name that is invalid or longer than 207 bytes.
 * - TENSORLEND_REFUSED if this client has no right to write.
 * - TENSORLEND_LIMIT if a limit of the daemon, the namespace or the user is reached.
 */
tensorlend_status tensorlend_serve(const tensorlend_client *client,
                                   const char *service,
                                   tensorlend_server **server);

/**
 * Receives the next request. Waits for a request at most timeout_ns nanoseconds, or without
 * limit if timeout_ns is below 0.
 *
 * Errors:
 * - TENSORLEND_TIMEOUT.
 * - TENSORLEND_LIMIT if the client already holds 4096 leases, where the request stays until the
 *   program has freed some.
 * - TENSORLEND_DISCONNECTED if the session has ended.
 */
tensorlend_status tensorlend_server_recv(tensorlend_server *server,
                                         int64_t timeout_ns,
                                         tensorlend_request **request);

/**
 * Receives the next request if there is one. If there is none, sets *request to NULL, and
 * returns TENSORLEND_OK. For servers that gather several requests.
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
 * Ends a server, and frees the handle. NULL does nothing. The server's callers get
 * TENSORLEND_SERVER_GONE for requests without a response, and move to another server.
 */
void tensorlend_server_close(tensorlend_server *server);

/**
 * Returns a lease on the request's value, borrowed from the request; NULL for NULL.
 * tensorlend_lease_clone creates a handle that outlives the request.
 */
const tensorlend_lease *tensorlend_request_value(const tensorlend_request *request);

/**
 * Announces that the response will arrive within about ten microseconds. A sleeping caller then
 * wakes up in the meantime. Useful after long work.
 */
tensorlend_status tensorlend_request_soon(const tensorlend_request *request);

/**
 * Responds to a request with a tensor or a dataset. Takes *request and *response over, and
 * ends the request's lease. A caller receives its responses in the order of its requests. A
 * disconnected caller is no error.
 *
 * Errors:
 * - TENSORLEND_ARGUMENT for a draft of another client, and for a dataset without tensors, where
 *   the caller gets TENSORLEND_REQUEST_FAILED.
 * - TENSORLEND_LIMIT if there is no memory for the response's description.
 */
tensorlend_status tensorlend_request_respond(tensorlend_request **request,
                                             tensorlend_draft **response);

/**
 * Refuses a request. Its caller gets TENSORLEND_REQUEST_FAILED with the text why, truncated to
 * 64 KiB. Takes *request over.
 */
tensorlend_status tensorlend_request_fail(tensorlend_request **request, const char *why);

/**
 * Drops a request that has no response. Its caller gets TENSORLEND_REQUEST_FAILED. NULL does
 * nothing.
 */
void tensorlend_request_free(tensorlend_request *request);

/**
 * Adds or replaces a model. Runners load the model by themselves. onnx points to the bytes of an
 * ONNX file, which the call copies. options is JSON, such as {"batch_max": 8}, as the manual's
 * page on models describes it. NULL selects the defaults. version may be NULL.
 *
 * Errors:
 * - TENSORLEND_ARGUMENT for invalid options, and for no bytes.
 * - Otherwise those of tensorlend_put.
 */
tensorlend_status tensorlend_model_put(const tensorlend_client *client,
                                       const char *model,
                                       const void *onnx,
                                       uint64_t bytes,
                                       const char *options,
                                       tensorlend_version *version);

/**
 * Leases a model's bytes. The lease's metadata are the model's options, as JSON. Fails with
 * TENSORLEND_NOT_FOUND if there is no such model.
 */
tensorlend_status tensorlend_model_get(const tensorlend_client *client,
                                       const char *model,
                                       tensorlend_lease **onnx);

/**
 * Deletes a model. Its runners end. Writes whether the model existed to *existed, unless
 * existed is NULL.
 */
tensorlend_status tensorlend_model_delete(const tensorlend_client *client,
                                          const char *model,
                                          bool *existed);

/**
 * Opens a model for one or many runs over one connection to a runner. Sends the daemon no request.
 * The first run connects to a runner.
 */
tensorlend_status tensorlend_model_open(const tensorlend_client *client,
                                        const char *name,
                                        tensorlend_model **model);

/**
 * The model's name, borrowed from the handle; NULL for NULL.
 */
const char *tensorlend_model_name(const tensorlend_model *model);

/**
 * Closes a model's connection, and frees the handle. NULL does nothing. Leases on outputs of the
 * model remain valid.
 */
void tensorlend_model_close(tensorlend_model *model);

/**
 * Creates a request without inputs, for all outputs.
 */
tensorlend_status tensorlend_model_request_new(tensorlend_model_request **request);

/**
 * Adds an input that the request contains: a tensor in host memory. Takes *tensor over, unless
 * the call fails.
 *
 * Errors: TENSORLEND_ARGUMENT for a dataset.
 */
tensorlend_status tensorlend_model_request_input(tensorlend_model_request *request,
                                                 const char *input,
                                                 tensorlend_draft **tensor);

/**
 * Adds an input that is a tensor of the namespace, by its name. The runner reads the tensor's
 * value when it takes the request.
 */
tensorlend_status tensorlend_model_request_input_from(tensorlend_model_request *request,
                                                      const char *input,
                                                      const char *name);

/**
 * Sets the steps that prepare an image as this input. steps is a JSON list, such as [{"scale":
 * 0.00392157}, "chw", "batch"], as the manual's page on models describes it. Fails with
 * TENSORLEND_ARGUMENT for an unknown step.
 */
tensorlend_status tensorlend_model_request_prepare(tensorlend_model_request *request,
                                                   const char *input,
                                                   const char *steps);

/**
 * Requests an output. The response contains the output if name is NULL. Otherwise the runner
 * publishes the output under that name. A request that names no outputs gets all of them in the
 * response.
 */
tensorlend_status tensorlend_model_request_output(tensorlend_model_request *request,
                                                  const char *output,
                                                  const char *name);

/**
 * Frees a request that was not taken over. NULL does nothing.
 */
void tensorlend_model_request_free(tensorlend_model_request *request);

/**
 * Runs a model. Sends the request to a runner, and waits for the response at most timeout_ns
 * nanoseconds, or without limit if timeout_ns is below 0. Takes *request over. The response is
 * a dataset of outputs by name.
 *
 * If a runner ends without a fault of the model, the call sends a request whose inputs are all
 * names again. So the model may run twice.
 *
 * Errors:
 * - TENSORLEND_NOT_FOUND if there is no such model.
 * - TENSORLEND_REQUEST_FAILED with the reason if the runner refused the request or the model
 *   failed.
 * - TENSORLEND_SERVER_GONE.
 * - TENSORLEND_TIMEOUT.
 */
tensorlend_status tensorlend_model_run(tensorlend_model *model,
                                       tensorlend_model_request **request,
                                       int64_t timeout_ns,
                                       tensorlend_lease **response);

/**
 * Writes the times of a response in nanoseconds. Writes the time from sending the request to its
 * run to *queue_ns. Writes the time of the model alone to *run_ns. Either pointer may be NULL.
 * Fails with TENSORLEND_ARGUMENT for a dataset that no runner made.
 */
tensorlend_status tensorlend_model_times(const tensorlend_lease *response,
                                         uint64_t *queue_ns,
                                         uint64_t *run_ns);

/**
 * Writes to *version the version under which the runner published an output. The version is all
 * zeros if the runner did not publish the output.
 */
tensorlend_status tensorlend_model_published(const tensorlend_lease *response,
                                             const char *output,
                                             tensorlend_version *version);

/**
 * Copies shape's elements, row-major, and publishes them under a name of another machine,
 * "NODE/NAME". The call returns when that machine has published the value. The configuration of
 * that machine must allow this.
 *
 * Errors:
 * - TENSORLEND_REMOTE for an unknown or unreachable machine, and for a machine that refuses.
 * - TENSORLEND_TIMEOUT if no response arrived within tensorlend_options_remote_timeout, where
 *   the value may have been published.
 * - Otherwise those of tensorlend_create.
 */
tensorlend_status tensorlend_put_remote(const tensorlend_client *client,
                                        const char *name,
                                        tensorlend_dtype dtype,
                                        uint32_t ndim,
                                        const uint64_t *shape,
                                        const void *data);

/**
 * Works like tensorlend_put_remote, for a draft of a tensor or a dataset in host memory. Takes
 * *draft over.
 */
tensorlend_status tensorlend_publish_remote(const tensorlend_client *client,
                                            tensorlend_draft **draft,
                                            const char *name);

/**
 * Fetches the items of another machine's list, "NODE/LIST", that are not on this machine yet.
 * Waits until all of them are on this machine. Then tensorlend_list_get_range finds them under
 * that name. Writes the number of items to *length.
 *
 * Errors:
 * - TENSORLEND_REMOTE.
 * - TENSORLEND_TIMEOUT. After a timeout the fetched items stay, so you can repeat the call.
 */
tensorlend_status tensorlend_fetch_list(const tensorlend_client *client,
                                        const char *list,
                                        uint64_t *length);

/**
 * Lists the machines that this machine's gateway has seen, and this machine, as entries of
 * TENSORLEND_KIND_NODE. The listing is empty if there is no gateway. The call reads shared
 * memory, and sends the gateway no request.
 */
tensorlend_status tensorlend_list_nodes(const tensorlend_client *client,
                                        tensorlend_listing **listing);

/**
 * Lists the names, streams and lists of other machines that match the pattern glob, such as
 * "NODE/a*". After them, each machine that did not respond has an entry of TENSORLEND_KIND_NODE.
 * cached and stale of an entry describe the copy on this machine.
 *
 * Errors:
 * - TENSORLEND_REMOTE if the gateway does not respond.
 * - TENSORLEND_TIMEOUT.
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
 * Asks the gateway for the place of a name of another machine. The result is a listing of one
 * entry. Its label is the machine, alive is whether the machine can be reached, and cached
 * and stale describe the copy on this machine. The listing is empty for a name of this machine
 * or of an unknown machine.
 */
tensorlend_status tensorlend_placement(const tensorlend_client *client,
                                       const char *name,
                                       tensorlend_listing **listing);

/**
 * Lists the devices whose memory the daemon lends, whether or not this process sees them. The list
 * is empty if the daemon lends host memory only. Loads the driver if the list is not empty.
 */
tensorlend_status tensorlend_list_devices(const tensorlend_client *client,
                                          tensorlend_devices **devices);

/**
 * Number of devices; 0 for NULL.
 */
uint64_t tensorlend_devices_count(const tensorlend_devices *devices);

/**
 * Returns a device by its index in the list, borrowed from the list; NULL beyond the end.
 */
const tensorlend_device *tensorlend_devices_at(const tensorlend_devices *devices, uint64_t number);

/**
 * Frees a list of devices. NULL does nothing.
 */
void tensorlend_devices_free(tensorlend_devices *devices);

/**
 * Creates a row-major tensor in a device's memory, where the program's kernels write the elements.
 * shape contains ndim sizes in elements. ndim is 0 to 16, and shape may be NULL for 0.
 * device is "cuda:0" for this process's first device, or a UUID. The tensor's bytes keep their
 * previous contents until the program writes them.
 *
 * The draft is used like a draft in host memory. tensorlend_publish and tensorlend_stream_send
 * wait for the work on the draft in the streams that were recorded with
 * tensorlend_draft_record_stream. If no stream is recorded, and the program has called
 * tensorlend_draft_device_data, they wait for all work in the device's primary context.
 * tensorlend_draft_free waits in this second case only.
 *
 * Errors:
 * - TENSORLEND_DEVICE if there is no such device, or the daemon lends none of its memory.
 * - Otherwise those of tensorlend_create.
 */
tensorlend_status tensorlend_create_on(const tensorlend_client *client,
                                       const char *device,
                                       tensorlend_dtype dtype,
                                       uint32_t ndim,
                                       const uint64_t *shape,
                                       tensorlend_draft **draft);

/**
 * Works like tensorlend_create_on, and records stream, whose work writes the draft. stream
 * is a CUstream or cudaStream_t of the device's primary context; NULL is the legacy default
 * stream. The stream must exist until every draft and lease on which it was recorded has ended.
 */
tensorlend_status tensorlend_create_on_stream(const tensorlend_client *client,
                                              const char *device,
                                              void *stream,
                                              tensorlend_dtype dtype,
                                              uint32_t ndim,
                                              const uint64_t *shape,
                                              tensorlend_draft **draft);

/**
 * Copies shape's elements, row-major, from host memory to a device and publishes the copy. The
 * call returns when the copy is done. version may be NULL. Errors are those of
 * tensorlend_create_on and tensorlend_publish.
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
 * Returns the address of the draft's first byte on its device, a multiple of 512. The address is
 * valid until the draft is taken over or freed. Returns 0 for a draft in host memory, for NULL,
 * and in the child of a fork.
 */
uint64_t tensorlend_draft_device_data(tensorlend_draft *draft);

/**
 * Records a stream whose work writes the draft. Publishing waits for that work. Once a stream is
 * recorded, publishing waits for recorded streams only.
 *
 * Errors: TENSORLEND_DEVICE for a stream of a context other than the device's primary context.
 */
tensorlend_status tensorlend_draft_record_stream(tensorlend_draft *draft, void *stream);

/**
 * Orders a stream after the work on the draft in all other recorded streams, and records the
 * stream. The call does not wait.
 */
tensorlend_status tensorlend_draft_order_stream(tensorlend_draft *draft, void *stream);

/**
 * Copies bytes bytes from host memory into the draft. bytes must be exactly
 * tensorlend_draft_bytes. The call returns when the copy is done.
 */
tensorlend_status tensorlend_draft_copy_from_host(tensorlend_draft *draft,
                                                  const void *data,
                                                  uint64_t bytes);

/**
 * Copies tensorlend_draft_bytes bytes at from, elsewhere on the device, into the draft. The
 * copy is work of stream, which the call records. The call does not wait. The bytes at from
 * must stay until the stream has done the copy, at the latest until the draft is published or
 * tensorlend_draft_finish returns.
 */
tensorlend_status tensorlend_draft_copy_from_device(tensorlend_draft *draft,
                                                    uint64_t from,
                                                    void *stream);

/**
 * Waits until the work on the draft is done, as publishing does.
 */
tensorlend_status tensorlend_draft_finish(tensorlend_draft *draft);

/**
 * Publishes a draft on a device while work on the draft is still pending in stream. The stream
 * first waits for the work in all other recorded streams. The call itself does not wait. Takes
 * *draft over. version may be NULL.
 *
 * Readers wait for a CUDA event of this process: tensorlend_get_device waits on the host, and
 * tensorlend_lease_order_stream in a stream. If this process is killed before the work is done,
 * the readers get TENSORLEND_DEVICE.
 */
tensorlend_status tensorlend_publish_early(tensorlend_draft **draft,
                                           const char *name,
                                           void *stream,
                                           tensorlend_version *version);

/**
 * Leases the name's current tensor on a device, without a copy. If the tensor was published early,
 * waits for the producer's work on the tensor. tensorlend_lease_tensor describes the tensor,
 * with its address on the device.
 *
 * Errors:
 * - TENSORLEND_NOT_FOUND.
 * - TENSORLEND_KIND for a tensor in host memory and for a dataset.
 * - TENSORLEND_DEVICE if this process cannot use the device.
 *
 * tensorlend_get_value, tensorlend_wait_newer and subscriptions lease tensors on devices, too.
 * These calls do not wait for the producer's work. Call tensorlend_lease_finish or
 * tensorlend_lease_order_stream after them.
 */
tensorlend_status tensorlend_get_device(const tensorlend_client *client,
                                        const char *name,
                                        tensorlend_lease **lease);

/**
 * Works like tensorlend_get_device, but does not wait for the producer's work. Call
 * tensorlend_lease_order_stream for each stream that reads the tensor.
 */
tensorlend_status tensorlend_get_device_early(const tensorlend_client *client,
                                              const char *name,
                                              tensorlend_lease **lease);

/**
 * Records a stream whose work reads the leased tensor, or the tensors of a dataset on the stream's
 * device. After tensorlend_lease_free the memory
 * stays in place until the stream has done the work queued by then. If the program records no
 * stream, it must wait for its own work before it frees the lease.
 *
 * Errors:
 * - TENSORLEND_DEVICE for a stream of a context other than the device's primary context.
 * - TENSORLEND_ARGUMENT for a lease in host memory.
 */
tensorlend_status tensorlend_lease_record_stream(const tensorlend_lease *lease, void *stream);

/**
 * Orders a stream after the producer's work on a tensor that was published early, and records the
 * stream. The call does not wait. Fails with TENSORLEND_DEVICE if the producer has ended before
 * its work was done.
 */
tensorlend_status tensorlend_lease_order_stream(const tensorlend_lease *lease, void *stream);

/**
 * Waits until the producer's work on a tensor that was published early is done. Fails with
 * TENSORLEND_DEVICE if the producer has ended before its work was done.
 */
tensorlend_status tensorlend_lease_finish(const tensorlend_lease *lease);

/**
 * Writes to *finished whether the producer's work on the tensor is known to be done. This is
 * always true unless the tensor was published early. A reader that made a stream wait calls this
 * function after its own work. True then means that its work read the finished tensor. Fails with
 * TENSORLEND_DEVICE if the producer has ended before its work was done.
 */
tensorlend_status tensorlend_lease_is_finished(const tensorlend_lease *lease, bool *finished);

/**
 * Writes this client's memory on one device in bytes. Writes the bytes of this client's tensors to
 * *slot_bytes. Writes the bytes of the segments that the daemon lends to this client to
 * *segment_bytes. Either pointer may be NULL.
 */
tensorlend_status tensorlend_device_memory(const tensorlend_client *client,
                                           const char *device,
                                           uint64_t *slot_bytes,
                                           uint64_t *segment_bytes);

/**
 * Requests the daemon's metrics.
 */
tensorlend_status tensorlend_stat_get(const tensorlend_client *client, tensorlend_stat **stat);

/**
 * The metrics, borrowed; NULL for NULL.
 */
const tensorlend_figures *tensorlend_stat_figures(const tensorlend_stat *stat);

/**
 * Frees the metrics. NULL does nothing.
 */
void tensorlend_stat_free(tensorlend_stat *stat);

/**
 * Starts or stops counting allocations.
 */
tensorlend_status tensorlend_statistics_enable(const tensorlend_client *client, bool enable);

/**
 * Writes the statistics to *statistics. All of them are 0 unless counting is on.
 */
tensorlend_status tensorlend_statistics_get(const tensorlend_client *client,
                                            tensorlend_statistics *statistics);

/**
 * Starts to write every allocation and free of this client into a file, as CSV. tensorlend
 * replay repeats these allocations.
 */
tensorlend_status tensorlend_log_start(const tensorlend_client *client, const char *file);

/**
 * Ends the log, and writes the events that are still buffered.
 */
tensorlend_status tensorlend_log_stop(const tensorlend_client *client);

/**
 * Returns this client's outstanding allocations: drafts, the values of names, streams and lists,
 * and replaced values that are not reclaimed yet. Fails with TENSORLEND_ARGUMENT unless the
 * client was opened with tensorlend_options_tracking.
 */
tensorlend_status tensorlend_outstanding_get(const tensorlend_client *client,
                                             tensorlend_outstanding **outstanding);

/**
 * Returns a report of each allocation with its bytes, its age and its holder. The text is
 * borrowed; NULL for NULL.
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
 * Frees the list of outstanding allocations. NULL does nothing.
 */
void tensorlend_outstanding_free(tensorlend_outstanding *outstanding);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TENSORLEND_H */
