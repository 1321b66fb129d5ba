// Functions for Wasmill in C++: a class that sees one record at a time, over what wasmill.h does with batches.
//
//     class Summary {
//     public:
//         static wasmill::Description describe() { return wasmill::Description("summary", "0.1.0").table(VISITS); }
//         static std::expected<Summary, std::string> init(wasmill::Bytes config) { return Summary(); }
//         wasmill::Result process(const wasmill::Record &record);
//         static void prefetch(const wasmill::Record &record); // where it looks things up
//     };
//     WASMILL_FUNCTION(Summary)
//
// Bytes that are given to a function live until the call is done, but those of `init`; bytes that it gives are copied. A call that the host refuses does nothing, and the record is refused with the
// host's reason: nothing has to be checked for that. There are no exceptions.
#pragma once

#include <cstring>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "wasmill.h"

namespace wasmill {

// Some bytes, a text for instance.
using Bytes = std::string_view;

inline wasmill_bytes raw(Bytes bytes) { return wasmill_of(bytes.data(), bytes.size()); }
inline Bytes view(wasmill_bytes bytes) { return {reinterpret_cast<const char *>(bytes.data), bytes.length}; }

// The member `name` of a JSON object, as it stands there: a text with its quotes.
inline std::optional<Bytes> json_member(Bytes object, const char *name) {
    wasmill_bytes member;
    if (!wasmill_json_member(raw(object), name, &member)) return std::nullopt;
    return view(member);
}

// What is between the quotes of a JSON text without escapes.
inline std::optional<Bytes> json_text(Bytes member) {
    wasmill_bytes text;
    if (!wasmill_json_text(raw(member), &text)) return std::nullopt;
    return view(text);
}

// A whole number, in decimal digits.
inline std::optional<std::int64_t> number(Bytes digits) {
    std::int64_t value;
    if (!wasmill_number(raw(digits), &value)) return std::nullopt;
    return value;
}

struct Record {
    Bytes key;
    Bytes value;
    // In milliseconds since the Unix epoch.
    std::optional<std::int64_t> time;

    // A member of the value, which is a JSON object.
    std::optional<Bytes> member(const char *name) const { return json_member(value, name); }
    std::optional<std::int64_t> number(const char *name) const { return member(name).and_then(wasmill::number); }
    std::optional<Bytes> text(const char *name) const { return member(name).and_then(json_text); }
};

// What becomes of a record: fine, or why it is refused. What it has done is undone then.
using Result = std::expected<void, std::string>;
inline std::unexpected<std::string> reject(std::string reason) { return std::unexpected(std::move(reason)); }

// What a table holds: bytes as they are, or a plain struct or number as it is in memory.
template <class T>
concept Value = std::is_same_v<T, Bytes> || std::is_trivially_copyable_v<T>;

template <Value T>
wasmill_bytes encoded(const T &value) {
    if constexpr (std::is_same_v<T, Bytes>) return raw(value);
    else return wasmill_of(&value, sizeof value);
}

// Nothing where the bytes have another size than the struct.
template <Value T>
std::optional<T> decoded(wasmill_bytes bytes) {
    if constexpr (std::is_same_v<T, Bytes>) return view(bytes);
    else {
        if (bytes.length != sizeof(T)) return std::nullopt;
        T value;
        std::memcpy(&value, bytes.data, sizeof value);
        return value;
    }
}

// A table of the function's own. Raise the version when what it holds changes.
template <Value T>
class Table {
public:
    constexpr explicit Table(const char *name, std::uint32_t schema_version = 1) : table_{name, schema_version} {}

    std::optional<T> get(Bytes key) const {
        if constexpr (std::is_same_v<T, Bytes>) {
            wasmill_bytes value;
            if (!wasmill_get(&table_, raw(key), &value)) return std::nullopt;
            return view(value);
        } else {
            // Refuses the record where the size is another.
            T value;
            if (!wasmill_get_into(&table_, raw(key), &value, sizeof value)) return std::nullopt;
            return value;
        }
    }
    void put(Bytes key, const T &value) const { wasmill_put(&table_, raw(key), encoded(value)); }
    void erase(Bytes key) const { wasmill_delete(&table_, raw(key)); }

