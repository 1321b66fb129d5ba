/* Functions for Wasmill in C: one record at a time, with state, output and the tables of others.
 *
 * A function defines `function_describe`, `function_init` and `function_process`, and is compiled with wasmill.c. The rest of this file is what it may call. Behind it, a batch of
 * records crosses the boundary at once: state is read by one call for all keys of a batch, kept until the batch is done, and written back by one call, and so is all else.
 *
 * Bytes that are given to a function live until the call is done; bytes that it gives are copied. */
#ifndef WASMILL_H
#define WASMILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Bytes ---- */

/* Some bytes, a text for instance. There is no zero behind them. */
typedef struct {
    const uint8_t *data;
    size_t length;
} wasmill_bytes;

/* The bytes of a C string, without its zero. */
wasmill_bytes wasmill_text(const char *text);

/* The bytes of a value: wasmill_of(&visits, sizeof visits). */
wasmill_bytes wasmill_of(const void *data, size_t length);

bool wasmill_equal(wasmill_bytes one, wasmill_bytes other);

/* printf into memory that lives until the call is done. WASMILL_ARGS gives bytes to a "%.*s". */
__attribute__((format(printf, 1, 2))) wasmill_bytes wasmill_format(const char *format, ...);
#define WASMILL_ARGS(bytes) (int)(bytes).length, (const char *)(bytes).data

/* As wasmill_format, as a C string: a reason for instance. */
__attribute__((format(printf, 1, 2))) const char *wasmill_string(const char *format, ...);

/* Memory that lives until the call is done. */
void *wasmill_allocate(size_t size);

/* The member `name` of a JSON object, as it stands there: a text with its quotes. False where there is none. */
bool wasmill_json_member(wasmill_bytes object, const char *name, wasmill_bytes *member);

/* What is between the quotes of a JSON text. False where it is no text, or has escapes. */
bool wasmill_json_text(wasmill_bytes member, wasmill_bytes *text);

/* A whole number, in decimal digits. False where it is none, or too large. */
bool wasmill_number(wasmill_bytes digits, int64_t *number);

/* ---- What a function is ---- */

/* No time: the record has none. */
#define WASMILL_NO_TIME INT64_MIN

/* A record: its key, its value and its event time in milliseconds since the Unix epoch. */
typedef struct {
    wasmill_bytes key;
    wasmill_bytes value;
    int64_t time;
} wasmill_record;

/* A table of the function's own: static const wasmill_table visits = {"visits", 1}; */
typedef struct {
    const char *name;
    /* The version of the values' encoding, from 1 on: raise it when that changes. */
    uint32_t schema_version;
} wasmill_table;

/* Defined by the function: says what it is, by the calls below. */
void function_describe(void);

/* Defined by the function: prepares it. `config` is the operator's config as a JSON object. Returns what is wrong with it, or NULL. */
const char *function_init(wasmill_bytes config);

/* Defined by the function: works on a record. Returns why the record is refused, or NULL. What it has done for a refused record is undone. */
const char *function_process(const wasmill_record *record);

/* May be defined by the function: says by wasmill_want what function_process will look up for a record. It is called for all records of a batch before the first is worked on. */
void function_prefetch(const wasmill_record *record);

/* To be called by function_describe. Texts must last. */
void wasmill_name(const char *name, const char *version);
void wasmill_has_table(const wasmill_table *table);
void wasmill_has_port(const char *port);
/* The rest of the job may read and change the table, where the manifest says so, too. */
void wasmill_open(const wasmill_table *table);
/* The table can be scanned. */
void wasmill_ordered(const wasmill_table *table);
/* The table keeps earlier values by event time. */
void wasmill_versioned(const wasmill_table *table, uint64_t span_ms);
/* The function looks up, or changes, a table that it calls `name`: `uses.NAME` in the manifest says which that is. */
void wasmill_uses(const char *name);

/* ---- State: the function's own tables ---- */

/* A call that the host refuses, for a key that another task owns for instance, does nothing, and the record is refused with the host's reason: nothing has to be checked for that. */

