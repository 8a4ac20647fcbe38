/* L-GATr's kernels: what does not depend on the kind of number, the kinds, and the choice between them at run time. */
#include "lgatr.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define TILE 24         /* rows of a tile: with 64 hidden channels its arrays stay in a second-level cache of 1 MB */
#define NORM_FLOOR 0.01 /* floor of the norms that have no setting */

/* Blade mask (bit 0: t) -> half plane of a row, the sign it is stored with, and the sign of a product's term. */
#define PLANE(m) ((m) == 0 ? 0 : (m) == 15 ? 1 : (m) == 1 ? 2 : (m) == 14 ? 3 : (m) == 2 ? 4 : (m) == 13 ? 5 : \
                  (m) == 4 ? 6 : (m) == 11 ? 7 : (m) == 8 ? 8 : (m) == 7 ? 9 : (m) == 3 ? 10 : (m) == 12 ? 11 : \
                  (m) == 5 ? 12 : (m) == 10 ? 13 : (m) == 9 ? 14 : 15)
#define STORED(m) ((m) == 11 || (m) == 10 ? -1 : 1)
#define TERM_SIGN(a, b)                                                                                       \
  ((__builtin_popcount(((a) >> 1) & (b)) + __builtin_popcount(((a) >> 2) & (b)) +                             \
    __builtin_popcount(((a) >> 3) & (b)) + __builtin_popcount((a) & (b) & 14)) & 1 ? -1 : 1)
/* Half plane -> grade (0 scalar, 1 vector, 2 bivector, 3 axial, 4 pseudoscalar) and sign of the inner product. */
#define HALF_GROUP(h) ((h) == 0 ? 0 : (h) == 1 ? 4 : (h) >= 10 ? 2 : (h) & 1 ? 3 : 1)
#define HALF_SIGN(h) ((h) == 0 || (h) == 2 || (h) == 5 || (h) == 7 || (h) == 9 || (h) == 11 || (h) == 13 || (h) == 15 ? 1 : -1)

static int64_t panels(int64_t n) { return (n + LGATR_PANEL - 1) / LGATR_PANEL * LGATR_PANEL; }
static int64_t row_width(int64_t mv, int64_t s) { return 16 * mv + s; }
static int64_t slim_width(int64_t v, int64_t s) { return 4 * v + s; }

/* One product of a linear map: k inputs from column `from` of a row, n outputs to column `to`, its matrix at `at` of the
   packed weight and at `turned` of the turned one. Neighbours may share a matrix. */
typedef struct {
  int64_t k, n, from, to, at, turned;
} item;

typedef struct {
  int count;
  item items[8];
  int64_t biases, bias, bias_to; /* how many, where in the weight, to which columns */
  int64_t size, turned, in, out; /* numbers in the weight and in the turned one; widths of rows */
} plan;

static void plan_matrix(plan *p, int repeats, int64_t k, int64_t n) {
  for (int i = 0; i < repeats; i++) {
    p->items[p->count++] = (item){k, n, p->in, p->out, p->size, p->turned};
    p->in += k, p->out += n;
  }
  p->size += panels(n) * k, p->turned += panels(k) * n;
}

static plan plan_of(const lgatr_shape *s) {
  plan p = {0};
  const int64_t in = s->in_mv, out = s->out_mv;
  int64_t biases, bias_to = 0;
  if (s->slim) {
    plan_matrix(&p, 4, in, out);
    bias_to = p.out, biases = s->out_s;
    plan_matrix(&p, 1, s->in_s, s->out_s);
  } else {
    biases = 2 * out + s->out_s;
    plan_matrix(&p, 1, 2 * in + s->in_s, biases);
    plan_matrix(&p, 4, 2 * in, 2 * out);
    plan_matrix(&p, 3, 2 * in, 2 * out);
  }
  p.bias = p.size, p.bias_to = bias_to, p.biases = s->bias ? biases : 0;
  p.size += panels(biases);
  return p;
}

