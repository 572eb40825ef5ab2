/* Lines of the log from C. A failure to log is written to standard output; no call fails. */
#ifndef SMARTREDIS_C_LOGGER_H
#define SMARTREDIS_C_LOGGER_H
#include "sr_enums.h"
#include "srobject.h"
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#else
#define log_data log_data_noexcept
#define log_warning log_warning_noexcept
#define log_error log_error_noexcept
#define log_data_string log_data_noexcept_string
#define log_warning_string log_warning_noexcept_string
#define log_error_string log_error_noexcept_string
#endif

/* context is a client, a dataset or a log context. */
void log_data_noexcept(const void* context, SRLoggingLevel level, const char* data, size_t data_len);
void log_warning_noexcept(const void* context, SRLoggingLevel level, const char* data, size_t data_len);
void log_error_noexcept(const void* context, SRLoggingLevel level, const char* data, size_t data_len);

/* context is a text. */
void log_data_noexcept_string(const char* context, size_t context_len, SRLoggingLevel level, const char* data, size_t data_len);
void log_warning_noexcept_string(const char* context, size_t context_len, SRLoggingLevel level, const char* data, size_t data_len);
void log_error_noexcept_string(const char* context, size_t context_len, SRLoggingLevel level, const char* data, size_t data_len);

#ifdef __cplusplus
}
#endif
#endif
