/* Texts, numbers and JSON, as far as a function needs them. It calls nothing of the host. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "wasmill.h"

wasmill_bytes wasmill_text(const char *text) {
    return wasmill_of(text, strlen(text));
}

wasmill_bytes wasmill_of(const void *data, size_t length) {
    wasmill_bytes bytes = {(const uint8_t *)data, length};
    return bytes;
}

bool wasmill_equal(wasmill_bytes one, wasmill_bytes other) {
    return one.length == other.length && (one.length == 0 || memcmp(one.data, other.data, one.length) == 0);
}

static wasmill_bytes format_list(const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length < 0) length = 0;
    char *text = (char *)wasmill_allocate((size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return wasmill_of(text, (size_t)length);
}

wasmill_bytes wasmill_format(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    wasmill_bytes text = format_list(format, arguments);
    va_end(arguments);
    return text;
}

const char *wasmill_string(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    wasmill_bytes text = format_list(format, arguments);
    va_end(arguments);
    return (const char *)text.data;
}

bool wasmill_number(wasmill_bytes digits, int64_t *number) {
    size_t at = 0;
    bool negative = digits.length > 0 && digits.data[0] == '-';
    if (negative) at = 1;
    if (at == digits.length) return false;
    /* Counted downwards: there is one negative number more. */
    int64_t value = 0;
    for (; at < digits.length; at++) {
        int digit = digits.data[at] - '0';
        if (digit < 0 || digit > 9) return false;
        if (__builtin_mul_overflow(value, (int64_t)10, &value) || __builtin_sub_overflow(value, (int64_t)digit, &value)) return false;
    }
    if (!negative && __builtin_sub_overflow((int64_t)0, value, &value)) return false;
    *number = value;
    return true;
}

/* ---- JSON ---- */

static size_t skip_space(wasmill_bytes json, size_t at) {
    while (at < json.length && strchr(" \t\r\n", json.data[at]) != NULL && json.data[at] != 0) at++;
    return at;
}

/* Behind the text that begins at `at` with its quote, or 0 where it does not end. */
static size_t skip_text(wasmill_bytes json, size_t at) {
    for (at++; at < json.length; at++) {
        if (json.data[at] == '\\') at++;
        else if (json.data[at] == '"') return at + 1;
    }
    return 0;
}

/* Behind the value that begins at `at`, or 0 where it does not end. */
static size_t skip_value(wasmill_bytes json, size_t at) {
    size_t depth = 0;
    while (at < json.length) {
        uint8_t byte = json.data[at];
        if (byte == '"') {
            at = skip_text(json, at);
            if (at == 0) return 0;
        } else if (byte == '{' || byte == '[') {
            depth++, at++;
        } else if (byte == '}' || byte == ']') {
            if (depth == 0) return at;
            depth--, at++;
        } else if (depth == 0 && (byte == ',' || byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n')) {
            return at;
        } else {
            at++;
            continue;
        }
        if (depth == 0) return at;
    }
    return depth == 0 ? at : 0;
}

bool wasmill_json_member(wasmill_bytes object, const char *name, wasmill_bytes *member) {
    wasmill_bytes wanted = wasmill_text(name);
    size_t at = skip_space(object, 0);
    if (at == object.length || object.data[at] != '{') return false;
    for (at++;; at++) {
        at = skip_space(object, at);
        if (at >= object.length || object.data[at] != '"') return false;
        size_t name_end = skip_text(object, at);
        if (name_end == 0) return false;
        wasmill_bytes found = wasmill_of(object.data + at + 1, name_end - at - 2);
        at = skip_space(object, name_end);
        if (at >= object.length || object.data[at] != ':') return false;
        at = skip_space(object, at + 1);
        size_t value_end = skip_value(object, at);
        if (value_end <= at) return false;
        if (wasmill_equal(found, wanted)) {
            *member = wasmill_of(object.data + at, value_end - at);
            return true;
        }
        at = skip_space(object, value_end);
        if (at >= object.length || object.data[at] != ',') return false;
    }
}

bool wasmill_json_text(wasmill_bytes member, wasmill_bytes *text) {
    if (member.length < 2 || member.data[0] != '"' || memchr(member.data, '\\', member.length) != NULL) return false;
    *text = wasmill_of(member.data + 1, member.length - 2);
    return true;
}
