// The options of a client, from the environment or from overrides.
#ifndef SMARTREDIS_CONFIGOPTIONS_H
#define SMARTREDIS_CONFIGOPTIONS_H
#ifndef __cplusplus
#error C programs include c_configoptions.h
#endif
#include "sr_enums.h"
#include "srexception.h"
#include "srobject.h"
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace SmartRedis {

/// Options by name. An option is read from the environment once; later changes of the environment do not affect it.
class ConfigOptions {
public:
    ConfigOptions(const ConfigOptions&) = default;
    ConfigOptions& operator=(const ConfigOptions&) = default;
    ConfigOptions(ConfigOptions&&) = default;
    ConfigOptions& operator=(ConfigOptions&&) = default;
    virtual ~ConfigOptions() = default;

    /// A copy, which the caller deletes.
    ConfigOptions* clone();
    /// With the suffix "big", the option SSDB is read from SSDB_big; with "" from SSDB.
    static std::unique_ptr<ConfigOptions> create_from_environment(const std::string& db_suffix);
    static std::unique_ptr<ConfigOptions> create_from_environment(const char* db_suffix);
    /// KeyException if the variable is not set, ParameterException if it is no number.
    int64_t get_integer_option(const std::string& option_name);
    /// KeyException if the variable is not set.
    std::string get_string_option(const std::string& option_name);
    bool is_configured(const std::string& option_name);
    void override_integer_option(const std::string& option_name, int64_t value);
    void override_string_option(const std::string& option_name, const std::string& value);

    /// As the calls above, with a value for a variable that is not set or empty.
    std::string _resolve_string_option(const std::string& option_name, const std::string& default_value);
    int64_t _resolve_integer_option(const std::string& option_name, int64_t default_value);
    SRObject* _get_log_context();
    void _set_log_context(SRObject* log_context) { _log_context = log_context; }
    /// The next use of this option reads the environment again.
    void _clear_option_from_cache(const std::string& option_name);
    /// Takes over an array from new[], which lives as long as this object and its copies.
    void _add_string_buffer(char* buf) { _buffers.emplace_back(buf); }

private:
    explicit ConfigOptions(const std::string& suffix) : _suffix(suffix) {}
    std::string variable(const std::string& option_name) const;

    std::unordered_map<std::string, int64_t> _integers;
    std::unordered_map<std::string, std::string> _strings;
    std::string _suffix;
    SRObject* _log_context = nullptr;
    std::vector<std::shared_ptr<char[]>> _buffers;
};

} // namespace SmartRedis
#endif
