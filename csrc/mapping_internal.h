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

/* One (sample, voxel) pair: key = chunk << 32 | local, weight a multiple of 2^-24 and so exact. */
typedef struct {
    uint64_t key;
    uint32_t sample;
    float weight;
} event;

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
} prepared_grid;

/* What one thread owns while it maps samples. */
typedef struct {
    const prepared_grid *grid;
    int depth;
    double unit;         /* lattice spacing, 2^-(depth+1) */
    double corner[4][3]; /* rays of the current pixel: bit 0 high row, bit 1 high column */
    const double *table; /* affine maps of the current frame */
    leaf *leaves;
    size_t leaf_count, leaf_capacity;
    int64_t leaf_total; /* leaves of the current pixel, before merging */
    cached_node *cache;
    size_t cache_side;
    uint64_t generation;
    bool failed; /* an allocation failed */
    event *events;
    size_t event_count, event_capacity;
    mapping_counters counters;
} mapper;

/* Subdivide the current pixel of m into its leaf list; the four variants give the same leaves in the same order. */
void subdivide_passing(mapper *m, bool stationary);
void subdivide_cached(mapper *m, bool stationary);
/* The pixel's centre at mid-exposure. */
void subdivide_centre(mapper *m);
/* Sort the leaf list by id and merge equal ids. */
void merge_leaves(mapper *m);

#endif
