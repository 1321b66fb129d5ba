/* The memory of a call, and columns that grow in it. For wasmill.c; it calls nothing of the host. */
#ifndef WASMILL_MEMORY_H
#define WASMILL_MEMORY_H

#include <string.h>

#include "wasmill_abi.h"

/* Room for `length + 1` items in an array of the arena. */
#define GROW(array, length, capacity) \
    do { \
        if ((length) == (capacity)) { \
            size_t grown = (capacity) == 0 ? 16 : (capacity) * 2; \
            void *larger = wasmill_allocate(grown * sizeof *(array)); \
            if ((length) > 0) memcpy(larger, (array), (length) * sizeof *(array)); \
            (array) = larger, (capacity) = grown; \
        } \
    } while (0)

/* The same bytes in memory of the call. */
wasmill_bytes wasmill_copy(wasmill_bytes bytes);

/* Forgets all that was allocated: it is free for the next call. */
void wasmill_empty_memory(void);

typedef struct {
    wasmill_column column;
    size_t bytes_capacity;
    size_t capacity;
} wasmill_growing;

void wasmill_push(wasmill_growing *items, wasmill_bytes item);
/* Takes the last item off. */
void wasmill_pop(wasmill_growing *items);
wasmill_bytes wasmill_item(const wasmill_column *column, size_t index);

#endif
