// Options and the log from C.
#include "c_calls.h"
#include "c_configoptions.h"
#include "c_logcontext.h"
#include "c_logger.h"
#include <cstring>

using namespace SmartRedis;

static ConfigOptions& options_at(void* options, size_t name_length) {
    require(options);
    if (name_length == 0)
        throw SRParameterException("the name of an option is empty");
    return *static_cast<ConfigOptions*>(options);
}

/// Logging must not stop a program: a failure is written to standard output.
template <typename Call> static void logged(Call call) {
    if (guarded(call) != SRNoError)
        std::cout << "the log failed: " << SRGetLastError() << std::endl;
}

static const SRObject& context_at(const void* context) {
    require(context);
    return *static_cast<const SRObject*>(context);
}

extern "C" {

SRError create_configoptions_from_environment(const char* db_suffix, const size_t db_suffix_length, void** new_configoptions) {
    return guarded([&] {
        require(new_configoptions);
        *new_configoptions = ConfigOptions::create_from_environment(text(db_suffix, db_suffix_length)).release();
    });
}

SRError get_integer_option(void* c_cfgopts, const char* option_name, size_t option_name_len, int64_t* result) {
    return guarded([&] {
        require(result);
        *result = options_at(c_cfgopts, option_name_len).get_integer_option(text(option_name, option_name_len));
    });
}

SRError get_string_option(void* c_cfgopts, const char* option_name, size_t option_name_len, char** result, size_t* result_len) {
    return guarded([&] {
        require(result, result_len);
        *result = nullptr;
        *result_len = 0;
        ConfigOptions& options = options_at(c_cfgopts, option_name_len);
        const std::string value = options.get_string_option(text(option_name, option_name_len));
        std::unique_ptr<char[]> copy(new char[value.size() + 1]);
        std::memcpy(copy.get(), value.c_str(), value.size() + 1);
        *result = copy.get();
        *result_len = value.size();
        options._add_string_buffer(copy.release());
    });
}

SRError is_configured(void* c_cfgopts, const char* option_name, size_t option_name_len, bool* cfg_result) {
    return guarded([&] {
        require(cfg_result, c_cfgopts);
        *cfg_result = static_cast<ConfigOptions*>(c_cfgopts)->is_configured(text(option_name, option_name_len));
    });
}

SRError override_integer_option(void* c_cfgopts, const char* option_name, size_t option_name_len, int64_t value) {
    return guarded([&] {
        options_at(c_cfgopts, option_name_len).override_integer_option(text(option_name, option_name_len), value);
    });
}

SRError override_string_option(void* c_cfgopts, const char* option_name, size_t option_name_len, const char* value,
                               size_t value_len) {
    return guarded([&] {
        options_at(c_cfgopts, option_name_len).override_string_option(text(option_name, option_name_len), text(value, value_len));
    });
}

SRError DeallocateConfigOptions(void** c_cfgopts) { return ended<ConfigOptions>(c_cfgopts); }

SRError SmartRedisCLogContext(const char* context, const size_t context_length, void** new_logcontext) {
    return created<LogContext>(new_logcontext, Text{context, context_length});
}

SRError DeallocateLogContext(void** logcontext) { return ended<LogContext>(logcontext); }

#define LOG(call)                                                                                                                  \
    void call##_noexcept(const void* context, SRLoggingLevel level, const char* data, size_t data_len) {                           \
        logged([&] { context_at(context).call(level, text(data, data_len)); });                                                    \
    }                                                                                                                              \
    void call##_noexcept_string(const char* context, size_t context_len, SRLoggingLevel level, const char* data,                   \
                                size_t data_len) {                                                                                 \
        logged([&] { call(text(context, context_len), level, text(data, data_len)); });                                            \
    }
LOG(log_data)
LOG(log_warning)
LOG(log_error)

} // extern "C"
