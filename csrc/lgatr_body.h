/* The kernels for one kind of number and one set of instructions; lgatr.c includes this once for each.

   Expects: REAL, INTEGER (of the same size), IS_DOUBLE, FN(name), VEC, VL (numbers in a VEC), LOAD, STORE, LOAD_PART,
   STORE_PART (the first r numbers only), SET, FMA(a, b, c) = a b + c, FNMA(a, b, c) = c - a b, MUL, ADD, ABS,
   WITH_SIGN(a, s) = a, -a or 0 by the sign of s, ROWS (rows of a
   product's register block), GROUPS (1 or 2 passes over the outputs of the geometric product). */

/* ------------------------------------------------------------------------------------------- matrix products */

/* c (m, two vectors) (+)= a (m, k) b (k, two vectors); element (i, p) of a is a[i am + p ak] */
#define MICRO(M, NAME, WIDTH, GET, PUT)                                                                      \
  static void FN(NAME##M)(int64_t k, const REAL *a, int64_t am, int64_t ak, const REAL *b, int64_t bk, REAL *c, \
                          int64_t cm, int add, int rest) {                                                   \
    VEC sum[M][WIDTH];                                                                                       \
    (void)rest;                                                                                              \
    _Pragma("GCC unroll 16") for (int i = 0; i < M; i++)                                                     \
        _Pragma("GCC unroll 2") for (int v = 0; v < WIDTH; v++) sum[i][v] =                                  \
            add ? GET(c + i * cm + v * VL, rest) : SET((REAL)0);                                             \
    for (int64_t p = 0; p < k; p++) {                                                                        \
      VEC right[WIDTH];                                                                                      \
      _Pragma("GCC unroll 2") for (int v = 0; v < WIDTH; v++) right[v] = GET(b + p * bk + v * VL, rest);     \
      _Pragma("GCC unroll 16") for (int i = 0; i < M; i++) {                                                 \
        const VEC left = SET(a[i * am + p * ak]);                                                            \
        _Pragma("GCC unroll 2") for (int v = 0; v < WIDTH; v++) sum[i][v] = FMA(left, right[v], sum[i][v]);  \
      }                                                                                                      \
    }                                                                                                        \
    _Pragma("GCC unroll 16") for (int i = 0; i < M; i++)                                                     \
        _Pragma("GCC unroll 2") for (int v = 0; v < WIDTH; v++) PUT(c + i * cm + v * VL, sum[i][v], rest);   \
  }
#define GET_ALL(p, r) LOAD(p)
#define PUT_ALL(p, v, r) STORE(p, v)
#define MICROS(M) \
  MICRO(M, two_, 2, GET_ALL, PUT_ALL) MICRO(M, one_, 1, GET_ALL, PUT_ALL) MICRO(M, part_, 1, LOAD_PART, STORE_PART)
MICROS(1)
MICROS(2)
MICROS(3)
MICROS(4)
MICROS(5)
MICROS(6)
#if ROWS > 6
MICROS(7)
MICROS(8)
MICROS(9)
MICROS(10)
MICROS(11)
MICROS(12)
#endif

typedef void (*FN(micro))(int64_t, const REAL *, int64_t, int64_t, const REAL *, int64_t, REAL *, int64_t, int, int);

/* c (m, n) (+)= a (m, k) b (k, n). Columns come in panels of LGATR_PANEL: panel p of b is b + p bp, of c is c + p cp;
   rows within a panel are bk and cm apart. A plain matrix has bp = cp = LGATR_PANEL. */
static void FN(gemm)(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t am, int64_t ak, const REAL *b, int64_t bk,
                     int64_t bp, REAL *c, int64_t cm, int64_t cp, int add) {
#if ROWS > 6
  static const FN(micro) two[] = {0, FN(two_1), FN(two_2), FN(two_3), FN(two_4), FN(two_5), FN(two_6), FN(two_7),
                                  FN(two_8), FN(two_9), FN(two_10), FN(two_11), FN(two_12)};
  static const FN(micro) one[] = {0, FN(one_1), FN(one_2), FN(one_3), FN(one_4), FN(one_5), FN(one_6), FN(one_7),
                                  FN(one_8), FN(one_9), FN(one_10), FN(one_11), FN(one_12)};
  static const FN(micro) part[] = {0, FN(part_1), FN(part_2), FN(part_3), FN(part_4), FN(part_5), FN(part_6),
                                   FN(part_7), FN(part_8), FN(part_9), FN(part_10), FN(part_11), FN(part_12)};
#else
  static const FN(micro) two[] = {0, FN(two_1), FN(two_2), FN(two_3), FN(two_4), FN(two_5), FN(two_6)};
  static const FN(micro) one[] = {0, FN(one_1), FN(one_2), FN(one_3), FN(one_4), FN(one_5), FN(one_6)};
  static const FN(micro) part[] = {0, FN(part_1), FN(part_2), FN(part_3), FN(part_4), FN(part_5), FN(part_6)};
#endif
  for (int64_t first = 0; first < n; first += LGATR_PANEL) {
    const int64_t end = n - first < LGATR_PANEL ? n - first : LGATR_PANEL;
    const REAL *panel_b = b + first / LGATR_PANEL * bp;
    REAL *panel_c = c + first / LGATR_PANEL * cp;
    for (int64_t column = 0; column < end;) {
      const int64_t left = end - column;
      const FN(micro) *kernels = left >= 2 * VL ? two : left >= VL ? one : part;
      for (int64_t row = 0; row < m; row += ROWS) {
        const int64_t rows = m - row < ROWS ? m - row : ROWS;
        kernels[rows](k, a + row * am, am, ak, panel_b + column, bk, panel_c + row * cm + column, cm, add, (int)left);
      }
      column += left >= 2 * VL ? 2 * VL : left >= VL ? VL : left;
    }
  }
}

/* Squares of VL x VL numbers are turned in registers: log2(VL) rounds that interleave rows i and i + VL / 2. */
static void FN(transpose)(int64_t rows, int64_t columns, const REAL *restrict from, int64_t from_row,
                          REAL *restrict to, int64_t to_row) {
#ifdef INTERLEAVE
  for (int64_t i = 0; i < rows; i += VL)
    for (int64_t j = 0; j < columns; j += VL) {
      const int height = rows - i < VL ? (int)(rows - i) : VL, width = columns - j < VL ? (int)(columns - j) : VL;
      VEC a[VL], b[VL];
      for (int k = 0; k < VL; k++) {
        const REAL *row = from + (i + k) * from_row + j;
        a[k] = k >= height ? SET((REAL)0) : width < VL ? LOAD_PART(row, width) : LOAD(row);
      }
#pragma GCC unroll 4
      for (int round = 1; round < VL; round *= 2) {
#pragma GCC unroll 8
        for (int k = 0; k < VL / 2; k++) {
          b[2 * k] = INTERLEAVE(a[k], a[k + VL / 2], LOW);
          b[2 * k + 1] = INTERLEAVE(a[k], a[k + VL / 2], HIGH);
        }
#pragma GCC unroll 16
        for (int k = 0; k < VL; k++) a[k] = b[k];
      }
      for (int k = 0; k < width; k++) {
        REAL *column = to + (j + k) * to_row + i;
        if (height < VL)
          STORE_PART(column, a[k], height);
        else
          STORE(column, a[k]);
      }
    }
#else
  for (int64_t first = 0; first < columns; first += 8) {
    const int64_t end = columns - first < 8 ? columns : first + 8;
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = first; j < end; j++) to[j * to_row + i] = from[i * from_row + j];
  }
#endif
}

static REAL FN(total)(VEC sum) {
  REAL parts[VL], result = 0;
  STORE(parts, sum);
  for (int i = 0; i < VL; i++) result += parts[i];
  return result;
}

static REAL FN(dot)(const REAL *a, const REAL *b, int64_t n) {
  VEC sum = SET((REAL)0);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) sum = FMA(LOAD(a + i), LOAD(b + i), sum);
  if (i < n) sum = FMA(LOAD_PART(a + i, (int)(n - i)), LOAD_PART(b + i, (int)(n - i)), sum);
  return FN(total)(sum);
}

static REAL FN(sum)(const REAL *a, int64_t n) {
  VEC sum = SET((REAL)0);
  const VEC one = SET((REAL)1);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) sum = FMA(LOAD(a + i), one, sum);
  if (i < n) sum = FMA(LOAD_PART(a + i, (int)(n - i)), one, sum);
  return FN(total)(sum);
}

/* --------------------------------------------------------------------------------------------- linear maps */

/* Multiply t rows by a packed weight; with `add` to what is there, without the bias. */
static void FN(linear)(const plan *p, int64_t t, const REAL *w, const REAL *x, int64_t xs, REAL *y, int64_t ys,
                       int add) {
  for (int i = 0; i < p->count; i++) {
    const item *q = p->items + i;
    FN(gemm)(t, q->n, q->k, x + q->from, xs, 1, w + q->at, LGATR_PANEL, q->k * LGATR_PANEL, y + q->to, ys, LGATR_PANEL,
             add);
  }
  if (p->biases && !add) {
    const REAL *bias = w + p->bias;
    for (int64_t i = 0; i < t; i++)
      for (int64_t j = 0; j < p->biases; j++) y[i * ys + p->bias_to + j] += bias[j];
  }
}

/* Panels of a (k, n) matrix -> panels of the (n, k) one. */
static void FN(turn)(int64_t k, int64_t n, const REAL *from, REAL *to, int add) {
  for (int64_t p = 0; p < k; p += LGATR_PANEL) {
    const int64_t width = k - p < LGATR_PANEL ? k - p : LGATR_PANEL;
    for (int64_t q = 0; q < n; q += LGATR_PANEL) {
      const int64_t height = n - q < LGATR_PANEL ? n - q : LGATR_PANEL;
      const REAL *source = from + q * k + p * LGATR_PANEL;
      REAL *target = to + p * n + q * LGATR_PANEL;
      if (add)
        for (int64_t i = 0; i < height; i++)
          for (int64_t j = 0; j < width; j++) target[i * LGATR_PANEL + j] += source[j * LGATR_PANEL + i];
      else
        for (int64_t i = 0; i < height; i++)
          for (int64_t j = 0; j < width; j++) target[i * LGATR_PANEL + j] = source[j * LGATR_PANEL + i];
    }
  }
}

