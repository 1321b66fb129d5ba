/* What stands between a function and the host: a batch comes in, the function sees records, and what they do goes out in columns.
 *
 * What a refused record has done is taken back here, so that the host gets the effects of good records only. */
#include "wasmill_memory.h"

#define BYTES(bytes) (bytes).data, (bytes).length
#define NAME(name) BYTES(wasmill_text(name))
#define COLUMN(column) (column).bytes, (column).bytes_length, (column).ends, (column).length

/* ---- The call under way ---- */

/* What is known of a key of a table. */
typedef struct {
    wasmill_bytes key;
    uint32_t hash;
    bool is_known, is_present, is_changed;
    wasmill_bytes value;
    /* The record that has changed it last. */
    uint32_t record;
} cell;

/* The keys of a table that the batch has come upon: of an own one, or as a lookup sees it. */
typedef struct cells {
    struct cells *next;
    const char *table;
    bool is_own;
    wasmill_consistency consistency;
    bool is_fetched;
    cell *items;
    size_t length, capacity;
    /* Places in `items` plus one, by hash: a power of two of them. */
    uint32_t *places;
    size_t places_length;
} cells;

/* Records on their way: emitted on a port, or sent to the owner of a table. */
typedef struct leaving {
    struct leaving *next;
    const char *name;
    bool is_sent;
    wasmill_growing keys, values;
    int64_t *times;
    uint32_t *records;
    size_t times_capacity, records_capacity, length;
} leaving;

/* Updates of one kind in a row. */
typedef struct updates {
    struct updates *next;
    const char *table;
    wasmill_change change;
    wasmill_growing keys, values;
    uint32_t *records;
    size_t records_capacity;
} updates;

/* Changes of a metric. */
typedef struct figures {
    struct figures *next;
    const char *name;
    bool is_gauge;
    uint64_t *values;
    uint32_t *records;
    size_t length, values_capacity, records_capacity;
} figures;

/* A cell as it was before the record changed it. */
typedef struct {
    cells *of;
    size_t place;
    cell before;
} undo;

static struct {
    wasmill_column keys, values;
    const int64_t *times;
    uint32_t record;
    int64_t time;
    cells *cells;
    leaving *leaving;
    updates *first_updates, *last_updates;
    figures *figures;
    undo *undo;
    size_t undo_length, undo_capacity;
    /* Why the host refused a call of this record. */
    const char *refused;
    /* Why the call as a whole cannot go on. */
    const char *failed;
    bool wants_nothing;
} call;

static const char *terminated(wasmill_bytes text) {
    char *string = (char *)wasmill_allocate(text.length + 1);
    if (text.length > 0) memcpy(string, text.data, text.length);
    string[text.length] = 0;
    return string;
}

static void refuse(const wasmill_error *error) {
    if (error->kind == WASMILL_ERROR_NOT_YET) call.failed = terminated(error->text);
    else if (call.refused == NULL) call.refused = terminated(error->text);
}

/* The text with `?` for what is not UTF-8: the host traps where it is handed such a text. */
static wasmill_bytes clean(wasmill_bytes text) {
    uint8_t *out = NULL;
    for (size_t at = 0; at < text.length;) {
        uint8_t byte = text.data[at];
        size_t more = byte < 0x80 ? 0 : (byte & 0xe0) == 0xc0 ? 1 : (byte & 0xf0) == 0xe0 ? 2 : (byte & 0xf8) == 0xf0 ? 3 : 4;
        static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
        uint32_t value = more == 0 ? byte : byte & (0x3f >> more);
        bool is_good = more < 4 && more < text.length - at;
        for (size_t next = 1; is_good && next <= more; next++) {
            is_good = (text.data[at + next] & 0xc0) == 0x80;
            value = value << 6 | (text.data[at + next] & 0x3f);
        }
        is_good = is_good && value >= least[more] && value <= 0x10ffff && (value & 0x1ff800) != 0xd800;
        if (is_good) {
            at += more + 1;
            continue;
        }
        if (out == NULL) {
            text = wasmill_copy(text);
            out = (uint8_t *)text.data;
        }
        out[at++] = '?';
    }
    return text;
}

