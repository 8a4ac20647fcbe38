/* Lets every allocation of the library fail, one after the other, and counts what is not given back.
 *
 * Prints how many allocations were made to fail; exits with 1 where a failure was not reported, moved the next result or left
 * memory behind.
 */
#undef malloc
#undef calloc
#undef realloc
#undef aligned_alloc
#undef free

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "mapping.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long left_to_allow = -1, live = 0; /* allocations until one fails, -1: never; blocks not yet freed */

static int allowed(void)
{
    pthread_mutex_lock(&lock);
    const int yes = left_to_allow != 0;
    if (left_to_allow > 0)
        left_to_allow--;
    pthread_mutex_unlock(&lock);
    return yes;
}

static void *counted(void *block)
{
    pthread_mutex_lock(&lock);
    live += block != NULL;
    pthread_mutex_unlock(&lock);
    return block;
}

void *counted_malloc(size_t size) { return allowed() ? counted(malloc(size)) : NULL; }
void *counted_calloc(size_t count, size_t size) { return allowed() ? counted(calloc(count, size)) : NULL; }
void *counted_aligned_alloc(size_t a, size_t size) { return allowed() ? counted(aligned_alloc(a, size)) : NULL; }
void *counted_realloc(void *block, size_t size)
{
    if (!allowed())
        return NULL;
    void *grown = realloc(block, size);
    if (block == NULL)
        counted(grown);
    return grown;
}
void counted_free(void *block)
{
    pthread_mutex_lock(&lock);
    live -= block != NULL;
    pthread_mutex_unlock(&lock);
    free(block);
}

#define ROWS 12
#define COLUMNS 10
#define FRAMES 2
#define MOST 100000

typedef struct {
    uint32_t chunk[MOST], local[MOST], contributors[MOST];
    double intensity[MOST], variance[MOST], weight[MOST];
} result;

static double intensity[FRAMES * ROWS * COLUMNS], variance[FRAMES * ROWS * COLUMNS];
static double rays[(ROWS + 1) * (COLUMNS + 1) * 3], tables[FRAMES * 9 * 12];
static result expected, found;

static int run(mapping_context **context, const mapping_options *options, result *to, int64_t *records)
{
    const double *const values[FRAMES] = {intensity, intensity + ROWS * COLUMNS};
    const double *const spreads[FRAMES] = {variance, variance + ROWS * COLUMNS};
    const unsigned char stationary[FRAMES] = {1, 0};
    const mapping_grid grid = {{-40, 600, -40}, {1, 1, 1}, {200, 200, 200}, {8, 8, 8}};
    const mapping_job job = {FRAMES, ROWS, COLUMNS, 60, 59, COLUMNS, values, spreads, NULL, rays, tables, stationary};
    int status = MAPPING_OK;
    if (*context == NULL)
        status = mapping_create(context);
    if (status == MAPPING_OK)
        status = mapping_run(*context, options, &grid, &job, records);
    if (status == MAPPING_OK && *records > MOST)
        return -1;
    if (status == MAPPING_OK)
        status = mapping_fetch(*context, to->chunk, to->local, to->intensity, to->variance, to->weight, to->contributors);
    return status;
}

/* Corrections and merging need no memory of their own: they work where every allocation fails. */
static int without_memory(void)
{
    const uint16_t counts[3] = {4, 0, 9};
    const double half[1] = {0.5}, quarter[1] = {0.25}, uncertain[1] = {1.0}, factor[3] = {1, 1, 2}, squared[3] = {1, 1, 4};
    double corrected[3], spread[3];
    unsigned char mask[3];
    const mapping_frame frame = {.pixels = 3, .kind = MAPPING_UINT16, .scalars = 1, .counts = counts, .factor = factor,
                                 .factor_squared = squared, .c = half, .c2 = quarter, .v = uncertain,
                                 .intensity = corrected, .out_variance = spread, .out_mask = mask};
    uint32_t chunk[4] = {0, 7, 0, 9}, local[4] = {1, 2, 1, 3}, few[4] = {1, 2, 3, 4}, to[3][4];
    double one[4] = {1, 2, 3, 4}, sums[3][4];
    const mapping_records left = {2, chunk, local, one, one, one, few};
    const mapping_records right = {2, chunk + 2, local + 2, one + 2, one + 2, one + 2, few + 2};
    mapping_records out = {4, to[0], to[1], sums[0], sums[1], sums[2], to[2]};
    left_to_allow = 0;
    const int status = mapping_correct(&frame, MAPPING_BEST) | mapping_add(&left, &right, &out);
    left_to_allow = -1;
    return status == MAPPING_OK && corrected[2] == 9 && spread[2] == 9 + 324 && !mask[2] && out.count == 3 &&
           sums[1][0] == 4 && to[2][0] == 4 && to[0][2] == 9;
}

