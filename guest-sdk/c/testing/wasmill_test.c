/* The host in memory. It keeps what the host keeps, in lists that are searched from their ends: tests are small. */
#include "testing/wasmill_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wasmill_abi.h"

/* ---- What is kept ---- */

typedef enum { STATE, OTHER, EMITTED, UPDATED, SENT, COUNTED } effect_kind;

/* An effect of a batch, or a value of a table: the latest entry of a key counts. */
typedef struct {
    effect_kind kind;
    /* Of an own table, whether the batch that wrote it is over. */
    bool is_settled;
    bool is_present;
    char *name;
    wasmill_bytes key, value;
    wasmill_change change;
    uint64_t by;
    uint32_t record;
} entry;

static entry *entries;
static size_t entries_length;
static wasmill_record *records;
static size_t records_length;
/* By record: why it was refused. */
static char **reasons;
static int failures;

static void *kept(const void *data, size_t size) {
    void *memory = malloc(size + 1);
    if (memory == NULL) abort();
    if (size > 0) memcpy(memory, data, size);
    ((char *)memory)[size] = 0;
    return memory;
}

static wasmill_bytes kept_bytes(wasmill_bytes bytes) {
    return wasmill_of(kept(bytes.data, bytes.length), bytes.length);
}

static entry *add(effect_kind of, wasmill_bytes name, wasmill_bytes key, wasmill_bytes value, uint32_t record) {
    entries = (entry *)realloc(entries, (entries_length + 1) * sizeof *entries);
    if (entries == NULL) abort();
    entry *made = &entries[entries_length++];
    memset(made, 0, sizeof *made);
    made->kind = of, made->name = kept(name.data, name.length), made->key = kept_bytes(key), made->value = kept_bytes(value);
    made->is_present = true, made->record = record;
    return made;
}

static const entry *latest(effect_kind of, wasmill_bytes name, wasmill_bytes key) {
    for (size_t index = entries_length; index-- > 0;) {
        const entry *each = &entries[index];
        if (each->kind == of && wasmill_equal(wasmill_text(each->name), name) && wasmill_equal(each->key, key)) return each;
    }
    return NULL;
}

/* ---- What a function calls ---- */

static wasmill_bytes item(const uint8_t *bytes, const uint32_t *ends, size_t index) {
    size_t begin = index == 0 ? 0 : ends[index - 1];
    return wasmill_of(bytes + begin, ends[index] - begin);
}

static void get_many(effect_kind of, wasmill_bytes table, const uint8_t *keys, const uint32_t *ends, size_t length, wasmill_values *got) {
    memset(got, 0, sizeof *got);
    wasmill_optional_column *values = &got->as.values;
    values->length = values->items.length = length;
    values->present = (uint8_t *)wasmill_allocate(length);
    values->items.ends = (uint32_t *)wasmill_allocate(length * sizeof(uint32_t));
    size_t total = 0;
    for (size_t index = 0; index < length; index++) {
        const entry *found = latest(of, table, item(keys, ends, index));
        values->present[index] = found != NULL && found->is_present;
        total += values->present[index] ? found->value.length : 0;
        values->items.ends[index] = (uint32_t)total;
    }
    values->items.bytes = (uint8_t *)wasmill_allocate(total), values->items.bytes_length = total;
    for (size_t index = 0, at = 0; index < length; index++) {
        if (!values->present[index]) continue;
        const entry *found = latest(of, table, item(keys, ends, index));
        if (found->value.length > 0) memcpy(values->items.bytes + at, found->value.data, found->value.length);
        at += found->value.length;
    }
}

void wasmill_state_get_many(const uint8_t *table, size_t table_length, const uint8_t *keys, size_t keys_length, const uint32_t *ends, size_t length, wasmill_values *got) {
    (void)keys_length;
    get_many(STATE, wasmill_of(table, table_length), keys, ends, length, got);
}

void wasmill_state_put_many(const uint8_t *table, size_t table_length, const uint8_t *keys, size_t keys_length, const uint32_t *key_ends, size_t length, const uint8_t *values,
                            size_t values_length, const uint32_t *value_ends, size_t value_ends_length, const uint32_t *by, size_t by_length, wasmill_done *done) {
    (void)keys_length, (void)values_length, (void)value_ends_length, (void)by_length;
    memset(done, 0, sizeof *done);
    for (size_t index = 0; index < length; index++) add(STATE, wasmill_of(table, table_length), item(keys, key_ends, index), item(values, value_ends, index), by[index]);
}