typedef struct {
  plan in, out, last;
  int64_t right, out_at, last_at, count, width, hidden;
} mlp_parts;

static mlp_parts mlp_parts_of(const lgatr_mlp *m) {
  mlp_parts p;
  p.in = plan_of(&(lgatr_shape){m->channels, m->scalars, m->product_mv, 0, 1, 0});
  p.out = plan_of(&(lgatr_shape){m->product_mv, m->scalars, m->hidden_mv, m->hidden_s, 1, 0});
  p.last = plan_of(&(lgatr_shape){m->hidden_mv, m->hidden_s, m->channels, m->scalars, 1, 0});
  p.right = p.in.size;
  p.out_at = 2 * p.right;
  p.last_at = p.out_at + p.out.size;
  p.count = p.last_at + p.last.size;
  p.width = row_width(m->channels, m->scalars);
  p.hidden = row_width(m->hidden_mv, m->hidden_s);
  return p;
}

typedef struct {
  plan in, last;
  int64_t last_at, count, width, hidden;
} slim_parts;

static slim_parts slim_parts_of(const lgatr_slim_mlp *m) {
  slim_parts p;
  p.in = plan_of(&(lgatr_shape){m->channels, m->scalars, 3 * m->hidden_v, 2 * m->hidden_s, 1, 1});
  p.last = plan_of(&(lgatr_shape){m->hidden_v, m->hidden_s, m->channels, m->scalars, 1, 1});
  p.last_at = p.in.size;
  p.count = p.last_at + p.last.size;
  p.width = slim_width(m->channels, m->scalars);
  p.hidden = slim_width(m->hidden_v, m->hidden_s);
  return p;
}

typedef struct {
  plan qkv, out;
  int64_t out_at, count, width, qkv_width, merged, depth, qkv_mv, qkv_s;
} attention_parts;

static attention_parts attention_parts_of(const lgatr_attention *a) {
  attention_parts p;
  const int mv = a->heads * a->hidden_mv, s = a->heads * a->hidden_s;
  p.qkv = plan_of(&(lgatr_shape){a->channels, a->scalars, 3 * mv, 3 * s, 0, a->slim});
  p.out = plan_of(&(lgatr_shape){mv, s, a->channels, a->scalars, 1, a->slim});
  p.out_at = p.qkv.size;
  p.count = p.out_at + p.out.size;
  p.width = p.qkv.in, p.qkv_width = p.qkv.out, p.merged = p.out.in;
  p.depth = a->slim ? slim_width(a->hidden_mv, a->hidden_s) : row_width(a->hidden_mv, a->hidden_s);
  p.qkv_mv = 3 * (int64_t)mv, p.qkv_s = 3 * (int64_t)s;
  return p;
}

/* Whole sets are taken together up to two tiles; a larger set is a tile of its own. */
static int64_t tile_end(int64_t sets, const int64_t *offsets, int64_t first) {
  int64_t last = first + 1;
  while (last < sets && offsets[last + 1] - offsets[first] <= 2 * TILE) last++;
  return last;
}

typedef struct {
  int64_t columns, largest;
} tiling;

static tiling tiling_of(int64_t sets, const int64_t *offsets) {
  tiling r = {2 * TILE, 1};
  for (int64_t i = 0; i < sets; i++) {
    const int64_t n = offsets[i + 1] - offsets[i];
    if (n > r.largest) r.largest = n;
  }
  if (r.largest > r.columns) r.columns = (r.largest + 15) / 16 * 16;
  return r;
}

static int64_t attention_small(const lgatr_attention *a, const attention_parts *p, const tiling *t) {
  (void)a;
  return 4 * t->columns + 2 * t->largest + 2 * p->width + 64;
}

