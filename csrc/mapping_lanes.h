/* Sixteen lanes of double, float and int32 for one instruction set; the same IEEE operations in every one of them.
 *
 * Included by a translation unit that has defined LANES_AVX512 or LANES_AVX2 (and switched the compiler to it), or neither:
 * then every operation is a loop over sixteen numbers in plain C.
 */
#ifndef MAPPING_LANES_H
#define MAPPING_LANES_H

#include <float.h>
#include <math.h>
#include <stdint.h>

#define LANES 16
#define LANE static inline __attribute__((always_inline))

#if defined(LANES_AVX512)

#include <immintrin.h>

typedef struct {
    __m512d a, b;
} lanes_d;
typedef __m512 lanes_f;
typedef __m512i lanes_i;
typedef __mmask16 lanes_m;

LANE lanes_d d_load(const double *p) { return (lanes_d){_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}; }
LANE void d_store(double *p, lanes_d x)
{
    _mm512_storeu_pd(p, x.a);
    _mm512_storeu_pd(p + 8, x.b);
}
LANE lanes_d d_set(double x) { return (lanes_d){_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
LANE lanes_d d_add(lanes_d x, lanes_d y) { return (lanes_d){_mm512_add_pd(x.a, y.a), _mm512_add_pd(x.b, y.b)}; }
LANE lanes_d d_sub(lanes_d x, lanes_d y) { return (lanes_d){_mm512_sub_pd(x.a, y.a), _mm512_sub_pd(x.b, y.b)}; }
LANE lanes_d d_mul(lanes_d x, lanes_d y) { return (lanes_d){_mm512_mul_pd(x.a, y.a), _mm512_mul_pd(x.b, y.b)}; }
LANE lanes_d d_div(lanes_d x, lanes_d y) { return (lanes_d){_mm512_div_pd(x.a, y.a), _mm512_div_pd(x.b, y.b)}; }
LANE lanes_d d_sqrt(lanes_d x) { return (lanes_d){_mm512_sqrt_pd(x.a), _mm512_sqrt_pd(x.b)}; }
LANE lanes_f f_from_d(lanes_d x)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.a)), _mm512_cvtpd_ps(x.b), 1);
}
/* floor as int32; INT32_MIN where it does not fit or is NaN */
LANE lanes_i i_floor(lanes_d x)
{
    const __m256i low = _mm512_cvt_roundpd_epi32(x.a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const __m256i high = _mm512_cvt_roundpd_epi32(x.b, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
LANE lanes_i i_load(const int32_t *p) { return _mm512_loadu_si512(p); }
LANE void i_store(int32_t *p, lanes_i x) { _mm512_storeu_si512(p, x); }
LANE lanes_i i_set(int32_t x) { return _mm512_set1_epi32(x); }
LANE lanes_i i_sub(lanes_i x, lanes_i y) { return _mm512_sub_epi32(x, y); }
LANE lanes_i i_add(lanes_i x, lanes_i y) { return _mm512_add_epi32(x, y); }
LANE lanes_i i_or(lanes_i x, lanes_i y) { return _mm512_or_si512(x, y); }
LANE lanes_i i_shift(lanes_i x, int n) { return _mm512_slli_epi32(x, (unsigned)n); }
LANE lanes_i i_blend(lanes_m m, lanes_i yes, lanes_i no) { return _mm512_mask_mov_epi32(no, m, yes); }
LANE lanes_i i_add_where(lanes_m m, lanes_i x, lanes_i y) { return _mm512_mask_add_epi32(x, m, x, y); }
LANE lanes_i i_min(lanes_i x, lanes_i y) { return _mm512_min_epi32(x, y); }
LANE lanes_i i_min_where(lanes_m m, lanes_i x, lanes_i y) { return _mm512_mask_min_epi32(x, m, x, y); }
LANE lanes_m m_below(lanes_i x, lanes_i limit) { return _mm512_cmplt_epu32_mask(x, limit); } /* unsigned */
LANE lanes_m m_equal(lanes_i x, lanes_i y) { return _mm512_cmpeq_epi32_mask(x, y); }
LANE lanes_m m_greater(lanes_i x, lanes_i y) { return _mm512_cmpgt_epi32_mask(x, y); }
LANE lanes_m m_and(lanes_m x, lanes_m y) { return x & y; }
LANE lanes_m m_not(lanes_m x) { return (lanes_m)~x; }
LANE int m_bits(lanes_m m) { return m; }
LANE lanes_m m_from_bits(int bits) { return (lanes_m)bits; }
LANE lanes_d d_max(lanes_d x, lanes_d y) { return (lanes_d){_mm512_max_pd(x.a, y.a), _mm512_max_pd(x.b, y.b)}; }
/* bit k: value[k] and spread[k] are finite and spread[k] >= 0 */
LANE int admitted_bits(const double *value, const double *spread)
{
    const __m512d most = _mm512_set1_pd(DBL_MAX), zero = _mm512_setzero_pd();
    int bits = 0;
    for (int k = 0; k < 2; k++) {
        const __m512d i = _mm512_abs_pd(_mm512_loadu_pd(value + 8 * k)), v = _mm512_loadu_pd(spread + 8 * k);
        bits |= (_mm512_cmp_pd_mask(i, most, _CMP_LE_OQ) & _mm512_cmp_pd_mask(v, zero, _CMP_GE_OQ) &
                 _mm512_cmp_pd_mask(v, most, _CMP_LE_OQ)) << 8 * k;
    }
    return bits;
}
LANE int byte_bits(const uint8_t *p) /* bit k: p[k] != 0 */
{
    const __m128i x = _mm_loadu_si128((const __m128i *)p);
    return _mm_test_epi8_mask(x, x);
}
LANE lanes_i i_gather(const uint32_t *table, lanes_i index) { return _mm512_i32gather_epi32(index, table, 4); }
LANE lanes_i i_right(lanes_i x, int n) { return _mm512_srli_epi32(x, (unsigned)n); }
LANE lanes_i i_and(lanes_i x, lanes_i y) { return _mm512_and_si512(x, y); }
LANE void i_compress(uint32_t *to, lanes_i x, int bits) /* writes all sixteen, the chosen ones first */
{
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32((__mmask16)bits, x));
}

LANE lanes_f f_load(const float *p) { return _mm512_loadu_ps(p); }
LANE void f_store(float *p, lanes_f x) { _mm512_storeu_ps(p, x); }
LANE lanes_f f_set(float x) { return _mm512_set1_ps(x); }
LANE lanes_f f_add(lanes_f x, lanes_f y) { return _mm512_add_ps(x, y); }
LANE lanes_f f_sub(lanes_f x, lanes_f y) { return _mm512_sub_ps(x, y); }
LANE lanes_f f_mul(lanes_f x, lanes_f y) { return _mm512_mul_ps(x, y); }
LANE lanes_f f_floor(lanes_f x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
LANE lanes_i i_from_f(lanes_f x) { return _mm512_cvttps_epi32(x); }
LANE lanes_f f_fused(lanes_f x, lanes_f y, lanes_f z) { return _mm512_fmadd_ps(x, y, z); }
LANE lanes_f f_min(lanes_f x, lanes_f y) { return _mm512_min_ps(x, y); }
LANE lanes_f f_max(lanes_f x, lanes_f y) { return _mm512_max_ps(x, y); }
LANE int above_bits(lanes_f x, lanes_f y) { return _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ); }

#elif defined(LANES_AVX2)

#include <immintrin.h>

typedef struct {
    __m256d p[4];
} lanes_d;
typedef struct {
    __m256 p[2];
} lanes_f;
typedef struct {
    __m256i p[2];
} lanes_i;
typedef lanes_i lanes_m;

#define EACH_D(expression)                                                                                             \
    lanes_d r;                                                                                                         \
    for (int k = 0; k < 4; k++)                                                                                        \
        r.p[k] = expression;                                                                                           \
    return r
#define EACH_F(expression)                                                                                             \
    lanes_f r;                                                                                                         \
    for (int k = 0; k < 2; k++)                                                                                        \
        r.p[k] = expression;                                                                                           \
    return r
#define EACH_I(expression)                                                                                             \
    lanes_i r;                                                                                                         \
    for (int k = 0; k < 2; k++)                                                                                        \
        r.p[k] = expression;                                                                                           \
    return r

LANE lanes_d d_load(const double *p) { EACH_D(_mm256_loadu_pd(p + 4 * k)); }
LANE void d_store(double *p, lanes_d x)
{
    for (int k = 0; k < 4; k++)
        _mm256_storeu_pd(p + 4 * k, x.p[k]);
}
LANE lanes_d d_set(double x) { EACH_D(_mm256_set1_pd(x)); }
LANE lanes_d d_add(lanes_d x, lanes_d y) { EACH_D(_mm256_add_pd(x.p[k], y.p[k])); }
LANE lanes_d d_sub(lanes_d x, lanes_d y) { EACH_D(_mm256_sub_pd(x.p[k], y.p[k])); }
LANE lanes_d d_mul(lanes_d x, lanes_d y) { EACH_D(_mm256_mul_pd(x.p[k], y.p[k])); }
LANE lanes_d d_div(lanes_d x, lanes_d y) { EACH_D(_mm256_div_pd(x.p[k], y.p[k])); }
LANE lanes_d d_sqrt(lanes_d x) { EACH_D(_mm256_sqrt_pd(x.p[k])); }
LANE lanes_f f_from_d(lanes_d x)
{
    EACH_F(_mm256_set_m128(_mm256_cvtpd_ps(x.p[2 * k + 1]), _mm256_cvtpd_ps(x.p[2 * k])));
}
LANE lanes_i i_floor(lanes_d x)
{
    EACH_I(_mm256_set_m128i(_mm256_cvttpd_epi32(_mm256_floor_pd(x.p[2 * k + 1])),
                            _mm256_cvttpd_epi32(_mm256_floor_pd(x.p[2 * k]))));
}
LANE lanes_i i_load(const int32_t *p) { EACH_I(_mm256_loadu_si256((const __m256i *)(p + 8 * k))); }
LANE void i_store(int32_t *p, lanes_i x)
{
    for (int k = 0; k < 2; k++)
        _mm256_storeu_si256((__m256i *)(p + 8 * k), x.p[k]);
}
LANE lanes_i i_set(int32_t x) { EACH_I(_mm256_set1_epi32(x)); }
LANE lanes_i i_sub(lanes_i x, lanes_i y) { EACH_I(_mm256_sub_epi32(x.p[k], y.p[k])); }
LANE lanes_i i_add(lanes_i x, lanes_i y) { EACH_I(_mm256_add_epi32(x.p[k], y.p[k])); }
LANE lanes_i i_or(lanes_i x, lanes_i y) { EACH_I(_mm256_or_si256(x.p[k], y.p[k])); }
LANE lanes_i i_shift(lanes_i x, int n) { EACH_I(_mm256_sll_epi32(x.p[k], _mm_cvtsi32_si128(n))); }
LANE lanes_i i_blend(lanes_m m, lanes_i yes, lanes_i no) { EACH_I(_mm256_blendv_epi8(no.p[k], yes.p[k], m.p[k])); }
LANE lanes_i i_add_where(lanes_m m, lanes_i x, lanes_i y)
{
    EACH_I(_mm256_add_epi32(x.p[k], _mm256_and_si256(m.p[k], y.p[k])));
}
LANE lanes_i i_min(lanes_i x, lanes_i y) { EACH_I(_mm256_min_epi32(x.p[k], y.p[k])); }
LANE lanes_i i_min_where(lanes_m m, lanes_i x, lanes_i y)
{
    EACH_I(_mm256_blendv_epi8(x.p[k], _mm256_min_epi32(x.p[k], y.p[k]), m.p[k]));
}
LANE lanes_m m_below(lanes_i x, lanes_i limit) /* limit >= 1 */
{
    EACH_I(_mm256_cmpeq_epi32(_mm256_min_epu32(x.p[k], _mm256_sub_epi32(limit.p[k], _mm256_set1_epi32(1))), x.p[k]));
}
LANE lanes_m m_equal(lanes_i x, lanes_i y) { EACH_I(_mm256_cmpeq_epi32(x.p[k], y.p[k])); }
LANE lanes_m m_greater(lanes_i x, lanes_i y) { EACH_I(_mm256_cmpgt_epi32(x.p[k], y.p[k])); }
LANE lanes_m m_and(lanes_m x, lanes_m y) { EACH_I(_mm256_and_si256(x.p[k], y.p[k])); }
LANE lanes_m m_not(lanes_m x) { EACH_I(_mm256_xor_si256(x.p[k], _mm256_set1_epi32(-1))); }
LANE lanes_d d_max(lanes_d x, lanes_d y) { EACH_D(_mm256_max_pd(x.p[k], y.p[k])); }
LANE int admitted_bits(const double *value, const double *spread)
{
    const __m256d most = _mm256_set1_pd(DBL_MAX), zero = _mm256_setzero_pd(), sign = _mm256_set1_pd(-0.0);
    int bits = 0;
    for (int k = 0; k < 4; k++) {
        const __m256d i = _mm256_andnot_pd(sign, _mm256_loadu_pd(value + 4 * k)), v = _mm256_loadu_pd(spread + 4 * k);
        const __m256d good = _mm256_and_pd(_mm256_cmp_pd(i, most, _CMP_LE_OQ),
                                           _mm256_and_pd(_mm256_cmp_pd(v, zero, _CMP_GE_OQ), _mm256_cmp_pd(v, most, _CMP_LE_OQ)));
        bits |= _mm256_movemask_pd(good) << 4 * k;
    }
    return bits;
}
LANE int byte_bits(const uint8_t *p)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)p);
    return ~_mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_setzero_si128())) & 0xffff;
}
LANE lanes_i i_gather(const uint32_t *table, lanes_i index)
{
    EACH_I(_mm256_i32gather_epi32((const int *)table, index.p[k], 4));
}
LANE lanes_i i_right(lanes_i x, int n) { EACH_I(_mm256_srl_epi32(x.p[k], _mm_cvtsi32_si128(n))); }
LANE lanes_i i_and(lanes_i x, lanes_i y) { EACH_I(_mm256_and_si256(x.p[k], y.p[k])); }
LANE void i_compress(uint32_t *to, lanes_i x, int bits)
{
    uint32_t all[LANES];
    for (int k = 0; k < 2; k++)
        _mm256_storeu_si256((__m256i *)(all + 8 * k), x.p[k]);
    for (int k = 0; k < LANES; k++) {
        *to = all[k];
        to += bits >> k & 1;
    }
}
LANE int m_bits(lanes_m m)
{
    return _mm256_movemask_ps(_mm256_castsi256_ps(m.p[0])) | _mm256_movemask_ps(_mm256_castsi256_ps(m.p[1])) << 8;
}