void wasmill_state_delete_many(const uint8_t *table, size_t table_length, const uint8_t *keys, size_t keys_length, const uint32_t *ends, size_t length, const uint32_t *by,
                               size_t by_length, wasmill_done *done) {
    (void)keys_length, (void)by_length;
    memset(done, 0, sizeof *done);
    for (size_t index = 0; index < length; index++) add(STATE, wasmill_of(table, table_length), item(keys, ends, index), wasmill_of(NULL, 0), by[index])->is_present = false;
}

void wasmill_tables_get_many(const uint8_t *table, size_t table_length, const uint8_t *keys, size_t keys_length, const uint32_t *ends, size_t length, int32_t kind, uint64_t argument,
                             size_t rest, wasmill_values *got) {
    (void)keys_length, (void)kind, (void)argument, (void)rest;
    get_many(OTHER, wasmill_of(table, table_length), keys, ends, length, got);
}

void wasmill_tables_get_many_at(const uint8_t *table, size_t table_length, const uint8_t *keys, size_t keys_length, const uint32_t *ends, size_t length, const int64_t *times,
                                size_t times_length, int32_t wait, wasmill_values *got) {
    (void)keys_length, (void)times, (void)times_length, (void)wait;
    get_many(OTHER, wasmill_of(table, table_length), keys, ends, length, got);
}

void wasmill_tables_scan(const uint8_t *table, size_t table_length, const uint8_t *from, size_t from_length, int32_t has_end, const uint8_t *end, size_t end_length, uint32_t limit,
                         int32_t kind, uint64_t argument, size_t rest, wasmill_page *page) {
    (void)table, (void)table_length, (void)from, (void)from_length, (void)has_end, (void)end, (void)end_length, (void)limit, (void)kind, (void)argument, (void)rest;
    page->is_error = true;
    page->as.error = (wasmill_error){7, wasmill_text("the host in memory has no scans")};
}

void wasmill_tables_update_many(const wasmill_updates *updates, wasmill_done *done) {
    memset(done, 0, sizeof *done);
    for (size_t index = 0; index < updates->keys.length; index++) {
        bool has_operand = updates->op.kind != WASMILL_DELETE;
        wasmill_bytes operand = has_operand ? item(updates->values.bytes, updates->values.ends, index) : wasmill_of(NULL, 0);
        add(UPDATED, updates->table, item(updates->keys.bytes, updates->keys.ends, index), operand, updates->records[index])->change = (wasmill_change)updates->op.kind;
    }
}

void wasmill_tables_send(const uint8_t *table, size_t table_length, const uint8_t *keys, size_t keys_length, const uint32_t *key_ends, size_t length, const uint8_t *values,
                         size_t values_length, const uint32_t *value_ends, size_t value_ends_length, const int64_t *times, size_t times_length, const uint32_t *by, size_t by_length,
                         wasmill_done *done) {
    (void)keys_length, (void)values_length, (void)value_ends_length, (void)times, (void)times_length, (void)by_length;
    memset(done, 0, sizeof *done);
    for (size_t index = 0; index < length; index++) add(SENT, wasmill_of(table, table_length), item(keys, key_ends, index), item(values, value_ends, index), by[index]);
}

void wasmill_output_emit(const uint8_t *port, size_t port_length, const uint8_t *keys, size_t keys_length, const uint32_t *key_ends, size_t length, const uint8_t *values,
                         size_t values_length, const uint32_t *value_ends, size_t value_ends_length, const int64_t *times, size_t times_length, const uint32_t *by, size_t by_length,
                         wasmill_done *done) {
    (void)keys_length, (void)values_length, (void)value_ends_length, (void)times, (void)times_length, (void)by_length;
    memset(done, 0, sizeof *done);
    for (size_t index = 0; index < length; index++) add(EMITTED, wasmill_of(port, port_length), item(keys, key_ends, index), item(values, value_ends, index), by[index]);
}

