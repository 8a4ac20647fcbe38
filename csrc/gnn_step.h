/* The step for one instruction set and precision; included by gnn.c once each.
 *
 * Expects REAL, LANES, PANELS, TARGET, WIDTH, NAME(x), SPLAT(s), FMA(a, b, c), KEEP(m, v), HSUM(v), ROOT(s).
 * KEEP gives v where m is not at most zero, so that NaN goes through as it does through torch's relu.
 * A register block is 6 rows x PANELS vectors: 24 accumulators of 32 with AVX-512, 12 of 16 else.
 * Work goes in tiles of GNN_TILE consecutive edges across sources and events; a tile's arrays stay in L1/L2.
 */
typedef REAL NAME(vec) __attribute__((vector_size(LANES * sizeof(REAL))));
typedef REAL NAME(loose) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
#define VEC NAME(vec)
#define LOAD(p) ((VEC) * (const NAME(loose) *)(p))
#define STORE(p, v) (*(NAME(loose) *)(p) = (v))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum { NAME(PLAIN), NAME(RELU), NAME(MASK) };

/* c[r][:] = from[r][:] + sum_k a(r, k) b[k][:] for `rows` rows and `panels` vectors; then as it is, its positive part, or
   kept where mask is positive. from NULL is zero, ld_from 0 one row for all. a(r, k) = a[r a_row + k a_step].
   rows, panels and finish are constants when inlined. */
INLINE void NAME(block)(int rows, int panels, int finish, int64_t depth, const REAL *a, int64_t a_row, int64_t a_step,
                        const REAL *b, int64_t ld_b, const REAL *from, int64_t ld_from, REAL *c, int64_t ld_c,
                        const REAL *mask) {
    VEC acc[6][PANELS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++) acc[r][p] = from ? LOAD(from + r * ld_from + p * LANES) : (VEC){0};
    for (int64_t k = 0; k < depth; k++) {
        VEC line[PANELS];
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++) line[p] = LOAD(b + k * ld_b + p * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            VEC s = SPLAT(a[r * a_row + k * a_step]);
#pragma GCC unroll 8
            for (int p = 0; p < panels; p++) acc[r][p] = FMA(s, line[p], acc[r][p]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++) {
            VEC v = acc[r][p];
            if (finish == NAME(RELU)) v = KEEP(v, v);
            if (finish == NAME(MASK)) v = KEEP(LOAD(mask + r * ld_c + p * LANES), v);
            STORE(c + r * ld_c + p * LANES, v);
        }
}

INLINE void NAME(strip)(int rows, int finish, int64_t cols, int64_t depth, const REAL *a, int64_t a_row, int64_t a_step,
                        const REAL *b, const REAL *from, int64_t ld_from, REAL *c, const REAL *mask) {
    int64_t j = 0;
    for (; j + PANELS * LANES <= cols; j += PANELS * LANES)
        NAME(block)(rows, PANELS, finish, depth, a, a_row, a_step, b + j, cols, from ? from + j : from, ld_from, c + j,
                    cols, mask + j);
    for (; j < cols; j += LANES)
        NAME(block)(rows, 1, finish, depth, a, a_row, a_step, b + j, cols, from ? from + j : from, ld_from, c + j, cols,
                    mask + j);
}

/* The whole product: c [rows, cols] = from + a b, b [depth, cols]. Meanwhile as many rows of `ahead` as c has are fetched,
   an address that need not exist: the next tile's, since a tile is too short for the hardware's own prefetch. */
INLINE void NAME(product)(int finish, int64_t rows, int64_t cols, int64_t depth, const REAL *a, int64_t a_row,
                          int64_t a_step, const REAL *b, const REAL *from, int64_t ld_from, REAL *c, const REAL *mask,
                          const REAL *ahead) {
    int64_t r = 0;
    for (; r + 6 <= rows; r += 6) {
        for (int64_t j = r * cols; ahead && j < (r + 6) * cols; j += 64 / (int64_t)sizeof(REAL))
            __builtin_prefetch(ahead + j);
        NAME(strip)(6, finish, cols, depth, a + r * a_row, a_row, a_step, b, from ? from + r * ld_from : from, ld_from,
                    c + r * cols, mask + r * cols);
    }
    for (; r + 2 <= rows; r += 2)
        NAME(strip)(2, finish, cols, depth, a + r * a_row, a_row, a_step, b, from ? from + r * ld_from : from, ld_from,
                    c + r * cols, mask + r * cols);
    for (; r < rows; r++)
        NAME(strip)(1, finish, cols, depth, a + r * a_row, a_row, a_step, b, from ? from + r * ld_from : from, ld_from,
                    c + r * cols, mask + r * cols);
}

/* Mean and inverse deviation of each row; by tile, since the root and the quotient of one row alone wait for their sums. */
INLINE void NAME(moments)(const REAL *x, int64_t rows, int64_t h, REAL epsilon, REAL *mean, REAL *inverse) {
    REAL share = (REAL)1 / (REAL)h;
    for (int64_t r = 0; r < rows; r++) {
        VEC total = {0};
        for (int64_t j = 0; j < h; j += LANES) total += LOAD(x + r * h + j);
        mean[r] = HSUM(total) * share;
    }
    for (int64_t r = 0; r < rows; r++) {
        VEC square = {0}, m = SPLAT(mean[r]);
        for (int64_t j = 0; j < h; j += LANES) {
            VEC d = LOAD(x + r * h + j) - m;
            square = FMA(d, d, square);
        }
        inverse[r] = HSUM(square) * share + epsilon;
    }
    for (int64_t r = 0; r < rows; r++) inverse[r] = (REAL)1 / ROOT(inverse[r]);
}

INLINE void NAME(add)(REAL *to, const REAL *from, int64_t h) {
    for (int64_t j = 0; j < h; j += LANES) STORE(to + j, LOAD(to + j) + LOAD(from + j));
}

TARGET static void NAME(transpose)(const REAL *from, int64_t rows, int64_t cols, REAL *to) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) to[j * rows + i] = from[i * cols + j];
}