/* ------------------------------------------------------------------------------------------------- the kinds */

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define INTERLEAVE_(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define INTERLEAVE(a, b, order) INTERLEAVE_(a, b, order)
#endif
#endif


/* Plain C: a vector of four numbers that the compiler maps to what there is. */
#define ROWS 6
#define GROUPS 2

typedef float plain_float __attribute__((vector_size(16), aligned(4), may_alias));
typedef double plain_double __attribute__((vector_size(16), aligned(8), may_alias));

#define LOAD(p) (*(const VEC *)(p))
#define MUL(a, b) ((a) * (b))
#define ADD(a, b) ((a) + (b))
#define ABS(a) FN(absolute)(a)
#define WITH_SIGN(a, s) FN(with_sign)(a, s)
#define STORE(p, v) (*(VEC *)(p) = (v))
#define LOAD_PART(p, r) FN(load_part)(p, r)
#define STORE_PART(p, v, r) FN(store_part)(p, v, r)

#define REAL float
#define INTEGER int32_t
#define UNSIGNED uint32_t
#define IS_DOUBLE 0
#define VEC plain_float
#define VL 4
#define SET(x) ((VEC){x, x, x, x})
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#define FN(name) plain_f_##name
#if defined(__aarch64__)
#define FMA(a, b, c) ((VEC)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#define FNMA(a, b, c) ((VEC)vfmsq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#define FNMA(a, b, c) ((c) - (a) * (b))
#endif
static inline VEC FN(load_part)(const REAL *p, int r) {
  REAL parts[VL] = {0};
  for (int i = 0; i < r && i < VL; i++) parts[i] = p[i];
  return LOAD(parts);
}
static inline void FN(store_part)(REAL *p, VEC v, int r) {
  for (int i = 0; i < r && i < VL; i++) p[i] = v[i];
}
static inline VEC FN(absolute)(VEC v) {
  for (int i = 0; i < VL; i++) v[i] = v[i] < 0 ? -v[i] : v[i];
  return v;
}
static inline VEC FN(with_sign)(VEC v, VEC s) {
  for (int i = 0; i < VL; i++) v[i] = s[i] > 0 ? v[i] : s[i] < 0 ? -v[i] : 0;
  return v;
}
#include "lgatr_body.h"
#undef REAL
#undef INTEGER
#undef UNSIGNED
#undef IS_DOUBLE
#undef VEC
#undef VL
#undef SET
#undef FN
#undef LOW
#undef HIGH
#undef FMA
#undef FNMA

#define REAL double
#define INTEGER int64_t
#define UNSIGNED uint64_t
#define IS_DOUBLE 1
#define VEC plain_double
#define VL 2
#define SET(x) ((VEC){x, x})
#define LOW 0, 2
#define HIGH 1, 3
#define FN(name) plain_d_##name
#define FMA(a, b, c) ((a) * (b) + (c))
#define FNMA(a, b, c) ((c) - (a) * (b))
static inline VEC FN(load_part)(const REAL *p, int r) {
  REAL parts[VL] = {0};
  for (int i = 0; i < r && i < VL; i++) parts[i] = p[i];
  return LOAD(parts);
}
static inline void FN(store_part)(REAL *p, VEC v, int r) {
  for (int i = 0; i < r && i < VL; i++) p[i] = v[i];
}
static inline VEC FN(absolute)(VEC v) {
  for (int i = 0; i < VL; i++) v[i] = v[i] < 0 ? -v[i] : v[i];
  return v;
}
static inline VEC FN(with_sign)(VEC v, VEC s) {
  for (int i = 0; i < VL; i++) v[i] = s[i] > 0 ? v[i] : s[i] < 0 ? -v[i] : 0;
  return v;
}
#include "lgatr_body.h"
#undef REAL
#undef INTEGER
#undef UNSIGNED
#undef IS_DOUBLE
#undef VEC
#undef VL
#undef FN
#undef LOW
#undef HIGH
#undef FMA
#undef FNMA
#undef MUL
#undef ADD
#undef ABS
#undef WITH_SIGN
#undef LOAD
#undef STORE
#undef LOAD_PART
#undef STORE_PART
#undef SET
#undef ROWS
#undef GROUPS

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define ROWS 6
#define GROUPS 2

static inline __m256i avx_mask_f(int r) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(r), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline __m256i avx_mask_d(int r) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(r), _mm256_setr_epi64x(0, 1, 2, 3));
}