/* The matrices of the transposed map, of p->turned numbers. */
static void FN(turn_weight)(const plan *p, const REAL *w, REAL *turned) {
  for (int i = 0; i < p->count; i++) {
    const item *q = p->items + i;
    if (!i || q->at != q[-1].at) FN(turn)(q->k, q->n, w + q->at, turned + q->turned, 0);
  }
}

/* dx (+)= dy times the turned weight */
static void FN(linear_dx)(const plan *p, int64_t t, const REAL *turned, const REAL *dy, int64_t dys, REAL *dx,
                          int64_t dxs, int add) {
  for (int i = 0; i < p->count; i++) {
    const item *q = p->items + i;
    FN(gemm)(t, q->k, q->n, dy + q->to, dys, 1, turned + q->turned, LGATR_PANEL, q->n * LGATR_PANEL, dx + q->from, dxs,
             LGATR_PANEL, add);
  }
}

static void FN(bias_dw)(const plan *p, int64_t t, const REAL *dy, int64_t dys, REAL *dw) {
  for (int64_t i = 0; i < t; i++)
    for (int64_t j = 0; j < p->biases; j++) dw[p->bias + j] += dy[i * dys + p->bias_to + j];
}

/* dw += xᵀ dy */
static void FN(linear_dw)(const plan *p, int64_t t, const REAL *x, int64_t xs, const REAL *dy, int64_t dys, REAL *dw) {
  for (int i = 0; i < p->count; i++) {
    const item *q = p->items + i;
    FN(gemm)(q->k, q->n, t, x + q->from, 1, xs, dy + q->to, dys, LGATR_PANEL, dw + q->at, LGATR_PANEL,
             q->k * LGATR_PANEL, 1);
  }
  FN(bias_dw)(p, t, dy, dys, dw);
}

/* ------------------------------------------------------------------------------------------ geometric product */

#define SIGN_OF(a, b) (TERM_SIGN(a, b) * STORED(a) * STORED(b) * STORED((a) ^ (b)))
#define TERM(a, b, in)                                                                                 \
  if (in((a) ^ (b))) out[(a) ^ (b)] = SIGN_OF(a, b) > 0 ? FMA(x[a], y[b], out[(a) ^ (b)]) : FNMA(x[a], y[b], out[(a) ^ (b)]);
#define TERM_X(a, b, in) \
  if (in(a)) out[a] = SIGN_OF(a, b) > 0 ? FMA(g[(a) ^ (b)], y[b], out[a]) : FNMA(g[(a) ^ (b)], y[b], out[a]);
#define TERM_Y(a, b, in) \
  if (in(b)) out[b] = SIGN_OF(a, b) > 0 ? FMA(g[(a) ^ (b)], x[a], out[b]) : FNMA(g[(a) ^ (b)], x[a], out[b]);
#define ROW(T, a, in)                                                                                              \
  T(a, 0, in) T(a, 1, in) T(a, 2, in) T(a, 3, in) T(a, 4, in) T(a, 5, in) T(a, 6, in) T(a, 7, in) T(a, 8, in)      \
      T(a, 9, in) T(a, 10, in) T(a, 11, in) T(a, 12, in) T(a, 13, in) T(a, 14, in) T(a, 15, in)
#define ALL_TERMS(T, in)                                                                                         \
  ROW(T, 0, in) ROW(T, 1, in) ROW(T, 2, in) ROW(T, 3, in) ROW(T, 4, in) ROW(T, 5, in) ROW(T, 6, in) ROW(T, 7, in) \
      ROW(T, 8, in) ROW(T, 9, in) ROW(T, 10, in) ROW(T, 11, in) ROW(T, 12, in) ROW(T, 13, in) ROW(T, 14, in)     \
          ROW(T, 15, in)
#define ALWAYS(m) 1
#define LOWER(m) ((m) < 8)
#define UPPER(m) ((m) >= 8)
#if GROUPS == 1
#define PASSES(T) ALL_TERMS(T, ALWAYS)
#else
#define PASSES(T) ALL_TERMS(T, LOWER) ALL_TERMS(T, UPPER)
#endif

/* The half planes of a row by blade mask; z0 is what lies between Z's pairs and V (the scalar channels). */
static void FN(get)(const REAL *p, int64_t c, int64_t scalars, int64_t j, int r, VEC *half) {
#pragma GCC unroll 16
  for (int m = 0; m < 16; m++) {
    const REAL *q = p + PLANE(m) * c + (PLANE(m) >= 2 ? scalars : 0) + j;
    half[m] = r < VL ? LOAD_PART(q, r) : LOAD(q);
  }
}

static void FN(put)(REAL *p, int64_t c, int64_t scalars, int64_t j, int r, const VEC *half, int add) {
#pragma GCC unroll 16
  for (int m = 0; m < 16; m++) {
    REAL *q = p + PLANE(m) * c + (PLANE(m) >= 2 ? scalars : 0) + j;
    VEC value = half[m];
    if (add) value = FMA(SET((REAL)1), r < VL ? LOAD_PART(q, r) : LOAD(q), value);
    if (r < VL)
      STORE_PART(q, value, r);
    else
      STORE(q, value);
  }
}

/* out (16 c + scalars, the scalars untouched) = x y, both 16 c */
static void FN(product)(int64_t t, int64_t c, int64_t scalars, int bivector, const REAL *px, int64_t xs,
                        const REAL *py, int64_t ys, REAL *po, int64_t os) {
  for (int64_t i = 0; i < t; i++, px += xs, py += ys, po += os)
    for (int64_t j = 0; j < c; j += VL) {
      const int r = c - j < VL ? (int)(c - j) : VL;
      VEC x[16], y[16], out[16];
      FN(get)(px, c, 0, j, r, x);
      FN(get)(py, c, 0, j, r, y);
#pragma GCC unroll 16
      for (int m = 0; m < 16; m++) out[m] = SET((REAL)0);
      PASSES(TERM)
      if (!bivector) {
#pragma GCC unroll 16
        for (int m = 0; m < 16; m++)
          if (__builtin_popcount(m) == 2) out[m] = SET((REAL)0);
      }
      FN(put)(po, c, scalars, j, r, out, 0);
    }
}

static void FN(product_back)(int64_t t, int64_t c, int64_t scalars, int bivector, const REAL *px, int64_t xs,
                             const REAL *py, int64_t ys, const REAL *pg, int64_t gs, REAL *dx, int64_t dxs, REAL *dy,
                             int64_t dys) {
  for (int64_t i = 0; i < t; i++, px += xs, py += ys, pg += gs, dx += dxs, dy += dys)
    for (int64_t j = 0; j < c; j += VL) {
      const int r = c - j < VL ? (int)(c - j) : VL;
      VEC x[16], y[16], g[16], out[16];
      FN(get)(pg, c, scalars, j, r, g);
      if (!bivector) {
#pragma GCC unroll 16
        for (int m = 0; m < 16; m++)
          if (__builtin_popcount(m) == 2) g[m] = SET((REAL)0);
      }
      FN(get)(py, c, 0, j, r, y);
#pragma GCC unroll 16
      for (int m = 0; m < 16; m++) out[m] = SET((REAL)0);
      PASSES(TERM_X)
      FN(get)(px, c, 0, j, r, x);
      FN(put)(dx, c, 0, j, r, out, 0);
#pragma GCC unroll 16
      for (int m = 0; m < 16; m++) out[m] = SET((REAL)0);
      PASSES(TERM_Y)
      FN(put)(dy, c, 0, j, r, out, 0);
    }
}

/* ------------------------------------------------------------------------------------------------------ norms */

/* Signed squares of the grades that can change sign, one number a channel; returns the mean of the norms. */
static REAL FN(squares)(const REAL *restrict x, int64_t c, int64_t scalars, REAL *restrict vector,
                        REAL *restrict axial, REAL *restrict bivector, REAL *restrict norm) {
  const REAL *restrict v = x + 2 * c + scalars, *restrict f = v + 8 * c;
  for (int64_t j = 0; j < c; j++) {
    const REAL t = v[j], a = v[2 * c + j], b = v[4 * c + j], d = v[6 * c + j];
    vector[j] = t * t - a * a - b * b - d * d;
  }
  for (int64_t j = 0; j < c; j++) {
    const REAL t = v[c + j], a = v[3 * c + j], b = v[5 * c + j], d = v[7 * c + j];
    axial[j] = a * a + b * b + d * d - t * t;
  }
  for (int64_t j = 0; j < c; j++) {
    const REAL e0 = f[j], e1 = f[2 * c + j], e2 = f[4 * c + j], m0 = f[c + j], m1 = f[3 * c + j], m2 = f[5 * c + j];
    bivector[j] = m0 * m0 + m1 * m1 + m2 * m2 - e0 * e0 - e1 * e1 - e2 * e2;
  }
  for (int64_t j = 0; j < c; j++) {
    const REAL p = vector[j] < 0 ? -vector[j] : vector[j], q = axial[j] < 0 ? -axial[j] : axial[j];
    const REAL r = bivector[j] < 0 ? -bivector[j] : bivector[j];
    norm[j] = x[j] * x[j] + x[c + j] * x[c + j] + p + q + r;
  }
  return c ? FN(sum)(norm, c) / (REAL)c : 0;
}

static REAL FN(root)(REAL x) {
#if IS_DOUBLE
  return sqrt(x);
#else
  return sqrtf(x);
#endif
}