void wasmill_log_write(int32_t level, const uint8_t *line, size_t length) {
    static const char *const names[] = {"trace", "debug", "info", "warn", "error"};
    printf("%s: %.*s\n", names[level], (int)length, (const char *)line);
}

void wasmill_metrics_count_many(const uint8_t *name, size_t name_length, const uint64_t *by, size_t by_length, const uint32_t *of, size_t of_length) {
    (void)of_length;
    for (size_t index = 0; index < by_length; index++) add(COUNTED, wasmill_of(name, name_length), wasmill_of(NULL, 0), wasmill_of(NULL, 0), of[index])->by = by[index];
}

void wasmill_metrics_gauge_many(const uint8_t *name, size_t name_length, const double *values, size_t values_length, const uint32_t *of, size_t of_length) {
    (void)name, (void)name_length, (void)values, (void)values_length, (void)of, (void)of_length;
}

void wasmill_culprit_reject(uint32_t record, const uint8_t *reason, size_t length) {
    reasons[record] = kept(reason, length);
}

void wasmill_culprit_begin_record(uint32_t record) {
    (void)record;
}

void wasmill_declare_open_table(const uint8_t *table, size_t length) {
    (void)table, (void)length;
}

void wasmill_declare_ordered_table(const uint8_t *table, size_t length) {
    (void)table, (void)length;
}

void wasmill_declare_versioned_table(const uint8_t *table, size_t length, uint64_t span_ms) {
    (void)table, (void)length, (void)span_ms;
}

void wasmill_declare_uses_table(const uint8_t *table, size_t length) {
    (void)table, (void)length;
}

/* ---- What a test calls ---- */

static void fail(const char *file, int line, const char *what) {
    printf("%s:%d: %s\n", file, line, what);
    failures++;
}

static void expect(const char *file, int line, const char *what, wasmill_bytes found, wasmill_bytes expected) {
    if (wasmill_equal(found, expected)) return;
    printf("%s:%d: %s is `%.*s`, not `%.*s`\n", file, line, what, WASMILL_ARGS(found), WASMILL_ARGS(expected));
    failures++;
}

void test_begin_at(const char *file, int line, const char *config) {
    entries_length = records_length = 0;
    wasmill_call_is_done(wasmill_call_describe());
    const wasmill_answer *answer = wasmill_call_init((const uint8_t *)config, strlen(config));
    if (answer->is_error) fail(file, line, kept(answer->reason.data, answer->reason.length));
    wasmill_call_is_done(answer);
}

void test_record(const char *key, const char *value) {
    test_record_of(wasmill_text(key), wasmill_text(value), WASMILL_NO_TIME);
}

void test_record_of(wasmill_bytes key, wasmill_bytes value, int64_t time) {
    records = (wasmill_record *)realloc(records, (records_length + 1) * sizeof *records);
    if (records == NULL) abort();
    records[records_length++] = (wasmill_record){kept_bytes(key), kept_bytes(value), time};
}

void test_other(const char *table, const char *key, const char *value) {
    add(OTHER, wasmill_text(table), wasmill_text(key), wasmill_text(value), 0)->is_settled = true;
}

static wasmill_column column_of(bool is_of_keys) {
    size_t total = 0;
    for (size_t index = 0; index < records_length; index++) total += is_of_keys ? records[index].key.length : records[index].value.length;
    wasmill_column column = {(uint8_t *)wasmill_allocate(total), total, (uint32_t *)wasmill_allocate(records_length * sizeof(uint32_t)), records_length};
    total = 0;
    for (size_t index = 0; index < records_length; index++) {
        wasmill_bytes each = is_of_keys ? records[index].key : records[index].value;
        if (each.length > 0) memcpy(column.bytes + total, each.data, each.length);
        total += each.length;
        column.ends[index] = (uint32_t)total;
    }
    return column;
}

/* Keeps of the batch what stays: state, unless it failed or the record was refused; of the batches before, state only. */
static void settle(bool is_failed) {
    size_t length = 0;
    for (size_t index = 0; index < entries_length; index++) {
        entry each = entries[index];
        bool is_dropped = !each.is_settled && (is_failed || reasons[each.record] != NULL);
        each.is_settled = true;
        if (!is_dropped) entries[length++] = each;
    }
    entries_length = length;
}

