// For each page, how often it has been seen so far.
#include "wasmill.hpp"

static constexpr wasmill::Table<std::int64_t> SEEN("seen");

class Counter {
public:
    static wasmill::Description describe() { return wasmill::Description("counter", "0.1.0").table(SEEN); }

    static std::expected<Counter, std::string> init(wasmill::Bytes) { return Counter(); }

    wasmill::Result process(const wasmill::Record &record) {
        std::int64_t seen = SEEN.get(record.key).value_or(0) + 1;
        SEEN.put(record.key, seen);
        wasmill::emit(record.key, "{\"page\":\"" + std::string(record.key) + "\",\"seen\":" + std::to_string(seen) + "}");
        return {};
    }
};

WASMILL_FUNCTION(Counter)
