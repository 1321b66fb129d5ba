// What the functions of all languages do alike, by `mode`: see tests/it/languages.rs.
#include "wasmill.hpp"

static constexpr wasmill::Table<wasmill::Bytes> COUNTS("counts");
static constexpr wasmill::UsedTable<wasmill::Bytes> OTHERS("others");

class Behaviour {
public:
    static wasmill::Description describe() { return wasmill::Description("behaviour", "0.1.0").table(COUNTS).uses(OTHERS); }

    static std::expected<Behaviour, std::string> init(wasmill::Bytes config) {
        auto mode = wasmill::json_member(config, "mode").and_then(wasmill::json_text);
        if (mode == "count") return Behaviour(&Behaviour::count);
        if (mode == "join") return Behaviour(&Behaviour::join);
        if (mode == "fail") return Behaviour(&Behaviour::fail);
        if (mode == "echo") return Behaviour(&Behaviour::echo);
        return std::unexpected("the config has no mode of count, join, fail, echo");
    }

    void prefetch(const wasmill::Record &record) {
        if (work_ == &Behaviour::join) OTHERS.want(record.key);
    }

    wasmill::Result process(const wasmill::Record &record) { return (this->*work_)(record); }

private:
    using Work = wasmill::Result (Behaviour::*)(const wasmill::Record &);

    explicit Behaviour(Work work) : work_(work) {}

    wasmill::Result count(const wasmill::Record &record) {
        auto number = wasmill::number(COUNTS.get(record.key).value_or("0"));
        if (!number) return wasmill::reject("the count is no number");
        std::string text = std::to_string(*number + 1);
        COUNTS.put(record.key, text);
        wasmill::emit(record.key, text);
        return {};
    }

    wasmill::Result join(const wasmill::Record &record) {
        wasmill::emit(record.key, std::string(record.key) + "=" + std::string(OTHERS.lookup(record.key).value_or("-")));
        return {};
    }

    wasmill::Result fail(const wasmill::Record &record) {
        if (record.value == "reject") return wasmill::reject("told to");
        if (record.value == "trap") wasmill_panic("told to trap");
        if (record.value == "loop") {
            wasmill_at_fault();
            for (volatile bool forever = true; forever;) {
            }
        }
        return echo(record);
    }

    wasmill::Result echo(const wasmill::Record &record) {
        wasmill::emit(record.key, record.value);
        wasmill::count("echoed");
        return {};
    }

    Work work_;
};

WASMILL_FUNCTION(Behaviour)
