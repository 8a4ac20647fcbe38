/* Put before every source of the library: its allocations go through counters that can be told to fail. */
#include <stdlib.h>

void *counted_malloc(size_t size);
void *counted_calloc(size_t count, size_t size);
void *counted_realloc(void *block, size_t size);
void *counted_aligned_alloc(size_t alignment, size_t size);
void counted_free(void *block);

#ifndef COUNTED_ALLOCATIONS
#define malloc counted_malloc
#define calloc counted_calloc
#define realloc counted_realloc
#define aligned_alloc counted_aligned_alloc
#define free counted_free
#endif
