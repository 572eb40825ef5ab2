// Handles of the C library that end themselves, and its errors as exceptions.
#ifndef SMARTREDIS_HANDLES_H
#define SMARTREDIS_HANDLES_H
#include "srexception.h"
#include <memory>
#include <string>
#include <tensorlend.h>
#include <utility>

namespace SmartRedis {

template <typename T, void (*End)(T*)> class Owned {
    T* handle_ = nullptr;

public:
    Owned() = default;
    explicit Owned(T* handle) : handle_(handle) {}
    Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Owned& operator=(Owned&& other) noexcept {
        if (this != &other)
            End(std::exchange(handle_, std::exchange(other.handle_, nullptr)));
        return *this;
    }
    ~Owned() { End(handle_); }
    T* get() const { return handle_; }
    /// The place for a new handle, or the handle for a call that takes it over.
    T** place() { return &handle_; }
    explicit operator bool() const { return handle_ != nullptr; }
};

using Lease = Owned<tensorlend_lease, tensorlend_lease_free>;
using Leases = Owned<tensorlend_leases, tensorlend_leases_free>;
using Draft = Owned<tensorlend_draft, tensorlend_draft_free>;
using Listing = Owned<tensorlend_listing, tensorlend_listing_free>;
using Model = Owned<tensorlend_model, tensorlend_model_close>;
using ModelRequest = Owned<tensorlend_model_request, tensorlend_model_request_free>;
using Stat = Owned<tensorlend_stat, tensorlend_stat_free>;
using Session = Owned<tensorlend_client, tensorlend_client_free>;
using SessionOptions = Owned<tensorlend_options, tensorlend_options_free>;

/// Throws the exception for a status that is not TENSORLEND_OK. `what` names the object in the text.
[[noreturn]] void raise(tensorlend_status status, const std::string& what);

/// Returns whether this thread's last call failed because its session had ended, and forgets it.
bool take_disconnected();

inline void check(tensorlend_status status, const std::string& what) {
    if (status != TENSORLEND_OK)
        raise(status, what);
}

} // namespace SmartRedis
#endif
