/* Adaptive subdivision of one pixel: the coordinate evaluator and the two ways to come by a cell's corners. */
#include <stdlib.h>
#include <string.h>

#include "mapping_internal.h"

/* Coordinate of lattice node (u, v, t) in voxels from the grid's lower edge. The only place where one is computed. */
static inline void coordinate(const mapper *m, uint32_t u, uint32_t v, uint32_t t, double q[3])
{
    const prepared_grid *g = m->grid;
    const double *a = m->table + 12 * (size_t)t;
    const double fu = (double)u * m->unit, fv = (double)v * m->unit;
    const double gu = 1.0 - fu, gv = 1.0 - fv;
    double ray[3];

    for (int k = 0; k < 3; k++)
        ray[k] = gv * (gu * m->corner[0][k] + fu * m->corner[1][k]) + fv * (gu * m->corner[2][k] + fu * m->corner[3][k]);
    const double norm = sqrt((ray[0] * ray[0] + ray[1] * ray[1]) + ray[2] * ray[2]);
    for (int k = 0; k < 3; k++)
        ray[k] /= norm;
    for (int k = 0; k < 3; k++)
        q[k] = ((((a[4 * k] * ray[0] + a[4 * k + 1] * ray[1]) + a[4 * k + 2] * ray[2]) + a[4 * k + 3]) - g->minimum[k]) /
               g->step[k];
}

/* The voxel of lattice node (u, v, t), or INVALID. */
static inline uint64_t evaluate(mapper *m, uint32_t u, uint32_t v, uint32_t t)
{
    const prepared_grid *g = m->grid;
    double q[3];
    coordinate(m, u, v, t, q);
    m->counters.evaluations++;
    /* floor(q) lies in [0, shape) exactly where q does, and there truncation is floor; NaN fails every comparison. */
    if (!(q[0] >= 0.0 && q[0] < g->limit[0] && q[1] >= 0.0 && q[1] < g->limit[1] && q[2] >= 0.0 && q[2] < g->limit[2]))
        return INVALID;
    return (uint64_t)(int64_t)q[0] << g->shift_x | (uint64_t)(int64_t)q[1] << g->shift_y | (uint64_t)(int64_t)q[2];
}

/* How far a point of the current pixel can lie outside the box of its corners' coordinates, axis by axis, in voxels.
 *
 * With c a convex combination of the unit corner rays r_i and d their largest chord, |c/|c| - c| = 1 - |c| <= d^2/4
 * (mapping_flat.inc), so an affine map moves by at most its gradient times that; a cell's corners lie on the sphere
 * while their combination does not, which costs the same once more, hence d^2/2 for pixels and cells alike. Over an
 * exposure, A_t differs from the interpolated (A_0, A_1), under which the box of eight corners is convex, by at most the spread of the table.
 * Rays that are only nearly unit, ||r|^2 - 1| <= e, add the gradient times e twice.
 */