static void FN(moments)(const REAL *x, int64_t n, REAL *mean, REAL *factor) {
  const REAL m = FN(sum)(x, n) / (REAL)n;
  REAL variance = 0;
  for (int64_t i = 0; i < n; i++) variance += (x[i] - m) * (x[i] - m);
  *mean = m;
  *factor = 1 / FN(root)(variance / (REAL)n + (REAL)1e-5);
}

/* scratch: 4 c numbers */
static void FN(norm)(int64_t t, int64_t c, int64_t scalars, REAL epsilon, const REAL *restrict x, int64_t xs,
                     const REAL *restrict gain, REAL *restrict out, int64_t os, REAL *restrict scratch) {
  const int64_t first = 2 * c, end = 16 * c + scalars;
  for (int64_t i = 0; i < t; i++, x += xs, out += os) {
    const REAL mean = FN(squares)(x, c, scalars, scratch, scratch + c, scratch + 2 * c, scratch + 3 * c);
    const REAL factor = 1 / FN(root)(mean < epsilon ? epsilon : mean);
    REAL m = 0, r = 0;
    if (scalars) FN(moments)(x + first, scalars, &m, &r);
    if (gain) {
      for (int64_t j = 0; j < first; j++) out[j] = x[j] * factor * gain[j];
      for (int64_t j = first; j < first + scalars; j++) out[j] = (x[j] - m) * r * gain[j];
      for (int64_t j = first + scalars; j < end; j++) out[j] = x[j] * factor * gain[j];
    } else {
      for (int64_t j = 0; j < first; j++) out[j] = x[j] * factor;
      for (int64_t j = first; j < first + scalars; j++) out[j] = (x[j] - m) * r;
      for (int64_t j = first + scalars; j < end; j++) out[j] = x[j] * factor;
    }
  }
}

/* dx (+)= …; scratch: 4 c + 16 c + scalars numbers. dout and dx may be the same array without `add`. */
static void FN(norm_back)(int64_t t, int64_t c, int64_t scalars, REAL epsilon, const REAL *restrict x, int64_t xs,
                          const REAL *restrict gain, const REAL *dout, int64_t gs, REAL *dx, int64_t dxs,
                          REAL *restrict dgain, int add, REAL *restrict scratch) {
  const int64_t first = 2 * c, width = 16 * c + scalars;
  REAL *restrict vector = scratch, *restrict axial = scratch + c, *restrict bivector = scratch + 2 * c;
  REAL *restrict g = scratch + 4 * c;
  for (int64_t i = 0; i < t; i++, x += xs, dout += gs, dx += dxs) {
    const REAL mean = FN(squares)(x, c, scalars, vector, axial, bivector, scratch + 3 * c);
    const REAL factor = 1 / FN(root)(mean < epsilon ? epsilon : mean);
    REAL m = 0, r = 0;
    if (scalars) FN(moments)(x + first, scalars, &m, &r);
    if (gain) {
      for (int64_t j = 0; j < width; j++) g[j] = dout[j] * gain[j];
      if (dgain) {
        for (int64_t j = 0; j < first; j++) dgain[j] += dout[j] * x[j] * factor;
        for (int64_t j = first; j < first + scalars; j++) dgain[j] += dout[j] * (x[j] - m) * r;
        for (int64_t j = first + scalars; j < width; j++) dgain[j] += dout[j] * x[j] * factor;
      }
    } else {
      for (int64_t j = 0; j < width; j++) g[j] = dout[j];
    }
    if (!add)
      for (int64_t j = 0; j < width; j++) dx[j] = 0;
    if (c) {
      REAL pull = 0; /* at the floor the factor does not move */
      if (mean >= epsilon) {
        pull = FN(dot)(g, x, first) + FN(dot)(g + first + scalars, x + first + scalars, width - first - scalars);
        pull *= factor * factor * factor / (REAL)c;
      }
      for (int64_t j = 0; j < c; j++) {
        vector[j] = vector[j] > 0 ? pull : vector[j] < 0 ? -pull : 0;
        axial[j] = axial[j] > 0 ? pull : axial[j] < 0 ? -pull : 0;
        bivector[j] = bivector[j] > 0 ? pull : bivector[j] < 0 ? -pull : 0;
      }
      for (int64_t j = 0; j < first; j++) dx[j] += factor * g[j] - pull * x[j];
      const int64_t v = first + scalars;
      for (int h = 0; h < 4; h++) {
        const REAL s = h ? 1 : -1;
        const int64_t o = v + 2 * h * c, q = o + c;
        for (int64_t j = 0; j < c; j++) dx[o + j] += factor * g[o + j] + s * vector[j] * x[o + j];
        for (int64_t j = 0; j < c; j++) dx[q + j] += factor * g[q + j] - s * axial[j] * x[q + j];
      }
      for (int h = 0; h < 3; h++) {
        const int64_t o = v + (8 + 2 * h) * c, q = o + c;
        for (int64_t j = 0; j < c; j++) dx[o + j] += factor * g[o + j] + bivector[j] * x[o + j];
        for (int64_t j = 0; j < c; j++) dx[q + j] += factor * g[q + j] - bivector[j] * x[q + j];
      }
    }
    if (scalars) {
      const REAL *gscalar = g + first;
      REAL average = FN(sum)(gscalar, scalars) / (REAL)scalars, along = 0;
      for (int64_t j = 0; j < scalars; j++) along += gscalar[j] * (x[first + j] - m);
      along *= r / (REAL)scalars;
      for (int64_t j = 0; j < scalars; j++)
        dx[first + j] += r * (gscalar[j] - average - (x[first + j] - m) * r * along);
    }
  }
}

/* ---------------------------------------------------------------------------------------------- nonlinearities */

/* eˣ: the whole part of x / ln 2 goes to the exponent, the rest to a Taylor polynomial (error below 1 ulp or two). */
static inline REAL FN(exponential)(REAL x) {
#if IS_DOUBLE
  const REAL limit = 708.0, shift = 6755399441055744.0; /* 1.5 2⁵² */
#else
  const REAL limit = 87.0f, shift = 12582912.0f; /* 1.5 2²³ */
#endif
  x = x > limit ? limit : x < -limit ? -limit : x;
  const REAL moved = x * (REAL)1.4426950408889634 + shift, whole = moved - shift;
#if IS_DOUBLE
  const REAL y = (x - whole * 0.693147180369123816490) - whole * 1.90821492927058770002e-10;
  REAL p = 1.0 / 6227020800.0;
  p = p * y + 1.0 / 479001600.0;
  p = p * y + 1.0 / 39916800.0;
  p = p * y + 1.0 / 3628800.0;
  p = p * y + 1.0 / 362880.0;
  p = p * y + 1.0 / 40320.0;
  p = p * y + 1.0 / 5040.0;
#else
  const REAL y = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  REAL p = 1.0f / 5040.0f;
#endif
  p = p * y + (REAL)(1.0 / 720.0);
  p = p * y + (REAL)(1.0 / 120.0);
  p = p * y + (REAL)(1.0 / 24.0);
  p = p * y + (REAL)(1.0 / 6.0);
  p = p * y + (REAL)0.5;
  p = p * y + (REAL)1.0;
  p = p * y + (REAL)1.0;
  INTEGER bits, offset;
  REAL power;
  const REAL base = shift;
  memcpy(&bits, &moved, sizeof bits);
  memcpy(&offset, &base, sizeof offset);
  bits = (INTEGER)((UNSIGNED)(bits - offset + (IS_DOUBLE ? 1023 : 127)) << (IS_DOUBLE ? 52 : 23));
  memcpy(&power, &bits, sizeof power);
  return p * power;
}

static inline REAL FN(logistic)(REAL x) { return 1 / (1 + FN(exponential)(-x)); }

#define GELU_A ((REAL)1.5957691216057308) /* 2 √(2/π) */
#define GELU_B ((REAL)0.044715)

static void FN(activate)(int which, int64_t n, const REAL *restrict x, REAL *restrict out) {
  switch (which) {
    case 0:
      for (int64_t i = 0; i < n; i++) out[i] = x[i] > 0 ? x[i] : 0;
      break;
    case 1:
      for (int64_t i = 0; i < n; i++) out[i] = FN(logistic)(x[i]);
      break;
    case 2:
      for (int64_t i = 0; i < n; i++) out[i] = 2 * FN(logistic)(2 * x[i]) - 1;
      break;
    case 3:
      for (int64_t i = 0; i < n; i++) out[i] = x[i] * FN(logistic)(GELU_A * x[i] * (1 + GELU_B * x[i] * x[i]));
      break;
    default:
      for (int64_t i = 0; i < n; i++) out[i] = x[i] * FN(logistic)(x[i]);
  }
}

/* dx (+)= dout times the derivative at x */
static void FN(activate_back)(int which, int64_t n, const REAL *restrict x, const REAL *restrict dout,
                              REAL *restrict dx, int add) {
  if (!add)
    for (int64_t i = 0; i < n; i++) dx[i] = 0;
  switch (which) {
    case 0:
      for (int64_t i = 0; i < n; i++) dx[i] += x[i] > 0 ? dout[i] : 0;
      break;
    case 1:
      for (int64_t i = 0; i < n; i++) {
        const REAL s = FN(logistic)(x[i]);
        dx[i] += dout[i] * s * (1 - s);
      }
      break;
    case 2:
      for (int64_t i = 0; i < n; i++) {
        const REAL s = FN(logistic)(2 * x[i]);
        dx[i] += dout[i] * 4 * s * (1 - s);
      }
      break;
    case 3:
      for (int64_t i = 0; i < n; i++) {
        const REAL s = FN(logistic)(GELU_A * x[i] * (1 + GELU_B * x[i] * x[i]));
        dx[i] += dout[i] * (s + x[i] * s * (1 - s) * GELU_A * (1 + 3 * GELU_B * x[i] * x[i]));
      }
      break;
    default:
      for (int64_t i = 0; i < n; i++) {
        const REAL s = FN(logistic)(x[i]);
        dx[i] += dout[i] * (s + x[i] * s * (1 - s));
      }
  }
}