void test_batch_at(const char *file, int line) {
    size_t length = 0;
    for (size_t index = 0; index < entries_length; index++) {
        entry each = entries[index];
        if (each.kind == STATE || each.kind == OTHER || each.kind == COUNTED) entries[length++] = each;
    }
    entries_length = length;
    reasons = (char **)calloc(records_length + 1, sizeof *reasons);
    if (reasons == NULL) abort();
    wasmill_column keys = column_of(true), values = column_of(false);
    int64_t *times = (int64_t *)wasmill_allocate(records_length * sizeof *times);
    for (size_t index = 0; index < records_length; index++) times[index] = records[index].time;
    const wasmill_answer *answer = wasmill_call_process(keys.bytes, keys.bytes_length, keys.ends, keys.length, values.bytes, values.bytes_length, values.ends, values.length, times,
                                                        records_length);
    settle(answer->is_error);
    if (answer->is_error) fail(file, line, kept(answer->reason.data, answer->reason.length));
    wasmill_call_is_done(answer);
    records_length = 0;
}

/* The effect of a kind that is the `index`th of its batch. */
static const entry *effect(effect_kind of, size_t index) {
    for (size_t place = 0; place < entries_length; place++) {
        if (entries[place].kind == of && index-- == 0) return &entries[place];
    }
    return NULL;
}

static const entry *expected_effect(const char *file, int line, effect_kind of, size_t index, const char *name, const char *key) {
    const entry *found = effect(of, index);
    if (found == NULL) {
        fail(file, line, "there are fewer effects of this kind");
        return NULL;
    }
    expect(file, line, "its port or table", wasmill_text(found->name), wasmill_text(name));
    expect(file, line, "its key", found->key, wasmill_text(key));
    return found;
}

void test_emitted_at(const char *file, int line, size_t index, const char *port, const char *key, const char *value) {
    const entry *found = expected_effect(file, line, EMITTED, index, port, key);
    if (found != NULL) expect(file, line, "its value", found->value, wasmill_text(value));
}

void test_emitted_count_at(const char *file, int line, size_t count) {
    size_t found = 0;
    while (effect(EMITTED, found) != NULL) found++;
    if (found != count) fail(file, line, "another number of records was emitted");
}

void test_rejected_at(const char *file, int line, size_t index, const char *reason) {
    expect(file, line, "the reason", reasons[index] == NULL ? wasmill_text("(not refused)") : wasmill_text(reasons[index]), wasmill_text(reason));
}

bool test_state_of(const char *table, const char *key, wasmill_bytes *value) {
    const entry *found = latest(STATE, wasmill_text(table), wasmill_text(key));
    if (found == NULL || !found->is_present) return false;
    *value = found->value;
    return true;
}

void test_state_at(const char *file, int line, const char *table, const char *key, const char *value) {
    wasmill_bytes found;
    bool is_present = test_state_of(table, key, &found);
    if (value == NULL && is_present) fail(file, line, "there is a value");
    else if (value != NULL && !is_present) fail(file, line, "there is no value");
    else if (value != NULL) expect(file, line, "the value", found, wasmill_text(value));
}

void test_updated_at(const char *file, int line, size_t index, const char *table, const char *key, wasmill_change change, wasmill_bytes operand) {
    const entry *found = expected_effect(file, line, UPDATED, index, table, key);
    if (found == NULL) return;
    if (found->change != change) fail(file, line, "it is another kind of update");
    expect(file, line, "its operand", found->value, operand);
}

void test_sent_at(const char *file, int line, size_t index, const char *table, const char *key, const char *value) {
    const entry *found = expected_effect(file, line, SENT, index, table, key);
    if (found != NULL) expect(file, line, "its value", found->value, wasmill_text(value));
}

uint64_t test_counter(const char *name) {
    uint64_t sum = 0;
    for (size_t index = 0; index < entries_length; index++) {
        if (entries[index].kind == COUNTED && strcmp(entries[index].name, name) == 0) sum += entries[index].by;
    }
    return sum;
}

void test_that_at(const char *file, int line, bool holds, const char *condition) {
    if (!holds) fail(file, line, condition);
}

int test_end(void) {
    printf(failures == 0 ? "all as expected\n" : "%d were not as expected\n", failures);
    return failures == 0 ? 0 : 1;
}
