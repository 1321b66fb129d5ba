/* What the functions of all languages do alike, by `mode`: see tests/it/languages.rs. */
#include "wasmill.h"

static const wasmill_table COUNTS = {"counts", 1};
static const char OTHERS[] = "others";

static enum { COUNT, JOIN, FAIL, ECHO } mode;

void function_describe(void) {
    wasmill_name("behaviour", "0.1.0");
    wasmill_has_table(&COUNTS);
    wasmill_uses(OTHERS);
}

const char *function_init(wasmill_bytes config) {
    static const char *const modes[] = {"count", "join", "fail", "echo"};
    wasmill_bytes member, name;
    if (wasmill_json_member(config, "mode", &member) && wasmill_json_text(member, &name)) {
        for (mode = COUNT; mode <= ECHO; mode++) {
            if (wasmill_equal(name, wasmill_text(modes[mode]))) return NULL;
        }
    }
    return "the config has no mode of count, join, fail, echo";
}

void function_prefetch(const wasmill_record *record) {
    if (mode == JOIN) wasmill_want(OTHERS, record->key);
}

static const char *count(const wasmill_record *record) {
    wasmill_bytes text;
    int64_t number = 0;
    if (wasmill_get(&COUNTS, record->key, &text) && !wasmill_number(text, &number)) return "the count is no number";
    text = wasmill_format("%lld", (long long)number + 1);
    wasmill_put(&COUNTS, record->key, text);
    wasmill_emit(record->key, text);
    return NULL;
}

static const char *join(const wasmill_record *record) {
    wasmill_bytes found = wasmill_text("-");
    wasmill_lookup(OTHERS, record->key, &found);
    /* Bytes: a zero among them would end what is formatted. */
    uint8_t *joined = wasmill_allocate(record->key.length + 1 + found.length);
    size_t length = 0;
    for (size_t index = 0; index < record->key.length; index++) joined[length++] = record->key.data[index];
    joined[length++] = '=';
    for (size_t index = 0; index < found.length; index++) joined[length++] = found.data[index];
    wasmill_emit(record->key, wasmill_of(joined, length));
    return NULL;
}

static const char *echo(const wasmill_record *record) {
    wasmill_emit(record->key, record->value);
    wasmill_count("echoed", 1);
    return NULL;
}

static const char *fail(const wasmill_record *record) {
    if (wasmill_equal(record->value, wasmill_text("reject"))) return "told to";
    if (wasmill_equal(record->value, wasmill_text("trap"))) wasmill_panic("told to trap");
    if (wasmill_equal(record->value, wasmill_text("loop"))) {
        wasmill_at_fault();
        for (volatile int forever = 1; forever;) {
        }
    }
    return echo(record);
}

const char *function_process(const wasmill_record *record) {
    switch (mode) {
    case COUNT: return count(record);
    case JOIN: return join(record);
    case FAIL: return fail(record);
    default: return echo(record);
    }
}