/* Scratch of one call, carved out of step->work. */
typedef struct {
    REAL *w1t, *w2t, *x, *t1, *t2, *dz1, *dz2, *dw1t, *dw2t, *db1, *db2, *dgamma, *dbeta, *total1, *total2;
} NAME(scratch);

TARGET static NAME(scratch) NAME(carve)(const gnn_step *s) {
    int64_t h = s->hidden, k = s->width, tile = GNN_TILE * (h > k ? h : k);
    REAL *p = (REAL *)(((uintptr_t)s->work + 63) & ~(uintptr_t)63);
    NAME(scratch) w;
    w.w1t = p; p += h * 16 * ((k + 15) / 16);
    w.w2t = p; p += h * h;
    w.x = p; p += tile;
    w.t1 = p; p += tile;
    w.t2 = p; p += tile;
    w.dz1 = p; p += tile;
    w.dz2 = p; p += tile;
    w.dw1t = p; p += h * 16 * ((k + 15) / 16);
    w.dw2t = p; p += h * h;
    w.total1 = p; p += h * 16 * ((k + 15) / 16);
    w.total2 = p; p += h * h;
    w.db1 = p; p += h;
    w.db2 = p; p += h;
    w.dgamma = p; p += h;
    w.dbeta = p;
    return w;
}

/* The tile's input: the caller's rows, or their normalised copy. */
INLINE const REAL *NAME(input)(const gnn_step *s, int64_t h, int64_t width, int64_t edge, int64_t rows, REAL *copy) {
    const REAL *x = (const REAL *)s->x + edge * width, *gamma = s->in_gamma, *beta = s->in_beta;
    REAL mean[GNN_TILE], inverse[GNN_TILE];
    if (!gamma) return x;
    NAME(moments)(x, rows, h, (REAL)s->epsilon, mean, inverse);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < h; j += LANES)
            STORE(copy + r * h + j,
                  FMA((LOAD(x + r * h + j) - SPLAT(mean[r])) * SPLAT(inverse[r]), LOAD(gamma + j), LOAD(beta + j)));
    return copy;
}

INLINE void NAME(first)(const gnn_step *s, int64_t h, int64_t width, const REAL *w1t, int64_t rows,
                        const int64_t *source, const int64_t *target, const REAL *x, REAL *t1) {
    const REAL *ps = s->ps, *pd = s->pd, *b1 = s->b1;
    if (!ps) {
        NAME(product)(NAME(RELU), rows, h, width, x, width, 1, w1t, b1, 0, t1, t1, NULL);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < h; j += LANES) {
            VEC v = LOAD(ps + source[r] * h + j) + LOAD(pd + target[r] * h + j);
            if (b1) v += LOAD(b1 + j);
            STORE(t1 + r * h + j, v);
        }
    NAME(product)(NAME(RELU), rows, h, width, x, width, 1, w1t, t1, h, t1, t1, NULL);
}

