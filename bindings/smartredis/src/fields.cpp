// The metadata fields of a dataset.
#include "fields.h"
#include "json.h"
#include "srexception.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace SmartRedis {

namespace {
struct Kind {
    SRMetaDataType type;
    size_t bytes;
    const char* name;
};

constexpr Kind KINDS[] = {
    {SRMetadataTypeDouble, 8, "DOUBLE"}, {SRMetadataTypeFloat, 4, "FLOAT"},   {SRMetadataTypeInt32, 4, "INT32"},
    {SRMetadataTypeInt64, 8, "INT64"},   {SRMetadataTypeUint32, 4, "UINT32"}, {SRMetadataTypeUint64, 8, "UINT64"},
    {SRMetadataTypeString, 0, "STRING"},
};

template <typename T> T read(const char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

/// Numbers that JSON lacks are texts. Enough digits bring back the same number.
void append_real(std::string& to, double value, int digits) {
    if (std::isfinite(value)) {
        char text[40];
        std::snprintf(text, sizeof text, "%.*g", digits, value);
        to += text;
    } else {
        to += std::isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"";
    }
}

void append_number(std::string& to, SRMetaDataType type, const char* at) {
    switch (type) {
    case SRMetadataTypeDouble:
        return append_real(to, read<double>(at), 17);
    case SRMetadataTypeFloat:
        return append_real(to, double(read<float>(at)), 9);
    case SRMetadataTypeInt32:
        to += std::to_string(read<int32_t>(at));
        return;
    case SRMetadataTypeInt64:
        to += std::to_string(read<int64_t>(at));
        return;
    case SRMetadataTypeUint32:
        to += std::to_string(read<uint32_t>(at));
        return;
    default:
        to += std::to_string(read<uint64_t>(at));
    }
}

template <typename T> void append(std::string& to, T value) { to.append(reinterpret_cast<const char*>(&value), sizeof value); }

void parse_number(std::string& to, SRMetaDataType type, const std::string& text) {
    const char* from = text.c_str();
    switch (type) {
    case SRMetadataTypeDouble:
        return append(to, std::strtod(from, nullptr));
    case SRMetadataTypeFloat:
        return append(to, float(std::strtod(from, nullptr)));
    case SRMetadataTypeInt32:
        return append(to, int32_t(std::strtoll(from, nullptr, 10)));
    case SRMetadataTypeInt64:
        return append(to, int64_t(std::strtoll(from, nullptr, 10)));
    case SRMetadataTypeUint32:
        return append(to, uint32_t(std::strtoull(from, nullptr, 10)));
    default:
        return append(to, uint64_t(std::strtoull(from, nullptr, 10)));
    }
}

SRMetaDataType named(const Json* name) {
    if (name != nullptr)
        for (const Kind& kind : KINDS)
            if (name->text == kind.name)
                return kind.type;
    throw SRRuntimeException("the dataset's metadata has a field of an unknown type");
}
} // namespace

size_t Fields::bytes(SRMetaDataType type) {
    for (const Kind& kind : KINDS)
        if (kind.type == type)
            return kind.bytes;
    return 0;
}

const char* Fields::name(SRMetaDataType type) {
    for (const Kind& kind : KINDS)
        if (kind.type == type)
            return kind.name;
    return "invalid";
}

const Fields::Field* Fields::find(const std::string& name) const {
    const auto found = std::find_if(fields_.begin(), fields_.end(), [&](const Field& field) { return field.name == name; });
    return found == fields_.end() ? nullptr : &*found;
}

const Fields::Field& Fields::existing(const std::string& name) const {
    const Field* found = find(name);
    if (found == nullptr)
        throw SRRuntimeException("there is no metadata field \"" + name + "\"");
    return *found;
}

Fields::Field& Fields::of_type(const std::string& name, SRMetaDataType type) {
    if (!has(name))
        fields_.push_back({name, type, {}, {}});
    Field& field = const_cast<Field&>(*find(name));
    if (field.type != type)
        throw SRRuntimeException("the metadata field \"" + name + "\" has type " + Fields::name(field.type) + "; " +
                                 Fields::name(type) + " cannot be added to it");
    return field;
}

void Fields::clear(const std::string& name) {
    fields_.erase(std::remove_if(fields_.begin(), fields_.end(), [&](const Field& field) { return field.name == name; }),
                  fields_.end());
}

std::vector<std::string> Fields::names() const {
    std::vector<std::string> names;
    for (const Field& field : fields_)
        names.push_back(field.name);
    return names;
}

SRMetaDataType Fields::type(const std::string& name) const {
    const Field* found = find(name);
    if (found == nullptr)
        throw SRKeyException("there is no metadata field \"" + name + "\"");
    return found->type;
}

void Fields::add_number(const std::string& name, const void* value, SRMetaDataType type) {
    const size_t size = bytes(type);
    if (size == 0)
        throw SRRuntimeException("metadata field \"" + name + "\": this type is no type of numbers");
    of_type(name, type).numbers.append(static_cast<const char*>(value), size);
}

void Fields::add_string(const std::string& name, std::string value) {
    of_type(name, SRMetadataTypeString).strings.push_back(std::move(value));
}

std::string_view Fields::numbers(const std::string& name) const {
    const Field& field = existing(name);
    if (field.type == SRMetadataTypeString)
        throw SRRuntimeException("the metadata field \"" + name + "\" holds strings: get_meta_strings returns them");
    return field.numbers;
}

const std::vector<std::string>& Fields::strings(const std::string& name) const {
    const Field& field = existing(name);
    if (field.type != SRMetadataTypeString)
        throw SRRuntimeException("the metadata field \"" + name + "\" holds numbers: get_meta_scalars returns them");
    return field.strings;
}

std::string Fields::to_json() const {
    std::string json = "{\"fields\":{";
    for (const Field& field : fields_) {
        if (&field != &fields_.front())
            json += ',';
        append_quoted(json, field.name);
        json += ":{\"type\":\"" + std::string(name(field.type)) + "\",\"values\":[";
        const size_t start = json.size();
        for (const std::string& text : field.strings) {
            append_quoted(json, text);
            json += ',';
        }
        for (size_t at = 0; at < field.numbers.size(); at += bytes(field.type)) {
            append_number(json, field.type, field.numbers.data() + at);
            json += ',';
        }
        if (json.size() > start)
            json.pop_back();
        json += "]}";
    }
    return json + "}}";
}

Fields Fields::from_json(std::string_view text) {
    Fields made;
    if (text.empty())
        return made;
    const Json json = Json::parse(text);
    const Json* fields = json.find("fields");
    if (fields == nullptr)
        return made;
    for (const auto& member : fields->members) {
        Field field{member.first, named(member.second.find("type")), {}, {}};
        const Json* values = member.second.find("values");
        if (values == nullptr)
            throw SRRuntimeException("the dataset's metadata has a field without values");
        for (const Json& value : values->items) {
            if (field.type == SRMetadataTypeString)
                field.strings.push_back(value.text);
            else
                parse_number(field.numbers, field.type, value.text);
        }
        made.fields_.push_back(std::move(field));
    }
    return made;
}

} // namespace SmartRedis