/* scratch: c numbers */
static void FN(gate)(int64_t t, int64_t c, int64_t scalars, int which, const REAL *restrict x, int64_t xs,
                     REAL *restrict out, int64_t os, REAL *restrict factor) {
  for (int64_t i = 0; i < t; i++, x += xs, out += os) {
    FN(activate)(which, c, x, factor);
    for (int h = 0; h < 16; h++) {
      const int64_t o = h * c + (h >= 2 ? scalars : 0);
      for (int64_t j = 0; j < c; j++) out[o + j] = x[o + j] * factor[j];
    }
    FN(activate)(which, scalars, x + 2 * c, out + 2 * c);
  }
}

/* scratch: 2 c numbers; dout and dx are different arrays */
static void FN(gate_back)(int64_t t, int64_t c, int64_t scalars, int which, const REAL *restrict x, int64_t xs,
                          const REAL *restrict dout, int64_t gs, REAL *restrict dx, int64_t dxs,
                          REAL *restrict factor) {
  REAL *restrict sum = factor + c;
  for (int64_t i = 0; i < t; i++, x += xs, dout += gs, dx += dxs) {
    FN(activate)(which, c, x, factor);
    for (int64_t j = 0; j < c; j++) sum[j] = 0;
    for (int h = 0; h < 16; h++) {
      const int64_t o = h * c + (h >= 2 ? scalars : 0);
      for (int64_t j = 0; j < c; j++) {
        dx[o + j] = dout[o + j] * factor[j];
        sum[j] += dout[o + j] * x[o + j];
      }
    }
    FN(activate_back)(which, c, x, sum, dx, 1);
    FN(activate_back)(which, scalars, x + 2 * c, dout + 2 * c, dx + 2 * c, 0);
  }
}

/* --------------------------------------------------------------------------------------------------------- MLP */

/* From the rows to the product with its scalars. */
static void FN(mlp_product)(const lgatr_mlp *m, const mlp_parts *p, int64_t t, const REAL *w, const REAL *gain,
                            const REAL *x, REAL *normed, REAL *left, REAL *right, REAL *product, REAL *scratch) {
  const int64_t c = m->channels, s = m->scalars, k = m->product_mv;
  FN(norm)(t, c, s, (REAL)m->epsilon, x, p->width, gain, normed, p->width, scratch);
  FN(linear)(&p->in, t, w, normed, p->width, left, 16 * k, 0);
  FN(linear)(&p->in, t, w + p->right, normed, p->width, right, 16 * k, 0);
  FN(product)(t, k, s, m->bivector, left, 16 * k, right, 16 * k, product, 16 * k + s);
  for (int64_t i = 0; i < t; i++)
    memcpy(product + i * (16 * k + s) + 2 * k, normed + i * p->width + 2 * c, (size_t)s * sizeof(REAL));
}

static void FN(mlp_forward)(const lgatr_mlp *m, int64_t n, const REAL *w, const REAL *gain, const REAL *x, REAL *y,
                            REAL *kept, REAL *scratch) {
  const mlp_parts p = mlp_parts_of(m);
  const int64_t k = m->product_mv, wide = 16 * k + m->scalars;
  REAL *normed = scratch, *left = normed + TILE * p.width, *right = left + TILE * 16 * k;
  REAL *product = right + TILE * 16 * k, *rows = product + TILE * wide;
  REAL *gated = rows + TILE * p.hidden, *small = gated + TILE * p.hidden;
  for (int64_t first = 0; first < n; first += TILE) {
    const int64_t t = n - first < TILE ? n - first : TILE;
    const REAL *xt = x + first * p.width;
    REAL *yt = y + first * p.width, *hidden = kept ? kept + first * p.hidden : rows;
    FN(mlp_product)(m, &p, t, w, gain, xt, normed, left, right, product, small);
    FN(linear)(&p.out, t, w + p.out_at, product, wide, hidden, p.hidden, 0);
    FN(norm)(t, m->hidden_mv, m->hidden_s, (REAL)NORM_FLOOR, hidden, p.hidden, 0, gated, p.hidden, small);
    FN(gate)(t, m->hidden_mv, m->hidden_s, m->nonlinearity, gated, p.hidden, rows, p.hidden, small);
    FN(linear)(&p.last, t, w + p.last_at, rows, p.hidden, yt, p.width, 0);
    for (int64_t i = 0; i < t * p.width; i++) yt[i] += xt[i];
  }
}

static void FN(mlp_backward)(const lgatr_mlp *m, int64_t n, const REAL *w, const REAL *gain, const REAL *x,
                             const REAL *kept, const REAL *dy, REAL *dx, REAL *dw, REAL *dgain, REAL *scratch) {
  const mlp_parts p = mlp_parts_of(m);
  const int64_t k = m->product_mv, wide = 16 * k + m->scalars;
  REAL *normed = scratch, *left = normed + TILE * p.width, *right = left + TILE * 16 * k;
  REAL *product = right + TILE * 16 * k, *gated = product + TILE * wide;
  REAL *dgated = gated + TILE * p.hidden, *dnormed = dgated + TILE * p.hidden, *dproduct = dnormed + TILE * p.hidden;
  REAL *dleft = dproduct + TILE * wide, *dright = dleft + TILE * 16 * k, *small = dright + TILE * 16 * k;
  REAL *turned_left = small + 20 * (p.hidden + p.width), *turned_right = turned_left + p.in.turned;
  REAL *turned_out = turned_right + p.in.turned, *turned_last = turned_out + p.out.turned;
  FN(turn_weight)(&p.in, w, turned_left);
  FN(turn_weight)(&p.in, w + p.right, turned_right);
  FN(turn_weight)(&p.out, w + p.out_at, turned_out);
  FN(turn_weight)(&p.last, w + p.last_at, turned_last);
  for (int64_t first = 0; first < n; first += TILE) {
    const int64_t t = n - first < TILE ? n - first : TILE;
    const REAL *xt = x + first * p.width, *dyt = dy + first * p.width, *hidden = kept + first * p.hidden;
    REAL *dxt = dx + first * p.width;
    FN(mlp_product)(m, &p, t, w, gain, xt, normed, left, right, product, small);
    /* dgated holds the normalised hidden rows until the last map's gradient is there */
    FN(norm)(t, m->hidden_mv, m->hidden_s, (REAL)NORM_FLOOR, hidden, p.hidden, 0, dgated, p.hidden, small);
    FN(gate)(t, m->hidden_mv, m->hidden_s, m->nonlinearity, dgated, p.hidden, gated, p.hidden, small);
    FN(linear_dw)(&p.last, t, gated, p.hidden, dyt, p.width, dw + p.last_at);
    FN(linear_dx)(&p.last, t, turned_last, dyt, p.width, gated, p.hidden, 0);
    FN(gate_back)(t, m->hidden_mv, m->hidden_s, m->nonlinearity, dgated, p.hidden, gated, p.hidden, dnormed, p.hidden,
                  small);
    FN(norm_back)(t, m->hidden_mv, m->hidden_s, (REAL)NORM_FLOOR, hidden, p.hidden, 0, dnormed, p.hidden, dgated,
                  p.hidden, 0, 0, small);
    FN(linear_dw)(&p.out, t, product, wide, dgated, p.hidden, dw + p.out_at);
    FN(linear_dx)(&p.out, t, turned_out, dgated, p.hidden, dproduct, wide, 0);
    FN(product_back)(t, k, m->scalars, m->bivector, left, 16 * k, right, 16 * k, dproduct, wide, dleft, 16 * k, dright,
                     16 * k);
    FN(linear_dw)(&p.in, t, normed, p.width, dleft, 16 * k, dw);
    FN(linear_dw)(&p.in, t, normed, p.width, dright, 16 * k, dw + p.right);
    FN(linear_dx)(&p.in, t, turned_left, dleft, 16 * k, normed, p.width, 0);
    FN(linear_dx)(&p.in, t, turned_right, dright, 16 * k, normed, p.width, 1);
    for (int64_t i = 0; i < t; i++)
      for (int64_t j = 0; j < m->scalars; j++)
        normed[i * p.width + 2 * m->channels + j] += dproduct[i * wide + 2 * k + j];
    memcpy(dxt, dyt, (size_t)(t * p.width) * sizeof(REAL));
    FN(norm_back)(t, m->channels, m->scalars, (REAL)m->epsilon, xt, p.width, gain, normed, p.width, dxt, p.width, dgain,
                  1, small);
  }
}

/* -------------------------------------------------------------------------------------------------------- slim */

/* Signed squares of vectors, one number a channel; returns the mean of |v v| and s² over all channels. */
static REAL FN(slim_squares)(const REAL *restrict x, int64_t c, int64_t scalars, REAL *restrict signed_square,
                             REAL *restrict size) {
  for (int64_t j = 0; j < c; j++) {
    const REAL t = x[j], a = x[c + j], b = x[2 * c + j], d = x[3 * c + j];
    signed_square[j] = t * t - a * a - b * b - d * d;
    size[j] = signed_square[j] < 0 ? -signed_square[j] : signed_square[j];
  }
  return (FN(sum)(size, c) + FN(dot)(x + 4 * c, x + 4 * c, scalars)) / (REAL)(c + scalars);
}

/* scratch: 2 c numbers; gain is a row of 4 c + scalars factors */
static void FN(slim_norm)(int64_t t, int64_t c, int64_t scalars, REAL epsilon, const REAL *restrict x, int64_t xs,
                          const REAL *restrict gain, REAL *restrict out, int64_t os, REAL *restrict scratch) {
  for (int64_t i = 0; i < t; i++, x += xs, out += os) {
    const REAL factor = 1 / FN(root)(FN(slim_squares)(x, c, scalars, scratch, scratch + c) + epsilon);
    if (gain)
      for (int64_t j = 0; j < 4 * c + scalars; j++) out[j] = x[j] * factor * gain[j];
    else
      for (int64_t j = 0; j < 4 * c + scalars; j++) out[j] = x[j] * factor;
  }
}

