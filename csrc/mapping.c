/* The context of the mapping library: checks, bricks and work units, threads, and the sums in visiting order. */
#include "mapping_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_BYTES 40 /* six columns of a record, as a C struct */
#define RESERVED_RECORDS 4
#define SAMPLE_BYTES 128
#define DIGIT_BITS 11
#define SPLIT_SAMPLES 4096

/* A rectangle of the tile that is visited frame by frame, row by row. */
typedef struct {
    int64_t row, rows, column, columns;
    int64_t first; /* its first sample in visiting order */
} brick;

/* Samples that one thread claimed at once, and where their events lie. */
typedef struct {
    int32_t thread;
    size_t first, count;
} unit;

/* Events of the chunks that one thread owns, sorted by key, in visiting order within a key. */
typedef struct {
    event *events, *spare;
    size_t count, capacity;
    uint64_t chunk_first, chunk_end; /* owned chunk ids */
    int64_t record_first, records;
    bool failed;
} owner;

struct mapping_context {
    mapping_options options;
    mapping_grid grid_given;
    prepared_grid grid;
    mapping_job job;
    mapping_counters counters;
    bool has_result;

    brick *bricks;
    size_t brick_count, brick_capacity;
    unit *units;
    size_t unit_count, unit_capacity;
    int64_t unit_samples; /* 0: a unit is a brick */
    atomic_size_t next_unit;
    atomic_int failure; /* first status other than MAPPING_OK of a worker */

    mapper mappers[MAX_THREADS];
    owner owners[MAX_THREADS];

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
        free(c->mappers[i].leaves);
        free(c->mappers[i].cache);
        free(c->mappers[i].events);
        free(c->owners[i].events);
        free(c->owners[i].spare);
    }
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
        o->budget < 0 || o->subdivision < MAPPING_CORNER_PASSING || o->subdivision > MAPPING_CORNER_CACHE ||
        o->precheck < MAPPING_PRECHECK_RECORDS || o->precheck > MAPPING_PRECHECK_LEAVES)
        return MAPPING_BAD_ARGUMENT;
    if (j->frames < 1 || j->rows < 1 || j->columns < 1 || j->row < 0 || j->column < 0 || j->stride < j->columns ||
        j->intensity == NULL || j->variance == NULL || j->rays == NULL || j->tables == NULL || j->stationary == NULL)
        return MAPPING_BAD_ARGUMENT;
    const int64_t most = INT64_C(1) << 32;
    if (j->frames >= most || j->rows >= most / j->frames || j->columns >= most / (j->frames * j->rows) ||
        j->row > most || j->column > most)
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

/* ------------------------------------------------------------------ visiting order */

static int lay_bricks(mapping_context *c)
{
    const mapping_job *j = &c->job;
    const int64_t first_row = j->row / MAPPING_BRICK, last_row = (j->row + j->rows - 1) / MAPPING_BRICK;
    const int64_t first_column = j->column / MAPPING_BRICK, last_column = (j->column + j->columns - 1) / MAPPING_BRICK;
    const size_t count = (size_t)((last_row - first_row + 1) * (last_column - first_column + 1));
    const int status = reserve((void **)&c->bricks, &c->brick_capacity, count, sizeof *c->bricks);
    if (status != MAPPING_OK)
        return status;
    c->brick_count = count;
    int64_t samples = 0;
    brick *next = c->bricks;
    for (int64_t y = first_row; y <= last_row; y++)
        for (int64_t x = first_column; x <= last_column; x++) {
            const int64_t top = y * MAPPING_BRICK > j->row ? y * MAPPING_BRICK - j->row : 0;
            const int64_t left = x * MAPPING_BRICK > j->column ? x * MAPPING_BRICK - j->column : 0;
            int64_t bottom = (y + 1) * MAPPING_BRICK - j->row, right = (x + 1) * MAPPING_BRICK - j->column;
            bottom = bottom < j->rows ? bottom : j->rows;
            right = right < j->columns ? right : j->columns;
            *next++ = (brick){top, bottom - top, left, right - left, samples};
            samples += (bottom - top) * (right - left) * j->frames;
        }
    c->unit_samples = c->options.work_block;
    c->unit_count = c->unit_samples == 0 ? count : (size_t)((samples - 1) / c->unit_samples + 1);
    return reserve((void **)&c->units, &c->unit_capacity, c->unit_count, sizeof *c->units);
}

/* ------------------------------------------------------------------ phase 1: samples to events */

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
    return chunk << 32 | local;
}