LANE lanes_f f_load(const float *p) { EACH_F(_mm256_loadu_ps(p + 8 * k)); }
LANE void f_store(float *p, lanes_f x)
{
    for (int k = 0; k < 2; k++)
        _mm256_storeu_ps(p + 8 * k, x.p[k]);
}
LANE lanes_f f_set(float x) { EACH_F(_mm256_set1_ps(x)); }
LANE lanes_f f_add(lanes_f x, lanes_f y) { EACH_F(_mm256_add_ps(x.p[k], y.p[k])); }
LANE lanes_f f_sub(lanes_f x, lanes_f y) { EACH_F(_mm256_sub_ps(x.p[k], y.p[k])); }
LANE lanes_f f_mul(lanes_f x, lanes_f y) { EACH_F(_mm256_mul_ps(x.p[k], y.p[k])); }
LANE lanes_f f_floor(lanes_f x) { EACH_F(_mm256_floor_ps(x.p[k])); }
LANE lanes_i i_from_f(lanes_f x) { EACH_I(_mm256_cvttps_epi32(x.p[k])); }
LANE lanes_f f_fused(lanes_f x, lanes_f y, lanes_f z) { EACH_F(_mm256_fmadd_ps(x.p[k], y.p[k], z.p[k])); }
LANE lanes_f f_min(lanes_f x, lanes_f y) { EACH_F(_mm256_min_ps(x.p[k], y.p[k])); }
LANE lanes_f f_max(lanes_f x, lanes_f y) { EACH_F(_mm256_max_ps(x.p[k], y.p[k])); }
LANE int above_bits(lanes_f x, lanes_f y)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(x.p[0], y.p[0], _CMP_GT_OQ)) |
           _mm256_movemask_ps(_mm256_cmp_ps(x.p[1], y.p[1], _CMP_GT_OQ)) << 8;
}

