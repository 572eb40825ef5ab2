// tensorlend for C++17 and later: handles that end themselves, and every call of tensorlend.h as a method.
//
// Errors are exceptions: tensorlend::Error for a call that failed, std::invalid_argument and std::out_of_range for a
// wrong element type, shape or member, which the program could have known. A timeout is an Error with the status
// TENSORLEND_TIMEOUT. The end of a stream is no error: it is an empty message, and the end of a loop. No destructor
// throws. Without exceptions, call tensorlend.h: handle() gives a handle, out() the place for a new one, taken() the one
// that a call takes over.
//
// Ownership, threads and forks are as tensorlend.h has them. Pointers, spans and views are borrowed from the object
// whose method returned them; calls that would borrow from a temporary do not compile.
#ifndef TENSORLEND_HPP
#define TENSORLEND_HPP
#include "tensorlend.h"
#include <array>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>
#if __has_include(<version>)
#include <version>
#endif
#ifdef __cpp_lib_span
#include <span>
#endif
#ifdef __cpp_lib_mdspan
#include <mdspan>
#endif

/// Whether both are the same value of the same name.
inline bool operator==(const tensorlend_version &one, const tensorlend_version &other) { return tensorlend_version_equal(one, other); }
inline bool operator!=(const tensorlend_version &one, const tensorlend_version &other) { return !(one == other); }

