/* All memory of a call comes from one arena that is emptied when the call is done; nothing outlives it. */
#include "wasmill_memory.h"

#include <stdlib.h>

typedef struct chunk {
    struct chunk *next;
    size_t size;
    size_t used;
    _Alignas(16) uint8_t bytes[];
} chunk;

static chunk *first_chunk;
static chunk *current_chunk;

void *wasmill_allocate(size_t size) {
    size = (size + 7) & ~(size_t)7;
    while (current_chunk != NULL && current_chunk->size - current_chunk->used < size && current_chunk->next != NULL) current_chunk = current_chunk->next;
    if (current_chunk == NULL || current_chunk->size - current_chunk->used < size) {
        size_t chunk_size = current_chunk == NULL ? 32 << 10 : current_chunk->size * 2;
        if (chunk_size < size) chunk_size = size;
        chunk *made = (chunk *)malloc(sizeof(chunk) + chunk_size);
        /* Out of memory: the host says so. */
        if (made == NULL) __builtin_trap();
        made->next = NULL, made->size = chunk_size, made->used = 0;
        if (current_chunk == NULL) first_chunk = made;
        else current_chunk->next = made;
        current_chunk = made;
    }
    void *memory = current_chunk->bytes + current_chunk->used;
    current_chunk->used += size;
    return memory;
}

void wasmill_empty_memory(void) {
    for (chunk *each = first_chunk; each != NULL; each = each->next) each->used = 0;
    current_chunk = first_chunk;
}

/* Where the host puts what it gives. */
WASMILL_EXPORT("cabi_realloc") void *wasmill_reallocate(void *old, size_t old_size, size_t align, size_t new_size) {
    (void)align;
    void *memory = wasmill_allocate(new_size);
    if (old_size > 0) memcpy(memory, old, old_size < new_size ? old_size : new_size);
    return memory;
}

wasmill_bytes wasmill_copy(wasmill_bytes bytes) {
    uint8_t *memory = (uint8_t *)wasmill_allocate(bytes.length);
    if (bytes.length > 0) memcpy(memory, bytes.data, bytes.length);
    return wasmill_of(memory, bytes.length);
}

/* ---- Columns ---- */

void wasmill_push(wasmill_growing *items, wasmill_bytes item) {
    wasmill_column *column = &items->column;
    if (items->bytes_capacity - column->bytes_length < item.length) {
        size_t grown = items->bytes_capacity * 2 + item.length + 64;
        uint8_t *larger = (uint8_t *)wasmill_allocate(grown);
        if (column->bytes_length > 0) memcpy(larger, column->bytes, column->bytes_length);
        column->bytes = larger, items->bytes_capacity = grown;
    }
    GROW(column->ends, column->length, items->capacity);
    if (item.length > 0) memcpy(column->bytes + column->bytes_length, item.data, item.length);
    column->bytes_length += item.length;
    column->ends[column->length++] = (uint32_t)column->bytes_length;
}

void wasmill_pop(wasmill_growing *items) {
    wasmill_column *column = &items->column;
    column->length--;
    column->bytes_length = column->length == 0 ? 0 : column->ends[column->length - 1];
}

wasmill_bytes wasmill_item(const wasmill_column *column, size_t index) {
    size_t begin = index == 0 ? 0 : column->ends[index - 1];
    return wasmill_of(column->bytes + begin, column->ends[index] - begin);
}
