/* What the translation units of the mapping library share; nothing here is for callers. */
#ifndef MAPPING_INTERNAL_H
#define MAPPING_INTERNAL_H

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mapping.h"

#define INVALID UINT64_MAX /* voxel id of a node outside the grid */
#define MAX_DEPTH 8
#define MAX_THREADS 256
#define LEAF_SEARCH 8 /* entries of the leaf list looked through before a new one is made */

#define META_COUNT_BITS 20       /* an event's meta: pixel of its brick << 20 | leaves */
#define FLAT_WIDTH MAPPING_BRICK /* pixels of a brick's row */
#define FLAT_COLUMNS 80          /* a row's arrays: 65 corners, padded to five vectors */
#define FLAT_INVALID INT32_MAX
#define FLAT_BITS 30 /* of a voxel id relative to its box */

/* (sample, voxel) pairs in visiting order. id = slot of the voxel's page << page bits | place in the page. */
typedef struct {
    uint32_t *ids, *meta;
    uint32_t *counts; /* leaves where they do not fit into meta, else NULL */
    size_t count, capacity;
} event_list;

typedef struct {
    uint64_t id;
    uint32_t count;
} leaf;

typedef struct {
    uint64_t id;
    uint64_t generation;
} cached_node;

/* The grid as the evaluator uses it. */
typedef struct {
    double minimum[3], step[3], limit[3]; /* limit: shape as a double */
    int shift_x, shift_y;                 /* packed voxel id: x << shift_x | y << shift_y | z */
    uint64_t mask_y, mask_z;
    bool powers;       /* every chunk edge is a power of two */
    int chunk_bits[3]; /* then their logarithms */
    uint64_t chunk[3];
    uint64_t chunks[3]; /* chunks along each axis */
    int bits_chunk, bits_local;
    bool flat; /* small enough for the flat lattice's int32 arithmetic */
} prepared_grid;

/* Pages (runs of 2^page_bits keys) that a thread has met, numbered in the order of meeting: slots. */
typedef struct {
    uint64_t *pages; /* slot -> page */
    size_t count, capacity;
    uint32_t *table; /* hash -> slot + 1 */
    size_t table_size;
    uint64_t last_page;
    uint32_t last_slot;
} page_list;

/* Events of one brick and frame that follow one another. */
typedef struct {
    uint32_t brick, frame;
    size_t first, count;
} segment;

/* Working arrays of the flat lattice, sized for one depth and exposure. */
typedef struct {
    int depth;
    bool continuous;
    int leaf_count;
    double *planes;    /* [65 rows][3][FLAT_COLUMNS] corner rays of the current brick */
    uint8_t *finite;   /* [64][FLAT_WIDTH] whether all corners of a pixel are, 16 more to read */
    double *line;      /* [3][FLAT_COLUMNS] */
    int32_t *nodes[33]; /* [side + 1] -> [layers][side][FLAT_COLUMNS] */
    int32_t *node_memory;
    int32_t *centres;    /* [leaf][FLAT_COLUMNS] */
    int32_t *leaves;     /* [leaf][16] */
    int32_t *round_ids, *round_counts; /* [leaf + 4][16] */
    float *mapped[2];    /* [positions][3][FLAT_COLUMNS] */
    float *blends;       /* the same, between two rows of corners */
    double chord, unit_error, reach; /* of the current brick, see flat_measure; chord < 0: not yet */
    int64_t brick;       /* that `planes` holds; -1: none */
    size_t bytes;
} flat_space;

/* What one thread owns while it maps samples. */
typedef struct {
    const prepared_grid *grid;
    int depth;
    int page_bits;
    double unit;         /* lattice spacing, 2^-(depth+1) */
    double corner[4][3]; /* rays of the current pixel: bit 0 high row, bit 1 high column */
    const double *table; /* affine maps of the current frame */
    leaf *leaves;
    size_t leaf_count, leaf_capacity;
    int64_t leaf_total; /* leaves of the current pixel, before merging */
    cached_node *cache;
    size_t cache_side;
    uint64_t generation;
    bool reject;
    bool measured;   /* slack is the current pixel's */
    double slack[3]; /* how far, in voxels, a pixel or cell can leave the box of its corners */
    bool failed;     /* an allocation failed */
    event_list events;
    page_list pages;
    segment *segments;
    size_t segment_count, segment_capacity;
    flat_space flat;
    uint32_t *sorting; /* for counting a unit's voxels */
    size_t sorting_capacity;
    mapping_counters counters;
} mapper;