static bool add_events(mapper *m, uint32_t sample, double scale)
{
    merge_leaves(m);
    if (m->event_capacity - m->event_count < m->leaf_count) {
        const size_t capacity = 2 * (m->event_capacity + m->leaf_count);
        event *grown = realloc(m->events, capacity * sizeof *grown);
        if (grown == NULL)
            return false;
        m->events = grown;
        m->event_capacity = capacity;
    }
    for (size_t i = 0; i < m->leaf_count; i++)
        m->events[m->event_count++] =
            (event){key_of(m->grid, m->leaves[i].id), sample, (float)(m->leaves[i].count * scale)};
    return true;
}

/* Map columns [begin, end) of one row of one frame; false when an allocation failed. */
static bool map_row(mapping_context *c, mapper *m, int64_t frame, int64_t row, int64_t begin, int64_t end)
{
    const mapping_job *j = &c->job;
    const int depth = c->options.depth;
    const bool stationary = depth == 0 || j->stationary[frame];
    const double scale = ldexp(1.0, -depth * (stationary ? 2 : 3));
    const double *intensity = j->intensity[frame] + row * j->stride, *variance = j->variance[frame] + row * j->stride;
    const unsigned char *mask = j->mask == NULL ? NULL : j->mask[frame] + row * j->stride;
    const double *upper = j->rays + row * (j->columns + 1) * 3, *lower = upper + (j->columns + 1) * 3;

    m->table = j->tables + frame * 12 * ((INT64_C(2) << depth) + 1);
    for (int64_t x = begin; x < end; x++) {
        m->counters.samples++;
        if ((mask != NULL && mask[x]) || !isfinite(intensity[x]) || !isfinite(variance[x]) || variance[x] < 0.0)
            continue;
        bool finite = true;
        for (int k = 0; k < 6; k++)
            finite &= isfinite(upper[3 * x + k]) && isfinite(lower[3 * x + k]);
        if (!finite) /* every node of the pixel would be NaN */
            continue;
        memcpy(m->corner[0], upper + 3 * x, sizeof m->corner[0]);
        memcpy(m->corner[1], lower + 3 * x, sizeof m->corner[0]);
        memcpy(m->corner[2], upper + 3 * x + 3, sizeof m->corner[0]);
        memcpy(m->corner[3], lower + 3 * x + 3, sizeof m->corner[0]);
        m->counters.valid++;
        m->leaf_count = 0;
        m->leaf_total = 0;
        if (depth == 0)
            subdivide_centre(m);
        else if (c->options.subdivision == MAPPING_CORNER_PASSING)
            subdivide_passing(m, stationary);
        else
            subdivide_cached(m, stationary);
        m->counters.leaves += m->leaf_total;
        if (m->leaf_total > m->counters.leaves_max)
            m->counters.leaves_max = m->leaf_total;
        if (m->failed || !add_events(m, (uint32_t)((frame * j->rows + row) * j->columns + x), scale))
            return false;
    }
    return true;
}

/* Map samples [begin, end) of the brick, counted in its own visiting order. */
static bool map_run(mapping_context *c, mapper *m, const brick *b, int64_t begin, int64_t end)
{
    while (begin < end) {
        const int64_t line = begin / b->columns, x = begin % b->columns;
        const int64_t stop = end - begin < b->columns - x ? x + end - begin : b->columns;
        if (!map_row(c, m, line / b->rows, b->row + line % b->rows, b->column + x, b->column + stop))
            return false;
        begin += stop - x;
    }
    return true;
}

static bool map_unit(mapping_context *c, mapper *m, size_t number)
{
    const int64_t frames = c->job.frames;
    if (c->unit_samples == 0) {
        const brick *b = &c->bricks[number];
        return map_run(c, m, b, 0, b->rows * b->columns * frames);
    }
    const int64_t all = c->job.rows * c->job.columns * frames;
    int64_t begin = (int64_t)number * c->unit_samples;
    const int64_t end = all - begin < c->unit_samples ? all : begin + c->unit_samples;
    size_t low = 0, high = c->brick_count; /* the last brick that begins at or before `begin` */
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (c->bricks[middle].first <= begin)
            low = middle;
        else
            high = middle;
    }
    for (const brick *b = &c->bricks[low]; begin < end; b++) {
        const int64_t size = b->rows * b->columns * frames;
        const int64_t stop = end - b->first < size ? end - b->first : size;
        if (!map_run(c, m, b, begin - b->first, stop))
            return false;
        begin = b->first + stop;
    }
    return true;
}

static void fail(mapping_context *c, int status)
{
    int expected = MAPPING_OK;
    atomic_compare_exchange_strong(&c->failure, &expected, status);
}