    const wasmill_table *c() const { return &table_; }

private:
    wasmill_table table_;
};

// A table of anyone, by the name that `uses.NAME` in the manifest has.
template <Value T>
class UsedTable {
public:
    constexpr explicit UsedTable(const char *name) : name_(name) {}

    // As of the latest batch that the owner has applied.
    std::optional<T> lookup(Bytes key, wasmill_consistency consistency = {WASMILL_LIVE, 0}) const {
        wasmill_bytes value;
        if (!wasmill_lookup_at(name_, raw(key), consistency, &value)) return std::nullopt;
        return decoded<T>(value);
    }
    // For `prefetch`: `lookup` of this key will find its value without a call of its own.
    void want(Bytes key) const { wasmill_want(name_, raw(key)); }
    // Changes a value, exactly once, after the batch has succeeded.
    void update(Bytes key, wasmill_change change, const T &operand) const { wasmill_update(name_, raw(key), change, encoded(operand)); }
    void add(Bytes key, std::int64_t number) const { wasmill_add(name_, raw(key), number); }
    // Gives a record to the function that owns the table.
    void send(Bytes key, Bytes value) const { wasmill_send(name_, raw(key), raw(value)); }

    const char *name() const { return name_; }

private:
    const char *name_;
};

// Emits a record on the port `out`, with the time of the record that is worked on.
inline void emit(Bytes key, Bytes value) { wasmill_emit(raw(key), raw(value)); }
inline void emit_to(const char *port, Bytes key, Bytes value, std::optional<std::int64_t> time) {
    wasmill_emit_to(port, raw(key), raw(value), time.value_or(WASMILL_NO_TIME));
}

inline void info(Bytes line) { wasmill_log(WASMILL_INFO, raw(line)); }
inline void warn(Bytes line) { wasmill_log(WASMILL_WARN, raw(line)); }
inline void count(const char *name, std::uint64_t by = 1) { wasmill_count(name, by); }
inline void gauge(const char *name, double value) { wasmill_gauge(name, value); }

// What a function is. Texts must last.
class Description {
public:
    Description(const char *name, const char *version) { wasmill_name(name, version); }
    template <Value T>
    Description &table(const Table<T> &table) { return wasmill_has_table(table.c()), *this; }
    // The rest of the job may read and change the table, where the manifest says so, too.
    template <Value T>
    Description &open(const Table<T> &table) { return wasmill_open(table.c()), *this; }
    template <Value T>
    Description &ordered(const Table<T> &table) { return wasmill_ordered(table.c()), *this; }
    template <Value T>
    Description &uses(const UsedTable<T> &table) { return wasmill_uses(table.name()), *this; }
    Description &port(const char *name) { return wasmill_has_port(name), *this; }
};

// The rest is what WASMILL_FUNCTION needs.
inline const char *lasting(const std::string &reason) {
    char *copy = static_cast<char *>(wasmill_allocate(reason.size() + 1));
    std::memcpy(copy, reason.c_str(), reason.size() + 1);
    return copy;
}

inline Record record_of(const wasmill_record *record) {
    std::optional<std::int64_t> time;
    if (record->time != WASMILL_NO_TIME) time = record->time;
    return {view(record->key), view(record->value), time};
}

template <class F>
inline std::optional<F> instance;

template <class F>
const char *init(wasmill_bytes config) {
    auto made = F::init(view(config));
    if (!made) return lasting(made.error());
    instance<F>.emplace(std::move(*made));
    return nullptr;
}

template <class F>
const char *process(const wasmill_record *record) {
    Result result = instance<F>->process(record_of(record));
    return result ? nullptr : lasting(result.error());
}

template <class F>
void prefetch(const wasmill_record *record) {
    if constexpr (requires(Record wanted) { instance<F>->prefetch(wanted); }) instance<F>->prefetch(record_of(record));
}

} // namespace wasmill

// Makes a component of a class.
#define WASMILL_FUNCTION(Class)                                                                                                       \
    extern "C" void function_describe() { Class::describe(); }                                                                       \
    extern "C" const char *function_init(wasmill_bytes config) { return wasmill::init<Class>(config); }                               \
    extern "C" const char *function_process(const wasmill_record *record) { return wasmill::process<Class>(record); }                 \
    extern "C" void function_prefetch(const wasmill_record *record) { wasmill::prefetch<Class>(record); }
