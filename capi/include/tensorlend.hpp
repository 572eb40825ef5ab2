// tensorlend for C++17: handles that end themselves, exceptions instead of statuses. Every call of tensorlend.h can be
// used beside it: get() gives its handle, out() the place for a new one, taken() the one that a call takes over.
#ifndef TENSORLEND_HPP
#define TENSORLEND_HPP
#include "tensorlend.h"
#include <chrono>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tensorlend {
/// A call that failed: what() is tensorlend_error_message(), code tensorlend_error_code(), limit what was reached if status is
/// TENSORLEND_LIMIT.
struct Error : std::runtime_error {
    explicit Error(tensorlend_status failed)
        : std::runtime_error(tensorlend_error_message()), status(failed), limit(tensorlend_limit(tensorlend_error_limit())),
          code(tensorlend_error_code()) {}
    tensorlend_status status;
    tensorlend_limit limit;
    std::string code;
};
inline void check(tensorlend_status status) { if (status != TENSORLEND_OK) throw Error(status); }
/// A handle of one owner; it ends with it.
template <typename T, void (*End)(T *)> class Handle {
    T *handle_ = nullptr;
public:
    Handle() = default;
    Handle(Handle &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Handle &operator=(Handle &&other) noexcept { return std::swap(handle_, other.handle_), *this; }
    ~Handle() { End(handle_); }
    T *get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    T **out() noexcept { return End(std::exchange(handle_, nullptr)), &handle_; }
    T **taken() noexcept { return &handle_; }
};
using Options = Handle<tensorlend_options, tensorlend_options_free>;
using Leases = Handle<tensorlend_leases, tensorlend_leases_free>;
using Listing = Handle<tensorlend_listing, tensorlend_listing_free>;
using History = Handle<tensorlend_history, tensorlend_history_close>;
using Stat = Handle<tensorlend_stat, tensorlend_stat_free>;
using Outstanding = Handle<tensorlend_outstanding, tensorlend_outstanding_free>;
using DLPack = Handle<DLManagedTensorVersioned, tensorlend_dlpack_free>;
using Timeout = std::chrono::nanoseconds;
constexpr Timeout forever{-1};
/// What a call puts where its last argument leads: `made<Listing>(tensorlend_list_names, client.get(), "*")`.
template <typename T, typename Call, typename... Given> T made(Call call, Given... given) {
    T result{};
    if constexpr (std::is_trivially_copyable_v<T>) check(call(given..., &result));
    else check(call(given..., result.out()));
    return result;
}
template <typename T> constexpr tensorlend_dtype dtype_of = 0;
#define TENSORLEND_ELEMENT(type, name) template <> inline constexpr tensorlend_dtype dtype_of<type> = TENSORLEND_##name;
TENSORLEND_ELEMENT(int8_t, I8) TENSORLEND_ELEMENT(int16_t, I16) TENSORLEND_ELEMENT(int32_t, I32)
TENSORLEND_ELEMENT(int64_t, I64) TENSORLEND_ELEMENT(uint8_t, U8) TENSORLEND_ELEMENT(uint16_t, U16)
TENSORLEND_ELEMENT(uint32_t, U32) TENSORLEND_ELEMENT(uint64_t, U64) TENSORLEND_ELEMENT(float, F32)
TENSORLEND_ELEMENT(double, F64) TENSORLEND_ELEMENT(bool, BOOL)
#undef TENSORLEND_ELEMENT
/// The element type of T, for `create<float>` and `data<float>`.
template <typename T> constexpr tensorlend_dtype element() {
    static_assert(dtype_of<T> != 0, "no element type: use the calls of tensorlend.h");
    return dtype_of<T>;
}
/// What is being written: a tensor, or a dataset that add() fills. Its pointers end with it: a temporary gives none.
struct Draft : Handle<tensorlend_draft, tensorlend_draft_free> {
    template <typename T> T *data() & {
        const tensorlend_dtype dtype = tensorlend_draft_dtype(get());
        if (dtype != element<T>()) throw std::invalid_argument(tensorlend_dtype_name(dtype));
        return static_cast<T *>(tensorlend_draft_data(get()));
    }
    template <typename T> T *data() && = delete;
    void add(const char *name, Draft member) { check(tensorlend_dataset_add(get(), name, member.taken())); }
    tensorlend_version publish(const char *to) && { return made<tensorlend_version>(tensorlend_publish, taken(), to); }
};
/// What is read, where it lies: the tensor, or of a dataset the one of this name. For bools, see TENSORLEND_BOOL.
struct Lease : Handle<tensorlend_lease, tensorlend_lease_free> {
    const tensorlend_tensor &tensor(const char *member = nullptr) const & {
        const auto *found = member ? tensorlend_lease_find(get(), member) : tensorlend_lease_tensor(get());
        return found ? *found : throw std::out_of_range(member ? member : "no tensor: name a member");
    }
    const tensorlend_tensor &tensor(const char *member = nullptr) const && = delete;
    template <typename T> const T *data(const char *member = nullptr) const & {
        const tensorlend_tensor &it = tensor(member);
        if (it.dtype != element<T>()) throw std::invalid_argument(tensorlend_dtype_name(it.dtype));
        return it.row_major ? static_cast<const T *>(it.data) : throw std::invalid_argument("strided");
    }
    template <typename T> const T *data(const char *member = nullptr) const && = delete;
};
struct Stream : Handle<tensorlend_stream, tensorlend_stream_close> {
    uint64_t send(Draft message, Timeout timeout = forever) {
        return made<uint64_t>(tensorlend_stream_send, get(), message.taken(), timeout.count());
    }
};
struct Subscription : Handle<tensorlend_subscription, tensorlend_subscription_close> {
    Lease recv(Timeout timeout = forever, uint64_t *number = nullptr) {
        Lease message;
        const tensorlend_status status = tensorlend_subscription_recv(get(), timeout.count(), message.out(), number);
        if (status != TENSORLEND_STREAM_ENDED) check(status); // else it is empty
        return message;
    }
};
struct Client : Handle<tensorlend_client, tensorlend_client_free> {
    explicit Client(const Options &options = {}) { check(tensorlend_connect(options.get(), out())); }
    template <typename T> Draft create(std::initializer_list<uint64_t> shape) const {
        return made<Draft>(tensorlend_create, get(), element<T>(), uint32_t(shape.size()), shape.begin());
    }
    Draft dataset() const { return made<Draft>(tensorlend_create_dataset, get()); }
    template <typename T> tensorlend_version put(const char *name, const std::vector<T> &values) const {
        const uint64_t n = values.size();
        return made<tensorlend_version>(tensorlend_put, get(), name, element<T>(), 1, &n, values.data());
    }
    Lease lease(const char *name) const { return made<Lease>(tensorlend_get_value, get(), name); }
    Lease wait(const char *name, tensorlend_version seen = {}, Timeout timeout = forever) const {
        return made<Lease>(tensorlend_wait_newer, get(), name, seen, timeout.count());
    }
    Stream stream(const char *name, uint32_t capacity = 0, tensorlend_policy policy = TENSORLEND_POLICY_BLOCK) const {
        return made<Stream>(tensorlend_stream_open, get(), name, capacity, policy);
    }
    Subscription subscribe(const char *name, tensorlend_start from = TENSORLEND_START_NEWEST, Timeout wait = {}) const {
        return made<Subscription>(tensorlend_subscribe, get(), name, from, 0, wait.count());
    }
};
} // namespace tensorlend
#endif