static void map_units(mapping_context *c, int thread)
{
    mapper *m = &c->mappers[thread];
    const int64_t share = c->options.budget / c->options.threads / (int64_t)sizeof(event);
    while (atomic_load(&c->failure) == MAPPING_OK) {
        const size_t number = atomic_fetch_add(&c->next_unit, 1);
        if (number >= c->unit_count)
            return;
        const size_t first = m->event_count;
        if (!map_unit(c, m, number)) {
            fail(c, MAPPING_NO_MEMORY);
            return;
        }
        c->units[number] = (unit){thread, first, m->event_count - first};
        /* The precheck reserves RESERVED_RECORDS events a sample; a job that exceeds the whole budget ends here. */
        if ((int64_t)m->event_count / 2 > share + SPLIT_SAMPLES) {
            fail(c, MAPPING_OVER_BUDGET);
            return;
        }
    }
}

static int prepare_mappers(mapping_context *c)
{
    const size_t side = (size_t)(2 << c->options.depth) + 1;
    const bool cached = c->options.subdivision == MAPPING_CORNER_CACHE && c->options.depth >= 1 && c->options.depth <= 3;
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
        m->grid = &c->grid;
        m->depth = c->options.depth;
        m->unit = ldexp(1.0, -c->options.depth - 1);
        m->failed = false;
        m->event_count = 0;
        memset(&m->counters, 0, sizeof m->counters);
    }
    return MAPPING_OK;
}

/* ------------------------------------------------------------------ phase 2: events to their owners, sorted */

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Give every thread a range of chunks with about as many events; where the cuts lie cannot change a sum. */
static int split_chunks(mapping_context *c)
{
    const int threads = c->options.threads;
    uint64_t *chunks = NULL;
    size_t count = 0, events = 0;
    for (int i = 0; i < threads; i++)
        events += c->mappers[i].event_count;
    if (threads > 1) {
        chunks = malloc(SPLIT_SAMPLES * sizeof *chunks);
        if (chunks == NULL)
            return MAPPING_NO_MEMORY;
        const size_t every = events / SPLIT_SAMPLES + 1;
        for (int i = 0; i < threads; i++)
            for (size_t k = 0; k < c->mappers[i].event_count && count < SPLIT_SAMPLES; k += every)
                chunks[count++] = c->mappers[i].events[k].key >> 32;
        qsort(chunks, count, sizeof *chunks, by_value);
    }
    for (int i = 0; i < threads; i++) {
        owner *o = &c->owners[i];
        o->chunk_first = i == 0 ? 0 : c->owners[i - 1].chunk_end;
        o->chunk_end = i == threads - 1 || count == 0 ? UINT64_MAX : chunks[count * (size_t)(i + 1) / (size_t)threads];
        if (o->chunk_end < o->chunk_first)
            o->chunk_end = o->chunk_first;
    }
    free(chunks);
    return MAPPING_OK;
}

/* Stable radix sort by key, least significant digit first; events in o->events afterwards. */
static void sort_events(const prepared_grid *g, owner *o)
{
    static const uint32_t digits = 1u << DIGIT_BITS;
    for (int part = 0; part < 2; part++) {
        const int bits = part == 0 ? g->bits_local : g->bits_chunk;
        for (int done = 0; done < bits; done += DIGIT_BITS) {
            const int shift = 32 * part + done;
            uint32_t counts[1u << DIGIT_BITS] = {0};
            for (size_t i = 0; i < o->count; i++)
                counts[o->events[i].key >> shift & (digits - 1)]++;
            if (counts[o->events[0].key >> shift & (digits - 1)] == o->count)
                continue;
            uint32_t sum = 0;
            for (uint32_t d = 0; d < digits; d++) {
                const uint32_t here = counts[d];
                counts[d] = sum;
                sum += here;
            }
            for (size_t i = 0; i < o->count; i++)
                o->spare[counts[o->events[i].key >> shift & (digits - 1)]++] = o->events[i];
            event *sorted = o->spare;
            o->spare = o->events;
            o->events = sorted;
        }
    }
}

