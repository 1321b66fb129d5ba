/* For each page, how often it has been seen so far. */
#include "wasmill.h"

static const wasmill_table SEEN = {"seen", 1};

void function_describe(void) {
    wasmill_name("counter", "0.1.0");
    wasmill_has_table(&SEEN);
}

const char *function_init(wasmill_bytes config) {
    (void)config;
    return NULL;
}

const char *function_process(const wasmill_record *record) {
    int64_t seen = 0;
    wasmill_get_into(&SEEN, record->key, &seen, sizeof seen);
    seen += 1;
    wasmill_put(&SEEN, record->key, wasmill_of(&seen, sizeof seen));
    wasmill_emit(record->key, wasmill_format("{\"page\":\"%.*s\",\"seen\":%lld}", WASMILL_ARGS(record->key), (long long)seen));
    return NULL;
}