/* dx += …; scratch: 6 c + scalars numbers */
static void FN(slim_norm_back)(int64_t t, int64_t c, int64_t scalars, REAL epsilon, const REAL *restrict x, int64_t xs,
                               const REAL *restrict gain, const REAL *restrict dout, int64_t gs, REAL *restrict dx,
                               int64_t dxs, REAL *restrict dgain, REAL *restrict scratch) {
  const int64_t width = 4 * c + scalars;
  REAL *restrict pulls = scratch, *restrict g = scratch + 2 * c;
  for (int64_t i = 0; i < t; i++, x += xs, dout += gs, dx += dxs) {
    const REAL factor = 1 / FN(root)(FN(slim_squares)(x, c, scalars, pulls, scratch + c) + epsilon);
    if (gain) {
      for (int64_t j = 0; j < width; j++) g[j] = dout[j] * gain[j];
      for (int64_t j = 0; j < width; j++) dgain[j] += dout[j] * x[j] * factor;
    } else {
      for (int64_t j = 0; j < width; j++) g[j] = dout[j];
    }
    const REAL pull = FN(dot)(g, x, width) * factor * factor * factor / (REAL)(c + scalars);
    for (int64_t j = 0; j < c; j++) pulls[j] = pulls[j] > 0 ? pull : pulls[j] < 0 ? -pull : 0;
    for (int64_t j = 0; j < c; j++) dx[j] += factor * g[j] - pulls[j] * x[j];
    for (int h = 1; h < 4; h++)
      for (int64_t j = 0; j < c; j++) dx[h * c + j] += factor * g[h * c + j] + pulls[j] * x[h * c + j];
    for (int64_t j = 4 * c; j < width; j++) dx[j] += factor * g[j] - pull * x[j];
  }
}

/* x: rows of 3 c vectors (value, first, second) and 2 s scalars (value, gate) -> rows of c vectors and s scalars;
   scratch: 2 c + s numbers */
static void FN(slim_glu)(int64_t t, int64_t c, int64_t s, int which, int which_v, const REAL *restrict x,
                         REAL *restrict out, REAL *restrict scratch) {
  const int64_t xs = 12 * c + 2 * s, os = 4 * c + s;
  REAL *restrict inner = scratch, *restrict factor = scratch + c, *restrict gate = scratch + 2 * c;
  for (int64_t i = 0; i < t; i++, x += xs, out += os) {
    const REAL *restrict a = x + c, *restrict b = x + 2 * c, *restrict scalar = x + 12 * c;
    for (int64_t j = 0; j < c; j++)
      inner[j] = (REAL)0.5 * (a[j] * b[j] - a[3 * c + j] * b[3 * c + j] - a[6 * c + j] * b[6 * c + j] -
                              a[9 * c + j] * b[9 * c + j]);
    FN(activate)(which_v, c, inner, factor);
    for (int h = 0; h < 4; h++)
      for (int64_t j = 0; j < c; j++) out[h * c + j] = factor[j] * x[3 * h * c + j];
    FN(activate)(which, s, scalar + s, gate);
    for (int64_t j = 0; j < s; j++) out[4 * c + j] = gate[j] * scalar[j];
  }
}

/* scratch: 4 c + 2 s numbers */
static void FN(slim_glu_back)(int64_t t, int64_t c, int64_t s, int which, int which_v, const REAL *restrict x,
                              const REAL *restrict dout, REAL *restrict dx, REAL *restrict scratch) {
  const int64_t xs = 12 * c + 2 * s, os = 4 * c + s;
  REAL *restrict inner = scratch, *restrict factor = scratch + c, *restrict down = scratch + 2 * c;
  REAL *restrict dinner = scratch + 3 * c, *restrict gate = scratch + 4 * c, *restrict dgate = gate + s;
  for (int64_t i = 0; i < t; i++, x += xs, dx += xs, dout += os) {
    const REAL *restrict a = x + c, *restrict b = x + 2 * c, *restrict scalar = x + 12 * c;
    for (int64_t j = 0; j < c; j++) {
      inner[j] = (REAL)0.5 * (a[j] * b[j] - a[3 * c + j] * b[3 * c + j] - a[6 * c + j] * b[6 * c + j] -
                              a[9 * c + j] * b[9 * c + j]);
      down[j] = 0;
    }
    FN(activate)(which_v, c, inner, factor);
    for (int h = 0; h < 4; h++)
      for (int64_t j = 0; j < c; j++) {
        dx[3 * h * c + j] = factor[j] * dout[h * c + j];
        down[j] += x[3 * h * c + j] * dout[h * c + j];
      }
    FN(activate_back)(which_v, c, inner, down, dinner, 0);
    for (int h = 0; h < 4; h++) {
      const REAL sign = h ? (REAL)-0.5 : (REAL)0.5;
      for (int64_t j = 0; j < c; j++) {
        dx[(3 * h + 1) * c + j] = sign * dinner[j] * b[3 * h * c + j];
        dx[(3 * h + 2) * c + j] = sign * dinner[j] * a[3 * h * c + j];
      }
    }
    FN(activate)(which, s, scalar + s, gate);
    for (int64_t j = 0; j < s; j++) {
      dx[12 * c + j] = gate[j] * dout[4 * c + j];
      dgate[j] = scalar[j] * dout[4 * c + j];
    }
    FN(activate_back)(which, s, scalar + s, dgate, dx + 12 * c + s, 0);
  }
}

static void FN(slim_mlp_forward)(const lgatr_slim_mlp *m, int64_t n, const REAL *w, const REAL *gain, const REAL *x,
                                 REAL *y, REAL *scratch) {
  const slim_parts p = slim_parts_of(m);
  REAL *normed = scratch, *wide = normed + TILE * p.width, *gated = wide + TILE * p.in.out, *small = gated + TILE * p.hidden;
  for (int64_t first = 0; first < n; first += TILE) {
    const int64_t t = n - first < TILE ? n - first : TILE;
    const REAL *xt = x + first * p.width;
    REAL *yt = y + first * p.width;
    FN(slim_norm)(t, m->channels, m->scalars, (REAL)m->epsilon, xt, p.width, gain, normed, p.width, small);
    FN(linear)(&p.in, t, w, normed, p.width, wide, p.in.out, 0);
    FN(slim_glu)(t, m->hidden_v, m->hidden_s, m->nonlinearity, m->nonlinearity_v, wide, gated, small);
    FN(linear)(&p.last, t, w + p.last_at, gated, p.hidden, yt, p.width, 0);
    for (int64_t i = 0; i < t * p.width; i++) yt[i] += xt[i];
  }
}

static void FN(slim_mlp_backward)(const lgatr_slim_mlp *m, int64_t n, const REAL *w, const REAL *gain, const REAL *x,
                                  const REAL *dy, REAL *dx, REAL *dw, REAL *dgain, REAL *scratch) {
  const slim_parts p = slim_parts_of(m);
  REAL *normed = scratch, *wide = normed + TILE * p.width, *gated = wide + TILE * p.in.out;
  REAL *dgated = gated + TILE * p.hidden, *dwide = dgated + TILE * p.hidden, *small = dwide + TILE * p.in.out;
  REAL *turned_in = small + 8 * (p.width + p.hidden), *turned_last = turned_in + p.in.turned;
  FN(turn_weight)(&p.in, w, turned_in);
  FN(turn_weight)(&p.last, w + p.last_at, turned_last);
  for (int64_t first = 0; first < n; first += TILE) {
    const int64_t t = n - first < TILE ? n - first : TILE;
    const REAL *xt = x + first * p.width, *dyt = dy + first * p.width;
    REAL *dxt = dx + first * p.width;
    FN(slim_norm)(t, m->channels, m->scalars, (REAL)m->epsilon, xt, p.width, gain, normed, p.width, small);
    FN(linear)(&p.in, t, w, normed, p.width, wide, p.in.out, 0);
    FN(slim_glu)(t, m->hidden_v, m->hidden_s, m->nonlinearity, m->nonlinearity_v, wide, gated, small);
    FN(linear_dw)(&p.last, t, gated, p.hidden, dyt, p.width, dw + p.last_at);
    FN(linear_dx)(&p.last, t, turned_last, dyt, p.width, dgated, p.hidden, 0);
    FN(slim_glu_back)(t, m->hidden_v, m->hidden_s, m->nonlinearity, m->nonlinearity_v, wide, dgated, dwide, small);
    FN(linear_dw)(&p.in, t, normed, p.width, dwide, p.in.out, dw);
    FN(linear_dx)(&p.in, t, turned_in, dwide, p.in.out, normed, p.width, 0);
    memcpy(dxt, dyt, (size_t)(t * p.width) * sizeof(REAL));
    FN(slim_norm_back)(t, m->channels, m->scalars, (REAL)m->epsilon, xt, p.width, gain, normed, p.width, dxt, p.width,
                       dgain, small);
  }
}

/* --------------------------------------------------------------------------------------------------- attention */

/* y = weightᵀ times x, both transposed (features, columns apart by ld) */
static void FN(linear_across)(const plan *p, int64_t t, const REAL *w, const REAL *x, REAL *y, int64_t ld) {
  for (int i = 0; i < p->count; i++) {
    const item *q = p->items + i;
    for (int64_t first = 0; first < q->n; first += LGATR_PANEL) {
      const int64_t rows = q->n - first < LGATR_PANEL ? q->n - first : LGATR_PANEL;
      FN(gemm)(rows, t, q->k, w + q->at + first * q->k, 1, LGATR_PANEL, x + q->from * ld, ld, LGATR_PANEL,
               y + (q->to + first) * ld, ld, LGATR_PANEL, 0);
    }
  }
}

