// The part of JSON that datasets and parameters use.
#include "json.h"
#include "srexception.h"
#include <algorithm>
#include <cstdio>
#include <cstring>

namespace SmartRedis {

namespace {
constexpr int DEPTH_MAX = 16;
/// A byte that is not part of a UTF-8 character is stored as this code plus the byte, as by Python's surrogateescape.
constexpr unsigned BYTES = 0xDC00;

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
                if (code >= BYTES + 0x80 && code <= BYTES + 0xFF)
                    text += char(code - BYTES);
                else
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

namespace {
/// The length of the UTF-8 character at the start of the text, or 0 if there is none.
size_t utf8_length(std::string_view text) {
    const auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const unsigned first = at(0), second = at(1);
    const size_t length = first < 0x80 ? 1 : first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : first >= 0xF0 && first < 0xF5 ? 4 : 0;
    for (size_t i = 1; i < length; i++)
        if ((at(i) & 0xC0) != 0x80)
            return 0;
    // Overlong forms, surrogates, and codes beyond Unicode.
    const bool wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
                       (first == 0xF4 && second > 0x8F);
    return wrong ? 0 : length;
}

void append_unit(std::string& to, unsigned unit) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", unit);
    to += escaped;
}
} // namespace

void append_quoted(std::string& to, std::string_view text) {
    to += '"';
    while (!text.empty()) {
        const size_t length = utf8_length(text);
        const unsigned char c = static_cast<unsigned char>(text[0]);
        if (length == 0) {
            append_unit(to, BYTES + c);
        } else if (c < 0x20) {
            append_unit(to, c);
        } else {
            if (c == '"' || c == '\\')
                to += '\\';
            to += text.substr(0, length);
        }
        text.remove_prefix(std::max<size_t>(length, 1));
    }
    to += '"';
}

} // namespace SmartRedis
