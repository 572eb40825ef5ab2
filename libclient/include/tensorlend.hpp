// tensorlend for C++17: handles that end themselves, exceptions instead of statuses. Every call of tensorlend.h can be
// used beside it: get() gives its handle, out() the place for a new one.
#ifndef TENSORLEND_HPP
#define TENSORLEND_HPP

#include "tensorlend.h"

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tensorlend {

/// A call that failed: what() is tensorlend_error_message().
class Error : public std::runtime_error {
public:
    explicit Error(tensorlend_status status) : std::runtime_error(tensorlend_error_message()), status_(status) {}
    tensorlend_status status() const noexcept { return status_; }

private:
    tensorlend_status status_;
};

inline void check(tensorlend_status status) {
    if (status != TENSORLEND_OK) throw Error(status);
}

/// A handle of one owner; it ends with it.
template <typename T, void (*End)(T *)>
class Handle {
public:
    Handle() = default;
    Handle(Handle &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Handle &operator=(Handle &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Handle() { End(handle_); }
    T *get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /// For calls that put a handle here, once the old one has ended, or that take it over.
    T **out() noexcept {
        End(std::exchange(handle_, nullptr));
        return &handle_;
    }
    T **taken() noexcept { return &handle_; }

private:
    T *handle_ = nullptr;
};

using Options = Handle<tensorlend_options, tensorlend_options_free>;
using Leases = Handle<tensorlend_leases, tensorlend_leases_free>;
using Listing = Handle<tensorlend_listing, tensorlend_listing_free>;
using History = Handle<tensorlend_history, tensorlend_history_close>;
using Timeout = std::chrono::nanoseconds;
using Shape = std::initializer_list<std::uint64_t>;
constexpr Timeout forever{-1};

/// The element type of T, for `create<float>` and `data<float>`.
template <typename T> constexpr tensorlend_dtype dtype_of = 0;
template <> inline constexpr tensorlend_dtype dtype_of<std::int8_t> = TENSORLEND_I8;
template <> inline constexpr tensorlend_dtype dtype_of<std::int16_t> = TENSORLEND_I16;
template <> inline constexpr tensorlend_dtype dtype_of<std::int32_t> = TENSORLEND_I32;
template <> inline constexpr tensorlend_dtype dtype_of<std::int64_t> = TENSORLEND_I64;
template <> inline constexpr tensorlend_dtype dtype_of<std::uint8_t> = TENSORLEND_U8;
template <> inline constexpr tensorlend_dtype dtype_of<std::uint16_t> = TENSORLEND_U16;
template <> inline constexpr tensorlend_dtype dtype_of<std::uint32_t> = TENSORLEND_U32;
template <> inline constexpr tensorlend_dtype dtype_of<std::uint64_t> = TENSORLEND_U64;
template <> inline constexpr tensorlend_dtype dtype_of<float> = TENSORLEND_F32;
template <> inline constexpr tensorlend_dtype dtype_of<double> = TENSORLEND_F64;
template <> inline constexpr tensorlend_dtype dtype_of<bool> = TENSORLEND_BOOL;

/// What is being written: a tensor, or a dataset that add() fills.
class Draft : public Handle<tensorlend_draft, tensorlend_draft_free> {
public:
    template <typename T> T *data() { return static_cast<T *>(tensorlend_draft_data(get())); }
    std::uint64_t bytes() const { return tensorlend_draft_bytes(get()); }
    void add(const char *name, Draft member) { check(tensorlend_dataset_add(get(), name, member.taken())); }
    void metadata(const std::string &text) { check(tensorlend_draft_set_metadata(get(), text.data(), text.size())); }
    void timestamp(std::uint64_t ns) { check(tensorlend_draft_set_timestamp(get(), ns)); }
    tensorlend_version publish(const char *name) && {
        tensorlend_version version;
        check(tensorlend_publish(taken(), name, &version));
        return version;
    }
};

/// What is read, where it lies.
class Lease : public Handle<tensorlend_lease, tensorlend_lease_free> {
public:
    /// The tensor, or of a dataset the one of this name.
    const tensorlend_tensor &tensor(const char *member = nullptr) const {
        const tensorlend_tensor *found = member ? tensorlend_lease_find(get(), member) : tensorlend_lease_tensor(get());
        if (!found) throw std::out_of_range(member ? member : "not a tensor: name a member");
        return *found;
    }
    /// Its row-major elements.
    template <typename T> const T *data(const char *member = nullptr) const {
        const tensorlend_tensor &it = tensor(member);
        if (it.dtype != dtype_of<T> || !it.row_major) throw std::invalid_argument(tensorlend_dtype_name(it.dtype));
        return static_cast<const T *>(it.data);
    }
    tensorlend_version version() const { return tensorlend_lease_version(get()); }
};

/// The producer's end of a stream.
class Stream : public Handle<tensorlend_stream, tensorlend_stream_close> {
public:
    std::uint64_t send(Draft message, Timeout timeout = forever) {
        std::uint64_t number = 0;
        check(tensorlend_stream_send(get(), message.taken(), timeout.count(), &number));
        return number;
    }
    void wait_subscribers(std::uint64_t count, Timeout timeout = forever) {
        check(tensorlend_stream_wait_subscribers(get(), count, timeout.count()));
    }
};

/// A subscriber's end; recv() gives an empty lease once the stream has ended.
class Subscription : public Handle<tensorlend_subscription, tensorlend_subscription_close> {
public:
    Lease recv(Timeout timeout = forever, std::uint64_t *number = nullptr) {
        Lease message;
        const tensorlend_status status = tensorlend_subscription_recv(get(), timeout.count(), message.out(), number);
        if (status != TENSORLEND_STREAM_ENDED) check(status);
        return message;
    }
};

/// A session with the daemon.
class Client : public Handle<tensorlend_client, tensorlend_client_free> {
public:
    explicit Client(const Options &options = {}) { check(tensorlend_connect(options.get(), out())); }
    template <typename T> Draft create(Shape shape) const {
        static_assert(dtype_of<T> != 0, "no element type: use tensorlend_create");
        Draft draft;
        const auto ndim = static_cast<std::uint32_t>(shape.size());
        check(tensorlend_create(get(), dtype_of<T>, ndim, shape.begin(), draft.out()));
        return draft;
    }
    Draft dataset() const {
        Draft draft;
        check(tensorlend_create_dataset(get(), draft.out()));
        return draft;
    }
    template <typename T> void put(const char *name, const std::vector<T> &values) const {
        const std::uint64_t size = values.size();
        check(tensorlend_put(get(), name, dtype_of<T>, 1, &size, values.data(), nullptr));
    }
    /// Whatever the name holds, tensor or dataset.
    Lease lease(const char *name) const {
        Lease lease;
        check(tensorlend_get_value(get(), name, lease.out()));
        return lease;
    }
    /// Waits for another value than the one that was seen.
    Lease wait(const char *name, tensorlend_version seen = {}, Timeout timeout = forever) const {
        Lease lease;
        check(tensorlend_wait_newer(get(), name, seen, timeout.count(), lease.out()));
        return lease;
    }
    bool exists(const char *name) const {
        bool exists = false;
        check(tensorlend_exists(get(), name, &exists));
        return exists;
    }
    bool remove(const char *name) const {
        bool existed = false;
        check(tensorlend_delete(get(), name, &existed));
        return existed;
    }
    Stream stream(const char *name, std::uint32_t capacity = 0, tensorlend_policy policy = TENSORLEND_POLICY_BLOCK) const {
        Stream stream;
        check(tensorlend_stream_open(get(), name, capacity, policy, stream.out()));
        return stream;
    }
    Subscription subscribe(const char *name, tensorlend_start start = TENSORLEND_START_NEWEST, Timeout wait = {}) const {
        Subscription subscription;
        check(tensorlend_subscribe(get(), name, start, 0, wait.count(), subscription.out()));
        return subscription;
    }
};

} // namespace tensorlend

#endif
