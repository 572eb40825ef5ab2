// Shared parts of the C interface's files: errors as codes, and checked arguments.
#ifndef SMARTREDIS_C_CALLS_H
#define SMARTREDIS_C_CALLS_H
#include "client.h"
#include <new>
#include <string_view>

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

/// The object behind a handle of C.
template <typename Object> Object& object_at(void* object) {
    require(object);
    return *static_cast<Object*>(object);
}

inline Client& client_at(void* client) { return object_at<Client>(client); }
inline DataSet& dataset_at(void* dataset) { return object_at<DataSet>(dataset); }

inline std::string text(const char* start, size_t length) {
    require(start);
    return std::string(start, length);
}

/// Arguments of C, which `called` converts to those of a method. A conversion may throw.
struct Text {
    const char* start;
    size_t length;
    operator std::string() const { return text(start, length); }
    operator std::string_view() const {
        require(start);
        return {start, length};
    }
};

/// A text that may be NULL.
struct OptionalText {
    const char* start;
    size_t length;
    operator std::string() const { return start == nullptr ? "" : std::string(start, length); }
};

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

/// Calls a method of an object of C.
template <typename Object, typename Method, typename... Given>
SRError called(void* object, Method Object::*method, const Given&... given) {
    return guarded([&] { (object_at<Object>(object).*method)(given...); });
}

/// Calls a method of an object of C, and writes the result to *result.
template <typename Object, typename Method, typename Result, typename... Given>
SRError result_of(void* object, Method Object::*method, Result* result, const Given&... given) {
    return guarded([&] {
        Object& of = object_at<Object>(object);
        require(result);
        *result = (of.*method)(given...);
    });
}

/// Makes an object, and gives it to the caller.
template <typename T, typename... Given> void* made(Given&&... given) { return new T(std::forward<Given>(given)...); }

/// Makes an object in a variable of the caller, which is NULL if that fails.
template <typename T, typename... Given> SRError created(void** variable, const Given&... given) {
    return guarded([&] {
        require(variable);
        *variable = nullptr;
        *variable = made<T>(given...);
    });
}

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