int main(void)
{
    long failures = 0;
    if (!without_memory()) {
        printf("expected a correction and a merge without memory, found another result\n");
        return 1;
    }
    for (int y = 0; y <= ROWS; y++)
        for (int x = 0; x <= COLUMNS; x++) {
            double *r = rays + (y * (COLUMNS + 1) + x) * 3;
            r[0] = 5e-3 * x, r[1] = 1.0, r[2] = 5e-3 * y;
            const double norm = sqrt(r[0] * r[0] + r[1] * r[1] + r[2] * r[2]);
            for (int k = 0; k < 3; k++)
                r[k] /= norm;
        }
    for (int i = 0; i < FRAMES * ROWS * COLUMNS; i++)
        intensity[i] = 1.1 + i % 7, variance[i] = 0.3 + i % 5;
    for (int p = 0; p < FRAMES * 9; p++)
        for (int k = 0; k < 3; k++)
            for (int j = 0; j < 4; j++)
                tables[p * 12 + k * 4 + j] = j == 3 ? 0.1 * (p % 9) : j == k ? 700.0 : 30.0 * (k - j);

    for (int variant = 0; variant < 8; variant++) {
        const mapping_options options = {.depth = 2,
                                         .subdivision = variant % 4 == 3 ? MAPPING_CORNER_CACHE : MAPPING_FLAT,
                                         .threads = variant < 4 ? 1 : 2,
                                         .budget = INT64_C(1) << 30,
                                         .filter = variant & 1,
                                         .accumulate = variant & 2 ? MAPPING_RADIX : MAPPING_BITMAP,
                                         .reject = 1,
                                         .count_blocks = variant == 1,
                                         .work_block = 50};
        mapping_context *context = NULL;
        int64_t right = 0, records;
        left_to_allow = -1;
        if (run(&context, &options, &expected, &right) != MAPPING_OK || right < 100) {
            printf("variant %d: expected records, found %ld\n", variant, (long)right);
            return 1;
        }
        mapping_destroy(context);
        for (long n = 0;; n++) {
            context = NULL;
            left_to_allow = n;
            const int status = run(&context, &options, &found, &records);
            if (status == MAPPING_OK && left_to_allow > 0) { /* got through with allocations to spare */
                mapping_destroy(context);
                break;
            }
            failures++;
            if (status != MAPPING_OK && status != MAPPING_NO_MEMORY) {
                printf("variant %d, allocation %ld: expected no memory, found status %d\n", variant, n, status);
                return 1;
            }
            /* the same context must give the right map once there is memory again */
            left_to_allow = -1;
            if (run(&context, &options, &found, &records) != MAPPING_OK || records != right ||
                memcmp(found.chunk, expected.chunk, (size_t)right * 4) != 0 ||
                memcmp(found.local, expected.local, (size_t)right * 4) != 0 ||
                memcmp(found.contributors, expected.contributors, (size_t)right * 4) != 0 ||
                memcmp(found.intensity, expected.intensity, (size_t)right * 8) != 0 ||
                memcmp(found.variance, expected.variance, (size_t)right * 8) != 0 ||
                memcmp(found.weight, expected.weight, (size_t)right * 8) != 0) {
                printf("variant %d, allocation %ld: the next map is another one\n", variant, n);
                return 1;
            }
            mapping_destroy(context);
            if (live != 0) {
                printf("variant %d, allocation %ld: expected no block left, found %ld\n", variant, n, live);
                return 1;
            }
        }
        if (live != 0) {
            printf("variant %d: expected no block left, found %ld\n", variant, live);
            return 1;
        }
    }
    printf("%ld allocations failed\n", failures);
    return 0;
}
