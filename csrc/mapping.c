/* The context of the mapping library: checks, bricks and work units, threads, and the sums in visiting order. */
#include "mapping_internal.h"

#include <float.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_BYTES 40 /* six columns of a record, as a C struct */
#define RESERVED_RECORDS 4
#define SAMPLE_BYTES 128
#define DIGIT_BITS 11
#define SPLIT_SAMPLES 4096
#define BITMAP_DENSITY 1500 /* events a page from which the bitmap is faster than sorting (256 x 256 pixel tiles) */
#define FLAT_DEPTH 5        /* nodes of a row of pixels stay in the second-level cache up to here */
#define FLAT_DEPTH_CONTINUOUS 4 /* 1.5 MB of nodes and as much of centres: 15 us a pixel, where corner passing takes 110 */

/* A rectangle of the tile that is visited frame by frame, row by row. */
typedef struct {
    int64_t row, rows, column, columns;
    int64_t first; /* pixels of the bricks before it */
} brick;

/* Samples that one thread claimed at once, and where their segments lie. */
typedef struct {
    int32_t thread;
    size_t first, count;
} unit;

/* Records of the pages that one thread owns. */
typedef struct {
    uint32_t page_first, page_end; /* ranks of the owned pages */
    int64_t record_first, records;
    /* bitmap: for every page 2^page_bits bits and, a word, the records before it */
    uint64_t *bits;
    uint32_t *prefix;
    size_t word_capacity;
    quad *sums;
    size_t sum_capacity;
    /* radix: rank id << 32 | place in visiting order, and what lies at that place */
    uint64_t *pairs, *spare;
    uint32_t *samples, *counts;
    size_t event_count, event_capacity;
} owner;

typedef struct {
    uint32_t *chunk, *local, *contributors;
    double *sum_intensity, *sum_variance, *sum_weight;
} columns;

struct mapping_context {
    mapping_options options;
    prepared_grid grid;
    mapping_job job;
    mapping_counters counters;
    const instruction_table *instructions;
    bool has_result, use_bitmap, use_flat;
    int page_bits;

    brick *bricks;
    size_t brick_count, brick_capacity;
    unit *units;
    size_t unit_count, unit_capacity;
    int64_t unit_samples; /* 0: a unit is a brick */
    atomic_size_t next_unit;
    atomic_int failure; /* first status other than MAPPING_OK of a worker */

    uint64_t *pages; /* all touched, ascending */
    size_t page_count, page_capacity;
    uint32_t *ranks[MAX_THREADS]; /* a thread's slot -> rank of its page */
    size_t rank_capacity[MAX_THREADS];

    mapper mappers[MAX_THREADS];
    owner owners[MAX_THREADS];
    columns out;

    pthread_mutex_t lock;
    pthread_cond_t start, done;
    pthread_t helpers[MAX_THREADS];
    int helper_count, running;
    uint64_t round;
    bool stopping;
    void (*work)(mapping_context *, int);
    int work_threads;
};

const char *mapping_source_digest(void)
{
    return HARNESS_SOURCE_DIGEST;
}

/* ------------------------------------------------------------------ threads */

typedef struct {
    mapping_context *context;
    int number;
    uint64_t round; /* the last round that began before this helper */
} helper_start;