/* The value of a key. False where it has none. */
bool wasmill_get(const wasmill_table *table, wasmill_bytes key, wasmill_bytes *value);

/* Copies the value of a key to a struct. False, and the struct as it was, where there is none. A value of another size refuses the record. */
bool wasmill_get_into(const wasmill_table *table, wasmill_bytes key, void *value, size_t size);

void wasmill_put(const wasmill_table *table, wasmill_bytes key, wasmill_bytes value);
void wasmill_delete(const wasmill_table *table, wasmill_bytes key);

/* ---- Output ---- */

/* Emits a record on the port `out`, with the time of the record that is worked on. */
void wasmill_emit(wasmill_bytes key, wasmill_bytes value);

/* Emits a record on a port, with a time. */
void wasmill_emit_to(const char *port, wasmill_bytes key, wasmill_bytes value, int64_t time);

/* ---- Tables of anyone, by the names that wasmill_uses has ---- */

enum wasmill_view { WASMILL_LIVE, WASMILL_COMMITTED, WASMILL_AS_OF, WASMILL_BOUNDED_MS, WASMILL_BOUNDED_EPOCHS };

/* Which state a lookup sees; the contract, wit/tables.wit, says more of it. `argument` is the epoch, the milliseconds or the epochs. */
typedef struct {
    enum wasmill_view kind;
    uint64_t argument;
} wasmill_consistency;

/* The value of a key, as of the latest batch that its owner has applied. False where it has none. */
bool wasmill_lookup(const char *table, wasmill_bytes key, wasmill_bytes *value);
bool wasmill_lookup_at(const char *table, wasmill_bytes key, wasmill_consistency consistency, wasmill_bytes *value);

/* The value that a key of a versioned table had at an event time. With `wait`, the record is worked on again when the table's owner has come to that time: return at once when it is false. */
bool wasmill_lookup_as_of_time(const char *table, wasmill_bytes key, int64_t time, bool wait, wasmill_bytes *value);

/* For function_prefetch: wasmill_lookup of this key will find its value without a call of its own. */
void wasmill_want(const char *table, wasmill_bytes key);

/* Goes through a range of keys of an ordered table, `to` (NULL for no end) excluded, until `each` returns false. */
void wasmill_scan(const char *table, wasmill_bytes from, const wasmill_bytes *to, bool (*each)(wasmill_bytes key, wasmill_bytes value, void *context), void *context);

/* How an update changes the value that it finds; numbers are little-endian. */
typedef enum {
    WASMILL_PUT, WASMILL_PUT_IF_ABSENT, WASMILL_DELETE, WASMILL_ADD_S64, WASMILL_ADD_F32, WASMILL_ADD_F64, WASMILL_MIN_S64, WASMILL_MAX_S64, WASMILL_MIN_F32, WASMILL_MAX_F32,
    WASMILL_MIN_F64, WASMILL_MAX_F64
} wasmill_change;

/* Changes the value of a key, exactly once, after the batch has succeeded. */
void wasmill_update(const char *table, wasmill_bytes key, wasmill_change change, wasmill_bytes operand);

/* Adds to a number of 64 bits. */
void wasmill_add(const char *table, wasmill_bytes key, int64_t number);

/* Gives a record to the function that owns the table. */
void wasmill_send(const char *table, wasmill_bytes key, wasmill_bytes value);

/* ---- Log and metrics ---- */

typedef enum { WASMILL_TRACE, WASMILL_DEBUG, WASMILL_INFO, WASMILL_WARN, WASMILL_ERROR } wasmill_level;

void wasmill_log(wasmill_level level, wasmill_bytes line);
/* Adds to a counter; not for a refused record. */
void wasmill_count(const char *name, uint64_t by);
void wasmill_gauge(const char *name, double value);

/* Says that the record which is worked on is to blame if the call now traps or never ends. Without it, the host finds out by running the batch in parts. */
void wasmill_at_fault(void);

/* Logs what went wrong and traps: for what must not be. The batch is run again without the record. */
__attribute__((noreturn)) void wasmill_panic(const char *message);

#ifdef __cplusplus
}
#endif
#endif
