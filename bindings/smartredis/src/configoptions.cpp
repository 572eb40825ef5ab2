// The options of a client.
#include "configoptions.h"
#include <cctype>
#include <cstdlib>

namespace SmartRedis {

namespace {
/// An empty variable counts as unset. Its value is -1 if the program gives no default, as in SmartRedis.
constexpr int64_t UNSET = -1;

/// A whole number that fits into an int, as SmartRedis demands.
int64_t number(const std::string& variable, const std::string& text) {
    for (size_t at = 0; at < text.size(); at++)
        if (!std::isdigit(static_cast<unsigned char>(text[at])) && !(at == 0 && text[at] == '-'))
            throw SRParameterException(variable + " is \"" + text + "\"; it must be a whole number");
    try {
        return std::stoi(text);
    } catch (const std::exception&) {
        throw SRParameterException(variable + " is \"" + text + "\"; it must be a whole number of at most 32 bits");
    }
}

const char* read(const std::string& variable) { return std::getenv(variable.c_str()); }

const char* required(const std::string& variable) {
    const char* value = read(variable);
    if (value == nullptr)
        throw SRKeyException(variable + " is not set in the environment");
    return value;
}
} // namespace

std::unique_ptr<ConfigOptions> ConfigOptions::create_from_environment(const std::string& db_suffix) {
    return std::unique_ptr<ConfigOptions>(new ConfigOptions(db_suffix));
}

std::unique_ptr<ConfigOptions> ConfigOptions::create_from_environment(const char* db_suffix) {
    return create_from_environment(std::string(db_suffix == nullptr ? "" : db_suffix));
}

ConfigOptions* ConfigOptions::clone() { return new ConfigOptions(*this); }

std::string ConfigOptions::variable(const std::string& option_name) const {
    if (option_name.empty())
        throw SRKeyException("an option needs a name");
    return _suffix.empty() ? option_name : option_name + "_" + _suffix;
}

int64_t ConfigOptions::get_integer_option(const std::string& option_name) {
    const auto found = _integers.find(option_name);
    if (found != _integers.end())
        return found->second;
    const std::string name = variable(option_name), text = required(name);
    return _integers[option_name] = text.empty() ? UNSET : number(name, text);
}

std::string ConfigOptions::get_string_option(const std::string& option_name) {
    const auto found = _strings.find(option_name);
    if (found != _strings.end())
        return found->second;
    return _strings[option_name] = required(variable(option_name));
}

int64_t ConfigOptions::_resolve_integer_option(const std::string& option_name, int64_t default_value) {
    const auto found = _integers.find(option_name);
    if (found != _integers.end())
        return found->second;
    const std::string name = variable(option_name);
    const char* text = read(name);
    return _integers[option_name] = text == nullptr || *text == '\0' ? default_value : number(name, text);
}

std::string ConfigOptions::_resolve_string_option(const std::string& option_name, const std::string& default_value) {
    const auto found = _strings.find(option_name);
    if (found != _strings.end())
        return found->second;
    const char* text = read(variable(option_name));
    return _strings[option_name] = text == nullptr || *text == '\0' ? default_value : text;
}

bool ConfigOptions::is_configured(const std::string& option_name) {
    return _integers.count(option_name) > 0 || _strings.count(option_name) > 0 || read(variable(option_name)) != nullptr;
}

void ConfigOptions::override_integer_option(const std::string& option_name, int64_t value) { _integers[option_name] = value; }

void ConfigOptions::override_string_option(const std::string& option_name, const std::string& value) {
    _strings[option_name] = value;
}

SRObject* ConfigOptions::_get_log_context() {
    if (_log_context == nullptr)
        throw SRRuntimeException("these options have no log context yet");
    return _log_context;
}

void ConfigOptions::_clear_option_from_cache(const std::string& option_name) {
    _integers.erase(option_name);
    _strings.erase(option_name);
}

} // namespace SmartRedis
