/* The contract of Wasmill as C sees it: what `wit/` says, in the layout that the component model's canonical ABI gives it. For wasmill.c, and for the host in memory of tests. */
#ifndef WASMILL_ABI_H
#define WASMILL_ABI_H

#include "wasmill.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint8_t *bytes;
    size_t bytes_length;
    uint32_t *ends;
    size_t length;
} wasmill_column;

typedef struct {
    wasmill_column items;
    uint8_t *present;
    size_t length;
} wasmill_optional_column;

/* `error`, by its cases: only whether it is not-yet has to be known. */
typedef struct {
    uint8_t kind;
    wasmill_bytes text;
} wasmill_error;
enum { WASMILL_ERROR_NOT_YET = 5 };

typedef struct {
    uint8_t is_error;
    wasmill_error error;
} wasmill_done;

typedef struct {
    uint8_t is_error;
    union {
        wasmill_optional_column values;
        wasmill_error error;
    } as;
} wasmill_values;

typedef struct {
    uint8_t is_error;
    union {
        struct {
            uint8_t is_some;
            wasmill_bytes bytes;
        } value;
        wasmill_error error;
    } as;
} wasmill_value;

typedef struct {
    uint8_t is_error;
    union {
        struct {
            wasmill_column keys;
            wasmill_column values;
            uint8_t has_next;
            wasmill_bytes next;
        } page;
        wasmill_error error;
    } as;
} wasmill_page;

/* The parameters of update-many: too many to be given one by one. */
typedef struct {
    wasmill_bytes table;
    wasmill_column keys;
    struct {
        uint8_t kind;
        wasmill_bytes other;
    } op;
    wasmill_column values;
    const uint32_t *records;
    size_t records_length;
    uint8_t has_outcomes;
    struct {
        wasmill_bytes port;
        wasmill_column keys;
        wasmill_column values;
    } outcomes;
} wasmill_updates;

#ifdef __wasm__
#define WASMILL_IMPORT(interface, name) __attribute__((import_module("wasmill:operator/" interface "@0.1.0"), import_name(name)))
#define WASMILL_EXPORT(name) __attribute__((export_name(name)))
#else
#define WASMILL_IMPORT(interface, name)
#define WASMILL_EXPORT(name)
#endif

#define WASMILL_BYTES_ARGUMENT const uint8_t *, size_t
#define WASMILL_COLUMN_ARGUMENT const uint8_t *, size_t, const uint32_t *, size_t
#define WASMILL_RECORDS_ARGUMENT const uint32_t *, size_t

WASMILL_IMPORT("state", "get-many") void wasmill_state_get_many(WASMILL_BYTES_ARGUMENT, WASMILL_COLUMN_ARGUMENT, wasmill_values *);
WASMILL_IMPORT("state", "put-many") void wasmill_state_put_many(WASMILL_BYTES_ARGUMENT, WASMILL_COLUMN_ARGUMENT, WASMILL_COLUMN_ARGUMENT, WASMILL_RECORDS_ARGUMENT, wasmill_done *);
WASMILL_IMPORT("state", "delete-many") void wasmill_state_delete_many(WASMILL_BYTES_ARGUMENT, WASMILL_COLUMN_ARGUMENT, WASMILL_RECORDS_ARGUMENT, wasmill_done *);

WASMILL_IMPORT("tables", "get-many")
void wasmill_tables_get_many(WASMILL_BYTES_ARGUMENT, WASMILL_COLUMN_ARGUMENT, int32_t kind, uint64_t argument, size_t, wasmill_values *);
WASMILL_IMPORT("tables", "get-many-at")
void wasmill_tables_get_many_at(WASMILL_BYTES_ARGUMENT, WASMILL_COLUMN_ARGUMENT, const int64_t *, size_t, int32_t wait, wasmill_values *);
WASMILL_IMPORT("tables", "scan")
void wasmill_tables_scan(WASMILL_BYTES_ARGUMENT, WASMILL_BYTES_ARGUMENT, int32_t has_end, WASMILL_BYTES_ARGUMENT, uint32_t limit, int32_t kind, uint64_t argument, size_t, wasmill_page *);
WASMILL_IMPORT("tables", "update-many") void wasmill_tables_update_many(const wasmill_updates *, wasmill_done *);
WASMILL_IMPORT("tables", "send")
void wasmill_tables_send(WASMILL_BYTES_ARGUMENT, WASMILL_COLUMN_ARGUMENT, WASMILL_COLUMN_ARGUMENT, const int64_t *, size_t, WASMILL_RECORDS_ARGUMENT, wasmill_done *);

WASMILL_IMPORT("output", "emit")
void wasmill_output_emit(WASMILL_BYTES_ARGUMENT, WASMILL_COLUMN_ARGUMENT, WASMILL_COLUMN_ARGUMENT, const int64_t *, size_t, WASMILL_RECORDS_ARGUMENT, wasmill_done *);

WASMILL_IMPORT("log", "write") void wasmill_log_write(int32_t level, WASMILL_BYTES_ARGUMENT);
WASMILL_IMPORT("metrics", "count-many") void wasmill_metrics_count_many(WASMILL_BYTES_ARGUMENT, const uint64_t *, size_t, WASMILL_RECORDS_ARGUMENT);
WASMILL_IMPORT("metrics", "gauge-many") void wasmill_metrics_gauge_many(WASMILL_BYTES_ARGUMENT, const double *, size_t, WASMILL_RECORDS_ARGUMENT);
WASMILL_IMPORT("culprit", "reject") void wasmill_culprit_reject(uint32_t record, WASMILL_BYTES_ARGUMENT);
WASMILL_IMPORT("culprit", "begin-record") void wasmill_culprit_begin_record(uint32_t record);

WASMILL_IMPORT("declare", "open-table") void wasmill_declare_open_table(WASMILL_BYTES_ARGUMENT);
WASMILL_IMPORT("declare", "ordered-table") void wasmill_declare_ordered_table(WASMILL_BYTES_ARGUMENT);
WASMILL_IMPORT("declare", "versioned-table") void wasmill_declare_versioned_table(WASMILL_BYTES_ARGUMENT, uint64_t span_ms);
WASMILL_IMPORT("declare", "uses-table") void wasmill_declare_uses_table(WASMILL_BYTES_ARGUMENT);

/* What the host calls. */

typedef struct {
    wasmill_bytes name;
    uint32_t schema_version;
} wasmill_described_table;

typedef struct {
    wasmill_bytes name;
    wasmill_bytes version;
    const wasmill_described_table *tables;
    size_t tables_length;
    const wasmill_bytes *ports;
    size_t ports_length;
} wasmill_descriptor;

/* Fine, or a reason why not. */
typedef struct {
    uint8_t is_error;
    wasmill_bytes reason;
} wasmill_answer;

const wasmill_descriptor *wasmill_call_describe(void);
const wasmill_answer *wasmill_call_init(const uint8_t *config, size_t length);
const wasmill_answer *wasmill_call_process(uint8_t *keys, size_t keys_length, uint32_t *key_ends, size_t key_ends_length, uint8_t *values, size_t values_length,
                                           uint32_t *value_ends, size_t value_ends_length, const int64_t *times, size_t times_length);
/* What is over is forgotten: the memory of the call is free for the next one. */
void wasmill_call_is_done(const void *answer);

#ifdef __cplusplus
}
#endif
#endif
