// The last error of each thread, and the exceptions for the statuses of the C library.
#include "handles.h"

namespace SmartRedis {

namespace {
struct Last {
    std::string text = "no error";
    std::string place = "unavailable";
};

thread_local bool disconnected = false;

Last& last() {
    thread_local Last last;
    return last;
}
} // namespace

extern "C" void SRSetLastError(const Exception& last_error) {
    last().text = last_error.what();
    last().place = last_error.where();
}

extern "C" const char* SRGetLastError(void) { return last().text.c_str(); }

extern "C" const char* SRGetLastErrorLocation(void) { return last().place.c_str(); }

bool take_disconnected() { return std::exchange(disconnected, false); }

void raise(tensorlend_status status, const std::string& what) {
    const std::string text = what + ": " + tensorlend_error_message();
    disconnected = status == TENSORLEND_DISCONNECTED;
    switch (status) {
    case TENSORLEND_LIMIT:
        throw SRBadAllocException(text);
    case TENSORLEND_TIMEOUT:
        throw SRTimeoutException(text);
    case TENSORLEND_DISCONNECTED:
    case TENSORLEND_FORKED:
        throw SRDatabaseException(text);
    case TENSORLEND_PANIC:
        throw SRInternalException(text);
    case TENSORLEND_DTYPE:
        throw SRTypeException(text);
    default:
        throw SRRuntimeException(text);
    }
}

} // namespace SmartRedis
