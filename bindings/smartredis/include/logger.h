// The process's log: SR_LOG_FILE names its file (standard output without it), SR_LOG_LEVEL its level.
#ifndef SMARTREDIS_LOGGER_H
#define SMARTREDIS_LOGGER_H
#include "sr_enums.h"
#include "srobject.h"
#include <stdlib.h>
#ifdef __cplusplus
#include <memory>
#include <string>

namespace SmartRedis {

/// The log of this process. Several threads may write at once: each line is written whole.
class Logger {
public:
    static Logger& get_instance();
    Logger(const Logger&) = delete;
    Logger& operator=(const Logger&) = delete;
    /// Reads the environment again.
    void configure_logging();
    void log_data(const std::string& context, SRLoggingLevel level, const std::string& data);
    void log_warning(const std::string& context, SRLoggingLevel level, const std::string& data);
    void log_error(const std::string& context, SRLoggingLevel level, const std::string& data);

private:
    Logger();
    ~Logger();
    struct State;
    std::unique_ptr<State> state_;
};

inline void log_data(const std::string& context, SRLoggingLevel level, const std::string& data) {
    Logger::get_instance().log_data(context, level, data);
}
inline void log_warning(const std::string& context, SRLoggingLevel level, const std::string& data) {
    Logger::get_instance().log_warning(context, level, data);
}
inline void log_error(const std::string& context, SRLoggingLevel level, const std::string& data) {
    Logger::get_instance().log_error(context, level, data);
}
inline void log_data(const SRObject* context, SRLoggingLevel level, const std::string& data) { context->log_data(level, data); }
inline void log_warning(const SRObject* context, SRLoggingLevel level, const std::string& data) { context->log_warning(level, data); }
inline void log_error(const SRObject* context, SRLoggingLevel level, const std::string& data) { context->log_error(level, data); }

} // namespace SmartRedis
#endif
#endif