static void measure(mapper *m, bool stationary)
{
    const size_t last = (size_t)2 << m->depth;
    double chord = 0.0, error = 0.0;
    m->measured = true;
    for (int i = 0; i < 4; i++) {
        double length = 0.0;
        for (int k = 0; k < 3; k++)
            length += m->corner[i][k] * m->corner[i][k];
        error = fmax(error, fabs(length - 1.0));
        for (int j = 0; j < i; j++) {
            double square = 0.0;
            for (int k = 0; k < 3; k++)
                square += (m->corner[i][k] - m->corner[j][k]) * (m->corner[i][k] - m->corner[j][k]);
            chord = fmax(chord, square);
        }
    }
    const bool bounded = chord <= 0.25 && error <= 1e-6;
    for (int k = 0; k < 3; k++) {
        const double *low = m->table + 4 * k, *high = low + 12 * last;
        double gradient = 0.0, spread = 0.0, offset = fabs(m->grid->minimum[k]);
        for (size_t p = stationary ? last / 2 : 0; p <= (stationary ? last / 2 : last); p++) {
            const double *a = low + 12 * p, t = (double)p / (double)last;
            double square = 0.0, off = 0.0;
            for (int i = 0; i < 3; i++) {
                const double between = (1.0 - t) * low[i] + t * high[i];
                square += a[i] * a[i];
                off += (a[i] - between) * (a[i] - between);
            }
            gradient = fmax(gradient, sqrt(square));
            offset = fmax(offset, fabs(a[3]));
            if (!stationary)
                spread = fmax(spread, sqrt(off) + fabs(a[3] - ((1.0 - t) * low[3] + t * high[3])));
        }
        /* a dozen roundings of 2^-53 in terms of at most gradient + 2 offset, for the corners and for the point */
        const double rounding = 64 * 0x1p-53 * (gradient + offset);
        m->slack[k] = (1.01 * gradient * (chord / 2 + 2 * error) + spread) / m->grid->step[k] +
                      rounding / m->grid->step[k] + 1e-9;
        if (!bounded || !isfinite(m->slack[k]))
            m->slack[k] = INFINITY;
    }
}

/* Whether the cell at (u, v, t) of this size can reach no voxel; its corners are known to be outside the grid. */
static bool unreachable(mapper *m, uint32_t u, uint32_t v, uint32_t t, uint32_t size, bool stationary)
{
    double low[3] = {INFINITY, INFINITY, INFINITY}, high[3] = {-INFINITY, -INFINITY, -INFINITY};
    for (uint32_t c = 0; c < (stationary ? 4u : 8u); c++) {
        double q[3];
        coordinate(m, u + (c & 1) * size, v + (c >> 1 & 1) * size, t + (c >> 2) * size, q);
        for (int k = 0; k < 3; k++) {
            if (!isfinite(q[k]))
                return false;
            low[k] = q[k] < low[k] ? q[k] : low[k];
            high[k] = q[k] > high[k] ? q[k] : high[k];
        }
    }
    for (int k = 0; k < 3; k++) {
        if (!(high[k] < 0.0 || low[k] > m->grid->limit[k]))
            continue;
        if (!m->measured)
            measure(m, stationary);
        if (high[k] < -m->slack[k] || low[k] > m->grid->limit[k] + m->slack[k])
            return true;
    }
    return false;
}

/* Whether to leave a cell out; at the last depth its centre costs less than the question. */
static inline bool rejects(mapper *m, int depth, uint32_t u, uint32_t v, uint32_t t, const uint64_t *id, bool stationary)
{
    if (!m->reject || depth == m->depth)
        return false;
    for (int c = 0; c < (stationary ? 4 : 8); c++)
        if (id[c] != INVALID)
            return false;
    if (!unreachable(m, u, v, t, 2u << (m->depth - depth), stationary))
        return false;
    m->counters.skipped += depth == 0;
    return true;
}

static int by_id(const void *a, const void *b)
{
    const uint64_t x = ((const leaf *)a)->id, y = ((const leaf *)b)->id;
    return (x > y) - (x < y);
}

void merge_leaves(mapper *m)
{
    if (m->leaf_count < 2)
        return;
    if (m->leaf_count <= 16) {
        for (size_t i = 1; i < m->leaf_count; i++) {
            const leaf moved = m->leaves[i];
            size_t j = i;
            for (; j > 0 && m->leaves[j - 1].id > moved.id; j--)
                m->leaves[j] = m->leaves[j - 1];
            m->leaves[j] = moved;
        }
    } else {
        qsort(m->leaves, m->leaf_count, sizeof *m->leaves, by_id);
    }
    size_t kept = 0;
    for (size_t i = 1; i < m->leaf_count; i++) {
        if (m->leaves[i].id == m->leaves[kept].id)
            m->leaves[kept].count += m->leaves[i].count;
        else
            m->leaves[++kept] = m->leaves[i];
    }
    m->leaf_count = kept + 1;
}

