// A name for lines of the log, for programs that log without a client.
#ifndef SMARTREDIS_LOGCONTEXT_H
#define SMARTREDIS_LOGCONTEXT_H
#ifdef __cplusplus
#include "srobject.h"
#include <string>

namespace SmartRedis {

class LogContext : public SRObject {
public:
    LogContext(const std::string& logging_name) : SRObject(logging_name) { log_data(LLDebug, "new log context"); }
};

} // namespace SmartRedis
#endif
#endif