#else

typedef struct {
    double v[LANES];
} lanes_d;
typedef struct {
    float v[LANES];
} lanes_f;
typedef struct {
    int32_t v[LANES];
} lanes_i;
typedef struct {
    int32_t v[LANES]; /* 0 or -1 */
} lanes_m;

#define EACH(type, expression)                                                                                         \
    type r;                                                                                                            \
    for (int k = 0; k < LANES; k++)                                                                                    \
        r.v[k] = expression;                                                                                           \
    return r

LANE int32_t floor_of(double x)
{
    if (!(x >= -2147483648.0 && x < 2147483648.0))
        return INT32_MIN;
    const int32_t n = (int32_t)x;
    return n - ((double)n > x);
}

LANE lanes_d d_load(const double *p) { EACH(lanes_d, p[k]); }
LANE void d_store(double *p, lanes_d x)
{
    for (int k = 0; k < LANES; k++)
        p[k] = x.v[k];
}
LANE lanes_d d_set(double x) { EACH(lanes_d, x); }
LANE lanes_d d_add(lanes_d x, lanes_d y) { EACH(lanes_d, x.v[k] + y.v[k]); }
LANE lanes_d d_sub(lanes_d x, lanes_d y) { EACH(lanes_d, x.v[k] - y.v[k]); }
LANE lanes_d d_mul(lanes_d x, lanes_d y) { EACH(lanes_d, x.v[k] * y.v[k]); }
LANE lanes_d d_div(lanes_d x, lanes_d y) { EACH(lanes_d, x.v[k] / y.v[k]); }
LANE lanes_d d_sqrt(lanes_d x) { EACH(lanes_d, sqrt(x.v[k])); }
LANE lanes_f f_from_d(lanes_d x) { EACH(lanes_f, (float)x.v[k]); }
LANE lanes_i i_floor(lanes_d x) { EACH(lanes_i, floor_of(x.v[k])); }
LANE lanes_i i_load(const int32_t *p) { EACH(lanes_i, p[k]); }
LANE void i_store(int32_t *p, lanes_i x)
{
    for (int k = 0; k < LANES; k++)
        p[k] = x.v[k];
}
LANE lanes_i i_set(int32_t x) { EACH(lanes_i, x); }
LANE lanes_i i_sub(lanes_i x, lanes_i y) { EACH(lanes_i, (int32_t)((uint32_t)x.v[k] - (uint32_t)y.v[k])); }
LANE lanes_i i_add(lanes_i x, lanes_i y) { EACH(lanes_i, (int32_t)((uint32_t)x.v[k] + (uint32_t)y.v[k])); }
LANE lanes_i i_or(lanes_i x, lanes_i y) { EACH(lanes_i, x.v[k] | y.v[k]); }
LANE lanes_i i_shift(lanes_i x, int n) { EACH(lanes_i, (int32_t)((uint32_t)x.v[k] << n)); }
LANE lanes_i i_blend(lanes_m m, lanes_i yes, lanes_i no) { EACH(lanes_i, (m.v[k] & yes.v[k]) | (~m.v[k] & no.v[k])); }
LANE lanes_i i_add_where(lanes_m m, lanes_i x, lanes_i y) { EACH(lanes_i, x.v[k] + (m.v[k] & y.v[k])); }
LANE lanes_i i_min(lanes_i x, lanes_i y) { EACH(lanes_i, x.v[k] < y.v[k] ? x.v[k] : y.v[k]); }
LANE lanes_i i_min_where(lanes_m m, lanes_i x, lanes_i y)
{
    EACH(lanes_i, m.v[k] && y.v[k] < x.v[k] ? y.v[k] : x.v[k]);
}
LANE lanes_m m_below(lanes_i x, lanes_i limit) { EACH(lanes_m, -((uint32_t)x.v[k] < (uint32_t)limit.v[k])); }
LANE lanes_m m_equal(lanes_i x, lanes_i y) { EACH(lanes_m, -(x.v[k] == y.v[k])); }
LANE lanes_m m_greater(lanes_i x, lanes_i y) { EACH(lanes_m, -(x.v[k] > y.v[k])); }
LANE lanes_m m_and(lanes_m x, lanes_m y) { EACH(lanes_m, x.v[k] & y.v[k]); }
LANE lanes_m m_not(lanes_m x) { EACH(lanes_m, ~x.v[k]); }
LANE lanes_d d_max(lanes_d x, lanes_d y) { EACH(lanes_d, x.v[k] > y.v[k] ? x.v[k] : y.v[k]); } /* y where either is NaN */
LANE int admitted_bits(const double *value, const double *spread)
{
    int bits = 0;
    for (int k = 0; k < LANES; k++)
        bits |= ((fabs(value[k]) <= DBL_MAX) & (spread[k] >= 0.0) & (spread[k] <= DBL_MAX)) << k;
    return bits;
}
LANE int byte_bits(const uint8_t *p)
{
    int bits = 0;
    for (int k = 0; k < LANES; k++)
        bits |= (p[k] != 0) << k;
    return bits;
}
LANE lanes_i i_gather(const uint32_t *table, lanes_i index) { EACH(lanes_i, (int32_t)table[index.v[k]]); }
LANE lanes_i i_right(lanes_i x, int n) { EACH(lanes_i, (int32_t)((uint32_t)x.v[k] >> n)); }
LANE lanes_i i_and(lanes_i x, lanes_i y) { EACH(lanes_i, x.v[k] & y.v[k]); }
LANE void i_compress(uint32_t *to, lanes_i x, int bits)
{
    for (int k = 0; k < LANES; k++) {
        *to = (uint32_t)x.v[k];
        to += bits >> k & 1;
    }
}
LANE int m_bits(lanes_m m)
{
    int bits = 0;
    for (int k = 0; k < LANES; k++)
        bits |= (m.v[k] & 1) << k;
    return bits;
}