/* Add count units of weight to a voxel; equal ids may stay apart until merge_leaves. */
static inline void add_leaf(mapper *m, uint64_t id, uint32_t count)
{
    m->leaf_total++;
    const size_t first = m->leaf_count > LEAF_SEARCH ? m->leaf_count - LEAF_SEARCH : 0;
    for (size_t i = m->leaf_count; i-- > first;) {
        if (m->leaves[i].id == id) {
            m->leaves[i].count += count;
            return;
        }
    }
    if (m->leaf_count == m->leaf_capacity) {
        merge_leaves(m);
        if (m->leaf_count > m->leaf_capacity / 2) {
            leaf *grown = realloc(m->leaves, 2 * m->leaf_capacity * sizeof *grown);
            if (grown == NULL) {
                m->failed = true;
                return;
            }
            m->leaves = grown;
            m->leaf_capacity *= 2;
        }
    }
    m->leaves[m->leaf_count++] = (leaf){id, count};
}

void subdivide_centre(mapper *m)
{
    const uint32_t middle = 1u << m->depth;
    const uint64_t id = evaluate(m, middle, middle, middle);
    if (id != INVALID)
        add_leaf(m, id, 1);
}

/* ------------------------------------------------------------------ corner passing */

static void pass4(mapper *m, int depth, uint32_t u, uint32_t v, const uint64_t id[4])
{
    if (id[0] != INVALID && id[0] == id[1] && id[0] == id[2] && id[0] == id[3]) {
        add_leaf(m, id[0], 1u << (2 * (m->depth - depth)));
        return;
    }
    const uint32_t half = 1u << (m->depth - depth), middle = 1u << m->depth;
    if (rejects(m, depth, u, v, middle, id, true))
        return;
    if (depth == m->depth) {
        const uint64_t centre = evaluate(m, u + half, v + half, middle);
        if (centre != INVALID)
            add_leaf(m, centre, 1);
        return;
    }
    uint64_t n[3][3]; /* [v][u] */
    n[0][0] = id[0], n[0][2] = id[1], n[2][0] = id[2], n[2][2] = id[3];
    n[0][1] = evaluate(m, u + half, v, middle);
    n[1][0] = evaluate(m, u, v + half, middle);
    n[1][1] = evaluate(m, u + half, v + half, middle);
    n[1][2] = evaluate(m, u + 2 * half, v + half, middle);
    n[2][1] = evaluate(m, u + half, v + 2 * half, middle);
    for (uint32_t c = 0; c < 4; c++) {
        const uint32_t a = c & 1, b = c >> 1;
        const uint64_t child[4] = {n[b][a], n[b][a + 1], n[b + 1][a], n[b + 1][a + 1]};
        pass4(m, depth + 1, u + a * half, v + b * half, child);
    }
}

static void pass8(mapper *m, int depth, uint32_t u, uint32_t v, uint32_t t, const uint64_t id[8])
{
    bool same = id[0] != INVALID;
    for (int c = 1; c < 8; c++)
        same &= id[c] == id[0];
    if (same) {
        add_leaf(m, id[0], 1u << (3 * (m->depth - depth)));
        return;
    }
    const uint32_t half = 1u << (m->depth - depth);
    if (rejects(m, depth, u, v, t, id, false))
        return;
    if (depth == m->depth) {
        const uint64_t centre = evaluate(m, u + half, v + half, t + half);
        if (centre != INVALID)
            add_leaf(m, centre, 1);
        return;
    }
    uint64_t n[3][3][3]; /* [t][v][u] */
    for (uint32_t c = 0; c < 3; c++)
        for (uint32_t b = 0; b < 3; b++)
            for (uint32_t a = 0; a < 3; a++) {
                if (a != 1 && b != 1 && c != 1)
                    n[c][b][a] = id[a / 2 + b / 2 * 2 + c / 2 * 4];
                else
                    n[c][b][a] = evaluate(m, u + a * half, v + b * half, t + c * half);
            }
    for (uint32_t k = 0; k < 8; k++) {
        const uint32_t a = k & 1, b = k >> 1 & 1, c = k >> 2;
        uint64_t child[8];
        for (uint32_t i = 0; i < 8; i++)
            child[i] = n[c + (i >> 2)][b + (i >> 1 & 1)][a + (i & 1)];
        pass8(m, depth + 1, u + a * half, v + b * half, t + c * half, child);
    }
}