INLINE void NAME(forward_of)(const gnn_step *s, int64_t h, int64_t width) {
    NAME(scratch) w = NAME(carve)(s);
    gnn_cursor at = gnn_start(s);
    int64_t source[GNN_TILE], target[GNN_TILE];
    const REAL *gamma = s->gamma, *beta = s->beta;
    REAL *sum = s->sum, mean[GNN_TILE], inverse[GNN_TILE];
    NAME(transpose)(s->w1, h, width, w.w1t);
    NAME(transpose)(s->w2, h, h, w.w2t);
    if (sum) memset(sum, 0, (size_t)(at.nodes * h) * sizeof(REAL));
    for (int64_t edge = 0, rows; (rows = gnn_next(&at, source, target)) > 0; edge += rows) {
        const REAL *x = NAME(input)(s, h, width, edge, rows, w.x);
        REAL *t1 = s->t1 ? (REAL *)s->t1 + edge * h : w.t1;
        REAL *t2 = s->t2 ? (REAL *)s->t2 + edge * h : w.t2;
        NAME(first)(s, h, width, w.w1t, rows, source, target, x, t1);
        NAME(product)(NAME(RELU), rows, h, h, t1, h, 1, w.w2t, s->b2, 0, t2, t2,
                      width == h ? (const REAL *)s->x + (edge + rows) * h : NULL);
        if (!sum) continue;
        NAME(moments)(t2, rows, h, (REAL)s->epsilon, mean, inverse);
        for (int64_t r = 0; r < rows; r++) {
            REAL *to = sum + target[r] * h;
            for (int64_t j = 0; j < h; j += LANES)
                STORE(to + j, LOAD(to + j) + FMA((LOAD(t2 + r * h + j) - SPLAT(mean[r])) * SPLAT(inverse[r]),
                                                 LOAD(gamma + j), LOAD(beta + j)));
        }
    }
}

/* Derivatives by t2's pre-activation for one tile, and the norm's own gradients. */
INLINE void NAME(norm_backward)(const gnn_step *s, const NAME(scratch) * w, int64_t h, int64_t edge, int64_t rows,
                                const int64_t *target) {
    const REAL *gamma = s->gamma, *d_out = s->d_out, *d_sum = s->d_sum, *t2 = (const REAL *)s->t2 + edge * h;
    REAL mean[GNN_TILE], inverse[GNN_TILE], along[GNN_TILE], across[GNN_TILE], share = (REAL)1 / (REAL)h;
    NAME(moments)(t2, rows, h, (REAL)s->epsilon, mean, inverse);
    for (int64_t r = 0; r < rows; r++) {
        VEC sum = {0}, product = {0};
        for (int64_t j = 0; j < h; j += LANES) {
            VEC g = {0};
            if (d_out) g = LOAD(d_out + (edge + r) * h + j);
            if (d_sum) g += LOAD(d_sum + target[r] * h + j);
            VEC unit = (LOAD(t2 + r * h + j) - SPLAT(mean[r])) * SPLAT(inverse[r]);
            STORE(w->dgamma + j, FMA(g, unit, LOAD(w->dgamma + j)));
            STORE(w->dbeta + j, LOAD(w->dbeta + j) + g);
            g *= LOAD(gamma + j);
            STORE(w->dz2 + r * h + j, g);
            sum += g;
            product = FMA(g, unit, product);
        }
        along[r] = HSUM(sum) * share;
        across[r] = HSUM(product) * share;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < h; j += LANES) {
            VEC t = LOAD(t2 + r * h + j), unit = (t - SPLAT(mean[r])) * SPLAT(inverse[r]);
            VEC d = (LOAD(w->dz2 + r * h + j) - SPLAT(along[r]) - unit * SPLAT(across[r])) * SPLAT(inverse[r]);
            d = KEEP(t, d);
            STORE(w->dz2 + r * h + j, d);
            STORE(w->db2 + j, LOAD(w->db2 + j) + d);
        }
}

INLINE void NAME(flush)(REAL *total, REAL *run, int64_t numbers) {
    for (int64_t i = 0; i < numbers; i++) total[i] += run[i], run[i] = 0;
}

