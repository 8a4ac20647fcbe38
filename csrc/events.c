/* Edge features, edge indices and row gathers of fully connected events; the manual is events.h. */

#include "events.h"

#include <math.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

/* One function per instruction set, chosen when the library is loaded; elsewhere plain C. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 12
#define EVERY_SET __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERY_SET
#endif

enum {
    BLOCK = 64,  /* destinations in one pass: their results stay in the first-level cache */
    VECTOR = 16, /* floats of the widest register */
};

static const float PI_F = 3.14159274101257324f;
static const float TWO_PI_F = 6.28318548202514648f;

PUBLIC const char *events_source_digest(void)
{
    return HARNESS_SOURCE_DIGEST;
}

static int64_t edges_of(int64_t nodes, int self_loops)
{
    return self_loops ? nodes * nodes : nodes * (nodes > 0 ? nodes - 1 : 0);
}

static int check(const int64_t *node_off, int64_t n_events, int self_loops, int64_t n_edges)
{
    int64_t total = 0;
    for (int64_t i = 0; i < n_events; i++) {
        int64_t nodes = node_off[i + 1] - node_off[i];
        if (nodes < 0)
            return EVENTS_BAD_OFFSETS;
        total += edges_of(nodes, self_loops);
    }
    return total == n_edges ? EVENTS_OK : EVENTS_BAD_ROWS;
}

/* All sources of an event against a block of destinations, first .. first+count-1.
 *
 * A row of results is computed over whole vectors (the block is padded, its results are dropped) and then copied to its
 * place without the edge from a node to itself: half the time of loops that end at the row's own length.
 * |phi| <= 2 pi makes a difference need two turns at most, and each turn is exact (Sterbenz), so d_phi is antisymmetric
 * to the last bit except at -pi. */
EVERY_SET
static void block(const float *event, int64_t width, int64_t eta, int64_t phi, int64_t nodes, int self_loops,
                  int64_t first, int64_t count, float *edge_x)
{
    int64_t degree = self_loops ? nodes : nodes - 1;
    int64_t padded = (count + VECTOR - 1) / VECTOR * VECTOR;
    float eta_d[BLOCK] = {0}, phi_d[BLOCK] = {0};
    float d_eta[BLOCK], d_phi[BLOCK], d_r[BLOCK], row[3 * BLOCK];
    for (int64_t d = 0; d < count; d++) {
        eta_d[d] = event[(first + d) * width + eta];
        phi_d[d] = event[(first + d) * width + phi];
    }
    for (int64_t s = 0; s < nodes; s++) {
        float eta_s = event[s * width + eta], phi_s = event[s * width + phi];
        for (int64_t d = 0; d < padded; d++) {
            float x = eta_s - eta_d[d];
            float y = phi_s - phi_d[d];
            y = y >= PI_F ? y - TWO_PI_F : y;
            y = y >= PI_F ? y - TWO_PI_F : y;
            y = y < -PI_F ? y + TWO_PI_F : y;
            y = y < -PI_F ? y + TWO_PI_F : y;
            d_eta[d] = x;
            d_phi[d] = y;
            d_r[d] = (float)sqrt((double)x * x + (double)y * y);
        }
        for (int64_t d = 0; d < padded; d++) {
            row[3 * d] = d_eta[d];
            row[3 * d + 1] = d_phi[d];
            row[3 * d + 2] = d_r[d];
        }
        float *out = edge_x + 3 * (s * degree + first);
        if (self_loops || s >= first + count) {
            memcpy(out, row, sizeof(float) * 3 * (size_t)count);
        } else if (s < first) { /* the source stands before this block and was left out */
            memcpy(out - 3, row, sizeof(float) * 3 * (size_t)count);
        } else {
            int64_t before = s - first;
            memcpy(out, row, sizeof(float) * 3 * (size_t)before);
            memcpy(out + 3 * before, row + 3 * (before + 1), sizeof(float) * 3 * (size_t)(count - before - 1));
        }
    }
}

PUBLIC int events_edge_features(const float *node_x, int64_t width, int64_t eta, int64_t phi, const int64_t *node_off,
                                int64_t n_events, int self_loops, float *edge_x, int64_t n_edges)
{
    int status = check(node_off, n_events, self_loops, n_edges);
    if (status != EVENTS_OK)
        return status;
    for (int64_t i = 0; i < n_events; i++) {
        int64_t nodes = node_off[i + 1] - node_off[i];
        const float *event = node_x + node_off[i] * width;
        for (int64_t first = 0; first < nodes; first += BLOCK) {
            int64_t count = nodes - first < BLOCK ? nodes - first : BLOCK;
            block(event, width, eta, phi, nodes, self_loops, first, count, edge_x);
        }
        edge_x += 3 * edges_of(nodes, self_loops);
    }
    return EVENTS_OK;
}

EVERY_SET
static void index_event(int64_t base, int64_t nodes, int self_loops, int64_t *restrict src, int64_t *restrict dst)
{
    int64_t degree = self_loops ? nodes : nodes - 1;
    for (int64_t s = 0; s < nodes; s++) {
        int64_t skip = self_loops ? degree : s;
        for (int64_t d = 0; d < degree; d++)
            src[d] = base + s;
        for (int64_t d = 0; d < skip; d++)
            dst[d] = base + d;
        for (int64_t d = skip; d < degree; d++)
            dst[d] = base + d + 1;
        src += degree;
        dst += degree;
    }
}

PUBLIC int events_edge_index(const int64_t *node_off, int64_t n_events, int self_loops, int64_t *src, int64_t *dst,
                             int64_t n_edges)
{
    int status = check(node_off, n_events, self_loops, n_edges);
    if (status != EVENTS_OK)
        return status;
    for (int64_t i = 0; i < n_events; i++) {
        int64_t nodes = node_off[i + 1] - node_off[i];
        int64_t edges = edges_of(nodes, self_loops);
        index_event(node_off[i] - node_off[0], nodes, self_loops, src, dst);
        src += edges;
        dst += edges;
    }
    return EVENTS_OK;
}

PUBLIC int events_gather(const char *source, int64_t row_bytes, const int64_t *offset, int64_t n_items,
                         const int64_t *index, int64_t n_index, char *target, int64_t n_rows)
{
    int64_t total = 0;
    for (int64_t k = 0; k < n_index; k++) {
        if (index[k] < 0 || index[k] >= n_items)
            return EVENTS_BAD_INDEX;
        int64_t rows = offset[index[k] + 1] - offset[index[k]];
        if (rows < 0)
            return EVENTS_BAD_OFFSETS;
        total += rows;
    }
    if (total != n_rows)
        return EVENTS_BAD_ROWS;
    for (int64_t k = 0; k < n_index; k++) {
        size_t bytes = (size_t)((offset[index[k] + 1] - offset[index[k]]) * row_bytes);
        memcpy(target, source + offset[index[k]] * row_bytes, bytes);
        target += bytes;
    }
    return EVENTS_OK;
}