namespace tensorlend {
/// A call that failed: what() is tensorlend_error_message(), code tensorlend_error_code(), limit what was reached if
/// status is TENSORLEND_LIMIT.
struct Error : std::runtime_error {
    explicit Error(tensorlend_status failed)
        : std::runtime_error(tensorlend_error_message()), status(failed), limit(tensorlend_limit(tensorlend_error_limit())),
          code(tensorlend_error_code()) {}
    tensorlend_status status;
    tensorlend_limit limit;
    std::string code;
};

/// Throws if a call of tensorlend.h failed.
inline void check(tensorlend_status status) {
    if (status != TENSORLEND_OK)
        throw Error(status);
}

/// Explains a write to a lease, before it ends the process: see tensorlend_explain_faults().
inline void explain_faults() { check(tensorlend_explain_faults()); }

#ifdef __cpp_lib_span
/// std::span; before C++20 a class with the same use.
template <typename T> using Span = std::span<T>;
#else
/// Elements in a row, borrowed: std::span from C++20 on.
template <typename T> class Span {
    T *data_ = nullptr;
    std::size_t size_ = 0;

public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    constexpr Span() = default;
    constexpr Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <typename Range, typename = std::enable_if_t<std::is_convertible_v<decltype(std::data(std::declval<Range &>())), T *>>>
    constexpr Span(Range &&range) : data_(std::data(range)), size_(std::size(range)) {}
    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T &operator[](std::size_t at) const { return data_[at]; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
};
#endif

/// A timeout: any duration of std::chrono, or forever. A negative one, such as the rest of a deadline that has
/// passed, does not wait; one of more than 292 years is as long as forever.
class Timeout {
    int64_t nanoseconds_ = 0;

public:
    constexpr Timeout() = default;
    template <typename Rep, typename Period> constexpr Timeout(std::chrono::duration<Rep, Period> time) {
        using std::chrono::duration;
        if (!(time > duration<Rep, Period>::zero()))
            nanoseconds_ = 0;
        else if (duration<double>(time).count() >= 9.2e9)
            nanoseconds_ = -1;
        else
            nanoseconds_ = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    }
    static constexpr Timeout without_end() {
        Timeout timeout;
        timeout.nanoseconds_ = -1;
        return timeout;
    }
    /// The number that tensorlend.h takes.
    constexpr int64_t count() const noexcept { return nanoseconds_; }
};
inline constexpr Timeout forever = Timeout::without_end();

/// The end of a name: after a time to live (0: no clock ends it), or with this client's session.
struct Lifetime {
    std::chrono::nanoseconds ttl{0};
    bool ephemeral = false;
};

/// A text as an argument: a literal, a std::string or a std::string_view, which need not end with a zero byte.
class Name {
    std::string copy_;
    const char *text_;
    static std::string_view whole(std::string_view text) {
        const std::size_t zero = text.find('\0');
        return zero == text.npos ? text : throw std::invalid_argument("the text has a zero byte at index " + std::to_string(zero) + ": remove it");
    }

public:
    Name(const char *text) noexcept : text_(text) {}
    Name(const std::string &text) : text_((whole(text), text.c_str())) {}
    Name(std::string_view text) : copy_(whole(text)), text_(copy_.c_str()) {}
    Name(const Name &) = delete;
    Name &operator=(const Name &) = delete;
    const char *c_str() const noexcept { return text_; }
};

/// Sizes in elements, 0 to 16 of them: `{480, 640, 3}`, or any container of integers.
class Shape {
    std::array<uint64_t, 16> sizes_{};
    uint32_t ndim_ = 0;
    template <typename Integer> void add(Integer size) {
        if constexpr (std::is_signed_v<Integer>)
            if (size < 0)
                throw std::invalid_argument("size " + std::to_string(size) + " of the shape is below 0: give 0 or more");
        if (ndim_ == sizes_.size())
            throw std::invalid_argument("the shape has more than 16 dimensions: merge some of them");
        sizes_[ndim_++] = static_cast<uint64_t>(size);
    }

public:
    Shape() = default;
    template <typename... Sizes, typename = std::enable_if_t<((sizeof...(Sizes) > 0) && ... && std::is_integral_v<Sizes>)>>
    Shape(Sizes... sizes) {
        (add(sizes), ...);
    }
    template <typename Sizes, typename Size = std::remove_cv_t<std::remove_pointer_t<decltype(std::data(std::declval<const Sizes &>()))>>,
              typename = std::enable_if_t<std::is_integral_v<Size>>>
    Shape(const Sizes &sizes) {
        for (std::size_t at = 0; at < std::size(sizes); at++)
            add(std::data(sizes)[at]);
    }
    const uint64_t *data() const noexcept { return sizes_.data(); }
    uint32_t ndim() const noexcept { return ndim_; }
    std::size_t size() const noexcept { return ndim_; }
    /// Number of elements; more than there can be counts as UINT64_MAX.
    uint64_t elements() const noexcept {
        uint64_t product = 1;
        for (uint32_t at = 0; at < ndim_; at++) {
            if (sizes_[at] == 0)
                return 0;
            product = product > UINT64_MAX / sizes_[at] ? UINT64_MAX : product * sizes_[at];
        }
        return product;
    }
};

/// A handle of one owner; it ends with it.
template <typename T, void (*End)(T *)> class Handle {
    T *handle_ = nullptr;

public:
    Handle() = default;
    Handle(const Handle &) = delete; // a handle has one owner: pass it by std::move
    Handle(Handle &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Handle &operator=(Handle &&other) noexcept {
        if (this != &other)
            End(std::exchange(handle_, std::exchange(other.handle_, nullptr)));
        return *this;
    }
    ~Handle() { End(handle_); }
    /// The handle, for calls of tensorlend.h; NULL after a move.
    T *handle() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /// The place for a new handle; the present one ends.
    T **out() noexcept { return End(std::exchange(handle_, nullptr)), &handle_; }
    /// The handle for a call that takes it over.
    T **taken() noexcept { return &handle_; }
};

/// Calls a function of tensorlend.h and returns its result, the last argument: `made<Listing>(tensorlend_list_names,
/// client.handle(), "*")`.
template <typename T, typename Call, typename... Arguments> T made(Call call, Arguments... arguments) {
    T result{};
    if constexpr (std::is_trivially_copyable_v<T>)
        check(call(arguments..., &result));
    else
        check(call(arguments..., result.out()));
    return result;
}

/// The element type of T, 0 for none. Specialize it for your own: `dtype_of<__half> = TENSORLEND_F16`.
template <typename T>
inline constexpr tensorlend_dtype dtype_of =
    std::is_same_v<T, bool>                                      ? TENSORLEND_BOOL
    : std::is_same_v<T, float>                                   ? TENSORLEND_F32
    : std::is_same_v<T, double>                                  ? TENSORLEND_F64
    : std::is_same_v<T, std::complex<float>>                     ? TENSORLEND_C64
    : std::is_same_v<T, std::complex<double>>                    ? TENSORLEND_C128
    : std::is_same_v<T, std::byte>                               ? TENSORLEND_U8
    : !std::is_integral_v<T> || std::is_same_v<T, char> || std::is_same_v<T, wchar_t> || std::is_same_v<T, char16_t> ||
            std::is_same_v<T, char32_t>
        ? 0
    : sizeof(T) == 1 ? (std::is_signed_v<T> ? TENSORLEND_I8 : TENSORLEND_U8)
    : sizeof(T) == 2 ? (std::is_signed_v<T> ? TENSORLEND_I16 : TENSORLEND_U16)
    : sizeof(T) == 4 ? (std::is_signed_v<T> ? TENSORLEND_I32 : TENSORLEND_U32)
    : sizeof(T) == 8 ? (std::is_signed_v<T> ? TENSORLEND_I64 : TENSORLEND_U64)
                     : 0;

/// The element type of T, for `create<float>` and `data<float>`.
template <typename T> constexpr tensorlend_dtype element() {
    static_assert(dtype_of<T> != 0, "no element type: use the calls of tensorlend.h");
    return dtype_of<T>;
}

namespace detail {
/// Throws unless elements of type `has`, of a tensor or a draft, are of the type T.
template <typename T> void check_elements(tensorlend_dtype has) {
    if (has != element<T>())
        throw std::invalid_argument(std::string("the elements are ") + tensorlend_dtype_name(has) + ", not " +
                                    tensorlend_dtype_name(element<T>()) + ": use their own type");
}

/// As check_elements(), for a draft. Only a tensor's draft has a type.
template <typename T> void check_draft(const tensorlend_draft *draft) {
    const tensorlend_dtype has = tensorlend_draft_dtype(draft);
    if (has == 0)
        throw std::invalid_argument("the draft has no elements: it is a dataset, or it was published: use the draft of a tensor");
    check_elements<T>(has);
}

/// What a container has at this index, or std::out_of_range if `found` is NULL.
template <typename T> const T &at_index(const T *found, uint64_t at, uint64_t size) {
    return found ? *found
                 : throw std::out_of_range("index " + std::to_string(at) + " is out of range: the size is " + std::to_string(size));
}

inline constexpr char on_device_text[] = "the tensor is on a device: use device_data";

/// An iterator over a container with size() and operator[].
template <typename Of> class Each {
    const Of *of_;
    uint64_t at_;

public:
    Each(const Of *of, uint64_t at) : of_(of), at_(at) {}
    decltype(auto) operator*() const { return (*of_)[at_]; }
    Each &operator++() { return at_++, *this; }
    bool operator!=(const Each &other) const { return at_ != other.at_; }
    bool operator==(const Each &other) const { return at_ == other.at_; }
};

struct End {};

/// An iterator over the items of a source until an item is empty. The previous item ends before the iterator waits again.
template <typename From, typename Item> class Incoming {
    From *from_;
    Timeout each_;
    Item item_;

public:
    Incoming(From *from, Timeout each) : from_(from), each_(each), item_(from->recv(each)) {}
    Item &&operator*() noexcept { return std::move(item_); }
    Incoming &operator++() {
        item_ = {};
        item_ = from_->recv(each_);
        return *this;
    }
    bool operator!=(End) const { return bool(item_); }
};

template <typename From, typename Item> struct Range {
    From *from;
    Timeout each;
    Incoming<From, Item> begin() const { return {from, each}; }
    End end() const { return {}; }
};

/// Texts of any range, as an array of strings for C.
class Texts {
    std::vector<std::string> texts_;
    std::vector<const char *> pointers_;

public:
    template <typename Range> explicit Texts(const Range &range) {
        for (auto &&text : range)
            texts_.emplace_back(Name(std::string_view(text)).c_str());
        for (const std::string &text : texts_)
            pointers_.push_back(text.c_str());
    }
    Texts(const Texts &) = delete;
    Texts &operator=(const Texts &) = delete;
    const char *const *data() const noexcept { return pointers_.data(); }
    uint64_t size() const noexcept { return pointers_.size(); }
};

template <typename T, typename = void> constexpr bool is_mdspan = false;
template <typename T>
constexpr bool is_mdspan<T, std::void_t<typename T::extents_type, typename T::accessor_type, decltype(std::declval<const T &>().data_handle()),
                                        decltype(std::declval<const T &>().mapping())>> = true;
template <typename T, typename = void> struct element_of {
    using type = std::remove_cv_t<std::remove_pointer_t<decltype(std::data(std::declval<const T &>()))>>;
};
template <typename T> struct element_of<T, std::enable_if_t<is_mdspan<T>>> {
    using type = std::remove_cv_t<typename T::element_type>;
};
template <typename T> using element_t = typename element_of<T>::type;

template <typename View, std::size_t... At> Shape shape_of([[maybe_unused]] const View &view, std::index_sequence<At...>) {
    if constexpr (sizeof...(At) == 0)
        return {};
    else
        return Shape(static_cast<uint64_t>(view.extent(At))...);
}

/// The shape of elements that a program gives: an mdspan has one, a container one dimension.
template <typename Values> Shape shape_of(const Values &values) {
    if constexpr (is_mdspan<Values>)
        return shape_of(values, std::make_index_sequence<Values::rank()>());
    else
        return Shape(static_cast<uint64_t>(std::size(values)));
}

template <typename View, std::size_t... At>
void gather(const View &view, const Shape &shape, element_t<View> *to, std::index_sequence<At...>) {
    std::array<uint64_t, 16> index{};
    for (uint64_t left = shape.elements(); left > 0; left--) {
        *to++ = view.accessor().access(view.data_handle(), view.mapping()(static_cast<typename View::index_type>(index[At])...));
        for (uint32_t at = shape.ndim(); at-- > 0 && ++index[at] == shape.data()[at];)
            index[at] = 0;
    }
}

/// Copies elements into memory for as many as the shape has, in C order.
template <typename Values> void fill(const Values &values, const Shape &shape, element_t<Values> *to) {
    if constexpr (is_mdspan<Values>) {
        gather(values, shape, to, std::make_index_sequence<Values::rank()>());
    } else if (std::size(values) > 0) {
        static_assert(std::is_trivially_copyable_v<element_t<Values>>);
        std::memcpy(static_cast<void *>(to), std::data(values), std::size(values) * sizeof(*to));
    }
}

template <typename Values> void fits(const Values &values, const Shape &shape) {
    if (static_cast<uint64_t>(std::size(values)) != shape.elements())
        throw std::invalid_argument(std::to_string(std::size(values)) + " elements were given, and the shape has " +
                                    std::to_string(shape.elements()) + ": give one for each");
}
} // namespace detail

/// Another library's tensor, or one for another library: `dlpack/dlpack.h` says what is in it.
using DLPack = Handle<DLManagedTensorVersioned, tensorlend_dlpack_free>;

/// Access to a leased value. `Of` returns the lease.
template <typename Of> class Reads {
    const tensorlend_lease *lease() const noexcept { return static_cast<const Of *>(this)->leased(); }

public:
    /// The tensor, or of a dataset the one of this name.
    const tensorlend_tensor &tensor() const & {
        const auto *found = tensorlend_lease_tensor(lease());
        return found ? *found : throw std::out_of_range(
                               lease() ? "the lease is on a dataset: give the name of a member" : "the lease is empty: get one first");
    }
    const tensorlend_tensor &tensor(const Name &member) const & {
        if (member.c_str() == nullptr)
            return tensor();
        const auto *found = tensorlend_lease_find(lease(), member.c_str());
        return found ? *found : throw std::out_of_range(
                               lease() ? std::string("the leased value has no tensor named \"") + member.c_str() + "\": see members()"
                                       : std::string("the lease is empty: get one first"));
    }
    const tensorlend_tensor &tensor() const && = delete;
    const tensorlend_tensor &tensor(const Name &) const && = delete;
    /// Its elements, where they lie; for bools, see TENSORLEND_BOOL. std::invalid_argument for another element type, for
    /// gaps between elements, and on a device.
    template <typename T> const T *data(const Name &member = nullptr) const & {
        const tensorlend_tensor &it = tensor(member);
        typed<T>(it);
        if (it.device != nullptr)
            throw std::invalid_argument(detail::on_device_text);
        return it.row_major ? static_cast<const T *>(it.data) : throw std::invalid_argument("the elements are strided: use copy, or tensor()");
    }
    template <typename T> const T *data(const Name &member = nullptr) const && = delete;
    template <typename T> Span<const T> span(const Name &member = nullptr) const & {
        return {data<T>(member), static_cast<std::size_t>(tensor(member).elements)};
    }
    template <typename T> Span<const T> span(const Name &member = nullptr) const && = delete;
#ifdef __cpp_lib_mdspan
    /// Its elements with `Rank` dimensions, strided or not.
    template <typename T, std::size_t Rank>
    std::mdspan<const T, std::dextents<std::size_t, Rank>, std::layout_stride> mdspan(const Name &member = nullptr) const & {
        const tensorlend_tensor &it = tensor(member);
        typed<T>(it);
        if (it.device != nullptr)
            throw std::invalid_argument(detail::on_device_text);
        if (it.ndim != Rank)
            throw std::invalid_argument("the tensor has " + std::to_string(it.ndim) + " dimensions, not " + std::to_string(Rank) +
                                        ": give its number of dimensions");
        std::array<std::size_t, Rank> sizes{}, strides{};
        for (std::size_t at = 0; at < Rank; at++) {
            if (it.strides[at] < 0)
                throw std::invalid_argument("the tensor has a negative stride: use copy");
            sizes[at] = it.shape[at], strides[at] = static_cast<std::size_t>(it.strides[at]);
        }
        const std::dextents<std::size_t, Rank> extents(sizes);
        return {static_cast<const T *>(it.data), std::layout_stride::mapping(extents, strides)};
    }
    template <typename T, std::size_t Rank> auto mdspan(const Name &member = nullptr) const && = delete;
#endif
    /// The address of its elements on a device, for kernels.
    template <typename T> const T *device_data(const Name &member = nullptr) const & {
        const tensorlend_tensor &it = tensor(member);
        typed<T>(it);
        return reinterpret_cast<const T *>(static_cast<std::uintptr_t>(it.device_data));
    }
    template <typename T> const T *device_data(const Name &member = nullptr) const && = delete;
    /// A copy of its elements, in C order; also of strided ones, and of those on a device.
    template <typename T> std::vector<T> copy(const Name &member = nullptr) const {
        static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no elements in a row: copy<unsigned char> as bytes");
        const tensorlend_tensor &it = static_cast<const Of *>(this)->tensor(member);
        if (!(sizeof(T) == 1 && it.dtype == TENSORLEND_BOOL))
            typed<T>(it);
        std::vector<T> elements(static_cast<std::size_t>(it.elements));
        check(tensorlend_lease_copy(lease(), member.c_str(), elements.data(), it.nbytes));
        return elements;
    }
    Span<const uint64_t> shape(const Name &member = nullptr) const & {
        return {tensor(member).shape, static_cast<std::size_t>(tensor(member).ndim)};
    }
    Span<const uint64_t> shape(const Name &member = nullptr) const && = delete;
    /// Metadata of the whole, borrowed.
    std::string_view metadata() const & {
        uint64_t bytes = 0;
        const auto *first = static_cast<const char *>(tensorlend_lease_metadata(lease(), &bytes));
        return first ? std::string_view(first, static_cast<std::size_t>(bytes)) : std::string_view();
    }
    std::string_view metadata() const && = delete;
    uint64_t timestamp() const noexcept { return tensorlend_lease_timestamp(lease()); }
    tensorlend_version version() const noexcept { return tensorlend_lease_version(lease()); }
    tensorlend_kind kind() const noexcept { return tensorlend_lease_kind(lease()); }
    bool validate() const noexcept { return tensorlend_lease_validate(lease()); }
    /// The tensor in place, read-only, for another library. It keeps the memory by itself.
    DLPack dlpack(const Name &member = nullptr) const { return made<DLPack>(tensorlend_lease_to_dlpack, lease(), member.c_str()); }
    /// Of a tensor on a device, or of a dataset's tensors on devices: see tensorlend_lease_record_stream and the calls after it.
    void record_stream(void *stream) const { check(tensorlend_lease_record_stream(lease(), stream)); }
    void order_stream(void *stream) const { check(tensorlend_lease_order_stream(lease(), stream)); }
    void finish() const { check(tensorlend_lease_finish(lease())); }
    bool is_finished() const { return made<bool>(tensorlend_lease_is_finished, lease()); }

    /// The tensors of a dataset, for loops: none of a tensor.
    struct Members {
        const tensorlend_lease *of;
        uint64_t size() const noexcept { return tensorlend_lease_members(of); }
        const tensorlend_tensor &operator[](uint64_t at) const {
            return detail::at_index(tensorlend_lease_member(of, at), at, size());
        }
        detail::Each<Members> begin() const { return {this, 0}; }
        detail::Each<Members> end() const { return {this, size()}; }
    };
    Members members() const & { return {lease()}; }
    Members members() const && = delete;

private:
    template <typename T> static void typed(const tensorlend_tensor &it) {
        detail::check_elements<T>(it.dtype);
    }
};

/// A lease on a value, read in place: a tensor, or a dataset of several. Its memory is not reused before it ends.
struct Lease : Handle<tensorlend_lease, tensorlend_lease_free>, Reads<Lease> {
    const tensorlend_lease *leased() const noexcept { return handle(); }
    /// Another lease on the same value.
    Lease clone() const { return made<Lease>(tensorlend_lease_clone, handle()); }
};

/// A message of a stream, or a response: a lease with its number.
struct Message : Lease {
    uint64_t number = 0;
};

/// Leases in order: values of names, items of a list, or kept values of a name. An element is a lease of its own.
struct Leases : Handle<tensorlend_leases, tensorlend_leases_free> {
    uint64_t size() const noexcept { return tensorlend_leases_count(handle()); }
    Lease operator[](uint64_t at) const {
        return made<Lease>(tensorlend_lease_clone, &detail::at_index(tensorlend_leases_at(handle(), at), at, size()));
    }
    detail::Each<Leases> begin() const { return {this, 0}; }
    detail::Each<Leases> end() const { return {this, size()}; }
};

/// Entries of a listing, borrowed from it: `for (const tensorlend_entry &entry : client.list("*"))`.
struct Listing : Handle<tensorlend_listing, tensorlend_listing_free> {
    uint64_t size() const noexcept { return tensorlend_listing_count(handle()); }
    const tensorlend_entry &operator[](uint64_t at) const & {
        return detail::at_index(tensorlend_listing_at(handle(), at), at, size());
    }
    const tensorlend_entry &operator[](uint64_t at) const && = delete;
    bool is_cut() const noexcept { return tensorlend_listing_is_cut(handle()); }
    detail::Each<Listing> begin() const { return {this, 0}; }
    detail::Each<Listing> end() const { return {this, size()}; }
};

/// Devices whose memory the daemon lends, borrowed from the list.
struct Devices : Handle<tensorlend_devices, tensorlend_devices_free> {
    uint64_t size() const noexcept { return tensorlend_devices_count(handle()); }
    const tensorlend_device &operator[](uint64_t at) const & {
        return detail::at_index(tensorlend_devices_at(handle(), at), at, size());
    }
    const tensorlend_device &operator[](uint64_t at) const && = delete;
    detail::Each<Devices> begin() const { return {this, 0}; }
    detail::Each<Devices> end() const { return {this, size()}; }
};

/// A draft, a value that is being written: a tensor, or a dataset that add() fills. Its pointers end with it: a temporary gives none.
struct Draft : Handle<tensorlend_draft, tensorlend_draft_free> {
    /// The memory of a tensor in host memory, for bytes() bytes. std::invalid_argument for another element type, and on a
    /// device.
    template <typename T> T *data() & {
        detail::check_draft<T>(handle());
        void *first = tensorlend_draft_data(handle());
        return first ? static_cast<T *>(first) : throw std::invalid_argument(detail::on_device_text);
    }
    template <typename T> T *data() && = delete;
    template <typename T> Span<T> span() & { return {data<T>(), static_cast<std::size_t>(bytes() / sizeof(T))}; }
    template <typename T> Span<T> span() && = delete;
    uint64_t bytes() const noexcept { return tensorlend_draft_bytes(handle()); }
    Draft &set_metadata(std::string_view bytes) & { return check(tensorlend_draft_set_metadata(handle(), bytes.data(), bytes.size())), *this; }
    Draft &set_timestamp(uint64_t nanoseconds) & { return check(tensorlend_draft_set_timestamp(handle(), nanoseconds)), *this; }
    Draft &set_timestamp(std::chrono::system_clock::time_point time) & {
        return set_timestamp(static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count()));
    }
    /// Adds a tensor to a dataset.
    void add(const Name &name, Draft member) { check(tensorlend_dataset_add(handle(), name.c_str(), member.taken())); }
    tensorlend_version publish(const Name &to) && { return made<tensorlend_version>(tensorlend_publish, taken(), to.c_str()); }
    tensorlend_version publish(const Name &to, Lifetime lifetime) && {
        if (lifetime.ttl.count() < 0)
            throw std::invalid_argument("the time to live is " + std::to_string(lifetime.ttl.count()) +
                                        " ns: give 0, which sets no end, or more");
        return made<tensorlend_version>(tensorlend_publish_for, taken(), to.c_str(), static_cast<uint64_t>(lifetime.ttl.count()),
                                        lifetime.ephemeral ? TENSORLEND_EPHEMERAL : 0);
    }
    /// publish() takes the draft over, so it needs an rvalue.
    template <typename... Arguments> void publish(Arguments &&...) & {
        static_assert(sizeof...(Arguments) == 0 && sizeof...(Arguments) > 0, "publish() takes the draft over: write std::move(draft).publish(name)");
    }
    /// The draft for another library to write in place. It cannot be published before the tensor has ended.
    DLPack dlpack() & { return made<DLPack>(tensorlend_draft_to_dlpack, handle()); }

    /// On a device: see tensorlend_create_on. A stream is a CUstream or cudaStream_t.
    template <typename T> T *device_data() & {
        detail::check_draft<T>(handle());
        return reinterpret_cast<T *>(static_cast<std::uintptr_t>(tensorlend_draft_device_data(handle())));
    }
    template <typename T> T *device_data() && = delete;
    void record_stream(void *stream) { check(tensorlend_draft_record_stream(handle(), stream)); }
    void order_stream(void *stream) { check(tensorlend_draft_order_stream(handle(), stream)); }
    template <typename Values> void copy_from_host(const Values &values) {
        detail::check_draft<detail::element_t<Values>>(handle());
        check(tensorlend_draft_copy_from_host(handle(), std::data(values), std::size(values) * sizeof(*std::data(values))));
    }
    void copy_from_device(uint64_t from, void *stream) { check(tensorlend_draft_copy_from_device(handle(), from, stream)); }
    void finish() { check(tensorlend_draft_finish(handle())); }
    tensorlend_version publish_early(const Name &to, void *stream) && {
        return made<tensorlend_version>(tensorlend_publish_early, taken(), to.c_str(), stream);
    }
};

struct Stream : Handle<tensorlend_stream, tensorlend_stream_close> {
    /// Sends a message; returns its number.
    uint64_t send(Draft message, Timeout timeout = forever) {
        return made<uint64_t>(tensorlend_stream_send, handle(), message.taken(), timeout.count());
    }
    /// As send(), without waiting: false if the stream is full, and the message is still the caller's.
    bool try_send(Draft &message, uint64_t *number = nullptr) {
        const tensorlend_status status = tensorlend_stream_try_send(handle(), message.taken(), number);
        return status == TENSORLEND_FULL ? false : (check(status), true);
    }
    void wait_subscribers(uint64_t count, Timeout timeout = forever) const {
        check(tensorlend_stream_wait_subscribers(handle(), count, timeout.count()));
    }
    const char *name() const & noexcept { return tensorlend_stream_name(handle()); }
    const char *name() const && = delete;
    uint32_t capacity() const noexcept { return tensorlend_stream_capacity(handle()); }
    uint64_t sent() const noexcept { return tensorlend_stream_sent(handle()); }
    uint64_t subscribers() const noexcept { return tensorlend_stream_subscribers(handle()); }
};

/// A subscription: `for (tensorlend::Message frame : frames)` takes messages until the stream ends.
struct Subscription : Handle<tensorlend_subscription, tensorlend_subscription_close> {
    /// The next message; an empty one when the stream has ended.
    Message recv(Timeout timeout = forever, uint64_t *number = nullptr) {
        Message message;
        const tensorlend_status status = tensorlend_subscription_recv(handle(), timeout.count(), message.out(), &message.number);
        if (status != TENSORLEND_STREAM_ENDED)
            check(status);
        if (number && message)
            *number = message.number;
        return message;
    }
    /// The next message if there is one; an empty one if there is none now. Once the stream has ended, an Error with
    /// TENSORLEND_STREAM_ENDED.
    Message try_recv() {
        Message message;
        check(tensorlend_subscription_try_recv(handle(), message.out(), &message.number));
        return message;
    }
    detail::Incoming<Subscription, Message> begin() { return {this, forever}; }
    detail::End end() const { return {}; }
    /// For loops that wait at most this long for each message: `for (auto &&frame : frames.within(10s))`.
    detail::Range<Subscription, Message> within(Timeout each) { return {this, each}; }
    int fd() const noexcept { return tensorlend_subscription_fd(handle()); }
    uint64_t lost() const noexcept { return tensorlend_subscription_lost(handle()); }
    uint64_t position() const noexcept { return tensorlend_subscription_position(handle()); }
    const char *name() const & noexcept { return tensorlend_subscription_name(handle()); }
    const char *name() const && = delete;
};

/// An item that this consumer has claimed. Its end gives it back, unless done() has confirmed it. Views of the value end with it.
struct QueueItem : Handle<tensorlend_queue_item, tensorlend_queue_item_free>, Reads<QueueItem> {
    const tensorlend_lease *leased() const noexcept { return tensorlend_queue_item_value(handle()); }
    /// A lease on the item's value that outlives the item.
    Lease clone() const { return made<Lease>(tensorlend_lease_clone, leased()); }
    uint64_t number() const noexcept { return tensorlend_queue_item_number(handle()); }
    /// Confirms the item, which the daemon deletes; false if the claim was over.
    bool done() { return made<bool>(tensorlend_queue_item_done, taken()); }
    /// Gives the item back: it is the next one that a consumer gets.
    void give_back() { check(tensorlend_queue_item_give_back(taken())); }
};

/// A queue: each item goes to one consumer. Any thread may use it.
struct Queue : Handle<tensorlend_queue, tensorlend_queue_free> {
    /// Appends an item; waits while the queue is full. Returns its number.
    uint64_t put(Draft item, Timeout timeout = forever) const {
        return made<uint64_t>(tensorlend_queue_put, handle(), item.taken(), timeout.count());
    }
    /// Appends items in one request: all of them or none. Waits while the queue has no room for all. Returns the first one's number.
    uint64_t put_many(std::vector<Draft> items, Timeout timeout = forever) const {
        std::vector<tensorlend_draft *> drafts;
        for (const Draft &item : items)
            drafts.push_back(item.handle());
        uint64_t number = 0;
        const tensorlend_status status =
            tensorlend_queue_put_many(handle(), drafts.data(), drafts.size(), timeout.count(), &number);
        for (std::size_t at = 0; at < items.size(); at++)
            *items[at].taken() = drafts[at];
        return check(status), number;
    }
    /// Claims the first item that waits; waits while the queue is empty.
    QueueItem get(Timeout timeout = forever) const { return made<QueueItem>(tensorlend_queue_get, handle(), timeout.count()); }
    /// Confirms an item and claims the next one, in one request. An empty item: only claims.
    QueueItem next(QueueItem done, Timeout timeout = forever) const {
        check(tensorlend_queue_next(handle(), timeout.count(), done.taken()));
        return done;
    }
    uint64_t waiting() const { return made<uint64_t>(tensorlend_queue_waiting, handle()); }
    uint64_t claimed() const { return made<uint64_t>(tensorlend_queue_claimed, handle()); }
    const char *name() const & noexcept { return tensorlend_queue_name(handle()); }
    const char *name() const && = delete;
};

/// A name that keeps its last values.
struct History : Handle<tensorlend_history, tensorlend_history_close> {
    tensorlend_version publish(Draft value) { return made<tensorlend_version>(tensorlend_history_publish, handle(), value.taken()); }
};

/// Sends requests to the servers of a service. Open one for each thread.
struct Caller : Handle<tensorlend_caller, tensorlend_caller_close> {
    /// Sends a request and returns its response. The status of an Error is TENSORLEND_REQUEST_FAILED if the server refused,
    /// TENSORLEND_SERVER_GONE if it ended before it responded.
    Lease call(Draft request, Timeout timeout = forever) {
        return made<Lease>(tensorlend_caller_call, handle(), request.taken(), timeout.count());
    }
    /// As call(), for requests that may be carried out twice: sends what `make` returns again if a server ends before it
    /// responds. The timeout is that of each attempt.
    template <typename Make> Lease call_again(Make make, Timeout timeout = forever) {
        for (;;) {
            try {
                return call(make(), timeout);
            } catch (const Error &error) {
                if (error.status != TENSORLEND_SERVER_GONE)
                    throw;
            }
        }
    }
    /// Sends a request without waiting for its response; returns its number.
    uint64_t send(Draft request, Timeout timeout = forever) {
        return made<uint64_t>(tensorlend_caller_send, handle(), request.taken(), timeout.count());
    }
    /// The response to the oldest request that has none yet.
    Message recv(Timeout timeout = forever) {
        Message response;
        check(tensorlend_caller_recv(handle(), timeout.count(), response.out(), &response.number));
        return response;
    }
    void wait_server(Timeout timeout = forever) { check(tensorlend_caller_wait_server(handle(), timeout.count())); }
    void give_up() { check(tensorlend_caller_give_up(handle())); }
    uint64_t outstanding() const noexcept { return tensorlend_caller_outstanding(handle()); }
    const char *service() const & noexcept { return tensorlend_caller_service(handle()); }
    const char *service() const && = delete;
};

/// A request that a server received: a lease on its value, and the right to respond once. Dropped, it fails for its caller.
struct Request : Handle<tensorlend_request, tensorlend_request_free>, Reads<Request> {
    const tensorlend_lease *leased() const noexcept { return tensorlend_request_value(handle()); }
    /// A lease on the request's value that outlives the request.
    Lease clone() const { return made<Lease>(tensorlend_lease_clone, leased()); }
    void soon() const { check(tensorlend_request_soon(handle())); }
    /// Responds. Views of the request's value end.
    void respond(Draft response) { check(tensorlend_request_respond(taken(), response.taken())); }
    void fail(const Name &why) { check(tensorlend_request_fail(taken(), why.c_str())); }
};

/// Receives requests: `for (tensorlend::Request request : server)` does so until the session ends, by an Error.
struct Server : Handle<tensorlend_server, tensorlend_server_close> {
    Request recv(Timeout timeout = forever) { return made<Request>(tensorlend_server_recv, handle(), timeout.count()); }
    /// The next request if there is one; an empty one if there is none now.
    Request try_recv() { return made<Request>(tensorlend_server_try_recv, handle()); }
    detail::Incoming<Server, Request> begin() { return {this, forever}; }
    detail::End end() const { return {}; }
    uint64_t callers() const noexcept { return tensorlend_server_callers(handle()); }
    const char *service() const & noexcept { return tensorlend_server_service(handle()); }
    const char *service() const && = delete;
};

/// A request to a model: `ModelRequest().input_from("x", "image").output_to("y", "classes")`.
struct ModelRequest : Handle<tensorlend_model_request, tensorlend_model_request_free> {
    ModelRequest() { check(tensorlend_model_request_new(out())); }
    ModelRequest &input(const Name &input, Draft tensor) {
        return check(tensorlend_model_request_input(handle(), input.c_str(), tensor.taken())), *this;
    }
    ModelRequest &input_from(const Name &input, const Name &name) {
        return check(tensorlend_model_request_input_from(handle(), input.c_str(), name.c_str())), *this;
    }
    /// `steps` is a JSON list.
    ModelRequest &prepare(const Name &input, const Name &steps) {
        return check(tensorlend_model_request_prepare(handle(), input.c_str(), steps.c_str())), *this;
    }
    ModelRequest &output(const Name &output) {
        return check(tensorlend_model_request_output(handle(), output.c_str(), nullptr)), *this;
    }
    ModelRequest &output_to(const Name &output, const Name &name) {
        return check(tensorlend_model_request_output(handle(), output.c_str(), name.c_str())), *this;
    }
};

/// A connection to the runners of one model. Open one for each thread.
struct Model : Handle<tensorlend_model, tensorlend_model_close> {
    /// Runs the model; returns a dataset of outputs by name. It takes the request over.
    Lease run(ModelRequest &request, Timeout timeout = forever) {
        return made<Lease>(tensorlend_model_run, handle(), request.taken(), timeout.count());
    }
    Lease run(ModelRequest &&request, Timeout timeout = forever) { return run(request, timeout); }
    const char *name() const & noexcept { return tensorlend_model_name(handle()); }
    const char *name() const && = delete;
};

/// The version under which the runner published an output; zeros if the response has it.
inline tensorlend_version published(const Lease &response, const Name &output) {
    return made<tensorlend_version>(tensorlend_model_published, response.handle(), output.c_str());
}

/// How long a model's response took: until its run, and the model alone.
struct ModelTimes {
    std::chrono::nanoseconds queue, run;
    static ModelTimes of(const Lease &response) {
        uint64_t queue = 0, run = 0;
        check(tensorlend_model_times(response.handle(), &queue, &run));
        return {std::chrono::nanoseconds(queue), std::chrono::nanoseconds(run)};
    }
};

struct Stat : Handle<tensorlend_stat, tensorlend_stat_free> {
    const tensorlend_figures &figures() const & {
        const auto *found = tensorlend_stat_figures(handle());
        return found ? *found : throw std::out_of_range("the statistics are empty: get them with Client::stat");
    }
    const tensorlend_figures &figures() const && = delete;
};
struct Outstanding : Handle<tensorlend_outstanding, tensorlend_outstanding_free> {
    const char *text() const & noexcept { return tensorlend_outstanding_text(handle()); }
    const char *text() const && = delete;
    uint64_t count() const noexcept { return tensorlend_outstanding_count(handle()); }
    uint64_t bytes() const noexcept { return tensorlend_outstanding_bytes(handle()); }
};

/// Bytes of a client's tensors, and of the segments that the daemon lends to it.
struct Memory {
    uint64_t slot_bytes = 0, segment_bytes = 0;
};

/// Options of a connection: `Client client(Options().join("robot").label("camera"))`.
struct Options : Handle<tensorlend_options, tensorlend_options_free> {
    Options &socket(const Name &path) { return with(tensorlend_options_socket, path.c_str()); }
    /// The namespace to join.
    Options &join(const Name &name) { return with(tensorlend_options_namespace, name.c_str()); }
    Options &label(const Name &label) { return with(tensorlend_options_label, label.c_str()); }
    Options &harden(bool harden = true) { return with(tensorlend_options_harden, harden); }
    Options &memory_limit(uint64_t bytes) { return with(tensorlend_options_memory_limit, bytes); }
    Options &request_timeout(Timeout time) { return with(tensorlend_options_request_timeout, finite(time)); }
    Options &remote_timeout(Timeout time) { return with(tensorlend_options_remote_timeout, finite(time)); }
    Options &statistics() { return with(tensorlend_options_statistics); }
    Options &log(const Name &file) { return with(tensorlend_options_log, file.c_str()); }
    Options &tracking() { return with(tensorlend_options_tracking); }
    /// An exception that leaves `relief` ends the process: catch what it may throw.
    Options &on_memory_pressure(tensorlend_relief relief, void *context) {
        return with(tensorlend_options_on_memory_pressure, relief, context);
    }

private:
    static uint64_t finite(Timeout time) { return time.count() < 0 ? uint64_t(INT64_MAX) : static_cast<uint64_t>(time.count()); }
    template <typename Call, typename... Arguments> Options &with(Call call, Arguments... arguments) {
        if (!*this)
            check(tensorlend_options_new(out()));
        return check(call(handle(), arguments...)), *this;
    }
};

/// A session with the daemon, in one namespace. Any thread may use it.
struct Client : Handle<tensorlend_client, tensorlend_client_free> {
    /// Connects: without a socket in the options to $TENSORLEND_SOCKET, the user's daemon, or the system's. Starts the user's
    /// daemon if none responds.
    explicit Client(const Options &options = {}) { check(tensorlend_connect(options.handle(), out())); }
    const char *joined() const & noexcept { return tensorlend_client_namespace(handle()); }
    const char *joined() const && = delete;
    const char *daemon_version() const & noexcept { return tensorlend_client_daemon_version(handle()); }
    const char *daemon_version() const && = delete;
    std::chrono::nanoseconds ping() const { return std::chrono::nanoseconds(made<uint64_t>(tensorlend_ping, handle())); }

    /// A draft to be written in place: `client.create<float>({480, 640, 3})`.
    template <typename T> Draft create(const Shape &shape) const { return create(element<T>(), shape); }
    Draft create(tensorlend_dtype dtype, const Shape &shape) const {
        return made<Draft>(tensorlend_create, handle(), dtype, shape.ndim(), shape.data());
    }
    /// As create(), with strides in elements, and the element with index 0 `byte_offset` bytes into the data.
    template <typename T> Draft create_strided(const Shape &shape, std::initializer_list<int64_t> strides, uint64_t byte_offset = 0) const {
        if (strides.size() != shape.size())
            throw std::invalid_argument(std::to_string(strides.size()) + " strides were given for " + std::to_string(shape.size()) +
                                        " dimensions: give one for each");
        return made<Draft>(tensorlend_create_strided, handle(), element<T>(), shape.ndim(), shape.data(), strides.begin(), byte_offset);
    }
    Draft dataset() const { return made<Draft>(tensorlend_create_dataset, handle()); }
    /// A draft with these elements: of a vector, an array, a span, or an mdspan of any layout.
    template <typename Values> Draft draft(const Values &values) const {
        const Shape shape = detail::shape_of(values);
        Draft draft = create<detail::element_t<Values>>(shape);
        detail::fill(values, shape, draft.template data<detail::element_t<Values>>());
        return draft;
    }
    /// A draft with these elements, in C order: as many as the shape has.
    template <typename Values> Draft draft(const Values &values, const Shape &shape) const {
        detail::fits(values, shape);
        Draft draft = create<detail::element_t<Values>>(shape);
        detail::fill(values, shape, draft.template data<detail::element_t<Values>>());
        return draft;
    }
    template <typename T> Draft draft(std::initializer_list<T> values) const { return draft<std::initializer_list<T>>(values); }
    Draft draft(const DLPack &tensor) const { return made<Draft>(tensorlend_create_from_dlpack, handle(), tensor.handle()); }
    /// Copies elements in and publishes them: `client.put("x", values)`, `client.put("x", values, {480, 640, 3})`, both
    /// also with a Lifetime: `client.put("x", values, Lifetime{1min})`.
    template <typename Values> tensorlend_version put(const Name &name, const Values &values) const {
        return draft(values).publish(name);
    }
    // A template, so that braces are always a shape.
    template <typename Values, typename Until, typename = std::enable_if_t<std::is_same_v<Until, Lifetime>>>
    tensorlend_version put(const Name &name, const Values &values, const Until &lifetime) const {
        return draft(values).publish(name, lifetime);
    }
    template <typename Values> tensorlend_version put(const Name &name, const Values &values, const Shape &shape, Lifetime lifetime = {}) const {
        return draft(values, shape).publish(name, lifetime);
    }
    template <typename T> tensorlend_version put(const Name &name, std::initializer_list<T> values) const {
        return draft(values).publish(name);
    }
    template <typename T> tensorlend_version put(const Name &name, std::initializer_list<T> values, Lifetime lifetime) const {
        return draft(values).publish(name, lifetime);
    }

    /// The name's current value.
    Lease get(const Name &name) const { return made<Lease>(tensorlend_get_value, handle(), name.c_str()); }
    /// The current values of any range of texts, in their order: in less time than a call for each. All or none.
    template <typename Names> Leases get_many(const Names &names) const {
        const detail::Texts texts(names);
        return made<Leases>(tensorlend_get_many, handle(), texts.data(), texts.size());
    }
    Leases get_many(std::initializer_list<std::string_view> names) const {
        return get_many<std::initializer_list<std::string_view>>(names);
    }
    /// The name's value, as soon as there is one.
    Lease wait_for(const Name &name, Timeout timeout = forever) const { return wait_newer(name, {}, timeout); }
    /// The name's value, as soon as it is another one than `seen`.
    Lease wait_newer(const Name &name, tensorlend_version seen, Timeout timeout = forever) const {
        return made<Lease>(tensorlend_wait_newer, handle(), name.c_str(), seen, timeout.count());
    }
    /// Copies the name's current tensor into memory of exactly its size.
    template <typename Values> tensorlend_version get_into(const Name &name, Values &&to) const {
        return made<tensorlend_version>(tensorlend_get_into, handle(), name.c_str(), static_cast<void *>(std::data(to)),
                                        uint64_t(std::size(to) * sizeof(*std::data(to))));
    }
    bool exists(const Name &name) const { return made<bool>(tensorlend_exists, handle(), name.c_str()); }
    tensorlend_version version(const Name &name) const { return made<tensorlend_version>(tensorlend_current_version, handle(), name.c_str()); }
    /// Deletes a name; false if it did not exist.
    bool remove(const Name &name) const { return made<bool>(tensorlend_delete, handle(), name.c_str()); }
    void rename(const Name &from, const Name &to) const { check(tensorlend_rename(handle(), from.c_str(), to.c_str())); }
    tensorlend_version copy(const Name &from, const Name &to) const {
        return made<tensorlend_version>(tensorlend_copy, handle(), from.c_str(), to.c_str());
    }
    Listing list(const Name &glob = "*") const { return made<Listing>(tensorlend_list_names, handle(), glob.c_str()); }
    Listing info(const Name &name) const { return made<Listing>(tensorlend_info, handle(), name.c_str()); }
    Listing streams(const Name &glob = "*") const { return made<Listing>(tensorlend_list_streams, handle(), glob.c_str()); }
    Listing lists(const Name &glob = "*") const { return made<Listing>(tensorlend_list_lists, handle(), glob.c_str()); }

    History keep(const Name &name, uint32_t versions) const { return made<History>(tensorlend_keep, handle(), name.c_str(), versions); }
    Leases versions(const Name &name) const { return made<Leases>(tensorlend_versions, handle(), name.c_str()); }

    /// Appends an item to a list; returns its number.
    uint64_t append(const Name &list, Draft item) const { return made<uint64_t>(tensorlend_list_append, handle(), list.c_str(), item.taken()); }
    /// Appends copies of the values of names, all or none: of any range of texts. Returns the first one's number.
    template <typename Names> uint64_t append_names(const Name &list, const Names &names) const {
        const detail::Texts texts(names);
        return made<uint64_t>(tensorlend_list_append_names, handle(), list.c_str(), texts.data(), texts.size());
    }
    uint64_t append_names(const Name &list, std::initializer_list<std::string_view> names) const {
        return append_names<std::initializer_list<std::string_view>>(list, names);
    }
    Leases get_all(const Name &list) const { return get_range(list, 0); }
    /// Items first to end - 1.
    Leases get_range(const Name &list, uint64_t first, uint64_t end = UINT64_MAX) const {
        return made<Leases>(tensorlend_list_get_range, handle(), list.c_str(), first, end);
    }
    uint64_t length(const Name &list) const { return made<uint64_t>(tensorlend_list_length, handle(), list.c_str()); }
    /// Waits until a list has this many items; returns its length.
    uint64_t wait_length(const Name &list, tensorlend_length how, uint64_t items, Timeout timeout = forever) const {
        return made<uint64_t>(tensorlend_list_wait_length, handle(), list.c_str(), int32_t(how), items, timeout.count());
    }
    bool clear(const Name &list) const { return made<bool>(tensorlend_list_clear, handle(), list.c_str()); }
    void rename_list(const Name &from, const Name &to) const { check(tensorlend_list_rename(handle(), from.c_str(), to.c_str())); }

    /// A queue. Its put() waits while `max_waiting` items wait, for all of its producers; 0: their maximum, or none.
    Queue queue(const Name &name, uint64_t max_waiting = 0) const {
        return made<Queue>(tensorlend_queue_open, handle(), name.c_str(), max_waiting);
    }

    Stream stream(const Name &name, uint32_t capacity = 0, tensorlend_policy policy = TENSORLEND_POLICY_BLOCK) const {
        return made<Stream>(tensorlend_stream_open, handle(), name.c_str(), capacity, int32_t(policy));
    }
    bool delete_stream(const Name &name) const { return made<bool>(tensorlend_stream_delete, handle(), name.c_str()); }
    /// Subscribes; waits for a stream that is not open yet. `flags` is 0 or TENSORLEND_POLLABLE.
    Subscription subscribe(const Name &name, tensorlend_start from = TENSORLEND_START_NEWEST, Timeout wait = {}, uint32_t flags = 0) const {
        return made<Subscription>(tensorlend_subscribe, handle(), name.c_str(), int32_t(from), flags, wait.count());
    }

    /// A caller of a service, for `capacity` requests without a response at once (0: 8).
    Caller caller(const Name &service, uint32_t capacity = 0) const {
        return made<Caller>(tensorlend_caller_open, handle(), service.c_str(), capacity);
    }
    Server serve(const Name &service) const { return made<Server>(tensorlend_serve, handle(), service.c_str()); }

    /// Adds or replaces a model: the bytes of an ONNX file, and its options as JSON.
    template <typename Bytes> tensorlend_version put_model(const Name &model, const Bytes &onnx, const Name &options = nullptr) const {
        static_assert(sizeof(*std::data(onnx)) == 1, "bytes");
        return made<tensorlend_version>(tensorlend_model_put, handle(), model.c_str(), static_cast<const void *>(std::data(onnx)),
                                        uint64_t(std::size(onnx)), options.c_str());
    }
    Lease get_model(const Name &model) const { return made<Lease>(tensorlend_model_get, handle(), model.c_str()); }
    bool delete_model(const Name &model) const { return made<bool>(tensorlend_model_delete, handle(), model.c_str()); }
    Listing models(const Name &glob = "*") const { return made<Listing>(tensorlend_list_models, handle(), glob.c_str()); }
    Model model(const Name &name) const { return made<Model>(tensorlend_model_open, handle(), name.c_str()); }

    /// Publishes elements under a name of another machine, "NODE/NAME".
    template <typename Values> void put_remote(const Name &name, const Values &values) const { publish_remote(draft(values), name); }
    template <typename Values> void put_remote(const Name &name, const Values &values, const Shape &shape) const {
        publish_remote(draft(values, shape), name);
    }
    void publish_remote(Draft draft, const Name &name) const { check(tensorlend_publish_remote(handle(), draft.taken(), name.c_str())); }
    uint64_t fetch_list(const Name &list) const { return made<uint64_t>(tensorlend_fetch_list, handle(), list.c_str()); }
    Listing nodes() const { return made<Listing>(tensorlend_list_nodes, handle()); }
    Listing remote_names(const Name &glob) const { return made<Listing>(tensorlend_list_remote_names, handle(), glob.c_str()); }
    Listing placement(const Name &name) const { return made<Listing>(tensorlend_placement, handle(), name.c_str()); }

    /// Tensors on devices: `device` is "cuda:0", or a UUID. See tensorlend_create_on.
    Devices devices() const { return made<Devices>(tensorlend_list_devices, handle()); }
    template <typename T> Draft create_on(const Name &device, const Shape &shape) const {
        return made<Draft>(tensorlend_create_on, handle(), device.c_str(), element<T>(), shape.ndim(), shape.data());
    }
    template <typename T> Draft create_on_stream(const Name &device, void *stream, const Shape &shape) const {
        return made<Draft>(tensorlend_create_on_stream, handle(), device.c_str(), stream, element<T>(), shape.ndim(), shape.data());
    }
    Draft draft_on(const DLPack &tensor, void *stream) const {
        return made<Draft>(tensorlend_create_from_dlpack_on, handle(), tensor.handle(), stream);
    }
    template <typename Values> tensorlend_version put_on(const Name &device, const Name &name, const Values &values) const {
        return put_on(device, name, values, detail::shape_of(values));
    }
    template <typename Values> tensorlend_version put_on(const Name &device, const Name &name, const Values &values, const Shape &shape) const {
        detail::fits(values, shape);
        return made<tensorlend_version>(tensorlend_put_on, handle(), device.c_str(), name.c_str(), element<detail::element_t<Values>>(),
                                        shape.ndim(), shape.data(), static_cast<const void *>(std::data(values)));
    }
    Lease get_device(const Name &name) const { return made<Lease>(tensorlend_get_device, handle(), name.c_str()); }
    Lease get_device_early(const Name &name) const { return made<Lease>(tensorlend_get_device_early, handle(), name.c_str()); }

    Stat stat() const { return made<Stat>(tensorlend_stat_get, handle()); }
    Memory memory() const {
        Memory memory;
        check(tensorlend_memory(handle(), &memory.slot_bytes, &memory.segment_bytes));
        return memory;
    }
    Memory device_memory(const Name &device) const {
        Memory memory;
        check(tensorlend_device_memory(handle(), device.c_str(), &memory.slot_bytes, &memory.segment_bytes));
        return memory;
    }
    uint64_t leased_bytes() const { return made<uint64_t>(tensorlend_leased_bytes, handle()); }
    void enable_statistics(bool enable = true) const { check(tensorlend_statistics_enable(handle(), enable)); }
    tensorlend_statistics statistics() const { return made<tensorlend_statistics>(tensorlend_statistics_get, handle()); }
    void start_log(const Name &file) const { check(tensorlend_log_start(handle(), file.c_str())); }
    void stop_log() const { check(tensorlend_log_stop(handle())); }
    Outstanding outstanding() const { return made<Outstanding>(tensorlend_outstanding_get, handle()); }
};
} // namespace tensorlend
#endif
