// The metadata fields of a dataset.
#ifndef SMARTREDIS_FIELDS_H
#define SMARTREDIS_FIELDS_H
#include "sr_enums.h"
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace SmartRedis {

/// Fields by name, in the order in which they were made: lists of numbers of one type, or of strings. Python programs
/// store them in the same form: {"fields": {"unit": {"type": "STRING", "values": ["K"]}}}.
class Fields {
    struct Field {
        std::string name;
        SRMetaDataType type;
        std::vector<std::string> strings;
        std::string numbers; // their bytes
    };
    std::vector<Field> fields_;

    const Field* find(const std::string& name) const;
    Field& of_type(const std::string& name, SRMetaDataType type);
    const Field& existing(const std::string& name) const;

public:
    bool empty() const { return fields_.empty(); }
    bool has(const std::string& name) const { return find(name) != nullptr; }
    void clear(const std::string& name);
    std::vector<std::string> names() const;
    /// KeyException if there is no such field.
    SRMetaDataType type(const std::string& name) const;
    /// RuntimeException if the field has another type, or `type` is no type of numbers.
    void add_number(const std::string& name, const void* value, SRMetaDataType type);
    void add_string(const std::string& name, std::string value);
    /// The numbers' bytes. RuntimeException if there is no such field, or it holds strings.
    std::string_view numbers(const std::string& name) const;
    /// RuntimeException if there is no such field, or it holds numbers.
    const std::vector<std::string>& strings(const std::string& name) const;

    std::string to_json() const;
    /// RuntimeException if the text is of another form. A dataset of another program has no fields.
    static Fields from_json(std::string_view text);

    /// Bytes of a number; 0 for strings and other values.
    static size_t bytes(SRMetaDataType type);
    static const char* name(SRMetaDataType type);
};

} // namespace SmartRedis
#endif