#define REAL float
#define INTEGER int32_t
#define UNSIGNED uint32_t
#define IS_DOUBLE 0
#define VEC __m256
#define VL 8
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#define FN(name) avx2_f_##name
#define WITH_SIGN(a, s) \
  _mm256_sub_ps(_mm256_and_ps(_mm256_cmp_ps(s, _mm256_setzero_ps(), _CMP_GT_OQ), a), \
               _mm256_and_ps(_mm256_cmp_ps(s, _mm256_setzero_ps(), _CMP_LT_OQ), a))
#define MUL(a, b) _mm256_mul_ps(a, b)
#define ADD(a, b) _mm256_add_ps(a, b)
#define ABS(a) _mm256_andnot_ps(_mm256_set1_ps((float)-0.0), a)
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#define LOAD_PART(p, r) _mm256_maskload_ps(p, avx_mask_f(r))
#define STORE_PART(p, v, r) _mm256_maskstore_ps(p, avx_mask_f(r), v)
#define SET(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define FNMA(a, b, c) _mm256_fnmadd_ps(a, b, c)
#include "lgatr_body.h"
#undef REAL
#undef INTEGER
#undef UNSIGNED
#undef IS_DOUBLE
#undef VEC
#undef VL
#undef FN
#undef LOW
#undef HIGH
#undef MUL
#undef ADD
#undef ABS
#undef WITH_SIGN
#undef LOAD
#undef STORE
#undef LOAD_PART
#undef STORE_PART
#undef SET
#undef FMA
#undef FNMA

#define REAL double
#define INTEGER int64_t
#define UNSIGNED uint64_t
#define IS_DOUBLE 1
#define VEC __m256d
#define VL 4
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#define FN(name) avx2_d_##name
#define WITH_SIGN(a, s) \
  _mm256_sub_pd(_mm256_and_pd(_mm256_cmp_pd(s, _mm256_setzero_pd(), _CMP_GT_OQ), a), \
               _mm256_and_pd(_mm256_cmp_pd(s, _mm256_setzero_pd(), _CMP_LT_OQ), a))
#define MUL(a, b) _mm256_mul_pd(a, b)
#define ADD(a, b) _mm256_add_pd(a, b)
#define ABS(a) _mm256_andnot_pd(_mm256_set1_pd((double)-0.0), a)
#define LOAD(p) _mm256_loadu_pd(p)
#define STORE(p, v) _mm256_storeu_pd(p, v)
#define LOAD_PART(p, r) _mm256_maskload_pd(p, avx_mask_d(r))
#define STORE_PART(p, v, r) _mm256_maskstore_pd(p, avx_mask_d(r), v)
#define SET(x) _mm256_set1_pd(x)
#define FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#define FNMA(a, b, c) _mm256_fnmadd_pd(a, b, c)
#include "lgatr_body.h"
#undef REAL
#undef INTEGER
#undef UNSIGNED
#undef IS_DOUBLE
#undef VEC
#undef VL
#undef FN
#undef LOW
#undef HIGH
#undef MUL
#undef ADD
#undef ABS
#undef WITH_SIGN
#undef LOAD
#undef STORE
#undef LOAD_PART
#undef STORE_PART
#undef SET
#undef FMA
#undef FNMA
#undef ROWS
#undef GROUPS
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,prefer-vector-width=512")
#define ROWS 12
#define GROUPS 1
#define PART_MASK(r) ((1u << (r)) - 1)