/* dx = weight times dy, both transposed */
static void FN(linear_across_dx)(const plan *p, int64_t t, const REAL *w, const REAL *dy, REAL *dx, int64_t ld) {
  for (int i = 0; i < p->count; i++) {
    const item *q = p->items + i;
    for (int64_t first = 0; first < q->n; first += LGATR_PANEL) {
      const int64_t inner = q->n - first < LGATR_PANEL ? q->n - first : LGATR_PANEL;
      FN(gemm)(q->k, t, inner, w + q->at + first * q->k, LGATR_PANEL, 1, dy + (q->to + first) * ld, ld, LGATR_PANEL,
               dx + q->from * ld, ld, LGATR_PANEL, first > 0);
    }
  }
}

/* y (rows) = weight times x (transposed), with the bias */
static void FN(across_to_rows)(const plan *p, int64_t t, const REAL *w, const REAL *x, int64_t ld, REAL *y, int64_t ys) {
  for (int i = 0; i < p->count; i++) {
    const item *q = p->items + i;
    FN(gemm)(t, q->n, q->k, x + q->from * ld, 1, ld, w + q->at, LGATR_PANEL, q->k * LGATR_PANEL, y + q->to, ys,
             LGATR_PANEL, 0);
  }
  for (int64_t i = 0; i < t; i++)
    for (int64_t j = 0; j < p->biases; j++) y[i * ys + p->bias_to + j] += w[p->bias + j];
}

/* Row of half plane h and channel j among rows of c multivector and s scalar channels. */
#define ROW_OF(h, j, c, s) ((h) * (c) + ((h) >= 2 ? (s) : 0) + (j))

typedef struct {
  REAL *normed, *across, *raw, *features, *factor, *scale, *out, *doutput, *dfeatures, *draw, *head, *p, *dp, *turned,
      *small;
} FN(attention_arrays);

static FN(attention_arrays) FN(attention_lay)(const lgatr_attention *a, const attention_parts *p, int64_t ld,
                                              int64_t largest, REAL *s) {
  FN(attention_arrays) r;
  r.normed = s, s += ld * p->width;
  r.across = s, s += ld * p->width;
  r.raw = s, s += ld * p->qkv_width;
  r.features = s, s += ld * p->qkv_width;
  r.factor = s, s += ld * 3 * a->heads;
  r.scale = s, s += ld * 3 * a->heads;
  r.out = s, s += ld * p->merged;
  r.doutput = s, s += ld * p->merged;
  r.dfeatures = s, s += ld * p->qkv_width;
  r.draw = s, s += ld * p->qkv_width;
  r.head = s, s += ld * p->depth;
  r.p = s, s += largest * largest;
  r.dp = s, s += largest * largest;
  r.turned = s, s += largest * largest;
  r.small = s;
  return r;
}

/* Half planes of a channel: 16, in 5 grades, or for the slim network the 4 components of a vector. */
#define HALVES(a) ((a)->slim ? 4 : 16)

/* Sum over the grades of |signed squares| of one channel whose half planes are `step` numbers apart; signed sums a
   grade in `grade`. */
static inline VEC FN(norm_of)(const REAL *p, int64_t step, VEC grade[5]) {
  VEC sum = SET((REAL)0);
#pragma GCC unroll 5
  for (int g = 0; g < 5; g++) grade[g] = SET((REAL)0);
#pragma GCC unroll 16
  for (int h = 0; h < 16; h++) {
    const VEC x = LOAD(p + h * step);
    grade[HALF_GROUP(h)] = HALF_SIGN(h) > 0 ? FMA(x, x, grade[HALF_GROUP(h)]) : FNMA(x, x, grade[HALF_GROUP(h)]);
  }
#pragma GCC unroll 5
  for (int g = 0; g < 5; g++) sum = ADD(sum, ABS(grade[g]));
  return sum;
}

static inline VEC FN(slim_norm_of)(const REAL *p, int64_t step, VEC *grade) {
  const VEC t = LOAD(p), x = LOAD(p + step), y = LOAD(p + 2 * step), z = LOAD(p + 3 * step);
  *grade = FNMA(z, z, FNMA(y, y, FNMA(x, x, MUL(t, t))));
  return ABS(*grade);
}

/* Per head and column: normalise the raw rows (part, hidden, head) into features (part, head, depth), queries with the
   signs of the inner product. factor is what the multivectors were multiplied with (negative where the floor held),
   scale the same for the scalars. Columns up to the next whole vector are computed too, and never read. */
static void FN(normalise_heads)(const lgatr_attention *a, const attention_parts *p, int64_t t, int64_t ld,
                                const REAL *restrict raw, REAL *restrict features, REAL *restrict factor,
                                REAL *restrict scale) {
  const int64_t c = p->qkv_mv, s = p->qkv_s, hidden = a->hidden_mv, hidden_s = a->hidden_s;
  const int64_t next = a->heads * ld, halves = HALVES(a), plane = c * ld, skip = a->slim ? 0 : s * ld;
  const int64_t first_s = a->slim ? 4 * c : 2 * c;
  REAL column[VL];
  for (int part = 0; part < 3; part++)
    for (int64_t head = 0; head < a->heads; head++) {
      const int64_t number = part * a->heads + head;
      for (int64_t q = 0; q < t; q += VL) {
        const REAL *from = raw + (part * hidden * a->heads + head) * ld + q;
        const REAL *from_s = raw + (first_s + part * hidden_s * a->heads + head) * ld + q;
        REAL *to = features + number * p->depth * ld + q, *to_s = to + halves * hidden * ld;
        VEC sum = SET((REAL)0), mean = SET((REAL)0), spread = SET((REAL)0);
        for (int64_t j = 0; j < hidden; j++) {
          VEC grade[5];
          if (a->slim) {
            sum = ADD(sum, FN(slim_norm_of)(from + j * next, plane, grade));
          } else { /* the scalar channels lie between the first two half planes and the others */
            const REAL *x = from + j * next, *v = x + skip;
            const VEC g0 = LOAD(x), g4 = LOAD(x + plane);
            VEC g1 = MUL(LOAD(v + 2 * plane), LOAD(v + 2 * plane)), g3 = MUL(LOAD(v + 3 * plane), LOAD(v + 3 * plane));
            VEC g2 = SET((REAL)0);
#pragma GCC unroll 3
            for (int h = 4; h < 10; h += 2) {
              const VEC e = LOAD(v + h * plane), b = LOAD(v + (h + 1) * plane);
              g1 = FNMA(e, e, g1), g3 = FNMA(b, b, g3);
            }
#pragma GCC unroll 3
            for (int h = 10; h < 16; h += 2) {
              const VEC e = LOAD(v + h * plane), b = LOAD(v + (h + 1) * plane);
              g2 = FNMA(e, e, FMA(b, b, g2));
            }
            sum = ADD(sum, FMA(g0, g0, FMA(g4, g4, ADD(ABS(g1), ADD(ABS(g2), ABS(g3))))));
          }
        }
        if (a->slim) {
          for (int64_t j = 0; j < hidden_s; j++) sum = FMA(LOAD(from_s + j * next), LOAD(from_s + j * next), sum);
        } else if (hidden_s) {
          const VEC share = SET(1 / (REAL)hidden_s);
          for (int64_t j = 0; j < hidden_s; j++) mean = FMA(LOAD(from_s + j * next), share, mean);
          for (int64_t j = 0; j < hidden_s; j++) {
            const VEC d = FNMA(SET((REAL)1), mean, LOAD(from_s + j * next));
            spread = FMA(MUL(d, d), share, spread);
          }
        }
        STORE(column, sum);
        for (int i = 0; i < VL; i++) {
          if (a->slim) {
            column[i] = 1 / FN(root)(column[i] / (REAL)(hidden + hidden_s) + (REAL)NORM_FLOOR);
            factor[number * ld + q + i] = column[i];
          } else {
            const REAL m = column[i] / (REAL)hidden;
            const int floor = m < (REAL)NORM_FLOOR;
            column[i] = 1 / FN(root)(floor ? (REAL)NORM_FLOOR : m);
            factor[number * ld + q + i] = floor ? -column[i] : column[i];
          }
        }
        const VEC f = LOAD(column);
        STORE(column, spread);
        for (int i = 0; i < VL; i++) column[i] = 1 / FN(root)(column[i] + (REAL)1e-5);
        const VEC g = a->slim ? f : LOAD(column);
        STORE(scale + number * ld + q, g);
        const VEC minus = FNMA(SET((REAL)1), f, SET((REAL)0));
        for (int64_t h = 0; h < halves; h++) {
          const int negative = part == 0 && (a->slim ? h > 0 : HALF_SIGN(h) < 0);
          const REAL *x = from + h * plane + (h >= 2 ? skip : 0);
          for (int64_t j = 0; j < hidden; j++)
            STORE(to + (h * hidden + j) * ld, MUL(negative ? minus : f, LOAD(x + j * next)));
        }
        for (int64_t j = 0; j < hidden_s; j++)
          STORE(to_s + j * ld, MUL(FNMA(SET((REAL)1), mean, LOAD(from_s + j * next)), g));
      }
    }
}

