/* The fused message step: limits, the walk over edges, and the choice of instruction set. The manual is gnn.h. */
#include "gnn.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define GNN_X86 1
#include <immintrin.h>
#endif

/* Where the walk is: the event, its source and its destination of the next edge. */
typedef struct {
    const int64_t *objects;
    int64_t events, self_loops, nodes; /* nodes: of the whole block */
    int64_t event, first, source, target;
} gnn_cursor;

static gnn_cursor gnn_start(const gnn_step *s) {
    gnn_cursor at = {s->objects, s->events, s->self_loops, 0, 0, 0, 0, 0};
    for (int64_t e = 0; e < s->events; e++) at.nodes += s->objects[e];
    return at;
}

/* The nodes of up to GNN_TILE next edges; returns how many, 0 at the end. */
static int64_t gnn_next(gnn_cursor *at, int64_t *source, int64_t *target) {
    int64_t rows = 0;
    while (at->event < at->events) {
        int64_t n = at->objects[at->event];
        for (; at->source < n; at->source++, at->target = 0)
            for (; at->target < n; at->target++) {
                if (at->target == at->source && !at->self_loops) continue;
                if (rows == GNN_TILE) return rows;
                source[rows] = at->first + at->source;
                target[rows++] = at->first + at->target;
            }
        at->first += n;
        at->source = at->target = 0;
        at->event++;
    }
    return rows;
}

#define ROOT(s) __builtin_sqrtf(s)
#define WIDTH 0

/* plain C: four floats, which every 64-bit machine has registers for */
#define REAL float
#define LANES 4
#define PANELS 2
#define TARGET
#define NAME(x) gnn_plain_##x
#define SPLAT(s) ((VEC){0} + (s))
#define FMA(a, b, c) ((a) * (b) + (c))
#define KEEP(m, v) ((VEC)((__typeof__((m) <= (VEC){0}))(v) & ~((m) <= (VEC){0})))
#define HSUM(v) ((v)[0] + (v)[1] + ((v)[2] + (v)[3]))
#include "gnn_step.h"
#undef REAL
#undef LANES
#undef TARGET
#undef NAME
#undef HSUM
#undef ROOT

/* double: for checks of the derivative, so speed does not matter */
#define REAL double
#define LANES 2
#define TARGET
#define NAME(x) gnn_double_##x
#define HSUM(v) ((v)[0] + (v)[1])
#define ROOT(s) __builtin_sqrt(s)
#include "gnn_step.h"
#undef REAL
#undef LANES
#undef PANELS
#undef TARGET
#undef NAME
#undef SPLAT
#undef FMA
#undef HSUM
#undef ROOT

#undef WIDTH

#ifdef GNN_X86
#define WIDTH 64
#define ROOT(s) __builtin_sqrtf(s)
#define REAL float
#define LANES 8
#define PANELS 2
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) gnn_avx2_##x
#define SPLAT(s) ((VEC)_mm256_set1_ps(s))
#define FMA(a, b, c) ((VEC)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define HSUM(v) gnn_sum8((__m256)(v))

__attribute__((target("avx2"))) static inline float gnn_sum8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

#include "gnn_step.h"
#undef LANES
#undef PANELS
#undef TARGET
#undef NAME
#undef SPLAT
#undef FMA
#undef KEEP
#undef HSUM

#define LANES 16
#define PANELS 4
#define TARGET __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")))
#define NAME(x) gnn_avx512_##x
#define SPLAT(s) ((VEC)_mm512_set1_ps(s))
#define FMA(a, b, c) ((VEC)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define KEEP(m, v) \
    ((VEC)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)(m), _mm512_setzero_ps(), _CMP_NLE_UQ), (__m512)(v)))
#define HSUM(v) _mm512_reduce_add_ps((__m512)(v))
#include "gnn_step.h"
#endif

int gnn_best_isa(void) {
#ifdef GNN_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

static int64_t gnn_padded(int64_t width) { return 16 * ((width + 15) / 16); }

int64_t gnn_work_bytes(int64_t hidden, int64_t width, int64_t precision) {
    int64_t wide = hidden > width ? hidden : width;
    return precision * (3 * hidden * gnn_padded(width) + 3 * hidden * hidden + 5 * GNN_TILE * wide + 4 * hidden) + 64;
}

static int gnn_unfit(const gnn_step *s) {
    int narrow = s->width >= 1 && s->width <= 16;
    if (s->hidden < 16 || s->hidden > 512 || s->hidden % 16 || s->events < 0) return -1;
    if (!(s->width == s->hidden || narrow) || (s->width != s->hidden && (s->in_gamma || s->d_x))) return -1;
    if (s->precision != 4 && s->precision != 8) return -1;
    if (s->isa < 0 || s->isa > gnn_best_isa() || (s->precision == 8 && s->isa)) return -2;
    return 0;
}

int gnn_forward(const gnn_step *s) {
    int unfit = gnn_unfit(s);
    if (unfit) return unfit;
    if (s->precision == 8) gnn_double_forward(s);
    else if (s->isa == 0) gnn_plain_forward(s);
#ifdef GNN_X86
    else if (s->isa == 1) gnn_avx2_forward(s);
    else gnn_avx512_forward(s);
#endif
    return 0;
}

int gnn_backward(const gnn_step *s) {
    int unfit = gnn_unfit(s);
    if (unfit) return unfit;
    if (s->precision == 8) gnn_double_backward(s);
    else if (s->isa == 0) gnn_plain_backward(s);
#ifdef GNN_X86
    else if (s->isa == 1) gnn_avx2_backward(s);
    else gnn_avx512_backward(s);
#endif
    return 0;
}

const char *gnn_source_digest(void) { return HARNESS_SOURCE_DIGEST; }
