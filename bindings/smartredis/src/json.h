// The part of JSON that datasets and parameters use, without a library.
#ifndef SMARTREDIS_JSON_H
#define SMARTREDIS_JSON_H
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace SmartRedis {

/// A value of a JSON text. Numbers keep their text, so that 64 bits are not rounded to a double.
struct Json {
    enum class Kind { null, number, string, array, object };
    Kind kind = Kind::null;
    std::string text;
    std::vector<Json> items;
    std::vector<std::pair<std::string, Json>> members;

    /// RuntimeException if the text is not JSON, or nested deeper than datasets are.
    static Json parse(std::string_view text);
    /// The member of an object; nullptr if the object has no such member.
    const Json* find(std::string_view name) const;
};

/// Appends a string with its quotes.
void append_quoted(std::string& to, std::string_view text);

} // namespace SmartRedis
#endif