/* ---- Cells ---- */

static cells *cells_of(const char *table, bool is_own, wasmill_consistency consistency) {
    for (cells *each = call.cells; each != NULL; each = each->next) {
        bool is_same_view = each->is_own == is_own && each->consistency.kind == consistency.kind && each->consistency.argument == consistency.argument;
        if (is_same_view && (each->table == table || strcmp(each->table, table) == 0)) return each;
    }
    cells *made = (cells *)wasmill_allocate(sizeof(cells));
    memset(made, 0, sizeof *made);
    made->next = call.cells, made->table = table, made->is_own = is_own, made->consistency = consistency;
    call.cells = made;
    return made;
}

static uint32_t hash_of(wasmill_bytes key) {
    uint64_t hash = 0xcbf29ce484222325 ^ key.length;
    size_t at = 0;
    for (; at + 8 <= key.length; at += 8) {
        uint64_t word;
        memcpy(&word, key.data + at, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 32;
    }
    for (; at < key.length; at++) hash = (hash ^ key.data[at]) * 0x100000001b3;
    hash *= 0x9e3779b97f4a7c15;
    return (uint32_t)(hash >> 32);
}

static void place(cells *of, uint32_t hash, size_t index) {
    size_t at = hash & (of->places_length - 1);
    while (of->places[at] != 0) at = (at + 1) & (of->places_length - 1);
    of->places[at] = (uint32_t)index + 1;
}

static void make_room(cells *of) {
    if (of->places_length > of->length * 2) return;
    of->places_length = of->places_length == 0 ? 64 : of->places_length * 4;
    of->places = (uint32_t *)wasmill_allocate(of->places_length * sizeof *of->places);
    memset(of->places, 0, of->places_length * sizeof *of->places);
    for (size_t index = 0; index < of->length; index++) place(of, of->items[index].hash, index);
}

/* The cell of a key. One that is made is not known. Cells move when others are made. */
static cell *cell_of(cells *of, wasmill_bytes key) {
    uint32_t hash = hash_of(key);
    if (of->places_length > 0) {
        for (size_t at = hash & (of->places_length - 1); of->places[at] != 0; at = (at + 1) & (of->places_length - 1)) {
            cell *found = &of->items[of->places[at] - 1];
            if (found->hash == hash && wasmill_equal(found->key, key)) return found;
        }
    }
    GROW(of->items, of->length, of->capacity);
    cell *made = &of->items[of->length];
    memset(made, 0, sizeof *made);
    made->key = wasmill_copy(key), made->hash = hash;
    of->length++;
    if (of->places_length <= of->length * 2) make_room(of);
    else place(of, hash, of->length - 1);
    return &of->items[of->length - 1];
}

/* Asks the host for all cells that are not known. */
static bool fetch(cells *of, wasmill_error *error) {
    wasmill_growing keys = {0};
    size_t asked = 0;
    for (size_t index = 0; index < of->length; index++) {
        if (!of->items[index].is_known) wasmill_push(&keys, of->items[index].key), asked++;
    }
    if (asked == 0) return true;
    wasmill_values got;
    if (of->is_own) wasmill_state_get_many(NAME(of->table), COLUMN(keys.column), &got);
    else wasmill_tables_get_many(NAME(of->table), COLUMN(keys.column), (int32_t)of->consistency.kind, of->consistency.argument, 0, &got);
    if (got.is_error) {
        *error = got.as.error;
        return false;
    }
    for (size_t index = 0, answer = 0; index < of->length && answer < asked; index++) {
        cell *each = &of->items[index];
        if (each->is_known) continue;
        each->is_known = true;
        each->is_present = got.as.values.present[answer] != 0;
        each->value = wasmill_item(&got.as.values.items, answer++);
    }
    return true;
}

/* The value of a key; where it is not known, it is asked for, the first time along with the keys of all records. */
static bool read(cells *of, wasmill_bytes key, wasmill_bytes *value) {
    cell *found = cell_of(of, key);
    wasmill_error error;
    if (!found->is_known && of->is_own && !of->is_fetched) {
        of->is_fetched = true;
        for (size_t index = 0; index < call.keys.length; index++) cell_of(of, wasmill_item(&call.keys, index));
        /* Where some key is not this task's, all stay not known: each is asked for alone. */
        fetch(of, &error);
        found = cell_of(of, key);
    }
    if (!found->is_known) {
        cells alone = {.table = of->table, .is_own = of->is_own, .consistency = of->consistency};
        cell *asked = cell_of(&alone, key);
        if (!fetch(&alone, &error)) {
            refuse(&error);
            return false;
        }
        found->is_known = true, found->is_present = asked->is_present, found->value = asked->value;
    }
    if (found->is_present) *value = found->value;
    return found->is_present;
}

static const wasmill_consistency LIVE = {WASMILL_LIVE, 0};

bool wasmill_get(const wasmill_table *table, wasmill_bytes key, wasmill_bytes *value) {
    return read(cells_of(table->name, true, LIVE), key, value);
}

bool wasmill_get_into(const wasmill_table *table, wasmill_bytes key, void *value, size_t size) {
    wasmill_bytes found;
    if (!wasmill_get(table, key, &found)) return false;
    if (found.length != size) {
        if (call.refused == NULL) call.refused = "the stored value has another size than what it is read into: raise the table's schema version when values change";
        return false;
    }
    memcpy(value, found.data, size);
    return true;
}

static void change(const wasmill_table *table, wasmill_bytes key, bool is_present, wasmill_bytes value) {
    cells *of = cells_of(table->name, true, LIVE);
    cell *changed = cell_of(of, key);
    GROW(call.undo, call.undo_length, call.undo_capacity);
    call.undo[call.undo_length++] = (undo){of, (size_t)(changed - of->items), *changed};
    changed->is_known = changed->is_changed = true;
    changed->is_present = is_present, changed->value = wasmill_copy(value), changed->record = call.record;
}

void wasmill_put(const wasmill_table *table, wasmill_bytes key, wasmill_bytes value) {
    change(table, key, true, value);
}

void wasmill_delete(const wasmill_table *table, wasmill_bytes key) {
    change(table, key, false, wasmill_of(NULL, 0));
}

/* ---- Output, and tables of others ---- */

static void leave(const char *name, bool is_sent, wasmill_bytes key, wasmill_bytes value, int64_t time) {
    leaving **at = &call.leaving;
    while (*at != NULL && ((*at)->is_sent != is_sent || strcmp((*at)->name, name) != 0)) at = &(*at)->next;
    if (*at == NULL) {
        *at = (leaving *)wasmill_allocate(sizeof(leaving));
        memset(*at, 0, sizeof **at);
        (*at)->name = name, (*at)->is_sent = is_sent;
    }
    leaving *to = *at;
    wasmill_push(&to->keys, key);
    wasmill_push(&to->values, value);
    GROW(to->times, to->length, to->times_capacity);
    GROW(to->records, to->length, to->records_capacity);
    to->times[to->length] = time;
    to->records[to->length++] = call.record;
}

void wasmill_emit(wasmill_bytes key, wasmill_bytes value) {
    leave("out", false, key, value, call.time);
}

void wasmill_emit_to(const char *port, wasmill_bytes key, wasmill_bytes value, int64_t time) {
    leave(port, false, key, value, time);
}

void wasmill_send(const char *table, wasmill_bytes key, wasmill_bytes value) {
    leave(table, true, key, value, call.time);
}

bool wasmill_lookup(const char *table, wasmill_bytes key, wasmill_bytes *value) {
    return wasmill_lookup_at(table, key, LIVE, value);
}

bool wasmill_lookup_at(const char *table, wasmill_bytes key, wasmill_consistency consistency, wasmill_bytes *value) {
    return read(cells_of(table, false, consistency), key, value);
}

void wasmill_want(const char *table, wasmill_bytes key) {
    cell_of(cells_of(table, false, LIVE), key);
}

bool wasmill_lookup_as_of_time(const char *table, wasmill_bytes key, int64_t time, bool wait, wasmill_bytes *value) {
    wasmill_growing keys = {0};
    wasmill_push(&keys, key);
    wasmill_values got;
    wasmill_tables_get_many_at(NAME(table), COLUMN(keys.column), &time, 1, wait, &got);
    if (got.is_error) refuse(&got.as.error);
    if (got.is_error || got.as.values.present[0] == 0) return false;
    *value = wasmill_item(&got.as.values.items, 0);
    return true;
}

enum { PAGE_KEYS = 1000 };

void wasmill_scan(const char *table, wasmill_bytes from, const wasmill_bytes *to, bool (*each)(wasmill_bytes, wasmill_bytes, void *), void *context) {
    wasmill_bytes end = to == NULL ? wasmill_of(NULL, 0) : *to;
    for (;;) {
        wasmill_page got;
        wasmill_tables_scan(NAME(table), BYTES(from), to != NULL, BYTES(end), PAGE_KEYS, WASMILL_LIVE, 0, 0, &got);
        if (got.is_error) {
            refuse(&got.as.error);
            return;
        }
        for (size_t index = 0; index < got.as.page.keys.length; index++) {
            if (!each(wasmill_item(&got.as.page.keys, index), wasmill_item(&got.as.page.values, index), context)) return;
        }
        if (!got.as.page.has_next) return;
        from = got.as.page.next;
    }
}

void wasmill_update(const char *table, wasmill_bytes key, wasmill_change change, wasmill_bytes operand) {
    updates *last = call.last_updates;
    /* In the order of their calls: only those that follow each other go together. */
    if (last == NULL || last->change != change || strcmp(last->table, table) != 0) {
        updates *made = (updates *)wasmill_allocate(sizeof(updates));
        memset(made, 0, sizeof *made);
        made->table = table, made->change = change;
        if (last == NULL) call.first_updates = made;
        else last->next = made;
        call.last_updates = last = made;
    }
    GROW(last->records, last->keys.column.length, last->records_capacity);
    last->records[last->keys.column.length] = call.record;
    wasmill_push(&last->keys, key);
    if (change != WASMILL_DELETE) wasmill_push(&last->values, operand);
}

void wasmill_add(const char *table, wasmill_bytes key, int64_t number) {
    wasmill_update(table, key, WASMILL_ADD_S64, wasmill_of(&number, sizeof number));
}

/* ---- Log and metrics ---- */

void wasmill_log(wasmill_level level, wasmill_bytes line) {
    wasmill_log_write((int32_t)level, BYTES(clean(line)));
}

static void figure(const char *name, bool is_gauge, uint64_t value) {
    figures **at = &call.figures;
    while (*at != NULL && ((*at)->is_gauge != is_gauge || strcmp((*at)->name, name) != 0)) at = &(*at)->next;
    if (*at == NULL) {
        *at = (figures *)wasmill_allocate(sizeof(figures));
        memset(*at, 0, sizeof **at);
        (*at)->name = name, (*at)->is_gauge = is_gauge;
    }
    figures *to = *at;
    GROW(to->values, to->length, to->values_capacity);
    GROW(to->records, to->length, to->records_capacity);
    to->values[to->length] = value;
    to->records[to->length++] = call.record;
}

void wasmill_count(const char *name, uint64_t by) {
    figure(name, false, by);
}

void wasmill_gauge(const char *name, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    figure(name, true, bits);
}

void wasmill_at_fault(void) {
    wasmill_culprit_begin_record(call.record);
}

void wasmill_panic(const char *message) {
    wasmill_log(WASMILL_ERROR, wasmill_text(message));
    wasmill_at_fault();
    __builtin_trap();
}

/* ---- A batch ---- */

/* Takes back what the record has done so far. */
static void take_back(uint32_t record) {
    while (call.undo_length > 0) {
        const undo *last = &call.undo[--call.undo_length];
        last->of->items[last->place] = last->before;
    }
    for (leaving *each = call.leaving; each != NULL; each = each->next) {
        while (each->length > 0 && each->records[each->length - 1] == record) each->length--, wasmill_pop(&each->keys), wasmill_pop(&each->values);
    }
    for (updates *each = call.first_updates; each != NULL; each = each->next) {
        while (each->keys.column.length > 0 && each->records[each->keys.column.length - 1] == record) {
            wasmill_pop(&each->keys);
            if (each->change != WASMILL_DELETE) wasmill_pop(&each->values);
        }
    }
    for (figures *each = call.figures; each != NULL; each = each->next) {
        while (each->length > 0 && each->records[each->length - 1] == record) each->length--;
    }
}

static bool hand_over_state(const cells *of, wasmill_done *done) {
    wasmill_growing put_keys = {0}, put_values = {0}, deleted_keys = {0};
    uint32_t *put_records = (uint32_t *)wasmill_allocate(of->length * sizeof(uint32_t));
    uint32_t *deleted_records = (uint32_t *)wasmill_allocate(of->length * sizeof(uint32_t));
    for (size_t index = 0; index < of->length; index++) {
        const cell *each = &of->items[index];
        if (!each->is_changed) continue;
        if (each->is_present) {
            put_records[put_keys.column.length] = each->record;
            wasmill_push(&put_keys, each->key);
            wasmill_push(&put_values, each->value);
        } else {
            deleted_records[deleted_keys.column.length] = each->record;
            wasmill_push(&deleted_keys, each->key);
        }
    }
    if (put_keys.column.length > 0) {
        wasmill_state_put_many(NAME(of->table), COLUMN(put_keys.column), COLUMN(put_values.column), put_records, put_keys.column.length, done);
        if (done->is_error) return false;
    }
    if (deleted_keys.column.length > 0) {
        wasmill_state_delete_many(NAME(of->table), COLUMN(deleted_keys.column), deleted_records, deleted_keys.column.length, done);
        if (done->is_error) return false;
    }
    return true;
}

static bool hand_over_updates(const updates *each, wasmill_done *done) {
    wasmill_updates parameters = {.table = wasmill_text(each->table), .keys = each->keys.column, .values = each->values.column};
    parameters.op.kind = (uint8_t)each->change;
    parameters.records = each->records, parameters.records_length = each->keys.column.length;
    wasmill_tables_update_many(&parameters, done);
    return !done->is_error;
}

/* Gives the host all that the records have done. */
static bool hand_over(wasmill_done *done) {
    for (const cells *each = call.cells; each != NULL; each = each->next) {
        if (each->is_own && !hand_over_state(each, done)) return false;
    }
    for (const updates *each = call.first_updates; each != NULL; each = each->next) {
        if (each->keys.column.length > 0 && !hand_over_updates(each, done)) return false;
    }
    for (const leaving *each = call.leaving; each != NULL; each = each->next) {
        if (each->length == 0) continue;
        if (each->is_sent) wasmill_tables_send(NAME(each->name), COLUMN(each->keys.column), COLUMN(each->values.column), each->times, each->length, each->records, each->length, done);
        else wasmill_output_emit(NAME(each->name), COLUMN(each->keys.column), COLUMN(each->values.column), each->times, each->length, each->records, each->length, done);
        if (done->is_error) return false;
    }
    for (const figures *each = call.figures; each != NULL; each = each->next) {
        if (each->length == 0) continue;
        if (each->is_gauge) wasmill_metrics_gauge_many(NAME(each->name), (const double *)(const void *)each->values, each->length, each->records, each->length);
        else wasmill_metrics_count_many(NAME(each->name), each->values, each->length, each->records, each->length);
    }
    return true;
}

__attribute__((weak)) void function_prefetch(const wasmill_record *record) {
    (void)record;
    call.wants_nothing = true;
}

static wasmill_record begin(size_t index) {
    call.record = (uint32_t)index;
    call.time = call.times[index];
    return (wasmill_record){wasmill_item(&call.keys, index), wasmill_item(&call.values, index), call.time};
}

static void prefetch(void) {
    for (size_t index = 0; index < call.keys.length && !call.wants_nothing; index++) {
        wasmill_record record = begin(index);
        function_prefetch(&record);
    }
    /* What the host refuses for all keys together is asked for, and refused, key by key. */
    wasmill_error error;
    for (cells *each = call.cells; each != NULL; each = each->next) fetch(each, &error);
}

static wasmill_answer answer;

static const wasmill_answer *answered(const char *reason) {
    answer.is_error = reason != NULL;
    answer.reason = reason == NULL ? wasmill_of(NULL, 0) : clean(wasmill_text(reason));
    return &answer;
}

WASMILL_EXPORT("process")
const wasmill_answer *wasmill_call_process(uint8_t *keys, size_t keys_length, uint32_t *key_ends, size_t key_ends_length, uint8_t *values, size_t values_length,
                                           uint32_t *value_ends, size_t value_ends_length, const int64_t *times, size_t times_length) {
    (void)times_length;
    memset(&call, 0, sizeof call);
    call.keys = (wasmill_column){keys, keys_length, key_ends, key_ends_length};
    call.values = (wasmill_column){values, values_length, value_ends, value_ends_length};
    call.times = times;
    prefetch();
    for (size_t index = 0; index < call.keys.length; index++) {
        wasmill_record record = begin(index);
        call.undo_length = 0, call.refused = NULL;
        const char *reason = function_process(&record);
        if (call.failed != NULL) return answered(call.failed);
        if (reason == NULL) reason = call.refused;
        if (reason == NULL) continue;
        take_back(call.record);
        wasmill_culprit_reject(call.record, BYTES(clean(wasmill_text(reason))));
    }
    wasmill_done done;
    return answered(hand_over(&done) ? NULL : terminated(done.error.text));
}

WASMILL_EXPORT("init") const wasmill_answer *wasmill_call_init(const uint8_t *config, size_t length) {
    return answered(function_init(wasmill_of(config, length)));
}

/* ---- Description ---- */

static struct {
    wasmill_descriptor descriptor;
    wasmill_described_table *tables;
    wasmill_bytes *ports;
    size_t tables_capacity, ports_capacity;
} description;

void wasmill_name(const char *name, const char *version) {
    description.descriptor.name = wasmill_text(name);
    description.descriptor.version = wasmill_text(version);
}

void wasmill_has_table(const wasmill_table *table) {
    size_t *length = &description.descriptor.tables_length;
    GROW(description.tables, *length, description.tables_capacity);
    description.tables[(*length)++] = (wasmill_described_table){wasmill_text(table->name), table->schema_version};
}

void wasmill_has_port(const char *port) {
    size_t *length = &description.descriptor.ports_length;
    GROW(description.ports, *length, description.ports_capacity);
    description.ports[(*length)++] = wasmill_text(port);
}

void wasmill_open(const wasmill_table *table) {
    wasmill_declare_open_table(NAME(table->name));
}

void wasmill_ordered(const wasmill_table *table) {
    wasmill_declare_ordered_table(NAME(table->name));
}

void wasmill_versioned(const wasmill_table *table, uint64_t span_ms) {
    wasmill_declare_versioned_table(NAME(table->name), span_ms);
}

void wasmill_uses(const char *name) {
    wasmill_declare_uses_table(NAME(name));
}

WASMILL_EXPORT("describe") const wasmill_descriptor *wasmill_call_describe(void) {
    memset(&description, 0, sizeof description);
    function_describe();
    description.descriptor.tables = description.tables;
    description.descriptor.ports = description.ports;
    return &description.descriptor;
}

void wasmill_call_is_done(const void *answer) {
    (void)answer;
    wasmill_empty_memory();
}

#ifdef __wasm__
WASMILL_EXPORT("cabi_post_describe") void wasmill_describe_is_done(const void *answer) { wasmill_call_is_done(answer); }
WASMILL_EXPORT("cabi_post_init") void wasmill_init_is_done(const void *answer) { wasmill_call_is_done(answer); }
WASMILL_EXPORT("cabi_post_process") void wasmill_process_is_done(const void *answer) { wasmill_call_is_done(answer); }
#endif
