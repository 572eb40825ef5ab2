// The part of JSON that datasets and parameters use.
#include "json.h"
#include "srexception.h"
#include <cstdio>
#include <cstring>

namespace SmartRedis {

namespace {
constexpr int DEPTH_MAX = 16;

class Parser {
    std::string_view left_;

    [[noreturn]] static void fail() { throw SRRuntimeException("the metadata is not JSON: another program published it"); }

    char next() {
        while (!left_.empty() && std::strchr(" \t\r\n", left_[0]) != nullptr)
            left_.remove_prefix(1);
        return left_.empty() ? '\0' : left_[0];
    }

    bool take(char wanted) {
        if (next() != wanted || left_.empty())
            return false;
        left_.remove_prefix(1);
        return true;
    }

    unsigned unit() {
        if (left_.size() < 4)
            fail();
        unsigned value = 0;
        for (int i = 0; i < 4; i++) {
            const char c = left_[size_t(i)];
            const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
            if (digit < 0)
                fail();
            value = value * 16 + unsigned(digit);
        }
        left_.remove_prefix(4);
        return value;
    }

    static void append_utf8(std::string& to, unsigned code) {
        if (code < 0x80) {
            to += char(code);
        } else if (code < 0x800) {
            to += char(0xC0 | code >> 6);
            to += char(0x80 | (code & 0x3F));
        } else if (code < 0x10000) {
            to += char(0xE0 | code >> 12);
            to += char(0x80 | (code >> 6 & 0x3F));
            to += char(0x80 | (code & 0x3F));
        } else {
            to += char(0xF0 | code >> 18);
            to += char(0x80 | (code >> 12 & 0x3F));
            to += char(0x80 | (code >> 6 & 0x3F));
            to += char(0x80 | (code & 0x3F));
        }
    }

    std::string string() {
        if (!take('"'))
            fail();
        std::string text;
        for (;;) {
            if (left_.empty())
                fail();
            const char c = left_[0];
            left_.remove_prefix(1);
            if (c == '"')
                return text;
            if (c != '\\') {
                text += c;
                continue;
            }
            if (left_.empty())
                fail();
            const char escaped = left_[0];
            left_.remove_prefix(1);
            static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
            if (escaped == 'u') {
                unsigned code = unit();
                if (code >= 0xD800 && code < 0xDC00 && left_.substr(0, 2) == "\\u") {
                    left_.remove_prefix(2);
                    code = 0x10000 + ((code - 0xD800) << 10) + ((unit() - 0xDC00) & 0x3FF);
                }
                append_utf8(text, code);
            } else if (const char* at = escaped == '\0' ? nullptr : std::strchr(names, escaped)) {
                text += values[at - names];
            } else {
                fail();
            }
        }
    }

    Json word() {
        Json value;
        while (!left_.empty() && std::strchr(",]} \t\r\n", left_[0]) == nullptr) {
            value.text += left_[0];
            left_.remove_prefix(1);
        }
        if (value.text.empty())
            fail();
        // Python's json writes NaN and Infinity as words, which the C library's conversions understand.
        value.kind = value.text == "null" ? Json::Kind::null : Json::Kind::number;
        return value;
    }

public:
    explicit Parser(std::string_view text) : left_(text) {}

    Json value(int depth) {
        if (depth > DEPTH_MAX)
            fail();
        Json made;
        switch (next()) {
        case '"':
            made.kind = Json::Kind::string;
            made.text = string();
            return made;
        case '[':
            take('[');
            made.kind = Json::Kind::array;
            if (take(']'))
                return made;
            do
                made.items.push_back(value(depth + 1));
            while (take(','));
            if (!take(']'))
                fail();
            return made;
        case '{':
            take('{');
            made.kind = Json::Kind::object;
            if (take('}'))
                return made;
            do {
                next();
                std::string name = string();
                if (!take(':'))
                    fail();
                made.members.emplace_back(std::move(name), value(depth + 1));
            } while (take(','));
            if (!take('}'))
                fail();
            return made;
        default:
            return word();
        }
    }

    void end() {
        if (next() != '\0' || !left_.empty())
            fail();
    }
};
} // namespace

Json Json::parse(std::string_view text) {
    Parser parser(text);
    Json value = parser.value(0);
    parser.end();
    return value;
}

const Json* Json::find(std::string_view name) const {
    for (const auto& member : members)
        if (member.first == name)
            return &member.second;
    return nullptr;
}

void append_quoted(std::string& to, std::string_view text) {
    to += '"';
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            to += '\\';
            to += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", unsigned(c));
            to += escaped;
        } else {
            to += c;
        }
    }
    to += '"';
}

} // namespace SmartRedis