#define REAL float
#define INTEGER int32_t
#define UNSIGNED uint32_t
#define IS_DOUBLE 0
#define VEC __m512
#define VL 16
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define FN(name) avx512_f_##name
#define WITH_SIGN(a, s) \
  _mm512_mask_sub_ps(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(s, _mm512_setzero_ps(), _CMP_GT_OQ), a), \
                   _mm512_cmp_ps_mask(s, _mm512_setzero_ps(), _CMP_LT_OQ), _mm512_setzero_ps(), a)
#define MUL(a, b) _mm512_mul_ps(a, b)
#define ADD(a, b) _mm512_add_ps(a, b)
#define ABS(a) _mm512_abs_ps(a)
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define LOAD_PART(p, r) _mm512_maskz_loadu_ps((__mmask16)PART_MASK(r), p)
#define STORE_PART(p, v, r) _mm512_mask_storeu_ps(p, (__mmask16)PART_MASK(r), v)
#define SET(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define FNMA(a, b, c) _mm512_fnmadd_ps(a, b, c)
#include "lgatr_body.h"
#undef REAL
#undef INTEGER
#undef UNSIGNED
#undef IS_DOUBLE
#undef VEC
#undef VL
#undef FN
#undef LOW
#undef HIGH
#undef MUL
#undef ADD
#undef ABS
#undef WITH_SIGN
#undef LOAD
#undef STORE
#undef LOAD_PART
#undef STORE_PART
#undef SET
#undef FMA
#undef FNMA

#define REAL double
#define INTEGER int64_t
#define UNSIGNED uint64_t
#define IS_DOUBLE 1
#define VEC __m512d
#define VL 8
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#define FN(name) avx512_d_##name
#define WITH_SIGN(a, s) \
  _mm512_mask_sub_pd(_mm512_maskz_mov_pd(_mm512_cmp_pd_mask(s, _mm512_setzero_pd(), _CMP_GT_OQ), a), \
                   _mm512_cmp_pd_mask(s, _mm512_setzero_pd(), _CMP_LT_OQ), _mm512_setzero_pd(), a)
#define MUL(a, b) _mm512_mul_pd(a, b)
#define ADD(a, b) _mm512_add_pd(a, b)
#define ABS(a) _mm512_abs_pd(a)
#define LOAD(p) _mm512_loadu_pd(p)
#define STORE(p, v) _mm512_storeu_pd(p, v)
#define LOAD_PART(p, r) _mm512_maskz_loadu_pd((__mmask8)PART_MASK(r), p)
#define STORE_PART(p, v, r) _mm512_mask_storeu_pd(p, (__mmask8)PART_MASK(r), v)
#define SET(x) _mm512_set1_pd(x)
#define FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#define FNMA(a, b, c) _mm512_fnmadd_pd(a, b, c)
#include "lgatr_body.h"
#pragma GCC pop_options
#endif

/* ------------------------------------------------------------------------------------------------- the choice */

#if defined(__x86_64__)
#define CALL(name, ...)                                  \
  switch (kind) {                                        \
    case 5: avx512_d_##name(__VA_ARGS__); break;         \
    case 4: avx512_f_##name(__VA_ARGS__); break;         \
    case 3: avx2_d_##name(__VA_ARGS__); break;           \
    case 2: avx2_f_##name(__VA_ARGS__); break;           \
    case 1: plain_d_##name(__VA_ARGS__); break;          \
    default: plain_f_##name(__VA_ARGS__);                \
  }
#else
#define CALL(name, ...)                    \
  if (kind & 1)                            \
    plain_d_##name(__VA_ARGS__);           \
  else                                     \
    plain_f_##name(__VA_ARGS__);
#endif