void subdivide_passing(mapper *m, bool stationary)
{
    const uint32_t side = 2u << m->depth, middle = 1u << m->depth;
    uint64_t id[8];
    const uint32_t corners = stationary ? 4 : 8;
    for (uint32_t c = 0; c < corners; c++)
        id[c] = evaluate(m, (c & 1) * side, (c >> 1 & 1) * side, stationary ? middle : (c >> 2) * side);
    if (stationary)
        pass4(m, 0, 0, 0, id);
    else
        pass8(m, 0, 0, 0, 0, id);
}

/* ------------------------------------------------------------------ corner cache */

/* The node from the dense cache; beyond depth 3 there is none (17^3 entries are the most that stay in L2). */
static inline uint64_t look_up(mapper *m, uint32_t u, uint32_t v, uint32_t t)
{
    if (m->cache == NULL)
        return evaluate(m, u, v, t);
    cached_node *node = &m->cache[(t * m->cache_side + v) * m->cache_side + u];
    if (node->generation != m->generation) {
        node->id = evaluate(m, u, v, t);
        node->generation = m->generation;
    }
    return node->id;
}

static void cached4(mapper *m, int depth, uint32_t u, uint32_t v)
{
    const uint32_t half = 1u << (m->depth - depth), side = 2 * half, middle = 1u << m->depth;
    uint64_t id[4];
    for (uint32_t c = 0; c < 4; c++)
        id[c] = look_up(m, u + (c & 1) * side, v + (c >> 1) * side, middle);
    if (id[0] != INVALID && id[0] == id[1] && id[0] == id[2] && id[0] == id[3]) {
        add_leaf(m, id[0], 1u << (2 * (m->depth - depth)));
    } else if (depth == m->depth) {
        const uint64_t centre = look_up(m, u + half, v + half, middle);
        if (centre != INVALID)
            add_leaf(m, centre, 1);
    } else if (!rejects(m, depth, u, v, middle, id, true)) {
        for (uint32_t c = 0; c < 4; c++)
            cached4(m, depth + 1, u + (c & 1) * half, v + (c >> 1) * half);
    }
}

static void cached8(mapper *m, int depth, uint32_t u, uint32_t v, uint32_t t)
{
    const uint32_t half = 1u << (m->depth - depth), side = 2 * half;
    uint64_t id[8];
    bool same = true;
    for (uint32_t c = 0; c < 8; c++)
        id[c] = look_up(m, u + (c & 1) * side, v + (c >> 1 & 1) * side, t + (c >> 2) * side);
    for (int c = 1; c < 8; c++)
        same &= id[c] == id[0];
    if (same && id[0] != INVALID) {
        add_leaf(m, id[0], 1u << (3 * (m->depth - depth)));
    } else if (depth == m->depth) {
        const uint64_t centre = look_up(m, u + half, v + half, t + half);
        if (centre != INVALID)
            add_leaf(m, centre, 1);
    } else if (!rejects(m, depth, u, v, t, id, false)) {
        for (uint32_t c = 0; c < 8; c++)
            cached8(m, depth + 1, u + (c & 1) * half, v + (c >> 1 & 1) * half, t + (c >> 2) * half);
    }
}

void subdivide_cached(mapper *m, bool stationary)
{
    m->generation++;
    if (stationary)
        cached4(m, 0, 0, 0);
    else
        cached8(m, 0, 0, 0, 0);
}