static void own_events(mapping_context *c, int thread)
{
    owner *o = &c->owners[thread];
    o->records = 0;
    o->count = 0;
    for (size_t u = 0; u < c->unit_count; u++) {
        const event *e = c->mappers[c->units[u].thread].events + c->units[u].first;
        for (size_t i = 0; i < c->units[u].count; i++)
            o->count += e[i].key >> 32 >= o->chunk_first && e[i].key >> 32 < o->chunk_end;
    }
    if (o->count == 0)
        return;
    if (o->count > UINT32_MAX) {
        fail(c, MAPPING_OVER_BUDGET);
        return;
    }
    if (o->count > o->capacity) {
        free(o->events);
        free(o->spare);
        o->events = malloc(o->count * sizeof *o->events);
        o->spare = malloc(o->count * sizeof *o->spare);
        o->capacity = o->events != NULL && o->spare != NULL ? o->count : 0;
        if (o->capacity == 0) {
            fail(c, MAPPING_NO_MEMORY);
            return;
        }
    }
    event *next = o->events;
    for (size_t u = 0; u < c->unit_count; u++) {
        const event *e = c->mappers[c->units[u].thread].events + c->units[u].first;
        for (size_t i = 0; i < c->units[u].count; i++)
            if (e[i].key >> 32 >= o->chunk_first && e[i].key >> 32 < o->chunk_end)
                *next++ = e[i];
    }
    sort_events(&c->grid, o);
    o->records = 1;
    for (size_t i = 1; i < o->count; i++)
        o->records += o->events[i].key != o->events[i - 1].key;
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
    if ((status = lay_bricks(c)) != MAPPING_OK || (status = start_helpers(c, options->threads)) != MAPPING_OK ||
        (status = prepare_mappers(c)) != MAPPING_OK)
        return status;

    atomic_store(&c->next_unit, 0);
    atomic_store(&c->failure, MAPPING_OK);
    in_parallel(c, map_units);
    if ((status = atomic_load(&c->failure)) != MAPPING_OK || (status = split_chunks(c)) != MAPPING_OK)
        return status;
    in_parallel(c, own_events);
    if ((status = atomic_load(&c->failure)) != MAPPING_OK)
        return status;

    mapping_counters *sum = &c->counters;
    sum->bytes = (int64_t)(sizeof *c + c->brick_capacity * sizeof *c->bricks + c->unit_capacity * sizeof *c->units);
    for (int i = 0; i < options->threads; i++) {
        const mapper *m = &c->mappers[i];
        c->owners[i].record_first = sum->records;
        sum->records += c->owners[i].records;
        sum->samples += m->counters.samples;
        sum->valid += m->counters.valid;
        sum->evaluations += m->counters.evaluations;
        sum->leaves += m->counters.leaves;
        sum->events += (int64_t)m->event_count;
        if (m->counters.leaves_max > sum->leaves_max)
            sum->leaves_max = m->counters.leaves_max;
    }
    for (int i = 0; i < MAX_THREADS; i++) {
        const mapper *m = &c->mappers[i];
        sum->bytes += (int64_t)(m->event_capacity * sizeof *m->events + m->leaf_capacity * sizeof *m->leaves +
                                m->cache_side * m->cache_side * m->cache_side * sizeof *m->cache +
                                2 * c->owners[i].capacity * sizeof(event));
    }
    *records = sum->records;
    c->has_result = true;
    return MAPPING_OK;
}

/* ------------------------------------------------------------------ phase 3: sums */

typedef struct {
    uint32_t *chunk, *local, *contributors;
    double *sum_intensity, *sum_variance, *sum_weight;
} columns;

static void add_up(const mapping_context *c, const owner *o, const columns *out)
{
    const mapping_job *j = &c->job;
    const uint32_t width = (uint32_t)j->columns, plane = (uint32_t)(j->rows * j->columns);
    int64_t r = o->record_first - 1;
    for (size_t i = 0; i < o->count; i++) {
        const event *e = &o->events[i];
        if (i == 0 || e->key != o->events[i - 1].key) {
            r++;
            out->chunk[r] = (uint32_t)(e->key >> 32);
            out->local[r] = (uint32_t)e->key;
            out->sum_intensity[r] = out->sum_variance[r] = out->sum_weight[r] = 0.0;
            out->contributors[r] = 0;
        }
        const uint32_t frame = e->sample / plane, rest = e->sample % plane;
        const int64_t place = (int64_t)(rest / width) * j->stride + rest % width;
        const double w = (double)e->weight;
        out->sum_intensity[r] += w * j->intensity[frame][place];
        out->sum_variance[r] += w * w * j->variance[frame][place];
        out->sum_weight[r] += w;
        out->contributors[r]++;
    }
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
    const columns out = {chunk, local, contributors, sum_intensity, sum_variance, sum_weight};
    for (int i = 0; i < c->options.threads; i++)
        add_up(c, &c->owners[i], &out);
    return MAPPING_OK;
}

void mapping_count(const mapping_context *c, mapping_counters *counters)
{
    if (c != NULL && counters != NULL)
        *counters = c->counters;
}