int lgatr_level(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

const char *lgatr_source_digest(void) { return HARNESS_SOURCE_DIGEST; }

void lgatr_pack(int kind, int64_t count, const int32_t *source, const void *parameters, void *packed) {
  CALL(pack, count, source, parameters, packed)
}

void lgatr_unpack(int kind, int64_t count, const int32_t *source, const void *packed, void *parameters) {
  CALL(unpack, count, source, packed, parameters)
}

int64_t lgatr_linear_scratch(const lgatr_shape *shape) { return plan_of(shape).turned; }

void lgatr_linear_forward(int kind, const lgatr_shape *shape, int64_t n, const void *weight, const void *x, void *y) {
  CALL(linear_forward, shape, n, weight, x, y)
}

void lgatr_linear_backward(int kind, const lgatr_shape *shape, int64_t n, const void *weight, const void *x,
                           const void *dy, void *dx, void *dweight, void *scratch) {
  CALL(linear_backward, shape, n, weight, x, dy, dx, dweight, scratch)
}

/* Copy the scalar channels between rows of their own and rows with multivectors. */
static void copy_scalars(size_t size, int channels, int scalars, int64_t n, const char *from, char *to, int out_of) {
  const size_t bytes = (size_t)scalars * size, row = (size_t)row_width(channels, scalars) * size;
  const size_t at = 2 * (size_t)channels * size;
  if (!bytes) return;
  for (int64_t i = 0; i < n; i++)
    if (out_of)
      memcpy(to + (size_t)i * bytes, from + (size_t)i * row + at, bytes);
    else
      memcpy(to + (size_t)i * row + at, from + (size_t)i * bytes, bytes);
}

void lgatr_product_forward(int kind, int channels, int scalars, int bivector, int64_t n, const void *x, const void *y,
                           const void *s, void *out) {
  const int64_t width = row_width(channels, scalars), plain = 16 * (int64_t)channels;
  CALL(product, n, channels, scalars, bivector, x, plain, y, plain, out, width)
  copy_scalars(kind & 1 ? sizeof(double) : sizeof(float), channels, scalars, n, s, out, 0);
}

void lgatr_product_backward(int kind, int channels, int scalars, int bivector, int64_t n, const void *x, const void *y,
                            const void *dout, void *dx, void *dy, void *ds) {
  const int64_t width = row_width(channels, scalars), plain = 16 * (int64_t)channels;
  CALL(product_back, n, channels, scalars, bivector, x, plain, y, plain, dout, width, dx, plain, dy, plain)
  copy_scalars(kind & 1 ? sizeof(double) : sizeof(float), channels, scalars, n, dout, ds, 1);
}

int64_t lgatr_norm_scratch(int channels, int scalars) { return 4 * (int64_t)channels + row_width(channels, scalars); }

void lgatr_norm_forward(int kind, int channels, int scalars, double epsilon, int64_t n, const void *x,
                        const void *gain, void *out, void *scratch) {
  const int64_t width = row_width(channels, scalars);
  CALL(norm, n, channels, scalars, epsilon, x, width, gain, out, width, scratch)
}

void lgatr_norm_backward(int kind, int channels, int scalars, double epsilon, int64_t n, const void *x,
                         const void *gain, const void *dout, void *dx, void *dgain, void *scratch) {
  const int64_t width = row_width(channels, scalars);
  CALL(norm_back, n, channels, scalars, epsilon, x, width, gain, dout, width, dx, width, dgain, 0, scratch)
}

void lgatr_gate_forward(int kind, int channels, int scalars, int nonlinearity, int64_t n, const void *x, void *out,
                        void *scratch) {
  const int64_t width = row_width(channels, scalars);
  CALL(gate, n, channels, scalars, nonlinearity, x, width, out, width, scratch)
}

void lgatr_gate_backward(int kind, int channels, int scalars, int nonlinearity, int64_t n, const void *x,
                         const void *dout, void *dx, void *scratch) {
  const int64_t width = row_width(channels, scalars);
  CALL(gate_back, n, channels, scalars, nonlinearity, x, width, dout, width, dx, width, scratch)
}

void lgatr_heads_forward(int kind, int parts, int heads, int hidden, int hidden_s, int with_signs, int64_t n,
                         const void *x, void *out) {
  CALL(heads, parts, heads, hidden, hidden_s, with_signs, n, x, 0, out)
}

void lgatr_heads_backward(int kind, int parts, int heads, int hidden, int hidden_s, int with_signs, int64_t n,
                          const void *x, const void *dout, void *dx) {
  CALL(heads, parts, heads, hidden, hidden_s, with_signs, n, x, dout, dx)
}

int64_t lgatr_attention_weight(const lgatr_attention *a) { return attention_parts_of(a).count; }

int64_t lgatr_attention_scratch(const lgatr_attention *a, int64_t sets, const int64_t *offsets) {
  const attention_parts p = attention_parts_of(a);
  const tiling t = tiling_of(sets, offsets);
  return t.columns * (2 * p.width + 4 * p.qkv_width + 6 * a->heads + 2 * p.merged + p.depth) +
         3 * t.largest * t.largest + attention_small(a, &p, &t) + 6 * (int64_t)a->channels + p.width +
         2 * p.qkv.turned;
}

void lgatr_attention_forward(int kind, const lgatr_attention *a, int64_t sets, const int64_t *offsets,
                             const void *weight, const void *gain, const void *x, void *y, void *scratch) {
  CALL(attention_forward, a, sets, offsets, weight, a->affine ? gain : 0, x, y, scratch)
}

void lgatr_attention_backward(int kind, const lgatr_attention *a, int64_t sets, const int64_t *offsets,
                              const void *weight, const void *gain, const void *x, const void *dy, void *dx,
                              void *dweight, void *dgain, void *scratch) {
  CALL(attention_backward, a, sets, offsets, weight, a->affine ? gain : 0, x, dy, dx, dweight, a->affine ? dgain : 0,
       scratch)
}

int64_t lgatr_mlp_weight(const lgatr_mlp *m) { return mlp_parts_of(m).count; }

int64_t lgatr_mlp_scratch(const lgatr_mlp *m) {
  const mlp_parts p = mlp_parts_of(m);
  const int64_t k = m->product_mv;
  return TILE * (p.width + 4 * 16 * k + 2 * (16 * k + m->scalars) + 3 * p.hidden) + 20 * (p.hidden + p.width) +
         2 * p.in.turned + p.out.turned + p.last.turned;
}

void lgatr_mlp_forward(int kind, const lgatr_mlp *m, int64_t n, const void *weight, const void *gain, const void *x,
                       void *y, void *hidden, void *scratch) {
  CALL(mlp_forward, m, n, weight, m->affine ? gain : 0, x, y, hidden, scratch)
}

void lgatr_mlp_backward(int kind, const lgatr_mlp *m, int64_t n, const void *weight, const void *gain, const void *x,
                        const void *hidden, const void *dy, void *dx, void *dweight, void *dgain, void *scratch) {
  CALL(mlp_backward, m, n, weight, m->affine ? gain : 0, x, hidden, dy, dx, dweight, m->affine ? dgain : 0, scratch)
}

int64_t lgatr_slim_mlp_weight(const lgatr_slim_mlp *m) { return slim_parts_of(m).count; }

int64_t lgatr_slim_mlp_scratch(const lgatr_slim_mlp *m) {
  const slim_parts p = slim_parts_of(m);
  return TILE * (p.width + 2 * p.in.out + 2 * p.hidden) + 8 * (p.width + p.hidden) + p.in.turned + p.last.turned;
}

void lgatr_slim_mlp_forward(int kind, const lgatr_slim_mlp *m, int64_t n, const void *weight, const void *gain,
                            const void *x, void *y, void *scratch) {
  CALL(slim_mlp_forward, m, n, weight, m->affine ? gain : 0, x, y, scratch)
}

void lgatr_slim_mlp_backward(int kind, const lgatr_slim_mlp *m, int64_t n, const void *weight, const void *gain,
                             const void *x, const void *dy, void *dx, void *dweight, void *dgain, void *scratch) {
  CALL(slim_mlp_backward, m, n, weight, m->affine ? gain : 0, x, dy, dx, dweight, m->affine ? dgain : 0, scratch)
}