LANE lanes_f f_load(const float *p) { EACH(lanes_f, p[k]); }
LANE void f_store(float *p, lanes_f x)
{
    for (int k = 0; k < LANES; k++)
        p[k] = x.v[k];
}
LANE lanes_f f_set(float x) { EACH(lanes_f, x); }
LANE lanes_f f_add(lanes_f x, lanes_f y) { EACH(lanes_f, x.v[k] + y.v[k]); }
LANE lanes_f f_sub(lanes_f x, lanes_f y) { EACH(lanes_f, x.v[k] - y.v[k]); }
LANE lanes_f f_mul(lanes_f x, lanes_f y) { EACH(lanes_f, x.v[k] * y.v[k]); }
LANE lanes_f f_floor(lanes_f x) { EACH(lanes_f, floorf(x.v[k])); }
LANE lanes_i i_from_f(lanes_f x) { EACH(lanes_i, floor_of((double)x.v[k])); }
LANE lanes_f f_fused(lanes_f x, lanes_f y, lanes_f z) { EACH(lanes_f, x.v[k] * y.v[k] + z.v[k]); } /* fused or not */
LANE lanes_f f_min(lanes_f x, lanes_f y) { EACH(lanes_f, x.v[k] < y.v[k] ? x.v[k] : y.v[k]); }
LANE lanes_f f_max(lanes_f x, lanes_f y) { EACH(lanes_f, x.v[k] > y.v[k] ? x.v[k] : y.v[k]); }
LANE int above_bits(lanes_f x, lanes_f y)
{
    int bits = 0;
    for (int k = 0; k < LANES; k++)
        bits |= (x.v[k] > y.v[k]) << k;
    return bits;
}

#endif
#endif
