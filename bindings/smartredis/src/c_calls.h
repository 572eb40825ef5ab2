// What the C interface's files share: errors as codes, and checked arguments.
#ifndef SMARTREDIS_C_CALLS_H
#define SMARTREDIS_C_CALLS_H
#include "client.h"
#include <new>

namespace SmartRedis {

/// Calls a function, and returns the code of the exception that leaves it.
template <typename Call> SRError guarded(Call call) noexcept {
    try {
        try {
            call();
            return SRNoError;
        } catch (const Exception& error) {
            SRSetLastError(error);
            return error.to_error_code();
        } catch (const std::bad_alloc&) {
            return SRBadAllocException("no memory").to_error_code();
        } catch (const std::exception& error) {
            return SRInternalException(error.what()).to_error_code();
        }
    } catch (...) {
        return SRInternalError;
    }
}

/// ParameterException unless all pointers are there.
template <typename... Pointers> void require(Pointers... pointers) {
    if (!(... && (pointers != nullptr)))
        throw SRParameterException("a required argument is NULL");
}

inline Client& client_at(void* client) {
    require(client);
    return *static_cast<Client*>(client);
}

inline DataSet& dataset_at(void* dataset) {
    require(dataset);
    return *static_cast<DataSet*>(dataset);
}

inline std::string text(const char* start, size_t length) {
    require(start);
    return std::string(start, length);
}

/// A text that may be NULL.
inline std::string optional_text(const char* start, size_t length) { return start == nullptr ? "" : std::string(start, length); }

/// The maximum number of dimensions of a tensor.
constexpr size_t N_DIMS_MAX = 16;

inline std::vector<size_t> sizes(const size_t* dims, size_t n_dims) {
    require(dims);
    // A larger number would lead to reads behind the caller's array.
    if (n_dims > N_DIMS_MAX)
        throw SRRuntimeException(std::to_string(n_dims) + " dimensions were given; a tensor has at most " +
                                 std::to_string(N_DIMS_MAX));
    return std::vector<size_t>(dims, dims + n_dims);
}

/// Makes an object, and gives it to the caller.
template <typename T, typename... Given> void* made(Given&&... given) { return new T(std::forward<Given>(given)...); }

template <typename T> SRError ended(void** object) {
    return guarded([&] {
        require(object);
        delete static_cast<T*>(*object);
        *object = nullptr;
    });
}

/// The text of an object, kept for this thread.
template <typename Describe> const char* described(std::string& kept, Describe describe) {
    if (guarded([&] { kept = describe(); }) != SRNoError)
        kept = SRGetLastError();
    return kept.c_str();
}

} // namespace SmartRedis
#endif