/* One frame's rows of a brick for the flat lattice. */
typedef struct {
    mapper *mapper;
    flat_space *space;
    const double *planes;
    const double *table;
    int depth, side; /* side = 2^depth */
    bool stationary, filter;
    int columns, row_begin, row_end;    /* of the brick */
    int64_t begin, end;                 /* pixels of the brick's visiting order that are admitted */
    const double *intensity, *variance; /* brick's first pixel */
    const unsigned char *mask;          /* or NULL */
    int64_t stride;
    const double *minimum, *step;
    int32_t origin[3], extent[3], shape[3]; /* the box of voxels that ids are relative to */
    int shift[2];
    float margin;
    bool outside; /* no coordinate of the brick's frame can lie in the grid */
    bool certain; /* no coordinate of the brick's frame can leave the box */
    int filter_first, filter_positions;
    uint32_t *slots; /* chunk of the box -> slot << page bits, or UINT32_MAX */
    int chunk_shift[2];
} flat_task;

typedef double quad __attribute__((vector_size(32))); /* sum of w I, w^2 V, w, and how many */

/* Bits and prefixes of an owner's pages, as the sums' inner loops see them. */
typedef struct {
    uint64_t *bits;
    uint32_t *prefix;
    quad *sums;
    const uint32_t *ranks; /* slot -> rank of its page */
    uint32_t page_first, page_end;
    int page_bits;
    bool all; /* the owner has every page */
} page_view;

/* One segment's samples. */
typedef struct {
    const uint32_t *ids, *meta, *counts;
    size_t count;
    const double *intensity, *variance; /* the brick's first pixel */
    int64_t stride;
    double scale; /* weight of one leaf */
} segment_view;

/* The inner loops that exist once for every instruction set. */
typedef struct {
    void (*load)(flat_space *space, const double *rays, int64_t row_stride, int rows, int columns);
    void (*measure)(flat_space *space, int rows, int columns);
    int (*map)(const flat_task *task);
    /* Set the bits of the events' voxels. */
    void (*mark)(const page_view *pages, const uint32_t *ids, size_t count);
    /* Fill the prefixes; returns how many bits are set in all. */
    int64_t (*rank)(const page_view *pages, size_t words);
    /* Add the segment's events to their records. */
    void (*add)(const page_view *pages, const segment_view *segment);
    /* Correct a frame. */
    void (*correct)(const mapping_frame *frame);
} instruction_table;

extern const instruction_table mapping_plain, mapping_avx2, mapping_avx512;
/* An enum mapping_instructions's table; NULL where this machine lacks it. */
const instruction_table *mapping_instructions_for(int wanted);

enum flat_status { FLAT_DONE, FLAT_NO_MEMORY, FLAT_OVERFLOW };

/* Have room for `more` events. */
bool grow_events(event_list *e, size_t more);
static inline bool reserve_events(event_list *e, size_t more)
{
    return e->capacity - e->count >= more || grow_events(e, more);
}

/* Enter the chunks of the events [first, first + count) into task->slots; false when an allocation failed. */
bool find_slots(const flat_task *task, size_t first, size_t count);
/* Turn the ids of the events from `first` on from box-relative ones into slots; false when an allocation failed. */
bool place_events(const flat_task *task, size_t first);

/* Subdivide the current pixel of m into its leaf list; the variants give the same leaves in the same order. */
void subdivide_passing(mapper *m, bool stationary);
void subdivide_cached(mapper *m, bool stationary);
/* The pixel's centre at mid-exposure. */
void subdivide_centre(mapper *m);
/* Sort the leaf list by id and merge equal ids. */
void merge_leaves(mapper *m);

#endif