static void *help(void *argument)
{
    const helper_start begun = *(helper_start *)argument;
    mapping_context *c = begun.context;
    uint64_t seen = begun.round;
    free(argument);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->round == seen && !c->stopping)
            pthread_cond_wait(&c->start, &c->lock);
        if (c->stopping)
            break;
        seen = c->round;
        if (begun.number >= c->work_threads)
            continue;
        pthread_mutex_unlock(&c->lock);
        c->work(c, begun.number);
        pthread_mutex_lock(&c->lock);
        if (--c->running == 0)
            pthread_cond_signal(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Have at least threads - 1 helpers; they stay until the context ends. */
static int start_helpers(mapping_context *c, int threads)
{
    while (c->helper_count < threads - 1) {
        helper_start *begin = malloc(sizeof *begin);
        if (begin == NULL)
            return MAPPING_NO_MEMORY;
        *begin = (helper_start){c, c->helper_count + 1, c->round};
        if (pthread_create(&c->helpers[c->helper_count], NULL, help, begin) != 0) {
            free(begin);
            return MAPPING_NO_THREAD;
        }
        c->helper_count++;
    }
    return MAPPING_OK;
}

/* Run work(c, 0) … work(c, threads - 1) at the same time; the caller is thread 0. */
static void in_parallel(mapping_context *c, void (*work)(mapping_context *, int))
{
    const int threads = c->options.threads;
    if (threads > 1) {
        pthread_mutex_lock(&c->lock);
        c->work = work;
        c->work_threads = threads;
        c->running = threads - 1;
        c->round++;
        pthread_cond_broadcast(&c->start);
        pthread_mutex_unlock(&c->lock);
    }
    work(c, 0);
    if (threads > 1) {
        pthread_mutex_lock(&c->lock);
        while (c->running > 0)
            pthread_cond_wait(&c->done, &c->lock);
        pthread_mutex_unlock(&c->lock);
    }
}

/* ------------------------------------------------------------------ life */

static void free_flat(flat_space *w)
{
    free(w->planes);
    free(w->finite);
    free(w->line);
    free(w->node_memory);
    free(w->centres);
    free(w->leaves);
    free(w->round_ids);
    free(w->round_counts);
    free(w->mapped[0]);
    free(w->mapped[1]);
    free(w->blends);
    memset(w, 0, sizeof *w);
}

int mapping_create(mapping_context **context)
{
    if (context == NULL)
        return MAPPING_BAD_ARGUMENT;
    *context = NULL;
    mapping_context *c = calloc(1, sizeof *c);
    if (c == NULL)
        return MAPPING_NO_MEMORY;
    if (pthread_mutex_init(&c->lock, NULL) != 0)
        goto no_lock;
    if (pthread_cond_init(&c->start, NULL) != 0)
        goto no_start;
    if (pthread_cond_init(&c->done, NULL) != 0)
        goto no_done;
    *context = c;
    return MAPPING_OK;
no_done:
    pthread_cond_destroy(&c->start);
no_start:
    pthread_mutex_destroy(&c->lock);
no_lock:
    free(c);
    return MAPPING_NO_THREAD;
}

void mapping_destroy(mapping_context *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_broadcast(&c->start);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->helper_count; i++)
        pthread_join(c->helpers[i], NULL);
    for (int i = 0; i < MAX_THREADS; i++) {
        mapper *m = &c->mappers[i];
        owner *o = &c->owners[i];
        void *all[] = {m->leaves,         m->cache,   m->events.ids, m->events.meta, m->events.counts, m->pages.pages,
                       m->pages.table,    m->segments, m->sorting,   o->bits,        o->prefix,        o->sums,
                       o->pairs,          o->spare,   o->samples,    o->counts,      c->ranks[i]};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            free(all[k]);
        free_flat(&m->flat);
    }
    free(c->pages);
    free(c->bricks);
    free(c->units);
    pthread_cond_destroy(&c->done);
    pthread_cond_destroy(&c->start);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Make room for count elements of size bytes; the content is not kept. */
static int reserve(void **array, size_t *capacity, size_t count, size_t size)
{
    if (count <= *capacity)
        return MAPPING_OK;
    free(*array);
    *array = NULL;
    *capacity = 0;
    if (count > SIZE_MAX / size || (*array = malloc(count * size)) == NULL)
        return MAPPING_NO_MEMORY;
    *capacity = count;
    return MAPPING_OK;
}

/* ------------------------------------------------------------------ checks */

static int bits_for(uint64_t count) /* smallest b >= 0 with 2^b >= count */
{
    int b = 0;
    while (b < 64 && (UINT64_C(1) << b) < count)
        b++;
    return b;
}

static int prepare_grid(const mapping_grid *given, prepared_grid *g)
{
    uint64_t locals = 1, chunks = 1;
    int bits[3];

    memset(g, 0, sizeof *g);
    g->powers = true;
    for (int k = 0; k < 3; k++) {
        if (!isfinite(given->minimum[k]) || !isfinite(given->step[k]) || !(given->step[k] > 0.0) || given->shape[k] < 1 ||
            given->chunk[k] < 1)
            return MAPPING_BAD_ARGUMENT;
        if (given->shape[k] > INT64_C(1) << 52 || given->chunk[k] > (int64_t)UINT32_MAX)
            return MAPPING_GRID_TOO_LARGE;
        const uint64_t shape = (uint64_t)given->shape[k], edge = (uint64_t)given->chunk[k];
        g->minimum[k] = given->minimum[k];
        g->step[k] = given->step[k];
        g->limit[k] = (double)given->shape[k];
        g->chunk[k] = edge;
        g->chunks[k] = (shape + edge - 1) / edge;
        g->chunk_bits[k] = bits_for(edge);
        g->powers &= (UINT64_C(1) << g->chunk_bits[k]) == edge;
        bits[k] = bits_for(shape) > 1 ? bits_for(shape) : 1;
        if (edge > UINT32_MAX / locals || g->chunks[k] > UINT32_MAX / chunks)
            return MAPPING_GRID_TOO_LARGE;
        locals *= edge;
        chunks *= g->chunks[k];
    }
    if (bits[0] + bits[1] + bits[2] > 63)
        return MAPPING_GRID_TOO_LARGE;
    g->shift_y = bits[2];
    g->shift_x = bits[1] + bits[2];
    g->mask_z = (UINT64_C(1) << bits[2]) - 1;
    g->mask_y = (UINT64_C(1) << bits[1]) - 1;
    g->bits_local = bits_for(locals);
    g->bits_chunk = bits_for(chunks);
    g->flat = given->shape[0] <= 1 << 30 && given->shape[1] <= 1 << 30 && given->shape[2] <= 1 << 30;
    return MAPPING_OK;
}

int mapping_check_grid(const mapping_grid *grid)
{
    prepared_grid ignored;
    return grid == NULL ? MAPPING_BAD_ARGUMENT : prepare_grid(grid, &ignored);
}

int64_t mapping_bytes_per_sample(int32_t depth, int32_t continuous, int32_t precheck)
{
    if (depth < 0 || depth > MAX_DEPTH)
        return 0;
    int64_t leaves = INT64_C(1) << (depth * (continuous ? 3 : 2));
    if (precheck == MAPPING_PRECHECK_RECORDS && leaves > RESERVED_RECORDS)
        leaves = RESERVED_RECORDS;
    return SAMPLE_BYTES + 2 * leaves * RECORD_BYTES;
}

static int check(const mapping_options *o, const mapping_job *j)
{
    if (o->depth < 0 || o->depth > MAX_DEPTH || o->threads < 1 || o->threads > MAX_THREADS || o->work_block < 0 ||
        o->budget < 0 || o->subdivision < MAPPING_CORNER_PASSING || o->subdivision > MAPPING_FLAT ||
        o->precheck < MAPPING_PRECHECK_RECORDS || o->precheck > MAPPING_PRECHECK_LEAVES ||
        o->accumulate < MAPPING_ACCUMULATE_AUTO || o->accumulate > MAPPING_BITMAP || o->instructions < MAPPING_BEST ||
        o->instructions > MAPPING_AVX512 || o->order < MAPPING_BRICKS || o->order > MAPPING_FLAT_RUNS ||
        (o->filter & ~1) != 0 || (o->reject & ~1) != 0 || (o->count_blocks & ~1) != 0)
        return MAPPING_BAD_ARGUMENT;
    if (j->frames < 1 || j->rows < 1 || j->columns < 1 || j->row < 0 || j->column < 0 || j->stride < j->columns ||
        j->intensity == NULL || j->variance == NULL || j->rays == NULL || j->tables == NULL || j->stationary == NULL)
        return MAPPING_BAD_ARGUMENT;
    const int64_t most = INT64_C(1) << 32;
    if (j->frames >= most || j->rows >= most / j->frames || j->columns >= most / (j->frames * j->rows) ||
        j->row > most || j->column > most)
        return MAPPING_BAD_ARGUMENT;
    if (j->rows > 1 && j->stride > (INT64_MAX / 8 - j->columns) / (j->rows - 1)) /* no such frame fits an address space */
        return MAPPING_BAD_ARGUMENT;
    bool continuous = false;
    for (int64_t f = 0; f < j->frames; f++) {
        if (j->intensity[f] == NULL || j->variance[f] == NULL || (j->mask != NULL && j->mask[f] == NULL))
            return MAPPING_BAD_ARGUMENT;
        continuous |= !j->stationary[f];
    }
    if (mapping_bytes_per_sample(o->depth, continuous, o->precheck) > o->budget / (j->frames * j->rows * j->columns))
        return MAPPING_OVER_BUDGET;
    return MAPPING_OK;
}

/* ------------------------------------------------------------------ instruction sets */

int mapping_best_instructions(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return MAPPING_AVX512;
    if (avx2)
        return MAPPING_AVX2;
#endif
    return MAPPING_PLAIN;
}

const instruction_table *mapping_instructions_for(int wanted)
{
    const int best = mapping_best_instructions();
    if (wanted == MAPPING_BEST)
        wanted = best;
    if (wanted > best)
        return NULL;
#if defined(__x86_64__) && defined(__GNUC__)
    if (wanted == MAPPING_AVX512)
        return &mapping_avx512;
    if (wanted == MAPPING_AVX2)
        return &mapping_avx2;
#endif
    return &mapping_plain;
}

/* ------------------------------------------------------------------ visiting order */

static int lay_bricks(mapping_context *c)
{
    const mapping_job *j = &c->job;
    const bool runs = c->options.order == MAPPING_FLAT_RUNS;
    const int64_t height = runs ? 1 : MAPPING_BRICK; /* flat runs are made of pieces of rows */
    const int64_t first_row = j->row / height, last_row = (j->row + j->rows - 1) / height;
    const int64_t first_column = j->column / MAPPING_BRICK, last_column = (j->column + j->columns - 1) / MAPPING_BRICK;
    const size_t count = (size_t)((last_row - first_row + 1) * (last_column - first_column + 1));
    const int status = reserve((void **)&c->bricks, &c->brick_capacity, count, sizeof *c->bricks);
    if (status != MAPPING_OK)
        return status;
    c->brick_count = count;
    int64_t pixels = 0;
    brick *next = c->bricks;
    for (int64_t y = first_row; y <= last_row; y++)
        for (int64_t x = first_column; x <= last_column; x++) {
            const int64_t top = y * height > j->row ? y * height - j->row : 0;
            const int64_t left = x * MAPPING_BRICK > j->column ? x * MAPPING_BRICK - j->column : 0;
            int64_t bottom = (y + 1) * height - j->row, right = (x + 1) * MAPPING_BRICK - j->column;
            bottom = bottom < j->rows ? bottom : j->rows;
            right = right < j->columns ? right : j->columns;
            *next++ = (brick){top, bottom - top, left, right - left, pixels};
            pixels += (bottom - top) * (right - left);
        }
    c->unit_samples = c->options.work_block;
    if (runs && c->unit_samples == 0)
        c->unit_samples = 16384 >> c->options.depth;
    c->unit_count = c->unit_samples == 0 ? count : (size_t)((pixels * j->frames - 1) / c->unit_samples + 1);
    return reserve((void **)&c->units, &c->unit_capacity, c->unit_count, sizeof *c->units);
}

/* The last brick that begins at or before a pixel in the order of bricks. */
static size_t brick_at(const mapping_context *c, int64_t pixel)
{
    size_t low = 0, high = c->brick_count;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (c->bricks[middle].first <= pixel)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ------------------------------------------------------------------ pages */

/* A voxel's number in the order of the records: chunk first, then its place in the chunk. */
static inline uint64_t key_of(const prepared_grid *g, uint64_t id)
{
    const uint64_t n[3] = {id >> g->shift_x, id >> g->shift_y & g->mask_y, id & g->mask_z};
    uint64_t chunk = 0, local = 0;
    if (g->powers) {
        for (int k = 0; k < 3; k++) {
            chunk = chunk * g->chunks[k] + (n[k] >> g->chunk_bits[k]);
            local = local << g->chunk_bits[k] | (n[k] & (g->chunk[k] - 1));
        }
    } else {
        for (int k = 0; k < 3; k++) {
            chunk = chunk * g->chunks[k] + n[k] / g->chunk[k];
            local = local * g->chunk[k] + n[k] % g->chunk[k];
        }
    }
    return chunk << g->bits_local | local;
}

static inline size_t hash_page(uint64_t page, size_t size)
{
    return (size_t)((page * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (size - 1);
}

/* The slot of a page, a new one if need be; UINT32_MAX when an allocation failed. */
static uint32_t slot_of(page_list *p, uint64_t page)
{
    if (p->count > 0 && p->last_page == page)
        return p->last_slot;
    if (p->count == p->capacity || 2 * p->count >= p->table_size) {
        const size_t capacity = p->capacity == 0 ? 256 : 2 * p->capacity, size = 4 * capacity;
        uint64_t *pages = realloc(p->pages, capacity * sizeof *pages);
        if (pages == NULL)
            return UINT32_MAX;
        p->pages = pages;
        p->capacity = capacity;
        uint32_t *table = calloc(size, sizeof *table);
        if (table == NULL)
            return UINT32_MAX;
        free(p->table);
        p->table = table;
        p->table_size = size;
        for (size_t s = 0; s < p->count; s++) {
            size_t h = hash_page(p->pages[s], size);
            while (table[h] != 0)
                h = (h + 1) & (size - 1);
            table[h] = (uint32_t)s + 1;
        }
    }
    size_t h = hash_page(page, p->table_size);
    while (p->table[h] != 0 && p->pages[p->table[h] - 1] != page)
        h = (h + 1) & (p->table_size - 1);
    if (p->table[h] == 0) {
        p->pages[p->count++] = page;
        p->table[h] = (uint32_t)p->count;
    }
    p->last_page = page;
    p->last_slot = p->table[h] - 1;
    return p->last_slot;
}

/* The event id of a key; sets m->failed. */
static inline uint32_t place_key(mapper *m, uint64_t key)
{
    const uint32_t slot = slot_of(&m->pages, key >> m->page_bits);
    m->failed |= slot == UINT32_MAX;
    return slot << m->page_bits | (uint32_t)(key & ((UINT64_C(1) << m->page_bits) - 1));
}

/* ------------------------------------------------------------------ phase 1: samples to events */

bool grow_events(event_list *e, size_t more)
{
    const size_t capacity = 2 * (e->capacity + more);
    uint32_t **arrays[] = {&e->ids, &e->meta, &e->counts};
    for (int k = 0; k < (e->counts != NULL ? 3 : 2); k++) {
        uint32_t *grown = realloc(*arrays[k], capacity * sizeof *grown);
        if (grown == NULL)
            return false;
        *arrays[k] = grown;
    }
    e->capacity = capacity;
    return true;
}

/* Begin a run of events of one brick and frame. */
static bool open_segment(mapper *m, size_t brick_number, int64_t frame)
{
    if (m->segment_count == m->segment_capacity) {
        const size_t capacity = m->segment_capacity == 0 ? 256 : 2 * m->segment_capacity;
        segment *grown = realloc(m->segments, capacity * sizeof *grown);
        if (grown == NULL)
            return false;
        m->segments = grown;
        m->segment_capacity = capacity;
    }
    m->segments[m->segment_count++] = (segment){(uint32_t)brick_number, (uint32_t)frame, m->events.count, 0};
    return true;
}

static bool add_events(mapper *m, uint32_t pixel)
{
    merge_leaves(m);
    event_list *e = &m->events;
    if (!reserve_events(e, m->leaf_count))
        return false;
    for (size_t i = 0; i < m->leaf_count; i++, e->count++) {
        e->ids[e->count] = place_key(m, key_of(m->grid, m->leaves[i].id));
        e->meta[e->count] = pixel << META_COUNT_BITS | (e->counts == NULL ? m->leaves[i].count : 0);
        if (e->counts != NULL)
            e->counts[e->count] = m->leaves[i].count;
    }
    return !m->failed;
}

static inline bool admits(double intensity, double variance)
{
    return isfinite(intensity) && isfinite(variance) && variance >= 0.0;
}

/* Map pixels [begin, end) of a brick's frame, counted row by row, by recursion; false when an allocation failed. */
static bool map_recursively(mapping_context *c, mapper *m, const brick *b, int64_t frame, int64_t begin, int64_t end)
{
    const mapping_job *j = &c->job;
    const int depth = c->options.depth;
    const bool stationary = depth == 0 || j->stationary[frame];

    m->table = j->tables + frame * 12 * ((INT64_C(2) << depth) + 1);
    for (int64_t k = begin; k < end; k++) {
        const int64_t y = k / b->columns, x = k % b->columns, row = b->row + y, column = b->column + x;
        const int64_t place = row * j->stride + column;
        const double *upper = j->rays + (row * (j->columns + 1) + column) * 3, *lower = upper + (j->columns + 1) * 3;
        m->counters.samples++;
        if ((j->mask != NULL && j->mask[frame][place]) || !admits(j->intensity[frame][place], j->variance[frame][place]))
            continue;
        bool finite = true;
        for (int i = 0; i < 6; i++)
            finite &= isfinite(upper[i]) && isfinite(lower[i]);
        if (!finite) /* every node of the pixel would be NaN */
            continue;
        memcpy(m->corner[0], upper, sizeof m->corner[0]);
        memcpy(m->corner[1], lower, sizeof m->corner[0]);
        memcpy(m->corner[2], upper + 3, sizeof m->corner[0]);
        memcpy(m->corner[3], lower + 3, sizeof m->corner[0]);
        m->counters.valid++;
        m->leaf_count = 0;
        m->leaf_total = 0;
        m->measured = false;
        if (depth == 0)
            subdivide_centre(m);
        else if (c->options.subdivision == MAPPING_CORNER_CACHE)
            subdivide_cached(m, stationary);
        else
            subdivide_passing(m, stationary);
        m->counters.leaves += m->leaf_total;
        if (m->leaf_total > m->counters.leaves_max)
            m->counters.leaves_max = m->leaf_total;
        if (m->failed || !add_events(m, (uint32_t)(y * FLAT_WIDTH + x)))
            return false;
    }
    return true;
}

/* ---- the flat lattice's frame: rays of a brick, the box of its voxels, the filter's margin */

/* Corner rays of a brick into planes. */
static void load_planes(const mapping_context *c, mapper *m, size_t number)
{
    const brick *b = &c->bricks[number];
    if (m->flat.brick == (int64_t)number)
        return;
    m->flat.brick = (int64_t)number;
    m->flat.chord = -1.0;
    const int64_t stride = 3 * (c->job.columns + 1);
    c->instructions->load(&m->flat, c->job.rays + b->row * stride + b->column * 3, stride, (int)b->rows, (int)b->columns);
}

/* Choose a box of voxels that should hold the frame's; false when ids relative to it would not fit. */
static bool choose_box(const mapping_context *c, const flat_space *w, const brick *b, flat_task *t)
{
    const prepared_grid *g = &c->grid;
    double low[3] = {INFINITY, INFINITY, INFINITY}, high[3] = {-INFINITY, -INFINITY, -INFINITY};
    const int last = 2 << t->depth;
    const int positions[3] = {last / 2, 0, last};
    for (int p = 0; p < (t->stationary ? 1 : 3); p++) {
        const double *a = t->table + 12 * positions[p];
        for (int y = 0; y < 5; y++)
            for (int x = 0; x < 5; x++) {
                const double *r = w->planes + (size_t)(y * b->rows / 4) * 3 * FLAT_COLUMNS + x * b->columns / 4;
                for (int k = 0; k < 3; k++) {
                    const double q = (((a[4 * k] * r[0] + a[4 * k + 1] * r[FLAT_COLUMNS]) +
                                       a[4 * k + 2] * r[2 * FLAT_COLUMNS] + a[4 * k + 3]) -
                                      g->minimum[k]) /
                                     g->step[k];
                    low[k] = q < low[k] ? q : low[k];
                    high[k] = q > high[k] ? q : high[k];
                }
            }
    }
    int bits[3];
    for (int k = 0; k < 3; k++) {
        const double slack = 2.0 + 0.1 * (high[k] - low[k]);
        double from = floor(low[k] - slack), to = floor(high[k] + slack) + 1.0;
        from = from > 0.0 ? from : 0.0;
        to = to < g->limit[k] ? to : g->limit[k];
        if (!(to - from <= 1 << 28))
            return false;
        if (to <= from) /* outside the grid: any box will do */
            from = 0.0, to = 1.0;
        const int64_t edge = g->powers ? (int64_t)g->chunk[k] : 1;
        const int64_t origin = (int64_t)from / edge * edge;
        bits[k] = bits_for((uint64_t)((int64_t)to - origin));
        if (g->powers && bits[k] < g->chunk_bits[k])
            bits[k] = g->chunk_bits[k];
        /* ids have this many bits anyhow, so the box may as well fill them */
        const int64_t room = (int64_t)g->limit[k] - origin, full = INT64_C(1) << bits[k];
        t->origin[k] = (int32_t)origin;
        t->extent[k] = (int32_t)(full < room ? full : room);
        t->shape[k] = (int32_t)g->limit[k];
    }
    t->shift[1] = bits[2];
    t->shift[0] = bits[1] + bits[2];
    return bits[0] + bits[1] + bits[2] <= FLAT_BITS;
}

/* The filter's distance from a voxel edge that makes a decision certain (mapping_flat.inc), whether the box holds every
 * coordinate and whether none can lie in the grid; false: no bound, so decide in double. */
static bool prepare_margin(const flat_space *w, flat_task *t)
{
    if (!(w->chord <= 0.25) || !(w->unit_error <= 1e-6))
        return false;
    t->margin = 0.0f;
    t->certain = true;
    t->outside = false;
    for (int k = 0; k < 3; k++) {
        double gradient = 0.0, size = 0.0, terms = 0.0, low = INFINITY, high = -INFINITY;
        for (int p = 0; p < t->filter_positions; p++) {
            const double *a = t->table + 12 * (t->filter_first + p) + 4 * k;
            const double g = sqrt(a[0] * a[0] + a[1] * a[1] + a[2] * a[2]) / t->step[k];
            const double first = a[0] * w->planes[0] + a[1] * w->planes[FLAT_COLUMNS] + a[2] * w->planes[2 * FLAT_COLUMNS];
            const double at = (first + a[3] - t->minimum[k]) / t->step[k] - t->origin[k];
            const double largest = g + (fabs(a[3]) + fabs(t->minimum[k])) / t->step[k] + t->origin[k];
            gradient = !(g <= gradient) ? g : gradient;
            terms = !(largest <= terms) ? largest : terms;
            size = !(fabs(at) + g * w->reach <= size) ? fabs(at) + g * w->reach : size;
            low = !(at - g * w->reach >= low) ? at - g * w->reach : low;
            high = !(at + g * w->reach <= high) ? at + g * w->reach : high;
        }
        t->certain &= low >= 0.5 && high <= t->extent[k] - 0.5;
        t->outside |= high + t->origin[k] < -0.5 || low + t->origin[k] > t->shape[k] + 0.5;
        /* ||r| - 1| <= ||r|^2 - 1|; eight roundings of 2^-24 instead of seven. The double evaluations, the exact one and
         * that of the corners, have a dozen roundings of 2^-53 each in terms of at most `terms` voxels. */
        const double margin = 1.01 * gradient * (w->chord / 4 + w->unit_error) + 8.08 * 0x1p-24 * size +
                              32 * 0x1p-53 * terms + 1e-7;
        if (!(margin < 0.25)) {
            t->certain = t->outside = false;
            return false;
        }
        t->margin = fmaxf(t->margin, (float)margin * 1.0001f);
    }
    return true;
}

bool place_events(const flat_task *t, size_t first)
{
    mapper *m = t->mapper;
    event_list *e = &m->events;
    const prepared_grid *g = m->grid;
    const uint32_t y_mask = (1u << (t->shift[0] - t->shift[1])) - 1, z_mask = (1u << t->shift[1]) - 1;
    if (t->slots == NULL) {
        for (size_t i = first; i < e->count; i++) {
            const uint32_t id = e->ids[i];
            const uint64_t x = (id >> t->shift[0]) + (uint64_t)t->origin[0];
            const uint64_t y = (id >> t->shift[1] & y_mask) + (uint64_t)t->origin[1];
            const uint64_t z = (id & z_mask) + (uint64_t)t->origin[2];
            e->ids[i] = place_key(m, key_of(g, x << g->shift_x | y << g->shift_y | z));
        }
        return !m->failed;
    }
    if (!find_slots(t, first, e->count - first))
        return false;
    const int *bits = g->chunk_bits;
    const uint32_t x_local = (1u << bits[0]) - 1, y_local = (1u << bits[1]) - 1, z_local = (1u << bits[2]) - 1;
    for (size_t i = first; i < e->count; i++) {
        const uint32_t x = e->ids[i] >> t->shift[0], y = e->ids[i] >> t->shift[1] & y_mask, z = e->ids[i] & z_mask;
        const uint32_t chunk = (x >> bits[0]) << t->chunk_shift[0] | (y >> bits[1]) << t->chunk_shift[1] | z >> bits[2];
        e->ids[i] = t->slots[chunk] | (x & x_local) << (bits[1] + bits[2]) | (y & y_local) << bits[2] | (z & z_local);
    }
    return true;
}

bool find_slots(const flat_task *t, size_t first, size_t count)
{
    mapper *m = t->mapper;
    const prepared_grid *g = m->grid;
    const int *bits = g->chunk_bits;
    const uint32_t y_mask = (1u << (t->shift[0] - t->shift[1])) - 1, z_mask = (1u << t->shift[1]) - 1;
    for (size_t i = first; i < first + count; i++) {
        const uint32_t id = m->events.ids[i];
        const uint32_t x = id >> t->shift[0], y = id >> t->shift[1] & y_mask, z = id & z_mask;
        const uint32_t chunk = (x >> bits[0]) << t->chunk_shift[0] | (y >> bits[1]) << t->chunk_shift[1] | z >> bits[2];
        if (t->slots[chunk] != UINT32_MAX)
            continue;
        const uint64_t n[3] = {(uint64_t)t->origin[0] + x, (uint64_t)t->origin[1] + y, (uint64_t)t->origin[2] + z};
        const uint32_t placed = place_key(m, key_of(g, n[0] << g->shift_x | n[1] << g->shift_y | n[2]));
        if (m->failed)
            return false;
        t->slots[chunk] = placed & ~((1u << m->page_bits) - 1);
    }
    return true;
}

#define BOX_CHUNKS 4096 /* most chunks of a box that are looked up in a table */

/* Map pixels [begin, end) of a brick's frame by the flat lattice; *mapped tells whether it could. */
static bool map_flat(mapping_context *c, mapper *m, size_t number, int64_t frame, int64_t begin, int64_t end, bool *mapped)
{
    const mapping_job *j = &c->job;
    const brick *b = &c->bricks[number];
    const prepared_grid *g = &c->grid;
    const mapping_counters before = m->counters;
    const size_t events = m->events.count;
    uint32_t slots[BOX_CHUNKS];
    flat_task t = {
        .mapper = m,
        .space = &m->flat,
        .planes = m->flat.planes,
        .table = j->tables + frame * 12 * ((INT64_C(2) << c->options.depth) + 1),
        .depth = c->options.depth,
        .side = 1 << c->options.depth,
        .stationary = c->options.depth == 0 || j->stationary[frame],
        .columns = (int)b->columns,
        .row_begin = (int)(begin / b->columns),
        .row_end = (int)((end - 1) / b->columns) + 1,
        .begin = begin,
        .end = end,
        .intensity = j->intensity[frame] + b->row * j->stride + b->column,
        .variance = j->variance[frame] + b->row * j->stride + b->column,
        .mask = j->mask == NULL ? NULL : j->mask[frame] + b->row * j->stride + b->column,
        .stride = j->stride,
        .minimum = g->minimum,
        .step = g->step,
    };
    *mapped = false;
    load_planes(c, m, number);
    if (!choose_box(c, &m->flat, b, &t))
        return true;
    t.filter_first = t.stationary ? t.side : 0;
    t.filter_positions = t.stationary ? 1 : 2 * t.side + 1;
    if (t.depth > 0 && (c->options.filter || c->options.reject)) {
        if (m->flat.chord < 0.0)
            c->instructions->measure(&m->flat, (int)b->rows, (int)b->columns);
        t.filter = prepare_margin(&m->flat, &t) && c->options.filter;
        if (t.outside && c->options.reject) {
            m->counters.samples += end - begin;
            m->counters.skipped += end - begin;
            *mapped = true;
            return true;
        }
    }
    if (g->powers && g->bits_local == m->page_bits) {
        const int z = t.shift[1] - g->chunk_bits[2], y = t.shift[0] - t.shift[1] - g->chunk_bits[1];
        const int bits = bits_for((uint64_t)t.extent[0]), x = bits > g->chunk_bits[0] ? bits - g->chunk_bits[0] : 0;
        if (x + y + z <= 12) {
            t.chunk_shift[0] = y + z;
            t.chunk_shift[1] = z;
            memset(slots, 0xff, sizeof *slots << (x + y + z));
            t.slots = slots;
        }
    }
    switch (c->instructions->map(&t)) {
    case FLAT_NO_MEMORY:
        return false;
    case FLAT_OVERFLOW: /* the estimate of the box was too small: begin again, some other way */
        m->counters = before;
        m->counters.boxes_missed++;
        m->events.count = events;
        return true;
    default:
        *mapped = true;
        return true;
    }
}

static bool prepare_flat(flat_space *w, int depth, bool continuous)
{
    if (w->planes != NULL && w->depth == depth && (w->continuous || !continuous)) {
        w->brick = -1;
        return true;
    }
    free_flat(w);
    const size_t side = (size_t)1 << depth, layers = continuous && depth > 0 ? side + 1 : 1;
    const size_t leaves_ = side * side * (continuous && depth > 0 ? side : 1);
    const size_t positions = continuous && depth > 0 ? 2 * side + 1 : 1;
    const size_t nodes = (side + 1) * layers * side * FLAT_COLUMNS;
    w->depth = depth;
    w->continuous = continuous;
    w->leaf_count = (int)leaves_;
    w->brick = -1;
    w->planes = calloc((MAPPING_BRICK + 1) * 3 * FLAT_COLUMNS + 16, sizeof *w->planes);
    w->finite = calloc(MAPPING_BRICK * FLAT_WIDTH + 16, 1);
    w->line = calloc(3 * FLAT_COLUMNS + 16, sizeof *w->line);
    w->node_memory = calloc(nodes + 16, sizeof *w->node_memory);
    w->centres = calloc(leaves_ * FLAT_COLUMNS, sizeof *w->centres);
    w->leaves = calloc(leaves_ * 16, sizeof *w->leaves);
    w->round_ids = calloc((leaves_ + 4) * 16, sizeof *w->round_ids);
    w->round_counts = calloc((leaves_ + 4) * 16, sizeof *w->round_counts);
    for (int k = 0; k < 2; k++)
        w->mapped[k] = calloc(positions * 3 * FLAT_COLUMNS + 16, sizeof *w->mapped[k]);
    w->blends = calloc(positions * 3 * FLAT_COLUMNS + 16, sizeof *w->blends);
    if (w->planes == NULL || w->finite == NULL || w->line == NULL || w->node_memory == NULL || w->centres == NULL ||
        w->leaves == NULL || w->round_ids == NULL || w->round_counts == NULL || w->mapped[0] == NULL ||
        w->mapped[1] == NULL || w->blends == NULL) {
        free_flat(w);
        return false;
    }
    for (size_t u = 0; u <= side; u++)
        w->nodes[u] = w->node_memory + u * layers * side * FLAT_COLUMNS;
    w->bytes = ((MAPPING_BRICK + 4) * 3 * FLAT_COLUMNS + 32) * sizeof(double) + MAPPING_BRICK * FLAT_WIDTH +
               (nodes + leaves_ * (FLAT_COLUMNS + 48)) * sizeof(int32_t) + 9 * positions * FLAT_COLUMNS * sizeof(float);
    return true;
}

/* ---- units */

static bool map_span(mapping_context *c, mapper *m, size_t number, int64_t frame, int64_t begin, int64_t end)
{
    const brick *b = &c->bricks[number];
    bool mapped = false;
    if (!open_segment(m, number, frame))
        return false;
    if (c->use_flat && !map_flat(c, m, number, frame, begin, end, &mapped))
        return false;
    if (!mapped && !map_recursively(c, m, b, frame, begin, end))
        return false;
    segment *s = &m->segments[m->segment_count - 1];
    s->count = m->events.count - s->first;
    return true;
}

static bool map_unit(mapping_context *c, mapper *m, size_t number)
{
    const int64_t frames = c->job.frames, plane = c->job.rows * c->job.columns, all = plane * frames;
    const bool runs = c->options.order == MAPPING_FLAT_RUNS;
    int64_t begin, end;
    if (c->unit_samples == 0) {
        const brick *b = &c->bricks[number];
        begin = b->first * frames;
        end = begin + b->rows * b->columns * frames;
    } else {
        begin = (int64_t)number * c->unit_samples;
        end = all - begin < c->unit_samples ? all : begin + c->unit_samples;
    }
    while (begin < end) {
        const size_t at = brick_at(c, runs ? begin % plane : begin / frames);
        const brick *b = &c->bricks[at];
        const int64_t pixels = b->rows * b->columns;
        const int64_t into = runs ? begin % plane - b->first : begin - b->first * frames;
        const int64_t frame = runs ? begin / plane : into / pixels, first = into % pixels;
        const int64_t stop = end - begin < pixels - first ? first + end - begin : pixels;
        if (!map_span(c, m, at, frame, first, stop))
            return false;
        begin += stop - first;
    }
    return true;
}

/* Distinct ids among a unit's events. */
static bool count_block_records(mapper *m, size_t first)
{
    const size_t n = m->events.count - first;
    if (m->sorting_capacity < 2 * n) {
        free(m->sorting);
        m->sorting = malloc(2 * n * sizeof *m->sorting);
        m->sorting_capacity = m->sorting == NULL ? 0 : 2 * n;
        if (m->sorting == NULL)
            return false;
    }
    uint32_t *from = m->sorting, *to = m->sorting + n;
    if (n > 0)
        memcpy(from, m->events.ids + first, n * sizeof *from);
    for (int shift = 0; shift < 32; shift += 8) {
        size_t counts[257] = {0};
        for (size_t i = 0; i < n; i++)
            counts[(from[i] >> shift & 255) + 1]++;
        for (int d = 0; d < 255; d++)
            counts[d + 1] += counts[d];
        for (size_t i = 0; i < n; i++)
            to[counts[from[i] >> shift & 255]++] = from[i];
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    for (size_t i = 0; i < n; i++)
        m->counters.block_records += i == 0 || from[i] != from[i - 1];
    return true;
}

enum { TOO_MANY_PAGES = -1 }; /* a status within a run: begin again with smaller pages */

static void fail(mapping_context *c, int status)
{
    int expected = MAPPING_OK;
    atomic_compare_exchange_strong(&c->failure, &expected, status);
}

static void map_units(mapping_context *c, int thread)
{
    mapper *m = &c->mappers[thread];
    const size_t share = (size_t)(c->options.budget / c->options.threads) / (2 * sizeof(uint64_t));
    while (atomic_load(&c->failure) == MAPPING_OK) {
        const size_t number = atomic_fetch_add(&c->next_unit, 1);
        if (number >= c->unit_count)
            return;
        const size_t first = m->segment_count, first_event = m->events.count;
        if (!map_unit(c, m, number) || (c->options.count_blocks && !count_block_records(m, first_event))) {
            fail(c, MAPPING_NO_MEMORY);
            return;
        }
        c->units[number] = (unit){thread, first, m->segment_count - first};
        if (m->pages.count >= UINT64_C(1) << (32 - c->page_bits)) {
            fail(c, TOO_MANY_PAGES);
            return;
        }
        /* The precheck reserves RESERVED_RECORDS events a sample; a job that outgrows the whole budget ends here. */
        if (m->events.count > share + 4 * SPLIT_SAMPLES) {
            fail(c, MAPPING_OVER_BUDGET);
            return;
        }
    }
}

static int prepare_mappers(mapping_context *c)
{
    const int depth = c->options.depth;
    const size_t side = (size_t)(2 << depth) + 1;
    const bool cached = c->options.subdivision == MAPPING_CORNER_CACHE && depth >= 1 && depth <= 3;
    bool continuous = false;
    for (int64_t f = 0; f < c->job.frames; f++)
        continuous |= !c->job.stationary[f];
    c->use_flat = c->options.subdivision == MAPPING_FLAT && c->grid.flat &&
                  depth <= (continuous ? FLAT_DEPTH_CONTINUOUS : FLAT_DEPTH);
    for (int i = 0; i < c->options.threads; i++) {
        mapper *m = &c->mappers[i];
        if (!cached || m->cache_side != side) {
            free(m->cache);
            m->cache = NULL;
            m->cache_side = 0;
        }
        if (cached && m->cache == NULL) {
            m->cache = calloc(side * side * side, sizeof *m->cache); /* three-dimensional for stationary frames too */
            if (m->cache == NULL)
                return MAPPING_NO_MEMORY;
            m->cache_side = side;
            m->generation = 0;
        }
        if (m->leaves == NULL) {
            m->leaves = malloc(256 * sizeof *m->leaves);
            if (m->leaves == NULL)
                return MAPPING_NO_MEMORY;
            m->leaf_capacity = 256;
        }
        const bool wide = continuous && 3 * depth >= META_COUNT_BITS;
        if (wide != (m->events.counts != NULL)) {
            free(m->events.counts);
            m->events.counts = wide ? malloc((m->events.capacity + 1) * sizeof *m->events.counts) : NULL;
            if (wide && m->events.counts == NULL)
                return MAPPING_NO_MEMORY;
        }
        if (c->use_flat && !prepare_flat(&m->flat, depth, continuous))
            return MAPPING_NO_MEMORY;
        m->grid = &c->grid;
        m->depth = depth;
        m->page_bits = c->page_bits;
        m->unit = ldexp(1.0, -depth - 1);
        m->reject = c->options.reject;
        m->failed = false;
        m->events.count = 0;
        m->segment_count = 0;
        if (m->pages.count > 0)
            memset(m->pages.table, 0, m->pages.table_size * sizeof *m->pages.table);
        m->pages.count = 0;
        memset(&m->counters, 0, sizeof m->counters);
    }
    return MAPPING_OK;
}

/* ------------------------------------------------------------------ phase 2: pages in order, records counted */

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int by_value32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* All threads' pages in ascending order, and where each thread's slots lie in it. */
static int rank_pages(mapping_context *c)
{
    const int threads = c->options.threads;
    size_t count = 0;
    for (int i = 0; i < threads; i++)
        count += c->mappers[i].pages.count;
    int status = reserve((void **)&c->pages, &c->page_capacity, count, sizeof *c->pages);
    if (status != MAPPING_OK)
        return status;
    count = 0;
    for (int i = 0; i < threads; i++) {
        const page_list *p = &c->mappers[i].pages;
        if (p->count > 0)
            memcpy(c->pages + count, p->pages, p->count * sizeof *p->pages);
        count += p->count;
    }
    if (count > 0)
        qsort(c->pages, count, sizeof *c->pages, by_value);
    c->page_count = 0;
    for (size_t i = 0; i < count; i++)
        if (i == 0 || c->pages[i] != c->pages[i - 1])
            c->pages[c->page_count++] = c->pages[i];
    if (c->page_count > UINT64_C(1) << (32 - c->page_bits))
        return TOO_MANY_PAGES;
    for (int i = 0; i < threads; i++) {
        const page_list *p = &c->mappers[i].pages;
        status = reserve((void **)&c->ranks[i], &c->rank_capacity[i], p->count, sizeof *c->ranks[i]);
        if (status != MAPPING_OK)
            return status;
        for (size_t s = 0; s < p->count; s++) {
            const uint64_t *found = bsearch(&p->pages[s], c->pages, c->page_count, sizeof *c->pages, by_value);
            c->ranks[i][s] = (uint32_t)(found - c->pages);
        }
    }
    return MAPPING_OK;
}

/* Give every thread a range of pages with about as many events; where the cuts lie cannot change a sum. */
static int split_pages(mapping_context *c)
{
    const int threads = c->options.threads;
    uint32_t *sample = NULL;
    size_t count = 0, events = 0;
    for (int i = 0; i < threads; i++)
        events += c->mappers[i].events.count;
    if (threads > 1) {
        sample = malloc(SPLIT_SAMPLES * sizeof *sample);
        if (sample == NULL)
            return MAPPING_NO_MEMORY;
        const size_t every = events / SPLIT_SAMPLES + 1;
        for (int i = 0; i < threads; i++)
            for (size_t k = 0; k < c->mappers[i].events.count && count < SPLIT_SAMPLES; k += every)
                sample[count++] = c->ranks[i][c->mappers[i].events.ids[k] >> c->page_bits];
        qsort(sample, count, sizeof *sample, by_value32);
    }
    for (int i = 0; i < threads; i++) {
        owner *o = &c->owners[i];
        o->page_first = i == 0 ? 0 : c->owners[i - 1].page_end;
        o->page_end = i == threads - 1 || count == 0 ? (uint32_t)c->page_count
                                                     : sample[count * (size_t)(i + 1) / (size_t)threads];
        if (o->page_end < o->page_first)
            o->page_end = o->page_first;
    }
    free(sample);
    c->use_bitmap = c->options.accumulate == MAPPING_BITMAP ||
                    (c->options.accumulate == MAPPING_ACCUMULATE_AUTO && events >= BITMAP_DENSITY * c->page_count);
    return MAPPING_OK;
}

static page_view view_pages(const mapping_context *c, const owner *o, int thread)
{
    return (page_view){.bits = o->bits,
                       .prefix = o->prefix,
                       .sums = o->sums,
                       .ranks = c->ranks[thread],
                       .page_first = o->page_first,
                       .page_end = o->page_end,
                       .page_bits = c->page_bits,
                       .all = o->page_first == 0 && o->page_end == c->page_count};
}

static int mark_records(mapping_context *c, owner *o)
{
    const size_t words = (size_t)(o->page_end - o->page_first) << (c->page_bits - 6);
    if (words == 0)
        return MAPPING_OK;
    if (words > o->word_capacity) {
        free(o->bits);
        free(o->prefix);
        o->bits = malloc(words * sizeof *o->bits);
        o->prefix = malloc(words * sizeof *o->prefix);
        o->word_capacity = o->bits != NULL && o->prefix != NULL ? words : 0;
        if (o->word_capacity == 0)
            return MAPPING_NO_MEMORY;
    }
    memset(o->bits, 0, words * sizeof *o->bits);
    for (int i = 0; i < c->options.threads; i++) {
        const page_view p = view_pages(c, o, i);
        c->instructions->mark(&p, c->mappers[i].events.ids, c->mappers[i].events.count);
    }
    const page_view p = view_pages(c, o, 0);
    o->records = c->instructions->rank(&p, words);
    if ((size_t)o->records > o->sum_capacity) {
        free(o->sums);
        o->sums = aligned_alloc(64, ((size_t)o->records + 1) / 2 * 64); /* a record must not straddle cache lines */
        o->sum_capacity = o->sums == NULL ? 0 : (size_t)o->records;
        if (o->sums == NULL)
            return MAPPING_NO_MEMORY;
    }
    return MAPPING_OK;
}

/* Stable radix sort by the upper half, least significant digit first; pairs in o->pairs afterwards. */
static void sort_pairs(owner *o, int bits)
{
    static const uint32_t digits = 1u << DIGIT_BITS;
    for (int shift = 32; shift < 32 + bits; shift += DIGIT_BITS) {
        uint32_t counts[1u << DIGIT_BITS] = {0};
        for (size_t i = 0; i < o->event_count; i++)
            counts[o->pairs[i] >> shift & (digits - 1)]++;
        if (counts[o->pairs[0] >> shift & (digits - 1)] == o->event_count)
            continue;
        uint32_t sum = 0;
        for (uint32_t d = 0; d < digits; d++) {
            const uint32_t here = counts[d];
            counts[d] = sum;
            sum += here;
        }
        for (size_t i = 0; i < o->event_count; i++)
            o->spare[counts[o->pairs[i] >> shift & (digits - 1)]++] = o->pairs[i];
        uint64_t *sorted = o->spare;
        o->spare = o->pairs;
        o->pairs = sorted;
    }
}

static int sort_records(mapping_context *c, owner *o)
{
    const int page_bits = c->page_bits;
    const uint32_t inside = (UINT32_C(1) << page_bits) - 1;
    size_t count = 0;
    o->event_count = 0;
    for (int i = 0; i < c->options.threads; i++) {
        const event_list *e = &c->mappers[i].events;
        for (size_t k = 0; k < e->count; k++) {
            const uint32_t page = c->ranks[i][e->ids[k] >> page_bits];
            count += page >= o->page_first && page < o->page_end;
        }
    }
    if (count == 0)
        return MAPPING_OK;
    if (count > UINT32_MAX)
        return MAPPING_OVER_BUDGET;
    if (count > o->event_capacity) {
        free(o->pairs);
        free(o->spare);
        free(o->samples);
        free(o->counts);
        o->pairs = malloc(count * sizeof *o->pairs);
        o->spare = malloc(count * sizeof *o->spare);
        o->samples = malloc(count * sizeof *o->samples);
        o->counts = malloc(count * sizeof *o->counts);
        o->event_capacity =
            o->pairs != NULL && o->spare != NULL && o->samples != NULL && o->counts != NULL ? count : 0;
        if (o->event_capacity == 0)
            return MAPPING_NO_MEMORY;
    }
    for (size_t u = 0; u < c->unit_count; u++) {
        const mapper *m = &c->mappers[c->units[u].thread];
        const uint32_t *ranks = c->ranks[c->units[u].thread];
        for (size_t n = 0; n < c->units[u].count; n++) {
            const segment *s = &m->segments[c->units[u].first + n];
            const brick *b = &c->bricks[s->brick];
            const int64_t corner = ((int64_t)s->frame * c->job.rows + b->row) * c->job.columns + b->column;
            for (size_t k = s->first; k < s->first + s->count; k++) {
                const uint32_t page = ranks[m->events.ids[k] >> page_bits], meta = m->events.meta[k];
                if (page < o->page_first || page >= o->page_end)
                    continue;
                const uint32_t pixel = meta >> META_COUNT_BITS, id = page << page_bits | (m->events.ids[k] & inside);
                o->pairs[o->event_count] = (uint64_t)id << 32 | o->event_count;
                o->samples[o->event_count] =
                    (uint32_t)(corner + (int64_t)(pixel / FLAT_WIDTH) * c->job.columns + pixel % FLAT_WIDTH);
                o->counts[o->event_count++] =
                    m->events.counts != NULL ? m->events.counts[k] : meta & ((1u << META_COUNT_BITS) - 1);
            }
        }
    }
    sort_pairs(o, page_bits + bits_for(c->page_count));
    o->records = 1;
    for (size_t i = 1; i < o->event_count; i++)
        o->records += o->pairs[i] >> 32 != o->pairs[i - 1] >> 32;
    return MAPPING_OK;
}

static void find_records(mapping_context *c, int thread)
{
    owner *o = &c->owners[thread];
    o->records = 0;
    const int status = c->use_bitmap ? mark_records(c, o) : sort_records(c, o);
    if (status != MAPPING_OK)
        fail(c, status);
}

static void add_counters(mapping_context *c)
{
    mapping_counters *sum = &c->counters;
    sum->bytes = (int64_t)(sizeof *c + c->brick_capacity * sizeof *c->bricks + c->unit_capacity * sizeof *c->units +
                           c->page_capacity * sizeof *c->pages);
    sum->blocks = (int64_t)c->unit_count;
    sum->pages = (int64_t)c->page_count;
    sum->bitmap = c->use_bitmap;
    for (int i = 0; i < c->options.threads; i++) {
        const mapping_counters *m = &c->mappers[i].counters;
        c->owners[i].record_first = sum->records;
        sum->records += c->owners[i].records;
        sum->samples += m->samples;
        sum->valid += m->valid;
        sum->evaluations += m->evaluations;
        sum->leaves += m->leaves;
        sum->fallbacks += m->fallbacks;
        sum->skipped += m->skipped;
        sum->boxes_missed += m->boxes_missed;
        sum->block_records += m->block_records;
        sum->events += (int64_t)c->mappers[i].events.count;
        if (m->leaves_max > sum->leaves_max)
            sum->leaves_max = m->leaves_max;
    }
    for (int i = 0; i < MAX_THREADS; i++) {
        const mapper *m = &c->mappers[i];
        const owner *o = &c->owners[i];
        sum->bytes += (int64_t)(m->events.capacity * (m->events.counts != NULL ? 12 : 8) +
                                m->leaf_capacity * sizeof *m->leaves + m->segment_capacity * sizeof *m->segments +
                                m->pages.capacity * 8 + m->pages.table_size * 4 + m->sorting_capacity * 4 + m->flat.bytes +
                                m->cache_side * m->cache_side * m->cache_side * sizeof *m->cache + c->rank_capacity[i] * 4 +
                                o->word_capacity * 12 + o->sum_capacity * sizeof *o->sums + o->event_capacity * 24);
    }
}

int mapping_run(mapping_context *c, const mapping_options *options, const mapping_grid *grid, const mapping_job *job,
                int64_t *records)
{
    if (c == NULL || options == NULL || grid == NULL || job == NULL || records == NULL)
        return MAPPING_BAD_ARGUMENT;
    *records = 0;
    c->has_result = false;
    memset(&c->counters, 0, sizeof c->counters);
    int status = check(options, job);
    if (status == MAPPING_OK)
        status = prepare_grid(grid, &c->grid);
    if (status != MAPPING_OK)
        return status;
    c->options = *options;
    c->job = *job;
    c->instructions = mapping_instructions_for(options->instructions);
    if (c->instructions == NULL)
        return MAPPING_BAD_ARGUMENT;
    if ((status = lay_bricks(c)) != MAPPING_OK || (status = start_helpers(c, options->threads)) != MAPPING_OK)
        return status;
    /* A page is a chunk where that is neither tiny nor huge; where too many are touched, it is a part of one. */
    c->page_bits = c->grid.bits_local < 6 ? 6 : c->grid.bits_local > 18 ? 18 : c->grid.bits_local;
    for (;;) {
        if ((status = prepare_mappers(c)) != MAPPING_OK)
            return status;
        atomic_store(&c->next_unit, 0);
        atomic_store(&c->failure, MAPPING_OK);
        in_parallel(c, map_units);
        status = atomic_load(&c->failure);
        if (status == MAPPING_OK)
            status = rank_pages(c);
        if (status != TOO_MANY_PAGES)
            break;
        if (c->page_bits == 6)
            return MAPPING_OVER_BUDGET; /* more than 2^26 pages touched */
        c->page_bits = c->page_bits > 12 ? 12 : 6;
    }
    if (status != MAPPING_OK || (status = split_pages(c)) != MAPPING_OK)
        return status;
    in_parallel(c, find_records);
    if ((status = atomic_load(&c->failure)) != MAPPING_OK)
        return status;
    add_counters(c);
    *records = c->counters.records;
    c->has_result = true;
    return MAPPING_OK;
}

/* ------------------------------------------------------------------ phase 3: sums */

static inline void write_key(const mapping_context *c, uint64_t key, int64_t r)
{
    c->out.chunk[r] = (uint32_t)(key >> c->grid.bits_local);
    c->out.local[r] = (uint32_t)(key & ((UINT64_C(1) << c->grid.bits_local) - 1));
}

static double leaf_weight(const mapping_context *c, int64_t frame)
{
    return ldexp(1.0, -c->options.depth * (c->job.stationary[frame] ? 2 : 3));
}

static void add_by_bitmap(mapping_context *c, owner *o)
{
    memset(o->sums, 0, (size_t)o->records * sizeof *o->sums);
    for (size_t u = 0; u < c->unit_count; u++) {
        const int thread = c->units[u].thread;
        const mapper *m = &c->mappers[thread];
        const page_view p = view_pages(c, o, thread);
        for (size_t n = 0; n < c->units[u].count; n++) {
            const segment *s = &m->segments[c->units[u].first + n];
            const brick *b = &c->bricks[s->brick];
            const int64_t corner = b->row * c->job.stride + b->column;
            const segment_view view = {
                .ids = m->events.ids + s->first,
                .meta = m->events.meta + s->first,
                .counts = m->events.counts == NULL ? NULL : m->events.counts + s->first,
                .count = s->count,
                .intensity = c->job.intensity[s->frame] + corner,
                .variance = c->job.variance[s->frame] + corner,
                .stride = c->job.stride,
                .scale = leaf_weight(c, s->frame),
            };
            c->instructions->add(&p, &view);
        }
    }
    int64_t r = 0;
    const size_t words = (size_t)1 << (c->page_bits - 6);
    for (uint32_t page = o->page_first; page < o->page_end; page++) {
        const uint64_t *bits = o->bits + (size_t)(page - o->page_first) * words;
        for (size_t w = 0; w < words; w++)
            for (uint64_t left = bits[w]; left != 0; left &= left - 1, r++) {
                const uint64_t place = w << 6 | (uint64_t)__builtin_ctzll(left);
                const int64_t at = o->record_first + r;
                write_key(c, c->pages[page] << c->page_bits | place, at);
                c->out.sum_intensity[at] = o->sums[r][0];
                c->out.sum_variance[at] = o->sums[r][1];
                c->out.sum_weight[at] = o->sums[r][2];
                c->out.contributors[at] = (uint32_t)o->sums[r][3];
            }
    }
}

static void add_by_order(mapping_context *c, const owner *o)
{
    const mapping_job *j = &c->job;
    const columns *out = &c->out;
    const uint32_t width = (uint32_t)j->columns, plane = (uint32_t)(j->rows * j->columns);
    const uint32_t inside = (UINT32_C(1) << c->page_bits) - 1;
    int64_t r = o->record_first - 1;
    for (size_t i = 0; i < o->event_count; i++) {
        const uint32_t id = (uint32_t)(o->pairs[i] >> 32), k = (uint32_t)o->pairs[i];
        if (i == 0 || id != (uint32_t)(o->pairs[i - 1] >> 32)) {
            r++;
            write_key(c, c->pages[id >> c->page_bits] << c->page_bits | (id & inside), r);
            out->sum_intensity[r] = out->sum_variance[r] = out->sum_weight[r] = 0.0;
            out->contributors[r] = 0;
        }
        const uint32_t frame = o->samples[k] / plane, rest = o->samples[k] % plane;
        const int64_t place = (int64_t)(rest / width) * j->stride + rest % width;
        const double w = o->counts[k] * leaf_weight(c, frame);
        out->sum_intensity[r] += w * j->intensity[frame][place];
        out->sum_variance[r] += w * w * j->variance[frame][place];
        out->sum_weight[r] += w;
        out->contributors[r]++;
    }
}

static void add_up(mapping_context *c, int thread)
{
    owner *o = &c->owners[thread];
    if (o->records == 0)
        return;
    if (c->use_bitmap)
        add_by_bitmap(c, o);
    else
        add_by_order(c, o);
}

int mapping_fetch(mapping_context *c, uint32_t *chunk, uint32_t *local, double *sum_intensity, double *sum_variance,
                  double *sum_weight, uint32_t *contributors)
{
    if (c == NULL)
        return MAPPING_BAD_ARGUMENT;
    if (!c->has_result)
        return MAPPING_NO_RESULT;
    if (c->counters.records > 0 && (chunk == NULL || local == NULL || sum_intensity == NULL || sum_variance == NULL ||
                                    sum_weight == NULL || contributors == NULL))
        return MAPPING_BAD_ARGUMENT;
    c->out = (columns){chunk, local, contributors, sum_intensity, sum_variance, sum_weight};
    in_parallel(c, add_up);
    return MAPPING_OK;
}

void mapping_count(const mapping_context *c, mapping_counters *counters)
{
    if (c != NULL && counters != NULL)
        *counters = c->counters;
}