static void FN(normalise_heads_back)(const lgatr_attention *a, const attention_parts *p, int64_t t, int64_t ld,
                                     const REAL *restrict features, const REAL *restrict factor,
                                     const REAL *restrict scale, const REAL *restrict dfeatures, REAL *restrict draw) {
  const int64_t c = p->qkv_mv, s = p->qkv_s, hidden = a->hidden_mv, hidden_s = a->hidden_s;
  const int64_t next = a->heads * ld, halves = HALVES(a), plane = c * ld, skip = a->slim ? 0 : s * ld;
  const int64_t first_s = a->slim ? 4 * c : 2 * c;
  REAL column[VL], signs[VL];
  for (int part = 0; part < 3; part++)
    for (int64_t head = 0; head < a->heads; head++) {
      const int64_t number = part * a->heads + head;
      for (int64_t q = 0; q < t; q += VL) {
        REAL *to = draw + (part * hidden * a->heads + head) * ld + q;
        REAL *to_s = draw + (first_s + part * hidden_s * a->heads + head) * ld + q;
        const REAL *x = features + number * p->depth * ld + q, *x_s = x + halves * hidden * ld;
        const REAL *d = dfeatures + number * p->depth * ld + q, *d_s = d + halves * hidden * ld;
        VEC along = SET((REAL)0), along_s = SET((REAL)0), mean_s = SET((REAL)0);
        for (int64_t i = 0; i < halves * hidden; i++) along = FMA(LOAD(x + i * ld), LOAD(d + i * ld), along);
        for (int64_t j = 0; j < hidden_s; j++) {
          along_s = FMA(LOAD(x_s + j * ld), LOAD(d_s + j * ld), along_s);
          mean_s = ADD(mean_s, LOAD(d_s + j * ld));
        }
        if (a->slim) along = ADD(along, along_s);
        STORE(column, along);
        for (int i = 0; i < VL; i++) {
          const REAL f = factor[number * ld + q + i];
          column[i] = f < 0 ? 0 : column[i] * f / (REAL)(a->slim ? hidden + hidden_s : hidden);
          signs[i] = f < 0 ? -f : f;
        }
        const VEC pull = LOAD(column), f = LOAD(signs), g = LOAD(scale + number * ld + q);
        for (int64_t j = 0; j < hidden; j++) {
          VEC grade[5];
          if (a->slim)
            FN(slim_norm_of)(x + j * ld, hidden * ld, grade);
          else
            FN(norm_of)(x + j * ld, hidden * ld, grade);
          for (int k = 0; k < (a->slim ? 1 : 5); k++) grade[k] = WITH_SIGN(pull, grade[k]);
          for (int64_t h = 0; h < halves; h++) {
            const int negative = a->slim ? h > 0 : HALF_SIGN(h) < 0, turned = part == 0 && negative;
            const VEC own = LOAD(x + (h * hidden + j) * ld), down = MUL(f, LOAD(d + (h * hidden + j) * ld));
            const VEC signed_pull = grade[a->slim ? 0 : HALF_GROUP(h)];
            /* f d - m pull x for what has no sign of its own, and m times that for queries */
            VEC value = negative ? FMA(signed_pull, own, down) : FNMA(signed_pull, own, down);
            if (turned) value = FNMA(SET((REAL)1), value, SET((REAL)0));
            STORE(to + h * plane + (h >= 2 ? skip : 0) + j * next, value);
          }
        }
        if (a->slim) {
          for (int64_t j = 0; j < hidden_s; j++)
            STORE(to_s + j * next, FNMA(pull, LOAD(x_s + j * ld), MUL(f, LOAD(d_s + j * ld))));
        } else if (hidden_s) {
          const VEC share = SET(1 / (REAL)hidden_s);
          const VEC average = MUL(mean_s, share), projected = MUL(along_s, share);
          for (int64_t j = 0; j < hidden_s; j++)
            STORE(to_s + j * next,
                  MUL(g, FNMA(projected, LOAD(x_s + j * ld), FNMA(SET((REAL)1), average, LOAD(d_s + j * ld)))));
        }
      }
    }
}

/* p (keys, queries) = softmax over the keys of scale kᵀ q, for n items whose features are columns */
static void FN(weights)(int64_t n, int64_t depth, int64_t ld, const REAL *q, const REAL *k, REAL *restrict p,
                        REAL *restrict work) {
  REAL *restrict largest = work, *restrict sum = work + n;
  const REAL scale = 1 / FN(root)((REAL)depth);
  FN(gemm)(n, n, depth, k, 1, ld, q, ld, LGATR_PANEL, p, n, LGATR_PANEL, 0);
  for (int64_t j = 0; j < n; j++) largest[j] = p[j], sum[j] = 0;
  for (int64_t i = 1; i < n; i++)
    for (int64_t j = 0; j < n; j++) largest[j] = p[i * n + j] > largest[j] ? p[i * n + j] : largest[j];
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) {
      const REAL e = FN(exponential)((p[i * n + j] - largest[j]) * scale);
      p[i * n + j] = e;
      sum[j] += e;
    }
  for (int64_t j = 0; j < n; j++) sum[j] = 1 / sum[j];
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) p[i * n + j] *= sum[j];
}

/* Features of one head (depth rows) between its own place and the merged rows (channels in the order head, hidden). */
static void FN(merge)(const lgatr_attention *a, const attention_parts *p, int64_t head, int64_t n, int64_t ld,
                      REAL *own, REAL *merged, int back) {
  const int64_t c = (int64_t)a->heads * a->hidden_mv, s = (int64_t)a->heads * a->hidden_s;
  const int64_t halves = HALVES(a) * a->hidden_mv, skip = a->slim ? 0 : s, first_s = a->slim ? 4 * c : 2 * c;
  for (int64_t d = 0; d < p->depth; d++) {
    const int64_t h = d / a->hidden_mv, j = d % a->hidden_mv;
    const int64_t row = d < halves ? h * c + (h >= 2 ? skip : 0) + head * a->hidden_mv + j
                                   : first_s + head * a->hidden_s + d - halves;
    if (back)
      memcpy(own + d * ld, merged + row * ld, (size_t)n * sizeof(REAL));
    else
      memcpy(merged + row * ld, own + d * ld, (size_t)n * sizeof(REAL));
  }
}

/* Norm, query, key and value features of a tile of t items. */
static void FN(attention_features)(const lgatr_attention *a, const attention_parts *p, int64_t t, int64_t ld,
                                   const REAL *w, const REAL *gain, const REAL *x, FN(attention_arrays) * r) {
  if (a->slim)
    FN(slim_norm)(t, a->channels, a->scalars, (REAL)a->epsilon, x, p->width, gain, r->normed, p->width, r->small);
  else
    FN(norm)(t, a->channels, a->scalars, (REAL)a->epsilon, x, p->width, gain, r->normed, p->width, r->small);
  FN(transpose)(t, p->width, r->normed, p->width, r->across, ld);
  FN(linear_across)(&p->qkv, t, w, r->across, r->raw, ld);
  FN(normalise_heads)(a, p, t, ld, r->raw, r->features, r->factor, r->scale);
}

static void FN(attention_forward)(const lgatr_attention *a, int64_t sets, const int64_t *offsets, const REAL *w,
                                  const REAL *gain, const REAL *x, REAL *y, REAL *scratch) {
  const attention_parts p = attention_parts_of(a);
  const tiling size = tiling_of(sets, offsets);
  FN(attention_arrays) r = FN(attention_lay)(a, &p, size.columns, size.largest, scratch);
  const int64_t ld = size.columns;
  for (int64_t first = 0, last; first < sets; first = last) {
    last = tile_end(sets, offsets, first);
    const int64_t start = offsets[first], t = offsets[last] - start;
    if (!t) continue;
    const REAL *xt = x + start * p.width;
    REAL *yt = y + start * p.width;
    FN(attention_features)(a, &p, t, ld, w, gain, xt, &r);
    for (int64_t head = 0; head < a->heads; head++) {
      const REAL *q = r.features + head * p.depth * ld, *k = q + a->heads * p.depth * ld;
      const REAL *v = k + a->heads * p.depth * ld;
      for (int64_t set = first; set < last; set++) {
        const int64_t at = offsets[set] - start, n = offsets[set + 1] - offsets[set];
        if (!n) continue;
        FN(weights)(n, p.depth, ld, q + at, k + at, r.p, r.small);
        FN(gemm)(p.depth, n, n, v + at, ld, 1, r.p, n, LGATR_PANEL, r.head + at, ld, LGATR_PANEL, 0);
      }
      FN(merge)(a, &p, head, t, ld, r.head, r.out, 0);
    }
    FN(across_to_rows)(&p.out, t, w + p.out_at, r.out, ld, yt, p.width);
    for (int64_t i = 0; i < t * p.width; i++) yt[i] += xt[i];
  }
}

