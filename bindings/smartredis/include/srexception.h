/* Error codes for C, exceptions for C++. */
#ifndef SMARTREDIS_SREXCEPTION_H
#define SMARTREDIS_SREXCEPTION_H
#include "logger.h"
#include "sr_enums.h"
#include <stdio.h>
#include <stdlib.h>

typedef enum {
    SRNoError = 0,
    SRBadAllocError = 1,
    SRDatabaseError = 2,
    SRInternalError = 3,
    SRRuntimeError = 4,
    SRParameterError = 5,
    SRTimeoutError = 6,
    SRKeyError = 7,
    SRInvalidError = 8,
    SRTypeError = 9
} SRError;

#ifdef __cplusplus
#include <exception>
#include <string>

namespace SmartRedis {
class Exception;
}
extern "C" {
#endif
/* The text of this thread's last error, and the place in the source that raised it. The pointers are valid until the
 * thread's next error. */
const char* SRGetLastError(void);
const char* SRGetLastErrorLocation(void);
#ifdef __cplusplus
}

namespace SmartRedis {
extern "C" void SRSetLastError(const Exception& last_error);

/// The base of all exceptions of this library.
class Exception : public std::exception {
public:
    Exception(const char* what_arg) : _msg(what_arg), _loc("unavailable") { SRSetLastError(*this); }
    Exception(const char* what_arg, const char* file, int line) : Exception(std::string(what_arg), file, line) {}
    Exception(const std::string& what_arg, const char* file, int line)
        : _msg(what_arg), _loc(file + (":" + std::to_string(line))) {
        SRSetLastError(*this);
    }
    Exception(const std::exception& other) noexcept : _msg(other.what()), _loc("unavailable") {}
    Exception(const Exception&) = default;
    Exception& operator=(const Exception&) = default;
    Exception(Exception&&) = default;
    Exception& operator=(Exception&&) = default;
    ~Exception() override = default;
    virtual SRError to_error_code() const noexcept { return SRInvalidError; }
    virtual std::string exception_class() { return "Exception"; }
    const char* what() const noexcept override { return _msg.c_str(); }
    virtual const char* where() const noexcept { return _loc.c_str(); }

protected:
    std::string _msg;
    std::string _loc;
};

#define SMARTREDIS_EXCEPTION(name, code)                                                                                          \
    class name : public Exception {                                                                                               \
    public:                                                                                                                       \
        using Exception::Exception;                                                                                               \
        SRError to_error_code() const noexcept override { return code; }                                                          \
        std::string exception_class() override { return #name; }                                                                  \
    };
SMARTREDIS_EXCEPTION(BadAllocException, SRBadAllocError)
SMARTREDIS_EXCEPTION(DatabaseException, SRDatabaseError)
SMARTREDIS_EXCEPTION(RuntimeException, SRRuntimeError)
SMARTREDIS_EXCEPTION(ParameterException, SRParameterError)
SMARTREDIS_EXCEPTION(TimeoutException, SRTimeoutError)
SMARTREDIS_EXCEPTION(InternalException, SRInternalError)
SMARTREDIS_EXCEPTION(KeyException, SRKeyError)
SMARTREDIS_EXCEPTION(TypeException, SRTypeError)
#undef SMARTREDIS_EXCEPTION

#define SRBadAllocException(txt) BadAllocException(txt, __FILE__, __LINE__)
#define SRDatabaseException(txt) DatabaseException(txt, __FILE__, __LINE__)
#define SRRuntimeException(txt) RuntimeException(txt, __FILE__, __LINE__)
#define SRParameterException(txt) ParameterException(txt, __FILE__, __LINE__)
#define SRTimeoutException(txt) TimeoutException(txt, __FILE__, __LINE__)
#define SRInternalException(txt) InternalException(txt, __FILE__, __LINE__)
#define SRKeyException(txt) KeyException(txt, __FILE__, __LINE__)
#define SRTypeException(txt) TypeException(txt, __FILE__, __LINE__)

} // namespace SmartRedis
#endif
#endif
