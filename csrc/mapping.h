/* Reciprocal-space mapping: detector samples in, sorted voxel records out; this header is the library's manual.
 *
 * The library knows no geometry. A caller gives the unit rays of the pixel corners and, for every frame, a table of
 * affine maps from a ray to a grid coordinate; a context owns all working memory and is kept between calls.
 *
 *   mapping_create -> { mapping_run -> allocate the six columns -> mapping_fetch }* -> mapping_destroy
 *
 * Coordinates   c(u,v) = (1-v)*((1-u)*r00 + u*r10) + v*((1-u)*r01 + u*r11), u along rows, v along columns;
 *               ray = c/|c|; coordinate = ((a0*x + a1*y) + a2*z) + b on each axis;
 *               voxel = floor((coordinate - minimum)/step), inside where 0 <= voxel < shape.
 *               Every variant performs these IEEE operations in this order, with no contraction.
 * Subdivision   depth 0: the pixel's centre at mid-exposure. Above: a cell whose corners share a voxel is one leaf; at
 *               the last depth a leaf is the cell's centre; else the cell falls into 4 children (stationary) or 8.
 * Admission     a sample is skipped where its mask is set, its intensity, variance or a corner ray is not finite, or
 *               its variance is negative.
 * Order         a record's sums add in one order: bricks of MAPPING_BRICK x MAPPING_BRICK pixels aligned to the
 *               detector, row-major; inside a brick frame, row, column. Threads and work blocks never move a bit.
 * Ownership     the caller owns every array; those of a job must stay unchanged from mapping_run to mapping_fetch.
 * Threads       one call at a time per context; different contexts are independent.
 */
#ifndef MAPPING_H
#define MAPPING_H

#include <stdint.h>

#ifdef __GNUC__
#define MAPPING_API __attribute__((visibility("default")))
#else
#define MAPPING_API
#endif

#define MAPPING_BRICK 64

/* declarations */
enum mapping_status {
    MAPPING_OK,             /* done */
    MAPPING_NO_MEMORY,      /* an allocation failed */
    MAPPING_BAD_ARGUMENT,   /* an argument is outside what this header allows */
    MAPPING_GRID_TOO_LARGE, /* chunk or local ids leave 32 bits, or packed voxel ids leave 63 */
    MAPPING_OVER_BUDGET,    /* the job needs more working memory than options.budget */
    MAPPING_NO_THREAD,      /* a thread could not be started */
    MAPPING_NO_RESULT       /* mapping_fetch without a successful mapping_run before it */
};

enum mapping_subdivision {
    MAPPING_CORNER_PASSING, /* a cell hands its corners to its children: 5 (19) new nodes a split */
    MAPPING_CORNER_CACHE,   /* nodes in a dense stamped cache up to depth 3, recomputed beyond */
    MAPPING_FLAT            /* every node of a row of pixels, pixels as lanes, up to depth 5 (continuous: 3); else passing */
};

enum mapping_accumulate {
    MAPPING_ACCUMULATE_AUTO, /* bitmap where a touched chunk gets at least 1500 events */
    MAPPING_RADIX,           /* events sorted by voxel */
    MAPPING_BITMAP           /* a voxel's record found by counting bits */
};

enum mapping_instructions { MAPPING_BEST, MAPPING_PLAIN, MAPPING_AVX2, MAPPING_AVX512 };

enum mapping_order {
    MAPPING_BRICKS,   /* as above */
    MAPPING_FLAT_RUNS /* frame, row, column over the whole tile; a unit is 16384 >> depth samples unless work_block says */
};

enum mapping_precheck {
    MAPPING_PRECHECK_RECORDS, /* 128 + 2*min(leaves, 4)*40 bytes a sample */
    MAPPING_PRECHECK_LEAVES   /* 128 + 2*leaves*40 bytes a sample */
};

typedef struct mapping_context mapping_context;

typedef struct {
    double minimum[3]; /* lower edge of voxel 0 */
    double step[3];    /* voxel edge, > 0 */
    int64_t shape[3];  /* voxels, >= 1 */
    int64_t chunk[3];  /* voxels of a chunk, >= 1 */
} mapping_grid;

typedef struct {
    int32_t depth;       /* 0..8 */
    int32_t subdivision; /* enum mapping_subdivision */
    int32_t threads;     /* 1..256 */
    int32_t precheck;    /* enum mapping_precheck */
    int32_t filter;      /* flat: 1 decides voxels in float where that is certain, 0 always in double */
    int32_t accumulate;  /* enum mapping_accumulate */
    int32_t instructions; /* enum mapping_instructions: MAPPING_BEST is what the machine has */
    int32_t order;       /* enum mapping_order: the only one here that moves sums' last bits */
    int32_t reject;      /* 1: pixels and cells that cannot reach the grid are not subdivided; never changes a record */
    int32_t count_blocks; /* 1: count block_records, which costs a sort of every unit */
    int64_t work_block;  /* samples that a thread claims at once; 0: a brick */
    int64_t budget;      /* bytes of working memory */
} mapping_options;

