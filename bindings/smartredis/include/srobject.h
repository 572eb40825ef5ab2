// The base class of clients, datasets and log contexts: an object with a name in the log.
#ifndef SMARTREDIS_SROBJECT_H
#define SMARTREDIS_SROBJECT_H
#ifdef __cplusplus
#include "sr_enums.h"
#include <stdlib.h>
#include <string>
#include <vector>

namespace SmartRedis {

class SRObject {
public:
    SRObject(const std::string& logging_name) : _lname(logging_name) {}
    SRObject(const SRObject&) = default;
    SRObject(SRObject&&) = default;
    SRObject& operator=(const SRObject&) = default;
    SRObject& operator=(SRObject&&) = default;
    virtual ~SRObject() = default;
    virtual void log_data(SRLoggingLevel level, const std::string& data) const;
    virtual void log_warning(SRLoggingLevel level, const std::string& data) const;
    virtual void log_error(SRLoggingLevel level, const std::string& data) const;
    virtual std::string get_context() const { return _lname; }

protected:
    std::string _lname;
};

} // namespace SmartRedis
#endif
#endif