INLINE void NAME(backward_of)(const gnn_step *s, int64_t h, int64_t k) {
    NAME(scratch) w = NAME(carve)(s);
    gnn_cursor at = gnn_start(s);
    int64_t run = 0, source[GNN_TILE], target[GNN_TILE];
    size_t number = sizeof(REAL);
    REAL *d_ps = s->d_ps, *d_pd = s->d_pd;
    NAME(transpose)(s->w1, h, k, w.w1t);
    memset(w.dw1t, 0, (size_t)(h * k) * number);
    memset(w.dw2t, 0, (size_t)(h * h) * number);
    memset(w.total1, 0, (size_t)(h * k) * number);
    memset(w.total2, 0, (size_t)(h * h) * number);
    memset(w.db1, 0, (size_t)(4 * h) * number); /* db1, db2, dgamma, dbeta lie together */
    memset(s->d_b2, 0, (size_t)h * number);
    memset(s->d_gamma, 0, (size_t)h * number);
    memset(s->d_beta, 0, (size_t)h * number);
    if (s->d_b1) memset(s->d_b1, 0, (size_t)h * number);
    if (d_ps) {
        memset(d_ps, 0, (size_t)(at.nodes * h) * number);
        memset(d_pd, 0, (size_t)(at.nodes * h) * number);
    }
    for (int64_t edge = 0, rows;; edge += rows) {
        rows = gnn_next(&at, source, target);
        if (rows == 0 || run + rows > GNN_RUN) {
            NAME(flush)(w.total1, w.dw1t, h * k);
            NAME(flush)(w.total2, w.dw2t, h * h);
            NAME(flush)(s->d_b2, w.db2, h);
            NAME(flush)(s->d_gamma, w.dgamma, h);
            NAME(flush)(s->d_beta, w.dbeta, h);
            if (s->d_b1) NAME(flush)(s->d_b1, w.db1, h);
            run = 0;
        }
        if (rows == 0) break;
        run += rows;
        const REAL *x = NAME(input)(s, h, k, edge, rows, w.x);
        const REAL *t1 = s->t1 ? (const REAL *)s->t1 + edge * h : w.t1;
        if (!s->t1) NAME(first)(s, h, k, w.w1t, rows, source, target, x, w.t1);
        NAME(norm_backward)(s, &w, h, edge, rows, target);
        int64_t next = (edge + rows) * h;
        const REAL *next_t1 = s->t1 ? (const REAL *)s->t1 + next : NULL;
        const REAL *next_out = s->d_out ? (const REAL *)s->d_out + next : NULL;
        NAME(product)(NAME(PLAIN), h, h, rows, t1, 1, h, w.dz2, w.dw2t, h, w.dw2t, t1, (const REAL *)s->t2 + next);
        NAME(product)(NAME(MASK), rows, h, h, w.dz2, h, 1, s->w2, NULL, 0, w.dz1, t1, next_out);
        NAME(product)(NAME(PLAIN), k, h, rows, x, 1, k, w.dz1, w.dw1t, h, w.dw1t, t1,
                      k == h ? (const REAL *)s->x + next : NULL);
        if (d_ps)
            for (int64_t r = 0; r < rows; r++) {
                NAME(add)(d_ps + source[r] * h, w.dz1 + r * h, h);
                NAME(add)(d_pd + target[r] * h, w.dz1 + r * h, h);
            }
        if (s->d_b1)
            for (int64_t r = 0; r < rows; r++) NAME(add)(w.db1, w.dz1 + r * h, h);
        if (s->d_x)
            NAME(product)(NAME(PLAIN), rows, k, h, w.dz1, h, 1, s->w1, NULL, 0, (REAL *)s->d_x + edge * k, t1, next_t1);
    }
    NAME(transpose)(w.total1, k, h, s->d_w1);
    NAME(transpose)(w.total2, h, h, s->d_w2);
}

/* The default width as a constant, where WIDTH says so: the loops over a row unroll. */
TARGET static void NAME(forward)(const gnn_step *s) {
    if (WIDTH && s->hidden == WIDTH && s->width == WIDTH) NAME(forward_of)(s, WIDTH, WIDTH);
    else NAME(forward_of)(s, s->hidden, s->width);
}

TARGET static void NAME(backward)(const gnn_step *s) {
    if (WIDTH && s->hidden == WIDTH && s->width == WIDTH) NAME(backward_of)(s, WIDTH, WIDTH);
    else NAME(backward_of)(s, s->hidden, s->width);
}

#undef VEC
#undef LOAD
#undef STORE
#undef INLINE