typedef struct {
    int64_t frames, rows, columns; /* of the tile, each >= 1; their product below 2^32 */
    int64_t row, column;           /* the tile's first pixel on the detector, >= 0: places the bricks */
    int64_t stride;                /* doubles (and mask bytes) from a row to the next, >= columns */
    const double *const *intensity;   /* [frames] -> first pixel of the tile */
    const double *const *variance;    /* [frames] -> first pixel of the tile */
    const unsigned char *const *mask; /* [frames] -> first pixel, non-zero excludes; or NULL */
    const double *rays;               /* [rows+1][columns+1][3] unit vectors of the pixel corners */
    const double *tables;             /* [frames][2^(depth+1)+1][3][4] rows (a0 a1 a2 b), exposure positions 0..1 */
    const unsigned char *stationary;  /* [frames] non-zero: only the middle position is used */
} mapping_job;

typedef struct {
    int64_t samples;      /* pixels x frames seen */
    int64_t valid;        /* admitted */
    int64_t evaluations;  /* coordinates evaluated */
    int64_t leaves;       /* leaves inside the grid; the flat lattice does not count them */
    int64_t leaves_max;   /* most leaves of one sample */
    int64_t skipped;      /* samples rejected as a whole */
    int64_t fallbacks;    /* evaluations that the filter could not decide and that were repeated in double */
    int64_t boxes_missed; /* bricks' frames that left their estimated box and were mapped by corner passing */
    int64_t events;       /* distinct (sample, voxel) pairs */
    int64_t records;      /* records of the result */
    int64_t blocks;       /* work units */
    int64_t block_records; /* distinct (unit, voxel) pairs, where options.count_blocks asks for it */
    int64_t pages;        /* chunks touched, or parts of chunks where they are large */
    int64_t bitmap;       /* 1: the sums were found by the bitmap */
    int64_t bytes;        /* working memory that the context holds */
} mapping_counters;

enum mapping_counts {
    MAPPING_UINT8, MAPPING_INT8, MAPPING_UINT16, MAPPING_INT16, MAPPING_UINT32, MAPPING_INT32, MAPPING_UINT64, MAPPING_INT64,
    MAPPING_FLOAT32, MAPPING_FLOAT64
};

/* One frame's corrections; every array has `pixels` entries. An input may be an output of the same type: in place. */
typedef struct {
    int64_t pixels;
    int32_t kind;                /* enum mapping_counts */
    int32_t scalars;             /* >= 0 */
    const void *counts;          /* as `kind` says */
    const double *variance;      /* of the counts; NULL: max(counts, 0) */
    const unsigned char *mask;   /* of this frame, non-zero excludes; or NULL */
    const double *background;    /* or NULL */
    const double *background_variance; /* or NULL */
    const unsigned char *static_mask;  /* or NULL */
    const double *factor;              /* of every pixel; or NULL */
    const double *factor_squared;      /* with factor */
    const double *c, *c2, *v; /* [scalars] factor, its square, its variance; NaN: without one */
    double *intensity, *out_variance;
    unsigned char *out_mask; /* 0 or 1 */
} mapping_frame;

/* A batch of records, ascending and unique in (chunk, local): six arrays of `count` entries. */
typedef struct {
    int64_t count;
    uint32_t *chunk, *local;
    double *sum_intensity, *sum_variance, *sum_weight;
    uint32_t *contributors;
} mapping_records;

/* Returns a status; *context is NULL unless it is MAPPING_OK. */
int mapping_create(mapping_context **context);
/* Ends the context's threads and frees its memory; NULL is allowed. */
void mapping_destroy(mapping_context *context);
/* Maps the job and tells how many records it gave. */
int mapping_run(mapping_context *context, const mapping_options *options, const mapping_grid *grid,
                const mapping_job *job, int64_t *records);
/* Writes the records of the last run, ascending in (chunk, local), into arrays of that many entries. */
int mapping_fetch(mapping_context *context, uint32_t *chunk, uint32_t *local, double *sum_intensity,
                  double *sum_variance, double *sum_weight, uint32_t *contributors);
/* Corrects a frame in one pass: background, factor, scalars in their order, then what is not finite into the mask.
 * A scalar with a variance: V = V c2 + (I I) v, then I = I c. Bit for bit what the same steps, one after the other, give. */
int mapping_correct(const mapping_frame *frame, int32_t instructions);
/* Merges two batches; where both have a voxel its sums are left + right. out->count says how much its arrays hold, at least
 * left->count + right->count, and then how many records there are; out overlaps neither. */
int mapping_add(const mapping_records *left, const mapping_records *right, mapping_records *out);
/* The instruction set that MAPPING_BEST stands for here: an enum mapping_instructions. */
int mapping_best_instructions(void);
/* Counters of the last run. */
void mapping_count(const mapping_context *context, mapping_counters *counters);
/* Bytes that the precheck reserves for one sample; 0 for a depth outside 0..8. */
int64_t mapping_bytes_per_sample(int32_t depth, int32_t continuous, int32_t precheck);
/* MAPPING_OK when the grid can be mapped into. */
int mapping_check_grid(const mapping_grid *grid);
/* SHA-256 of the library's sources. */
const char *mapping_source_digest(void);
/* end of declarations */

#endif