static void FN(attention_backward)(const lgatr_attention *a, int64_t sets, const int64_t *offsets, const REAL *w,
                                   const REAL *gain, const REAL *x, const REAL *dy, REAL *dx, REAL *dw, REAL *dgain,
                                   REAL *scratch) {
  const attention_parts p = attention_parts_of(a);
  const tiling size = tiling_of(sets, offsets);
  FN(attention_arrays) r = FN(attention_lay)(a, &p, size.columns, size.largest, scratch);
  const int64_t ld = size.columns, heads = a->heads, stride = p.depth * ld;
  REAL *turned = r.small + attention_small(a, &p, &size), *dturned = turned + p.qkv.turned;
  FN(turn_weight)(&p.qkv, w, turned);
  memset(dturned, 0, (size_t)p.qkv.turned * sizeof(REAL));
  for (int64_t first = 0, last; first < sets; first = last) {
    last = tile_end(sets, offsets, first);
    const int64_t start = offsets[first], t = offsets[last] - start;
    if (!t) continue;
    const REAL *xt = x + start * p.width, *dyt = dy + start * p.width;
    REAL *dxt = dx + start * p.width;
    FN(attention_features)(a, &p, t, ld, w, gain, xt, &r);
    FN(transpose)(t, p.width, dyt, p.width, r.across, ld);
    FN(linear_across_dx)(&p.out, t, w + p.out_at, r.across, r.doutput, ld);
    for (int64_t head = 0; head < heads; head++) {
      const REAL *q = r.features + head * stride, *k = q + heads * stride, *v = k + heads * stride;
      REAL *dq = r.dfeatures + head * stride, *dk = dq + heads * stride, *dv = dk + heads * stride;
      REAL *dhead = r.raw; /* the raw features are not needed any more */
      FN(merge)(a, &p, head, t, ld, dhead, r.doutput, 1);
      for (int64_t set = first; set < last; set++) {
        const int64_t at = offsets[set] - start, n = offsets[set + 1] - offsets[set];
        if (!n) continue;
        REAL *restrict weight = r.p, *restrict dweight = r.dp, *restrict sum = r.small;
        const REAL scale = 1 / FN(root)((REAL)p.depth);
        FN(weights)(n, p.depth, ld, q + at, k + at, weight, r.small);
        FN(gemm)(p.depth, n, n, v + at, ld, 1, weight, n, LGATR_PANEL, r.head + at, ld, LGATR_PANEL, 0);
        FN(gemm)(n, n, p.depth, v + at, 1, ld, dhead + at, ld, LGATR_PANEL, dweight, n, LGATR_PANEL, 0);
        for (int64_t j = 0; j < n; j++) sum[j] = 0;
        for (int64_t i = 0; i < n; i++)
          for (int64_t j = 0; j < n; j++) sum[j] += weight[i * n + j] * dweight[i * n + j];
        for (int64_t i = 0; i < n; i++)
          for (int64_t j = 0; j < n; j++)
            dweight[i * n + j] = scale * weight[i * n + j] * (dweight[i * n + j] - sum[j]);
        FN(gemm)(p.depth, n, n, k + at, ld, 1, dweight, n, LGATR_PANEL, dq + at, ld, LGATR_PANEL, 0);
        FN(transpose)(n, n, weight, n, r.turned, n);
        FN(gemm)(p.depth, n, n, dhead + at, ld, 1, r.turned, n, LGATR_PANEL, dv + at, ld, LGATR_PANEL, 0);
        FN(transpose)(n, n, dweight, n, r.turned, n);
        FN(gemm)(p.depth, n, n, q + at, ld, 1, r.turned, n, LGATR_PANEL, dk + at, ld, LGATR_PANEL, 0);
      }
      FN(merge)(a, &p, head, t, ld, r.head, r.out, 0);
    }
    /* dw of the map out: the merged rows are its transposed input */
    for (int i = 0; i < p.out.count; i++) {
      const item *f = p.out.items + i;
      FN(gemm)(f->k, f->n, t, r.out + f->from * ld, ld, 1, dyt + f->to, p.width, LGATR_PANEL, dw + p.out_at + f->at,
               LGATR_PANEL, f->k * LGATR_PANEL, 1);
    }
    FN(bias_dw)(&p.out, t, dyt, p.width, dw + p.out_at);
    FN(normalise_heads_back)(a, &p, t, ld, r.features, r.factor, r.scale, r.dfeatures, r.draw);
    /* dw of the map in, turned round, and its dx as rows */
    REAL *dnormed = r.across; /* as rows now */
    for (int i = 0; i < p.qkv.count; i++) {
      const item *f = p.qkv.items + i;
      const REAL *d = r.draw + f->to * ld;
      FN(gemm)(f->n, f->k, t, d, ld, 1, r.normed + f->from, p.width, LGATR_PANEL, dturned + f->turned, LGATR_PANEL,
               f->n * LGATR_PANEL, 1);
      FN(gemm)(t, f->k, f->n, d, 1, ld, turned + f->turned, LGATR_PANEL, f->n * LGATR_PANEL, dnormed + f->from, p.width,
               LGATR_PANEL, 0);
    }
    memcpy(dxt, dyt, (size_t)(t * p.width) * sizeof(REAL));
    if (a->slim)
      FN(slim_norm_back)(t, a->channels, a->scalars, (REAL)a->epsilon, xt, p.width, gain, dnormed, p.width, dxt, p.width,
                         dgain, r.small);
    else
      FN(norm_back)(t, a->channels, a->scalars, (REAL)a->epsilon, xt, p.width, gain, dnormed, p.width, dxt, p.width,
                    dgain, 1, r.small);
  }
  for (int i = 0; i < p.qkv.count; i++) {
    const item *f = p.qkv.items + i;
    if (!i || f->at != f[-1].at) FN(turn)(f->n, f->k, dturned + f->turned, dw + f->at, 1);
  }
}

/* --------------------------------------------------------------------------------------------- heads as rows */

static void FN(heads)(int parts, int heads, int hidden, int hidden_s, int with_signs, int64_t n, const REAL *x,
                      const REAL *dout, REAL *out) {
  const int64_t c = (int64_t)parts * heads * hidden, s = (int64_t)parts * heads * hidden_s;
  const int64_t width = 16 * c + s, depth = 16 * (int64_t)hidden + hidden_s;
  for (int64_t i = 0; i < n; i++)
    for (int part = 0; part < parts; part++)
      for (int64_t head = 0; head < heads; head++) {
        const REAL *row = x + i * width;
        const int64_t own = ((i * parts + part) * heads + head) * depth;
        const int64_t at = (int64_t)part * hidden * heads + head, at_s = 2 * c + (int64_t)part * hidden_s * heads + head;
        REAL mean = 0, along = 0;
        for (int64_t j = 0; j < hidden; j++) {
          REAL grade[5] = {0, 0, 0, 0, 0};
          for (int h = 0; h < 16; h++) {
            const REAL value = row[ROW_OF(h, at + j * heads, c, s)];
            grade[HALF_GROUP(h)] += HALF_SIGN(h) * value * value;
          }
          for (int g = 0; g < 5; g++) mean += (grade[g] < 0 ? -grade[g] : grade[g]) / (REAL)hidden;
        }
        const REAL factor = 1 / FN(root)(mean < (REAL)NORM_FLOOR ? (REAL)NORM_FLOOR : mean);
        REAL centre = 0, variance = 0, spread = 0;
        for (int64_t j = 0; j < hidden_s; j++) centre += row[at_s + j * heads] / (REAL)hidden_s;
        for (int64_t j = 0; j < hidden_s; j++) {
          const REAL d = row[at_s + j * heads] - centre;
          variance += d * d / (REAL)hidden_s;
        }
        if (hidden_s) spread = 1 / FN(root)(variance + (REAL)1e-5);
        if (!dout) {
          for (int64_t j = 0; j < hidden; j++)
            for (int h = 0; h < 16; h++)
              out[own + h * hidden + j] = (with_signs && part == 0 ? HALF_SIGN(h) : 1) * factor *
                                          row[ROW_OF(h, at + j * heads, c, s)];
          for (int64_t j = 0; j < hidden_s; j++)
            out[own + 16 * hidden + j] = (row[at_s + j * heads] - centre) * spread;
          continue;
        }
        const REAL *d = dout + own;
        REAL *to = out + i * width;
        for (int64_t j = 0; j < hidden; j++)
          for (int h = 0; h < 16; h++)
            along += (with_signs && part == 0 ? HALF_SIGN(h) : 1) * d[h * hidden + j] *
                     row[ROW_OF(h, at + j * heads, c, s)];
        along = mean < (REAL)NORM_FLOOR ? 0 : along * factor * factor * factor / (REAL)hidden;
        for (int64_t j = 0; j < hidden; j++) {
          REAL grade[5] = {0, 0, 0, 0, 0};
          for (int h = 0; h < 16; h++) {
            const REAL value = row[ROW_OF(h, at + j * heads, c, s)];
            grade[HALF_GROUP(h)] += HALF_SIGN(h) * value * value;
          }
          for (int h = 0; h < 16; h++) {
            const REAL g = grade[HALF_GROUP(h)], sign = g > 0 ? 1 : g < 0 ? -1 : 0;
            to[ROW_OF(h, at + j * heads, c, s)] =
                (with_signs && part == 0 ? HALF_SIGN(h) : 1) * factor * d[h * hidden + j] -
                along * sign * HALF_SIGN(h) * row[ROW_OF(h, at + j * heads, c, s)];
          }
        }
        REAL average = 0, projected = 0;
        for (int64_t j = 0; j < hidden_s; j++) {
          average += d[16 * hidden + j] / (REAL)hidden_s;
          projected += d[16 * hidden + j] * (row[at_s + j * heads] - centre) * spread / (REAL)hidden_s;
        }
        for (int64_t j = 0; j < hidden_s; j++)
          to[at_s + j * heads] = spread * (d[16 * hidden + j] - average -
                                           (row[at_s + j * heads] - centre) * spread * projected);
      }
}

/* ------------------------------------------------------------------------------------------------ entry points */

static void FN(linear_forward)(const lgatr_shape *shape, int64_t n, const REAL *w, const REAL *x, REAL *y) {
  const plan p = plan_of(shape);
  for (int64_t i = 0; i < n; i += TILE)
    FN(linear)(&p, n - i < TILE ? n - i : TILE, w, x + i * p.in, p.in, y + i * p.out, p.out, 0);
}

static void FN(linear_backward)(const lgatr_shape *shape, int64_t n, const REAL *w, const REAL *x, const REAL *dy,
                                REAL *dx, REAL *dw, REAL *scratch) {
  const plan p = plan_of(shape);
  FN(turn_weight)(&p, w, scratch);
  for (int64_t i = 0; i < n; i += TILE) {
    const int64_t t = n - i < TILE ? n - i : TILE;
    FN(linear_dx)(&p, t, scratch, dy + i * p.out, p.out, dx + i * p.in, p.in, 0);
    FN(linear_dw)(&p, t, x + i * p.in, p.in, dy + i * p.out, p.out, dw);
  }
}

static void FN(pack)(int64_t n, const int32_t *restrict source, const REAL *restrict from, REAL *restrict to) {
  for (int64_t i = 0; i < n; i++) {
    const REAL value = from[source[i] >> 1];
    to[i] = source[i] & 1 ? -value : value;
  }
}

static void FN(unpack)(int64_t n, const int32_t *restrict source, const REAL *restrict from, REAL *restrict to) {
  for (int64_t i = 0; i < n; i++) to[source[i] >> 1] += source[i] & 1 ? -from[i] : from[i];
}

#undef MICRO
#undef MICROS
#undef GET_ALL
#undef PUT_ALL
#undef SIGN_OF
#undef TERM
#undef TERM_X
#undef TERM_Y
#undef ROW
#undef ALL_TERMS
#undef ALWAYS
#undef LOWER
#undef UPPER
#undef PASSES
#undef GELU_A
#undef GELU_B
#undef ROW_OF
#undef HALVES
