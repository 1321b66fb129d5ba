/* A host in memory for tests of functions, compiled for the machine that one works on.
 *
 * A test begins with `test_begin`, gives records by `test_record` and has them worked on as one batch by `test_batch`; what it expects is said by the other calls, each of which prints what is
 * different. State lasts from batch to batch. A batch whose call fails has done nothing, and its error is told; endless loops and limits are not simulated. */
#ifndef WASMILL_TEST_H
#define WASMILL_TEST_H

#include "wasmill.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begins anew, with an instance that has this config. */
#define test_begin(config) test_begin_at(__FILE__, __LINE__, config)

/* Adds a record to the next batch. */
void test_record(const char *key, const char *value);
void test_record_of(wasmill_bytes key, wasmill_bytes value, int64_t time);

/* Fills a table of others. */
void test_other(const char *table, const char *key, const char *value);

/* Has the records worked on. */
#define test_batch() test_batch_at(__FILE__, __LINE__)

/* The last batch has emitted this as its record `index`. */
#define test_emitted(index, port, key, value) test_emitted_at(__FILE__, __LINE__, index, port, key, value)
#define test_emitted_count(count) test_emitted_count_at(__FILE__, __LINE__, count)

/* The last batch has refused its record `index` for this reason. */
#define test_rejected(index, reason) test_rejected_at(__FILE__, __LINE__, index, reason)

/* A table holds this value; NULL for none. For values that are no texts there is `test_state_of`, which gives them. */
#define test_state(table, key, value) test_state_at(__FILE__, __LINE__, table, key, value)
bool test_state_of(const char *table, const char *key, wasmill_bytes *value);

/* The last batch has updated, or sent to, a table of others as its effect `index` of this kind. */
#define test_updated(index, table, key, change, operand) test_updated_at(__FILE__, __LINE__, index, table, key, change, operand)
#define test_sent(index, table, key, value) test_sent_at(__FILE__, __LINE__, index, table, key, value)

/* What a counter has come to. */
uint64_t test_counter(const char *name);

/* Something that the calls above cannot say. */
#define test_that(condition) test_that_at(__FILE__, __LINE__, (condition), #condition)

/* What `main` returns: 0 if all was as expected. */
int test_end(void);

void test_begin_at(const char *file, int line, const char *config);
void test_batch_at(const char *file, int line);
void test_emitted_at(const char *file, int line, size_t index, const char *port, const char *key, const char *value);
void test_emitted_count_at(const char *file, int line, size_t count);
void test_rejected_at(const char *file, int line, size_t index, const char *reason);
void test_state_at(const char *file, int line, const char *table, const char *key, const char *value);
void test_updated_at(const char *file, int line, size_t index, const char *table, const char *key, wasmill_change change, wasmill_bytes operand);
void test_sent_at(const char *file, int line, size_t index, const char *table, const char *key, const char *value);
void test_that_at(const char *file, int line, bool holds, const char *condition);

#ifdef __cplusplus
}
#endif
#endif
