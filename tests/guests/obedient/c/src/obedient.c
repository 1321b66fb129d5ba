/* Does what a record's value asks for, so that the SDK of C can be seen at work: see tests/test.c. */
#include "wasmill.h"

static const wasmill_table COUNTS = {"counts", 1};
static const wasmill_table TEXTS = {"texts", 1};

void function_describe(void) {
    wasmill_name("obedient", "0.1.0");
    wasmill_has_table(&COUNTS);
    wasmill_has_table(&TEXTS);
    wasmill_has_port("late");
    wasmill_uses("names");
}

const char *function_init(wasmill_bytes config) {
    wasmill_bytes member;
    return wasmill_json_member(config, "bad", &member) ? "the config is bad" : NULL;
}

static bool is(wasmill_bytes value, const char *text) {
    return wasmill_equal(value, wasmill_text(text));
}

const char *function_process(const wasmill_record *record) {
    wasmill_bytes value = record->value, name;
    int64_t count = 0;
    wasmill_get_into(&COUNTS, record->key, &count, sizeof count);
    count += 1;
    wasmill_put(&COUNTS, record->key, wasmill_of(&count, sizeof count));
    wasmill_emit(record->key, value);
    wasmill_count("seen", 1);
    wasmill_add("names", record->key, 1);
    wasmill_send("names", record->key, value);
    if (is(value, "refuse")) return wasmill_string("told to, at %lld", (long long)count);
    if (is(value, "delete")) wasmill_delete(&COUNTS, record->key);
    if (is(value, "late")) wasmill_emit_to("late", record->key, value, 5);
    if (is(value, "name") && wasmill_lookup("names", record->key, &name)) wasmill_put(&TEXTS, record->key, name);
    /* The count has eight bytes. */
    if (is(value, "misread")) wasmill_get_into(&COUNTS, record->key, &count, sizeof count / 2);
    return NULL;
}
